"""The figures of `make bench` that no clock decides."""

from pathlib import Path

import numpy as np
import pytest

import mtfc
from benchmarks import peer_jax, peer_moe, plans, published, shared_cores, soybean, throughput
from benchmarks.programs import dense_chain
from benchmarks.shared_cores import Call, CallTime, Recorder, processor_seconds, step_seconds
from mtfc.compiler.search.usual_layouts import batch_dims
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose, select_program
from mtfc.driver.loading.sources import Sources
from tests.harness import lowered
from tests.sampling import some

SMALL = {"batch": 32, "io": 16, "hidden": 64}


@pytest.mark.parametrize("layout", peer_jax.LAYOUTS)
def test_generated_jax_sends_no_more_than_the_automatic_partitioner(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_jax, "DIMS", SMALL)
    arrays = {name: np.ones((SMALL["batch"], SMALL["io"]), np.float32) for name in ("x", "target")}
    sizes, rules = peer_jax.LAYOUTS[layout]
    _, generated = peer_jax.generated(sizes, rules, arrays)
    _, handwritten = peer_jax.handwritten(sizes, rules, arrays)
    assert generated <= handwritten


def equations(layers: int, layout: str) -> int:
    """Equations of all functions but all-reduces, of which more fit into one where shards are smaller."""
    functions = lowered(dense_chain(layers), layout=layout).functions
    return sum(eqn.op != "all_reduce" for function in functions for eqn in function.body)


def test_programs_do_not_grow_with_the_mesh_and_linearly_with_the_layers() -> None:
    assert equations(8, "on_8") == equations(8, "on_512")
    assert equations(16, "on_8") - equations(12, "on_8") == equations(12, "on_8") - equations(8, "on_8")


def test_experts_by_hand_compute_what_the_library_computes_and_send_no_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = {"groups": 8, "tokens": 6, "d_model": 8, "experts": 8, "d_ff": 16, "capacity": 2}
    monkeypatch.setattr(peer_moe, "DIMS", small)
    arrays = peer_moe.drawn()
    ours = peer_moe.generated(arrays, "with a capacity")
    losses = [ours.run(), ours.run()]
    for theirs in peer_moe.handwritten(arrays).values():
        assert [theirs.run(), theirs.run()] == pytest.approx(losses, rel=1e-5)
        assert ours.sent <= theirs.sent


def test_tasks_of_virtual_devices_share_the_cores() -> None:
    """One core does one second of work in a second; a wide task takes the cores that are free; the host takes its share."""

    def seconds(work: list[tuple[float, float]], *operands: tuple[int, ...], host: float = 0.0) -> float:
        calls = [Call((i,), operands[i] if operands else ()) for i in range(len(work))]
        known = {(i,): CallTime(host, *each) for i, each in enumerate(work)}
        return step_seconds(calls, known, cores=2)

    one, wide = (1.0, 1.0), (1.0, 2.0)
    assert seconds([]) == 0
    assert seconds([one, one]) == pytest.approx(1)
    assert seconds([one, one, one]) == pytest.approx(1.5)
    assert seconds([one, one, one], (), (0,), (1,)) == pytest.approx(3)
    assert seconds([wide, wide]) == pytest.approx(2)
    assert seconds([wide, one]) == pytest.approx(1.5)
    assert seconds([(0.3, 0.3)] * 4, host=0.1) == pytest.approx(0.7)


