"""Provenance of collectives: every array that is sent has causes, and each cause is a rule of the layout."""

import re
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from mtfc.compiler.analysis.equation_names import layout_target_names, names_by_place
from mtfc.compiler.analysis.provenance import SentArray, sent_arrays
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.volumes import charges, grouped, total
from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.per_equation.per_equation_search import layout_of_choices
from mtfc.driver.loading.layout_targets import prepared
from tests.generators.programs import Generated, programs
from tests.harness import HasSource, functions, load, lowered
from tests.properties.campaign import holds_for
from tests.search.equation_networks import network_of

TRAINED = """\
model m(x: [a, b]) {
  param w: [b, c] = ones()
  y = einsum(x, w -> [a, c])
  loss = sum(square(y))
  return loss
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


@holds_for(programs())
def test_every_collective_has_a_cause(program: HasSource) -> None:
    module = load(program.source)
    (original,) = module.programs
    for of, name in functions(original):
        for layout in module.layouts:
            _check(lower(original, layout.mesh, layout.layout, of), name)


def _check(placed: Program, name: str) -> None:
    assert placed.mesh is not None and placed.layout is not None
    found = sent_arrays(placed.function(name), placed.mesh, placed.layout)
    costs = grouped(charges(placed.function(name), Numbers(placed.mesh)), lambda charge: charge.kind)
    for kind, group in costs.items():
        if kind is not None:
            assert sum(each.bytes for each in found if each.kind == kind) == total(group).sent.bytes
    for each in found:
        assert each.causes or each.kind in ("permute", "all_gather", "all_to_all"), each
        for cause in each.causes:
            assert set(cause.rule.axes) & set(each.axes), each


@settings(max_examples=10)
@given(programs(), st.integers(0, 2**16))
def test_every_array_sent_under_layouts_per_equation_has_a_rule_of_an_equation(
    generated: Generated, seed: int
) -> None:
    """The exception is a dimension that is split only between two placements, because no rule splits it."""
    (program,), mesh = load(generated.source).programs, generated.mesh
    network, random = network_of(program, mesh), Random(seed)
    layout = layout_of_choices(
        network, [random.randrange(len(node.options)) for node in network.nodes], "tiled"
    )
    placed = lower(program, mesh, layout)
    function = placed.function("step" if program.training else "forward")
    whole = prepared(program, mesh, layout)
    names = names_by_place(whole)
    spans = {
        name: thing.span for thing, name in layout_target_names(whole).items() if isinstance(thing, Equation)
    }
    for each in sent_arrays(function, mesh, layout, names):
        for cause in each.causes:
            on_the_way = cause.what.startswith("has") and not cause.rule.is_written
            name = cause.rule.section.removeprefix("value ")
            assert name in layout.value_rules or on_the_way, each
            elsewhere = cause.what.startswith(("wants", "stores"))  # the line of the use, or of the argument
            assert name not in spans or cause.span == spans[name] or elsewhere, each


def causes(source: str, of: str = "step") -> list[SentArray]:
    placed = lowered(source, of)
    assert placed.mesh is not None and placed.layout is not None
    return sent_arrays(placed.function(of), placed.mesh, placed.layout)


def shown(found: list[SentArray]) -> list[tuple[str, list[tuple[str, int | None, str]]]]:
    return [
        (each.kind, [(str(c.rule), c.span.line if c.span else None, c.what) for c in each.causes])
        for each in found
    ]


HEAD = "dim a = 8; dim b = 16; dim c = 4; dim d = 8\nmesh grid = [rows: 2, cols: 4]\n"


def test_a_sum_that_passes_on_is_traced_to_where_it_began() -> None:
    source = f"""{HEAD}layout main = {{ b: cols }}
model m(x: [a, b], y: [a, b], w: [b, c]) {{
  p = einsum(x, w -> [a, c])
  q = einsum(y, w -> [a, c])
  return exp(p + q)
}}
"""
    assert shown(
        causes(
            re.sub(r"exp\(p \+ q\)", "r", source).replace("return r", "r = exp(p + q)\n  return r"), "forward"
        )
    ) == [("all_reduce", [("b: cols", 5, "sums over b"), ("b: cols", 6, "sums over b")])]


def test_a_parameter_is_stored_in_another_placement_than_it_is_used_in() -> None:
    source = f"""{HEAD}layout main = {{ a: rows, params: {{ b: rows }}, optimizer: {{ b: rows }} }}
{TRAINED}"""
    found = shown(causes(source))
    assert ("all_gather", [("params: { b: rows }", 5, "stores b in parts")]) in found
    scatter = next(rules for kind, rules in found if kind == "reduce_scatter")
    assert ("a: rows", 6, "sums over a") in scatter
    assert any(rule.endswith("{ b: rows }") and what == "wants b in parts" for rule, _, what in scatter)


def test_a_dimension_that_is_renamed() -> None:
    source = f"""{HEAD}layout main = {{ a: rows }}
model m(x: [a, b]) {{
  y = x * 2.0
  z = rename(y, a -> d)
  return z
}}
"""
    (gather,) = causes(source, "forward")
    assert [str(cause.rule) for cause in gather.causes] == ["a: rows"]
    assert gather.kind == "all_gather"


def test_rules_of_equations_and_of_arguments() -> None:
    source = f"""{HEAD}layout main = {{
  value parameter.w: {{ c: cols }}
  value forward.y: {{ a: rows, b: cols }}
  value forward.loss: {{ a: rows }}
  value backward.einsum: {{ a: rows, c: cols }}
}}
{TRAINED}"""
    (program,), (declared, *_) = load(source).programs, load(source).layouts
    names = names_by_place(prepared(program, declared.mesh, declared.layout))
    placed = lower(program, declared.mesh, declared.layout)
    found = shown(sent_arrays(placed.function("step"), declared.mesh, declared.layout, names))
    assert found == [
        (
            "all_to_all",
            [
                ("value parameter.w: { c: cols }", 10, "stores c in parts"),
                ("value forward.y: { b: cols }", 11, "wants b in parts"),
            ],
        ),
        ("all_reduce", [("value forward.y: { b: cols }", 11, "sums over b")]),
        ("all_reduce", [("value forward.loss: { a: rows }", 12, "sums over a")]),
        ("all_reduce", [("value backward.einsum: { a: rows }", 11, "sums over a")]),
    ]
