"""Primitives that read and write where indices point, if they point into one axis, and `top_k`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops.elementwise import BOOL, INTEGERS, NUMBERS
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.frontend.jaxpr.expansions import bound
from mtfc.frontend.jaxpr.factors import Axis, axis
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Number, Operand
from mtfc.frontend.jaxpr.primitive_rules import Axes, JaxprEmitter, Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules.shapes import StridedPart, all_parted, axes_of_parts, parts_of

Numbers = tuple[int, ...]
"""Numbers of axes."""


@attrs.frozen
class IndexNumbers:
    """The dimension numbers of a gather or scatter. Its data are the result of the gather, or the updates of the scatter.

    The fields are those of JAX, in JAX's order. windows: axes of the data that run along axes of the table. gone: axes of the
    table that the data lack. axes: axes of the table that the indices point into. table_batch, ids_batch: the axes of the table
    and of the indices that run along each other.
    """

    windows: Numbers
    gone: Numbers
    axes: Numbers
    table_batch: Numbers
    ids_batch: Numbers

    @property
    def batch(self) -> dict[int, int]:
        """Axis of the table -> the axis of the indices that runs along it."""
        return dict(zip(self.table_batch, self.ids_batch, strict=True))

    def rows(self, data: Operand) -> list[int]:
        """Return the axes of the data that run along axes of the indices."""
        return [k for k in range(len(data.shape)) if k not in self.windows]

    def window(self, table: Operand) -> list[int]:
        """Return the axes of the table that `windows` run along."""
        return [k for k in range(len(table.shape)) if k not in (*self.gone, *self.table_batch)]


def is_indexing(step: AppliedPrimitive) -> bool:
    """Return True for a gather or scatter whose arrays have no random keys."""
    is_named = step.primitive == "gather" or step.primitive.startswith("scatter")
    return is_named and "dimension_numbers" in step.params and not step.has_keys


def index_numbers(step: AppliedPrimitive) -> IndexNumbers:
    """Return the dimension numbers of a gather or scatter."""
    return IndexNumbers(*step.params["dimension_numbers"])


def data_of(step: AppliedPrimitive) -> Operand:
    """Return the result of a gather, or the updates of a scatter."""
    return step.results[0] if step.primitive == "gather" else step.operands[2]


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
    return len(index_numbers(step).axes) == 1 and ids.dtype in INTEGERS and ids.shape[-1:] == (1,)


def _link_gather(linker: Linker, step: AppliedPrimitive) -> None:
    """The result has the axes of the indices, and those of the table that are read whole."""
    link_call(linker, step, shared_axes(step))


def _emit_gather(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append a gather along one axis. Indices out of bounds read a fill value, or are clamped, by the mode."""
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


def _updates_rows(step: AppliedPrimitive) -> bool:
    """Return True if indices point into one axis, and all other axes are updated whole."""
    if not _points_into_one_axis(step):
        return False
    (table, _, updates), numbers = step.operands, index_numbers(step)
    (j,) = numbers.axes
    whole = all(
        updates.shape[place] == table.shape[k]
        for place, k in zip(numbers.windows, numbers.window(table), strict=True)
    )
    return whole and j in numbers.gone


def _link_scatter(linker: Linker, step: AppliedPrimitive) -> None:
    """Link the indices' batch to the table's, and the axes of the updates to those of the table or of the indices."""
    (table, _, updates), numbers = step.operands, index_numbers(step)
    (j,) = numbers.axes
    wanted = {place: table.axes[k] for k, place in numbers.batch.items()}
    found = linker.fit(step, 1, wanted, [table.axes[k] for k in (*numbers.window(table), j)])
    rows = iter(found[:-1])
    window = iter(numbers.window(table))
    targets = [
        table.axes[next(window)] if place in numbers.windows else next(rows)
        for place in range(len(updates.shape))
    ]
    linker.fit(step, 2, targets)
    linker.give(step.results[0], table.axes)


def _updates(emitter: JaxprEmitter, step: AppliedPrimitive) -> tuple[Value, Value, Dim, tuple[Dim, ...]]:
    """Return indices and updates with all their dimensions, the dimension that they point into, and the table's others."""
    table, (j,) = step.operands[0], index_numbers(step).axes
    ids, updates = emitter.whole(emitter.operand(step, 1), step.axes(1)), emitter.operand(step, 2)
    ids = _clamped(emitter, ids, table.shape[j] - 1) if _mode(step) == "clip" else ids
    inner = emitter.dims.of(f for k in range(len(table.shape)) if k != j for f in table.axes[k])
    gathered = (*ids.type.dims, *(d for d in inner if d not in ids.type.dims))
    return ids, emitter.with_dims(updates, gathered), emitter.single(table.axes[j]), tuple(inner)


