"""An interpreter of JAX's primitives over a finite field: the independent side of the check of an import.

It takes the user's jaxpr as it is, with residues for floats and with axes by position, and knows nothing of dimensions, factors
or layouts. Integers, truth values and random keys are computed by JAX's own primitives. Primitives that move elements are JAX's own,
too: they run on the positions of the elements, and NumPy takes the residues from there. So each rule is short, and shares
nothing with the import.

Whatever has no rule is a function of JAX that is interpreted in its place, or else a pseudo-random function of its operands.
`ImportedNumpy` gives the calls of an imported program the same meaning: it traces a call, and interprets the jaxpr.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from importlib import import_module
from math import prod
from typing import Any

import attrs
import numpy as np

from mtfc.backends.exact.check import Evaluation, measured
from mtfc.backends.exact.namespace import Elementwise, ExactNumpy
from mtfc.backends.exact.prime_field import PrimeField
from mtfc.backends.exact.residues import (
    INFINITY,
    POISON,
    ExactArray,
    applied,
    exact,
    extremum,
)
from mtfc.backends.exact.sums import cumulative, einsum, largest, product, total
from mtfc.backends.exact.uninterpreted import digest, pseudo_random
from mtfc.compiler.ir.ops.calls import applied_call

Operands = Sequence[Any]
"""Values: an `ExactArray` each, or an array of random keys of JAX."""

LONGEST_LOOP = 128
"""The number of iterations after which a loop that does not end is left."""


@attrs.define(eq=False)
class JaxprOnField:
    """The evaluation of jaxprs over a field.

    constants: arrays that the function closes over, and the values that stand for them. longest: the number of iterations after
    which a `while` is left. cut_loops: the number of loops that were left.
    """

    field: PrimeField
    constants: Sequence[tuple[Any, Any]] = ()
    longest: int = LONGEST_LOOP
    cut_loops: int = 0

    @property
    def np(self) -> ExactNumpy:
        return ExactNumpy(self.field)

    def run(self, closed: Any, operands: Operands) -> list[Any]:
        """Return the results of a jaxpr."""
        jaxpr = getattr(closed, "jaxpr", closed)
        env: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
        env |= {
            v: self.constant(x) for v, x in zip(jaxpr.constvars, getattr(closed, "consts", ()), strict=True)
        }

        def read(v: Any) -> Any:
            return self.constant(v.val, v.aval.dtype) if hasattr(v, "val") else env[v]

        for eqn in jaxpr.eqns:
            found = self.results(eqn, [read(v) for v in eqn.invars])
            env.update(zip(eqn.outvars, map(_of_type, eqn.outvars, found), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def constant(self, x: Any, dtype: Any = None) -> Any:
        """Return a number that is written in a jaxpr, or an array that the function closes over."""
        if _is_key(x) or np.ndim(x):
            for array, value in self.constants:
                if array is x or _is_same(array, x):
                    return value
            return x if _is_key(x) else measured(self.field, np.asarray(x))
        number = np.asarray(x, dtype or getattr(x, "dtype", None))
        return exact(self.field, number, number.dtype)

    def results(self, eqn: Any, operands: Operands) -> Sequence[Any]:
        """Return the results of one equation."""
        name = eqn.primitive.name
        has_floats = any(map(_is_float, operands))
        if name in CALLS:
            inner = eqn.params[CALLS[name]]
            number = len(getattr(inner, "jaxpr", inner).invars)
            return self.run(inner, operands[len(operands) - number :])
        rule = CONTROL.get(name) or (RULES.get(name) if not any(map(_is_key, operands)) else None)
        if rule is None and has_floats:
            rule = ON_FLOATS.get(name)
        if rule is not None:
            found = rule(self, eqn, *operands)
            return found if isinstance(found, list) else [found]
        is_real = not any(x.is_residue for x in operands if isinstance(x, ExactArray))
        if not has_floats or (is_real and name in OF_REAL_NUMBERS):
            return self.by_jax(eqn, operands)
        inner = own_function(eqn)
        return self.hashed(eqn, operands) if inner is None else self.run(inner, operands)

    def by_jax(self, eqn: Any, operands: Operands, **params: Any) -> list[Any]:
        """Return the results that JAX computes of plain numbers."""
        given = [plain(x) if isinstance(x, ExactArray) else x for x in operands]
        return [x if _is_key(x) else measured(self.field, np.asarray(x)) for x in bind(eqn, given, **params)]

    def moved(
        self, eqn: Any, data: Operands, others: Operands = (), fill: Any = None, **params: Any
    ) -> ExactArray:
        """Return the result of a primitive that moves elements of its first operands, as it moves their positions.

        fill: the element at the position -1.
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

    def hashed(self, eqn: Any, operands: Operands) -> list[Any]:
        """Return pseudo-random results of a primitive: of each element, each matrix, or of whole operands."""
        avals = [v.aval for v in eqn.outvars]
        arrays = [x if isinstance(x, ExactArray) else self._key_data(x) for x in operands]
        core = _core(eqn, max((x.ndim for x in arrays), default=0))
        text = repr([eqn.primitive.name, sorted(filter(_is_plain, eqn.params.items()))])
        digests = [digest(self.field, x, min(core, x.ndim)) for x in arrays]
        whole = self.field.hashed(text, np.zeros((), np.uint64), *digests)
        self.field.count("results of primitives of JAX", sum(prod(each.shape) for each in avals))
        found = [
            pseudo_random(self.field, f"result {i}", whole, aval.shape[whole.ndim :], aval.dtype)
            for i, aval in enumerate(avals)
        ]
        for x in (x for x in arrays if x.has_special):
            is_poison = (x.values == POISON).any(tuple(range(x.ndim))[max(x.ndim - core, 0) :])
            for result in filter(_is_float, found):
                lead = is_poison.reshape(*is_poison.shape, *(1,) * (result.ndim - whole.ndim))
                result.values = np.where(lead, POISON, result.values)
        return found

    def of_scalars(self, jaxpr: Any, consts: Sequence[Any], operands: Operands) -> list[Any]:
        """Apply a jaxpr for scalars to each element of arrays."""
        import jax

        shape, flat = operands[0].shape, [x.reshape(-1) for x in operands]
        from jax.extend import core

        extend: Any = core
        closed = jaxpr if hasattr(jaxpr, "jaxpr") else extend.ClosedJaxpr(jaxpr, consts)
        struct: Any = jax.ShapeDtypeStruct
        structs = [struct(x.shape, x.dtype) for x in flat]
        mapped = jax.make_jaxpr(jax.vmap(extend.jaxpr_as_fun(closed)))(*structs)
        return [x.reshape(shape) for x in self.run(mapped, flat)]

    def _key_data(self, keys: Any) -> ExactArray:
        import jax

        return measured(self.field, np.asarray(jax.random.key_data(keys)))


