"""`mtfc report`: the record of a page equals what the other commands print, and no text breaks out of the page."""

import base64
import hashlib
import json
import random
import re
from fractions import Fraction
from html.parser import HTMLParser
from math import prod
from pathlib import Path
from typing import Any

import pytest

import mtfc as api
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.driver.report import ReportPage, layouts_page
from mtfc.reports.page.document import SCRIPTS, document
from mtfc.reports.page.run_data import MOST_STEPS, Points, thinned
from tests.cli.conftest import Mtfc
from tests.cli.model import MODEL
from tests.cli.test_simulate_placement import TWO

EXAMPLES = Path(__file__).parents[2] / "examples"


class PageParts(HTMLParser):
    """The elements of a page with their texts, as a browser finds them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = [("", {}, "")]
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}, ""))

    def handle_data(self, data: str) -> None:
        tag, attributes, text = self.found[-1]
        self.found[-1] = tag, attributes, text + data

    def texts(self, tag: str) -> list[str]:
        return [text for name, _, text in self.found if name == tag]

    @property
    def record(self) -> Any:
        (text,) = (text for _, attributes, text in self.found if attributes.get("id") == "data")
        return json.loads(text)


def page_of(file: str | Path, **options: Any) -> ReportPage:
    return layouts_page(str(file), Choice(**options), Sources())


def test_the_record_is_that_of_the_other_commands(mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc("report", "model.mtf", "-o", "out.html", "--target", "p100_cluster")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("out.html: small: layouts side by side, ")
    record = PageParts((folder / "out.html").read_text("utf-8")).record
    assert record["cost"] == mtfc("cost", "model.mtf", "--format", "json").json
    for layout in record["layouts"]:
        asked = "model.mtf", "--layout", layout["name"], "--format", "json"
        assert layout["step"] == mtfc("simulate", *asked, "--target", "p100_cluster").json
        explained = mtfc("explain", *asked).json
        for each in layout["explain"]["collectives"]:
            del each["own_lines"]
        assert layout["explain"] == {key: explained[key] for key in ("collectives", "separate_attention")}


@pytest.mark.parametrize("file", ["two_layer.mtf", "rnnlm.mtf", "digits.mtf"])
def test_all_parts_add_up(file: str) -> None:
    """Lines, moments, kernels and collectives are the figures of the whole step, split up."""
    record: Any = page_of(EXAMPLES / file).data
    for layout, cost in zip(record["layouts"], record["cost"]["layouts"], strict=True):
        memory, step = cost["memory_per_device"], layout["step"]
        for lines in (layout["lines"], layout["places"]):
            assert sum(each["flops"] for each in lines) == cost["step"]["flops_per_device"]
            assert sum(each["flops"] for each in lines) == sum(
                n for each in lines for n in each["stages"].values()
            )
            assert sum(each["memory"] for each in lines) == memory["total"]
            assert sum(each["seconds"] for each in lines) == pytest.approx(step["step_seconds"])
        sent = {kind: each["bytes_per_device"] for kind, each in cost["step"]["collectives"].items()}
        assert sum(each["sent"] for each in layout["lines"]) == sum(sent.values())
        for kind, size in sent.items():
            assert sum(each["bytes"] for each in layout["collectives"] if each["kind"] == kind) == size
        lanes: dict[str, float] = {}
        for each in layout["collectives"]:
            for lane, seconds in each["lanes"].items():
                lanes[lane] = lanes.get(lane, 0.0) + seconds
        assert lanes == pytest.approx(step["links"])
        assert sum(kernel[6] for kernel in layout["kernels"]) == pytest.approx(
            step["compute_seconds"], rel=1e-6
        )
        inputs, moments = layout["memory"]["always"]["inputs"], layout["memory"]["moments"]
        assert (
            inputs + max(activations + rest for *_, activations, rest in moments)
            == memory["activations_peak"]
        )
        assert layout["memory"]["always"]["parameters"] == memory["parameters"]


def amount(terms: list[Any], sizes: dict[str, int]) -> Fraction:
    values = (
        Fraction(int(n), int(d)) * prod(Fraction(sizes[name]) ** power for name, power in powers.items())
        for n, d, powers in terms
    )
    return sum(values, start=Fraction())


@pytest.mark.parametrize(
    ("file", "layout", "dims"),
    [
        ("two_layer.mtf", None, {"batch": 128, "hidden": 4096}),
        ("two_layer.mtf", None, {"io": 8}),
        ("moe_lm.mtf", "hybrid", {"batch": 64, "length": 256, "layers": 3}),
    ],
)
def test_formulas_at_other_sizes_are_the_costs_there(
    file: str, layout: str | None, dims: dict[str, int]
) -> None:
    before: Any = page_of(EXAMPLES / file, layout=layout).data
    after: Any = page_of(EXAMPLES / file, layout=layout, dims=dims).data
    sizes = {each["name"]: each["size"] for each in after["sizes"]}
    for each, cost in zip(before["layouts"], after["cost"]["layouts"], strict=True):
        formulas = each["formulas"]
        at = sizes | {formulas["symbols"][axis]: size for axis, size in each["axes"]}
        assert amount(formulas["flops"], at) == cost["step"]["flops_per_device"]
        sent = sum(kind["bytes_per_device"] for kind in cost["step"]["collectives"].values())
        assert amount(formulas["sent"], at) == sent
        assert amount(formulas["wire"], at) == pytest.approx(cost["step"]["wire_bytes_per_device"])
        memory = cost["memory_per_device"]
        assert max(amount(terms, at) for terms in formulas["activations"]) == memory["activations_peak"]
        for name, terms in formulas["memory"].items():
            assert amount(terms, at) == memory[name]


def test_the_page_of_the_language_model() -> None:
    """The page is small, and knows how sizes are computed from others; sizes of options are not."""
    page = page_of(EXAMPLES / "transformer_lm.mtf", layout="hybrid", dims={"vocab": 16384})
    assert len(page.html.encode()) < 600_000
    record: Any = page.data
    expressions = {each["name"]: each["expression"] for each in record["sizes"]}
    assert expressions["d_ff"] == ["*", 1024, "heads"] and expressions["memory"] == "length"
    assert expressions["vocab"] is None and expressions["heads"] == 256


HOSTILE = """\
# </script><script>window.broken = 1</script> <!-- <script> --> {{data}} {{scripts}} ]]> &lt; \\u003c "quotes' ünïcödé 中 \u2028 𝒳
"""


def test_no_text_of_a_file_breaks_out(mtfc: Mtfc, folder: Path) -> None:
    """A source, a file's name and a layout's rules stand in the record alone, and come out of it as they were."""
    name = "a<img src=x onerror=alert(1)>&'\".mtf"
    (folder / name).write_text(HOSTILE + MODEL, "utf-8")
    assert mtfc("report", name, "-o", "out.html").status == 0
    html = (folder / "out.html").read_text("utf-8")
    parts = PageParts(html)
    assert parts.record["sources"][name] == HOSTILE + MODEL
    assert "img" not in {tag for tag, _, _ in parts.found}
    assert len(re.findall("</script", html, re.IGNORECASE)) == 1 + len(SCRIPTS["layouts"])


def test_the_policy_allows_the_page_alone() -> None:
    """Hashes of all scripts and of the style stand in the policy, so that nothing else runs, and nothing is loaded."""
    parts = PageParts(document('<b>"title"</b>', {"kind": "run", "name": "<b>"}))
    (policy,) = (a["content"] or "" for tag, a, _ in parts.found if a.get("http-equiv"))
    scripts = [text for tag, a, text in parts.found if tag == "script" and not a.get("type")]
    for text in (*scripts, *parts.texts("style")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert not [a for _, a, _ in parts.found if a.get("src") or a.get("href")]
    assert parts.texts("title") == ['<b>"title"</b>']


def test_scripts_make_no_html_of_texts() -> None:
    own = [name for names in SCRIPTS.values() for name in names]
    folder = Path(__file__).parents[2] / "mtfc" / "reports" / "page" / "assets"
    for name in own:
        text = (folder / name).read_text("utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
        ), name


# Searches, Python, functions of JAX


def test_a_search_shows_its_way(mtfc: Mtfc, folder: Path) -> None:
    outcome = mtfc("report", "model.mtf", "-o", "out.html", "--search", "2", "--target", "h100")
    assert outcome.status == 0, outcome.err
    record = PageParts((folder / "out.html").read_text("utf-8")).record
    search, found = record["search"], record["layouts"][-1]
    assert found["name"] == search["name"] == "found"
    assert (
        search["record"]["memory_per_device"] == record["cost"]["layouts"][-1]["memory_per_device"]["total"]
    )
    times = [at for at, _, _ in search["points"]]
    best = [cost for _, cost, _ in search["points"] if cost is not None]
    assert times == sorted(times) and best == sorted(best, reverse=True)
    assert best[-1] == search["record"]["objective_seconds"]


def test_python(folder: Path) -> None:
    page = api.report("model.mtf", layout="both", target="h100")
    assert repr(page) == "<ReportPage small>"
    page.save("out.html")
    assert (folder / "out.html").read_text("utf-8") == page.html
    frame = PageParts(page._repr_html_())
    ((_, attributes, _),) = (each for each in frame.found if each[0])
    assert attributes["srcdoc"] == page.html
    with pytest.raises(ValueError, match="search=0"):
        api.report("model.mtf", search=0)


def test_a_function_of_jax() -> None:
    jax = pytest.importorskip("jax")

    def loss(w: Any, x: Any) -> Any:
        h = jax.numpy.tanh(x @ w)
        return (h * h).sum()

    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16), (32, 8))]
    plan = api.from_jax(loss, *arrays, names={"x": "batch io"}).plan({"batch": "data"}, {"data": 4})
    record: Any = plan.page().data
    assert record["cost"]["layouts"] == [plan.cost()]
    assert record["layouts"][0]["step"] == plan.simulate("h100")
    assert record["own"] == __file__ and "h = jax.numpy.tanh(x @ w)" in record["sources"][__file__]


# Placements

PLACED = f"""{TWO}
hardware small = {{ device: {{ flops: {{ f32: 1e9 }}, memory: 40000, bandwidth: 1e9, overhead: 1e-6 }} }}
hardware box = {{
  device: {{ flops: {{ f32: 1e9 }}, memory: 40000, bandwidth: 1e9, overhead: 1e-6 }}
  link wire: {{ kind: switch, size: 2, bandwidth: 1e6, latency: 1e-3 }}
}}
placement apart on 2 = {{ h: {{}} on [0], y: {{ batch: 2 }} on [1, 0] }}
placement alone on 1 = {{}}
"""


def test_placements(mtfc: Mtfc, folder: Path) -> None:
    """A file without layouts shows its placements, with the figures of `mtfc simulate`, on its own machine."""
    (folder / "two.mtf").write_text(PLACED)
    outcome = mtfc("report", "two.mtf", "-o", "out.html")
    assert outcome.status == 0, outcome.err  # it may say that loops were compiled
    assert outcome.out.startswith("out.html: two: placements side by side, ")
    record = PageParts((folder / "out.html").read_text("utf-8")).record
    asked = "two.mtf", "--target", "box", "--format", "json"
    assert record["steps"] == [mtfc("simulate", *asked, "--layout", name).json for name in ("apart", "alone")]
    apart, alone = record["placements"]
    assert [each[:3] for each in apart["operators"]] == [["h", [], [0]], ["y", [["batch", 2]], [1, 0]]]
    assert {each for _, _, devices, _ in alone["operators"] for each in devices} == {0}
    step = record["steps"][0]
    assert max(start + seconds for _, _, start, seconds, *_ in apart["events"]) == pytest.approx(
        step["step_seconds"]
    )
    assert [apart["lanes"][lane] for lane, *_ in apart["events"] if "wire" in apart["lanes"][lane]]
    assert mtfc("report", "two.mtf", "--layout", "alone", "-o", "one.html").out.startswith(
        "one.html: two: placement alone, "
    )
    for options, status, message in (
        (("--search", "1"), 2, "`mtfc search two.mtf --space soap` finds placements"),
        (
            ("--layout", "apart", "--mesh", "one"),
            2,
            "`apart` is a placement, which has devices of its own: no --mesh",
        ),
        (("--layout", "apart", "--memory", "1GiB"), 2, "no --memory"),
        (("--target", "small"), 1, "error[E316]"),
    ):
        refused = mtfc("report", "two.mtf", "-o", "none.html", *options)
        assert refused.status == status and message in refused.err
    assert not (folder / "none.html").exists()


def test_a_memory_limit_and_other_passes(mtfc: Mtfc, folder: Path) -> None:
    """The page takes the options of `mtfc cost`, and has its figures."""
    for options in (("--memory", "1GiB"), ("--passes", "default{combine-collectives.max_bytes=0}")):
        assert mtfc("report", "model.mtf", "-o", "out.html", *options).status == 0
        record = PageParts((folder / "out.html").read_text("utf-8")).record
        costs = mtfc("cost", "model.mtf", "--format", "json", *options).json
        for each in costs["layouts"]:
            each.pop("recomputation", None)
        assert record["cost"] == costs


# Runs


def write_run(folder: Path, lines: list[Any], text: str = "") -> None:
    (folder / "checkpoints" / "20").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines) + text)


def test_a_run(mtfc: Mtfc, folder: Path) -> None:
    """Vectors become curves of their elements, predicted shares predicted times, and a part of a last line counts as none."""
    lines = [
        {"step": i, "loss": 1 / i, "seconds": 0.5, "predicted_share": 0.5, "load": [i, None]}
        for i in range(1, 31)
    ]
    lines[-1] |= {"loss": None, "eval/loss": 0.25}
    write_run(folder / "run", lines, '{"step": 31, "lo')
    outcome = mtfc("report", "run", "-o", "out.html")
    assert (outcome.status, outcome.err) == (0, "")
    record = PageParts((folder / "out.html").read_text("utf-8")).record
    assert (record["name"], record["steps"], record["checkpoints"]) == ("run", 30, [20])
    assert record["curves"]["loss"] == [[*range(1, 31)], [*(1 / i for i in range(1, 30)), None]]
    assert record["curves"]["predicted_seconds"][1] == [0.25] * 30
    assert record["curves"]["load/1"][1] == [None] * 30 and record["curves"]["eval/loss"] == [[30], [0.25]]
    assert api.report("run").title == "run run"


def test_a_long_run_keeps_its_extremes() -> None:
    draw = random.Random(0)
    points: Points = [(i, draw.random() if i % 7 else None) for i in range(1, 10 * MOST_STEPS)]
    kept = thinned(points)
    assert len(kept) <= MOST_STEPS and kept == sorted(set(kept), key=lambda point: point[0])
    known = [value for _, value in points if value is not None]
    assert {min(known), max(known)} < {value for _, value in kept} and {points[0], points[-1]} < {*kept}
    assert thinned(points[:MOST_STEPS]) == points[:MOST_STEPS]


# Errors


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("model.mtf",), 2, "the following arguments are required: -o/--output"),
        (("model.mtf", "-o", "model.mtf"), 2, "model.mtf"),
        (("model.mtf", "-o", "none/out.html"), 2, "none"),
        (("model.mtf", "-o", "out.html", "--layout", "other"), 1, "error[E311]"),
        (("model.mtf", "-o", "out.html", "--target", "nothing"), 1, "error[E313]"),
        (("model.mtf", "-o", "out.html", "--mesh", "x:16", "--layout", "{}", "--target", "p2_8xlarge"), 1, "error[E316]"),
        (("model.mtf", "-o", "out.html", "--search", "0"), 2, "above 0"),
        (("empty", "-o", "out.html"), 2, "has no metrics.jsonl"),
        (("broken", "-o", "out.html"), 2, "line 2 is no object with a `step`"),
        (("new", "-o", "out.html"), 2, "has no steps yet"),
    ],
)  # fmt: skip
def test_errors(mtfc: Mtfc, folder: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
    (folder / "empty").mkdir()
    write_run(folder / "broken", [{"step": 1}, [2], {"step": 3}])
    write_run(folder / "new", [])
    outcome = mtfc("report", *arguments)
    assert outcome.status == status and message in outcome.err
    assert not (folder / "out.html").exists()