def _emit_scatter(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Add updates to zeros, and the table to that."""
    ids, updates, dim, inner = _updates(emitter, step)
    (j,), base = index_numbers(step).axes, step.operands[0]
    found = emitter.build("scatter_add", updates, ids, dim=dim, dims=(dim, *inner))
    found = emitter.parted(found, dim, base.axes[j])
    if isinstance(base, Number) and base.value == 0:
        return (found,)
    return (emitter.elementwise("add", emitter.operand(step, 0), found),)


SOME = 64
"""Updates that are compared with each other and with all places of any table."""

COMBINING = {"sub": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}
"""Op of old and new elements -> the reduction of updates at one place."""


def _is_small_update(step: AppliedPrimitive) -> bool:
    """Accept few updates, or as many as take no more comparisons of indices and places than the table has elements."""
    op = _op(step)
    dtypes = FLOATS if op == "mul" else NUMBERS if op else NUMBERS | BOOL
    if op is None or step.operands[0].dtype not in dtypes or not _updates_rows(step):
        return False
    (table, ids, _), numbers = step.operands, index_numbers(step)
    own = prod(size for i, size in enumerate(ids.shape[:-1]) if i not in numbers.batch.values())
    return 1 < own <= max(SOME, 0 if op else prod(table.shape) // table.shape[numbers.axes[0]])


def _emit_update(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Take the last update at a place, combined with all others there if an op does. Nothing is sent if the places are split."""
    build, (j,), op, table = emitter.build, index_numbers(step).axes, _op(step), emitter.operand(step, 0)
    ids, updates, dim, inner = _updates(emitter, step)
    own = tuple(each for each in ids.type.dims if each not in inner)
    one, other = (emitter.dims.new("updates", prod(each.size for each in own)) for _ in range(2))

    def flat(x: Value, dim: Dim) -> Value:
        rest = tuple(each for each in x.type.dims if each not in own)
        return build("reshape", build.ordered(x, (*own, *rest)), dims=(dim, *rest))

    places, new = flat(build.cast(ids, "i32"), one), flat(updates, one)
    if op:
        is_same = emitter.elementwise("eq", places, flat(build.cast(ids, "i32"), other))
        neutral = new if op in ("maximum", "minimum") else build.like(int(op == "mul"), new)
        terms = emitter.elementwise("where", is_same, flat(updates, other), neutral)
        new = build(COMBINING[op], terms, over=(other,))
    is_here, none = emitter.elementwise("eq", places, build("range", dim=dim)), build.constant(-1, "i32")
    last = build("max", emitter.elementwise("where", is_here, build("range", dim=one), none), over=(one,))
    found, is_set = build("gather", new, last, dim=one), build("gt", last, none)
    found, is_set = (emitter.parted(x, dim, step.operands[0].axes[j]) for x in (found, is_set))
    found = emitter.elementwise(op, table, found) if op else found
    return (emitter.elementwise("where", is_set, found, table),)


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
    at_least_0 = emitter.build("maximum", indices, emitter.build.like(0, indices))
    return emitter.build("minimum", at_least_0, emitter.build.like(last, indices))


CLAMPED_AS = {"u32": "u32", "i64": "f64", "u64": "f64"}
"""dtype of integers beyond those of i32 -> the dtype in which they are clamped: f64 keeps the order of 64 bits."""


def _link_dynamic_update(linker: Linker, step: AppliedPrimitive) -> None:
    """Link the axes of the update to those of the array, but for those that it lies somewhere along."""
    x, update = step.operands[:2]
    moved = _moved(step, update.shape)
    linker.fit(step, 1, {j: a for j, a in enumerate(x.axes) if j not in moved}, x.axes)
    linker.give(step.results[0], x.axes)


def _emit_dynamic_update(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append an update of a part of an array, which begins at given indices."""
    x, sizes = step.operands[0], step.operands[1].shape
    starts = {j: _start(emitter, step, 2 + j, x.shape[j] - sizes[j]) for j in _moved(step, sizes)}
    update, inside = _placed(emitter, step, emitter.operand(step, 1), [*step.axes(1)], sizes, starts)
    value = emitter.operand(step, 0)
    return (update if inside is None else emitter.elementwise("where", inside, update, value),)


def _placed(
    emitter: JaxprEmitter,
    step: AppliedPrimitive,
    update: Value,
    axes: list[Axis],
    sizes: Sequence[int],
    starts: Mapping[int, Value],
) -> tuple[Value, Value | None]:
    """Return an update at its places in the first operand, and the truth value of these places; None for all places.

    axes, sizes: the update's axis and size along each axis of the operand. starts: of axes along which the update is smaller.
    """
    build, x = emitter.build, step.operands[0]
    inside: Value | None = None
    for j, start in starts.items():
        dim = emitter.single(x.axes[j])
        place = build("sub", build("range", dim=dim), start)
        here = build(
            "and",
            build("ge", place, build.constant(0, "i32")),
            build("lt", place, build.constant(sizes[j], "i32")),
        )
        here = emitter.parted(here, dim, x.axes[j])
        inside = here if inside is None else emitter.elementwise("and", inside, here)
        if sizes[j] > 1 and emitter.has(update, axes[j]):
            update, part = emitter.merged(update, tuple(axes), j)
            update = emitter.parted(build("gather", update, place, dim=part), dim, x.axes[j])
        axes[j] = x.axes[j]
    return update, inside


# Scatters of one part

UPDATING = {"scatter": "", "scatter-add": "add", "scatter-sub": "sub", "scatter-mul": "mul", "scatter-min": "minimum",
            "scatter-max": "maximum"}  # fmt: skip
"""Scatter -> the op of old and new elements; none for elements that are set."""


def _op(step: AppliedPrimitive) -> str | None:
    return UPDATING.get(step.primitive.replace("_", "-"))


def _is_one_part(step: AppliedPrimitive) -> bool:
    """Accept a single index, which points at a part of the table."""
    table, ids = step.operands[:2]
    dtypes = NUMBERS if _op(step) else NUMBERS | BOOL
    is_single = prod(ids.shape[:-1]) == 1 and not index_numbers(step).batch
    return _op(step) is not None and is_single and ids.dtype in INTEGERS and table.dtype in dtypes


def _part_places(step: AppliedPrimitive) -> dict[int, int]:
    """Return the axes of the table that updates have, with the updates' axes."""
    numbers = index_numbers(step)
    return dict(zip(numbers.window(step.operands[0]), numbers.windows, strict=True))


def _link_part(linker: Linker, step: AppliedPrimitive) -> None:
    """Link the axes of updates to those of the table that they cover whole."""
    table, _, updates = step.operands
    wanted = {i: table.axes[k] for k, i in _part_places(step).items() if updates.shape[i] == table.shape[k]}
    linker.fit(step, 1, {}, table.axes)
    linker.fit(step, 2, wanted, table.axes)
    linker.give(step.results[0], table.axes)


def _emit_part(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Choose new elements at the places of the part; a part that is not inside of the table is dropped, or moved inside."""
    build, (table, ids, updates) = emitter.build, step.operands
    places, axes = _part_places(step), [*table.axes]
    sizes = [updates.shape[places[k]] if k in places else 1 for k in range(len(table.shape))]
    for k, place in places.items():
        axes[k] = step.axes(2)[place]
    given = emitter.operand(step, 1)
    if ids.shape[-1] > 1:
        given, numbered = emitter.merged(given, step.axes(1), len(ids.shape) - 1)
    starts, inside = dict[int, Value](), list[Value]()
    for i, k in enumerate(index_numbers(step).axes):
        last = table.shape[k] - sizes[k]
        one = given if ids.shape[-1] == 1 else build("gather", given, build.constant(i, "i32"), dim=numbered)
        if _mode(step) == "fill_or_drop":
            inside += [build("ge", one, build.like(0, one)), build("le", one, build.like(last, one))]
        if last:
            starts[k] = build.cast(_clamped(emitter, one, last), "i32")
    value = emitter.operand(step, 0)
    new, here = _placed(emitter, step, emitter.operand(step, 2), axes, sizes, starts)
    for each in inside:
        here = each if here is None else emitter.elementwise("and", here, each)
    if op := _op(step):
        new = emitter.elementwise(op, value, new)
    return (new if here is None else emitter.elementwise("where", here, new, value),)


UPDATE = PrimitiveRule(_link_scatter, _emit_update, _is_small_update)
PART = PrimitiveRule(_link_part, _emit_part, _is_one_part, otherwise=UPDATE)
SCATTER = PrimitiveRule(
    _link_scatter,
    _emit_scatter,
    lambda step: _op(step) == "add" and _updates_rows(step) and step.operands[0].dtype in NUMBERS,
    otherwise=PART,
)


# top_k


def _link_top_k(linker: Linker, step: AppliedPrimitive) -> None:
    """Give both results the axes of the array, the last one new."""
    x, k = step.operands[0], step.params["k"]
    new = axis(k)
    for result in step.results:
        linker.give(result, (*x.axes[:-1], new))


def _is_plain_top_k(step: AppliedPrimitive) -> bool:
    """Return True for a `top_k` of numbers along the last axis."""
    return (
        step.params.get("axis", -1) in (-1, len(step.operands[0].shape) - 1)
        and step.operands[0].dtype in NUMBERS
    )


def _emit_top_k(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append a `top_k` along the last axis, and return its values and indices."""
    x, k = step.operands[0], step.params["k"]
    value, dim = emitter.merged(emitter.operand(step, 0), x.axes, len(x.axes) - 1)
    own = emitter.dims.of(step.results[0].axes[-1])
    target = own[0] if len(own) == 1 else emitter.dims.new("chosen" if own else "one", k)
    found = emitter.build.several("top_k", value, names=("values", "indices"), dim=dim, k=target)
    return tuple(emitter.parted(each, target, step.results[0].axes[-1]) for each in found)


# Other gathers and scatters: calls that layouts may split along the axes that indices do not point into.
#
# These are the axes that operands share one by one (batching dimensions, as `jax.vmap` makes them), those that every slice covers
# whole, and for gathers the axes of the indices. A processor applies the primitive to its shards.


@attrs.frozen
class SharedAxis:
    """An axis that may be split: its number in each operand, or None, and in the result. is_sliced: a slice covers it whole."""

    operands: tuple[int | None, ...]
    result: int
    is_sliced: bool = False


def shared_axes(step: AppliedPrimitive) -> tuple[SharedAxis, ...]:
    """Return the axes that may be split; none for other primitives."""
    if not is_indexing(step):
        return ()
    table, ids, numbers, data = step.operands[0], step.operands[1], index_numbers(step), data_of(step)
    rows = numbers.rows(data)
    whole = [
        (k, place)
        for place, k in zip(numbers.windows, numbers.window(table), strict=True)
        if data.shape[place] == table.shape[k] and k not in numbers.axes
    ]
    if step.primitive == "gather":
        batch = {i: k for k, i in numbers.batch.items()}
        found = [SharedAxis((batch.get(i), i), rows[i]) for i in range(len(ids.shape) - 1)]
        found += [SharedAxis((k, None), place, is_sliced=True) for k, place in whole]
    else:
        found = [SharedAxis((k, i, rows[i]), k) for k, i in numbers.batch.items()]
        found += [SharedAxis((k, None, place), k) for k, place in whole]
    return tuple(each for each in found if step.results[0].shape[each.result] > 1)


def link_call(linker: Linker, step: AppliedPrimitive, shared: Sequence[SharedAxis]) -> None:
    """Let operands have the axes of the first one that they share. Other axes of indices and updates are none of its own."""
    first = step.operands[0]
    for i in range(1, len(step.operands)):
        wanted = dict[int, Axis]()
        for each in shared:
            own, place = each.operands[0], each.operands[i]
            if own is not None and place is not None:
                wanted[place] = first.axes[own]
        linker.fit(step, i, wanted, first.axes)
    axes = [axis(size) for size in step.results[0].shape]
    for each in shared:
        axes[each.result] = _axis(step, each)
    if step.primitive != "gather":
        axes = list(first.axes)
    linker.give(step.results[0], tuple(axes))
    linker.space(*axes, *first.axes)


def _axis(step: AppliedPrimitive, shared: SharedAxis) -> Axis:
    """Return the factors of a shared axis."""
    return next(step.axes(i)[place] for i, place in enumerate(shared.operands) if place is not None)


def call_operands(
    emitter: JaxprEmitter, step: AppliedPrimitive, shared: Sequence[SharedAxis]
) -> tuple[list[Value], tuple[Dim, ...], list[tuple[Dim, ...]], Callable[..., list[Any]]]:
    """Return the operands of a call on shards, its mapped dimensions, the other dimensions of results, and the function.

    Shared dimensions along which all operands repeat their elements are not mapped.
    """
    given = [emitter.operand(step, i) for i in range(len(step.operands))]
    known = {dim for value in given for dim in value.type.dims}
    own = [tuple(d for d in emitter.dims.of(_axis(step, each)) if d in known) for each in shared]
    mapped = tuple(dim for dims in own for dim in dims)
    places, values = [], []
    for i, value in enumerate(given):
        plan, rest = _places(emitter, step.axes(i), [each.operands[i] for each in shared], own)
        values.append(emitter.with_dims(value, (*(d for d in mapped if d in value.type.dims), *rest)))
        places.append(plan)
    results = [_places(emitter, y.axes, [each.result for each in shared], own) for y in step.results]
    sizes = [(plan, tuple(dim.size for dim in rest)) for plan, rest in results]
    return values, mapped, [rest for _, rest in results], partial(_applied, step, shared, places, sizes)


def _places(
    emitter: JaxprEmitter, axes: Axes, numbers: Sequence[int | None], own: Sequence[Sequence[Dim]]
) -> tuple[list[list[int]], tuple[Dim, ...]]:
    """Return for each axis of an array the axes that it has in the call, and the dimensions that follow the mapped ones.

    In a call every dimension has an axis: first the mapped ones, then the others. numbers, own: the number in the array of each
    shared axis, and its dimensions.
    """
    starts = [sum(map(len, own[:j])) for j in range(len(own) + 1)]
    rest: list[Dim] = []
    found = []
    for k, each in enumerate(axes):
        if k in numbers:
            j = numbers.index(k)
            found.append([*range(starts[j], starts[j + 1])])
            continue
        dims = emitter.dims.of(each)
        found.append([starts[-1] + len(rest) + n for n in range(len(dims))])
        rest += dims
    return found, tuple(rest)


WITH_FIRST_VALUES = ("reduce", "reduce_window")
"""Primitives with operands that JAX does not map: numbers that reductions begin with."""


def _applied(
    step: AppliedPrimitive,
    shared: Sequence[SharedAxis],
    places: Sequence[Sequence[Sequence[int]]],
    results: Sequence[tuple[Sequence[Sequence[int]], Sequence[int]]],
    sizes: Sequence[int],
    *arrays: Any,
) -> list[Any]:
    """Apply the primitive to shards. Arrays have size 1 along mapped dimensions that they lack.

    places: for each operand the places of its axes in the call. results: these, and the sizes behind the mapped ones, for each
    result. sizes: of the mapped dimensions.
    """
    import jax
    from jax import numpy as jnp

    given: list[Any] = []
    for x, operand, axes in zip(arrays, step.operands, places, strict=True):
        if isinstance(operand, Number) and step.primitive in WITH_FIRST_VALUES:
            given.append(jnp.asarray(operand.value, x.dtype))
            continue
        flat = [place for axis in axes for place in axis]
        shape = [n if i in flat else 1 for i, n in enumerate(sizes)] + [*x.shape[len(sizes) :]]
        others = [i for i in range(len(shape)) if i not in flat]
        y = jnp.broadcast_to(x, shape).transpose(*flat, *others)
        y = y.reshape([prod(shape[place] for place in axis) for axis in axes])
        given.append(y if operand.key is None else jax.random.wrap_key_data(y, impl=operand.key))
    params = step.params
    if "slice_sizes" in params:
        slices = list(params["slice_sizes"])
        for each in shared:
            if each.is_sliced and (k := each.operands[0]) is not None:
                slices[k] = given[0].shape[k]
        params = {**params, "slice_sizes": tuple(slices)}
    found = []
    made = zip(bound(step.bind, given, params), step.results, results, strict=True)
    for y, var, (plan, rest) in made:
        y = y if var.key is None else jax.random.key_data(y)
        every, flat = [*sizes, *rest], [place for axis in plan for place in axis]
        found.append(
            y.reshape([every[place] for place in flat]).transpose(*map(flat.index, range(len(every))))
        )
    return found


RULES: dict[str, PrimitiveRule] = {
    **{name: SCATTER for each in UPDATING for name in (each, each.replace("-", "_"))},
    "gather": PrimitiveRule(_link_gather, _emit_gather, _is_lookup),
    "dynamic_slice": PrimitiveRule(
        _link_dynamic_slice, _emit_dynamic_slice, lambda step: step.operands[0].dtype in NUMBERS
    ),
    "dynamic_update_slice": PrimitiveRule(
        _link_dynamic_update, _emit_dynamic_update, lambda step: step.operands[0].dtype in NUMBERS
    ),
    "top_k": PrimitiveRule(_link_top_k, _emit_top_k, _is_plain_top_k),
}
