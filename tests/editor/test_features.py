"""Hovers, hints, completion, fixes and outlines, as a client gets them from the server."""

import asyncio
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

from mtfc.compiler.ir.printer import bytes_text
from mtfc.driver.cost import model_costs
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.driver.simulate import simulate
from mtfc.editor.jobs import FiguresQueue, Request
from mtfc.editor.outline import LEGEND
from mtfc.frontend.syntax.format import format_source
from mtfc.reports.step_report import seconds_text
from tests.documents import ROOT
from tests.editor.client import SECONDS, Editor

TWO_LAYER = ROOT / "examples/two_layer.mtf"

WHOLE = lsp.Range(lsp.Position(0, 0), lsp.Position(1000, 0))


def hover(editor: Editor, uri: str, before: str, after: str) -> str:
    found = editor.ask_at(lsp.TEXT_DOCUMENT_HOVER, uri, before, after)
    return "" if found is None else found.contents.value


@pytest.fixture
def two_layer(editor: Editor) -> str:
    uri = editor.open_file(TWO_LAYER)
    assert editor.command("mtfc.setLayout", uri, "hybrid") is True
    return uri


def settled(editor: Editor, uri: str) -> None:
    """Wait until all figures are known: the lines above models need them."""
    assert editor.ask(lsp.TEXT_DOCUMENT_CODE_LENS, uri)


def test_hover_shows_the_line_and_the_value(editor: Editor, two_layer: str) -> None:
    """The figures are those that the README shows as the output of `mtfc cost` and `mtfc explain`."""
    settled(editor, two_layer)
    text = hover(editor, two_layer, "  ", "h = relu")
    for part in (
        "h = relu(einsum(x, w -> [batch, hidden]) + bias)",
        "under layout `hybrid` on [rows: 2, cols: 4]",
        "`h`: `f32[batch{rows}, hidden{cols}]`; one device has 32 x 128, 16 KiB; batch over `rows` (2), hidden over `cols` (4)",
        "computes 2.118 MFLOP: forward 1.057 M, backward 1.061 M",
        "sends 64.5 KiB: part of all_reduce{rows} 64.5 KiB",
        "stores 16 KiB",
        "all_reduce{rows} of 64 KiB, backward: `batch: rows`, as line 21 sums over batch",
    ):
        assert part in text
    text = hover(editor, two_layer, "  ", "y = einsum")
    assert "`y`: `f32[batch{rows}, io] +{cols}`" in text
    assert "a sum over `cols` is pending" in text
    assert "all_reduce{cols} of 16 KiB, forward: `hidden: cols`, as line 22 sums over hidden" in text


def test_a_command_switches_the_layout(editor: Editor, two_layer: str) -> None:
    assert "under layout `hybrid`" in hover(editor, two_layer, "param ", "w:")
    assert editor.command("mtfc.setLayout", two_layer, "model_parallel", "two_layer") is True
    text = hover(editor, two_layer, "param ", "w:")
    assert "under layout `model_parallel`" in text
    assert "`f32[io, hidden{all}]`; one device has 128 x 64, 32 KiB" in text
    (model,) = editor.command("mtfc.layouts", two_layer)
    assert (model["model"], model["chosen"]) == ("two_layer", "model_parallel")
    assert model["layouts"] == ["replicated", "data_parallel", "model_parallel", "hybrid", "tiled_3d"]
    assert editor.command("mtfc.setLayout", two_layer, "no_such") is False


def test_the_server_asks_for_new_requests_after_changes_alone(editor: Editor, two_layer: str) -> None:
    """An editor answers each refresh with requests: if these led to a refresh, there would be no end."""

    def quiet() -> int:
        """Ask until a round leads to no refresh; those of earlier tests may still come."""
        before, until = -1, time.monotonic() + 30
        while before != editor.refreshes:
            assert time.monotonic() < until, "requests lead to refreshes"
            before = editor.refreshes
            settled(editor, two_layer)
            editor.ask(lsp.TEXT_DOCUMENT_INLAY_HINT, two_layer, range=WHOLE)
            time.sleep(0.3)
        return before

    before = quiet()
    assert editor.command("mtfc.setLayout", two_layer, "model_parallel") is True
    until = time.monotonic() + 30
    while editor.refreshes == before:
        assert time.monotonic() < until
        time.sleep(0.02)
    quiet()


