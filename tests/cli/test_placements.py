"""Commands take a placement wherever they take a layout: it runs on JAX's devices."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mtfc import CompileError, compile_text
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import TrainOptions
from mtfc.driver.searching import placements
from mtfc.driver.training.hosts import Hosts
from mtfc.driver.training.train import train
from tests.cli.conftest import Mtfc

TEXT = """
dim batch = 4
dim io = 4
dim hidden = 6
model small(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param v: [hidden, io] = normal(stddev = 0.5)
  h = tanh(einsum(x, w -> [batch, hidden]))
  y = einsum(h, v -> [batch, io])
  loss = mean(square(y - x))
  return y, loss
}
train small { minimize loss; optimizer = momentum(learning_rate = 0.1) }
mesh line = [all: 2]
layout data = { batch: all }
placement split on 2 = { h: { hidden: 2 } on [0, 1], loss: {} on [1] }
"""

UNKNOWN = "placement other on 2 = { g: {} on [0] }\n"


@pytest.fixture
def file(folder: Path) -> Path:
    (folder / "small.mtf").write_text(TEXT)
    np.savez(folder / "data.npz", x=np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32))
    return folder


def record(mtfc: Mtfc, *arguments: str) -> dict[str, Any]:
    outcome = mtfc(*arguments, "--format", "json")
    assert outcome.status == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def test_run_gives_the_numbers_of_the_undistributed_program(mtfc: Mtfc, file: Path) -> None:
    """The last batch has two rows, which a second module computes."""
    asked = ("run", "small.mtf", "--train", "--steps", "3", "--data", "data.npz", "--seed", "1")
    placed = record(mtfc, *asked, "--layout", "split", "--save", "placed.npz")
    alone = record(mtfc, *asked, "--mesh", "one", "--save", "alone.npz", "--backend", "numpy")
    assert (placed["backend"], alone["backend"]) == ("jax", "numpy")
    losses = [[step["loss"] for step in each["steps"]] for each in (placed, alone)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    found, wanted = np.load("placed.npz"), np.load("alone.npz")
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_run_goes_on_from_a_checkpoint_of_a_placement_under_a_layout(mtfc: Mtfc, file: Path) -> None:
    asked = ("train", "small.mtf", "--data", "data.npz", "--eval", "data.npz", "--seed", "2", "--dir")
    for steps, layout in (("2", "split"), ("3", "split"), ("4", "data")):
        record(mtfc, *asked, "run", "--steps", steps, "--layout", layout)
    record(mtfc, *asked, "whole", "--steps", "4", "--layout", "data")
    found, wanted = (
        [json.loads(line) for line in (file / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("run", "whole")
    )
    assert [step["step"] for step in found] == [step["step"] for step in wanted] == [1, 2, 3, 4]
    np.testing.assert_allclose(*([step["loss"] for step in each] for each in (found, wanted)), rtol=1e-4)
    np.testing.assert_allclose(found[-1]["eval/loss"], wanted[-1]["eval/loss"], rtol=1e-4)


def test_a_loss_that_is_not_finite_is_traced_to_its_line(mtfc: Mtfc, file: Path) -> None:
    """With `accumulate` the batch is stacked."""
    text = TEXT.replace("square(y - x)", "log(y - 100.0)").replace(
        "minimize loss;", "minimize loss; accumulate = 2;"
    )
    (file / "nan.mtf").write_text(text)
    outcome = mtfc("train", "nan.mtf", "--steps", "1", "--layout", "split", "--debug-nans")
    assert outcome.status == 1
    assert "error[E701]: 16 of 16 numbers that `log` makes are NaN" in outcome.err


def test_eval_takes_a_placement(mtfc: Mtfc, file: Path) -> None:
    record(mtfc, "run", "small.mtf", "--train", "--steps", "1", "--mesh", "one", "--save", "p.npz")
    asked = ("eval", "small.mtf", "--data", "data.npz", "--params", "p.npz", "--layout")
    found = [record(mtfc, *asked, layout)["eval"]["loss"] for layout in ("split", "data")]
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("command", [("train", "--steps", "1"), ("eval",)], ids=lambda command: command[0])
def test_a_placement_draws_the_parameters_that_a_file_lacks(
    mtfc: Mtfc, file: Path, command: tuple[str, ...]
) -> None:
    np.savez("w.npz", w=np.full((4, 6), 0.25, np.float32))
    asked = (*command, "small.mtf", "--data", "data.npz", "--params", "w.npz", "--params-partial", "--layout")
    found, wanted = (record(mtfc, *asked, layout) for layout in ("split", "data"))
    losses = (each["loss"] if "loss" in each else each["eval"]["loss"] for each in (found, wanted))
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_placement_warms_up_from_a_smaller_model(mtfc: Mtfc, file: Path) -> None:
    record(
        mtfc, "train", "small.mtf", "--data", "data.npz", "--steps", "1", "--layout", "split", "--dir", "run"
    )
    larger = TEXT.replace("h = tanh(", "param b: [hidden] = zeros()\n  h = tanh(b + ").replace(
        "hidden = 6", "hidden = 8"
    )
    (file / "large.mtf").write_text(larger)
    asked = ("train", "large.mtf", "--data", "data.npz", "--steps", "2", "--warm-start", "run", "--layout")
    outcome = mtfc(*asked, "split", "--format", "json")
    assert "parameters that have grown keep their numbers, and the rest is drawn: v, w" in outcome.err
    assert "parameters that are drawn: b" in outcome.err
    np.testing.assert_allclose(outcome.json["loss"], record(mtfc, *asked, "data")["loss"], rtol=1e-5)


def test_verify_runs_placements_on_both_backends(mtfc: Mtfc, file: Path) -> None:
    outcome = mtfc("verify", "small.mtf", "--layout", "split")
    assert outcome.status == 0, outcome.err
    lines = [line.split()[:3] for line in outcome.out.splitlines()[1:5] if "step" not in line]
    assert lines == [["split", "exact", "ok"], ["split", "numpy", "ok"], ["split", "jax", "ok"]]
    assert "all " in outcome.out.splitlines()[1] and "training" in outcome.out.splitlines()[4]


def test_compile_writes_a_module_that_runs_without_mtfc(mtfc: Mtfc, file: Path) -> None:
    text = mtfc("compile", "small.mtf", "--layout", "split", "--emit", "jax").out
    assert "mtfc" not in text.replace("Generated by mtfc", "")
    names: dict[str, Any] = {"__name__": "placed"}
    exec(text, names)
    outputs = names["forward"](names["init"](seed=3), names["shard"]({"x": np.ones((4, 4))}, names["INPUTS"]))
    assert outputs["loss"].devices() == {names["place"](1)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--backend", "numpy"), "is a placement, which runs on JAX's devices: `--backend jax`"),
        (("run", "--passes", "dce"), "is a placement, which is not lowered by passes: no --passes"),
        (("compile", "--emit", "jax", "--passes", "dce"), "not lowered by passes as a whole: no --passes"),
        (("train", "--memory", "1GiB"), "is a placement, which is not lowered by passes: no --memory"),
        (("run", "--mesh", "all:2"), "is a placement, which has devices of its own: no --mesh"),
        (("compile", "--emit", "spmd"), "whose operators are a JAX module: --emit jax"),
        (("compile", "--emit", "jax", "--stop-after", "dce"), "no --stop-after"),
    ],
)
def test_options_of_layouts_are_refused(
    mtfc: Mtfc, file: Path, arguments: tuple[str, ...], message: str
) -> None:
    command, *options = arguments
    outcome = mtfc(command, "small.mtf", "--layout", "split", *options)
    assert outcome.status == 2
    assert message in outcome.err


def test_several_processes_are_refused(file: Path) -> None:
    options = TrainOptions("small.mtf", Choice(layout="split"), hosts=Hosts("localhost:1", 2, 0))
    with pytest.raises(UsageError, match="which runs in one process: no --coordinator or --distributed"):
        train(options, Sources(), None)


def test_too_few_devices_are_named(mtfc: Mtfc, file: Path) -> None:
    (file / "large.mtf").write_text(TEXT + "placement large on 64 = { h: {} on [63] }\n")
    outcome = mtfc("run", "large.mtf", "--layout", "large")
    assert outcome.status == 3
    assert "the placement has 64 processors, and JAX has started with 8 cpu devices" in outcome.err


def test_an_unknown_operator_is_an_error_with_its_place(mtfc: Mtfc, file: Path) -> None:
    (file / "small.mtf").write_text(TEXT + UNKNOWN)
    outcome = mtfc("run", "small.mtf", "--layout", "other")
    assert outcome.status == 1
    assert "error[E317]: the model has no operator `g`" in outcome.err


def test_a_search_reports_wrong_placements_before_it_compiles_loops(
    mtfc: Mtfc, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling the loops of the search takes minutes after an installation."""
    monkeypatch.setattr(placements, "placement_space", lambda *_, **__: pytest.fail("the search begins"))
    (file / "small.mtf").write_text(TEXT + UNKNOWN)
    outcome = mtfc("search", "small.mtf", "--space", "soap", "--target", "p100_cluster", "--devices", "2")
    assert outcome.status == 1
    assert "error[E317]: the model has no operator `g`" in outcome.err


