"""`mtfc search`: what is refused before the search, rules of `--why-not`, and the names of `--axes-names`."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.driver.searching import layouts, placements
from mtfc.driver.searching.written import accumulated, insert_layout, resized
from tests.cli.conftest import Mtfc
from tests.cli.test_search import DECODER, LAYERS, TWO_OPERATORS
from tests.search.equation_networks import EXAMPLES

ON_4 = ("search", "model.mtf", "--devices", "4", "--target", "tpu_v2")
ON_6 = ("search", "model.mtf", "--devices", "6", "--target", "tpu_v2")

ON_LINE = "model.mtf --mesh line"
FOUR = "model.mtf --devices 4 --target tpu_v2"
RULES, TILING, SOAP = (f"{FOUR} --space {space} --why-not" for space in ("rules", "tiling", "soap"))
PLACED = "model.mtf --space soap --target p100_cluster --devices 2"
CUTS = "model.mtf --target p100_cluster --space kcuts --devices 4"
PIPELINES = "layers.mtf --space pipelines --target h100 --devices"
FORMS = "decoder.mtf --target tpu_v5p --space forms"
PRICES = "model.mtf --target h100 --devices 2 --what-if"
NAMES = "model.mtf --target tpu_v2 --axes-names"
FILES = {"layers.mtf": LAYERS, "decoder.mtf": DECODER, "two.mtf": TWO_OPERATORS}

REFUSED = [
    # rules of `--why-not`
    (f"{RULES} 'batch: q'", 1, "error[E304]: mesh `found_mesh` has no axis `q`\n --> <--why-not>:1:8\n"),
    (f"{RULES} 'bach: x'", 1, "error[E303]: unknown dimension `bach`\n --> <--why-not>:1:1\n"),
    (f"{ON_LINE} --why-not 'batch: all; io: all'", 1, "error[E301]"),
    (f"{RULES} 'io: (x, y)'", 1, "error[E302]"),
    (f"{RULES} 'batch = x'", 1, "error[E001]"),
    (f"{RULES} bath", 1, "error[E311]: unknown layout `bath`\n --> <--why-not>:1:1\n"),
    (f"{RULES} 'batch: x, params: {{ io: y }}'", 2, "takes rules for dimensions"),
    (f"{RULES} 'value forward.einsum: {{ batch: x }}'", 2, "takes rules for dimensions"),
    (f"{TILING} 'batch: x'", 2, "takes rules for single equations"),
    (f"{TILING} 'value forward.nothing: {{ batch: x }}'", 1, "error[E305]"),
    (f"{TILING} 'value forward.einsum: {{ batch: z }}'", 1, "error[E304]"),
    (f"{ON_LINE} --space tiling --why-not 'value forward.one_hot: {{ classes: all }}'", 1, "error[E302]"),
    (
        f"{SOAP} 'nothing: {{}}'",
        1,
        "error[E317]: the model has no operator `nothing`\n --> <--why-not>:1:1\n",
    ),
    (f"{SOAP} 'y: {{ batch: 3 }}'", 1, "error[E319]: `batch` (size 4) cannot be split into 3 equal parts\n"),
    (f"{SOAP} 'y: {{ q: 2 }}'", 1, "error[E303]"),
    (f"{SOAP} 'batch: all'", 1, "error[E0"),
    (
        f"two.mtf {PLACED[10:]} --why-not 'h: {{ io: 2 }}'",
        1,
        "error[E319]: operator `h` cannot be split in `io`\n --> <--",
    ),
    (
        f"two.mtf {PLACED[10:]} --why-not 'h: {{ batch: 4 }}'",
        1,
        "error[E318]: `h` is split into 4 parts, and there are 2 ",
    ),
    (
        f"two.mtf {PLACED[10:]} --why-not 'h: {{ batch: 2 }} on [0]'",
        1,
        "split into 2 parts, and placed on 1 device\n",
    ),
    (
        f"two.mtf {PLACED[10:]} --why-not 'h: {{}} on [2]'",
        1,
        "there is no device 2: they are numbered from 0 to 1\n --> <--why-",
    ),
    # machines and meshes
    ("model.mtf --target h100", 2, "--devices N"),
    ("model.mtf --devices 16 --target p2_8xlarge", 1, "E316"),
    ("model.mtf --devices 8 --mesh up:2;down:2", 2, "has 4 processors, and --devices is 8"),
    ("model.mtf --devices 4 --axes 7", 2, "at most 6 --axes"),
    ("model.mtf --devices 10000000000000061", 2, "1,000,000 --devices"),
    (f"model.mtf --mesh {';'.join(f'a{i}:2' for i in range(9))}", 2, "has 9 axes"),
    # names of axes
    (f"{NAMES} data --axes 2", 2, "has 1 name for 2 axes"),
    (f"{NAMES} a,b,c --axes 1", 2, "has 3 names for 1 axis"),
    (f"{NAMES} a,b,a", 2, "`a` occurs twice"),
    (f"{NAMES} a,1b", 2, "`1b` cannot name a mesh axis"),
    (f"{NAMES} a,,b", 2, "`` cannot name a mesh axis"),
    (f"{NAMES} a-b", 2, "`a-b` cannot name a mesh axis"),
    (f"{NAMES} return,b", 2, "`return` cannot name a mesh axis"),
    (f"{NAMES} größe", 2, "cannot name a mesh axis"),
    (f"{NAMES} a,b,c,d,e,f,g", 2, "at most 6 axes are searched"),
    (f"{NAMES} a --mesh line", 2, "--mesh line gives its axes names"),
    (f"{NAMES} a --space soap", 2, "has placements, and no mesh"),
    # options of one space
    ("model.mtf --exhaustive", 2, "--exhaustive takes --space soap"),
    ("model.mtf --devices 4 --export instance.json", 2, "--export takes --space tiling"),
    (f"{ON_LINE} --space tiling --storage", 2, "--storage takes --space plan"),
    (f"{ON_LINE} --space soap --storage", 2, "--storage takes --space plan"),
    (f"{ON_LINE} --space tiling --recompute", 2, "--recompute takes --space plan"),
    (f"{ON_LINE} --output ''", 2, "argument -o/--output: expected a value, and not an empty text"),
    (f"{ON_LINE} --why-not ''", 2, "argument --why-not: expected a value, and not an empty text"),
    (f"{ON_LINE} --space tiling --export ''", 2, "argument --export: expected a value"),
    (f"{PRICES} --space rules", 2, "--what-if takes --space plan"),
    (f"{PRICES} --objective memory", 2, "is memory"),
    (f"{FORMS.replace('forms', 'rules')} --layout plain", 2, "--layout takes --space forms"),
    (f"{FORMS} --devices 4", 2, "`--space forms` takes the mesh of a declared layout: no --devices"),
    (f"{FORMS} --why-not 'batch: data'", 2, "takes the mesh of a declared layout: no --why-not"),
    (f"{FORMS} --objective bytes", 2, "has no --objective but time, serial or memory"),
    (f"{FORMS} --storage", 2, "--storage takes --space plan"),
    (f"{FORMS} --layout other", 1, "unknown layout `other`"),
    (f"model.mtf {PIPELINES[11:]} 4", 1, "no `repeat` of the model can run as a pipeline"),
    (f"{PIPELINES} 3", 1, "no axis of a mesh divides the layers into stages"),
    (f"{PIPELINES} 4 --why-not batch:x", 2, "cannot take --why-not"),
    (f"{PIPELINES} 4 --objective memory", 2, "has no --objective but time or serial"),
    (f"{CUTS} --objective time", 2, "no --objective but bytes"),
    (f"{CUTS} --why-not 'batch: x'", 2, "cuts take no rules"),
    (f"{CUTS} --axes 3", 2, "4 devices are 2 cuts, each an axis"),
    (f"{CUTS} --axes-names a", 2, "4 devices are 2 cuts, each an axis"),
    (f"{CUTS} --devices 256", 2, "at most 6 are searched"),
    (f"{CUTS} --export out.json", 2, "--export takes --space tiling"),
    (f"{CUTS} --space rules --objective bytes", 2, "splits nothing sends nothing"),
    (f"{CUTS} --space tiling --objective memory", 2, "no --objective but serial, time or bytes"),
    (f"{CUTS} --dimensions S", 2, "--dimensions takes --space soap"),
    (f"{PLACED} --objective memory", 2, "--objective"),
    (f"{PLACED} --dimensions S,X", 2, "--dimensions S,X: choose some of S: samples; O:"),
    (f"{PLACED} --dimensions ''", 2, "--dimensions : choose some of S"),
    (
        f"{PLACED} --starts expert,mine",
        2,
        "--starts expert,mine: choose some of data_parallel, expert, random",
    ),
    (f"{PLACED} --beta 0", 2, "expected a number above 0"),
    (f"{PLACED} --seed -1", 2, "expected a number from 0"),
    (f"{PLACED} --proposals 0", 2, "expected a number from 1 on"),
    (f"{PLACED} --space rules --seed 1", 2, "--seed takes --space soap"),
    (f"{PLACED} --space tiling --one-dimension", 2, "--one-dimension takes --space soap"),
]


@pytest.mark.parametrize(("command", "status", "message"), REFUSED, ids=lambda each: str(each))
def test_wrong_options_are_refused(
    mtfc: Mtfc, monkeypatch: pytest.MonkeyPatch, command: str, status: int, message: str
) -> None:
    """Rules of `--why-not` are checked before a search begins."""

    def begins(*arguments: Any) -> None:
        raise AssertionError("the search has begun")

    if "--why-not" in command:
        monkeypatch.setattr(layouts, "finder_of", begins)
        monkeypatch.setattr(placements, "placement_space", begins)
    file, *options = shlex.split(command)
    if file in FILES:
        Path(file).write_text(FILES[file])
    run = mtfc("search", file, *options)
    assert message in run.err and "warning" not in run.err and "Traceback" not in run.err
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


def test_form_feeds_end_no_line_where_a_file_is_changed_or_shown(mtfc: Mtfc) -> None:
    text, page = (EXAMPLES / "two_layer.mtf").read_text("utf-8"), "# one\ftwo\r\n"
    layout, mesh = Layout("found"), Mesh("other", (("all", 8),))
    for change in (
        lambda old: resized(old, {"io": 64}),
        lambda old: accumulated(old, "two_layer", 2),
        lambda old: insert_layout(old, mesh, layout, ()),
    ):
        assert change(page + text) == page + change(text) != page + text
    Path("page.mtf").write_bytes((page + text).encode())
    assert " loss = mean(square(y - target)) " in mtfc("cost", "page.mtf", "--layout", "hybrid").out
