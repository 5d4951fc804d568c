"""Test that `README.md` shows the examples as they are."""

import re

from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.compiler.ir.printer import bytes_text
from tests.documents import ROOT, check_generated
from tests.harness import lowered

README = ROOT / "README.md"
EXAMPLE = ROOT / "examples" / "two_layer.mtf"
QUICKSTART = ROOT / "examples" / "quickstart.py"
MOST_LINES = 250


def example() -> str:
    return f"```mtf two_layer.mtf\n{EXAMPLE.read_text('utf-8')}```\n"


def quickstart() -> str:
    return f"```python\n{QUICKSTART.read_text('utf-8')}```\n"


def test_examples_are_the_files(update_golden: bool) -> None:
    check_generated(README, {"example": example, "quickstart": quickstart}, update_golden)


def test_stays_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= MOST_LINES


def test_picture_shows_what_is_sent() -> None:
    """The sizes in the picture are those of the collectives of one step."""
    picture = (ROOT / "docs/images/two_layer.svg").read_text("utf-8")
    program = lowered(EXAMPLE.read_text("utf-8"), layout="hybrid")
    mesh, body = program.mesh, program.function("step").body
    assert mesh is not None
    sent = [sum(value.type.local_bytes(mesh) for value in eqn.operands) for eqn in body if eqn.op in KINDS]
    assert re.findall(r"[\d.]+ KiB", picture) == [bytes_text(size) for size in sent]