def test_a_recorded_step_has_every_call_of_a_placed_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call waits for those that make its operands, and calls of equal programs are measured once."""
    monkeypatch.setattr(shared_cores, "call_time", lambda function, arguments: CallTime(0.0, 1.0, 1.0))
    module = mtfc.compile_text(SMALL_PLACEMENT, layout="split").load("jax")
    inputs = module.shard({"x": np.ones((4, 4), np.float32)}, module.INPUTS)
    recorder, before = Recorder(), dict(vars(module))
    calls = recorder.calls(module, lambda: module.train_step(module.init(0), {}, inputs, 0))
    assert vars(module) == before
    assert all(operand < number for number, each in enumerate(calls) for operand in each.operands)
    assert any(each.operands for each in calls) and {"send"} < {str(each.key[0]) for each in calls}
    assert len({each.key for each in calls}) == len(recorder.known) < len(calls)
    assert processor_seconds(calls, recorder.known) == len(calls)
    assert step_seconds(calls, recorder.known, cores=1) == pytest.approx(len(calls))


SMALL_PLACEMENT = """
dim batch = 4; dim io = 4; dim hidden = 6
model small(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param v: [hidden, io] = normal(stddev = 0.5)
  h = tanh(einsum(x, w -> [batch, hidden]))
  y = einsum(h, v -> [batch, io])
  loss = mean(square(y - x))
  return loss
}
train small { minimize loss; optimizer = sgd(0.1) }
placement split on 2 = { h: { batch: 2 } on [0, 1], loss: {} on [1] }
"""


def test_throughput_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "FOLDER", tmp_path)
    monkeypatch.setattr(throughput, "SCALE", 0.003)
    row = throughput.measured("alexnet", 2, "p100")
    assert throughput.rate(row, "found") >= throughput.rate(row, "data_parallel") > 0
    monkeypatch.setattr(throughput, "placement_search", None)
    assert throughput.measured("alexnet", 2, "p100") == row


def test_one_parameter_server_takes_the_gradients_of_all_devices() -> None:
    """The server takes 8 gradients and sends 8. In a ring a device sends 7 / 4 of one, through a port that two devices share."""
    case = soybean.CASES["8a"]
    program = soybean.example(case.network, **case.sizes)
    mesh, hardware = soybean.line(8), soybean.machine()
    data = soybean.lower(program, mesh, soybean.data_parallel(mesh)).function("step")
    waits = soybean.step_time(data, mesh, hardware).total.exposed
    served = soybean.with_server(program, mesh, hardware).total.exposed
    assert served / waits == pytest.approx((8 + 8) / (2 * 7 / 4), rel=0.01)


DEVICES = {
    "T1": 256, "T2": 256, "T3": 256, "T5": 64, "T6": 64, "T7": 128, "T8": 512, "G1": 8, "G2": 8, "G3": 64, "G4": 64, "G5": 280,
    "G6": 280, "G17": 8, "G18": 8, "G40": 8192,
}  # fmt: skip
BILLIONS = {
    "megatron-22b": 22, "mega-175b": 175, "mega-530b": 530, "llama3-8b": 8.03, "llama3-405b": 405, "maxtext-16b": 16,
    "maxtext-32b": 32.6, "maxtext-64b": 65, "maxtext-128b": 128, "maxtext-256b": 256,
}  # fmt: skip
"""The published numbers of devices and parameters."""


@pytest.mark.parametrize("name", plans.MODELS)
def test_models_of_plans_have_their_sizes(name: str, tmp_path: Path) -> None:
    """Each model trains, and its batch has a part for each of 256 devices, but for the U-Net and the graph."""
    planned = plans.MODELS[name]
    file = planned.file(tmp_path)
    program = select_program(file, Choice(model=planned.model, dims=planned.dims), Sources())
    assert program.training is not None
    parameters = sum(each.type.size for each in program.parameters)
    if name.startswith("llama"):
        assert parameters == pytest.approx(float(name.split()[1][:-1]) * 1e9, rel=0.02)
    if name not in ("unet", "graph network"):
        assert batch_dims(program.function("forward"))[0].size % 256 == 0


def test_plans_are_chosen_by_words() -> None:
    assert len([*plans.runs([])]) == 6 * len(plans.MODELS)
    assert [each.title for each in plans.runs(["8b", "64", "h100"])] == ["llama 8b on 64 h100"]


def test_the_gap_of_a_plan_is_that_of_the_search(tmp_path: Path) -> None:
    figure = plans.Run("gru", plans.MODELS["gru"], "h100", 8).figure(tmp_path, 0.1)
    assert figure.what.startswith("gru on 8 h100: ") and figure.value > 0 and figure.limit == plans.MOST_GAP


@pytest.mark.parametrize("run", some(published.RUNS, 6), ids=lambda run: run.id)
def test_plans_of_published_runs(run: published.Run, tmp_path: Path) -> None:
    """Each plan has the published model and devices. Without a pipeline the step time is at most a quarter off."""
    found = published.predicted(run, tmp_path)
    source = (tmp_path / f"{run.id}.mtf").read_text()
    chosen = choose(source, "run.mtf", Choice(layout="published"))
    assert chosen.cases[0].mesh.devices == DEVICES[run.id]
    parameters = sum(each.type.size for each in chosen.program.parameters)
    assert parameters == pytest.approx(BILLIONS[run.model] * 1e9, rel=0.05)
    assert found.bytes > 0
    if not run.micro_batches and run.id != "G17":
        assert abs(found.error) < 0.25


def test_pairs_in_the_wrong_order() -> None:
    runs = [run for run in published.RUNS if run.model == "megatron-22b"]

    def wrong(*seconds: float) -> int:
        return published.wrong_pairs(
            [published.Prediction(*each, 1) for each in zip(runs, seconds, strict=True)]
        )

    assert [wrong(1.4, 1.1), wrong(1.1, 1.4), wrong(1.0, 1.0)] == [0, 1, 0]
