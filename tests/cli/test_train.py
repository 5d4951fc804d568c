"""`mtfc train`: lengths, data, evaluation, and where figures go. Checkpoints and processes are tested in `tests/training/`."""

import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import mtfc as api
from mtfc.backends.common.devices import Unavailable
from mtfc.driver.data.array_files import stored_arrays
from mtfc.driver.training import loop
from mtfc.driver.training.metrics import JsonLines, TensorBoard
from mtfc.driver.training.run_folder import RunLock
from mtfc.reports.training_report import TrainingStep
from tests.cli.conftest import Mtfc

EXAMPLES = 24
"""Examples in the data: six batches of four."""


@pytest.fixture(autouse=True)
def data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write data and evaluation data; leave JAX's cache of compiled programs as it is."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    for name, seed in (("data", 0), ("test", 1)):
        random = np.random.default_rng(seed)
        labels = random.integers(0, 3, EXAMPLES).astype(np.int32)
        np.savez(folder / f"{name}.npz", x=random.standard_normal((EXAMPLES, 6), np.float32), labels=labels)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_length_is_in_steps_or_epochs(mtfc: Mtfc, folder: Path) -> None:
    for options, steps in (((), 6), (("--epochs", "2"), 12), (("--steps", "4"), 4)):
        found = mtfc("train", "model.mtf", "--data", "data.npz", "--log", "log.jsonl", *options)
        assert found.status == 0, found.err
        assert [each["step"] for each in records(folder / "log.jsonl")] == list(range(1, steps + 1))
        (folder / "log.jsonl").unlink()
        assert f"1 to {steps}" in found.out


def test_the_figures_of_a_step(mtfc: Mtfc, folder: Path) -> None:
    options = ("--data", "data.npz", "--eval", "test.npz", "--eval-every", "2", "--layout", "data")
    found = mtfc(
        *("train", "model.mtf", *options, "--steps", "5", "--log", "log.jsonl"),
        *("--target", "h100", "--set", "report=grad_norm", "--format", "json"),
    )
    assert found.status == 0, found.err
    assert "24 examples, 6 steps an epoch" in found.err
    summary, steps = found.json, records(folder / "log.jsonl")
    for step in steps:
        assert step["loss"] > 0
        assert step["grad_norm"] > 0
        assert step["examples_per_second"] == pytest.approx(4 / step["seconds"])
        assert 0 < step["mfu"] < step["predicted_share"]
        assert step["predicted_share"] == pytest.approx(summary["predicted_step_seconds"] / step["seconds"])
    assert [each["step"] for each in steps if "eval/loss" in each] == [2, 4, 5]
    assert summary["eval"]["loss"] == steps[-1]["eval/loss"]
    assert (summary["first_step"], summary["last_step"], summary["loss"]) == (1, 5, steps[-1]["loss"])
    assert summary["layout"] == "data"


def test_a_function_takes_the_figures_of_each_step(mtfc: Mtfc, folder: Path) -> None:
    (folder / "figures.py").write_text(
        "import json\n"
        "def keep(figures):\n"
        "    with open('kept.jsonl', 'a') as file:\n"
        "        print(json.dumps(figures), file=file)\n"
        "def lost(figures):\n"
        "    if figures['step'] == 2: raise KeyError('loss_')\n"
    )
    options = ("train", "model.mtf", "--data", "data.npz", "--eval", "test.npz", "--steps", "3")
    found = mtfc(*options, "--log", "log.jsonl", "--metrics", "figures:keep")
    assert found.status == 0, found.err
    assert records(folder / "kept.jsonl") == records(folder / "log.jsonl")
    found = mtfc(*options, "--metrics", "figures:lost", "--dir", "run")
    assert found.status == 2
    assert "--metrics figures:lost raised KeyError: 'loss_'" in found.err
    assert "figures.py:6 in lost" in found.err and "checkpoints/" in found.err
    for spec, message in (("figures:gone", "has no function gone"), ("figures", "expected MODULE:FUNCTION")):
        found = mtfc(*options, "--metrics", spec)
        assert (found.status, message in found.err) == (2, True), found.err


