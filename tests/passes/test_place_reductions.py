"""Complete pending sums cheaply: the order of factors changes no bytes, and no other choice sends fewer."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import attrs
import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Equation, Program, Value, walk
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.collectives import KIND_OF, axes_of, collective_of
from mtfc.compiler.ir.sharding_rules import OperandGroup, own_axes, passing_groups
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.passes.cse import Cse
from mtfc.compiler.passes.dce import Dce
from mtfc.compiler.passes.partition.insert_reshards import InsertReshards
from mtfc.compiler.passes.partition.lower_collectives import LowerCollectives
from mtfc.compiler.passes.partition.place_reductions import with_types
from mtfc.compiler.passes.pipelines import parse_pipeline, run
from tests.generators.factors import Products, products
from tests.harness import chosen_layout, communication, exact_data, load, stages
from tests.properties.campaign import holds_for

Passing = Mapping[Value, OperandGroup]
"""Pending values -> the operands that the sum passes along, or () for a value that its own equation leaves pending."""

FACTORS = """
dim batch = 64
dim io = 128
dim hid = 256
mesh line = [all: 8]
layout dp on line = {{ batch: all }}
model m(a: [batch, io], b: [batch, hid]) {{
  s = mean(square(a))
  y = einsum(a, b -> [io, hid])
  t = sum({product}, over = hid)
  return t
}}
"""


@pytest.mark.parametrize(
    "factors", ["s * y", "y * s", "einsum(s, y -> [io, hid])", "einsum(y, s -> [io, hid])"]
)
def test_the_small_factor_is_completed_and_the_large_one_passes(factors: str) -> None:
    sent = communication(FACTORS.format(product=factors))
    assert sorted(sent) == [("all_reduce", ("all",), 1), ("all_reduce", ("all",), 128)]


DOTS = """
dim batch = 8
dim d_model = 64
dim query = 2
dim memory = 256
mesh line = [all: 4]
layout tp on line = {{ d_model: all }}
model m(x: [batch, query, d_model], y: [batch, memory, d_model]) {{
  param wq: [d_model, batch] = normal(stddev = 0.1)
  q = einsum(x, wq -> [batch, query])
  k = einsum(y, wq -> [batch, memory])
  p = exp(einsum({factors} -> [query, memory]))
  return p
}}
"""


@pytest.mark.parametrize("factors", ["q, k", "k, q"])
def test_a_dot_of_two_pending_sums_completes_the_cheaper_pair(factors: str) -> None:
    """Completing q and the dot, 16 and 512 elements, beats completing k, 2,048 elements, and the dot, or both."""
    sent = communication(DOTS.format(factors=factors))
    assert sorted(sent) == [("all_reduce", ("all",), 16), ("all_reduce", ("all",), 512)]


PARTED = """
dim batch = 8; dim p = 4; dim q = 6
mesh line = [all: 2]
layout main on line = { batch: all, value halves: { q: all } }
model m(a: [batch, p], b: [batch, q]) {
  y = einsum(a, b -> [p, q])
  s = sum(b, over = batch)
  halves = exp(y)
  t = einsum(s, y -> [p])
  return halves, t
}
"""


def test_a_sum_that_passes_on_is_still_scattered_for_a_use_that_wants_a_part() -> None:
    """The sum of y passes to t, and `halves` needs only a part of y on each processor."""
    assert sorted(communication(PARTED)) == [
        ("all_reduce", ("all",), 4),
        ("all_reduce", ("all",), 6),
        ("reduce_scatter", ("all",), 24),
    ]


LOOP = """
dim batch = 8; dim p = 4; dim q = 6; dim steps = 3
mesh line = [all: 2]
layout main on line = {{ batch: all }}
model m(a: [steps, batch, p], b: [steps, batch, q]) {{
  total = zeros([p])
  scan a_t = a, b_t = b along steps {{
    s = sum(b_t, over = batch)
    y = einsum(a_t, b_t -> [p, q])
    total = total + einsum({factors} -> [p])
  }}
  return total
}}
"""


@pytest.mark.parametrize("factors", ["s, y", "y, s"])
def test_a_loop_completes_the_small_factor_and_carries_the_sum(factors: str) -> None:
    assert sorted(communication(LOOP.format(factors=factors))) == [
        ("all_reduce", ("all",), 4),
        ("all_reduce", ("all",), 6),
    ]


def test_many_choices_take_few_cuts() -> None:
    """A product of 25 pending sums has 24 open choices. The large sum passes through all, and the scalars are completed."""
    names = [f"s{n}" for n in range(24)]
    lines = [f"{name} = sum(square(a) * {n}.0)" for n, name in enumerate(names, 2)]
    lines += [f"y{n + 1} = {name} * y{n}" for n, name in enumerate(names)]
    sent = communication(
        "dim batch = 8; dim p = 4; dim q = 6\nmesh line = [all: 2]\nlayout main on line = { batch: all }\n"
        "model m(a: [batch, p], b: [batch, q]) {\ny0 = einsum(a, b -> [p, q])\n"
        + "\n".join(lines)
        + "\nt = sum(y24)\nreturn t\n}\n"
    )
    assert sum(elements for _, _, elements in sent) == 25


STACK = """
dim batch = 16; dim io = 4; dim hidden = 8; dim layers = 3
mesh grid = [data: 4, model: 2]
layout data on grid = { batch: data }
layout both on grid = { batch: data, hidden: model }
layout parts on grid = { batch: data, optimizer: { io: data } }
model stack(x: [batch, io]) {
  repeat layers {
    param w: [io, hidden] = normal(stddev = 0.5)
    param b: [hidden] = normal(stddev = 0.5)
    x = x * sum(square(einsum(x, w -> [batch, hidden]) + b), over = hidden)
  }
  loss = sum(x)
  return loss
}
train stack { minimize loss; optimizer = adam(learning_rate = 0.1) }
"""


def _stack(layout: str, in_loops: int) -> Program:
    module = load(STACK)
    chosen = chosen_layout(module, layout)
    program = attrs.evolve(module.programs[0], mesh=chosen.mesh, layout=chosen.layout)
    return run(program, parse_pipeline(f"default{{place-reductions.in_loops={in_loops}}}"))


def _sent(body: Sequence[Equation], mesh: Mesh, times: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the runs of each collective that completes sums, and the bytes of one run."""
    for eqn in body:
        if eqn.regions:
            yield from _sent(region_of(eqn).body, mesh, times * dim_of(eqn).size)
        elif has_trait(eqn, "all_reduce", "reduce_scatter"):
            yield times, sum(value.type.local_bytes(mesh) for value in eqn.operands)


