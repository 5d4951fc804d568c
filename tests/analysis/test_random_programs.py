"""Costs of random programs under random layouts: formulas against numbers, the memory model against its definition."""

from collections.abc import Iterable, Sequence

import pytest

from mtfc.compiler.analysis.liveness import Buffer, buffers, donated, last_uses, unstored
from mtfc.compiler.cost.step_time import seconds_of
from mtfc.compiler.cost.symbolic import formula
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.cost.volumes import Charge, PlacedCost, grouped, layout_cost, total
from mtfc.compiler.ir.core import Function, Value
from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.passes.pipelines import lower
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.reports.cost_report import comparison, formulas, layout_json, layout_report
from mtfc.reports.difference import FIGURES, ComparedLayout, differences
from tests.generators.programs import Generated, programs
from tests.harness import FILE, load, lowered
from tests.properties.campaign import holds_for

MANY, FEW = holds_for(programs(), 20), holds_for(programs(), 9)


def by_kind_and_axes(charges: Iterable[Charge]) -> dict[object, list[Charge]]:
    return grouped(charges, lambda charge: (charge.kind, charge.axes, charge.span, charge.stage))


@MANY
def test_formulas_have_the_values_of_the_numbers(generated: Generated) -> None:
    program = lowered(generated.source)
    numbers, symbolic = layout_cost(program), formulas(program)
    for name, amount in symbolic.bytes.items():
        assert amount.evaluate(symbolic.values) == numbers.memory.parts()[name]
    for function in ("forward", "step"):
        exact = by_kind_and_axes(getattr(numbers, function))
        for key, charges in by_kind_and_axes(getattr(symbolic.cost, function)).items():
            found, expected = total(charges), total(exact[key])
            assert formula(found.flops).evaluate(symbolic.values) == expected.flops
            assert found.sent.count == expected.sent.count
            for name in ("elements", "bytes", "wire_bytes"):
                value = formula(getattr(found.sent, name)).evaluate(symbolic.values)
                assert value == getattr(expected.sent, name)


@MANY
def test_memory_is_what_its_definition_says(generated: Generated) -> None:
    """The peak lies between two sums: the values that live across an equation, and these plus the equation's operands and
    results.
    """
    program = lowered(generated.source)
    assert program.mesh is not None
    for function in program.functions:
        found = buffers(function, program.mesh)
        own = {value for eqn in function.body for value in eqn.results}
        check_sharing(function, [b for b in found if b.values[0] in own], program.mesh)
        held = [
            sum(size(b.values[0], program.mesh) for b in found if b.birth <= i <= b.death)
            for i in moments(function)
        ]
        across, around = bounds(function, program.mesh)
        assert all(low <= at <= high for low, at, high in zip(across, held, around, strict=True))


def moments(function: Function) -> range:
    return range(len(function.body) + 1)


def size(value: Value, mesh: Mesh) -> int:
    return value.type.local_bytes(mesh)


def check_sharing(function: Function, found: Sequence[Buffer], mesh: Mesh) -> None:
    """Each value outside of arguments has one buffer of its size, which no other value occupies until its last use."""
    last, birth = last_uses(function), {v: i for i, eqn in enumerate(function.body) for v in eqn.results}
    apart = donated(function, last)
    held = [value for buffer in found for value in buffer.values]
    assert len(held) == len(set(held))
    assert set(held) == birth.keys() - apart - unstored(function).keys()
    for buffer in found:
        assert len({size(value, mesh) for value in buffer.values}) == 1
        assert (buffer.birth, buffer.death) == (birth[buffer.values[0]], last[buffer.values[-1]])
        for before, after in zip(buffer.values, buffer.values[1:], strict=False):
            assert last[before] == birth[after]