class ImportedNumpy(ExactNumpy):
    """NumPy for an imported program, whose calls are interpreted. jaxprs: (call, shapes) -> jaxpr."""

    def __init__(self, field: PrimeField) -> None:
        super().__init__(field)
        self.evaluation = JaxprOnField(field)
        self.jaxprs: dict[Any, Any] = {}

    def mapped_call(
        self,
        name: str,
        sizes: Sequence[int],
        places: Sequence[tuple[int, ...]],
        ranks: Sequence[int],
        *arrays: Any,
    ) -> tuple[ExactArray, ...]:
        """Return what `ir/ops/calls.py: mapped_call` returns, over the field."""
        import jax

        struct: Any = jax.ShapeDtypeStruct
        given = [exact(self.field, x) for x in arrays]
        call = name, tuple(sizes), tuple(places), tuple(ranks)
        key = call, tuple((x.shape, x.dtype) for x in given)
        if key not in self.jaxprs:
            structs = [struct(x.shape, x.dtype) for x in given]
            self.jaxprs[key] = jax.make_jaxpr(partial(applied_call, *call))(*structs)
        return tuple(self.evaluation.run(self.jaxprs[key], given))


class ImportedEvaluation(Evaluation):
    """The evaluation of an imported program, op by op, with its calls interpreted."""

    longest = LONGEST_LOOP

    def __init__(self, field: PrimeField) -> None:
        super().__init__(field)
        self.np = ImportedNumpy(field)


