"""The oracle: a second implementation of the meaning of a global program, in JAX alone.

It shares only the IR's data structures with the compiler: not the ops' `evaluate`, gradient rules or text. The compiler's
gradients must match `jax.grad` of the oracle.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import attrs
import jax
import jax.numpy as jnp

from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.types import Dim, TensorType

Array = Any

DTYPES = {
    "f32": jnp.float32, "f64": jnp.float64, "f16": jnp.float16, "bf16": jnp.bfloat16, "i32": jnp.int32, "u32": jnp.uint32,
    "bool": jnp.bool_,
}  # fmt: skip

ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "neg": jnp.negative,
    "relu": lambda x: jnp.where(x > 0, x, jnp.zeros_like(x)),
    "exp": jnp.exp,
    "log": jnp.log,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "sqrt": jnp.sqrt,
    "rsqrt": jax.lax.rsqrt,
    "square": jnp.square,
    "abs": lambda x: x * jax.lax.stop_gradient(jnp.sign(x)),  # with slope 0 at 0
    "sign": jnp.sign,
    "erf": jax.lax.erf,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "floor": jnp.floor,
    "not": jnp.logical_not,
    "stop_gradient": jax.lax.stop_gradient,
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "pow": jnp.power,
    "minimum": jnp.minimum,
    "maximum": jnp.maximum,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "and": jnp.logical_and,
    "or": jnp.logical_or,
    "where": jnp.where,
}


def _first(x: Array, axis: tuple[int, ...], argument: Callable[..., Array]) -> Array:
    """Return the extremum over axes; its gradient goes to the first element that attains it."""
    flat = jnp.moveaxis(x, axis, range(len(axis)))
    flat = flat.reshape(-1, *flat.shape[len(axis) :])
    return jnp.take_along_axis(flat, argument(flat, axis=0)[None], axis=0)[0]


REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": jnp.sum,
    "max": lambda x, axis: _first(x, axis, jnp.argmax),
    "min": lambda x, axis: _first(x, axis, jnp.argmin),
    "prod": jnp.prod,
    "any": jnp.any,
    "all": jnp.all,
}


def evaluate(function: Function, arrays: Sequence[Array]) -> dict[str, Array]:
    """Return the function's outputs by name, given its arguments in order. XLA compiles once, rather than op by op."""
    return jax.jit(partial(_evaluate, function))(list(arrays))


def _evaluate(function: Function, arrays: Sequence[Array]) -> dict[str, Array]:
    known: dict[Value, Array] = {
        a.value: jnp.asarray(x) for a, x in zip(function.arguments, arrays, strict=True)
    }
    for eqn in function.body:
        operands = [known[value] for value in eqn.operands]
        known.update(zip(eqn.results, _results(eqn, operands), strict=True))
    return {output.name: known[output.value] for output in function.outputs}


def in_training(function: Function) -> Function:
    """Return the function with `training` true, in its loops too."""
    body = []
    for eqn in function.body:
        eqn = attrs.evolve(eqn, regions=tuple(map(in_training, eqn.regions)))
        is_flag = eqn.op == "training"
        body.append(
            attrs.evolve(eqn, op="constant", attrs={"value": True, "dtype": "bool"}) if is_flag else eqn
        )
    return attrs.evolve(function, body=tuple(body))


def _results(eqn: Equation, operands: list[Array]) -> tuple[Array, ...]:
    if eqn.regions:
        return _loop(eqn, operands)
    return _several(eqn, *operands) if len(eqn.results) > 1 else (_result(eqn, operands),)


def _loop(eqn: Equation, operands: list[Array]) -> tuple[Array, ...]:
    """Return the outputs of a loop's region: the last values of carries, and the other outputs of all iterations."""
    (region,) = eqn.regions
    dim: Dim = eqn.attrs["dim"]  # type: ignore[assignment]
    given = {a.value.name: x for a, x in zip(region.arguments, operands, strict=True)}
    axes = {
        a.value.name: v.type.names.index(dim.name)
        for a, v in zip(region.arguments, eqn.operands, strict=True)
        if a.role == "sliced"
    }
    rows: dict[int, dict[str, Array]] = {}
    for i in sorted(range(dim.size), reverse=bool(eqn.attrs["reverse"])):
        seen = [jnp.take(x, i, axis=axes[name]) if name in axes else x for name, x in given.items()]
        rows[i] = evaluate(region, seen)
        given.update({o.updates: rows[i][o.name] for o in region.outputs if o.updates})
    return tuple(
        given[output.updates]
        if output.updates
        else jnp.stack([rows[i][output.name] for i in range(dim.size)])
        for output in region.outputs
    )