def test_hover_on_other_names(editor: Editor, two_layer: str) -> None:
    settled(editor, two_layer)
    text = hover(editor, two_layer, "dim hid", "den")
    assert "size 512; under layout `hybrid`" in text
    assert "split over `cols`: 128 on each device" in text
    assert "fn" not in hover(editor, two_layer, "optimizer = s", "gd")
    assert "Stochastic gradient descent." in hover(editor, two_layer, "optimizer = s", "gd")
    assert "relu(x)" in hover(editor, two_layer, "h = re", "lu")
    assert "4 bytes" in hover(editor, two_layer, "(x: f", "32")
    assert hover(editor, two_layer, "dim io     ", "=") == ""


def test_hover_in_a_function_shows_every_call(editor: Editor) -> None:
    uri = "untitled:calls"
    text = (
        "dim a = 4\ndim b = 8\nmesh m = [rows: 2]\nlayout l on m = { a: rows }\n"
        "fn twice[d](x: [d]) -> [d] {\n  both = x * 2\n  return both + 1\n}\n"
        "model net(x: [a], y: [b]) {\n  u = twice(x)\n  v = twice(y)\n  return u, v\n}\n"
    )
    assert editor.open(uri, text) == []
    settled(editor, uri)
    shown = hover(editor, uri, "  bo", "th =")
    assert "`twice.both`: `f32[a{rows}]`; one device has 2, 8 B; a over `rows` (2)" in shown
    assert "`twice_2.both`: `f32[b]`; one device has 8, 32 B; whole on each device" in shown
    assert "computes 10 FLOP" in shown


def test_hints_show_how_values_are_split(editor: Editor, two_layer: str) -> None:
    found = editor.ask(lsp.TEXT_DOCUMENT_INLAY_HINT, two_layer, range=WHOLE)
    shown = {(each.position.line + 1, each.position.character): each.label for each in found}
    assert shown == {
        (16, 17): "{batch: rows}",
        (16, 41): "{batch: rows}",
        (17, 9): "{hidden: cols}",
        (18, 12): "{hidden: cols}",
        (19, 9): "{hidden: cols}",
        (21, 3): "{batch: rows, hidden: cols}",
        (22, 3): "{batch: rows} +{cols}",
    }
    some = editor.ask(
        lsp.TEXT_DOCUMENT_INLAY_HINT, two_layer, range=lsp.Range(lsp.Position(20, 0), lsp.Position(20, 5))
    )
    assert [each.position.line for each in some] == [20]


def test_lines_above_models_and_layouts(editor: Editor, two_layer: str) -> None:
    """The figures are those of `mtfc cost` and `mtfc simulate`."""
    found = editor.ask(lsp.TEXT_DOCUMENT_CODE_LENS, two_layer)
    by_line = {each.range.start.line + 1: each.command.title for each in found}
    record = model_costs(str(TWO_LAYER), Choice(), Sources()).record()
    for i, layout in enumerate(record["layouts"]):
        sent = sum(each["bytes_per_device"] for each in layout["step"]["collectives"].values())
        memory = layout["memory_per_device"]["total"]
        seconds = simulate(str(TWO_LAYER), Choice(layout=layout["layout"]), "h100", Sources()).record()[
            "step_seconds"
        ]
        shown = by_line[10 + i]
        assert shown.startswith(
            f"sends {bytes_text(sent) if sent else 'nothing'}, {bytes_text(memory)} per device; "
        )
        assert seconds_text(seconds) in shown
        assert "best known" in shown
    model = by_line[16]
    flops = record["layouts"][3]["step"]["flops_per_device"] * 8
    assert model.startswith("131.6 k parameters; a training step under `hybrid`: ")
    assert f"{flops / 1e6:.4g} MFLOP" in model
    assert "on 8 x h100" in model


def test_target_of_the_settings(editor: Editor, two_layer: str) -> None:
    def time_of_step() -> str:
        found = editor.ask(lsp.TEXT_DOCUMENT_CODE_LENS, two_layer)
        return str(next(each.command.title for each in found if "parameters" in each.command.title))

    before = time_of_step()
    change = editor.client.workspace_did_change_configuration
    cases: list[tuple[Any, str]] = [
        ({"mtfc": {"target": "tpu_v2"}}, "tpu_v2"),
        ({}, "tpu_v2"),
        (None, "tpu_v2"),
        ({"mtfc": {"target": ""}}, "h100"),
    ]
    for settings, machine in cases:
        editor._run(lambda settings=settings: change(lsp.DidChangeConfigurationParams(settings)))
        assert f"8 x {machine}" in time_of_step()
    assert time_of_step() == before


