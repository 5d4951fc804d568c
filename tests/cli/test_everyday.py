"""`mtfc help`, `new`, `doctor`, `completion`, `explain CODE`, and colours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mtfc.cli import doctor
from mtfc.cli.command import SUBCOMMANDS
from mtfc.cli.errors import show_diagnostics
from mtfc.driver import help_pages
from mtfc.driver.check import check_file
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from tests.cli.conftest import Mtfc

ROOT = Path(__file__).parents[2]
WRONG = "model net(x: [batch]) {\n  return y\n}\n"


def test_every_code_has_a_section(mtfc: Mtfc) -> None:
    assert help_pages.code_places()
    for code in help_pages.code_places():
        assert help_pages.code_section(code).startswith(f"{code}\n\n")
    assert mtfc("explain", "e301").out == mtfc("help", "E301").out
    assert "must be injective" in mtfc("explain", "E301").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain", "E999"], "there is no diagnostic E999"),
        (["help", "lange"], "no help about `lange`: did you mean `language`?"),
        (["help", "zzz"], "`mtfc help` lists the topics"),
        (["help", "../README"], "no help about"),
        (["new", "model.mtf"], "model.mtf exists"),
        (["new", "a\0b"], "cannot write"),
        (["new", "x" * 300], "cannot write"),
        (["completion", "ksh"], "there is no value `ksh`: did you mean `zsh`?"),
        (["check", "model.mtf", "--color", "red"], "there is no value `red`"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc(*arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err
    assert sorted(path.name for path in folder.iterdir()) == ["model.mtf"]


def test_a_terminal_shows_how_to_read_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "two.mtf").write_text("dim a = b\ndim c = d\nmodel m(x: [a]) {\n  return q\n}\n")
    found = check_file("two.mtf", Choice(), sources := Sources())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    show_diagnostics(found[:2], sources)
    assert capsys.readouterr().err.endswith("`mtfc explain E103` says more\n")
    show_diagnostics(found, sources)
    assert capsys.readouterr().err.endswith("`mtfc explain CODE` says more, for E103, E101\n")


def test_help_knows_pages_and_commands(mtfc: Mtfc) -> None:
    assert "language" in mtfc("help").out
    assert mtfc("help", "language").out == (ROOT / "docs" / "language.md").read_text("utf-8")
    assert mtfc("help", "fmt").out.startswith("usage: mtfc fmt")


# Projects


def test_a_new_project_has_no_warnings(mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = mtfc("new", "deep/spirals")
    assert outcome.status == 0 and "README.md, data.py, model.mtf, test_model.py" in outcome.out
    assert mtfc("check", "deep/spirals/model.mtf").out == "deep/spirals/model.mtf: no errors\n"
    assert mtfc("fmt", "--check", "deep/spirals/model.mtf").status == 0
    assert mtfc("new", "deep/spirals").status == 2
    assert "name is empty" in mtfc("new", "").err
    assert "`mtfc check 'two words/model.mtf'`" in mtfc("new", "two words").out
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")
    assert mtfc("new", ".").status == 0
    assert mtfc("check", "model.mtf").out == "model.mtf: no errors\n"
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_the_tests_of_a_new_project_pass(mtfc: Mtfc, folder: Path) -> None:
    mtfc("new", "spirals")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(tests, cwd=folder / "spirals", capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout


# The installation


def test_doctor_runs_a_model(mtfc: Mtfc) -> None:
    outcome = mtfc("doctor", "--format", "json")
    record = json.loads(outcome.out)
    assert outcome.status == 0 and record["ok"]
    assert all(finding["ok"] for finding in [record["devices"], *record["backends"].values()])
    assert {each["name"] for each in record["packages"]["base"]} >= {"attrs", "lark", "numpy"}


def test_doctor_names_what_is_missing(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["attrs>=99", "nothing_of_this_name>=1.2", 'nor_this>=3; extra == "train"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: lines)
    monkeypatch.setattr(doctor, "_run", lambda *arguments: doctor.Finding(ok=False, text="killed"))
    outcome = mtfc("doctor")
    assert outcome.status == 3
    assert "(too old), nothing_of_this_name missing: pip install . in the checkout" in outcome.out
    assert "nor_this missing: pip install '.[train]' in the checkout" in outcome.out
    assert "numpy      FAILED: killed" in outcome.out


@pytest.mark.parametrize("version", ["2.10", "2.10.0", "2.10.1rc1", "3", "2.11.dev0"])
def test_versions_compare_by_numbers(version: str) -> None:
    assert doctor._numbers("2.9") < doctor._numbers("2.10") <= doctor._numbers(version)


# The terminal


def test_bash_completes_commands_options_and_files(mtfc: Mtfc, folder: Path) -> None:
    pytest.importorskip("shtab")
    (folder / "complete.sh").write_text(mtfc("completion", "bash").out + COMPLETE)
    done = subprocess.run(["bash", "complete.sh"], cwd=folder, capture_output=True, text=True, check=True)
    commands, options, files, topics, machines = done.stdout.splitlines()
    assert set(commands.split()) == {name for name in SUBCOMMANDS if name.startswith("c")}
    assert {"--layout", "--layouts"} & set(options.split())
    assert "model.mtf" in files
    assert {"training", "training_data"} <= set(topics.split())
    assert {"h100", "h200"} == set(machines.split())


COMPLETE = """
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_mtfc; echo "${COMPREPLY[*]}"; }
compopt() { :; }
try mtfc c
try mtfc check --layo
try mtfc check mod
try mtfc help trai
try mtfc simulate --target h
"""


@pytest.mark.parametrize(
    ("variables", "arguments", "is_coloured"),
    [
        ({}, [], False),
        ({}, ["--color", "always"], True),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
        ({"FORCE_COLOR": "1"}, [], True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, [], False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, [], True),
        ({"FORCE_COLOR": "1"}, ["--color", "never"], False),
    ],
)
def test_colors(
    variables: dict[str, str],
    arguments: list[str],
    is_coloured: bool,
    mtfc: Mtfc,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.setenv(name, variables.get(name, ""))
    (folder / "wrong.mtf").write_text(WRONG)
    assert ("\x1b[" in mtfc("check", "wrong.mtf", *arguments).err) == is_coloured
    assert ("\x1b[" in mtfc(*arguments, "check", "wrong.mtf").err) == is_coloured
