"""Primitives that read and write where indices point, if they point into one axis, and `top_k`."""

from __future__ import annotations

from collections.abc import Sequence

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import FLOATS
from mtfc.frontend.jaxpr.emitting import JaxprEmitter
from mtfc.frontend.jaxpr.factors import Axis, axis
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Number
from mtfc.frontend.jaxpr.index_numbers import index_numbers
from mtfc.frontend.jaxpr.linking import Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules.elementwise import NUMBERS
from mtfc.frontend.jaxpr.rules.shapes import StridedPart, all_parted, axes_of_parts, parts_of

INDICES = frozenset({"i32", "u32"})


def _mode(step: AppliedPrimitive) -> str:
    return str(step.params["mode"]).rpartition(".")[2].lower()


# gather


def _is_lookup(step: AppliedPrimitive) -> bool:
    """Accept indices into one axis that read single positions of it, and whole other axes."""
    if not _points_into_one_axis(step):
        return False
    table, numbers, sizes = step.operands[0], index_numbers(step), step.params["slice_sizes"]
    (j,) = numbers.axes
    others = all(size == table.shape[k] for k, size in enumerate(sizes) if k not in (j, *numbers.table_batch))
    return others and sizes[j] == 1 and table.dtype in NUMBERS


def _points_into_one_axis(step: AppliedPrimitive) -> bool:
    ids = step.operands[1]
    return len(index_numbers(step).axes) == 1 and ids.dtype in INDICES and ids.shape[-1:] == (1,)


def _link_gather(linker: Linker, step: AppliedPrimitive) -> None:
    """The result has the axes of the indices, and those of the table that are read whole."""
    (table, ids), numbers = step.operands, index_numbers(step)
    (j,), batch = numbers.axes, numbers.batch
    own = [k for k in range(len(table.shape)) if k != j and k not in batch]
    used = [f for k in own for f in table.axes[k]] + [*table.axes[j]]
    wanted: list[Axis | None] = [None] * len(ids.shape)
    for k, place in batch.items():
        wanted[place] = table.axes[k]
    found = linker.fit(step, 1, wanted, used)
    axes: list[Axis] = [()] * len(step.results[0].shape)
    for place, each in zip(numbers.rows(step.results[0]), found[:-1], strict=True):
        axes[place] = each
    for place, k in zip(numbers.windows, numbers.window(table), strict=True):
        axes[place] = table.axes[k] if k != j else ()
    linker.give(step.results[0], tuple(axes))


