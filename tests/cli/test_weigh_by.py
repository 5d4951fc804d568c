"""`mtfc verify` of steps whose micro-batches are weighed."""

from pathlib import Path

import pytest

from tests.cli.conftest import Mtfc
from tests.test_weighed_micro_batches import WEIGHED, source

PLACED = """
mesh line = [all: 2]
layout apart on grid = { batch: rows, part loss on line: { batch: all } }
placement halves on 2 = { weighted_cross_entropy.cross_entropy.mean_logit: { batch: 2 } on [0, 1] }
"""


@pytest.mark.parametrize("precision", ["", "precision = { params: f32, compute: f16, loss_scale: dynamic };"])
def test_verify_agrees_under_layouts_meshes_and_placements(
    mtfc: Mtfc, tmp_path: Path, precision: str
) -> None:
    """The exact check, the declared step and both backends; with f16 no seed of the backward pass may overflow."""
    path = tmp_path / "lm.mtf"
    text = source(entries=precision + WEIGHED) + ("" if precision else PLACED)
    path.write_text(text, encoding="utf-8")
    layouts = ("stored",) if precision else ("apart", "halves")
    for layout in layouts:
        done = mtfc("verify", str(path), "--layout", layout)
        assert done.status == 0
        assert "training step        f64    ok" in done.out
        assert "WRONG" not in done.out
