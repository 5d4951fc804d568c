"""`scatter_add` in files: the reverse of `gather`, under layouts that split any of its dimensions."""

import numpy as np
import pytest

from tests.harness import agree, diagnose, generic_data, load, reference

HEAD = """
dim groups = 4; dim tokens = 6; dim d = 8; dim slots = 10
mesh grid = [a: 2, b: 2]
layout sources on grid = { groups: a, slots: b }
layout targets on grid = { tokens: a, d: b }
"""

ROUTED = (
    HEAD
    + """
model m(x: [groups, tokens, d], ids: i32[groups, slots]) {
  s = gather(x, ids, tokens)
  y = scatter_add(s * s, ids, tokens, [groups, d, tokens])
  return y
}
"""
)


def test_it_is_the_reverse_of_gather_under_all_layouts() -> None:
    agree(ROUTED, jax=False)


def test_updates_of_one_element_are_added_and_others_are_dropped() -> None:
    source = (
        HEAD
        + "model m(u: [d, slots], ids: i32[slots]) { y = scatter_add(u, ids, tokens, [tokens, d]) return y }"
    )
    source = source.replace("] return", "]\n return").replace(") return", ")\n return")
    (program,) = load(source).programs
    arrays = generic_data(program.function("forward"), 0)
    arrays["ids"] = np.array([0, 0, 5, 6, -1, 2, 2, 2, 1, 100], np.int32)
    expected = np.zeros((6, 8), np.float32)
    for update, place in zip(arrays["u"].T, arrays["ids"], strict=True):
        if 0 <= place < 6:
            expected[place] += update
    np.testing.assert_allclose(reference(source, "forward", arrays)["y"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "scatter_add(u, ids, tokens, [tokens, groups])",
            "the updates have dimensions [d, slots], and not [slots, groups]",
        ),
        ("scatter_add(u, u, tokens, [tokens, d])", "an integer tensor"),
        ("scatter_add(u, ids, tokens, [d])", "tokens"),
        ("scatter_add(u, ids, tokens)", "scatter_add"),
    ],
)
def test_other_updates_are_refused(call: str, message: str) -> None:
    source = f"{HEAD}\nmodel m(u: [d, slots], ids: i32[slots]) {{\n  y = {call}\n  return y\n}}\n"
    errors = [each.message for each in diagnose(source) if each.code.startswith("E")]
    assert len(errors) == 1 and message in errors[0], errors
