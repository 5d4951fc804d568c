"""Decisions of `assign-layouts` beyond the golden cases."""

from unittest.mock import patch

import attrs
import pytest

from mtfc.compiler.ir.builder import names_of
from mtfc.compiler.ir.core import Equation, Function, Output, Program
from mtfc.compiler.ir.loops import is_over_micro_batches, make_loop, region_of
from mtfc.compiler.passes.partition import assign_layouts
from mtfc.compiler.passes.partition.assign_layouts import AssignLayouts
from tests.harness import differentiated, load

SOURCE = """
dim batch = 8; dim io = {size}
mesh grid = [rows: 2, cols: 2]
layout split on grid = {{ batch: rows, io: {io} }}
model m(x: [batch]) {{
  param w: [io] = normal(stddev = 0.5)
  loss = mean(square(einsum(x, w -> [batch])))
  return loss
}}
train m {{ minimize loss; optimizer = sgd(learning_rate = 0.5); accumulate = 2 }}
"""


def with_layout(io: str, size: int = 4) -> Program:
    """Return the differentiated program, with the mesh and the layout of its file."""
    module = load(SOURCE.format(io=io, size=size))
    (program,), (layout,) = module.programs, module.layouts
    return attrs.evolve(differentiated(program, "step"), mesh=layout.mesh, layout=layout.layout)


def test_only_contests_are_priced() -> None:
    """Bytes decide between dimensions that want one axis. Elsewhere there is nothing to price."""
    with patch.object(assign_layouts, "plan", wraps=assign_layouts.plan) as plan:
        AssignLayouts().run(with_layout(io="cols"))
        assert not plan.called
        AssignLayouts().run(with_layout(io="rows"))
        assert plan.called


@pytest.mark.parametrize(("size", "winner"), [(4, "batch"), (64, "io")])
def test_the_dimension_that_sends_less_wins_an_axis(size: int, winner: str) -> None:
    """A split `batch` gathers `w`. A split `io` gathers `x` and scatters the sum."""
    forward = AssignLayouts().run(with_layout(io="rows", size=size)).function("forward")
    (dot,) = (eqn for eqn in forward.body if eqn.op == "einsum")
    assert dot.layout == {winner: ("rows",)}


def test_a_loop_over_micro_batches_may_yield() -> None:
    """A yielded value has the layout of its equation: only sums take the layout of a carry."""
    program = with_layout(io="cols")
    placed = AssignLayouts().run(program.map_functions(with_yield)).function("step")
    (loop,) = filter(is_over_micro_batches, placed.body)
    yielded = next(output for output in region_of(loop).outputs if output.name == "seen")
    assert yielded.layout == {"batch": ("rows",)}
    assert loop.results[-1].type.dims[0].name == "micro"


def with_yield(function: Function) -> Function:
    """Yield the squares of each micro-batch."""

    def yielding(eqn: Equation) -> Equation:
        if not is_over_micro_batches(eqn):
            return eqn
        region = region_of(eqn)
        value = next(each.result for each in region.body if each.op == "square")
        more = attrs.evolve(region, outputs=(*region.outputs, Output("seen", value)))
        return make_loop(names_of(function), more, eqn.operands, eqn, eqn.results)

    return attrs.evolve(function, body=tuple(map(yielding, function.body)))