def test_the_evaluation_is_the_mean_over_all_batches(mtfc: Mtfc, folder: Path) -> None:
    options = ("--data", "data.npz", "--steps", "3", "--eval", "test.npz", "--dir", "run")
    found = mtfc("train", "model.mtf", *options, "--format", "json")
    p = api.compile("model.mtf", layout="both")
    state = p.init(0)
    steps = {each["step"]: each for each in records(folder / "run" / "metrics.jsonl")}
    assert set(steps) == {1, 2, 3}
    with ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(
            folder.resolve() / "run" / "checkpoints" / "3" / "state", p.abstract_state
        )
    arrays = dict(np.load(folder / "test.npz"))
    losses = [
        p.forward(state.params, {name: x[i : i + 4] for name, x in arrays.items()})["loss"]
        for i in range(0, EXAMPLES, 4)
    ]
    assert found.json["eval"]["loss"] == pytest.approx(float(np.mean(losses)), rel=1e-5)


def test_an_evaluation_of_some_batches(mtfc: Mtfc, folder: Path) -> None:
    """The mean over the first batches is that of a file with these batches alone."""
    np.savez("some.npz", **{name: x[:8] for name, x in dict(np.load("test.npz")).items()})
    losses = []
    for options in (("--eval", "test.npz", "--eval-batches", "2"), ("--eval", "some.npz")):
        log = f"log{len(losses)}.jsonl"
        found = mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "2", "--log", log, *options)
        assert found.status == 0, found.err
        losses.append(records(folder / log)[-1]["eval/loss"])
    assert losses[0] == losses[1]
    assert mtfc("train", "model.mtf", "--eval-batches", "2").status == 2


def test_averages_are_evaluated_beside_the_parameters(mtfc: Mtfc) -> None:
    average, result = ("--set", "average=0.9"), ("--dir", "run", "--format", "json")
    found = mtfc("train", "model.mtf", "--data", "data.npz", "--eval", "test.npz", *average, *result).json
    assert found["eval"]["averaged_loss"] != found["eval"]["loss"]
    for name, options in (("loss", ()), ("averaged_loss", ("--averages",))):
        given = ("--params", "run", "--data", "test.npz", "--format", "json")
        run = mtfc("run", "model.mtf", *average, *given, *options)
        assert run.json["outputs"]["loss"]["mean"] == pytest.approx(found["eval"][name], rel=1e-5)


def test_losses_are_the_same_under_every_layout(mtfc: Mtfc, folder: Path) -> None:
    curves = []
    for layout in ("replicated", "data", "both"):
        found = mtfc(
            "train", "model.mtf", "--data", "data.npz", "--layout", layout, "--log", f"{layout}.jsonl"
        )
        assert found.status == 0, found.err
        curves.append([each["loss"] for each in records(folder / f"{layout}.jsonl")])
    np.testing.assert_allclose(curves[1:], [curves[0]] * 2, rtol=1e-5)


def test_the_report_of_a_run_is_written_at_its_end(mtfc: Mtfc, folder: Path) -> None:
    trained = ("train", "model.mtf", "--data", "data.npz", "--steps", "2", "--dir", "run")
    run = mtfc(*trained, "--report", "run.html")
    assert run.status == 0 and "run.html: run run" in run.err
    mtfc("report", "run", "-o", "again.html")
    assert (folder / "run.html").read_text("utf-8") == (folder / "again.html").read_text("utf-8")
    for options, message in (
        (("--report", "run.html"), "the figures of --dir"),
        (("--dir", "run", "--report", "-"), "a name such as run.html, not `-`"),
        (("--dir", "run", "--report", "run/metrics.jsonl"), "a name such as run.html"),
        (("--dir", "run", "--report", "none/run.html"), "no such directory"),
        (("--dir", "run", "--log", "log.jsonl", "--report", "run.html"), "leave out --log"),
    ):
        refused = mtfc("train", "model.mtf", "--data", "data.npz", *options)
        assert refused.status == 2 and message in refused.err