# Facts


def _is_key(x: Any) -> bool:
    import jax

    return isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)


def _is_float(x: Any) -> bool:
    return isinstance(x, ExactArray) and x.is_float


def _is_same(array: Any, x: Any) -> bool:
    if array.shape != x.shape or array.dtype != x.dtype:
        return False
    import jax

    a, b = (jax.random.key_data(each) if _is_key(each) else each for each in (array, x))
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _is_plain(item: tuple[str, Any]) -> bool:
    """Return True for a parameter whose text says what it is."""
    is_number = isinstance(item[1], bool | int | float | str)
    return is_number or (isinstance(item[1], tuple) and all(isinstance(x, int) for x in item[1]))


def _of_type(var: Any, x: Any) -> Any:
    """Return a value with the dtype of a variable."""
    if isinstance(x, ExactArray):
        assert x.shape == var.aval.shape, f"{x.shape}, and not {var.aval.shape}"
        return x if x.dtype == var.aval.dtype else x.astype(var.aval.dtype)
    return x


def plain(x: ExactArray) -> Any:
    """Return numbers as JAX takes them."""
    return x.values.astype(x.dtype)


def bind(eqn: Any, operands: Operands, **params: Any) -> list[Any]:
    """Apply the primitive of an equation, and return its results."""
    given = {**eqn.params, **({"sharding": None} if "sharding" in eqn.params else {}), **params}
    primitive = eqn.primitive
    found = primitive.bind(*operands, **primitive.get_bind_params(given))
    return list(found) if primitive.multiple_results else [found]


# Calls, branches and loops