def _several(eqn: Equation, x: Array) -> tuple[Array, ...]:
    """Evaluate `top_k`, the only op with several results, by a stable sort of the negated operand."""
    assert eqn.op == "top_k"
    axis, k = _axis(eqn, eqn.attrs["dim"].name), eqn.attrs["k"].size
    order = x.astype(jnp.int64) if x.dtype == jnp.uint32 else x
    indices = jnp.take(jnp.argsort(-order, axis=axis, stable=True), jnp.arange(k), axis=axis)
    return jnp.take_along_axis(x, indices, axis=axis), indices.astype(jnp.int32)


def _result(eqn: Equation, operands: list[Array]) -> Array:
    """Return one equation's result; check that it has the shape and dtype of its type."""
    if eqn.op in ELEMENTWISE:
        aligned = [_aligned(x, v, eqn.result) for x, v in zip(operands, eqn.operands, strict=True)]
        result = ELEMENTWISE[eqn.op](*aligned)
    elif eqn.op in REDUCTIONS:
        result = REDUCTIONS[eqn.op](
            operands[0], axis=tuple(_axis(eqn, dim.name) for dim in eqn.attrs["over"])
        )
    else:
        result = STRUCTURE[eqn.op](eqn, *operands)
    result = result.astype(DTYPES[eqn.result.type.dtype])
    assert result.shape == tuple(dim.size for dim in eqn.result.type.dims), eqn
    return result


def _aligned(x: Array, source: Value, target: Value) -> Array:
    """Return `x` with axes in the target's order, and axes of size 1 for dims that it lacks."""
    names = source.type.names
    order = [names.index(name) for name in target.type.names if name in names]
    missing = [i for i, name in enumerate(target.type.names) if name not in names]
    return jnp.expand_dims(jnp.transpose(x, order), missing)


def _axis(eqn: Equation, name: str) -> int:
    return eqn.operands[0].type.names.index(name)


def _shape(eqn: Equation) -> tuple[int, ...]:
    return tuple(dim.size for dim in eqn.result.type.dims)


def _einsum(eqn: Equation, *operands: Array) -> Array:
    number: dict[str, int] = {}
    terms: list[Any] = []
    for x, value in zip(operands, eqn.operands, strict=True):
        terms += [x, [number.setdefault(name, len(number)) for name in value.type.names]]
    return jnp.einsum(*terms, [number[name] for name in eqn.result.type.names])


def _slice(eqn: Equation, x: Array) -> Array:
    start, stride, size = eqn.attrs["start"], eqn.attrs["stride"], eqn.attrs["target"].size
    return jnp.take(
        x, jnp.asarray([start + i * stride for i in range(size)]), axis=_axis(eqn, eqn.attrs["source"].name)
    )


def _pad(eqn: Equation, x: Array) -> Array:
    """Element i of the operand becomes element before + i * stride."""
    source, before, stride = eqn.attrs["source"], eqn.attrs["before"], eqn.attrs["stride"]
    axis = _axis(eqn, source.name)
    place = (slice(None),) * axis + (jnp.asarray([before + i * stride for i in range(source.size)]),)
    return jnp.full(_shape(eqn), eqn.attrs["value"], x.dtype).at[place].set(x)


