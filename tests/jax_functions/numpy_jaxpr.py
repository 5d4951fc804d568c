"""A jaxpr in NumPy: each primitive by its definition, with indices and loops in place of JAX's code.

The import shares nothing with it but the jaxpr, so it is the oracle of primitives that move elements.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

Array = Any
Params = dict[str, Any]

CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
"""Primitive that applies a jaxpr -> the parameter that has the jaxpr."""


def evaluate(closed: Any, arguments: Sequence[Array]) -> list[Array]:
    """Return the outputs of a closed jaxpr on arrays of NumPy."""
    jaxpr, known = closed.jaxpr, dict[Any, Array]()

    def read(v: Any) -> Array:
        return np.asarray(v.val) if hasattr(v, "val") else known[v]

    known.update(zip(jaxpr.constvars, map(np.asarray, closed.consts), strict=True))
    known.update(zip(jaxpr.invars, map(np.asarray, arguments), strict=True))
    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        name = eqn.primitive.name
        if name in CALLS:
            found = evaluate(eqn.params[CALLS[name]], operands)
        else:
            result = PRIMITIVES[name](eqn.params, *operands)
            found = result if isinstance(result, list) else [result]
        for v, x in zip(eqn.outvars, found, strict=True):
            assert np.shape(x) == v.aval.shape, f"{name}: {np.shape(x)} in place of {v.aval.shape}"
            known[v] = np.asarray(x).astype(v.aval.dtype)
    return [read(v) for v in jaxpr.outvars]


def _slice(params: Params, x: Array) -> Array:
    rows = zip(
        params["start_indices"], params["limit_indices"], params["strides"] or (1,) * x.ndim, strict=True
    )
    return x[tuple(slice(*row) for row in rows)]


def _pad(params: Params, x: Array, number: Array) -> Array:
    """Write each element to its place, if that is inside."""
    rows = params["padding_config"]
    shape = [low + high + n + max(n - 1, 0) * gap for n, (low, high, gap) in zip(x.shape, rows, strict=True)]
    found = np.full(shape, number)
    for index in np.ndindex(x.shape):
        place = [low + i * (gap + 1) for i, (low, _, gap) in zip(index, rows, strict=True)]
        if all(0 <= i < n for i, n in zip(place, shape, strict=True)):
            found[tuple(place)] = x[index]
    return found


def _starts(starts: Sequence[Array], shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return the starts of a dynamic slice, moved until the slice is inside."""
    return [min(max(int(i), 0), n - size) for i, n, size in zip(starts, shape, sizes, strict=True)]


def _dynamic_slice(params: Params, x: Array, *starts: Array) -> Array:
    sizes = params["slice_sizes"]
    return x[tuple(slice(i, i + n) for i, n in zip(_starts(starts, x.shape, sizes), sizes, strict=True))]


def _dynamic_update_slice(params: Params, x: Array, update: Array, *starts: Array) -> Array:
    found, first = x.copy(), _starts(starts, x.shape, update.shape)
    found[tuple(slice(i, i + n) for i, n in zip(first, update.shape, strict=True))] = update
    return found


def _split(params: Params, x: Array) -> list[Array]:
    return np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])


def _broadcast_in_dim(params: Params, x: Array) -> Array:
    shape = [1] * len(params["shape"])
    for place, n in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[place] = n
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _iota(params: Params) -> Array:
    shape, j = params["shape"], params["dimension"]
    return np.indices(shape)[j] if shape else np.zeros(())


def _gather(params: Params, x: Array, ids: Array) -> Array:
    """Copy a slice for each row of indices: XLA's semantics of Gather, with batching dimensions and all modes."""
    numbers, sizes, mode = params["dimension_numbers"], params["slice_sizes"], _mode(params)
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [k for k in range(x.ndim) if k not in gone]
    rank = ids.ndim - 1 + len(kept)
    rows = [k for k in range(rank) if k not in numbers.offset_dims]
    shape = [0] * rank
    for k, n in zip(rows, ids.shape[:-1], strict=True):
        shape[k] = n
    for k, j in zip(numbers.offset_dims, kept, strict=True):
        shape[k] = sizes[j]
    found = np.zeros(shape, x.dtype)
    for row in np.ndindex(ids.shape[:-1]):
        start, is_inside = [0] * x.ndim, True
        for j, i in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
            start[j] = row[i]
        for j, i in zip(numbers.start_index_map, ids[row], strict=True):
            start[j] = int(i)
        last = [n - size for n, size in zip(x.shape, sizes, strict=True)]
        if mode == "fill_or_drop":
            is_inside = all(0 <= i <= n for i, n in zip(start, last, strict=True))
        start = [min(max(i, 0), n) for i, n in zip(start, last, strict=True)]
        part = x[tuple(slice(i, i + n) for i, n in zip(start, sizes, strict=True))]
        place: list[Any] = [slice(None)] * rank
        for k, i in zip(rows, row, strict=True):
            place[k] = i
        found[tuple(place)] = (
            part.reshape([sizes[j] for j in kept]) if is_inside else params["fill_value"] or np.nan
        )
    return found


