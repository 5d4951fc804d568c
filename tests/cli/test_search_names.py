"""`mtfc search`: the check of `--why-not` before the search, and the names of `--axes-names`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mtfc as api
from mtfc.driver.searching import layouts, placements
from tests.cli.conftest import Mtfc

ON_4 = ("search", "model.mtf", "--devices", "4", "--target", "tpu_v2")
ON_6 = ("search", "model.mtf", "--devices", "6", "--target", "tpu_v2")


@pytest.mark.parametrize(
    ("space", "rules", "status", "message"),
    [
        ("rules", "batch: q", 1, "error[E304]: mesh `found_mesh` has no axis `q`\n --> <--why-not>:1:8\n"),
        ("rules", "bach: x", 1, "error[E303]: unknown dimension `bach`\n --> <--why-not>:1:1\n"),
        ("rules", "batch: x; io: x", 1, "error[E301]"),
        ("rules", "io: (x, y)", 1, "error[E302]"),
        ("rules", "batch = x", 1, "error[E001]"),
        ("rules", "bath", 1, "error[E311]: unknown layout `bath`\n --> <--why-not>:1:1\n"),
        ("rules", "batch: x, params: { io: y }", 2, "takes rules for dimensions"),
        ("rules", "value forward.einsum: { batch: x }", 2, "takes rules for dimensions"),
        ("tiling", "batch: x", 2, "takes rules for single equations"),
        ("tiling", "value forward.nothing: { batch: x }", 1, "error[E305]"),
        ("tiling", "value forward.einsum: { batch: z }", 1, "error[E304]"),
        ("soap", "nothing: {}", 1, "error[E317]"),
        ("soap", "y: { batch: 3 }", 1, "error[E319]"),
        ("soap", "y: { q: 2 }", 1, "error[E303]"),
    ],
)
def test_wrong_rules_are_reported_before_the_search(
    mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch, space: str, rules: str, status: int, message: str
) -> None:
    def begins(*arguments: Any) -> None:
        raise AssertionError("the search has begun")

    monkeypatch.setattr(layouts, "finder_of", begins)
    monkeypatch.setattr(placements, "placement_space", begins)
    run = mtfc(*ON_4, "--space", space, "--why-not", rules)
    assert message in run.err
    assert (run.status, run.out) == (status, "")


def test_rules_that_the_mesh_that_was_found_cannot_have(mtfc: Mtfc) -> None:
    """The second search is on the meshes that can have the rules."""
    options = (*ON_6, "--why-not", "batch: x")
    found = mtfc(*options, "--format", "json").json
    asked = found["why_not"]
    assert 4 % found["mesh"]["x"] != 0 and 4 % asked["mesh"]["x"] == 0
    assert "batch: x" in asked["layout"] and asked["optimal"]
    assert asked["objective_seconds"] >= found["objective_seconds"]
    shape = ", ".join(f"{axis}: {size}" for axis, size in asked["mesh"].items())
    assert f"on another mesh, [{shape}], takes" in mtfc(*options).out


@pytest.mark.parametrize("axis", ["rows", "x"])
def test_rules_may_name_the_axes_of_a_layout_of_the_file(mtfc: Mtfc, axis: str) -> None:
    """The result may be a layout of the file."""
    found = mtfc(*ON_6, "--why-not", f"batch: {axis}", "--format", "json").json
    assert f"batch: {axis}" in found["why_not"]["layout"]


# Names of axes


@pytest.mark.parametrize("space", ["rules", "tiling"])
@pytest.mark.parametrize("names", ["data,model", "only"])
def test_axes_have_the_names_that_are_asked_for(mtfc: Mtfc, tmp_path: Path, space: str, names: str) -> None:
    out = tmp_path / "best.mtf"
    rule = f"batch: {names.split(',')[0]}"
    why = rule if space == "rules" else f"value forward.y: {{ {rule} }}"
    options = (*ON_4, "--space", space, "--axes-names", names, "--why-not", why)
    found = mtfc(*options, "-o", str(out), "--format", "json").json
    assert found["optimal"]
    assert list(found["mesh"]) == names.split(",")[: len(found["mesh"])]
    assert rule in found["why_not"]["layout"]
    plain = mtfc(*ON_4, "--space", space, "--axes", str(names.count(",") + 1), "--format", "json").json
    assert found["objective_seconds"] == pytest.approx(plain["objective_seconds"])
    axes = ", ".join(f"{name}: {size}" for name, size in found["mesh"].items())
    assert f"mesh found_mesh = [{axes}]" in out.read_text("utf-8")
    assert (
        mtfc("cost", str(out), "--layout", "found", "--format", "json").json["layouts"][0]["mesh"]
        == found["mesh"]
    )


def test_more_axes_than_by_default(mtfc: Mtfc) -> None:
    """A mesh may have as many axes as there are names."""
    options = ("search", "model.mtf", "--devices", "16", "--target", "h100", "--dim", "batch=64")
    asked = mtfc(
        *options, "--axes-names", "a,b,c,d", "--why-not", "batch: (a,b,c,d)", "--format", "json"
    ).json
    assert asked["why_not"]["mesh"] == {"a": 2, "b": 2, "c": 2, "d": 2}


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ("data", ("--axes", "2"), "has 1 name for 2 axes"),
        ("a,b,c", ("--axes", "1"), "has 3 names for 1 axis"),
        ("a,b,a", (), "`a` occurs twice"),
        ("a,1b", (), "`1b` cannot name a mesh axis"),
        ("a,,b", (), "`` cannot name a mesh axis"),
        ("a-b", (), "`a-b` cannot name a mesh axis"),
        ("return,b", (), "`return` cannot name a mesh axis"),
        ("größe", (), "cannot name a mesh axis"),
        ("a,b,c,d,e,f,g", (), "at most 6 axes are searched"),
        ("a", ("--mesh", "line"), "--mesh line gives its axes names"),
        ("a", ("--space", "soap"), "has placements, and no mesh"),
    ],
)
def test_names_that_axes_cannot_have(mtfc: Mtfc, names: str, options: tuple[str, ...], message: str) -> None:
    run = mtfc("search", "model.mtf", "--target", "tpu_v2", "--axes-names", names, *options)
    assert (run.status, message in run.err, "Traceback" in run.err) == (2, True, False)


def test_names_in_python(folder: Path) -> None:
    found = api.search("model.mtf", target="tpu_v2", devices=4, axes_names=["data", "model"])
    assert set(found["mesh"]) <= {"data", "model"}
    with pytest.raises(ValueError, match="twice"):
        api.search("model.mtf", target="tpu_v2", devices=4, axes_names=("a", "a"))
