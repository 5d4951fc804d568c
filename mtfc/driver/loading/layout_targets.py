"""The layout targets of a program: the equations and arguments of a step, and the arguments and results of its loops."""

import attrs

from mtfc.compiler.analysis.equation_names import LayoutTarget, layout_target_names
from mtfc.compiler.ir.core import Argument, Equation, Function, Program
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import Dim, Layout, Mesh, TensorType
from mtfc.compiler.passes.pipelines import differentiation, preparation, run
from mtfc.frontend.layouts.program_index import Tensor


def prepared(program: Program, mesh: Mesh | None = None, layout: Layout | None = None) -> Function:
    """Return the function that a search places, in the form that `assign-layouts` gets: `step` if the program trains, else
    `forward`.
    """
    placed = attrs.evolve(program, mesh=mesh, layout=layout)
    whole = run(placed, (*differentiation(), *preparation()))
    return whole.function("step" if whole.has_function("step") else "forward")


def layout_targets(
    program: Program, mesh: Mesh | None = None, layout: Layout | None = None
) -> dict[str, Tensor]:
    """Return each layout target by its name, as a tensor with the dimensions that can be split there."""
    names = layout_target_names(prepared(program, mesh, layout))
    return {name: _tensor(thing, name) for thing, name in names.items()}


def _tensor(thing: LayoutTarget, name: str) -> Tensor:
    """Return what legality checks know of a target of `value` rules: its dims, source place and name.

    An equation has the dims of its results and those that it sums over.
    """
    if isinstance(thing, Equation):
        dims = dict.fromkeys((*(d for v in thing.results for d in v.type.dims), *_reduced(thing)))
        return Tensor(TensorType(thing.results[0].type.dtype, tuple(dims)), thing.span, name, None)
    span = thing.span if isinstance(thing, Argument) else None
    return Tensor(thing.value.type, span, name, None)


def _reduced(eqn: Equation) -> tuple[Dim, ...]:
    return OPS[eqn.op].layout_rule(eqn).reduced