def test_tensorboard_gets_every_figure(mtfc: Mtfc, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensorboardX.event_file_writer import EventFileWriter  # the package is there
    from tensorboardX.proto.event_pb2 import Event

    assert EventFileWriter
    assert mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "2", "--tensorboard", "tb").status == 0
    (file,) = (folder / "tb").glob("events*")
    content, events, at = file.read_bytes(), [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        events.append(Event.FromString(content[at + 12 : at + 12 + size]))
        at += size + 16
    points = {(event.step, value.tag) for event in events for value in event.summary.value}
    assert points == {(step, tag) for step in (1, 2) for tag in ("loss", "seconds", "examples_per_second")}

    TensorBoard.open(folder / "tb", 1, None).close()
    assert "curves of another run" not in capsys.readouterr().err
    for run, after, hidden in ((None, 0, ""), ("other", 1, ", and hides those after step 1")):
        TensorBoard.open(folder / "tb", after, run).close()
        said = f"tb has curves of another run: TensorBoard shows both as one{hidden}\n"
        assert capsys.readouterr().err.endswith(said)


def test_a_profile_is_written_after_one_that_failed(mtfc: Mtfc, folder: Path) -> None:
    options = ("train", "model.mtf", "--data", "data.npz", "--steps")
    for steps in ("10", "6"):  # JAX stops within the run, and at its end
        failed = mtfc(*options, steps, "--profile", "model.mtf")
        assert (failed.status, "profile to model.mtf: " in failed.err) == (3, True), failed.err
        found = mtfc(*options, steps, "--profile", steps)
        assert found.status == 0, found.err
        assert f"the profile of {min(5, int(steps) - 3)} steps is in {steps}" in found.err
        assert list((folder / steps).rglob("*.xplane.pb"))
    short = mtfc(*options, "2", "--profile", "trace")
    assert "begins after step 3" in short.err and not (folder / "trace").exists()


def test_a_profile_of_the_caller_is_left_to_the_caller(mtfc: Mtfc, folder: Path) -> None:
    import jax

    jax.profiler.start_trace(str(folder / "own"))
    found = mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "10", "--profile", "trace")
    jax.profiler.stop_trace()
    assert found.status == 3 and "cannot write a profile to trace: Profile has already been" in found.err
    assert list((folder / "own").rglob("*.xplane.pb"))