def test_python_takes_a_placement_as_a_layout() -> None:
    """Numbers agree with those of a layout, whether the state is in pieces or whole."""
    text = TEXT.replace("0.1) }", "0.1); average = 0.9 }")
    placed, alone = (compile_text(text, layout=name) for name in ("split", "data"))
    batch = {"x": np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)}
    found = []
    for each, is_whole in ((placed, False), (placed, True), (alone, True)):
        state = each.init(seed=1)
        for _ in range(2):
            state, metrics = each.train_step(each.whole(state) if is_whole else state, batch)
        params = each.whole(state).params if is_whole else state.params
        means, outputs = each.forward(each.averaged(state), batch), each.forward(params, batch)
        found.append([metrics["loss"], outputs["y"], means["y"], each.whole(state).params["w"]])
    for other in found[:2]:
        for one, wanted in zip(other, found[2], strict=True):
            np.testing.assert_allclose(one, wanted, rtol=2e-5, atol=1e-7)
    assert isinstance(placed.init().params["w"], tuple)
    assert repr(placed) == "<Compiled small: placement split on 2 devices, 2 parameters of 48 numbers>"
    assert placed.draw().svg.count("placement split on 2 devices") == 2


SCALED = """
model small(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param v: [hidden, io] = normal(stddev = 0.5)
  state seen: [hidden] = 0.0
  h = tanh(einsum(x, w -> [batch, hidden]))
  update seen = 0.5 * seen + mean(stop_gradient(h), over = [batch])
  y = einsum(h, v -> [batch, io])
  loss = mean(square(y - x))
  return y, loss
}
train small {
  minimize loss
  optimizer = momentum(learning_rate = 0.1)
  accumulate = 2; clip = 0.1; frozen "v"
  precision = { compute: f16, loss_scale: dynamic }
}
"""


