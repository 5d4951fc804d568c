"""`mtfc search --why-not`: rules without a comparable layout, and rules whose best layout is on another mesh."""

from pathlib import Path
from typing import Any

import pytest

from mtfc.compiler.search.found import Found
from mtfc.driver.searching.layouts import LayoutFinder
from tests.cli.conftest import Mtfc

WIDE = """\
dim batch = 64
dim io = 256
dim classes = 256

hardware box = {
  device: { flops: { f32: 1e12 }, memory: 340000, bandwidth: 1e11 }
  link wire: { kind: ring, size: 4, bandwidth: 1e9, latency: 1e-6 }
}

model wide(x: f32[batch, io]) {
  param w: f32[io, classes] = normal()
  y = einsum(x, w -> [batch, classes])
  loss = mean(square(y))
  return loss
}

train wide {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""
"""Only layouts that split the parameter fit into the memory of a device."""


@pytest.fixture
def search(mtfc: Mtfc, folder: Path) -> tuple[str, ...]:
    (folder / "wide.mtf").write_text(WIDE)
    return ("search", "wide.mtf", "--target", "box", "--budget", "5")


def test_rules_that_do_not_fit(mtfc: Mtfc, search: tuple[str, ...]) -> None:
    asked = (*search, "--mesh", "x:4", "--why-not", "batch: x")
    outcome = mtfc(*asked)
    assert outcome.status == 0 and "layout found on " in outcome.out
    text = " ".join(outcome.out.split())
    assert "it does not fit. A device has 332 KiB, and the layout with it that needs the least" in text
    found = mtfc(*asked, "--format", "json").json
    reason = found["why_not"]["reason"]
    assert found["objective_seconds"] > 0 and "does not fit" in reason
    assert found["why_not"]["memory_per_device"] > 340000
    assert found["why_not"]["layout"] is None and found["why_not"]["difference"] is None


def test_rules_that_fit_on_another_mesh(mtfc: Mtfc, search: tuple[str, ...]) -> None:
    """The best mesh can have the rules, and has too little memory for them."""
    search = (*search, "--axes-names", "x,y")
    best = mtfc(*search, "--format", "json").json["mesh"]
    assert best == {"x": 4}
    found = mtfc(*search, "--why-not", "batch: x", "--format", "json").json["why_not"]
    assert found["reason"] is None and found["mesh"] == {"x": 2, "y": 2}
    assert found["memory_per_device"] <= 340000


def test_an_interrupt_leaves_what_was_found(
    mtfc: Mtfc, search: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    best_global = LayoutFinder.best_global

    def interrupted(finder: LayoutFinder, *given: Any, **named: Any) -> Found:
        """Interrupt the search that has rules, which is the second one."""
        if len(given) > 3:
            raise KeyboardInterrupt
        return best_global(finder, *given, **named)

    monkeypatch.setattr(LayoutFinder, "best_global", interrupted)
    outcome = mtfc(*search, "--why-not", "io: x")
    assert outcome.status == 0 and "layout found on " in outcome.out
    assert "was interrupted before a layout" in " ".join(outcome.out.split())


def test_storage_is_not_asked_about(mtfc: Mtfc, search: tuple[str, ...]) -> None:
    outcome = mtfc(*search, "--why-not", "io: x, params: { io: x }")
    assert (outcome.status, outcome.out) == (2, "")
    assert "such as `batch: rows`, without sections such as `params`" in outcome.err
