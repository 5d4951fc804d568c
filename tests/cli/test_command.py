"""The start and the end of the command: help, exit statuses, streams, and no tracebacks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mtfc.cli import command
from mtfc.cli.command import SUBCOMMANDS
from mtfc.driver.loading import selection
from tests.cli.conftest import Mtfc
from tests.documents import COMPILED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_of_every_subcommand_has_examples(name: str, mtfc: Mtfc) -> None:
    outcome = mtfc(name, "--help")
    assert outcome.status == 0
    assert f"examples:\n  mtfc {name} " in outcome.out


def test_help_lists_the_subcommands(mtfc: Mtfc) -> None:
    outcome = mtfc("--help")
    assert outcome.status == 0
    assert all(f"    {name}" in outcome.out for name in SUBCOMMANDS)


def test_version(mtfc: Mtfc) -> None:
    assert mtfc("--version").out.startswith("mtfc")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["bogus"], "there is no command `bogus`"),
        (["check"], "required: FILE"),
        (["check", "model.mtf", "--bogus"], "there is no option --bogus"),
        (["check", "missing.mtf"], "mtfc: cannot read missing.mtf: no such file or directory"),
        (["check", "."], "mtfc: cannot read .: is a directory"),
        (["check", "a\0b"], "cannot read"),
        (["check", "model.mtf", "--dim", "batch"], "argument --dim: expected NAME=SIZE, for example batch=64, and not `batch`"),
        (["check", "model.mtf", "--dim", "batch=1.5"], "--dim: expected NAME=SIZE"),
        (["compile", "model.mtf", "-o", "missing/out.txt"], "cannot write missing/out.txt: no such directory"),
        (["compile", "model.mtf", "-o", "."], "cannot write .: is a directory"),
        (["run", "model.mtf", "--steps", "0"], "expected a number from 1 on, not `0`"),
        (["run", "model.mtf", "--seed", "-1"], "expected a number from 0 to 2**32 - 1"),
        (["run", "model.mtf", "--eval", "x.npz"], "--eval goes with --train"),
    ],
)  # fmt: skip
def test_wrong_usage(mtfc: Mtfc, arguments: list[str], message: str) -> None:
    outcome = mtfc(*arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--model", "smal", "E106"),
        ("--mesh", "lin", "E307"),
        ("--mesh", "rows:0", "E207"),
        ("--layout", "dat", "E311"),
        ("--layout", "batch:rows", "E307"),
        ("--dim", "bath=4", "E103"),
        ("--dim", "batch=0", "E207"),
    ],
)
@pytest.mark.parametrize("name", ["check", "compile", "run", "verify", "cost"])
def test_an_option_that_names_nothing_is_diagnosed_alike(
    mtfc: Mtfc, name: str, option: str, value: str, code: str
) -> None:
    outcome = mtfc(name, "model.mtf", option, value)
    assert outcome.status == 1
    assert f"error[{code}]" in outcome.err
    assert f"<{option}>:1:" in outcome.err


@pytest.mark.parametrize("name", ["check", "compile", "run", "verify", "cost", "diff", "fmt"])
def test_a_program_with_errors(mtfc: Mtfc, folder: Path, name: str) -> None:
    (folder / "model.mtf").write_text("model m(x: f32[batch) { return x }")
    outcome = mtfc(name, "model.mtf")
    assert outcome.status == 1
    assert "error[E0" in outcome.err


@pytest.mark.parametrize("name", ["check", "compile", "run", "verify", "cost", "diff", "fmt"])
def test_a_file_that_is_no_text(mtfc: Mtfc, folder: Path, name: str) -> None:
    (folder / "model.mtf").write_bytes(b"dim a = 1\n\xff")
    outcome = mtfc(name, "model.mtf")
    assert outcome.status == 1
    assert (
        "error[E013]: this file is not UTF-8 text: it has the byte 0xff here\n --> model.mtf:2:1"
        in outcome.err
    )


@pytest.mark.parametrize("name", ["compile", "run", "verify", "cost"])
def test_a_file_without_a_model(mtfc: Mtfc, folder: Path, name: str) -> None:
    (folder / "model.mtf").write_text("dim a = 1\n")
    outcome = mtfc(name, "model.mtf")
    assert (outcome.status, outcome.err) == (2, "mtfc: model.mtf declares no model\n")


@pytest.mark.parametrize("name", ["run", "verify"])
def test_without_jax_the_command_says_how_to_get_it(
    mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    outcome = mtfc(name, "model.mtf", "--backend", "jax")
    assert outcome.status == 3
    assert "pip install" in outcome.err


@pytest.mark.parametrize("error", [RuntimeError("strange"), AssertionError(), RecursionError("deep")])
def test_a_bug_is_reported_in_a_sentence(
    mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(selection, "parse", fail)
    outcome = mtfc("cost", "model.mtf")
    assert outcome.status == 70
    assert outcome.err.startswith(f"mtfc: internal error: {type(error).__name__}: {error}")
    assert "Please report it" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("package", ["numpy", "ml_dtypes"])
def test_a_missing_package_is_no_bug(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    def fail(*arguments: object) -> None:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    monkeypatch.setattr(selection, "parse", fail)
    outcome = mtfc("cost", "model.mtf")
    assert outcome.status == 3
    assert f"(No module named '{package}'): pip install" in outcome.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("name", ["check", "compile", "cost"])
def test_a_full_disk_is_no_bug(folder: Path, name: str) -> None:
    command = [sys.executable, "-m", "mtfc", name, "model.mtf"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3
    assert done.stderr.endswith("mtfc: cannot read or write: no space left on device\n")


def test_no_memory_is_no_bug(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError("cannot allocate 8 TiB")

    monkeypatch.setattr(selection, "parse", fail)
    outcome = mtfc("cost", "model.mtf")
    assert outcome.status == 3
    assert outcome.err.startswith("mtfc: out of memory: use more devices, or smaller dimensions")


def test_sources_hold_every_option_that_diagnostics_point_into(mtfc: Mtfc) -> None:
    """Carets mark the wrong part of an option, as they mark the wrong part of a file."""
    outcome = mtfc("check", "model.mtf", "--layout", "batch:rowz;io:cols", "--mesh", "rows:2;cols:3")
    assert "1 | batch:rowz;io:cols\n  |       ^^^^" in outcome.err


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    """Start the command as a process that an interrupt reaches even if these tests run in a shell's background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "mtfc", *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        **options,
    )