def test_files_with_errors_have_no_figures(editor: Editor) -> None:
    """Hovers still show declarations, and hints come once the file is right."""
    text = TWO_LAYER.read_text("utf-8")
    uri = "untitled:wrong"
    editor.open(uri, text.replace("+ bias)", "+ bia)"))
    assert "param w" in hover(editor, uri, "param ", "w:")
    assert not editor.ask(lsp.TEXT_DOCUMENT_INLAY_HINT, uri, range=WHOLE)
    assert not editor.ask(lsp.TEXT_DOCUMENT_CODE_LENS, uri)
    editor.edit(uri, (None, text))
    assert editor.command("mtfc.setLayout", uri, "hybrid")
    assert editor.ask(lsp.TEXT_DOCUMENT_INLAY_HINT, uri, range=WHOLE)


def test_typing_does_not_wait_for_a_search(editor: Editor, two_layer: str) -> None:
    """Diagnostics come while a search runs in another process; its result is the best known afterwards."""

    async def both() -> tuple[float, float, object]:
        started = time.monotonic()
        search = asyncio.ensure_future(
            editor.client.workspace_execute_command_async(
                lsp.ExecuteCommandParams("mtfc.searchLayout", arguments=[two_layer, "two_layer", "grid"])
            )
        )
        await asyncio.sleep(0.05)
        completion = lsp.CompletionParams(lsp.TextDocumentIdentifier(two_layer), lsp.Position(20, 6))
        await editor.client.text_document_completion_async(completion)
        typed = time.monotonic() - started
        answer = await asyncio.wait_for(search, SECONDS)
        return typed, time.monotonic() - started, answer

    typed, searched, answer = editor.wait(both())
    assert typed < searched
    assert isinstance(answer, dict)
    assert answer["mesh"] == {"rows": 2, "cols": 4}
    titles = [each.command.title for each in editor.ask(lsp.TEXT_DOCUMENT_CODE_LENS, two_layer)]
    (replicated,) = (title for title in titles if "sends nothing" in title)
    best = min(answer["objective_seconds"], 1.0)
    assert seconds_text(best) in replicated or "best known" in replicated


class _Forever:
    """A worker that never answers. asked: the number of requests."""

    asked = 0

    async def ask(self, request: Request) -> object:
        self.asked += 1
        return await asyncio.Event().wait()

    def stop(self) -> None: ...


def test_a_stopped_queue_computes_nothing_more() -> None:
    """The cases that wait are dropped, so that the server ends with the session."""

    async def session() -> int:
        queue, worker = FiguresQueue(), _Forever()
        queue.worker = worker  # type: ignore[assignment]
        queue.want("a.mtf", {}, None, [("m", "one"), ("m", "two")])
        await asyncio.sleep(0.01)
        queue.stop()
        assert queue._runner is not None
        await asyncio.wait({queue._runner}, timeout=1)
        assert queue._runner.cancelled()
        return worker.asked

    assert asyncio.run(session()) == 1


def test_report(editor: Editor, two_layer: str) -> None:
    text = editor.command("mtfc.costReport", two_layer)
    assert "two_layer, layout hybrid: one training step on each of 8 devices" in text
    assert "Bytes that each rule has a part in" in text
    assert "of the peak FLOP/s" in text
    assert editor.command("mtfc.costReport", "untitled:nothing") == "there is no file untitled:nothing"


# Completion

HEAD = """\
import nn
dim batch = 8
dim hidden = 4
mesh grid = [rows: 2, cols: 4]
mesh line = [all: 8]
fn scaled[d](x: [..., d], by = 2.0) -> [..., d] {
  return x * by
}
model net(x: [batch, hidden]) {
  h = x * 2
  return h
}
"""


