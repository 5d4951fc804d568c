"""`mtfc cost`: the shape of its output, as text and JSON."""

from pathlib import Path

import pytest

from tests.cli.conftest import Mtfc

KINDS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"}


def test_json(mtfc: Mtfc) -> None:
    found = mtfc("cost", "model.mtf", "--format", "json").json
    assert found["model"] == "small"
    assert [(entry["layout"], entry["devices"]) for entry in found["layouts"]] == [
        ("replicated", 2),
        ("data", 2),
        ("both", 6),
    ]
    for entry in found["layouts"]:
        assert entry["memory_per_device"].keys() == {
            "parameters",
            "gradients",
            "optimizer",
            "activations_peak",
            "total",
        }
        for totals in (entry["forward"], entry["step"]):
            assert totals["collectives"].keys() == KINDS
            for collective in totals["collectives"].values():
                assert collective.keys() >= {"count", "elements_per_device", "bytes_per_device"}
    forward = found["layouts"][2]["forward"]["collectives"]["all_reduce"]
    assert (forward["count"], forward["elements_per_device"]) == (2, 2 * 3 + 1)


def test_text_has_every_layout_and_compares_them(mtfc: Mtfc) -> None:
    outcome = mtfc("cost", "model.mtf")
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.split()[0] for line in outcome.out.splitlines()[-3:]] == ["replicated", "data", "both"]
    assert "y = einsum(x, w -> [batch, classes]) + bias" in outcome.out


def test_symbolic(mtfc: Mtfc) -> None:
    text = mtfc("cost", "model.mtf", "--symbolic", "--layout", "both").out
    assert "batch*io*classes/(rows*cols)" in text
    entry = mtfc("cost", "model.mtf", "--symbolic", "--format", "json").json["layouts"][0]
    assert "batch*io*classes" in entry["formulas"]["flops_per_device"]


def test_options_choose_the_layout_and_sizes(mtfc: Mtfc) -> None:
    options = ["--mesh", "rows:4", "--layout", "batch:rows", "--dim", "batch=8", "--format", "json"]
    (entry,) = mtfc("cost", "model.mtf", *options).json["layouts"]
    assert (entry["mesh"], entry["devices"]) == ({"rows": 4}, 4)


def test_a_file_without_layouts_runs_on_one_device(mtfc: Mtfc) -> None:
    from pathlib import Path

    lines = [
        line for line in Path("model.mtf").read_text().splitlines() if not line.startswith(("mesh", "layout"))
    ]
    Path("model.mtf").write_text("\n".join(lines))
    (entry,) = mtfc("cost", "model.mtf", "--format", "json").json["layouts"]
    assert (entry["layout"], entry["devices"]) == ("undistributed", 1)


def test_a_mesh_selects_the_layouts_that_fit_it(mtfc: Mtfc, folder: Path) -> None:
    found = mtfc("cost", "model.mtf", "--mesh", "all:4", "--format", "json").json
    assert [(entry["layout"], entry["devices"]) for entry in found["layouts"]] == [
        ("replicated", 4),
        ("data", 4),
    ]
    text = (folder / "model.mtf").read_text().replace("layout replicated on line = {}\n", "")
    (folder / "model.mtf").write_text(text)
    outcome = mtfc("cost", "model.mtf", "--mesh", "planes:2")
    assert outcome.status == 1
    assert "error[E311]: no declared layout fits this mesh" in outcome.err


@pytest.mark.parametrize(
    ("mesh", "text"), [("one:1", "on one device ["), ("two:2", "on each of 2 devices [")]
)
def test_one_device_is_singular(mtfc: Mtfc, mesh: str, text: str) -> None:
    assert text in mtfc("cost", "model.mtf", "--mesh", mesh, "--layout", "").out
