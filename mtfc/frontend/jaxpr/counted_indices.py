"""Gathers that count along an axis, and slices that move its elements.

Indices that count along an axis: `x[jnp.arange(n), y]` reads an element of each row, so the rows are a batch.

JAX joins the indices of several axes to one array, so the count is a column of this array. A gather or scatter with such a column
becomes one whose rows are batching dimensions, as `jax.vmap` makes them. Layouts may then split the rows. XLA's partitioner does
the same.

Steps that move the elements of an axis: `jnp.roll`, and zeros beside a slice that make an array of the old length.

The length of the slice divides no mesh axis, so a layout would gather the array. A `shift` sends what leaves a processor. Halves
that change places stay as they are: their axis gets factors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from math import copysign
from typing import Any

import attrs

from mtfc.compiler.ir.attributes import INTEGER_RANGE
from mtfc.frontend.jaxpr.expansions import scan_counts
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Flat, Number, Operand, Var, all_steps
from mtfc.frontend.jaxpr.rules.indexing import data_of, index_numbers, is_indexing


def batch_counted_rows(flat: Flat) -> None:
    """Let gathers and scatters have batching dimensions for the rows that their indices count."""
    known = _Counts(count(1 + max((var.number for var in _variables(flat.body)), default=0)))
    for var, value in zip(flat.body.arguments[len(flat.inputs) :], flat.constants, strict=True):
        known.note_constant(var, value)
    known.body(flat.body)


def _variables(body: Body) -> Iterator[Var]:
    """Yield all variables of a body, also those in loops."""
    yield from body.arguments
    for step in all_steps(body.steps):
        yield from step.results
        yield from chain.from_iterable(inner.arguments for inner in step.bodies)


@attrs.define
class _Counts:
    """Facts about arrays of indices. numbers: the numbers of new variables.

    axis: array -> the axis along which its elements are 0, 1, 2 and so on, alike along others. false: arrays of truth values
    of which none is true. columns: array -> the columns that it joins along its last axis.
    """

    numbers: Iterator[int]
    axis: dict[Operand, int] = attrs.field(factory=dict)
    false: set[Operand] = attrs.field(factory=set)
    columns: dict[Operand, tuple[Operand, ...]] = attrs.field(factory=dict)

    def body(self, body: Body) -> None:
        """Change the gathers and scatters of a body and of the bodies inside."""
        changed: list[AppliedPrimitive] = []
        for step in body.steps:
            changed += self._batched(step)
            self._note(step)
            for inner in step.bodies:
                alike = inner.arguments[: scan_counts(step.params)[0]]  # in all iterations
                for outside, inside in zip(step.operands, alike, strict=False):
                    if outside in self.axis:
                        self.axis[inside] = self.axis[outside]
                self.body(inner)
        body.steps[:] = changed

    def note_constant(self, var: Var, value: Any) -> None:
        """Note a constant that is false everywhere, or that counts from 0 along one axis."""
        import numpy as np

        if var.key is not None or var.dtype not in ("bool", *INTEGER_RANGE):
            return
        array = np.asarray(value)
        if var.dtype == "bool" and not array.any():
            self.false.add(var)
        elif var.dtype in INTEGER_RANGE:
            for j, size in enumerate(var.shape):
                if size > 1 and np.array_equal(array, _counting(var.shape, j)):
                    self.axis[var] = j

    def _note(self, step: AppliedPrimitive) -> None:
        """Note what is known of the results of a step."""
        if not step.operands and step.primitive == "iota":
            self.axis[step.results[0]] = step.params["dimension"]
        elif step.primitive in KEEPING and step.operands[0] in self.axis:
            place = KEEPING[step.primitive](step, self.axis[step.operands[0]])
            if place is not None:
                self.axis[step.results[0]] = place
        elif step.primitive == "lt" and step.operands[0] in self.axis:
            limit = step.operands[1]
            if isinstance(limit, Number) and limit.value <= 0:
                self.false.add(step.results[0])
        elif (
            step.primitive == "select_n" and step.operands[0] in self.false and step.operands[1] in self.axis
        ):
            self.axis[step.results[0]] = self.axis[step.operands[1]]
        elif _joins_columns(step):
            self.columns[step.results[0]] = step.operands

    def _batched(self, step: AppliedPrimitive) -> list[AppliedPrimitive]:
        """Return the steps in the place of a step."""
        if not is_indexing(step):
            return [step]
        numbers, table, ids = index_numbers(step), step.operands[0], step.operands[1]
        columns, axes = self.columns.get(ids, (ids,)), numbers.axes
        if not table.shape or len(columns) != len(axes):
            return [step]
        batch: dict[int, int] = {}  # axis of the table -> axis of the indices
        for d, column in zip(axes, columns, strict=True):
            i = self.axis.get(column)
            taken = (*batch.values(), *numbers.ids_batch)
            is_whole = i is not None and i not in taken and table.shape[d] == ids.shape[i] > 1
            if is_whole and d in numbers.gone and i is not None:
                batch[d] = i
        if len(batch) == len(axes) > 1:
            batch.pop(axes[-1])
        rest = [(d, column) for d, column in zip(axes, columns, strict=True) if d not in batch]
        pairs = [*numbers.batch.items(), *batch.items()]
        if not batch or not rest:
            return [_moved(step, pairs)] if batch else [step]
        pairs.sort()
        changed = (
            numbers.windows,
            tuple(d for d in numbers.gone if d not in batch),
            tuple(d for d, _ in rest),
            *zip(*pairs, strict=True),
        )
        joined, before = rest[0][1], list[AppliedPrimitive]()
        if len(rest) > 1:
            before = [self._joined(step, [column for _, column in rest])]
            joined = before[0].results[0]
        kind = type(step.params["dimension_numbers"])
        step.params = {**step.params, "dimension_numbers": kind(*changed)}
        step.operands = (table, joined, *step.operands[2:])
        return [*before, step]

    def _joined(self, step: AppliedPrimitive, columns: Sequence[Operand]) -> AppliedPrimitive:
        """Return a step that joins columns of indices along their last axis."""
        import jax

        shape, params = columns[0].shape, {"dimension": len(columns[0].shape) - 1}
        result = Var(next(self.numbers), (*shape[:-1], len(columns)), columns[0].dtype)
        bind = jax.lax.concatenate_p
        return AppliedPrimitive("concatenate", bind, params, tuple(columns), (result,), step.span, step.stage)


def _joins_columns(step: AppliedPrimitive) -> bool:
    """Return True for a concatenation along the last axis of arrays that have size 1 along it."""
    is_last = step.params.get("dimension") == len(step.results[0].shape) - 1
    return step.primitive == "concatenate" and is_last and all(x.shape[-1] == 1 for x in step.operands)


def _moved(step: AppliedPrimitive, pairs: Sequence[tuple[int, int]]) -> AppliedPrimitive:
    """Return a step without indices, which count all of one axis: a gather is its table, and a scatter its updates.

    pairs: axes of the table, and the axes of the indices that run along them. A step that moves an axis stays as it is.
    """
    import jax

    table, data = step.operands[0], data_of(step)
    rows = index_numbers(step).rows(data)
    if data.shape != table.shape or any(rows[i] != axis for axis, i in pairs):
        return step
    lax = jax.lax
    made: dict[str, tuple[Any, tuple[Operand, ...]]] = {
        "gather": (lax.copy_p, (table,)),
        "scatter": (lax.copy_p, step.operands[2:]),
        **dict.fromkeys(("scatter-add", "scatter_add"), (lax.add_p, (table, *step.operands[2:]))),
    }
    if step.primitive not in made:
        return step
    bind, operands = made[step.primitive]
    return attrs.evolve(step, primitive=bind.name, bind=bind, params={}, operands=operands)


def _counting(shape: Sequence[int], axis: int) -> Any:
    """Return an array that counts from 0 along one axis."""
    import numpy as np

    return np.broadcast_to(
        np.arange(shape[axis]).reshape([-1 if j == axis else 1 for j in range(len(shape))]), shape
    )


def _spread(step: AppliedPrimitive, axis: int) -> int | None:
    place = step.params["broadcast_dimensions"][axis]
    return int(place) if step.results[0].shape[place] == step.operands[0].shape[axis] else None


def _reshaped(step: AppliedPrimitive, axis: int) -> int | None:
    """Follow an axis if only axes of size 1 come or go."""
    before, after = (
        [j for j, size in enumerate(x.shape) if size > 1] for x in (step.operands[0], step.results[0])
    )
    same = [step.operands[0].shape[j] for j in before] == [step.results[0].shape[j] for j in after]
    is_plain = step.params.get("dimensions") is None or step.primitive == "squeeze"
    return after[before.index(axis)] if same and is_plain and axis in before else None


def _cast(step: AppliedPrimitive, axis: int) -> int | None:
    """Accept whole numbers that have all of the axis."""
    fits = step.operands[0].shape[axis] - 1 in INTEGER_RANGE.get(step.results[0].dtype, ())
    return axis if fits else None


KEEPING: Mapping[str, Callable[[AppliedPrimitive, int], int | None]] = {
    "broadcast_in_dim": _spread,
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "convert_element_type": _cast,
    "copy": lambda step, axis: axis,
    "transpose": lambda step, axis: tuple(step.params["permutation"]).index(axis),
}
"""Primitive that keeps an array which counts along an axis -> the function of a step and this axis to that of the result."""


Makers = dict[Operand, AppliedPrimitive]
"""Array -> the step that computes it."""


def find_shifts(body: Body) -> None:
    """Change the steps of a body, and of the bodies inside."""
    makers: Makers = {}
    for i, step in enumerate(body.steps):
        if not (step.has_keys or step.has_carried) and (move := _move(step, makers)):
            body.steps[i] = step = attrs.evolve(step, primitive="shift", operands=move[:1], params=move[1])
        makers.update(dict.fromkeys(step.results, step))
        for inner in step.bodies:
            find_shifts(inner)
    used = {x for step in body.steps for x in step.operands}.union(body.outputs)
    for i, step in enumerate(body.steps):
        if step.primitive in ("slice", "split") and used.isdisjoint(step.results):
            body.steps[i] = attrs.evolve(step, primitive="empty")  # it would cut axes in two


def _move(step: AppliedPrimitive, makers: Makers) -> tuple[Operand, dict[str, int]] | None:
    """Return an array, an axis, by how many places elements move, and whether those that leave the axis come back.

    Accept as many zeros on one side of an array as it lacks on the other, or what it lacks there.
    """
    sides: Mapping[int, tuple[int, int, int]] = {}
    if step.primitive == "pad":
        x, other = step.operands
        sides = {j: each for j, each in enumerate(step.params["padding_config"]) if any(each)}
    elif step.primitive == "concatenate" and len(step.operands) == 2:
        is_behind = _is_zero(
            step.operands[1], makers
        )  # zeros, or the elements that come back, stand in front otherwise
        x, other = step.operands if is_behind else step.operands[::-1]
        j = step.params["dimension"]
        sides = {j: (0, other.shape[j], 0) if is_behind else (other.shape[j], 0, 0)}
    if len(sides) != 1:
        return None
    ((j, (low, high, interior)),) = sides.items()
    (whole, start, stop), shape = _part(x, j, makers), step.results[0].shape
    by, kept = int(low) - start, (start - min(low, 0), stop + min(high, 0))
    is_half = 2 * abs(by) == shape[j]
    if is_half or not by or interior or (whole.shape, kept) != (shape, (max(-by, 0), shape[j] - max(by, 0))):
        return None
    wraps = step.primitive == "concatenate" and _part(other, j, makers) == (whole, shape[j] - by, shape[j])
    return (whole, {"axis": j, "by": by, "wrap": wraps}) if wraps or _is_zero(other, makers) else None


def _part(x: Operand, axis: int, makers: Makers) -> tuple[Operand, int, int]:
    """Return the array that an array is a part of along an axis, with the part's start and stop."""
    maker = makers.get(x)
    if maker is None:
        return x, 0, x.shape[axis]
    if maker.primitive == "split" and maker.params["axis"] == axis:
        start = sum(maker.params["sizes"][: maker.results.index(x)])
    elif maker.primitive == "slice" and {*(maker.params["strides"] or (1,))} == {1}:
        start = maker.params["start_indices"][axis]
    elif maker.primitive == "pad" and max(map(max, maker.params["padding_config"])) == 0:
        start = -maker.params["padding_config"][axis][0]
    else:
        return x, 0, x.shape[axis]
    whole, first, _ = _part(maker.operands[0], axis, makers)
    return whole, int(first + start), int(first + start) + x.shape[axis]


def _is_zero(x: Operand, makers: Makers) -> bool:
    """Return True for a number 0, or an array of it. -0.0 is another number."""
    maker = makers.get(x)
    if maker is not None and maker.primitive in ("broadcast_in_dim", "convert_element_type"):
        return _is_zero(maker.operands[0], makers)
    return isinstance(x, Number) and x.value == 0 and copysign(1, x.value) == 1
