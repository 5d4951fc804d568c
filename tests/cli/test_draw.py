"""`mtfc draw`: layouts and placements as SVG, with the parts that devices hold."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Mtfc
from tests.cli.model import MODEL

SVG = "{http://www.w3.org/2000/svg}"


def parts(path: Path) -> list[str]:
    """Return what each part of a drawing says under the pointer."""
    root = ElementTree.parse(path).getroot()
    return [rect.findtext(f"{SVG}title") or "" for rect in root.iter(f"{SVG}rect")]


def texts(path: Path) -> set[str]:
    return {each.text or "" for each in ElementTree.parse(path).getroot().iter(f"{SVG}text")}


def test_a_layout(mtfc: Mtfc, folder: Path) -> None:
    """An array has a rectangle for each part, with the coordinates of the devices that hold it."""
    outcome = mtfc(
        "draw", "model.mtf", "--layout", "both", "--array", "x", "--array", "bias", "-o", "out.svg"
    )
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")
    found = parts(folder / "out.svg")
    assert found[:6] == [f"device {i}: {divmod(i, 3)}" for i in range(6)]
    assert found[6:] == [
        *(f"batch {2 * b}:{2 * b + 2}, io {2 * i}:{2 * i + 2}" for b in range(2) for i in range(3)),
        "classes 0:3",
    ]
    assert {"x", "f32[batch{rows}, io{cols}]", "batch 4 in 2", "io 6 in 3", "0,2", "*,*"} <= texts(
        folder / "out.svg"
    )


def test_by_default_all_names_of_the_file(mtfc: Mtfc, folder: Path) -> None:
    assert mtfc("draw", "model.mtf", "-o", "out.svg").status == 0
    assert {"x", "labels", "w", "bias", "y", "loss"} <= texts(folder / "out.svg")


PLACED = (
    MODEL
    + """
placement staged on 3 = {
  loss: { batch: 2 } on [2, 1]
}
"""
)


def test_a_placement(mtfc: Mtfc, folder: Path) -> None:
    (folder / "placed.mtf").write_text(PLACED)
    assert mtfc("draw", "placed.mtf", "--layout", "staged", "-o", "out.svg").status == 0
    devices = ["device 0", "device 1", "device 2"]
    assert parts(folder / "out.svg") == [*devices, "batch 1 of 2, on device 2", "batch 2 of 2, on device 1"]


def test_hostile_names(mtfc: Mtfc, folder: Path) -> None:
    """A drawing is XML whatever a mesh of thousands or a long layout brings."""
    rules = "--layout", "{ batch: (a, b) }", "--mesh", "a:2;b:2"
    assert mtfc("draw", "model.mtf", *rules, "-o", "out.svg").status == 0
    assert "batch 3:4, io 0:6" in parts(folder / "out.svg")
    large = "--layout", "{ batch: a }", "--mesh", "a:4096", "--dim", "batch=4096"
    assert mtfc("draw", "model.mtf", *large, "-o", "out.svg").status == 0
    assert "4,096 parts" in texts(folder / "out.svg")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("model.mtf",), 2, "-o/--output"),
        (("model.mtf", "-o", "out.svg", "--array", "bais"), 2, "no array `bais`: did you mean `bias`?"),
        (("model.mtf", "-o", "out.svg", "--layout", "other"), 1, "error[E311]"),
        (("placed.mtf", "-o", "out.svg", "--layout", "staged", "--array", "y"), 2, "no --array"),
        (("model.mtf", "-o", "model.mtf"), 2, "model.mtf"),
    ],
)
def test_errors(mtfc: Mtfc, folder: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
    (folder / "placed.mtf").write_text(PLACED)
    outcome = mtfc("draw", *arguments)
    assert outcome.status == status and message in outcome.err
    assert not (folder / "out.svg").exists()
