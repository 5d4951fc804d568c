"""Pages of `mtfc report` in headless Chromium: they show what `mtfc cost` prints, and clicks, keys and sliders work.

`make browser-test` brings Playwright and the browser; without them these tests are skipped.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

import attrs
import pytest

import mtfc
from mtfc.compiler.ir.printer import bytes_text
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.driver.simulate import simulate
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import count_text, flops_text

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LM = EXAMPLES / "transformer_lm.mtf"


@attrs.define
class Opened:
    """A page in the browser. faults: errors, and requests for anything but the page."""

    view: Any
    faults: list[str]
    seconds: float
    size: int

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.view.locator(selector).all_inner_texts()
        return found

    def wait(self, condition: str) -> None:
        """Wait for a condition; the page's policy forbids Playwright's own way, which makes functions of texts."""
        until = time.monotonic() + 30
        while not self.view.evaluate(condition):
            assert time.monotonic() < until, condition
            time.sleep(0.02)


Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def pages(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """A function that opens the page of a report; every page must be free of faults at the end."""
    opened: list[Opened] = []
    context = browser.new_context(locale="en-US", viewport={"width": 1400, "height": 1000})

    def open(report: Any) -> Opened:
        path = tmp_path_factory.mktemp("page") / "report.html"
        report.save(path)
        view, faults = context.new_page(), list[str]()
        view.on("console", lambda message: faults.append(message.text))
        view.on("pageerror", lambda error: faults.append(str(error)))
        view.on(
            "request", lambda request: faults.append(request.url) if request.url != path.as_uri() else None
        )
        started = time.monotonic()
        view.goto(path.as_uri())
        opened.append(Opened(view, faults, time.monotonic() - started, path.stat().st_size))
        return opened[-1]

    yield open
    assert [each.faults for each in opened] == [[] for _ in opened]


@pytest.fixture(scope="module")
def lm(pages: Open) -> Opened:
    return pages(mtfc.report(LM, target="tpu_v2"))


@pytest.fixture(scope="module")
def costs() -> Any:
    return mtfc.cost(LM)["layouts"]


def sent(cost: Any) -> int:
    return sum(each["bytes_per_device"] for each in cost["step"]["collectives"].values())


def test_size_and_time(lm: Opened) -> None:
    assert lm.size < 2_000_000
    assert lm.seconds < 1


def test_layouts_side_by_side(lm: Opened, costs: Any) -> None:
    """The table shows the figures of `mtfc cost` and `mtfc simulate`."""
    for cost in costs:
        row = f'#layouts tr[data-layout="{cost["layout"]}"]'
        step = mtfc.compile(LM, layout=cost["layout"]).simulate("tpu_v2")
        figures = {
            "flops": flops_text(cost["step"]["flops_per_device"]),
            "sent": bytes_text(sent(cost)),
            "wire": bytes_text(ceil(cost["step"]["wire_bytes_per_device"])),
            "memory": bytes_text(cost["memory_per_device"]["total"]),
            "step": seconds_text(step["step_seconds"]),
            "exposed": seconds_text(step["exposed_communication_seconds"]),
            "utilisation": f"{step['utilisation']:.1%}",
        }
        for name, text in figures.items():
            assert lm.texts(f'{row} [data-figure="{name}"]') == [text]


def test_numbers_are_written_as_in_python(lm: Opened) -> None:
    draw = random.Random(1)
    counts = [draw.randrange(10 ** draw.randrange(1, 16)) for _ in range(800)]
    counts += [
        33 * 2**16,
        2113 * 512,
        1023,
        1024,
        999_999,
        10**15,
        0,
        *(draw.randrange(1, 2**14) * 64 for _ in range(400)),
    ]
    seconds = [draw.random() * 10 ** draw.randrange(-12, 6) for _ in range(500)] + [0.0, 1.0, 9999.5, 12345.0]
    written = lm.view.evaluate(
        "([c, s]) => [c.map(bytesText), c.map(countText), c.map(flopsText), s.map(secondsText)]",
        [counts, seconds],
    )
    assert written == [
        [*map(bytes_text, counts)], [*map(count_text, counts)], [*map(flops_text, counts)], [*map(seconds_text, seconds)]
    ]  # fmt: skip


def test_the_source_shows_the_cost_of_each_line(lm: Opened, costs: Any) -> None:
    for i, cost in enumerate(costs):
        lm.view.click(f'header [role="radio"]:nth-child({i + 1})')
        assert lm.view.get_attribute(f'header [role="radio"]:nth-child({i + 1})', "aria-checked") == "true"
        shown = lm.view.evaluate(
            "current().lines.map((each) => [each.line, each.flops, each.sent, each.memory])"
        )
        for column, total in (
            (1, cost["step"]["flops_per_device"]),
            (2, sent(cost)),
            (3, cost["memory_per_device"]["total"]),
        ):
            assert sum(row[column] for row in shown) == total
        for line, flops, size, memory in shown:
            cells = lm.texts(f'#source tr[data-line="{line}"] td.h')
            expected = [
                count_text(flops) if flops else "",
                bytes_text(size) if size else "",
                bytes_text(memory) if memory else "",
            ]
            assert not line or cells == expected


def test_a_click_on_a_name_shows_its_parts(lm: Opened) -> None:
    """Each device of the drawing has the part that the layout gives it: rows split batch, cols split d_ff."""
    lm.view.keyboard.press("3")
    lm.view.select_option("#source select", "mtfc/std/nn.mtf")
    lm.view.click('#source tr[data-line="42"] button.name >> nth=0')
    assert lm.texts("[data-array]") == [
        "decoder.layers.decoder_layer.feed_forward.h: bf16[batch{rows}, length, d_ff{cols}]"
    ]
    parts = lm.view.evaluate('[...document.querySelectorAll(".device")].map((each) => each.dataset.part)')
    assert parts == [f"{row},0,{column}" for row, column in product(range(16), range(32))]
    assert (
        len(
            {
                *lm.view.evaluate(
                    '[...document.querySelectorAll(".device")].map((each) => each.getAttribute("fill"))'
                )
            }
        )
        == 512
    )
    lm.view.click('.device[data-device="33"]')
    assert lm.view.get_attribute("[data-chosen-part]", "data-chosen-part") == "1,0,1"
    lm.view.click('header [role="radio"]:nth-child(1)')
    colours = lm.view.evaluate(
        '[...document.querySelectorAll(".device")].map((each) => each.getAttribute("fill"))'
    )
    assert len(colours) == 256 == len({*colours})
    lm.view.select_option("#source select", str(LM))


def test_names_work_by_keyboard(lm: Opened) -> None:
    lm.view.focus('#source tr[data-line="37"] button.name')
    lm.view.keyboard.press("Enter")
    assert lm.texts("[data-array]")[0].startswith("decoder.before: i32[")
    assert lm.view.evaluate("document.activeElement.dataset.name") == "decoder.before"
    lm.view.click('#source tr[data-line="44"] td.l')
    assert "line 44" in lm.texts("aside h3")
    lm.view.keyboard.press("?")
    assert lm.view.is_visible("dialog")
    lm.view.keyboard.press("Escape")
    lm.view.focus('header [role="radio"]:nth-child(1)')
    lm.view.keyboard.press("ArrowRight")
    assert lm.view.evaluate("current().name") == "model_parallel"


CHANGES: list[tuple[dict[str, int], dict[str, int]]] = [
    ({"batch": 512}, {}),
    ({"batch": 1024, "layers": 12}, {}),
    ({}, {"grid.rows": 8, "grid.cols": 64, "line.all": 128}),
    ({"layers": 3}, {"grid.rows": 32}),
]
"""Sizes of dimensions and of axes."""

SHARED = 8
"""Most bytes of constants that the compiler shares at one size and not at another: two numbers that happen to be equal."""

RULES = {
    "data_parallel": ("line", {"batch": "all"}),
    "model_parallel": ("line", {"vocab": "all", "d_ff": "all", "heads": "all"}),
    "hybrid": ("grid", {"batch": "rows", "vocab": "cols", "d_ff": "cols", "heads": "cols"}),
}


@pytest.mark.parametrize(("dims", "axes"), CHANGES)
def test_what_if_is_exact(lm: Opened, dims: dict[str, int], axes: dict[str, int]) -> None:
    """Sliders show the figures that `mtfc cost` has at these sizes."""
    lm.view.click("#what-if button")
    meshes = {"line": {"all": 256}, "grid": {"rows": 16, "cols": 32}}
    for name, size in {**dims, **axes}.items():
        at = lm.view.evaluate(
            """([name, size]) => { const least = name.includes(".") ? 2 : 1;
              const before = Number(document.querySelector(`[data-number="${name}"]`).value);
              return steps(before).filter((each) => each >= least).indexOf(size); }""",
            [name, size],
        )
        lm.view.fill(f'[data-size="{name}"]', str(at))
        if name in axes:
            mesh, axis = name.split(".")
            meshes[mesh][axis] = size
    for layout, (mesh, rules) in RULES.items():
        (cost,) = mtfc.cost(LM, layout=rules, mesh=meshes[mesh], dims=dims)["layouts"]
        cells = lm.view.locator(f'#what-if tr[data-layout="{layout}"] [data-figure]')
        exact = cells.evaluate_all("(all) => all.map(({ dataset }) => [dataset.figure, dataset.exact])")
        step = cost["step"]
        shown = {name: int(text) for name, text in exact}
        assert abs(shown.pop("memory") - cost["memory_per_device"]["total"]) <= SHARED
        assert shown == {
            "flops": step["flops_per_device"],
            "sent": sent(cost),
            "wire": ceil(step["wire_bytes_per_device"]),
        }


def test_what_if_names_sizes_that_do_not_fit(lm: Opened) -> None:
    lm.view.fill('[data-number="batch"]', "100")
    lm.view.keyboard.press("Enter")
    assert "batch (100) is no multiple of all (256)" in lm.texts("#what-if tr[data-layout=data_parallel]")[0]
    lm.view.click("#what-if button")
    assert "no multiple" not in lm.texts("#what-if")[0]


def test_what_if_of_split_positions(pages: Open, tmp_path: Path) -> None:
    """Blocks of positions follow no formula: other heights are refused. A model that does nothing is shown."""
    (tmp_path / "shifted.mtf").write_text(
        "dim batch = 8\ndim height = 16\nmesh line = [all: 4]\nlayout split on line = { height: all }\n"
        "model shifted(x: [batch, height]) {\n  y = shift(x, height)\n  return y\n}\n"
    )
    page = pages(mtfc.report(tmp_path / "shifted.mtf"))
    row = "#what-if tr[data-layout=split]"
    page.view.fill('[data-number="batch"]', "16")
    page.view.keyboard.press("Enter")
    after = mtfc.cost(tmp_path / "shifted.mtf", dims={"batch": 16})["layouts"][0]
    assert page.view.get_attribute(f'{row} [data-figure="sent"]', "data-exact") == str(sent(after))
    page.view.fill('[data-number="height"]', "32")
    page.view.keyboard.press("Enter")
    assert "positions of height are split" in page.texts(row)[0]
    (tmp_path / "same.mtf").write_text("dim a = 4\nmodel same(x: [a]) { return x }\n")
    assert "computes and sends nothing" in pages(mtfc.report(tmp_path / "same.mtf")).texts("#timeline")[0]


def test_the_timeline_zooms(lm: Opened) -> None:
    def view() -> list[float]:
        found: list[float] = lm.texts("#timeline [data-view]")[0].split(", ")  # type: ignore[assignment]
        return found

    everything = view()
    lm.view.focus("#timeline svg")
    for _ in range(4):
        lm.view.keyboard.press("+")
    zoomed = view()
    assert zoomed != everything
    lm.view.keyboard.press("ArrowRight")
    assert view() != zoomed
    lm.view.keyboard.press("0")
    assert view() == everything
    box = lm.view.locator("#timeline svg").bounding_box()
    lm.view.mouse.move(box["x"] + 300, box["y"] + 30)
    lm.view.mouse.down()
    lm.view.mouse.move(box["x"] + 500, box["y"] + 30, steps=4)
    lm.view.mouse.up()
    assert view() != everything
    lm.view.dblclick("#timeline svg", position={"x": 400, "y": 12})
    assert view() == everything


def test_the_chart_of_memory_has_the_moments(lm: Opened, costs: Any) -> None:
    lm.view.keyboard.press("3")
    lm.wait("curves.at(-1).plot !== null")
    peak = lm.view.evaluate(
        """() => { const { series } = curves.findLast((each) => each.place.closest("#memory") && each.place.isConnected);
          const values = (name) => series.find((each) => each.name === name).values;
          return Math.max(...values("temporaries").map((each, i) => each + values("activations")[i] + values("inputs")[i])); }"""
    )
    assert peak == costs[2]["memory_per_device"]["activations_peak"]


def test_dark_and_print(lm: Opened) -> None:
    def back() -> str:
        return str(lm.view.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = back()
    lm.view.keyboard.press("t")
    assert back() != light
    assert len(lm.view.pdf()) > 50_000
    assert back() != light  # the print is light, and the page is dark again
    lm.view.emulate_media(media="print")
    lm.view.evaluate("document.querySelector('#memory .u-wrap').style.width = '3000px'")
    assert lm.view.evaluate("document.documentElement.scrollWidth <= innerWidth")  # charts fit on the paper
    lm.view.emulate_media(media="screen")
    lm.view.keyboard.press("t")
    assert back() == light
    lm.view.emulate_media(color_scheme="dark")
    assert lm.view.evaluate("document.documentElement.dataset.theme") == "light"  # the user has chosen
    assert lm.view.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_hostile_source(pages: Open, tmp_path: Path) -> None:
    text = (EXAMPLES / "two_layer.mtf").read_text("utf-8")
    hostile = '# </script><img src=x onerror="window.broken=1"> {{data}} \u2028 "中" 𝒳 <!--\n'
    path = tmp_path / "a<img src=x onerror=alert(1)>.mtf"
    path.write_text(hostile + text, "utf-8")
    page = pages(mtfc.report(path, search=0.5, target="h100"))
    assert page.texts('#source tr[data-line="1"] td.c') == [hostile.rstrip("\n")]
    assert page.view.evaluate("window.broken === undefined && document.querySelector('img') === null")
    assert "The search found" in page.texts("#search")[0]


PLACED = """
dim batch = 8
dim io = 16
dim units = 8
model two(x: [batch, io]) {
  param w: [io, units] = zeros()
  param v: [units, io] = zeros()
  h = einsum(x, w -> [batch, units])
  y = einsum(h, v -> [batch, io])
  loss = mean(square(y))
  return loss
}
train two { minimize loss
  optimizer = sgd(learning_rate = 0.1) }