CALLS = {
    **dict.fromkeys(("jit", "pjit", "remat2", "checkpoint", "composite"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_lin"), "call_jaxpr"),
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}  # fmt: skip
"""Primitive that is computed by a jaxpr -> the parameter that has it."""


def _cond(run: JaxprOnField, eqn: Any, number: ExactArray, *operands: Any) -> list[Any]:
    branches = eqn.params["branches"]
    return run.run(branches[min(max(int(number.values), 0), len(branches) - 1)], operands)


def _scan(run: JaxprOnField, eqn: Any, *operands: Any) -> list[Any]:
    """Iterate over the first axis of the stacks."""
    params = eqn.params
    body, length = params["jaxpr"], params["length"]
    if "num_consts" in params:
        consts, carries = params["num_consts"], params["num_carry"]
    else:
        consts, carries = (len(each.vals) for each in params["ft_in"].unpack()[:2])
    fixed, carry, stacks = (
        operands[:consts],
        operands[consts : consts + carries],
        operands[consts + carries :],
    )
    order = range(length)[::-1] if params["reverse"] else range(length)
    found: list[Any] = [None] * length
    for i in order:
        results = run.run(body, [*fixed, *carry, *(x[i] for x in stacks)])
        carry, found[i] = tuple(results[:carries]), results[carries:]
    outputs = [_stacked(run, [each[j] for each in found], v) for j, v in enumerate(eqn.outvars[carries:])]
    return [*carry, *outputs]


def _stacked(run: JaxprOnField, parts: Operands, var: Any) -> Any:
    if parts and not isinstance(parts[0], ExactArray):
        import jax

        return jax.numpy.stack(parts)
    return run.np.stack(parts) if parts else run.np.zeros(var.aval.shape, var.aval.dtype)


def _while(run: JaxprOnField, eqn: Any, *operands: Any) -> list[Any]:
    """Iterate while the condition holds. `jax.vmap` makes conditions with a truth value for each example."""
    params = eqn.params
    n, m = params["cond_nconsts"], params["body_nconsts"]
    asked, fixed, carry = operands[:n], operands[n : n + m], list(operands[n + m :])
    for _ in range(run.longest):
        (goes_on,) = run.run(params["cond_jaxpr"], [*asked, *carry])
        if not goes_on.values.any():
            return carry
        found = run.run(params["body_jaxpr"], [*fixed, *carry])
        carry = [_where(run, goes_on, x, y) for x, y in zip(found, carry, strict=True)]
    run.cut_loops += 1
    return carry


def _where(run: JaxprOnField, condition: ExactArray, x: Any, y: Any) -> Any:
    """Return x where a condition holds for the first axes, and y elsewhere."""
    if condition.values.all():
        return x
    shape = (*condition.shape, *(1,) * (x.ndim - condition.ndim))
    if not isinstance(x, ExactArray):
        import jax

        return jax.numpy.where(condition.values.reshape(shape), x, y)
    return applied("where", condition.reshape(shape), x, y)


Rule = Callable[..., Any]
"""(evaluation, equation, *operands) -> a result, or a list of several."""

CONTROL: Mapping[str, Rule] = {"cond": _cond, "scan": _scan, "while": _while}


# Elements


def _elementwise(name: str) -> Rule:
    return lambda run, eqn, *operands: applied(name, *operands)


def _cast(run: JaxprOnField, eqn: Any, x: ExactArray) -> ExactArray:
    """Casts to integers take NaN as 0, and the nearest integer that there is."""
    dtype = np.dtype(eqn.params["new_dtype"])
    if not x.is_float or dtype.kind not in "iu":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    zero = run.np.zeros((), x.dtype)
    return run.np.clip(applied("where", applied("isnan", x), zero, x), limits.min, limits.max).astype(dtype)


def _select(run: JaxprOnField, eqn: Any, number: ExactArray, *cases: ExactArray) -> ExactArray:
    found = cases[0]
    for i, case in enumerate(cases[1:], 1):
        found = applied("where", ExactArray(run.field, number.values == i, np.bool_), case, found)
    return found


def _logistic(run: JaxprOnField, eqn: Any, x: ExactArray) -> ExactArray:
    """Return 1 / (1 + exp(-x)), and for negative numbers exp(x) / (1 + exp(x)): `exp` has no laws here."""
    e = applied("exp", -applied("abs", x))
    return applied("where", x >= 0, run.np.ones((), x.dtype), e) / (1.0 + e)


def _integer_pow(run: JaxprOnField, eqn: Any, x: ExactArray) -> ExactArray:
    exponent = eqn.params["y"]
    found = reduce(lambda a, b: a * b, [x] * abs(exponent)) if exponent else x - x + 1.0
    return found if exponent >= 0 else 1.0 / found


def _clamp(run: JaxprOnField, eqn: Any, low: Any, x: Any, high: Any) -> ExactArray:
    return extremum("minimum", extremum("maximum", x, low), high)


def _is_finite(run: JaxprOnField, eqn: Any, x: ExactArray) -> ExactArray:
    found = x.values < INFINITY if x.is_residue else np.isfinite(x.values)
    return ExactArray(run.field, found, np.bool_)


def _identity(run: JaxprOnField, eqn: Any, *operands: Any) -> list[Any]:
    return [*operands]


# Moves


def _mapping(change: Callable[..., Any]) -> Rule:
    """Make the rule of a primitive from a function of an array of NumPy and the parameters."""
    return lambda run, eqn, x, *sizes: x.mapped(lambda values: change(values, eqn.params))


def _broadcast(values: Any, params: Mapping[str, Any]) -> Any:
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


def _split(run: JaxprOnField, eqn: Any, x: ExactArray) -> list[ExactArray]:
    ends = np.cumsum(eqn.params["sizes"])
    lead = (slice(None),) * eqn.params["axis"]
    return [x[(*lead, slice(end - size, end))] for end, size in zip(ends, eqn.params["sizes"], strict=True)]


def _unstack(run: JaxprOnField, eqn: Any, x: ExactArray) -> list[ExactArray]:
    return [x.take(i, eqn.params["axis"]) for i in range(x.shape[eqn.params["axis"]])]


def _dynamic_slice(run: JaxprOnField, eqn: Any, x: ExactArray, *starts: Any) -> ExactArray:
    return run.moved(eqn, [x], starts)


def _dynamic_update(
    run: JaxprOnField, eqn: Any, x: ExactArray, update: ExactArray, *starts: Any
) -> ExactArray:
    return run.moved(eqn, [x, update], starts)


def _pad(run: JaxprOnField, eqn: Any, x: ExactArray, value: ExactArray) -> ExactArray:
    return run.moved(eqn, [x.residues(), value.residues()])


def _gather(run: JaxprOnField, eqn: Any, x: ExactArray, indices: ExactArray) -> ExactArray:
    fill = eqn.params["fill_value"]
    return run.moved(eqn, [x], [indices], np.nan if fill is None else float(fill), fill_value=-1)


def _targets(eqn: Any, table: ExactArray, indices: ExactArray, updates: ExactArray) -> Any:
    """Return the position in the table of each element of the updates, and -1 for those outside: a gather of positions."""
    import jax

    numbers, window = (
        eqn.params["dimension_numbers"],
        iter(eqn.params["dimension_numbers"].update_window_dims),
    )
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
    run: JaxprOnField, eqn: Any, table: ExactArray, indices: ExactArray, updates: ExactArray
) -> ExactArray:
    """Write updates one after the other. Which of several writes to a place is the last one is not known."""
    places = _targets(eqn, table, indices, updates).ravel()
    flat, given = table.reshape(-1), updates.reshape(-1)[places >= 0]
    places = places[places >= 0]
    name = eqn.primitive.name.replace("-", "_")
    if name in ("scatter_add", "scatter_sub"):
        sums = run.np.zeros(flat.shape, flat.dtype)
        Elementwise("add").at(sums, places, given)
        return (flat + sums if name == "scatter_add" else flat - sums).reshape(table.shape)
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


def _axes(eqn: Any) -> tuple[int, ...]:
    return tuple(eqn.params["axes"])


def _argument(run: JaxprOnField, eqn: Any, x: ExactArray) -> ExactArray:
    function = np.argmax if eqn.primitive.name == "argmax" else np.argmin
    return ExactArray(run.field, function(x.keys(), axis=_axes(eqn)[0]), eqn.params["index_dtype"])


def _running(combine: Callable[[ExactArray, ExactArray], ExactArray]) -> Rule:
    """Make the rule of a primitive that combines elements one after the other along an axis."""

    def rule(run: JaxprOnField, eqn: Any, x: ExactArray) -> ExactArray:
        axis, parts = eqn.params["axis"], list[ExactArray]()
        for i in range(x.shape[axis])[:: -1 if eqn.params["reverse"] else 1]:
            part = x.take(i, axis)
            parts.append(combine(parts[-1], part) if parts else part)
        return run.np.stack(parts[::-1] if eqn.params["reverse"] else parts, axis) if parts else x

    return rule


def _cumsum(run: JaxprOnField, eqn: Any, x: ExactArray) -> ExactArray:
    axis, is_reverse = eqn.params["axis"], eqn.params["reverse"]

    def turned(each: ExactArray) -> ExactArray:
        return each.mapped(lambda values: np.flip(values, axis)) if is_reverse else each

    return turned(cumulative(turned(x), axis))


def _cumlogsumexp(run: JaxprOnField, eqn: Any, x: ExactArray) -> ExactArray:
    return applied("log", _cumsum(run, eqn, applied("exp", x)))


def _folded(run: JaxprOnField, eqn: Any, stacks: Operands, starts: Operands) -> list[Any]:
    """Reduce the last axis of some arrays by the jaxpr of the equation."""
    shape = stacks[0].shape[:-1]
    carry = [x.mapped(lambda values: np.broadcast_to(values, shape)) for x in starts]
    for i in range(stacks[0].shape[-1]):
        operands = [*carry, *(x[..., i] for x in stacks)]
        carry = run.of_scalars(eqn.params["jaxpr"], eqn.params.get("consts", ()), operands)
    return carry


def _reduce(run: JaxprOnField, eqn: Any, *operands: ExactArray) -> list[Any]:
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


def _pooled(combine: Callable[[ExactArray], ExactArray], fill: float) -> Rule:
    def rule(run: JaxprOnField, eqn: Any, x: ExactArray) -> ExactArray:
        return combine(run.taken([x], windows(x.shape, eqn.params), fill))

    return rule


def _reduce_window(run: JaxprOnField, eqn: Any, *operands: ExactArray) -> list[Any]:
    arrays, starts = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    places = windows(arrays[0].shape, eqn.params)
    stacks = [
        applied("where", ExactArray(run.field, places < 0, np.bool_), start, run.taken([x], places))
        for x, start in zip(arrays, starts, strict=True)
    ]
    return _folded(run, eqn, stacks, starts)


def _selected(run: JaxprOnField, eqn: Any, x: ExactArray) -> Any:
    """Return the position of the first largest, or smallest, element of each window."""
    sign = -1 if eqn.params["select_prim"].name == "le" else 1
    places = windows(x.shape, eqn.params)
    keys = np.where(places < 0, -np.inf, sign * x.keys().ravel()[places])
    return np.take_along_axis(places, np.argmax(keys, -1)[..., None], -1)[..., 0]


def _select_and_scatter_add(run: JaxprOnField, eqn: Any, source: ExactArray, x: ExactArray) -> ExactArray:
    sums = run.np.zeros((x.size,), source.dtype)
    Elementwise("add").at(sums, _selected(run, eqn, x).ravel(), source.reshape(-1))
    return sums.reshape(x.shape)


def _select_and_gather_add(run: JaxprOnField, eqn: Any, tangents: ExactArray, x: ExactArray) -> ExactArray:
    return tangents.reshape(-1)[_selected(run, eqn, x)]


def _convolution(run: JaxprOnField, eqn: Any, x: ExactArray, kernel: ExactArray) -> ExactArray:
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


def _dot(run: JaxprOnField, eqn: Any, x: ExactArray, y: ExactArray) -> ExactArray:
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


def _sort(run: JaxprOnField, eqn: Any, *operands: ExactArray) -> list[Any]:
    axis, keys = eqn.params["dimension"], operands[: eqn.params["num_keys"]]
    order = np.lexsort([x.keys() for x in reversed(keys)], axis)
    return [x.mapped(lambda values: np.take_along_axis(values, order, axis)) for x in operands]


def _top_k(run: JaxprOnField, eqn: Any, x: ExactArray) -> list[ExactArray]:
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
        _identity,
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
    "reduce_sum": lambda run, eqn, x: total(x, _axes(eqn)),
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
    "clamp": _clamp,
    "is_finite": _is_finite,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "pad": _pad,
    "gather": _gather,
    **{f"scatter{kind}": _scatter for kind in ("", *(s + k for s in "-_" for k in ("add", "sub", "mul", "min", "max")))},
    "reduce_max": lambda run, eqn, x: largest(x, _axes(eqn), False),
    "reduce_min": lambda run, eqn, x: largest(x, _axes(eqn), False, -1),
    "reduce_prod": lambda run, eqn, x: product(x, _axes(eqn)),
    "psum": lambda run, eqn, *xs: [total(x, _axes(eqn)) for x in xs],
    "pmax": lambda run, eqn, *xs: [largest(x, _axes(eqn), False) for x in xs],
    "pmin": lambda run, eqn, *xs: [largest(x, _axes(eqn), False, -1) for x in xs],
    "argmax": _argument,
    "argmin": _argument,
    "cumsum": _cumsum,
    "cumprod": _running(lambda x, y: x * y),
    "cummax": _running(partial(extremum, "maximum")),
    "cummin": _running(partial(extremum, "minimum")),
    "cumlogsumexp": _cumlogsumexp,
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "reduce_window_sum": _pooled(lambda x: total(x, -1), 0.0),
    "reduce_window_max": _pooled(lambda x: largest(x, -1, False), -np.inf),
    "reduce_window_min": _pooled(lambda x: largest(x, -1, False, -1), np.inf),
    "select_and_scatter_add": _select_and_scatter_add,
    "select_and_gather_add": _select_and_gather_add,
    "top_k": _top_k,
    "approx_top_k": _top_k,
}  # fmt: skip
"""Primitive -> its rule for arrays of which one has floats. JAX computes the results of others."""