@pytest.mark.parametrize(
    ("text", "there", "absent"),
    [
        ("import n|", ["nn", "losses", "transformer"], ["batch"]),
        ("dim d = ba|", ["batch", "hidden"], ["grid", "h"]),
        ("mesh m = [a: |", ["batch"], ["rows"]),
        ("layout l on |", ["grid", "line"], ["batch"]),
        ("layout l for |", ["net"], ["grid"]),
        ("layout l on grid = { ba|", ["batch", "hidden", "params", "optimizer", "value", "allow"], ["rows"]),
        ("layout l on grid = { batch: |", ["rows", "cols"], ["all", "batch"]),
        ("layout l on grid = { batch: (rows, |", ["rows", "cols"], ["all", "batch"]),
        ("layout l on line = { batch: all, params: { hidden: |", ["all"], ["rows"]),
        ("layout l on line = { batch: all, params: { |", ["hidden"], ["allow"]),
        ("layout l on line = { batch: all, forms: { |", ["regions", "dots"], ["batch", "params"]),
        ("layout l on line = { batch: all, forms: { regions: |", ["time", "memory"], ["all"]),
        ("layout l on line = { allow |", ["W601", "W602"], ["batch"]),
        ("train |", ["net"], ["batch"]),
        ("train net {\n  |", ["minimize", "optimizer", "precision", "clip", "report", "frozen"], ["batch"]),
        ("train net {\n  minimize |", ["h"], ["x", "minimize"]),
        ("train net {\n  report |", ["h", "grad_norm", "learning_rate"], ["x"]),
        ("train net {\n  optimizer = a|", ["adam", "sgd", "adafactor"], ["batch", "relu"]),
        ("train net {\n  optimizer = adam(|", ["learning_rate =", "step"], ["minimize"]),
        ("train net {\n  precision = { |", ["params", "compute", "reduce", "loss_scale"], ["f32"]),
        ("train net {\n  precision = { compute: |", ["bf16", "f32"], ["compute"]),
        ("model m(x: |", ["f32", "bf16", "i32"], ["batch"]),
        ("model m(x: f32[|", ["batch", "hidden"], ["f32", "rows"]),
        ("model m(x: [batch]) {\n  y = re|", ["relu", "x", "nn.dense", "scaled", "batch", "training"], ["step", "grid"]),
        ("model m(x: [batch]) {\n  y = nn.|", ["nn.dense", "nn.layer_norm"], ["relu"]),
        ("model m(x: [batch]) {\n  y = random.|", ["random.normal", "random.bernoulli"], ["relu"]),
        ("model m(x: [batch]) {\n  y = nn.dense[|", ["d_in =", "d_out ="], ["relu"]),
        ("model m(x: [batch]) {\n  y = nn.dense[d_out = |", ["hidden"], ["relu", "d_out ="]),
        ("model m(x: [batch]) {\n  y = scaled(x, |", ["by =", "x"], []),
        ("model m(x: [batch]) {\n  y = scaled(by = 3.0, |", ["x =", "x"], ["by ="]),
        ("model m(x: [batch]) {\n  y = sum(x, |", ["over ="], []),
        ("model m(x: [batch]) {\n  y = sum(x, over = |", ["batch"], []),
        ("model m(x: [batch]) {\n  param w: [hidden] = |", ["normal", "zeros", "uniform"], ["x"]),
        ("model m(x: [batch]) {\n  |", ["param", "repeat", "scan", "return"], ["import"]),
        ("model m(x: [batch]) {\n  repeat |", ["batch"], ["x"]),
        ("fn f[d](x: [d]) -> [|", ["d", "batch"], ["f32"]),
        ("|", ["model", "layout", "mesh", "train", "fn", "import"], ["batch"]),
        ("hardware box = { device: { |", ["flops", "memory", "bandwidth"], ["batch"]),
        ("hardware box = { link nvlink: { kind: |", ["switch", "ring", "torus"], ["batch"]),
        ("# batch |", [], ["batch"]),
    ],
)  # fmt: skip
def test_completion(editor: Editor, text: str, there: list[str], absent: list[str]) -> None:
    uri = "untitled:completion"
    before, after = text.split("|")
    editor.open(uri, HEAD + before + after)
    found = editor.ask_at(lsp.TEXT_DOCUMENT_COMPLETION, uri, HEAD + before)
    labels = {item.label for item in found.items}
    assert set(there) <= labels
    assert labels.isdisjoint(absent)
    assert len(labels) == len(found.items)


def test_completion_replaces_the_word(editor: Editor) -> None:
    """The edit covers the dotted name, so that no part of it is doubled; functions have their signatures."""
    uri = "untitled:word"
    text = HEAD + "model m(x: [batch]) {\n  # 😀\n  y = nn.den(x)\n  return y\n}\n"
    editor.open(uri, text)
    found = editor.ask_at(lsp.TEXT_DOCUMENT_COMPLETION, uri, "y = nn.den", "(x)")
    (dense,) = (item for item in found.items if item.label == "nn.dense")
    assert dense.detail == "nn.dense[d_in, d_out](x: [..., d_in]) -> [..., d_out]"
    assert "adds a bias" in dense.documentation.value
    assert editor.edited(uri, [dense.text_edit]) == text.replace("nn.den(", "nn.dense(")