def test_python_takes_gradients_of_a_placement() -> None:
    """Loss, gradients and new states are those of a layout: of a batch, of micro-batches, clipped, and without the loss scale."""
    start, end = TEXT.index("model"), TEXT.index("mesh line")
    text = TEXT[:start] + SCALED + TEXT[end:]
    x = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    found = []
    for layout in ("split", "data"):
        compiled = compile_text(text, layout=layout)
        params = compiled.init(seed=1).params
        each: list[Any] = []
        for given, options in (
            (x[0], {}),
            (x, {"accumulate": True}),
            (x, {"accumulate": True, "clip": True}),
        ):
            loss, gradients = compiled.value_and_grad(params, {"x": given}, 3, **options)
            assert jax.tree.structure(gradients) == jax.tree.structure(params)
            each += [loss, gradients]
        (loss, new), _ = compiled.value_and_grad(params, {"x": x[0]}, with_state=True)
        arrays = [a if isinstance(a, dict) else {"loss": a} for a in (*each, loss, new)]
        found.append([_whole(compiled, a) for a in arrays])
    for one, other in zip(*found, strict=True):
        for name, array in one.items():
            np.testing.assert_allclose(array, other[name], rtol=5e-3, atol=2e-4, err_msg=name)
    assert np.abs(found[0][3]["w"]).max() > np.abs(found[0][5]["w"]).max() > 0
    assert not found[0][3]["v"].any() and found[0][-1]["seen"].any()