def test_micro_batches_and_given_parameters(mtfc: Mtfc, folder: Path) -> None:
    np.savez(folder / "params.npz", w=np.zeros((6, 3), np.float32), bias=np.ones(3, np.float32))
    found = mtfc(
        *("train", "model.mtf", "--data", "data.npz", "--set", "accumulate=3", "--params", "params.npz"),
        *("--log", "log.jsonl", "--seed", "5"),
    )
    assert found.status == 0, found.err
    steps = records(folder / "log.jsonl")
    assert len(steps) == 2  # of six batches
    assert steps[0]["loss"] == pytest.approx(2 / 3)  # y = 1 against one 1 and two 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fresh", "--dir", "run", "--warm-start", "./run/"), "--warm-start ./run/ names them"),
        (("--fresh", "--dir", "run", "--params", "run/checkpoints/3"), "--params run/checkpoints/3 names them"),
        (("--fresh", "--dir", "memory://b/run", "--params", "memory://b/run/"), "--params memory://b/run/ names them"),
        (("--steps", "2", "--epochs", "2"), "--steps and --epochs both say how long to train"),
        (("--epochs", "2"), "give --data, or --steps"),
        ((), "say with --steps how long to train"),
        (("--eval-every", "2", "--steps", "2"), "goes with --eval"),
        (("--save-every", "2", "--steps", "2"), "goes with --dir"),
        (("--save-every", "2", "--save-minutes", "2", "--dir", "run"), "both say when to save"),
        (("--steps", "0"), "expected a number from 1 on"),
        (("--data", "data.npz", "--log", "data.npz/log.jsonl"), "cannot write data.npz/log.jsonl"),
        (("--processes", "2"), "go together"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(mtfc: Mtfc, options: tuple[str, ...], message: str) -> None:
    found = mtfc("train", "model.mtf", *options)
    assert found.status == 2, found
    assert message in found.err
    assert "Traceback" not in found.err


def test_a_model_without_a_train_block_is_refused(mtfc: Mtfc, folder: Path) -> None:
    text = (folder / "model.mtf").read_text()
    (folder / "model.mtf").write_text(text.partition("train small")[0])
    found = mtfc("train", "model.mtf", "--steps", "2")
    assert (found.status, found.out) == (2, "")
    assert "the file has no `train small` block" in found.err


def test_an_error_of_the_data_loses_no_step(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "short_data.py").write_text(
        "import numpy as np\n"
        "def batches():\n"
        "    arrays = dict(np.load('data.npz'))\n"
        "    for i in range(0, 12, 4):\n"
        "        yield {name: x[i : i + 4] for name, x in arrays.items()}\n"
        "    raise OSError('the disk has gone')\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    found = mtfc("train", "model.mtf", "--data", "short_data:batches", "--steps", "9", "--dir", "run")
    assert found.status == 2
    assert "the disk has gone" in found.err
    assert "after step 3: the last checkpoint is run/checkpoints/3" in found.err
    assert [each["step"] for each in records(folder / "run" / "metrics.jsonl")] == [1, 2, 3]


def test_figures_of_another_run_are_moved_aside(mtfc: Mtfc, folder: Path) -> None:
    (folder / "log.jsonl").write_text('{"step": 7, "loss": 0.5}\n')
    found = mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "2", "--log", "log.jsonl")
    assert found.status == 0, found.err
    assert "log.jsonl had the figures of another run: they are in log.jsonl.1" in found.err
    assert (folder / "log.jsonl.1").read_text() == '{"step": 7, "loss": 0.5}\n'
    assert [each["step"] for each in records(folder / "log.jsonl")] == [1, 2]


def test_figures_of_another_run_are_told_when_a_run_goes_on(mtfc: Mtfc, folder: Path) -> None:
    """Two runs take turns with one `--log`: neither shortens the figures of the other."""
    options = ("train", "model.mtf", "--data", "data.npz", "--log", "log.jsonl")
    for steps, run in (("3", "a"), ("4", "b"), ("5", "a"), ("6", "a"), ("6", "b")):
        found = mtfc(*options, "--steps", steps, "--dir", run, "--seed", str(len(run + run) * (run == "b")))
        assert found.status == 0, found.err
        assert ("had the figures of another run" in found.err) == (
            (steps, run) not in {("3", "a"), ("6", "a")}
        )
    logs = {each.name: [line["step"] for line in records(each)] for each in sorted(folder.glob("log.jsonl*"))}
    expected = ([5, 6], [1, 2, 3], [1, 2, 3, 4], [4, 5, 6])
    assert logs == dict(
        zip(("log.jsonl", "log.jsonl.1", "log.jsonl.2", "log.jsonl.3"), expected, strict=True)
    )


@pytest.mark.parametrize(
    ("rest", "status"),
    [("", 0), ('{"st', 0), ('{"step": 3, "lo', 0), ("a note", 2), ('{"own": 1}\n', 2), ("\n", 2)],
)
def test_a_log_may_end_in_the_part_of_a_line(mtfc: Mtfc, folder: Path, rest: str, status: int) -> None:
    """A killed process leaves it; anything else is a foreign file, and stays."""
    text = '{"step": 1, "loss": 0.5}\n' + rest
    (folder / "log.jsonl").write_text(text)
    found = mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "1", "--log", "log.jsonl")
    assert found.status == status, found.err
    assert (folder / ("log.jsonl" if status else "log.jsonl.1")).read_text() == text


def test_figures_of_a_run_under_way_stay(folder: Path) -> None:
    """The file may be empty still, and the second run may come by another name."""
    log = folder / "log.jsonl"
    (folder / "link.jsonl").symlink_to(log)
    first = JsonLines.open(log, 0)
    for text in ("", '{"step": 1, "loss": 0.5}\n'):
        log.write_text(text)
        for name in ("log.jsonl", "link.jsonl"):
            with pytest.raises(Unavailable, match="belongs to a run that is under way"):
                JsonLines.open(folder / name, 0, lambda _: False)
    first.close()
    assert log.read_text() == text
    JsonLines.open(log, 1).close()
    assert sorted(each.name for each in folder.glob("*.jsonl*")) == ["link.jsonl", "log.jsonl"]


def test_a_pipe_needs_a_reader(mtfc: Mtfc, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    options = ("train", "model.mtf", "--data", "data.npz", "--steps", "2", "--log", "pipe")
    found = mtfc(*options)
    assert found.status == 2 and "cannot write pipe: nobody reads the pipe" in found.err
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert mtfc(*options).status == 0
    assert os.read(reader, 10000).count(b"\n") == 2
    os.close(reader)


@pytest.mark.parametrize(
    ("option", "place", "message"),
    [
        ("--log", "/dev/full", "no space left"),
        ("--profile", "model.mtf", "cannot write a profile to model.mtf"),
    ],
)
def test_figures_that_cannot_be_written_lose_no_step(
    mtfc: Mtfc, folder: Path, option: str, place: str, message: str
) -> None:
    found = mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "10", "--dir", "run", option, place)
    assert (found.status, message in found.err) == (3, True), found.err
    assert "run/checkpoints/" in found.err and "internal" not in found.err
    assert (
        len(list((folder / "run" / "checkpoints").iterdir())) == 2
    )  # after the first step, and after the failure


def test_a_full_disk_ends_the_curves(folder: Path) -> None:
    board = TensorBoard.open(folder / "tb", 0, None)
    board.writer._py_recordio_writer._writer = Path("/dev/full").open("wb")  # noqa: SIM115
    with pytest.raises(Unavailable, match=r"cannot write to .*tb: no space left"):
        board.step(TrainingStep(1, 0.5, 1.0, "examples", 4.0, {}, {}, None))
    board.close()
    assert board.writer._py_recordio_writer._writer.closed, (
        "Python reports what a file left open cannot write"
    )
    assert [TensorBoard.open(folder / "same", 0, None).close() for _ in range(2)]
    assert len(list((folder / "same").glob("events*"))) == 2  # in the same second


def test_a_second_run_in_a_folder_is_refused(mtfc: Mtfc, folder: Path) -> None:
    with RunLock.hold(folder / "run"):
        found = mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "2", "--dir", "run")
    assert (found.status, found.out) == (3, "")
    assert "run belongs to a run that is under way: process " in found.err
    assert sorted(each.name for each in (folder / "run").iterdir()) == ["run.lock"]
    assert mtfc("train", "model.mtf", "--data", "data.npz", "--steps", "2", "--dir", "run").status == 0


def test_skipped_steps_read_their_batch_and_change_nothing(mtfc: Mtfc, folder: Path) -> None:
    """The parameters are those of a run on the other batches alone."""
    for name, steps in (("some", (0, 1, 3)), ("all", (0, 1, 2, 3))):
        arrays = dict(np.load("data.npz"))
        rows = np.concatenate([np.arange(4 * i, 4 * i + 4) for i in steps])
        lines = "\n".join(
            f"    yield {{n: x[{4 * i}:{4 * i + 4}] for n, x in arrays.items()}}" for i in range(len(steps))
        )
        np.savez(f"{name}.npz", **{key: x[rows] for key, x in arrays.items()})
        (folder / f"{name}_batches.py").write_text(
            f"import numpy as np\ndef batches():\n    arrays = dict(np.load('{name}.npz'))\n{lines}\n"
        )
    sys.path.insert(0, str(folder))
    try:
        for name, options in (("some", ("--steps", "3")), ("all", ("--steps", "4", "--skip-steps", "3"))):
            found = mtfc("train", "model.mtf", "--data", f"{name}_batches:batches", "--dir", name, *options)
            assert found.status == 0, found.err
    finally:
        sys.path.remove(str(folder))
    assert [each["step"] for each in records(folder / "all" / "metrics.jsonl")] == [1, 2, 4]
    whole, other = (stored_arrays(name)["w"].read() for name in ("some", "all"))
    np.testing.assert_array_equal(whole, other)