@pytest.mark.parametrize(
    ("call", "label", "active"),
    [
        ("y = scaled(|", "scaled[d](x: [..., d], by = 2.0) -> [..., d]", 0),
        ("y = scaled(x, |", "scaled[d](x: [..., d], by = 2.0) -> [..., d]", 1),
        ("y = scaled(by = |", "scaled[d](x: [..., d], by = 2.0) -> [..., d]", 1),
        ("y = scaled(relu(x), (1 + 2), |", "scaled[d](x: [..., d], by = 2.0) -> [..., d]", None),
        ("y = nn.dense[d_in = batch, |", "nn.dense[d_in, d_out](x: [..., d_in]) -> [..., d_out]", 1),
        ("y = where(x > 0,\n    |", "where(condition, x, y)", 1),
        ("param w: [batch] = normal(0.0, |", "normal(mean = 0.0, stddev = 1.0)", 1),
    ],
)
def test_signature_help(editor: Editor, call: str, label: str, active: int | None) -> None:
    uri = "untitled:signature"
    before = HEAD + "model m(x: [batch]) {\n  " + call.rstrip("|")
    editor.open(uri, before)
    found = editor.ask_at(lsp.TEXT_DOCUMENT_SIGNATURE_HELP, uri, before)
    (signature,) = found.signatures
    assert (signature.label, signature.active_parameter) == (label, active)
    assert all(parameter.label in label for parameter in signature.parameters)


def test_signatures_of_optimizers(editor: Editor) -> None:
    uri = "untitled:optimizer"
    editor.open(uri, HEAD + "train net { optimizer = adafactor(")
    found = editor.ask(lsp.TEXT_DOCUMENT_SIGNATURE_HELP, uri, position=editor.texts[uri].whole().end)
    assert len(found.signatures) > 1
    assert {each.label.partition("(")[0] for each in found.signatures} == {"adafactor"}


# The whole file


def test_symbols(editor: Editor, two_layer: str) -> None:
    found = editor.ask(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL, two_layer)
    shown = [(each.detail, each.name, [child.name for child in each.children]) for each in found]
    assert shown[0] == ("dim", "batch", [])
    assert ("mesh", "cube", ["rows", "cols", "planes"]) in shown
    assert shown[-2:] == [
        ("model", "two_layer", ["x", "target", "w", "bias", "v"]),
        ("train", "two_layer", []),
    ]


def test_folding(editor: Editor) -> None:
    uri = "untitled:folds"
    editor.open(
        uri, "# a\n# b\nimport nn\nimport losses\nmodel m(x: []) {\n  y = (\n    x\n  )\n  return y\n}\n"
    )
    found = editor.ask(lsp.TEXT_DOCUMENT_FOLDING_RANGE, uri)
    assert {(each.start_line, each.end_line, each.kind) for each in found} == {
        (0, 1, lsp.FoldingRangeKind.Comment),
        (2, 3, lsp.FoldingRangeKind.Imports),
        (4, 8, None),
        (5, 6, None),
    }


def test_semantic_tokens(editor: Editor) -> None:
    uri = "untitled:tokens"
    text = HEAD + 'layout l on grid = { batch: rows } # 😀\ntrain net { minimize h; frozen "😀" } # é\n'
    editor.open(uri, text)
    data = editor.ask(lsp.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, uri).data
    kinds: dict[tuple[int, str], str] = {}
    line = column = 0
    for lines, columns, length, kind, _ in zip(*[iter(data)] * 5, strict=True):
        line, column = line + lines, columns + (0 if lines else column)
        begin = lsp.Position(line, column)
        start, end = (
            editor.texts[uri].offset(begin),
            editor.texts[uri].offset(lsp.Position(line, column + length)),
        )
        kinds[line + 1, text[start:end]] = LEGEND.token_types[kind]
    assert kinds[2, "dim"] == "keyword"
    assert kinds[4, "rows"] == kinds[13, "rows"] == "enumMember"
    assert kinds[6, "scaled"] == "function"
    assert kinds[9, "x"] == "parameter"
    assert kinds[10, "h"] == kinds[14, "h"] == "variable"
    assert kinds[13, "batch"] == "typeParameter"
    assert kinds[14, '"😀"'] == "string"
    assert kinds[14, "# é"] == "comment"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_formatting_is_that_of_fmt(editor: Editor, end: str) -> None:
    uri = "untitled:format"
    text = end.join(["dim   a=4", "dim long_name = a  # 😀", "model m( x:[a] ){return x}"])
    editor.open(uri, text)
    options = lsp.FormattingOptions(2, True)
    edits = editor.ask(lsp.TEXT_DOCUMENT_FORMATTING, uri, options=options)
    formatted = editor.edited(uri, edits)
    assert formatted == format_source(text)
    editor.edit(uri, (None, formatted))
    assert not editor.ask(lsp.TEXT_DOCUMENT_FORMATTING, uri, options=options)
    editor.edit(uri, (None, "model ("))
    assert editor.ask(lsp.TEXT_DOCUMENT_FORMATTING, uri, options=options) is None


