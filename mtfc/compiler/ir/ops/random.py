"""Random tensors, and `step_number`, which makes every step draw other numbers.

The number drawn for an element depends only on the call's name (the attribute `stream`), the operands (the number of the step,
and the iterations of the loops around the call), and the element's global index. So every layout and both backends draw the same
numbers: see `common/random_numbers.py`. Operands may have the first dimensions of the result: then numbers are drawn for each of
their elements independently. With the attribute `at`, a dimension, the last operand is the index along it, and only that index is
drawn. Numbers are drawn in f32. A processor with a part of a split dimension draws from the
index of the part's first element on.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mtfc.compiler.ir.attributes import DIM, DIMS, DTYPE, REAL, TEXT, Attribute
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.opdef import (
    Attrs,
    Code,
    OpError,
    Shard,
    flops_per_result,
)
from mtfc.compiler.ir.ops.creation import creation, literal
from mtfc.compiler.ir.ops.elementwise import check_dtypes, numpy_dtype
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType, scalar
from mtfc.compiler.records import frozen

BELOW_ONE = {"bf16": 1 - 2.0**-8, "f16": 1 - 2.0**-11}
"""The largest number below 1 in the dtypes of 16 bits: a uniform number must not round up to 1."""


DRAWN_DIMS = Attribute("dims", DIMS)
DRAWN_AT = Attribute("at", DIM, optional=True)
DRAWN_TYPE = Attribute("dtype", DTYPE)
PROBABILITY = Attribute("p", REAL)
STREAM = Attribute("stream", TEXT)


def _drawn_type(types: Sequence[TensorType], attributes: Attrs, dtype: str) -> tuple[TensorType]:
    """Check the operands, and return the type of the result: `dims` without the dimension of `at`."""
    if types:
        check_dtypes(types, frozenset({"i32"}))
    dims, at = DRAWN_DIMS.of(attributes), attributes.get("at")
    number = _mapped(types)
    if any(type.dims != dims[:number] for type in types):
        raise OpError("the operands of a random op are scalars")
    if at is not None and (not types or at not in dims[number:]):
        raise OpError("the last operand is the index along one of the dimensions that are drawn")
    return (TensorType(dtype, tuple(dim for dim in dims if dim != at)),)


def _mapped(types: Sequence[TensorType]) -> int:
    """Return the number of dimensions in front for which numbers are drawn independently, as the operands differ along them."""
    return max((len(type.dims) for type in types), default=0)


def _infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Return the type of random floats."""
    dtype = DRAWN_TYPE.of(attributes)
    if dtype not in FLOATS:
        raise OpError(f"random numbers are floating-point, not {dtype}", "convert them with `cast(x, dtype)`")
    return _drawn_type(types, attributes, dtype)


def _bernoulli_infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType]:
    """Return the type of random truth values, for a probability from 0 to 1."""
    p = PROBABILITY.of(attributes)
    if not 0 <= p <= 1:
        raise OpError(f"p = {p}: a probability lies between 0 and 1")
    return _drawn_type(types, attributes, "bool")


@frozen
class Drawn:
    """The part of a tensor that one processor draws, behind the mapped dimensions.

    dims: the dimensions. at: the place among them of the one at which a single index is drawn, if any. mapped: the number of
    dimensions in front.
    """

    dims: tuple[Dim, ...]
    at: int | None
    mapped: int

    @property
    def whole(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self.dims)

    def sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes to draw for a result of this shape on the processor."""
        sizes = list(shape[self.mapped :])
        if self.at is not None:
            sizes.insert(self.at, 1)
        return tuple(sizes)


def _drawn_part(eqn: Equation) -> Drawn:
    """Return the dimensions that one drawing has, and the place of the one at which only one position is drawn."""
    mapped = _mapped([value.type for value in eqn.operands])
    dims, at = DRAWN_DIMS.of(eqn.attrs)[mapped:], eqn.attrs.get("at")
    return Drawn(dims, None if at is None else dims.index(DRAWN_AT.of(eqn.attrs)), mapped)


def _drawing(code: Code, draw: str) -> str:
    """Return the call that draws. For a part of a tensor it also has the whole shape and the part's first indices."""
    part, args = _drawn_part(code.eqn), list(code.args)
    rank = len(part.dims)
    offsets = [
        "" if i == part.at else code.offset(dim.name, part.mapped + rank) for i, dim in enumerate(part.dims)
    ]
    if part.at is not None:
        index = args.pop()
        offsets[part.at] = f"np.expand_dims({index}, {tuple(range(-rank, 0))})"
    key, sizes = ", ".join(["0", f'"{code.eqn.attrs["stream"]}"', *args]), part.sizes(code.sizes)
    arguments = f"random_key({key}), {sizes}"
    if any(offsets):
        start = ", ".join(offset or "0" for offset in offsets) + "," * (len(offsets) == 1)
        arguments += f", {part.whole}, ({start})"
    call = f"random_{draw}({arguments})"
    if part.at is not None:
        call += f"[..., 0{', :' * (rank - 1 - part.at)}]"
    return call if code.shape == str(code.sizes) else f"np.broadcast_to({call}, {code.shape})"