def _interleave(eqn: Equation, x: Array) -> Array:
    """Element (i, j) of [dim, among] goes to the place of its number in [among, dim], or comes from there."""
    axes = [_axis(eqn, eqn.attrs[name].name) for name in ("dim", "among")]
    parts = jnp.moveaxis(x, axes, (0, 1))
    places, number = parts.shape[:2]
    result = jnp.zeros_like(parts)
    for count in range(places * number):
        far, near = (count % places, count // places), (count // number, count % number)
        source, target = (far, near) if eqn.attrs["back"] else (near, far)
        result = result.at[target].set(parts[source])
    return jnp.moveaxis(result, (0, 1), axes)


def _shift(eqn: Equation, x: Array) -> Array:
    """Element i of the result is element i - by of the operand."""
    dim, by = eqn.attrs["dim"], eqn.attrs["by"]
    axis = _axis(eqn, dim.name)
    origin = [i - by for i in range(dim.size)]
    moved = jnp.take(x, jnp.asarray([i % dim.size for i in origin]), axis=axis)
    inside = jnp.asarray([eqn.attrs["wrap"] or 0 <= i < dim.size for i in origin])
    return jnp.where(inside.reshape([-1 if i == axis else 1 for i in range(x.ndim)]), moved, 0)


def _window(eqn: Equation, x: Array) -> Array:
    """Element k of window o is element o * stride + k * dilation of the padded operand."""
    a, axis = eqn.attrs, _axis(eqn, eqn.attrs["source"].name)
    outside = [(0, 0)] * x.ndim
    outside[axis] = (a["before"], a["after"])
    padded = jnp.pad(x, outside, constant_values=a["value"])
    places = [
        [o * a["stride"] + k * a["dilation"] for k in range(a["kernel"].size)] for o in range(a["out"].size)
    ]
    return jnp.take(padded, jnp.asarray(places), axis=axis)


def _fold(eqn: Equation, x: Array) -> Array:
    """Add every element of the windows to the place where it came from."""
    a, names = eqn.attrs, eqn.operands[0].type.names
    windows = jnp.moveaxis(x, (names.index(a["out"].name), names.index(a["kernel"].name)), (0, 1))
    total = jnp.zeros((a["source"].size, *windows.shape[2:]), x.dtype)
    for o in range(a["out"].size):
        for k in range(a["kernel"].size):
            place = o * a["stride"] + k * a["dilation"] - a["before"]
            total = total.at[place].add(windows[o, k]) if 0 <= place < len(total) else total
    return jnp.moveaxis(total, 0, eqn.result.type.names.index(a["source"].name))


def _one_hot(eqn: Equation, ids: Array) -> Array:
    return ids[..., None] == jnp.arange(eqn.result.type.dims[-1].size).astype(ids.dtype)


def _hits(eqn: Equation, ids: Array, names: Sequence[str], dtype: Any) -> Array:
    """Return one-hot rows of indices along the dimension that they point into, aligned with dims `names`."""
    rows = ids[..., None] == jnp.arange(eqn.attrs["dim"].size).astype(ids.dtype)
    dims = (*eqn.operands[1].type.dims, eqn.attrs["dim"])
    aligned = _aligned(rows, Value("rows", TensorType("bool", dims)), Value("", _named(eqn, names)))
    return aligned.astype(dtype)


def _named(eqn: Equation, names: Sequence[str]) -> TensorType:
    known = {d.name: d for v in (*eqn.operands, *eqn.results) for d in v.type.dims}
    return TensorType("bool", tuple(known[name] for name in names))


def _looked_up(eqn: Equation, x: Array, ids: Array) -> Array:
    """`gather` and `scatter_add`: multiply by the one-hot rows, and sum over the dims that the result lacks."""
    names = list(
        dict.fromkeys((*eqn.result.type.names, *eqn.operands[0].type.names, *eqn.operands[1].type.names))
    )
    gone = tuple(i for i, name in enumerate(names) if name not in eqn.result.type.names)
    spread = _aligned(x, eqn.operands[0], Value("", _named(eqn, names)))
    hits = _hits(eqn, ids, names, jnp.bool_)
    return jnp.sum(jnp.where(hits, spread, jnp.zeros((), x.dtype)), axis=gone)


def _add_at(eqn: Equation, table: Array, updates: Array, ids: Array) -> Array:
    """Add what `scatter_add` makes of the updates."""
    return table + _looked_up(attrs.evolve(eqn, operands=eqn.operands[1:]), updates, ids)


def _grouped_dot(eqn: Equation, x: Array, y: Array, groups: Array) -> Array:
    """Multiply by the one-hot form of the groups' numbers."""
    group = eqn.attrs["group"]
    dims = list(dict.fromkeys([*(d for value in eqn.operands for d in value.type.dims), group]))
    letters = dict(zip(dims, "abcdefghij", strict=False))
    terms = [[letters[d] for d in value.type.dims] for value in (*eqn.operands, eqn.result)]
    terms[2].append(letters[group])
    form = "->".join((",".join(map("".join, terms[:3])), "".join(terms[3])))
    return jnp.einsum(form, x, y, jax.nn.one_hot(groups, group.size, dtype=x.dtype))


def _cumsum(eqn: Equation, x: Array) -> Array:
    """Multiply by a triangle of ones."""
    n, axis = eqn.attrs["dim"].size, _axis(eqn, eqn.attrs["dim"].name)
    ones = jnp.triu(jnp.ones((n, n), x.dtype), int(eqn.attrs["exclusive"]))
    triangle = ones.T if eqn.attrs["reverse"] else ones
    return jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ triangle, -1, axis)