def test_a_reader_that_stops_early_is_no_error(folder: Path) -> None:
    with start("compile", "model.mtf", "--emit", "numpy") as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_an_interrupt_ends_quietly(folder: Path) -> None:
    """The interrupt comes during training: an import may handle an interrupt in its own way."""
    with start("run", "model.mtf", "--train", "--steps", "200000") as process:
        assert process.stdout and process.stderr
        assert process.stderr.readline() == "mtfc: no --data: the inputs are drawn from seed 0\n"
        assert process.stdout.readline().startswith("step")
        process.send_signal(signal.SIGINT)
        assert (process.stderr.read(), process.wait()) == ("mtfc: interrupted\n", 130)


INTERRUPTED_IN = """
import os, signal, sys
from mtfc.cli import main
from mtfc.placements.placement_search import PlacementSpace
signal.signal(signal.SIGINT, signal.default_int_handler)
simulated = getattr(PlacementSpace, sys.argv[1])
def interrupted(space):
    os.kill(os.getpid(), signal.SIGINT)
    return simulated(space)
setattr(PlacementSpace, sys.argv[1], interrupted)
sys.exit(main(sys.argv[2:]))
"""


def search_interrupted_in(which: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a search for a placement in a new process, interrupted before it simulates a known strategy."""
    search = ["search", "model.mtf", "--space", "soap", "--target", "p100_cluster", "--devices", "2"]
    arguments = [sys.executable, "-c", INTERRUPTED_IN, which, *search, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(arguments, text=True, capture_output=True, env=environment, check=False)


def test_an_interrupt_before_a_search_for_placements_has_begun_leaves_data_parallelism(folder: Path) -> None:
    done = search_interrupted_in("expert")
    errors = [line for line in done.stderr.splitlines() if not COMPILED.match(line)]
    assert (done.returncode, errors) == (0, [])
    assert "Interrupted before that was a local optimum." in done.stdout and " 1 was simulated" in done.stdout
    assert "data_parallel" in done.stdout and "expert" not in done.stdout
    found = json.loads(search_interrupted_in("expert", "--format", "json").stdout)
    assert found["baselines"] == {"data_parallel": found["objective_seconds"]}


def test_an_interrupt_before_anything_is_found_says_so(folder: Path) -> None:
    done = search_interrupted_in("data_parallel")
    errors = [line for line in done.stderr.splitlines() if not COMPILED.match(line)]
    assert (done.returncode, done.stdout) == (130, "")
    assert errors == ["mtfc: model.mtf: interrupted before anything was found"]


def test_standard_input(folder: Path) -> None:
    with start("check", "-", stdin=subprocess.PIPE) as process:
        out, err = process.communicate("dim a = 0\n")
    assert (process.returncode, out) == (1, "<stdin>: 1 error\n")
    assert " --> <stdin>:1:9" in err


def test_an_encoding_that_lacks_characters(folder: Path) -> None:
    (folder / "model.mtf").write_text("dim a = 1 × 2\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    command_line = [sys.executable, "-m", "mtfc", "check", "model.mtf"]
    result = subprocess.run(command_line, capture_output=True, text=True, env=environment)
    assert result.returncode == 1
    assert "\\xd7" in result.stderr


def test_each_subcommand_is_a_module() -> None:
    for name in SUBCOMMANDS:
        assert "\nexamples:\n  mtfc " in (command._subcommand(name).__doc__ or "")


@pytest.mark.parametrize("name", ["check", "solve"])
def test_an_unknown_option_names_the_help_of_its_subcommand(mtfc: Mtfc, name: str) -> None:
    outcome = mtfc(name, "model.mtf", "--nothing")
    assert outcome.status == 2
    assert outcome.err.splitlines() == [
        f"mtfc {name}: error: there is no option --nothing",
        f"`mtfc {name} --help` shows what there is",
    ]


@pytest.mark.parametrize(
    "command", ["check", "compile", "run", "verify", "cost", "explain", "simulate", "diff", "search"]
)
def test_set_is_an_option_of_every_command_that_compiles(mtfc: Mtfc, command: str) -> None:
    more = {"simulate": ("--target", "h100"), "search": ("--devices", "2", "--target", "h100")}.get(
        command, ()
    )
    outcome = mtfc(command, "model.mtf", "--set", "acumulate=4", *more)
    assert outcome.status == 1
    assert "error[E012]: a train block has no entry `acumulate`" in outcome.err
    assert "1 | acumulate=4\n  | ^^^^^^^^^\n" in outcome.err
    fixed = mtfc(command, "model.mtf", "--set", 'optimizer for "w"=sgd(0.1)', *more)
    assert (fixed.status, "an option cannot change `optimizer for`" in fixed.err) == (1, True)
    wrong = mtfc(command, "model.mtf", "--set", "accumulate", *more)
    assert (wrong.status, "expected KEY=VALUE" in wrong.err) == (2, True)


@pytest.mark.parametrize(
    "command",
    [
        ("check",),
        ("compile", "--emit", "jax"),
        ("run", "--train", "--steps", "1"),
        ("verify", "--backend", "numpy"),
        ("cost",),
        ("explain",),
        ("simulate", "--target", "h100"),
        ("search", "--target", "h100"),
        ("search", "--target", "h100", "--space", "tiling"),
        ("search", "--target", "h100", "--space", "soap"),
    ],
)
def test_every_command_takes_one_device(mtfc: Mtfc, command: tuple[str, ...]) -> None:
    """Sizes that no declared layout divides show that no declared layout is used."""
    outcome = mtfc(*command, "model.mtf", "--mesh", "one", "--dim", "batch=5", "--dim", "io=7")
    assert outcome.status == 0, outcome.err
    assert "error" not in outcome.err
    as_by_default = {("check",): "model.mtf: no errors\n", ("explain",): "Nothing is sent."}
    assert as_by_default.get(command, "") in outcome.out


def test_one_device_has_the_numbers_of_a_file_without_layouts(mtfc: Mtfc, folder: Path) -> None:
    text = (folder / "model.mtf").read_text()
    lines = (line for line in text.splitlines() if not line.startswith(("mesh", "layout")))
    (folder / "plain.mtf").write_text("\n".join(lines) + "\n")
    for which_command in (("run", "--train", "--steps", "2"), ("cost",)):
        one, plain = (
            mtfc(*which_command, *which, "--format", "json").json
            for which in (("model.mtf", "--mesh", "one"), ("plain.mtf",))
        )
        for each in (one, plain):
            for step in each.get("steps", ()):
                del step["seconds"]
        assert one == plain
    listed = mtfc("cost", "model.mtf", "--mesh", "one", "--format", "json").json["layouts"]
    assert [each["devices"] for each in listed] == [1]


def test_one_device_takes_no_layout_that_splits(mtfc: Mtfc) -> None:
    for layout in ("data", "batch:all"):
        outcome = mtfc("cost", "model.mtf", "--mesh", "one", "--layout", layout)
        assert outcome.status == 1
        assert "error[E304]: mesh `one` has no axis `all`" in outcome.err
        assert "help: it is one device, on which nothing is split" in outcome.err
    for layout in ("replicated", "{}", ""):
        assert mtfc("cost", "model.mtf", "--mesh", "one", "--layout", layout).status == 0


def test_a_declared_mesh_called_one_comes_first(mtfc: Mtfc, folder: Path) -> None:
    path = folder / "model.mtf"
    path.write_text(path.read_text().replace("line", "one"))
    found = mtfc("cost", "model.mtf", "--mesh", "one", "--format", "json").json["layouts"]
    assert [each["layout"] for each in found] == ["replicated", "data"]
    assert mtfc("cost", "model.mtf", "--mesh", "one", "--layout", "data").status == 0


IMPORTING = """\
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from mtfc.cli import main
sys.exit(main(["run", "model.mtf"]))
"""


@pytest.mark.parametrize(
    "module", ["attr", "argparse", "mtfc.cli.command", "mtfc.frontend.syntax.parser", "numpy"]
)
def test_an_interrupt_of_an_import_ends_quietly(folder: Path, module: str) -> None:
    command = [sys.executable, "-c", IMPORTING, module]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.endswith("mtfc: interrupted\n") and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("run", "model.mtf", "--save"),
        ("run", "model.mtf", "--data"),
        ("run", "model.mtf", "--mesh"),
        ("check", "model.mtf", "--model"),
        ("compile", "model.mtf", "-o"),
        ("simulate", "model.mtf", "--target"),
    ],
)
def test_an_empty_value_is_wrong_usage(mtfc: Mtfc, options: tuple[str, ...]) -> None:
    outcome = mtfc(*options, "")
    assert (outcome.status, outcome.out) == (2, "")
    assert options[-1] in outcome.err and "expected a value, and not an empty text" in outcome.err


def test_a_layout_may_be_empty(mtfc: Mtfc) -> None:
    assert mtfc("compile", "model.mtf", "--layout", "", "--mesh", "rows:2").status == 0
