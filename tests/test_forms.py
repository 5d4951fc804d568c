"""The forms of a layout reach every command, and searches choose them by price."""

import json
from math import inf
from pathlib import Path
from typing import Any

import attrs
import pytest

from mtfc import ir
from mtfc.backends.jax.backend import generate
from mtfc.compiler.cost.effects.memory import memory_moments
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.step_time import step_time
from mtfc.compiler.cost.volumes import layout_cost, total
from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.loops import unroll_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.parser import ReadError, read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.types import GROUPS, Forms, Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.passes.unroll_loops import largest_divisor
from mtfc.compiler.search import forms_search
from mtfc.compiler.search.forms_search import forms_of, with_loop_forms
from mtfc.compiler.search.found import Found, Price
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import SearchOptions
from mtfc.driver.searching.search import search
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.frontend.layouts.layout_text import layout_text
from mtfc.reports.search_report import LayoutSearchResult
from tests.harness import FINE, agree, exact_data, load
from tests.jax_gradients import gradients_by_jax

FORMS = "forms: { regions: time, dots: joined, flops_per_byte: 300 }"

MODEL = """
import nn
import transformer
dim batch = 4; dim length = 2048; dim memory = 2048; dim vocab = 4096; dim d_model = 1024
dim heads = 16; dim d_k = 64; dim d_ff = 4096; dim layers = 4
mesh grid = [rows: 4, cols: 4]
layout plain on grid = { batch: rows, vocab: cols, d_ff: cols, heads: cols }
layout formed on grid = { batch: rows, vocab: cols, d_ff: cols, heads: cols, FORMS }
model lm(tokens: i32[batch, length]) {
  x = nn.embedding[vocab = vocab, d_model = d_model](tokens)
  repeat layers {
    x = transformer.decoder_layer[memory = memory, heads = heads, d_k = d_k, d_ff = d_ff](x)
  }
  loss = mean(square(nn.dense_no_bias[d_out = vocab](nn.layer_norm(x))))
  return loss
}
train lm { minimize loss; optimizer = sgd(learning_rate = 0.1) }
""".replace("FORMS", FORMS)


def test_a_layout_says_its_forms_in_all_its_texts() -> None:
    module = load(MODEL)
    layout, (program,) = module.layouts[1].layout, module.programs
    assert layout.forms == Forms("time", 300)
    assert FORMS in layout_text(layout, module.layouts[1].mesh)
    placed = attrs.evolve(program, mesh=module.layouts[1].mesh, layout=layout)
    read = read_program(print_program(placed))
    assert read.layout == layout
    entries = {"regions": "time", "dots": "joined", "flops_per_byte": 300}
    assert ir.layout({"batch": "rows", "forms": entries}).forms == layout.forms


@pytest.mark.parametrize(
    "wrong",
    [
        {"regions": "fast"},
        {"flops_per_byte": 3},
        {"dots": "joined", "flops_per_byte": True},
        {"region": "time"},
    ],
)
def test_wrong_forms_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ir.layout({"forms": wrong})
    text = ", ".join(f"{key}: {value}" for key, value in wrong.items())
    with pytest.raises(ReadError, match="forms"):
        read_program(f"program p\nlayout l = {{forms: {{{text}}}}}\n")


def test_every_lowering_follows_the_forms() -> None:
    module = load(MODEL)
    (program,) = module.programs
    plain, formed = (lower(program, each.mesh, each.layout) for each in module.layouts)
    found = total(layout_cost(formed).step).collectives
    assert set(total(layout_cost(plain).step).collectives) == {"all_reduce"}
    assert {"all_gather", "reduce_scatter"} <= set(found)

    def dots(which: Any) -> int:
        return sum(has_trait(eqn, "dot") for eqn in walk(which.function("step").body))

    assert dots(formed) < dots(plain)


def test_a_search_finds_writes_and_explains_forms(tmp_path: Path) -> None:
    file = tmp_path / "lm.mtf"
    file.write_text(MODEL)
    found = search(
        SearchOptions(
            str(file), Choice(mesh="grid"), "tpu_v2", space="rules", objective="serial", budget=20.0
        ),
        Sources(),
    )
    assert isinstance(found.result, LayoutSearchResult)
    record = found.result.record()
    layout, plain = found.result.found.layout, found.result.found.without_forms
    assert plain is not None and not plain.layout.forms.entries and layout.forms.regions != "never"
    assert record["objective_seconds"] < 0.99 * plain.objective
    assert record["without_forms"]["optimal"] and not record["optimal"]
    assert 0 < record["lower_bound_seconds"] < record["objective_seconds"]
    assert "No layout with forms is below" in " ".join(found.result.report().split())
    written = load(found.written())
    assert written.layouts[0].layout.forms == layout.forms
    assert json.loads(json.dumps(record))["forms"] == layout.forms.entries