MODEL = (
    "dim batch = 6\ndim io = 4\nmesh grid = [rows: 4, cols: 2]\n"
    "model m(x: [batch, io], n: i32[batch, io]) {{\n{}  return y\n}}\n"
)


@pytest.mark.parametrize(
    ("text", "title", "changed", "to"),
    [
        (MODEL.format("  y = x + xx\n"), None, "xx", "x"),
        (MODEL.format("  y = relu(x)\n").replace("model m(x: [batch", "model m(x: [bathc"), None, "bathc", "batch"),
        (MODEL.format("  y = nn.softmax(x, io)\n"), "Add `import nn`", "dim batch", "import nn\ndim batch"),
        (MODEL.format("  y = x + n\n"), "Write `cast(n, f32)`", "+ n\n", "+ cast(n, f32)\n"),
        (MODEL.format("  w = einsum(x, x)\n  y = w\n").replace("x, x)", "x, cast(n, f32))"), None, None, None),
        (MODEL.format("  y = x\n") + "layout l on grid = { batch: rows }\n", "Pad `batch` to 8", "batch = 6", "batch = 8"),
        (MODEL.format("  z = x * 2\n  y = x\n"), "Remove the line", "  z = x * 2\n", ""),
        (MODEL.format("  z = x * 2\n  y = x\n"), "Allow W603 on this line", "x * 2\n", "x * 2  # allow W603\n"),
        (MODEL.format("  y = x\n").replace("= 6", "= 8") + "layout l on grid = { io: row }\n", "Write `rows`", "io: row }",
         "io: rows }"),
        (
            MODEL.format("  param w: [io] = ones()\n  y = x * w\n  loss = mean(y)\n")
            + "train m {\n  minimize loss\n  optimizer = sgd(learning_rate = 0.1)\n}\n",
            "Return it too",
            "return y",
            "return y, loss",
        ),
        (MODEL.format("  y = x\n  y += 1.0\n"), "Write `y = y + 1.0`", "y += 1.0", "y = y + 1.0"),
        (MODEL.format("  y = x\n") + "layout l on grid = { parms: { batch: rows } }\n", "Write `params`", "parms", "params"),
        (MODEL.format("  y = sum(x)\n") + "train m {\n  minimize y\n  optimizer = sgd(lr = 0.3)\n}\n", "Write `learning_rate`",
         "lr =", "learning_rate ="),
        (MODEL.format("  y = exp(n)\n"), "Write `cast(n, f32)`", "(n)", "(cast(n, f32))"),
        (
            MODEL.format("  y = x\n").replace("= 6", "= 8").replace(", cols: 2", "")
            + "layout l on grid = { batch: rows, io: rows }\n",
            "Remove the rule `io: rows`",
            ", io: rows",
            "",
        ),
        (
            MODEL.format("  y = x\n").replace("= 6", "= 8").replace(", cols: 2", "")
            + "layout l on grid = { batch: rows, io: rows }\n",
            "Remove the rule `batch: rows`",
            "batch: rows, ",
            "",
        ),
    ],
)  # fmt: skip
def test_quick_fixes(
    editor: Editor, text: str, title: str | None, changed: str | None, to: str | None
) -> None:
    """A fix removes its diagnostic; none is offered that does not."""
    uri = "untitled:fix"
    shown = editor.open(uri, text)
    assert shown
    context = lsp.CodeActionContext(diagnostics=shown)
    actions = editor.ask(lsp.TEXT_DOCUMENT_CODE_ACTION, uri, range=WHOLE, context=context)
    results = {each.title: editor.applied(each.edit)[uri] for each in actions}
    if changed is not None and to is not None:
        assert text.count(changed) == 1
        assert text.replace(changed, to) in results.values()
        assert title is None or results[title] == text.replace(changed, to)
    count = sum(each.severity == lsp.DiagnosticSeverity.Error for each in shown)
    for result in results.values():
        now = editor.edit(uri, (None, result))
        assert sum(each.severity == lsp.DiagnosticSeverity.Error for each in now) <= count
        assert len(now) < len(shown) or count