def _emit_gather(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    table, ids = step.operands
    (j,) = index_numbers(step).axes
    build, indices = emitter.build, emitter.operand(step, 1)
    value, dim = emitter.merged(emitter.operand(step, 0), table.axes, j)
    if _mode(step) != "fill_or_drop":  # XLA clamps indices that are promised to be in bounds, too
        return (build("gather", value, _clamped(emitter, indices, dim.size - 1), dim=dim),)
    found = build("gather", value, indices, dim=dim)
    last, zero = build.constant(dim.size - 1, ids.dtype), build.constant(0, ids.dtype)
    inside = build("and", build("ge", indices, zero), build("le", indices, last))
    return (emitter.elementwise("where", inside, found, build.constant(_fill(step), table.dtype)),)


def _fill(step: AppliedPrimitive) -> float | int:
    """Return what JAX reads outside of a table."""
    value, dtype = step.params["fill_value"], step.operands[0].dtype
    if value is not None:
        return float(value) if dtype in FLOATS else int(value)
    return float("nan") if dtype in FLOATS else -(2**31) + 1 if dtype == "i32" else 2**32 - 1


# scatter-add


def _is_plain_scatter(step: AppliedPrimitive) -> bool:
    """Accept the transpose of a lookup."""
    if not _points_into_one_axis(step):
        return False
    (table, _, updates), numbers = step.operands, index_numbers(step)
    (j,) = numbers.axes
    whole = all(
        updates.shape[place] == table.shape[k]
        for place, k in zip(numbers.windows, numbers.window(table), strict=True)
    )
    return whole and j in numbers.gone and _mode(step) != "clip" and table.dtype in NUMBERS


def _link_scatter(linker: Linker, step: AppliedPrimitive) -> None:
    (table, ids, updates), numbers = step.operands, index_numbers(step)
    (j,) = numbers.axes
    wanted: list[Axis | None] = [None] * len(ids.shape)
    for k, place in numbers.batch.items():
        wanted[place] = table.axes[k]
    used = [f for k in numbers.window(table) for f in table.axes[k]] + [*table.axes[j]]
    found = linker.fit(step, 1, wanted, used)
    rows = iter(found[:-1])
    window = iter(numbers.window(table))
    targets = [
        table.axes[next(window)] if place in numbers.windows else next(rows)
        for place in range(len(updates.shape))
    ]
    linker.fit(step, 2, targets)
    linker.give(step.results[0], table.axes)


def _emit_scatter(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Add updates to zeros, and the table to that."""
    build = emitter.build
    table, (j,) = step.operands[0], index_numbers(step).axes
    ids, updates = emitter.operand(step, 1), emitter.operand(step, 2)
    dim = emitter.single(table.axes[j])
    ids = emitter.whole(ids, step.axes(1))
    inner = emitter.dims.of(f for k in range(len(table.shape)) if k != j for f in table.axes[k])
    dims = (dim, *inner)
    gathered = (*ids.type.dims, *(d for d in inner if d not in ids.type.dims))
    updates = emitter.with_dims(updates, gathered)
    found = build("scatter_add", updates, ids, dim=dim, dims=dims)
    found = emitter.parted(found, dim, table.axes[j])
    base = step.operands[0]
    if isinstance(base, Number) and base.value == 0:
        return (found,)
    return (emitter.elementwise("add", emitter.operand(step, 0), found),)


# dynamic slices


def _moved(step: AppliedPrimitive, sizes: Sequence[int]) -> list[int]:
    """Return the axes along which a slice is smaller than the array."""
    return [j for j, size in enumerate(sizes) if size != step.operands[0].shape[j]]


def _constant_parts(step: AppliedPrimitive) -> list[StridedPart]:
    """Return the parts of a dynamic slice whose starts are numbers of the program."""
    x, sizes, found = step.operands[0], step.params["slice_sizes"], []
    for j in _moved(step, sizes):
        start = step.operands[1 + j]
        if isinstance(start, Number):
            found.append(StridedPart(j, min(max(int(start.value), 0), x.shape[j] - sizes[j]), sizes[j]))
    return found


def _link_dynamic_slice(linker: Linker, step: AppliedPrimitive) -> None:
    """A part from a computed start on has new axes."""
    x, (result,), constant = step.operands[0], step.results, _constant_parts(step)
    moved = {*_moved(step, step.params["slice_sizes"])} - {part.axis for part in constant}
    axes = enumerate(axes_of_parts(x.axes, constant))
    linker.give(result, tuple(axis(result.shape[j]) if j in moved else a for j, a in axes))
    result.repeated = x.repeated - moved


def _emit_dynamic_slice(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Gather along each axis from the clamped start on."""
    x, (result,), build, made = step.operands[0], step.results, emitter.build, []
    constant = _constant_parts(step)
    value = emitter.operand(step, 0)
    for j in _moved(step, step.params["slice_sizes"]):
        if any(part.axis == j for part in constant):
            continue
        value, dim = emitter.merged(value, x.axes, j)
        start = _start(emitter, step, 1 + j, dim.size - result.shape[j])
        if result.shape[j] > 1:
            made.append((emitter.dims.new("part", result.shape[j]), result.axes[j]))
            start = build("add", build("range", dim=made[-1][0]), start)
        value = build("gather", value, start, dim=dim)
    return (all_parted(emitter, parts_of(emitter, value, x.axes, constant, result.axes), made),)


def _start(emitter: JaxprEmitter, step: AppliedPrimitive, i: int, last: int) -> Value:
    """Return the start of a slice along one axis, from 0 to `last`."""
    build, dtype = emitter.build, CLAMPED_AS.get(step.operands[i].dtype, "i32")
    start = build.cast(emitter.operand(step, i), dtype)
    return build.cast(_clamped(emitter, start, last), "i32")


def _clamped(emitter: JaxprEmitter, indices: Value, last: int) -> Value:
    """Return indices from 0 to `last`."""
    build = emitter.build
    at_least_0 = build("maximum", indices, build.like(0, indices))
    return build("minimum", at_least_0, build.like(last, indices))


CLAMPED_AS = {"u32": "u32", "i64": "f64", "u64": "f64"}
"""dtype of integers beyond those of i32 -> the dtype in which they are clamped: f64 keeps the order of 64 bits."""


def _link_dynamic_update(linker: Linker, step: AppliedPrimitive) -> None:
    x, update = step.operands[:2]
    moved = _moved(step, update.shape)
    used = [f for each in x.axes for f in each]
    linker.fit(step, 1, [None if j in moved else a for j, a in enumerate(x.axes)], used)
    linker.give(step.results[0], x.axes)


def _emit_dynamic_update(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Choose the update inside of its range along each axis, and the array outside."""
    build, x = emitter.build, step.operands[0]
    value, update, axes = emitter.operand(step, 0), emitter.operand(step, 1), list(step.axes(1))
    inside: Value | None = None
    for j in _moved(step, step.operands[1].shape):
        length = step.operands[1].shape[j]
        dim = emitter.single(x.axes[j])
        start = _start(emitter, step, 2 + j, x.shape[j] - length)
        place = build("sub", build("range", dim=dim), start)
        here = build(
            "and",
            build("ge", place, build.constant(0, "i32")),
            build("lt", place, build.constant(length, "i32")),
        )
        here = emitter.parted(here, dim, x.axes[j])
        inside = here if inside is None else emitter.elementwise("and", inside, here)
        if length > 1 and emitter.has(update, axes[j]):
            update, part = emitter.merged(update, tuple(axes), j)
            update = emitter.parted(build("gather", update, place, dim=part), dim, x.axes[j])
        axes[j] = x.axes[j]
    return (update if inside is None else emitter.elementwise("where", inside, update, value),)


# top_k


def _link_top_k(linker: Linker, step: AppliedPrimitive) -> None:
    x, k = step.operands[0], step.params["k"]
    new = axis(k)
    for result in step.results:
        linker.give(result, (*x.axes[:-1], new))


def _is_plain_top_k(step: AppliedPrimitive) -> bool:
    return (
        step.params.get("axis", -1) in (-1, len(step.operands[0].shape) - 1)
        and step.operands[0].dtype in NUMBERS
    )


def _emit_top_k(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    x, k = step.operands[0], step.params["k"]
    value, dim = emitter.merged(emitter.operand(step, 0), x.axes, len(x.axes) - 1)
    own = emitter.dims.of(step.results[0].axes[-1])
    target = own[0] if len(own) == 1 else emitter.dims.new("chosen" if own else "one", k)
    found = emitter.build.several("top_k", value, names=("values", "indices"), dim=dim, k=target)
    return tuple(emitter.parted(each, target, step.results[0].axes[-1]) for each in found)


RULES: dict[str, PrimitiveRule] = {
    "gather": PrimitiveRule(_link_gather, _emit_gather, _is_lookup),
    "scatter-add": PrimitiveRule(_link_scatter, _emit_scatter, _is_plain_scatter),
    "scatter_add": PrimitiveRule(_link_scatter, _emit_scatter, _is_plain_scatter),
    "dynamic_slice": PrimitiveRule(
        _link_dynamic_slice, _emit_dynamic_slice, lambda step: step.operands[0].dtype in NUMBERS
    ),
    "dynamic_update_slice": PrimitiveRule(
        _link_dynamic_update, _emit_dynamic_update, lambda step: step.operands[0].dtype in NUMBERS
    ),
    "top_k": PrimitiveRule(_link_top_k, _emit_top_k, _is_plain_top_k),
}
