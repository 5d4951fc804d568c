"""`mtfc verify --step`: the training step beside its declaration, and nothing else."""

from pathlib import Path

import pytest

from mtfc.backends.step_definitions import OPTIMIZERS
from tests.cli.conftest import Mtfc
from tests.generators.train_blocks import train_source


def test_a_right_step_is_as_declared(mtfc: Mtfc, folder: Path) -> None:
    text = train_source("  optimizer = sgd(0.1)\n  clip = 1.0")
    (folder / "net.mtf").write_text(text)
    found = mtfc("verify", "net.mtf", "--step")
    assert found.status == 0
    assert found.out.splitlines()[0].split()[:5] == ["training", "step", "f64", "ok", "as"]
    assert found.out.splitlines()[-1] == "all 1 training steps are as declared"
    assert mtfc("verify", "net.mtf", "--step", "--set", "optimizer.learning_rate=0.2").status == 0
    (record,) = mtfc("verify", "net.mtf", "--step", "--set", "clip=0.5", "--format", "json").json["steps"]
    assert (record["ok"], record["wrong"], record["model"]) == (True, [], "net")
    (folder / "none.mtf").write_text(text[: text.index("train net")])
    refused = mtfc("verify", "none.mtf", "--step")
    assert refused.status == 2 and "`train` block" in refused.err


def test_a_wrong_step_fails(mtfc: Mtfc, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "net.mtf").write_text(train_source("  optimizer = sgd(0.1)"))
    monkeypatch.setitem(OPTIMIZERS, "sgd", lambda p, g, s, t, a: (p - 1.01 * a * g, {}))
    found = mtfc("verify", "net.mtf", "--step")
    assert found.status == 1
    assert "WRONG  not as declared in w, bias, layers.v, layers.c, scale" in found.out
    assert found.out.splitlines()[-1] == "1 of 1 training steps are not as declared"