EVALUATED = ("train", "model.mtf", "--data", "data.npz", "--eval", "test.npz")


def test_a_long_run_keeps_few_figures_in_memory(
    mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table at the end is that of a run that keeps all, with the evaluation that came last."""
    options = (*EVALUATED, "--eval-every", "20", "--steps", "9")
    whole = mtfc(*options).out
    monkeypatch.setattr(loop, "MOST_KEPT", 4)
    few = mtfc(*options).out
    wanted = ("steps ", "loss ", "eval ")
    shown = [[line for line in text.splitlines() if line.startswith(wanted)] for text in (whole, few)]
    assert shown[0] == shown[1] and len(shown[0]) > 2


def test_a_run_whose_last_step_is_skipped_is_evaluated(mtfc: Mtfc, folder: Path) -> None:
    options = (*EVALUATED, "--format", "json", "--steps")
    short, skipped = mtfc(*options, "3"), mtfc(*options, "4", "--skip-steps", "4")
    assert json.loads(skipped.out)["eval"] == json.loads(short.out)["eval"] != {}
    assert json.loads(skipped.out)["last_step"] == 3


def test_the_batch_of_a_bad_step_is_named(mtfc: Mtfc, folder: Path) -> None:
    """An example with such numbers is named alone: without its batch the run goes on."""
    arrays = dict(np.load("data.npz"))
    arrays["x"][13, 0] = np.inf
    (folder / "shards").mkdir()
    for i, rows in enumerate((slice(0, 10), slice(10, 24))):
        np.savez(f"shards/{i}.npz", **{name: x[rows] for name, x in arrays.items()})
    options = ("train", "model.mtf", "--data", "shards", "--dir", "run")
    found = mtfc(*options)
    assert found.status == 1
    (line,) = (each for each in found.err.splitlines() if "its batch: " in each)
    assert line.endswith("its batch: `x` has numbers that are not finite in example 3 of shards/1.npz")
    step = re.search(r"--skip-steps (\d+)", found.err)
    assert step is not None
    assert mtfc(*options, "--skip-steps", step[1]).status == 0
    (folder / "own_batches.py").write_text(
        "import numpy as np\n"
        "def batches():\n"
        "    for i in range(5):\n"
        "        yield {'x': np.full((4, 6), np.inf if i == 2 else 1, np.float32), 'labels': np.zeros(4, np.int32)}\n"
    )
    sys.path.insert(0, str(folder))
    found = mtfc("train", "model.mtf", "--data", "own_batches:batches", "--steps", "4")
    sys.path.remove(str(folder))
    assert "its batch: item 3 of own_batches:batches" in found.err


def test_a_dynamic_loss_scale_may_overflow_some_times(mtfc: Mtfc, folder: Path) -> None:
    """The batch overflows in f16 whatever the scale, so the parameters stay, until there are too many such steps."""
    text = (folder / "model.mtf").read_text()
    precision = "precision = { params: f32, compute: f16, loss_scale: dynamic }"
    (folder / "model.mtf").write_text(text.replace("minimize loss", f"minimize loss\n  {precision}"))
    np.savez("data.npz", x=np.full((8, 6), 6e4, np.float32), labels=np.zeros(8, np.int32))
    options = ("train", "model.mtf", "--data", "data.npz", "--dir", "run", "--log", "log.jsonl")
    found = mtfc(*options, "--steps", "6", "--bad-steps", "20")
    assert found.status == 0, found.err
    losses = [each["loss"] for each in records(folder / "log.jsonl")]
    assert len(losses) == 6 and not any(isinstance(each, float) and math.isfinite(each) for each in losses)
    assert np.isfinite(stored_arrays("run")["w"].read()).all()
    ended = mtfc(*options, "--steps", "60", "--bad-steps", "3", "--fresh")
    assert ended.status == 1
    assert "the loss of step 4 is " in ended.err and "after 3 more in a row" in ended.err
    assert "--skip-steps 4 leaves out the batch of step 4" in ended.err


def test_gradients_that_overflow_count_where_the_loss_is_finite(mtfc: Mtfc, folder: Path) -> None:
    """The gradient of sqrt at 0 is infinite: without a limit, no step of the run would change anything."""
    (folder / "roots.mtf").write_text(
        "dim batch = 4\ndim io = 6\n"
        "model roots(x: f32[batch, io]) {\n"
        "  param w: f32[io] = normal()\n"
        "  loss = mean(sqrt(square(einsum(x, w -> [batch]))))\n  return loss\n}\n"
        "train roots { minimize loss; optimizer = sgd(learning_rate = 0.1)\n"
        "  precision = { params: f32, compute: f16, loss_scale: dynamic } }\n"
    )
    x = np.ones((28, 6), np.float32)
    np.savez("good.npz", x=x)
    np.savez("bad.npz", x=np.where(np.arange(28)[:, None] // 4 == 5, x, 0))
    options = ("train", "roots.mtf", "--bad-steps", "4", "--steps", "9", "--log", "log.jsonl", "--data")
    assert mtfc(*options, "good.npz").status == 0
    assert records(folder / "log.jsonl")[0].keys() == {"step", "loss", "seconds", "examples_per_second"}
    ended = mtfc(*options, "bad.npz")
    assert ended.status == 1
    assert "the gradients of step 5 are not finite, after 4 more in a row" in ended.err


def test_a_run_that_skips_all_its_steps_is_saved(mtfc: Mtfc, folder: Path) -> None:
    options = ("train", "model.mtf", "--data", "data.npz", "--dir", "run")
    found = mtfc(*options, "--steps", "3", "--skip-steps", "1-3")
    assert found.status == 0, found.err
    assert "is reached already" not in found.err
    assert (folder / "run" / "checkpoints" / "3").is_dir()
    assert mtfc(*options, "--steps", "4").status == 0
    assert [each["step"] for each in records(folder / "run" / "metrics.jsonl")] == [4]


@pytest.mark.parametrize("steps", ["x", "3-", "-3", "3-x", "", "5-3"])
def test_wrong_ranges_of_steps(mtfc: Mtfc, steps: str) -> None:
    found = mtfc("train", "model.mtf", f"--skip-steps={steps}")
    assert found.status == 2
    assert "expected steps such as 7 or 20-23" in found.err or "has no steps" in found.err


def test_a_state_that_was_donated_is_refused(folder: Path) -> None:
    program = api.compile("model.mtf")
    state = program.init(seed=0)
    batch = {"x": np.ones((4, 6), np.float32), "labels": np.zeros(4, np.int32)}
    after, _ = program.train_step(state, batch)
    program.train_step(after, batch)
    with pytest.raises(ValueError, match="were given to `train_step` before"):
        program.train_step(state, batch)


def test_whole_documents_need_documents(mtfc: Mtfc, folder: Path) -> None:
    np.savez(folder / "none.npz")
    for command in (("train", "--steps", "1"), ("eval", "--params", "none.npz", "--params-partial")):
        found = mtfc(*command, "model.mtf", "--data", "data.npz", "--whole-documents")
        assert (found.status, found.out) == (2, "")
        assert "--whole-documents is about documents, and --data has none" in found.err
