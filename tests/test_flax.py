"""Test training against models written by hand in Flax NNX and optax: the losses of 50 steps, under several layouts."""

import pytest

from benchmarks import peer_flax

TASKS = {task.name: task for task in peer_flax.tasks()}


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("digits, sgd", ("tiled", "image_split")),
        ("LM, adamw", ("fsdp",)),
    ],
)
def test_losses_are_those_of_flax_and_optax(name: str, layouts: tuple[str, ...]) -> None:
    task = TASKS[name]
    runs = {layout: peer_flax.ours(task, layout) for layout in layouts}
    expected = peer_flax.theirs(task, runs[layouts[0]][0])
    assert expected[-1] < expected[0] / 2, "the model learns"
    for layout, (_, losses) in runs.items():
        assert peer_flax.largest_difference(losses, expected) <= peer_flax.LIMIT, layout