placement apart on 4 = { h: { batch: 2, units: 2 } on [0, 1, 2, 3]; loss: {} on [3] }
placement alone on 1 = {}
"""


def test_several_meshes(pages: Open) -> None:
    """The page has the figures of `mtfc simulate` for each mesh, and draws an array on its mesh."""
    path = EXAMPLES / "two_meshes.mtf"
    page = pages(mtfc.report(path, layout="two", target="p100_cluster"))
    step = simulate(str(path), Choice(layout="two"), "p100_cluster", Sources()).record()
    for each in step["by_mesh"]:
        row = f'#meshes tr[data-mesh="{each["name"]}"]'
        assert page.texts(f'{row} [data-figure="busy"]') == [seconds_text(each["seconds"])]
        assert page.texts(f'{row} [data-figure="memory"]') == [bytes_text(each["memory"])]
    assert page.view.locator("#between tbody tr").count() == len(step["travels"])
    page.view.click('#arrays tr[data-array="x"]')
    assert page.texts("aside [data-shown]") == ["x on front"]
    assert page.view.locator("aside rect.device").count() == 4
    page.view.click("#timeline rect.event >> nth=0")
    assert page.view.locator("#source tr.chosen").count() == 1


def test_placements(pages: Open, tmp_path: Path) -> None:
    """The page has the figures of `mtfc simulate`, and shows which parts are on which device."""
    path = tmp_path / "two.mtf"
    path.write_text(PLACED)
    page = pages(mtfc.report(path, target="p100_cluster"))
    for name in ("apart", "alone"):
        step = simulate(str(path), Choice(layout=name), "p100_cluster", Sources()).record()
        row = f'#placements tr[data-placement="{name}"]'
        figures = {
            "devices": str(step["devices"]),
            "step": seconds_text(step["step_seconds"]),
            "exposed": seconds_text(step["exposed_communication_seconds"]),
            "sent": bytes_text(step["bytes_sent"]),
            "memory": bytes_text(step["memory_per_device"]["total"]),
        }
        assert {each: page.texts(f'{row} [data-figure="{each}"]') for each in figures} == {
            each: [text] for each, text in figures.items()
        }
        page.view.focus(row)
        page.view.keyboard.press("Enter")
        shown = page.texts('#devices tr [data-figure="compute"]')
        assert shown == [seconds_text(each["compute_seconds"]) for each in step["by_device"]]
        for line in step["lines"]:
            cells = page.texts(f'#source tr[data-line="{line["line"]}"] [data-figure="bytes_sent"]')
            assert not line["line"] or cells == [bytes_text(line["bytes_sent"]) if line["bytes_sent"] else ""]
    page.view.keyboard.press("1")
    page.view.click('#operators tr[data-operator="h"]')
    parts = page.view.evaluate(
        '[...document.querySelectorAll("aside .device")].map((each) => each.dataset.device)'
    )
    assert parts == ["0", "1", "2", "3"]
    page.view.click('#devices tr[data-device="1"]')
    assert "faint" in page.view.get_attribute('#operators tr[data-operator="loss"]', "class")
    assert page.view.get_attribute('aside .device[data-device="1"]', "class") == "device chosen"
    page.view.focus("#timeline svg")
    before = page.texts("#timeline [data-view]")
    page.view.keyboard.press("+")
    assert page.texts("#timeline [data-view]") != before
    page.view.click("#timeline rect.event >> nth=0")
    assert page.view.locator("#source tr.chosen").count() == 1
    light = page.view.evaluate("getComputedStyle(document.body).backgroundColor")
    page.view.keyboard.press("t")
    assert page.view.evaluate("getComputedStyle(document.body).backgroundColor") != light
    assert len(page.view.pdf()) > 20_000
    assert page.view.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_run(pages: Open, tmp_path: Path) -> None:
    lines = [
        {"step": i, "loss": 2 / i, "learning_rate": 1e-3 * i, "grad_norm": 1.0, "seconds": 0.1, "tokens_per_second": 1e4,
         "predicted_share": 0.5, "mfu": 0.25, "extra": i, **({"eval/loss": 3 / i} if i % 10 == 0 else {})}
        for i in range(1, 101)
    ]  # fmt: skip
    (tmp_path / "checkpoints" / "50").mkdir(parents=True)
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    page = pages(mtfc.report(tmp_path))
    page.wait("curves.every((each) => each.plot)")
    assert page.view.evaluate("curves.map((each) => each.series.map(({ name }) => name))") == [
        ["loss", "evaluation"], ["learning_rate"], ["grad_norm"], ["measured", "predicted"],
        ["tokens_per_second"], ["mfu"], ["extra"],
    ]  # fmt: skip
    loss, evaluation = page.view.evaluate("curves[0].series.map(({ values }) => values)")
    assert loss == [2 / i for i in range(1, 101)]
    assert [each for each in evaluation if each is not None] == [3 / i for i in range(10, 101, 10)]
    assert "loss\t0.02" in page.texts("#summary tr")
