"""`mtfc fmt`: files are rewritten completely or not at all."""

import io
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Mtfc

UGLY, CANONICAL = "dim   a=1\n", "dim a = 1\n"


def test_rewrites_in_place_and_keeps_the_mode(mtfc: Mtfc, folder: Path) -> None:
    file = folder / "a.mtf"
    file.write_text(UGLY)
    file.chmod(0o640)
    outcome = mtfc("fmt", "a.mtf")
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    assert file.read_text() == CANONICAL
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in folder.iterdir()) == ["a.mtf", "model.mtf"]


def test_follows_links(mtfc: Mtfc, folder: Path) -> None:
    (folder / "a.mtf").write_text(UGLY)
    (folder / "link.mtf").symlink_to("a.mtf")
    assert mtfc("fmt", "link.mtf").status == 0
    assert (folder / "link.mtf").is_symlink()
    assert (folder / "a.mtf").read_text() == CANONICAL


def test_a_canonical_file_is_not_touched(mtfc: Mtfc, folder: Path) -> None:
    file = folder / "a.mtf"
    file.write_text(CANONICAL)
    before = file.stat()
    assert mtfc("fmt", "a.mtf").status == 0
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_check_names_the_files_and_changes_none(mtfc: Mtfc, folder: Path) -> None:
    (folder / "a.mtf").write_text(UGLY)
    (folder / "b.mtf").write_text(CANONICAL)
    outcome = mtfc("fmt", "--check", "a.mtf", "b.mtf")
    assert (outcome.status, outcome.err) == (1, "mtfc: a.mtf is not in canonical form\n")
    assert (folder / "a.mtf").read_text() == UGLY
    assert mtfc("fmt", "--check", "b.mtf").status == 0


def test_standard_input_to_standard_output(mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(UGLY.encode())))
    outcome = mtfc("fmt", "-")
    assert (outcome.status, outcome.out) == (0, CANONICAL)


def test_a_file_with_errors_is_left_alone(mtfc: Mtfc, folder: Path) -> None:
    (folder / "a.mtf").write_text("dim a =\n")
    outcome = mtfc("fmt", "a.mtf")
    assert outcome.status == 1
    assert "error[E0" in outcome.err
    assert (folder / "a.mtf").read_text() == "dim a =\n"


@pytest.mark.parametrize(
    "example", sorted((Path(__file__).parents[2] / "examples").rglob("*.mtf")), ids=lambda p: p.stem
)
def test_the_examples_are_canonical(mtfc: Mtfc, example: Path) -> None:
    assert mtfc("fmt", "--check", str(example)).status == 0
