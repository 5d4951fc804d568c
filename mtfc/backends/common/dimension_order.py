"""Updates of parameters in the parameter's order of dimensions, where a gradient has another one.

Input: a function. Output: a function in which the gradient is transposed, and not what an optimizer computes from it:

    mul = g * 0.1                              mul = g.transpose(1, 0) * 0.1
    add = mul.transpose(1, 0) + m      ->      add = mul + m

So the updates of all parameters read alike. Elementwise equations match dimensions by name.
"""

from collections import defaultdict

import attrs

from mtfc.compiler.ir.builder import Substitution
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import Dim, TensorType


def in_order_of_readers(function: Function) -> Function:
    """Return the function with the values of updates in the order of dimensions that all of their readers ask for."""
    asked: dict[Value, set[tuple[Dim, ...] | None]] = defaultdict(set)
    for output in function.outputs:
        asked[output.value].add(None)
    new = Substitution()
    for eqn in reversed(function.body):
        orders = asked[eqn.results[0]] if _is_by_name(eqn) else {None}
        order = next(iter(orders)) if len(orders) == 1 else None
        if order is not None and order != eqn.result.type.dims and not has_trait(eqn, "transpose"):
            new[eqn.result] = Value(eqn.result.name, _ordered(eqn.result.type, order))
        dims = new[eqn.results[0]].type.dims
        for value in eqn.operands:
            is_full = _is_by_name(eqn) and {*value.type.dims} == {*dims}
            asked[value].add(dims if is_full else None)
    return new.function(function, map(new.equation, function.body))


def _is_by_name(eqn: Equation) -> bool:
    """Return True for an equation of an update whose text matches the dimensions of operands by name."""
    return eqn.stage == "update" and not eqn.regions and isinstance(OPS[eqn.op].jax, str)


def _ordered(type: TensorType, dims: tuple[Dim, ...]) -> TensorType:
    splits = tuple(type.splits[type.dims.index(dim)] for dim in dims)
    return attrs.evolve(type, dims=dims, splits=splits)