def bounds(function: Function, mesh: Mesh) -> tuple[list[int], list[int]]:
    """For each equation the bytes of values that are made before and used after it, and of all that it sees.

    A loop's body sees its slices from the start; the loop needs as much again as the worst equation of its body.
    """
    last, birth = last_uses(function), {v: i for i, eqn in enumerate(function.body) for v in eqn.results}
    apart, without = donated(function, last), unstored(function)
    values = [(birth[v], last[v], size(v, mesh)) for v in birth if v not in apart and v not in without]
    slices = (a.value for a in function.arguments if a.role == "sliced")
    values += [(-1, last.get(v, 0), size(v, mesh)) for v in slices]
    across = [sum(n for first, end, n in values if first < i < end) for i in moments(function)]
    around = [sum(n for first, end, n in values if first <= i <= end) for i in moments(function)]
    for i, eqn in enumerate(function.body):
        for region in eqn.regions:
            least, most = bounds(region, mesh)
            across[i], around[i] = across[i] + max(least), around[i] + max(most)
    return across, around


@FEW
def test_parts_add_up(generated: Generated) -> None:
    cost = layout_cost(lowered(generated.source))
    parts = cost.memory.parts()
    assert parts.pop("total") == sum(parts.values())
    assert min(parts.values()) >= 0
    for key in (lambda c: c.stage, lambda c: c.span, lambda c: c.axes):
        groups = [total(group) for group in grouped(cost.step, key).values()]
        assert sum(group.flops for group in groups) == total(cost.step).flops
        assert sum(group.sent.bytes for group in groups) == total(cost.step).sent.bytes


@FEW
def test_reports_show_every_collective(generated: Generated) -> None:
    """Every cost belongs to a line of the file."""
    cost = layout_cost(lowered(generated.source))
    text = layout_report(cost, {FILE: generated.source})
    assert all(charge.span is not None and charge.span.inside(FILE).file == FILE for charge in cost.step)
    for charge in cost.step:
        assert charge.kind is None or f"{charge.kind}{{{', '.join(charge.axes)}}}" in text
    assert set(layout_json(cost)["step"]["collectives"]) == set(KINDS)
    assert "main" in comparison([cost])


@FEW
def test_lines_add_up_to_the_difference_of_layouts(generated: Generated) -> None:
    (program,) = load(generated.source).programs
    layouts = load(generated.source).layouts
    machine = find_hardware("p2_8xlarge", {})
    placed = [lower(program, each.mesh, each.layout) for each in (layouts[0], layouts[-1])]
    one, other = (ComparedLayout.of(each, machine, overlaps=False) for each in placed)
    lines = differences(one, other)
    for which, priced in enumerate((one, other)):
        sums = {name: sum(line.figures[name][which] for line in lines) for name in FIGURES}
        assert sums["FLOPs"] == total(priced.cost.step).flops
        assert sums["sent"] == total(priced.cost.step).sent.bytes
        assert sums["memory"] == priced.cost.memory.total
        step = placed[which].function("step" if priced.cost.trains else "forward")
        topology = Topology.of(priced.cost.mesh, machine)
        assert sums["time"] == pytest.approx(sum(seconds_of(step, topology, machine.device)))
    assert all(line.line[0] == FILE for line in lines)


CHAIN = """
dim batch = 1024
dim wide = 1024
dim narrow = 512
mesh grid = [rows: ROWS, cols: COLS]
layout main = { batch: rows, narrow: cols }
model chain(x_0: [batch, wide]) {
LAYERS
  loss = mean(square(x_DEPTH))
  return loss
}
train chain {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


def chain(depth: int, rows: int, cols: int) -> PlacedCost:
    layers = (
        f"  param w_{i}: [wide, narrow] = zeros()\n"
        f"  param v_{i}: [narrow, wide] = zeros()\n"
        f"  x_{i + 1} = einsum(relu(einsum(x_{i}, w_{i} -> [batch, narrow])), v_{i} -> [batch, wide])"
        for i in range(depth)
    )
    sizes = {"ROWS": rows, "COLS": cols, "DEPTH": depth, "LAYERS": "\n".join(layers)}
    text = CHAIN
    for name, value in sizes.items():
        text = text.replace(name, str(value))
    return layout_cost(lowered(text))


def test_cost_does_not_grow_with_the_mesh() -> None:
    small, large = chain(4, 2, 4), chain(4, 16, 32)
    assert len(small.step) == len(large.step)


def test_charges_grow_with_the_program_and_no_faster() -> None:
    lengths = [len(chain(depth, 2, 4).step) for depth in (2, 4, 8)]
    assert lengths[2] - lengths[1] == pytest.approx(2 * (lengths[1] - lengths[0]), rel=0.1)