@pytest.mark.parametrize("layout", ["data", "both", "parts"])
def test_large_gradients_of_a_loop_are_completed_in_its_body(layout: str) -> None:
    """A weight's gradient has 128 bytes, or 64 on a processor of `both`, and a bias's 32 or 16."""
    after, large, every = (_stack(layout, least) for least in (0, 64, 1))
    sent = [list(_sent(each.function("step").body, each.placed_on)) for each in (after, large, every)]
    assert len({sum(times * size for times, size in each) for each in sent}) == 1
    inside = [sum(times * size for times, size in each if times > 1) for each in sent]
    assert inside == {"data": [0, 384, 480], "both": [96, 288, 336], "parts": [384, 384, 480]}[layout]
    arrays = exact_data(after.function("step"), seed=2)
    expected = interpret(after.function("step"), after, arrays)
    for each in (large, every):
        actual = interpret(each.function("step"), each, arrays)
        assert all(np.array_equal(actual[name], right) for name, right in expected.items())


def _collectives(program: Program) -> list[tuple[str, int]]:
    mesh = program.placed_on
    return sorted(
        (KIND_OF[eqn.op], sum(value.type.local_bytes(mesh) for value in eqn.operands))
        for eqn in walk(program.function("forward").body)
        if eqn.op in KIND_OF
    )


def _lowered(case: Products, turned: bool) -> list[tuple[str, Program]]:
    module = load(case.source(turned))
    return stages(module.programs[0], module.layouts[0], "gradients")


@holds_for(products(), examples=40)
def test_the_order_of_factors_does_not_matter(case: Products) -> None:
    """Compare before collectives are combined: which of them run together depends on the order of equations."""
    one, other = (dict(_lowered(case, turned))["lower-collectives"] for turned in (False, True))
    assert _collectives(one) == _collectives(other), case.source()


MOST_CHOICES = 2000


def _choices(body: Sequence[Equation], kept: Passing, axis: str) -> Iterator[Passing]:
    """Yield every legal choice of the results that stay pending, with the operands that the sum passes along."""
    if not body:
        yield {value: group for value, group in kept.items() if group}
        return
    eqn, *rest = body
    opdef = OPS[eqn.op]
    if axis in own_axes(opdef.layout_rule(eqn), eqn):
        yield from _choices(rest, {**kept, eqn.result: ()}, axis)
        return
    yield from _choices(rest, kept, axis)
    for group in passing_groups(opdef, eqn, axis, kept.__contains__):
        yield from _choices(rest, {**kept, eqn.result: group}, axis)


def _bytes(program: Program) -> float:
    """Return the bytes that a processor sends in `forward`."""
    mesh = program.placed_on
    found = 0.0
    for eqn in program.function("forward").body:
        if eqn.op in KIND_OF:
            sending = collective_of(eqn).sending
            assert sending is not None
            share = float(sending.ring_bytes(mesh.size(axes_of(eqn))))
            found += share * sum(value.type.local_bytes(mesh) for value in eqn.operands)
    return found


def _completed(program: Program, passing: Passing) -> Program:
    """Return the lowered program in which these sums stay pending."""
    passed = {value: {"all": group} for value, group in passing.items()}
    mesh = program.placed_on
    placed = program.map_functions(lambda function: with_types(function, mesh, passed))
    return run(placed, (InsertReshards(), Cse(), Dce(), LowerCollectives()), level="placed")


@holds_for(products(most=6), examples=40)
def test_no_other_choice_sends_fewer_bytes(case: Products) -> None:
    staged = dict(_lowered(case, turned=False))
    program = staged["propagate-layouts"]
    program = attrs.evolve(program, functions=(program.function("forward"),))
    at_once = program.map_functions(lambda function: with_types(function, program.placed_on, {}))
    choices = _choices(at_once.function("forward").body, {}, "all")
    fewest = min(_bytes(_completed(at_once, each)) for each in islice(choices, MOST_CHOICES))
    assert _bytes(staged["lower-collectives"]) <= fewest, case.source()
