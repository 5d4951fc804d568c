"""`mtfc explain`: the rules that cause each collective, as text and JSON."""

from __future__ import annotations

from tests.cli.conftest import Mtfc


def test_text(mtfc: Mtfc) -> None:
    out = mtfc("explain", "model.mtf", "--layout", "both").out
    assert "line 16  y = einsum(x, w -> [batch, classes]) + bias" in out
    assert "io: cols" in out and "line 16 sums over io" in out
    assert "Bytes that each rule has a part in" in out


def test_nothing_is_sent(mtfc: Mtfc) -> None:
    assert "Nothing is sent." in mtfc("explain", "model.mtf", "--layout", "replicated").out


def test_json_adds_up_to_the_cost(mtfc: Mtfc) -> None:
    record = mtfc("explain", "model.mtf", "--layout", "both", "--format", "json").json
    assert (record["model"], record["layout"], record["mesh"]) == ("small", "both", {"rows": 2, "cols": 3})
    cost = mtfc("cost", "model.mtf", "--layout", "both", "--format", "json").json["layouts"][0]["step"]
    for kind, figures in cost["collectives"].items():
        sent = [each["bytes_per_device"] for each in record["collectives"] if each["kind"] == kind]
        assert sum(sent) == figures["bytes_per_device"]
    assert all(each["causes"] for each in record["collectives"])