OF_REAL_NUMBERS = frozenset({"bitcast_convert_type", "ceil", "nextafter", "rem", "round"})
"""Primitives that JAX computes also of floats that are made of constants, indices and random bits alone."""

ELEMENTWISE = frozenset({
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e", "bessel_i1e", "bitcast_convert_type",
    "cbrt", "ceil", "copysign", "cosh", "digamma", "erf_inv", "exp2", "igamma", "igamma_grad_a", "igammac", "lgamma",
    "nextafter", "polygamma", "random_gamma_grad", "rem", "round", "sinh", "zeta",
})  # fmt: skip
"""Primitives without a rule that work element by element."""

OF_MATRICES = frozenset({
    "cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "schur", "svd", "triangular_solve",
    "tridiagonal", "tridiagonal_solve",
})  # fmt: skip


def _core(eqn: Any, rank: int) -> int:
    """Return the number of last axes along which a primitive without a rule needs whole operands."""
    name = eqn.primitive.name
    if name in ELEMENTWISE:
        return 0
    if name == "fft":
        return len(eqn.params["fft_lengths"])
    return 2 if name in OF_MATRICES else rank


FUNCTIONS_OF_JAX = {
    "ragged_dot_general": ("jax._src.lax.lax", "_ragged_dot_general_impl"),
    "regularized_incomplete_beta": ("jax._src.lax.special", "regularized_incomplete_beta_impl"),
    "bcoo_dot_general": ("jax.experimental.sparse.bcoo", "_bcoo_dot_general_impl"),
    "bcsr_dot_general": ("jax.experimental.sparse.bcsr", "_bcsr_dot_general_impl"),
}
"""Primitive -> module and name of the function by which JAX computes it."""


def own_function(eqn: Any) -> Any:
    """Return the jaxpr of the function that computes a primitive, if it is made of other primitives; else None."""
    import jax

    function, params = getattr(eqn.primitive, "impl", None), dict(eqn.params)
    spread: Callable[[Operands], Any] = list
    if eqn.primitive.name in FUNCTIONS_OF_JAX:
        module, name = FUNCTIONS_OF_JAX[eqn.primitive.name]
        function = getattr(import_module(module), name)
    if eqn.primitive.name == "regularized_incomplete_beta":
        params["dtype"], spread = eqn.outvars[0].aval.dtype, lambda xs: jax.numpy.broadcast_arrays(*xs)
    if function is None or getattr(function, "func", function).__name__ == "apply_primitive":
        return None
    struct: Any = jax.ShapeDtypeStruct

    def results(*operands: Any) -> Any:
        return jax.tree.leaves(function(*spread(operands), **params))

    try:
        found = jax.make_jaxpr(results)(*(struct(v.aval.shape, v.aval.dtype) for v in eqn.invars))
    except Exception:  # a library may compute its primitive by anything
        return None
    return None if f" {eqn.primitive.name}" in str(found) else found
