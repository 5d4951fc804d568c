"""`einsum`: multiply all operands over the union of their dims, and sum over the dims that the result lacks.

The Mesh-TensorFlow paper defines it so in section 6. An einsum of two operands is a dot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from string import ascii_letters
from typing import Any

from mtfc.compiler.ir.attributes import DIMS, Attribute
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    Attrs,
    Code,
    LayoutRule,
    OpBuilder,
    OpDef,
    OpError,
    Shard,
    Sizes,
    linear_in_each,
)
from mtfc.compiler.ir.ops.elementwise import NUMBERS, check_dtypes, dims_text
from mtfc.compiler.ir.sharding_rules import place_by_layout
from mtfc.compiler.ir.types import Dim, TensorType

RESULT_DIMS = Attribute("dims", DIMS)


def iteration_dims(eqn: Equation) -> tuple[Dim, ...]:
    """Return all dimensions of the operands, each once."""
    return tuple(dict.fromkeys(dim for value in eqn.operands for dim in value.type.dims))


def reduced_dims(eqn: Equation) -> tuple[Dim, ...]:
    return tuple(dim for dim in iteration_dims(eqn) if dim not in eqn.result.type.dims)


def _infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    dtype = check_dtypes(types, NUMBERS)
    dims = RESULT_DIMS.of(attributes)
    known = {dim for type in types for dim in type.dims}
    for dim in dims:
        if dim not in known:
            found = ", ".join(dims_text(type.dims) for type in types)
            raise OpError(f"no operand of the einsum has dimension `{dim.name}`; they have {found}")
    return (TensorType(dtype, dims),)


def subscripts(eqn: Equation) -> str:
    """Return the einsum in letters, such as `bi,ih->bh`: each dimension has the first free letter of its name."""
    letters: dict[Dim, str] = {}
    for dim in iteration_dims(eqn):
        candidates = (c for c in dim.name + ascii_letters if c in ascii_letters)
        letters[dim] = next(c for c in candidates if c not in letters.values())
    terms = ["".join(letters[dim] for dim in value.type.dims) for value in (*eqn.operands, eqn.result)]
    return ",".join(terms[:-1]) + "->" + terms[-1]


def _evaluate(shard: Shard, *arrays: Any) -> Any:
    """Sum 16-bit numbers in 32 bits."""
    wide = [x.astype(shard.np.float32) if x.dtype.itemsize == 2 else x for x in arrays]
    return shard.np.einsum(subscripts(shard.eqn), *wide, optimize=True).astype(arrays[0].dtype)


def _gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value, ...]:
    """Each operand's cotangent is the einsum of g and the other operands, broadcast along dims that no other operand has."""

    def of_operand(i: int) -> Value:
        others = (g[0], *e.operands[:i], *e.operands[i + 1 :])
        dims = e.operands[i].type.dims
        known = {dim for value in others for dim in value.type.dims}
        inner = b.einsum(*others, dims=[dim for dim in dims if dim in known])
        return b.broadcast(inner, e.operands[i].type)

    return tuple(of_operand(i) for i in range(len(e.operands)))


def _flops(eqn: Equation, sizes: Sizes) -> Any:
    """Per point of the iteration space: one multiplication less than operands, and one addition if the einsum sums."""
    layout = eqn.layout or {}
    dims = iteration_dims(eqn)
    points = reduce(mul, (sizes.dim(dim, layout.get(dim.name, ())) for dim in dims), 1)
    return points * (len(eqn.operands) - 1 + bool(reduced_dims(eqn)))


def _is_wide(eqn: Equation) -> bool:
    return eqn.result.type.local_dtype != eqn.result.type.dtype


def _numpy_text(code: Code) -> str:
    """Sum in 32 bits; the result has the dtype of the first operand."""
    first, *others = code.args
    first = f"{first}.astype({code.dtype})" if _is_wide(code.eqn) else first
    return f'einsum("{subscripts(code.eqn)}", {", ".join([first, *others])})'


def _jax_text(code: Code) -> str:
    dtype = f", preferred_element_type={code.dtype}" if _is_wide(code.eqn) else ""
    return f'jnp.einsum("{subscripts(code.eqn)}", {", ".join(code.args)}{dtype})'


EINSUM = OpDef(
    name="einsum",
    arity=(1, None),
    attributes=(RESULT_DIMS,),
    infer=_infer,
    place=place_by_layout,
    layout_rule=lambda eqn: LayoutRule(reduced=reduced_dims(eqn)),
    distribute=None,
    linear=linear_in_each,
    gradient=_gradient,
    flops=_flops,
    storage="kernel",
    traits=frozenset({"dot"}),
    evaluate=_evaluate,
    numpy=_numpy_text,
    jax=_jax_text,
    jax_differentiated=None,
    logic=None,
    number=None,
    doc="Product of the operands over the union of their dimensions, summed over those that the result lacks.",
)

OPS = (EINSUM,)