def _number_text(draw: str) -> Callable[[Code], str]:
    """Make the text of drawn numbers, in the dtype of the result. draw: `uniform` or `normal`.

    Numbers that rounding to a narrow dtype would make 1 become the largest number below 1.
    """

    def text(code: Code) -> str:
        """Return the expression of the drawn numbers in the dtype of the result."""
        drawn, dtype = _drawing(code, draw), code.eqn.result.type.dtype
        if draw == "uniform" and dtype in BELOW_ONE:
            drawn = f"np.minimum({drawn}, {BELOW_ONE[dtype]})"
        return drawn if dtype == "f32" else f"{drawn}.astype({code.dtype})"

    return text


def _drawn(shard: Shard, draw: Callable[..., Any], numbers: Sequence[Any]) -> Any:
    """Return the shard's part of an array of random numbers. The numbers do not depend on the layout.

    draw: draws numbers from a key for a part of a whole array. numbers: the numbers of the key, then the micro-batch if there
    is one.
    """
    part, np = _drawn_part(shard.eqn), shard.np
    rank = len(part.dims)
    start: list[Any] = [0 if i == part.at else shard.offset(dim.name) for i, dim in enumerate(part.dims)]
    if part.at is not None:
        *numbers, index = numbers
        start[part.at] = np.expand_dims(index, tuple(range(-rank, 0)))
    key = shard.random.random_key(0, shard.eqn.attrs["stream"], *numbers)
    found = draw(key, part.sizes(shard.shape), part.whole, tuple(start))
    return found if part.at is None else found[(..., 0, *[slice(None)] * (rank - 1 - part.at))]


def _uniform(shard: Shard, *numbers: Any) -> Any:
    """Draw numbers from 0 up to but not including 1: in a narrow dtype, its largest number below 1 takes the place of 1."""
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


drawing = partial(
    creation, arity=(0, None), flops=flops_per_result, storage="fused", traits=frozenset({"random"})
)
_DRAWN = (DRAWN_DIMS, DRAWN_TYPE, STREAM, DRAWN_AT)

OPS = (
    drawing(
        name="uniform",
        attributes=_DRAWN,
        infer=_infer,
        evaluate=_uniform,
        numpy=_number_text("uniform"),
        doc="Random numbers, evenly distributed on [0, 1).",
    ),
    drawing(
        name="normal",
        attributes=_DRAWN,
        infer=_infer,
        evaluate=_normal,
        numpy=_number_text("normal"),
        doc="Random numbers of mean 0 and standard deviation 1.",
    ),
    drawing(
        name="bernoulli",
        attributes=(DRAWN_DIMS, PROBABILITY, STREAM, DRAWN_AT),
        infer=_bernoulli_infer,
        evaluate=_bernoulli,
        numpy=lambda code: f"{_drawing(code, 'uniform')} < np.float32({literal(code.eqn.attrs['p'])})",
        doc="Truth values that hold with probability p.",
    ),
    creation(
        name="step_number",
        infer=lambda types, attributes: (scalar("i32"),),
        evaluate=lambda shard: shard.np.zeros((), shard.np.int32),
        numpy=lambda code: f"np.zeros({code.shape}, np.int32)",
        jax=lambda code: "jnp.int32(0)",
        doc="The number of the training step, from 0 on; 0 outside of training.",
        traits=frozenset({"step_number"}),
    ),
)
