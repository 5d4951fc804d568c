"""Random tensors, and `step_number`, which makes every step draw other numbers.

The number drawn for an element depends only on the call's name (the attribute `stream`), the operands (the number of the step,
and the iterations of the loops around the call), and the element's global index. So every layout and both backends draw the same
numbers: see `common/random_numbers.py`. Numbers are drawn in f32. A processor with a part of a split dimension draws from the
index of the part's first element on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtfc.compiler.ir.attributes import DIMS, DTYPE, REAL, TEXT, Attribute, Stated
from mtfc.compiler.ir.opdef import (
    Attrs,
    Code,
    OpDef,
    OpError,
    Shard,
    flops_per_result,
    no_flops,
    no_gradient,
    not_linear,
    rule_by_name,
)
from mtfc.compiler.ir.ops.creation import literal
from mtfc.compiler.ir.ops.elementwise import check_dtypes, numpy_dtype
from mtfc.compiler.ir.sharding_rules import place_by_layout
from mtfc.compiler.ir.types import FLOATS, TensorType, scalar

BELOW_ONE = {"bf16": 1 - 2.0**-8, "f16": 1 - 2.0**-11}
"""The largest number below 1 in the dtypes of 16 bits: a uniform number must not round up to 1."""


DRAWN_DIMS = Attribute("dims", DIMS)
DRAWN_TYPE = Attribute("dtype", DTYPE)
PROBABILITY = Attribute("p", REAL)
STREAM = Attribute("stream", TEXT)


def _check_numbers(types: Sequence[TensorType]) -> None:
    if types:
        check_dtypes(types, frozenset({"i32"}))
    if any(type.dims for type in types):
        raise OpError("the operands of a random op are scalars")


def _infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    _check_numbers(types)
    dtype = DRAWN_TYPE.of(attributes)
    if dtype not in FLOATS:
        raise OpError(f"random numbers are floating-point, not {dtype}", "convert them with `cast(x, dtype)`")
    return (TensorType(dtype, DRAWN_DIMS.of(attributes)),)


def _bernoulli_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    _check_numbers(types)
    p = PROBABILITY.of(attributes)
    if not 0 <= p <= 1:
        raise OpError(f"p = {p}: a probability lies between 0 and 1")
    return (TensorType("bool", DRAWN_DIMS.of(attributes)),)


def _drawing(code: Code, module: str, draw: str) -> str:
    """Return the call that draws. For a part of a tensor it also has the whole shape and the part's first indices."""
    type = code.eqn.result.type
    key = ", ".join(["0", f'"{code.eqn.attrs["stream"]}"', *code.args])
    arguments = f"random_key({key}), {code.sizes}"
    offsets = [code.offset(dim.name, len(type.dims)) for dim in type.dims]
    if any(offsets):
        start = ", ".join(offset or "0" for offset in offsets) + "," * (len(offsets) == 1)
        arguments += f", {tuple(dim.size for dim in type.dims)}, ({start})"
    call = f"random_{draw}({arguments})"
    return call if code.shape == str(code.sizes) else f"{module}.broadcast_to({call}, {code.shape})"


def _uniform_text(module: str) -> Callable[[Code], str]:
    def text(code: Code) -> str:
        drawn, dtype = _drawing(code, module, "uniform"), code.eqn.result.type.dtype
        if dtype in BELOW_ONE:
            drawn = f"{module}.minimum({drawn}, {BELOW_ONE[dtype]})"
        return drawn if dtype == "f32" else f"{drawn}.astype({code.dtype})"

    return text


def _normal_text(module: str) -> Callable[[Code], str]:
    def text(code: Code) -> str:
        drawn = _drawing(code, module, "normal")
        return drawn if code.eqn.result.type.dtype == "f32" else f"{drawn}.astype({code.dtype})"

    return text


def _bernoulli_text(module: str) -> Callable[[Code], str]:
    return lambda code: (
        f"{_drawing(code, module, 'uniform')} < {module}.float32({literal(code.eqn.attrs['p'])})"
    )


def _drawn(shard: Shard, draw: Callable[..., Any], numbers: Sequence[Any]) -> Any:
    dims = shard.eqn.result.type.dims
    whole, start = tuple(dim.size for dim in dims), tuple(shard.offset(dim.name) for dim in dims)
    key = shard.random.random_key(0, shard.eqn.attrs["stream"], *numbers)
    return draw(key, shard.shape, whole, start)


def _uniform(shard: Shard, *numbers: Any) -> Any:
    dtype = shard.eqn.result.type.dtype
    drawn = _drawn(shard, shard.random.random_uniform, numbers)
    return shard.np.minimum(drawn, shard.np.float32(BELOW_ONE.get(dtype, 1))).astype(
        numpy_dtype(shard.np, dtype)
    )


def _normal(shard: Shard, *numbers: Any) -> Any:
    drawn = _drawn(shard, shard.random.random_normal, numbers)
    return drawn.astype(numpy_dtype(shard.np, shard.eqn.result.type.dtype))


def _bernoulli(shard: Shard, *numbers: Any) -> Any:
    return _drawn(shard, shard.random.random_uniform, numbers) < shard.np.float32(shard.eqn.attrs["p"])


def drawing(
    name: str,
    attributes: Stated,
    infer: Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]],
    evaluate: Callable[..., Any],
    text: Callable[[str], Callable[[Code], str]],
    doc: str,
) -> OpDef:
    return OpDef(
        name=name,
        arity=(0, None),
        attributes=attributes,
        infer=infer,
        place=place_by_layout,
        layout_rule=rule_by_name,
        distribute=None,
        linear=not_linear,
        gradient=no_gradient,
        flops=flops_per_result,
        storage="fused",
        traits=frozenset({"random"}),
        evaluate=evaluate,
        numpy=text("np"),
        jax=text("jnp"),
        jax_differentiated=None,
        logic=None,
        number=None,
        doc=doc,
    )


STEP_NUMBER = OpDef(
    name="step_number",
    arity=(0,),
    attributes=(),
    infer=lambda types, attributes: (scalar("i32"),),
    place=place_by_layout,
    layout_rule=rule_by_name,
    distribute=None,
    linear=not_linear,
    gradient=no_gradient,
    flops=no_flops,
    storage="made",
    traits=frozenset({"step_number"}),
    evaluate=lambda shard: shard.np.zeros((), shard.np.int32),
    numpy=lambda code: f"np.zeros({code.shape}, np.int32)",
    jax=lambda code: "jnp.int32(0)",
    jax_differentiated=None,
    logic=None,
    number=None,
    doc="The number of the training step, from 0 on; 0 outside of training.",
)

_DRAWN = (DRAWN_DIMS, DRAWN_TYPE, STREAM)

OPS = (
    drawing(
        "uniform", _DRAWN, _infer, _uniform, _uniform_text, "Random numbers, evenly distributed on [0, 1)."
    ),
    drawing(
        "normal", _DRAWN, _infer, _normal, _normal_text, "Random numbers of mean 0 and standard deviation 1."
    ),
    drawing(
        "bernoulli",
        (DRAWN_DIMS, PROBABILITY, STREAM),
        _bernoulli_infer,
        _bernoulli,
        _bernoulli_text,
        "Truth values that hold with probability p.",
    ),
    STEP_NUMBER,
)