def _drawn(eqn: Equation, *numbers: Array) -> Array:
    """Return the numbers of `jax.random`, drawn in f32."""
    key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), crc32(eqn.attrs["stream"].encode()))
    for number in numbers:
        key = jax.random.fold_in(key, number)
    if eqn.op == "bernoulli":
        return jax.random.bernoulli(key, jnp.float32(eqn.attrs["p"]), _shape(eqn))
    return getattr(jax.random, eqn.op)(key, _shape(eqn), jnp.float32)


def _is_argmax(eqn: Equation, x: Array) -> Array:
    axes = tuple(_axis(eqn, dim.name) for dim in eqn.attrs["over"])
    sizes = [x.shape[i] for i in axes]
    flat = jnp.moveaxis(x, axes, range(len(axes)))
    flat = flat.reshape(-1, *flat.shape[len(axes) :])
    hit = jax.nn.one_hot(jnp.argmax(flat, axis=0), len(flat), axis=0)
    return jnp.moveaxis(hit.reshape(*sizes, *hit.shape[1:]), range(len(axes)), axes)


STRUCTURE: dict[str, Callable[..., Array]] = {
    "cast": lambda eqn, x: x,
    "einsum": _einsum,
    "is_argmax": _is_argmax,
    "argmax": lambda eqn, x: jnp.argmax(x, axis=_axis(eqn, eqn.attrs["over"][0].name)),
    "broadcast": lambda eqn, x: jnp.broadcast_to(_aligned(x, eqn.operands[0], eqn.result), _shape(eqn)),
    "transpose": lambda eqn, x: _aligned(x, eqn.operands[0], eqn.result),
    "rename": lambda eqn, x: x,
    "reshape": lambda eqn, x: x.reshape(_shape(eqn)),
    "slice": _slice,
    "pad": _pad,
    "shift": _shift,
    "flip": lambda eqn, x: x[(slice(None),) * _axis(eqn, eqn.attrs["dim"].name) + (slice(None, None, -1),)],
    "interleave": _interleave,
    "window": _window,
    "fold": _fold,
    "concat": lambda eqn, *xs: jnp.concatenate(xs, eqn.result.type.names.index(eqn.attrs["target"].name)),
    "constant": lambda eqn: jnp.asarray(eqn.attrs["value"]),
    "full": lambda eqn: jnp.full(_shape(eqn), eqn.attrs["value"]),
    "range": lambda eqn: jnp.arange(eqn.result.type.size),
    "one_hot": _one_hot,
    "gather": _looked_up,
    "scatter_add": _looked_up,
    "add_at": _add_at,
    "grouped_dot": _grouped_dot,
    "cumsum": _cumsum,
    **dict.fromkeys(("uniform", "normal", "bernoulli"), _drawn),
    "step_number": lambda eqn: jnp.asarray(0),
    "training": lambda eqn: jnp.asarray(False),
}