def _whole(compiled: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return whole arrays of parameters, which may be in pieces."""
    if arrays.keys() != {"loss"}:
        state = compiled.init()
        arrays = compiled.whole(type(state)(state.step, arrays, state.optimizer)).params
    return {name: np.asarray(array, np.float32) for name, array in arrays.items()}


def test_python_says_what_a_placement_lacks() -> None:
    placed = compile_text(TEXT, layout="split")
    batch = {"x": np.ones((4, 4), np.float32)}
    state = placed.init()
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: placed.program, "`split` is a placement, whose processors run different programs"),
        (placed.numpy, "runs on JAX's devices: `backend='jax'` (`mtfc verify` compares it on NumPy, too)"),
        (lambda: placed.value_and_grad(state, batch), "`state.params`, and not the whole state"),
        (lambda: jax.jit(placed.forward)(state.params, batch), "which JAX cannot trace as one"),
        (lambda: placed.forward({"w": state.params["w"]}, batch), 'params lacks "v": it takes w, v'),
        (lambda: placed.forward(state.params, {}), 'inputs lacks "x": it takes x'),
        (lambda: placed.draw("w"), "whose operators are drawn: no `array`"),
        (lambda: compile_text(TEXT, layout="split", mesh="all:2"), "has devices of its own: no `mesh`"),
    ]
    for call, message in wrong:
        with pytest.raises(ValueError, match=re.escape(message)):
            call()
    with pytest.raises(CompileError, match=r"E317.*no operator `g`"):
        compile_text(TEXT + UNKNOWN, layout="other")
    with pytest.raises(CompileError, match="did you mean `split`"):
        compile_text(TEXT, layout="splt")


def calibrated(mtfc: Mtfc, *arguments: str) -> str:
    outcome = mtfc("calibrate", "--operators", "small.mtf", *arguments)
    assert outcome.status == 0, outcome.err
    return outcome.out


def test_operators_are_measured_once_and_simulated_with_their_times(
    mtfc: Mtfc, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(file / "cache"))
    simulated = ("simulate", "small.mtf", "--layout", "split", "--target", "h100")
    assert "no part of this model has a measured time" in mtfc(*simulated, "--measured").err
    first = calibrated(mtfc, "--layout", "split")
    assert re.match(r"5 of 5 parts in .*\.json are new", first)
    assert calibrated(mtfc, "--layout", "split").startswith("0 of 5 parts")
    (path,) = (file / "cache" / "mtfc" / "operators").iterdir()
    known = json.loads(path.read_text())
    assert known["about"]["jax"] == jax.__version__
    path.write_text(json.dumps({**known, "seconds": dict.fromkeys(known["seconds"], 1.0)}))
    step = record(mtfc, *simulated, "--measured")["step_seconds"]
    assert 6 <= step < 6.1  # `h` and the two steps of `loss`, forward and backward, one after the other
    assert record(mtfc, *simulated)["step_seconds"] < 0.1
    path.write_text("{")
    assert "is damaged, and measured anew" in mtfc(*simulated, "--measured").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calibrate", "--layout", "split"), "the options of models and layouts go with --operators"),
        (("calibrate", "--operators", "small.mtf", "--quick"), "no --backend, --quick, --shapes and -o"),
        (("calibrate", "--operators", "small.mtf", "--layout", "split", "--devices", "3"),
         "which has devices of its own: no --devices"),
        (("simulate", "small.mtf", "--layout", "data", "--target", "h100", "--measured"),
         "--measured is for the operators of a placement"),
    ],
)  # fmt: skip
def test_measured_times_belong_to_placements(
    mtfc: Mtfc, file: Path, arguments: tuple[str, ...], message: str
) -> None:
    outcome = mtfc(*arguments)
    assert outcome.status == 2
    assert message in outcome.err
