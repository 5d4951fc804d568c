"""`MODULE:GRAPH` in the place of a file."""

from pathlib import Path
from typing import Any

import pytest

from mtfc.cli import main


def test_the_command_takes_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    text = """
import mtfc
print("hello")
def network(batch=4):
    with mtfc.graph("net") as g:
        x = g.input("x", batch=batch, io=3)
        g.output(g.sum(x, over="io"))
    return g
made = network()
def wrong():
    with mtfc.graph("net") as g:
        g.sum(1, over=[2])
"""
    (tmp_path / "graphs_here.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    for name in ("made", "network"):
        assert main(["check", f"graphs_here:{name}"]) == 0
        assert "no errors" in capsys.readouterr().out
    assert main(["compile", "graphs_here:made", "--dim", "batch=8"]) == 0
    assert "dim batch = 8" in capsys.readouterr().out
    assert main(["check", "graphs_here:wrong"]) != 0
    assert "graphs_here.py" in capsys.readouterr().err
    assert main(["check", "graphs_here:nothing"]) == 2
    assert main(["check", "no_such_module:made"]) == 2