def _scatter(combine: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def scatter(params: Params, x: Array, ids: Array, updates: Array) -> Array:
        """Combine each slice of updates with the slice that a row of indices points to, in order."""
        numbers, mode, found = params["dimension_numbers"], _mode(params), x.copy()
        gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        kept = [k for k in range(x.ndim) if k not in gone]
        rows = [k for k in range(updates.ndim) if k not in numbers.update_window_dims]
        for row in np.ndindex(ids.shape[:-1]):
            start, sizes = [0] * x.ndim, [1] * x.ndim
            for j, i in zip(
                numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
            ):
                start[j] = row[i]
            for j, i in zip(numbers.scatter_dims_to_operand_dims, ids[row], strict=True):
                start[j] = int(i)
            for k, j in zip(numbers.update_window_dims, kept, strict=True):
                sizes[j] = updates.shape[k]
            last = [n - size for n, size in zip(x.shape, sizes, strict=True)]
            if mode == "clip":
                start = [min(max(i, 0), n) for i, n in zip(start, last, strict=True)]
            if not all(0 <= i <= n for i, n in zip(start, last, strict=True)):
                continue
            place: list[Any] = [slice(None)] * updates.ndim
            for k, i in zip(rows, row, strict=True):
                place[k] = i
            window = tuple(slice(i, i + n) for i, n in zip(start, sizes, strict=True))
            found[window] = combine(found[window], updates[tuple(place)].reshape(sizes))
        return found

    return scatter


def _mode(params: Params) -> str:
    return str(params["mode"]).rpartition(".")[2].lower()


def _dot_general(params: Params, x: Array, y: Array) -> Array:
    """Sum products over the contracted axes, index by index of the batches."""
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    a = [k for k in range(x.ndim) if k not in (*left, *left_batch)]
    b = [k for k in range(y.ndim) if k not in (*right, *right_batch)]
    p, q = x.transpose(*left_batch, *a, *left), y.transpose(*right_batch, *b, *right)
    batch, n = p.shape[: len(left_batch)], len(left)
    found = np.zeros((*batch, *(x.shape[k] for k in a), *(y.shape[k] for k in b)), np.result_type(x, y))
    for index in product(*map(range, batch)):
        found[index] = np.tensordot(p[index], q[index], (range(-n, 0), range(-n, 0)))
    return found


PRIMITIVES: dict[str, Callable[..., Any]] = {
    "slice": _slice,
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "split": _split,
    "concatenate": lambda params, *xs: np.concatenate(xs, params["dimension"]),
    "stack": lambda params, *xs: np.stack(xs, params["axis"]),
    "unstack": lambda params, x: [*np.moveaxis(x, params["axis"], 0)],
    "tile": lambda params, x: np.tile(x, params["reps"]),
    "reshape": lambda params, x: x.reshape(params["new_sizes"]),
    "squeeze": lambda params, x: np.squeeze(x, tuple(params["dimensions"])),
    "expand_dims": lambda params, x: np.expand_dims(x, tuple(params["dimensions"])),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
    "rev": lambda params, x: np.flip(x, params["dimensions"]),
    "broadcast_in_dim": _broadcast_in_dim,
    "iota": _iota,
    "gather": _gather,
    "scatter": _scatter(lambda old, new: new),
    "scatter-add": _scatter(np.add),
    "dot_general": _dot_general,
    "reduce_sum": lambda params, x: x.sum(tuple(params["axes"])),
    "reduce_max": lambda params, x: x.max(tuple(params["axes"])),
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "select_n": lambda params, c, *xs: np.choose(np.broadcast_to(c.astype(int), xs[0].shape), xs),
    "clamp": lambda params, low, x, high: np.clip(x, low, high),
    "integer_pow": lambda params, x: x ** params["y"],
    "cumsum": lambda params, x: (
        np.flip(np.flip(x, params["axis"]).cumsum(params["axis"]), params["axis"])
        if params["reverse"]
        else x.cumsum(params["axis"])
    ),
    "copy": lambda params, x: x,
    "copy_p": lambda params, x: x,
    "stop_gradient": lambda params, x: x,
    "neg": lambda params, x: -x,
    "add": lambda params, x, y: x + y,
    "add_any": lambda params, x, y: x + y,
    "sub": lambda params, x, y: x - y,
    "mul": lambda params, x, y: x * y,
    "max": lambda params, x, y: np.maximum(x, y),
    "min": lambda params, x, y: np.minimum(x, y),
    "rem": lambda params, x, y: np.fmod(x, y),
    "lt": lambda params, x, y: x < y,
    "le": lambda params, x, y: x <= y,
    "gt": lambda params, x, y: x > y,
    "ge": lambda params, x, y: x >= y,
    "eq": lambda params, x, y: x == y,
    "ne": lambda params, x, y: x != y,
    "and": lambda params, x, y: x & y,
    "or": lambda params, x, y: x | y,
}
