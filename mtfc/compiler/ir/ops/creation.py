"""Ops that make tensors from their attributes alone; `one_hot` takes indices besides."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mtfc.compiler.ir.attributes import DIM, DIMS, DTYPE, NUMBER, Attribute, Number, value_error
from mtfc.compiler.ir.opdef import (
    Attrs,
    Code,
    Infer,
    OpDef,
    OpError,
    Shard,
    flops_per_result,
    in_jax,
    no_flops,
    no_gradient,
    rule_by_name,
)
from mtfc.compiler.ir.ops.elementwise import check_dtypes, numpy_dtype, one_or_zero
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType, scalar

DIMENSION = Attribute("dim", DIM)
DIMENSIONS = Attribute("dims", DIMS)
ELEMENT_TYPE = Attribute("dtype", DTYPE)
VALUE = Attribute("value", NUMBER)


creation = partial(
    OpDef, arity=(0,), layout_rule=rule_by_name, gradient=no_gradient, flops=no_flops, storage="made"
)
"""Makes an op without operands, gradient and FLOPs, where its own columns do not say otherwise."""


def literal(value: object) -> str:
    """Return a number or truth value as Python text, in parentheses if it has a sign."""
    text = repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        text = f'float("{value}")'
    return f"({text})" if text.startswith("-") else text


def check_value(value: Number, dtype: str) -> None:
    """Raise `OpError` unless a constant that stands beside the elements of an operand fits the operand's dtype."""
    wrong = value_error(value, dtype)
    if wrong is not None:
        raise OpError(wrong)


def _filled_infer(dims: Callable[[Attrs], tuple[Dim, ...]]) -> Infer:
    """Make the type rule of an op without operands. dims: returns the dims of the result."""

    def infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
        return (TensorType(ELEMENT_TYPE.of(attributes), dims(attributes)),)

    return infer


def _full(shard: Shard) -> Any:
    eqn = shard.eqn
    return shard.np.full(shard.shape, eqn.attrs["value"], numpy_dtype(shard.np, eqn.result.type.dtype))


def _full_text(code: Code) -> str:
    return f"np.full({code.shape}, {literal(code.eqn.attrs['value'])}, {code.dtype})"


def _range(shard: Shard) -> Any:
    (dim,) = shard.eqn.result.type.names
    return shard.offset(dim) + shard.np.arange(shard.shape[0], dtype=shard.np.int32)


def _indices(code: Code) -> str:
    """Return code for the global indices of this processor's part of the result's last dimension."""
    offset = code.offset(code.eqn.result.type.names[-1], len(code.sizes))
    numbers = f"np.arange({code.sizes[-1]}, dtype=np.int32)"
    return f"{offset} + {numbers}" if offset else numbers


def _everywhere(code: Code) -> str:
    """Return code for the indices of the result's only dimension, broadcast along the axes that the backend puts in front."""
    alone = code.shape == str(code.sizes)
    return _indices(code) if alone else f"np.broadcast_to({_indices(code)}, {code.shape})"


def _one_hot_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Return the type of `one_hot`: the dims of the indices, then the new dimension."""
    check_dtypes(types, frozenset({"i32", "u32"}))
    dim = DIMENSION.of(attributes)
    if dim in types[0].dims:
        raise OpError(f"the indices already have dimension `{dim.name}`")
    return (TensorType(ELEMENT_TYPE.of(attributes), (*types[0].dims, dim)),)


def _one_hot(shard: Shard, ids: Any) -> Any:
    """Compare the indices with the positions of the shard along the new dimension."""
    np, type = shard.np, shard.eqn.result.type
    indices = shard.offset(type.names[-1]) + np.arange(shard.shape[-1])
    return (ids[..., None] == indices).astype(numpy_dtype(np, type.dtype))


def _hit_text(code: Code) -> str:
    # the index of a scalar lacks the axes that the backend puts in front
    indices = _everywhere(code) if len(code.sizes) == 1 else _indices(code)
    return f"{code.aligned[0]} == {indices}"


def _one_hot_text(code: Code) -> str:
    return f"({_hit_text(code)}).astype({code.dtype})"


def _one_hot_jax(code: Code) -> str:
    is_float = code.eqn.result.type.dtype in FLOATS
    return in_jax(one_or_zero(code, _hit_text(code)) if is_float else _one_hot_text(code))


OPS = (
    creation(
        name="constant",
        attributes=(VALUE, ELEMENT_TYPE),
        infer=_filled_infer(lambda attributes: ()),
        evaluate=_full,
        numpy=_full_text,
        doc="A scalar.",
        traits=frozenset({"constant", "filled"}),
    ),
    creation(
        name="full",
        attributes=(DIMENSIONS, VALUE, ELEMENT_TYPE),
        infer=_filled_infer(DIMENSIONS.of),
        evaluate=_full,
        numpy=_full_text,
        doc="A tensor of equal elements.",
        traits=frozenset({"filled"}),
    ),
    creation(
        name="range",
        attributes=(DIMENSION,),
        infer=lambda types, attributes: (TensorType("i32", (DIMENSION.of(attributes),)),),
        evaluate=_range,
        numpy=_everywhere,
        doc="0, 1, 2, ... along a dimension.",
        traits=frozenset({"indices"}),
    ),
    creation(
        name="one_hot",
        arity=(1,),
        attributes=(DIMENSION, ELEMENT_TYPE),
        infer=_one_hot_infer,
        flops=flops_per_result,
        storage="fused",
        evaluate=_one_hot,
        numpy=_one_hot_text,
        jax=_one_hot_jax,
        doc="1 at each index along a new dimension, else 0.",
        traits=frozenset({"indexes"}),
    ),
    creation(
        name="training",
        infer=lambda types, attributes: (scalar("bool"),),
        evaluate=lambda shard: shard.np.zeros((), shard.np.bool_),
        numpy=lambda code: f"np.zeros({code.shape}, {code.dtype})",
        doc="True in a training step, and where gradients are computed; false elsewhere.",
        traits=frozenset({"training"}),
    ),
)
