# mypy: allow-untyped-calls
"""Rules of JAX's primitives over a finite field, for arrays whose axes have places and no names: see `jaxprs.py`.

Primitives that move elements are JAX's own: they run on the positions of the elements, and NumPy takes the residues from there.
So each rule is short, and shares nothing with the import.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import attrs
import numpy as np

from mtfc.backends.exact.namespace import REDUCING, REDUCTIONS, Elementwise, ExactNumpy
from mtfc.backends.exact.prime_field import PrimeField
from mtfc.backends.exact.residues import INFINITY, POISON, ExactArray, applied, exact, extremum
from mtfc.backends.exact.sums import cumulative, einsum

Operands = Sequence[Any]
"""Values: an `ExactArray` each, or an array of random keys of JAX."""


@attrs.define(eq=False)
class Evaluator(ABC):
    """The part of an evaluation of jaxprs over a field that rules need."""

    field: PrimeField

    @abstractmethod
    def run(self, closed: Any, operands: Operands) -> list[Any]:
        """Return the results of a jaxpr."""

    @property
    def np(self) -> ExactNumpy:
        return ExactNumpy(self.field)

    def moved(
        self, eqn: Any, data: Operands, others: Operands = (), fill: Any = None, **params: Any
    ) -> ExactArray:
        """Return the result of a primitive that moves elements of its first operands, as it moves their positions.

        fill: the element at the position -1. data: the arrays whose elements move. others: the further operands.
        """
        starts = np.cumsum([0, *(x.size for x in data)])
        places = [
            np.arange(start, start + x.size, dtype=np.int32).reshape(x.shape)
            for start, x in zip(starts, data, strict=False)
        ]
        (found,) = bind(eqn, [*places, *map(plain, others)], **params)
        return self.taken(data, np.asarray(found), fill)

    def taken(self, data: Operands, places: Any, fill: Any = None) -> ExactArray:
        """Return elements of some arrays, by their positions in all of these; `fill` for the position -1."""
        ends = [exact(self.field, np.asarray(fill, np.float64), data[0].dtype)] if fill is not None else []
        flat = self.np.concatenate([x.reshape(-1) for x in (*data, *ends)])
        return flat.mapped(lambda values: values[places])

    def of_scalars(self, jaxpr: Any, consts: Sequence[Any], operands: Operands) -> list[Any]:
        """Apply a jaxpr for scalars to each element of arrays."""
        import jax
        from jax.extend import core

        shape, flat = operands[0].shape, [x.reshape(-1) for x in operands]
        closed = jaxpr if hasattr(jaxpr, "jaxpr") else core.ClosedJaxpr(jaxpr, consts)
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat]
        mapped = jax.make_jaxpr(jax.vmap(core.jaxpr_as_fun(closed)))(*structs)
        return [x.reshape(shape) for x in self.run(mapped, flat)]


def plain(x: ExactArray) -> Any:
    """Return numbers as JAX takes them."""
    return x.values.astype(x.dtype)


def bind(eqn: Any, operands: Operands, **params: Any) -> list[Any]:
    """Apply the primitive of an equation, and return its results."""
    given = {**eqn.params, **({"sharding": None} if "sharding" in eqn.params else {}), **params}
    primitive = eqn.primitive
    found = primitive.bind(*operands, **primitive.get_bind_params(given))
    return list(found) if primitive.multiple_results else [found]


Rule = Callable[..., Any]
"""(evaluation, equation, *operands) -> a result, or a list of several."""

# Elements


def _elementwise(name: str) -> Rule:
    """Return the rule of a primitive that is an elementwise function of NumPy."""
    return lambda run, eqn, *operands: applied(name, *operands)


def _cast(run: Evaluator, eqn: Any, x: ExactArray) -> ExactArray:
    """Casts to integers take NaN as 0, and the nearest integer that there is."""
    dtype = np.dtype(eqn.params["new_dtype"])
    if not x.is_float or dtype.kind not in "iu":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    zero = run.np.zeros((), x.dtype)
    return run.np.clip(applied("where", applied("isnan", x), zero, x), limits.min, limits.max).astype(dtype)


def _select(run: Evaluator, eqn: Any, number: ExactArray, *cases: ExactArray) -> ExactArray:
    """Return for each element that of the case with a number."""
    found = cases[0]
    for i, case in enumerate(cases[1:], 1):
        found = applied("where", ExactArray(run.field, number.values == i, np.bool_), case, found)
    return found


def _logistic(run: Evaluator, eqn: Any, x: ExactArray) -> ExactArray:
    """Return 1 / (1 + exp(-x)), and for negative numbers exp(x) / (1 + exp(x)): `exp` has no laws here."""
    e = applied("exp", -applied("abs", x))
    found: ExactArray = applied("where", x >= 0, run.np.ones((), x.dtype), e) / (1.0 + e)
    return found


def _integer_pow(run: Evaluator, eqn: Any, x: ExactArray) -> ExactArray:
    """Return an integer power as repeated products; 1 over it for a negative exponent."""
    exponent = eqn.params["y"]
    found = reduce(lambda a, b: a * b, [x] * abs(exponent)) if exponent else x - x + 1.0
    return found if exponent >= 0 else 1.0 / found


def _is_finite(run: Evaluator, eqn: Any, x: ExactArray) -> ExactArray:
    found = x.values < INFINITY if x.is_residue else np.isfinite(x.values)
    return ExactArray(run.field, found, np.bool_)


# Moves


def _mapping(change: Callable[..., Any]) -> Rule:
    """Make the rule of a primitive from a function of an array of NumPy and the parameters."""
    return lambda run, eqn, x, *sizes: x.mapped(lambda values: change(values, eqn.params))


def _broadcast(values: Any, params: Mapping[str, Any]) -> Any:
    """Return an array with its axes at the places of `lax.broadcast_in_dim`, repeated along all other axes."""
    places, shape = params["broadcast_dimensions"], params["shape"]
    wide = [1] * len(shape)
    for size, place in zip(values.shape, places, strict=True):
        wide[place] = size
    return np.broadcast_to(values.reshape(wide), shape)


def _reshape(values: Any, params: Mapping[str, Any]) -> Any:
    order = params.get("dimensions")
    return (values if order is None else values.transpose(order)).reshape(params["new_sizes"])


def _slice(values: Any, params: Mapping[str, Any]) -> Any:
    strides = params["strides"] or (1,) * values.ndim
    return values[tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]


def _split(run: Evaluator, eqn: Any, x: ExactArray) -> list[ExactArray]:
    """Cut an array along an axis into parts of given sizes."""
    ends = np.cumsum(eqn.params["sizes"])
    lead = (slice(None),) * eqn.params["axis"]
    return [x[(*lead, slice(end - size, end))] for end, size in zip(ends, eqn.params["sizes"], strict=True)]


def _unstack(run: Evaluator, eqn: Any, x: ExactArray) -> list[ExactArray]:
    return [x.take(i, eqn.params["axis"]) for i in range(x.shape[eqn.params["axis"]])]


def _gather(run: Evaluator, eqn: Any, x: ExactArray, indices: ExactArray) -> ExactArray:
    fill = eqn.params["fill_value"]
    return run.moved(eqn, [x], [indices], np.nan if fill is None else float(fill), fill_value=-1)


def _targets(eqn: Any, table: ExactArray, indices: ExactArray, updates: ExactArray) -> Any:
    """Return for each element of the updates its position in the table, or -1 if it is outside: a gather of positions."""
    import jax

    numbers = eqn.params["dimension_numbers"]
    window = iter(numbers.update_window_dims)
    own = jax.lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    sizes = tuple(1 if k in gone else updates.shape[next(window)] for k in range(table.ndim))
    modes = jax.lax.GatherScatterMode
    mode = modes.CLIP if eqn.params["mode"] == modes.CLIP else modes.FILL_OR_DROP
    places = np.arange(table.size, dtype=np.int32).reshape(table.shape)
    return np.asarray(jax.lax.gather(places, plain(indices), own, sizes, mode=mode, fill_value=-1))


def _scatter(
    run: Evaluator, eqn: Any, table: ExactArray, indices: ExactArray, updates: ExactArray
) -> ExactArray:
    """Write updates one after the other. Which of several writes to a place is the last one is not known."""
    places = _targets(eqn, table, indices, updates).ravel()
    flat, given = table.reshape(-1), updates.reshape(-1)[places >= 0]
    places = places[places >= 0]
    name = eqn.primitive.name.replace("-", "_")
    if name in ("scatter_add", "scatter_sub"):
        sums = run.np.zeros(flat.shape, flat.dtype)
        Elementwise("add").at(sums, places, given)
        return applied("add" if name == "scatter_add" else "subtract", flat, sums).reshape(table.shape)
    flat, given, update = flat.residues().copy(), given.residues(), eqn.params["update_jaxpr"]
    times = _times_before(places)
    for n in range(times.max(initial=-1) + 1):
        where, new = places[times == n], given[times == n]
        if update is not None:
            (new,) = run.of_scalars(update, eqn.params["update_consts"], [flat[where], new])
        flat[where] = new
    if update is None:
        flat.values[places[times > 0]] = POISON
    return flat.reshape(table.shape)


def _times_before(places: Any) -> Any:
    """Return for each place how often it stands further to the front."""
    order = np.argsort(places, kind="stable")
    found, ordered = np.zeros(places.size, int), places[order]
    starts = np.searchsorted(ordered, ordered)
    found[order] = np.arange(places.size) - starts
    return found


# Reductions


def _argument(run: Evaluator, eqn: Any, x: ExactArray) -> ExactArray:
    function = np.argmax if eqn.primitive.name == "argmax" else np.argmin
    return ExactArray(run.field, function(x.keys(), axis=eqn.params["axes"][0]), eqn.params["index_dtype"])


def _reduced(name: str) -> Rule:
    """Make the rule of a primitive that reduces axes of arrays by an elementwise function."""
    return lambda run, eqn, *xs: [REDUCTIONS[name](x, tuple(eqn.params["axes"]), False) for x in xs]


def _running(name: str) -> Rule:
    """Make the rule of a primitive that combines elements one after the other along an axis by an elementwise function."""

    def rule(run: Evaluator, eqn: Any, x: ExactArray) -> ExactArray:
        """Apply an op along an axis, each element with the result before it."""
        axis, parts = eqn.params["axis"], list[ExactArray]()
        for i in range(x.shape[axis])[:: -1 if eqn.params["reverse"] else 1]:
            part = x.take(i, axis)
            parts.append(applied(name, parts[-1], part) if parts else part)
        return run.np.stack(parts[::-1] if eqn.params["reverse"] else parts, axis) if parts else x

    return rule


def _cumsum(run: Evaluator, eqn: Any, x: ExactArray) -> ExactArray:
    """Return the cumulative sum along an axis, from the end if the primitive is reversed."""
    axis, is_reverse = eqn.params["axis"], eqn.params["reverse"]

    def turned(each: ExactArray) -> ExactArray:
        return each.mapped(lambda values: np.flip(values, axis)) if is_reverse else each

    return turned(cumulative(turned(x), axis))


def _folded(run: Evaluator, eqn: Any, stacks: Operands, starts: Operands) -> list[Any]:
    """Reduce the last axis of some arrays by the jaxpr of the equation."""
    shape = stacks[0].shape[:-1]
    carry = [x.mapped(lambda values: np.broadcast_to(values, shape)) for x in starts]
    for i in range(stacks[0].shape[-1]):
        operands = [*carry, *(x[..., i] for x in stacks)]
        carry = run.of_scalars(eqn.params["jaxpr"], eqn.params.get("consts", ()), operands)
    return carry


def _reduce(run: Evaluator, eqn: Any, *operands: ExactArray) -> list[Any]:
    """Reduce arrays along dimensions with a function of JAX, in order. operands: the arrays, then the start of each."""
    arrays, starts = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    gone = tuple(eqn.params["dimensions"])
    kept = [j for j in range(arrays[0].ndim) if j not in gone]
    shape = [arrays[0].shape[j] for j in kept]
    stacks = [x.transpose([*kept, *gone]).reshape(*shape, -1) for x in arrays]
    return _folded(run, eqn, stacks, starts)


# Windows


def windows(shape: Sequence[int], params: Mapping[str, Any]) -> Any:
    """Return the positions of the elements of each window, along a last axis; -1 for elements of the padding."""
    ones, found, strides = (1,) * len(shape), np.zeros((), int), np.cumprod([1, *shape[:0:-1]])[::-1]
    rows = zip(
        shape,
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params.get("base_dilation") or ones,
        params.get("window_dilation") or ones,
        strict=True,
    )
    is_outside = np.zeros((), bool)
    for j, (size, window, stride, (low, high), spacing, dilation) in enumerate(rows):
        length = low + (size - 1) * spacing + 1 + high
        number = (length - (window - 1) * dilation - 1) // stride + 1
        places = np.arange(number)[:, None] * stride + np.arange(window) * dilation - low
        gone = (places < 0) | (places % spacing != 0) | (places // spacing >= size)
        axes = [i for i in range(2 * len(shape)) if i not in (j, len(shape) + j)]
        found = found + np.expand_dims(places // spacing, axes) * strides[j]
        is_outside = is_outside | np.expand_dims(gone, axes)
    found = np.where(is_outside, -1, found)
    return found.reshape(*found.shape[: len(shape)], -1)


def _pooled(name: str, fill: float) -> Rule:
    """Make the rule of a primitive that reduces windows by an elementwise function. fill: elements of the padding."""
    return lambda run, eqn, x: REDUCTIONS[name](run.taken([x], windows(x.shape, eqn.params), fill), -1, False)


def _reduce_window(run: Evaluator, eqn: Any, *operands: ExactArray) -> list[Any]:
    """Reduce each window of arrays with a function of JAX; places outside of the arrays count as the start."""
    arrays, starts = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    places = windows(arrays[0].shape, eqn.params)
    stacks = [
        applied("where", ExactArray(run.field, places < 0, np.bool_), start, run.taken([x], places))
        for x, start in zip(arrays, starts, strict=True)
    ]
    return _folded(run, eqn, stacks, starts)


def _selected(run: Evaluator, eqn: Any, x: ExactArray) -> Any:
    """Return the position of the first largest, or smallest, element of each window."""
    sign = -1 if eqn.params["select_prim"].name == "le" else 1
    places = windows(x.shape, eqn.params)
    keys = np.where(places < 0, -np.inf, sign * x.keys().ravel()[places])
    return np.take_along_axis(places, np.argmax(keys, -1)[..., None], -1)[..., 0]


def _select_and_scatter_add(run: Evaluator, eqn: Any, source: ExactArray, x: ExactArray) -> ExactArray:
    """Add the elements of `source` to the places that each window of `x` selects: the gradient of a maximum pooling."""
    sums = run.np.zeros((x.size,), source.dtype)
    Elementwise("add").at(sums, _selected(run, eqn, x).ravel(), source.reshape(-1))
    return sums.reshape(x.shape)


def _select_and_gather_add(run: Evaluator, eqn: Any, tangents: ExactArray, x: ExactArray) -> ExactArray:
    return tangents.reshape(-1)[_selected(run, eqn, x)]


def _convolution(run: Evaluator, eqn: Any, x: ExactArray, kernel: ExactArray) -> ExactArray:
    """Return the convolution of residues: gather the elements of all windows, and contract them with the kernel.

    A place outside of the input reads a last element, which is 0.
    """
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    x, kernel = x.transpose(numbers.lhs_spec), kernel.transpose(numbers.rhs_spec)
    sizes = {
        "window_dimensions": kernel.shape[2:],
        "window_strides": params["window_strides"],
        "padding": params["padding"],
        "base_dilation": params["lhs_dilation"],
        "window_dilation": params["rhs_dilation"],
    }
    places = windows(x.shape[2:], sizes)
    flat = run.np.concatenate([x.reshape(*x.shape[:2], -1), run.np.zeros((*x.shape[:2], 1), x.dtype)], -1)
    inside = flat[:, :, places.reshape(-1, places.shape[-1])]
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    features, count = x.shape[1] // groups, x.shape[0] // batches
    split = inside.reshape(batches, count, groups, features, *inside.shape[2:])
    filters = kernel.reshape(batches, groups, -1, features, inside.shape[-1])
    found = einsum("bngcok,bgmck->nbgmo", split, filters).reshape(count, -1, *places.shape[:-1])
    return found.transpose(np.argsort(numbers.out_spec))


def _dot(run: Evaluator, eqn: Any, x: ExactArray, y: ExactArray) -> ExactArray:
    """Return the dot of residues, as an einsum whose letters name the dimensions that JAX contracts and batches."""
    ((left, right), (left_batch, right_batch)) = eqn.params["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    a = [next(letters) for _ in range(x.ndim)]
    b = [next(letters) for _ in range(y.ndim)]
    for i, j in zip((*left, *left_batch), (*right, *right_batch), strict=True):
        b[j] = a[i]
    batch = [a[i] for i in left_batch]
    free = [c for c in a if c not in b] + [c for c in b if c not in a]
    return einsum(f"{''.join(a)},{''.join(b)}->{''.join((*batch, *free))}", x, y)


# Order


def _sort(run: Evaluator, eqn: Any, *operands: ExactArray) -> list[Any]:
    """Sort arrays along an axis by the first ones, the keys."""
    axis, keys = eqn.params["dimension"], operands[: eqn.params["num_keys"]]
    order = np.lexsort([x.keys() for x in reversed(keys)], axis)
    return [x.mapped(lambda values: np.take_along_axis(values, order, axis)) for x in operands]


def _top_k(run: Evaluator, eqn: Any, x: ExactArray) -> list[ExactArray]:
    """Return the k largest or least elements, and their indices. Residues are compared by keys."""
    axis = eqn.params.get("axis", eqn.params.get("reduction_dimension", -1))
    sign = 1 if eqn.params.get("is_max_k", True) else -1
    order = np.argsort(-sign * x.keys(), axis=axis, kind="stable")
    order = np.take(order, range(eqn.params["k"]), axis)
    best = x.mapped(lambda values: np.take_along_axis(values, order, axis))
    return [best, ExactArray(run.field, order.astype(np.int32), np.int32)]


RULES: Mapping[str, Rule] = {
    **{
        name: _elementwise(function)
        for name, function in {
            "add": "add", "add_any": "add", "sub": "subtract", "mul": "multiply", "neg": "negative", "abs": "abs",
            "sign": "sign", "max": "maximum", "min": "minimum", "lt": "less", "le": "less_equal", "gt": "greater",
            "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
        }.items()
    },
    **dict.fromkeys(
        ("copy", "copy_p", "name", "stop_gradient", "sharding_constraint", "mesh_cast", "reshard", "pvary", "pcast",
         "optimization_barrier", "device_put", "reduce_precision"),
        lambda run, eqn, *operands: [*operands],
    ),
    "convert_element_type": _cast,
    "select_n": _select,
    "broadcast_in_dim": _mapping(_broadcast),
    "reshape": _mapping(_reshape),
    "transpose": _mapping(lambda values, params: values.transpose(params["permutation"])),
    "squeeze": _mapping(lambda values, params: np.squeeze(values, tuple(params["dimensions"]))),
    "expand_dims": _mapping(lambda values, params: np.expand_dims(values, tuple(params["dimensions"]))),
    "rev": _mapping(lambda values, params: np.flip(values, tuple(params["dimensions"]))),
    "slice": _mapping(_slice),
    "split": _split,
    "stack": lambda run, eqn, *xs: run.np.stack(xs, eqn.params["axis"]),
    "unstack": _unstack,
    "tile": _mapping(lambda values, params: np.tile(values, params["reps"])),
    "concatenate": lambda run, eqn, *xs: run.np.concatenate(xs, eqn.params["dimension"]),
    "reduce_sum": _reduced("add"),
    "sort": _sort,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
}  # fmt: skip
"""Primitive -> its rule for arrays of any numbers."""

ON_FLOATS: Mapping[str, Rule] = {
    **{name: _elementwise(name) for name in ("exp", "log", "tanh", "sqrt", "erf", "sin", "cos", "floor")},
    "div": _elementwise("divide"),
    "pow": _elementwise("power"),
    "square": lambda run, eqn, x: x * x,
    "rsqrt": lambda run, eqn, x: 1.0 / applied("sqrt", x),
    "log1p": lambda run, eqn, x: applied("log", x + 1.0),
    "expm1": lambda run, eqn, x: applied("exp", x) - 1.0,
    "tan": lambda run, eqn, x: applied("sin", x) / applied("cos", x),
    "erfc": lambda run, eqn, x: 1.0 - applied("erf", x),
    "one_minus_square": lambda run, eqn, x: 1.0 - x * x,
    "logistic": _logistic,
    "integer_pow": _integer_pow,
    "clamp": lambda run, eqn, low, x, high: extremum("minimum", extremum("maximum", x, low), high),
    "is_finite": _is_finite,
    "dynamic_slice": lambda run, eqn, x, *starts: run.moved(eqn, [x], starts),
    "dynamic_update_slice": lambda run, eqn, x, update, *starts: run.moved(eqn, [x, update], starts),
    "pad": lambda run, eqn, x, value: run.moved(eqn, [x.residues(), value.residues()]),
    "gather": _gather,
    **{f"scatter{kind}": _scatter for kind in ("", *(s + k for s in "-_" for k in ("add", "sub", "mul", "min", "max")))},
    **{f"reduce_{name}": _reduced(REDUCING[name]) for name in ("max", "min", "prod")},
    **{f"p{name}": _reduced(REDUCING[name]) for name in ("sum", "max", "min")},
    "argmax": _argument,
    "argmin": _argument,
    "cumsum": _cumsum,
    **{f"cum{name}": _running(REDUCING[name]) for name in ("prod", "max", "min")},
    "cumlogsumexp": lambda run, eqn, x: applied("log", _cumsum(run, eqn, applied("exp", x))),
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    **{
        f"reduce_window_{name}": _pooled(REDUCING[name], fill)
        for name, fill in {"sum": 0.0, "max": -np.inf, "min": np.inf}.items()
    },
    "select_and_scatter_add": _select_and_scatter_add,
    "select_and_gather_add": _select_and_gather_add,
    "top_k": _top_k,
    "approx_top_k": _top_k,
}  # fmt: skip
"""Primitive -> its rule for arrays of which one has floats. JAX computes the results of others."""