GROUPED = """
dim rows = 64
dim experts = 4
dim d = 16
dim f = 32
model net(x: [rows, d], numbers: i32[rows]) {
  param w: [experts, d, f] = normal(stddev = 0.1)
  y = grouped_dot(x, w, numbers, experts -> [rows, f])
  return y
}
"""


def test_forms_of_groups_are_tried_where_there_are_dots_of_groups() -> None:
    device = find_hardware("tpu_v2", {}).device
    (grouped, plain) = (load(text).programs[0].function("forward") for text in (GROUPED, MODEL))
    assert {forms.groups for forms in forms_of(device, grouped)} == set(GROUPS)
    assert {forms.groups for forms in forms_of(device, plain)} == {"cheaper"}


DEEP = """
dim batch = 16
dim io = 16
dim hidden = 32
dim layers = 6
mesh line = [data: 8]
layout plain on line = { batch: data, params: { io: data } }
layout formed on line = { batch: data, params: { io: data }, forms: { unroll: 4 } }
model net(x: [batch, io]) {
  repeat layers {
    param w: [io, hidden] = normal(stddev = 0.1)
    param v: [hidden, io] = normal(stddev = 0.1)
    x = einsum(tanh(einsum(x, w -> [batch, hidden])), v -> [batch, io])
  }
  loss = mean(square(x))
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


@pytest.mark.parametrize(
    ("trips", "most", "copies"),
    [(6, 4, 3), (6, 1, 1), (7, 4, 1), (4, 4, 2), (4, 3, 2), (1, 9, 1), (2, 2, 1), (12, 9, 6)],
)
def test_a_loop_runs_the_largest_divisor_that_leaves_two_iterations(
    trips: int, most: int, copies: int
) -> None:
    assert largest_divisor(trips, most) == copies


def test_unrolled_loops_keep_costs_and_hide_collectives() -> None:
    module = load(DEEP)
    plain, formed = (lower(module.programs[0], each.mesh, each.layout) for each in module.layouts)
    assert [unroll_of(eqn) for eqn in formed.function("step").body if eqn.regions] == [3, 3]
    one, other = (layout_cost(each) for each in (plain, formed))
    assert total(one.step) == total(other.step)
    peaks = [each.memory.activations_peak for each in (one, other)]
    assert peaks[0] < peaks[1] < 3 * peaks[0]  # type: ignore[operator]
    moments = memory_moments(formed.function("step"), formed.placed_on, Numbers(formed.placed_on))
    rows = 2 * 16 * 4  # bytes of x
    assert max(int(each.peak) for each in moments) + rows == peaks[1]  # type: ignore[call-overload]
    machine = find_hardware("tpu_v2", {})
    before, after = (step_time(each.function("step"), each.placed_on, machine) for each in (plain, formed))
    assert after.total.compute == pytest.approx(before.total.compute)
    assert after.total.communication == pytest.approx(before.total.communication)
    assert after.total.exposed < before.total.exposed
    assert "unroll=3" in print_program(read_program(print_program(formed)))


def test_jax_differentiates_an_unrolled_forward() -> None:
    module = load(DEEP)
    plain, formed = (
        lower(module.programs[0], each.mesh, each.layout, "gradients") for each in module.layouts
    )
    assert "unrolled_scan(" in generate(formed)
    arrays = exact_data(plain.function("gradients"), seed=1)
    ours, theirs = (gradients_by_jax(each, arrays) for each in (formed, plain))
    FINE.check(ours, theirs, "jax.grad of forward")


@pytest.mark.parametrize(
    ("steps", "memory", "objective", "number"),
    [
        ((10.0, 9.0, 8.0), 100, "serial", 4),
        ((10.0, 9.0, 8.95), 100, "serial", 2),
        ((10.0, 9.95, 5.0), 100, "serial", 1),
        ((10.0, 9.0, 8.0), 2, "serial", 2),
        ((10.0, 9.0, 8.0), 100, "time", 4),
    ],
)
def test_a_search_unrolls_loops_that_shorten_the_step_and_fit(
    steps: tuple[float, ...], memory: int, objective: Any, number: int
) -> None:
    def price(mesh: Any, layout: Layout) -> Price:
        unroll = layout.forms.unroll
        return Price(7.0, 1.0, unroll, unroll, 0, steps[(1, 2, 4).index(unroll)])

    plain = Found(Mesh("m", (("a", 2),)), Layout("found"), 8.0 if objective == "serial" else 10.0, 3.0, 1)
    found = with_loop_forms(plain, price, objective, memory)
    assert found.layout.forms.unroll == number
    if objective == "serial":
        assert (found.objective, found.lower_bound, found.without_forms) == (8.0, 3.0, None)
    else:
        assert (found.objective, found.lower_bound, found.without_forms) == (8.0, 0.0, plain)


def test_a_search_puts_sums_after_loops_that_wait_for_them() -> None:
    def price(mesh: Any, layout: Layout) -> Price:
        forms = layout.forms
        step = {("inside", 1): 10.0, ("after", 1): 9.0, ("after", 2): 8.0}.get(
            (forms.sums, forms.unroll), 8.0
        )
        return Price(7.0, 0.5 if forms.sums == "after" else 1.0, 1, 1, 0, step)

    plain = Found(Mesh("m", (("a", 2),)), Layout("found"), 8.0, 8.0, 1)
    found = with_loop_forms(plain, price, "serial", 100)
    assert found.layout.forms == Forms(unroll=2, sums="after")
    assert (found.objective, found.lower_bound, found.is_optimal) == (7.5, 7.5, True)


WIDE = """
dim batch = 16
dim io = 512
dim hidden = 512
dim layers = 2
mesh line = [data: 2]
layout plain on line = { batch: data }
layout formed on line = { batch: data, forms: { sums: after } }
layout spread on line = { batch: data, params: { io: data }, forms: { sums: after } }
model net(x: [batch, io]) {
  repeat layers {
    param w: [io, hidden] = normal(stddev = 0.1)
    param v: [hidden, io] = normal(stddev = 0.1)
    x = x + einsum(einsum(x, w -> [batch, hidden]), v -> [batch, io])
  }
  loss = mean(square(x))
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


def test_sums_after_loops_keep_results_and_bytes() -> None:
    module = load(WIDE)
    programs = [lower(module.programs[0], each.mesh, each.layout) for each in module.layouts]
    steps = [program.function("step") for program in programs]
    inside = [
        sum(eqn.op == "all_reduce" for loop in step.body for region in loop.regions for eqn in region.body)
        for step in steps
    ]
    assert inside == [1, 0, 0]  # of both parameters at once
    one, other, _ = (layout_cost(program) for program in programs)
    assert total(one.step).sent.wire_bytes == total(other.step).sent.wire_bytes
    agree(WIDE, jax=False)


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_forms_are_priced_while_there_is_time(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = Mesh("m", (("a", 2),))
    layouts = [Layout(name, Rules(((name, ("a",)),))) for name in ("found", "other")]
    prices = {(mesh, layout): Price(8.0 + i, 1.0, 1, 1, 0, 9.0) for i, layout in enumerate(layouts)}
    priced: list[Layout] = []

    def price(_: Any, layout: Layout) -> Price:
        priced.append(layout)
        return Price(8.0, 1.0, 1, 1, 0, 9.0)

    monkeypatch.setattr(forms_search, "process_time", lambda: float(len(priced)))
    forms = (Forms("time"), Forms("memory"))
    machine = find_hardware("tpu_v2", {})
    asked = forms_search.FormsSearch(price, "time", machine, forms, 0.5 + late, (), prices)
    found = asked.improved(Found(mesh, layouts[0], 9.0, 8.0, 2))
    assert found.ending == ("complete" if late == 3 else "time")
    assert [layout.name for layout in priced] == ["found", "found", "other", "other"][: 1 + late]
    priced.clear()
    monkeypatch.setattr(forms_search, "process_time", lambda: inf)
    assert asked.fitting() is not None, "an answer that comes late is better than none"
    assert [layout.name for layout in priced] == ["found", "found"]


def test_a_search_that_unrolls_loops_says_so(tmp_path: Path) -> None:
    file = tmp_path / "deep.mtf"
    text = DEEP.replace("batch = 16", "batch = 16384")
    file.write_text(text.replace("io = 16", "io = 4096").replace("hidden = 32", "hidden = 8192"))
    options = SearchOptions(str(file), Choice(mesh="line"), "tpu_v5p", objective="serial", budget=4.0)
    found = search(options, Sources())
    assert isinstance(found.result, LayoutSearchResult)
    assert found.result.found.layout.forms.unroll > 1 and found.result.found.without_forms is None
    assert "unroll: " in found.result.report()
    assert load(found.written()).layouts[0].layout.forms == found.result.found.layout.forms