def test_a_dimension_is_renamed_where_a_model_computes(editor: Editor) -> None:
    """Parameters keep their dimension; what is computed from them has the new one."""
    uri = "untitled:rename"
    text = TWO_LAYER.read_text("utf-8") + "layout both on line = { batch: all, hidden: all }\n"
    shown = editor.open(uri, text)
    actions = editor.ask(
        lsp.TEXT_DOCUMENT_CODE_ACTION, uri, range=WHOLE, context=lsp.CodeActionContext(diagnostics=shown)
    )
    (fix,) = (each for each in actions if each.title.startswith("Rename `hidden`"))
    result = editor.applied(fix.edit)[uri]
    for part in (
        "dim hidden_whole = hidden\n",
        "param w:    f32[io, hidden] =",
        "h = relu(einsum(x, rename(w, hidden -> hidden_whole) -> [batch, hidden_whole])",
        "+ rename(bias, hidden -> hidden_whole))",
    ):
        assert part in result
    assert all(each.severity == lsp.DiagnosticSeverity.Warning for each in editor.edit(uri, (None, result)))


def test_fixes_declare_only_what_they_use(editor: Editor) -> None:
    """Words of a help's prose are no fixes, and what another remedy declares is left out."""
    uri = "untitled:stored"
    text = (ROOT / "tests/diagnostics/E301_stored.test").read_text("utf-8").partition("\n---\n")[0] + "\n"
    shown = editor.open(uri, text)
    actions = editor.ask(
        lsp.TEXT_DOCUMENT_CODE_ACTION, uri, range=WHOLE, context=lsp.CodeActionContext(diagnostics=shown)
    )
    titles = [each.title for each in actions]
    assert "Write `hidden: cols`" in titles
    assert not any("hidden_whole" in title or title == "Write `cols`" for title in titles)


def test_a_layout_that_wastes_work_gets_a_faster_rule(editor: Editor) -> None:
    uri = "untitled:waste"
    text = (ROOT / "tests/diagnostics/W601_duplicated_work.test").read_text("utf-8").partition("\n---\n")[
        0
    ] + "\n"
    shown = editor.open(uri, text)
    context = lsp.CodeActionContext(diagnostics=shown)
    actions = editor.ask(lsp.TEXT_DOCUMENT_CODE_ACTION, uri, range=WHOLE, context=context)
    titles = {each.title for each in actions}
    assert {"Write `batch: (rows, cols)`", "Add `hidden: cols`", "Add `batch: all`"} <= titles
    for each in actions:
        if each.title == "Allow W601 in this layout":
            assert len(editor.edit(uri, (None, editor.applied(each.edit)[uri]))) < len(shown)


def test_highlights(editor: Editor, two_layer: str) -> None:
    found = editor.ask(
        lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT,
        two_layer,
        position=editor.position(two_layer, "  ", "y = einsum"),
    )
    assert [each.range.start.line + 1 for each in found] == [22, 23, 24]
    assert all(a.range.start.line <= b.range.start.line for a, b in pairwise(found))


def test_changed_files_are_read_again(editor: Editor, tmp_path: Path) -> None:
    module, main = tmp_path / "sizes.mtf", tmp_path / "main.mtf"
    text = "import sizes\nmodel m(x: [sizes.d]) {\n  return x\n}\n"
    assert {each.code for each in editor.open(main.as_uri(), text)} == {"E119"}
    module.write_text("dim d = 4\n", "utf-8")
    editor.shown.pop(main.as_uri())
    event = lsp.FileEvent(module.as_uri(), lsp.FileChangeType.Created)
    editor._run(
        lambda: editor.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([event]))
    )
    assert editor.diagnostics(main.as_uri()) == []
    (wish,) = editor.registered  # an editor tells of such changes if it is asked to
    assert wish.method == lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES
