"""Attention as a ring: blocks of keys and values travel around the devices, and each device attends to the block that it has.

All equations here are global. `blocks` is a dimension with one element for each device; a `shift` along it hands each block to
the next device. In the backward pass the gradients of keys and values travel with their blocks, until they are home again.

Under a causal mask the last device would work for all blocks and the first for one. So each device has two *halves* of the
sequence, one from the front and one from the back: number p and number 2n-1-p of 2n. It keeps the even one of its own two
halves, and gets the odd one from the device as far from the end as it is from the start. All other devices' halves are then
visible whole or hidden whole:

| | front half of the block | back half of the block |
| --- | --- | --- |
| front half of the rows | visible if the block's p is smaller | hidden |
| back half of the rows | visible | visible if the block's p is larger |

So a step takes two products of halves, which are the same on all devices. A hidden half has the same logit everywhere. So its
share of the results is the same for all rows, and its gradients are the same for all keys: they are computed with a single row,
or key. They cannot be left out: 0 times infinity is NaN, and a row that sees no key weights all keys equally.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Attr, Equation, Output, Value
from mtfc.compiler.ir.loops import NewLoop, plain_loop
from mtfc.compiler.ir.ops.attention import (
    COLUMNS,
    HIGH,
    LOW,
    MEMORY,
    PART,
    RESULT_DIMS,
    ROLES,
    ROWS,
    WIDE,
)
from mtfc.compiler.ir.types import Dim
from mtfc.compiler.passes.spatial.position_blocks import NewDims
from mtfc.compiler.records import frozen

Tree = Any
"""Values in nested tuples."""

FRONT, BACK = 0, 1


@frozen
class Ring:
    """The dimensions of a ring.

    row, column: the dimensions of queries and of keys that are cut. shards: the number of devices. low: the least row - column
    under a causal mask, which is 0 or 1; None without a mask. blocks: one element for each device.
    """

    row: Dim
    column: Dim
    shards: int
    low: int | None
    blocks: Dim
    dims: NewDims

    @property
    def halves(self) -> int:
        return 1 if self.low is None else 2

    def part(self, dim: Dim) -> Dim:
        """Return the dimension of one part of rows or columns."""
        return self.dims.get(
            f"{dim.name}.part" if self.low is None else f"{dim.name}.half",
            dim.size // (self.shards * self.halves),
        )

    def cut_dims(self, dims: Iterable[Dim], *between: Dim) -> tuple[Dim, ...]:
        """Return dimensions with rows and columns cut."""
        found: list[Dim] = []
        for dim in dims:
            found += [self.blocks, *between, self.part(dim)] if dim in (self.row, self.column) else [dim]
        return tuple(found)

    def cut(self, b: Builder, x: Value) -> tuple[Value, ...]:
        """Return the parts of rows or columns, one or two for each device."""
        if self.low is None:
            return (b("reshape", x, dims=self.cut_dims(x.type.dims)),)
        pair = b("reshape", x, dims=self.cut_dims(x.type.dims, self.two))
        even, odd = (self.one_of(b, pair, i) for i in range(2))
        odd = b("flip", odd, dim=self.blocks)
        is_front = self._is_front(b, self.index(b))
        return choice(b, is_front, even, odd), choice(b, is_front, odd, even)

    @property
    def one(self) -> Dim:
        return self.dims.get("halves.one", 1)

    @property
    def two(self) -> Dim:
        return self.dims.get("halves", 2)

    def one_of(self, b: Builder, pair: Value, number: int) -> Value:
        """Return one of two halves."""
        found = b("slice", pair, source=self.two, target=self.one, start=number, stride=1)
        return b("reshape", found, dims=tuple(dim for dim in found.type.dims if dim != self.one))

    def joined(self, b: Builder, parts: Sequence[Value], dims: Sequence[Dim]) -> Value:
        """Return rows or columns with these dimensions from their parts: the reverse of `cut`."""
        if self.low is None:
            return b("reshape", b.ordered(parts[0], self.cut_dims(dims)), dims=tuple(dims))
        front, back = (b.ordered(part, self.cut_dims(dims)) for part in parts)
        is_front = self._is_front(b, self.index(b))
        even, odd = choice(b, is_front, front, back), choice(b, is_front, back, front)
        odd = b("flip", odd, dim=self.blocks)
        both = (b("reshape", each, dims=self.cut_dims(dims, self.one)) for each in (even, odd))
        pair = b("concat", *both, sources=(self.one, self.one), target=self.two)
        return b("reshape", pair, dims=tuple(dims))

    def index(self, b: Builder) -> Value:
        """Return the number of each device, i32[blocks]."""
        return b("range", dim=self.blocks)

    def _is_front(self, b: Builder, device: Value) -> Value:
        """Return True for devices whose even half is their front half."""
        return b("lt", b("mul", device, b.constant(2, "i32")), b.constant(self.shards, "i32"))

    def _front(self, b: Builder, device: Value) -> Value:
        """Return the number of the front half of a device."""
        even = b("mul", device, b.constant(2, "i32"))
        odd = b("sub", b.constant(2 * self.shards - 1, "i32"), even)
        found: Value = choice(b, self._is_front(b, device), even, odd)
        return found

    def comes_before(self, b: Builder, hops: Value) -> Value:
        """Return True on devices whose front half comes after the front half of the block that has come in `hops` hops."""
        own = self.index(b)
        home = b("sub", own, hops)
        wrapped = b("add", home, b.constant(self.shards, "i32"))
        home = choice(b, b("lt", home, b.constant(0, "i32")), wrapped, home)
        return b("lt", self._front(b, home), self._front(b, own))


def choice(b: Builder, condition: Value, x: Tree, y: Tree) -> Tree:
    """Return x where a condition on `blocks` holds, else y."""
    if isinstance(x, tuple):
        return tuple(choice(b, condition, *each) for each in zip(x, y, strict=True))
    dims = x.type.dims if len(x.type.dims) >= len(y.type.dims) else y.type.dims
    return b.ordered(b("where", condition, x, y), dims)


def flat(tree: Tree) -> Iterator[Value]:
    """Yield the values of a tree."""
    if isinstance(tree, Value):
        yield tree
    else:
        for each in tree:
            yield from flat(each)


def like(tree: Tree, values: Iterator[Value]) -> Tree:
    """Return a tree of the same form with other values."""
    return next(values) if isinstance(tree, Value) else tuple(like(each, values) for each in tree)


@frozen
class WeightedMeans:
    """Merges results of `attention`: (weighted sum, largest logit, sum of the exponentials of the rest).

    is_part: other devices have further columns for these rows.
    """

    is_part: bool

    def start(self, b: Builder, results: Sequence[Value]) -> Tree:
        """Return the sums of a first block: the weighted sum, the largest logit, and the total weight."""
        mean, largest, total = results
        wide = b.cast(mean, total.type.dtype)
        return b.ordered(b("mul", wide, total), mean.type.dims), largest, total

    def merged(self, b: Builder, x: Tree, y: Tree) -> Tree:
        """Return the sums over two blocks of keys. Each has a weighted sum, the largest logit, and the total weight.

        The sums are scaled to the larger of both largest logits.
        """
        largest = b("maximum", x[1], y[1])
        sums, totals = [], []
        for each in (x, y):
            share = b("exp", b("sub", each[1], largest))
            sums.append(b("mul", each[0], share))
            totals.append(b("mul", each[2], share))
        found = b("add", *sums), largest, b("add", *totals)
        return tuple(b.ordered(new, old.type.dims) for new, old in zip(found, x, strict=True))

    def nothing(self, b: Builder, x: Tree) -> Tree:
        return zeros(b, x[0]), x[1], zeros(b, x[2])

    def finished(self, b: Builder, x: Tree) -> tuple[Value, ...]:
        """Return the results from the sums of all blocks. A part that has seen no key has the mean 0."""
        total = x[2]
        if self.is_part:
            total = b("where", b("eq", total, b.like(0, total)), b.like(1, total), total)
        return b("div", x[0], total), x[1], x[2]


class PlainSums:
    """Adds gradients."""

    def start(self, b: Builder, results: Sequence[Value]) -> Tree:
        return tuple(b.cast(x, WIDE.get(x.type.dtype, x.type.dtype)) for x in results)

    def merged(self, b: Builder, x: Tree, y: Tree) -> Tree:
        return tuple(b.ordered(b("add", *each), each[0].type.dims) for each in zip(x, y, strict=True))

    def nothing(self, b: Builder, x: Tree) -> Tree:
        return tuple(zeros(b, each) for each in x)

    def finished(self, b: Builder, x: Tree) -> tuple[Value, ...]:
        return tuple(x)


Sums = WeightedMeans | PlainSums
"""The way in which results for blocks are merged.

start: the sums of the first results. merged: the sums of two. nothing: sums that change no others. finished: the results.
"""


def zeros(b: Builder, x: Value) -> Value:
    return filled(b, 0, x.type.dtype, x.type.dims)


def filled(b: Builder, value: float | bool, dtype: str, dims: Sequence[Dim]) -> Value:
    return b("broadcast", b.constant(value, dtype), dims=tuple(dims))


@frozen
class RingBuilder:
    """Builds attention, or its gradients, as a ring.

    eqns: equations with the same operands. build: takes the equations. sums: merges what each row gets.

    The state of a hop has four parts: the sums of each half of the rows; those that hidden columns add to them, without the
    dimension of rows; the columns that are here, by halves; and the gradients for these, which stay behind by one device until
    they are handed on.
    """

    ring: Ring
    eqns: Sequence[Equation]
    build: Builder
    sums: Sums

    @property
    def operands(self) -> tuple[Value, ...]:
        return self.eqns[0].operands

    @property
    def is_gradient(self) -> bool:
        return len(self.eqns[0].results) < 3

    def results(self) -> list[tuple[Value, ...]]:
        """Append the ring, and return the results of each equation."""
        b, trips = self.build, self.ring.shards - 2
        rows, columns = self._cut(self.ring.row), self._cut(self.ring.column)
        lost = tuple(self._hidden_rows(b, each) for each in rows) if self.ring.low is not None else ()
        fixed = rows, lost
        state = self._own(b, fixed, columns)
        if trips > 0:
            state = self._hops(fixed, state, self.ring.dims.get(f"{self.ring.row.name}.hops", trips))
        state = self._step(b, fixed, self._handed_on(b, state), b.constant(trips + 1, "i32"))
        return self._finished(b, state[0], state[1], self._shifted(b, state[3]))

    def _places(self, dim: Dim) -> list[int]:
        return [i for i, x in enumerate(self.operands) if dim in x.type.dims]

    def _results(self, dim: Dim) -> list[Value]:
        """Return the results with a dimension."""
        return [value for eqn in self.eqns for value in eqn.results if dim in value.type.dims]

    def _cut(self, dim: Dim) -> tuple[tuple[Value, ...], ...]:
        """Return the operands with a dimension, by halves."""
        cut = [self.ring.cut(self.build, self.operands[i]) for i in self._places(dim)]
        return tuple(zip(*cut, strict=True))

    def _shifted(self, b: Builder, tree: Tree) -> Tree:
        shifted = [b("shift", x, dim=self.ring.blocks, by=1, wrap=True, name=x.name) for x in flat(tree)]
        return like(tree, iter(shifted))

    def _handed_on(self, b: Builder, state: Tree) -> Tree:
        """Return the state with the gradients for columns beside their columns."""
        return *state[:3], self._shifted(b, state[3])

    def _hops(self, fixed: Tree, state: Tree, hops: Dim) -> Tree:
        """Return the state after a loop over `hops` hops.

        Each iteration sends the block on and attends to it at the same time.

        fixed: the rows, and the gradients for columns that rows do not see. state: the sums so far, and the block.
        """
        b = self.build
        numbers = b("add", b("range", dim=hops), b.constant(1, "i32"))
        inner = Builder(Names(), b.span, b.stage)
        loop = NewLoop(b, inner, hops)
        state_inside = like(state, iter([loop.argument(value, "carried") for value in flat(state)]))
        fixed_inside = like(fixed, iter([loop.argument(value, "invariant") for value in flat(fixed)]))
        other_operands = [loop.argument(value, "invariant") for value in self._others()]
        number = loop.argument(numbers, "sliced")
        inside = attrs.evolve(self, build=inner, eqns=self._with_others(other_operands))
        sent = inside._shifted(inner, state_inside[2])
        next_state = inside._step(inner, fixed_inside, inside._handed_on(inner, state_inside), number)
        next_state = *next_state[:2], sent, next_state[3]
        for carry, value in zip(flat(state_inside), flat(next_state), strict=True):
            loop.outputs.append(Output(carry.name, value, carry.name))
        results = tuple(Value(b.names.fresh(value.name), value.type) for value in flat(state))
        loop.append(hops.name, plain_loop(hops, b), results)
        return like(state, iter(results))

    def _others(self) -> list[Value]:
        """Return the operands with neither rows nor columns."""
        known = {*self._places(self.ring.row), *self._places(self.ring.column)}
        return [x for i, x in enumerate(self.operands) if i not in known]

    def _with_others(self, values: Sequence[Value]) -> list[Equation]:
        """Return the equations with other operands in the place of `_others`."""
        new = dict(zip(self._others(), values, strict=True))
        operands = tuple(new.get(x, x) for x in self.operands)
        return [attrs.evolve(eqn, operands=operands) for eqn in self.eqns]

    # Steps

    def _own(self, b: Builder, fixed: Tree, columns: Tree) -> Tree:
        """Return the state after each device has attended to its own block, and has sent it on.

        fixed: the rows, and the gradients for columns that rows do not see.
        """
        rows, lost = fixed
        sent = self._shifted(b, columns)
        if self.ring.low is None:
            mine, theirs = self._visit(b, rows[0], columns[0])
            return (mine,), (), sent, (theirs,)
        front, of_front = self._visit(b, rows[FRONT], columns[FRONT], has_mask=True)
        back, of_back = self._visit(b, rows[BACK], columns[BACK], has_mask=True)
        more, others = self._visit(b, rows[BACK], columns[FRONT])
        back = self._merged(b, back, more)
        of_front, of_back = self._added(b, of_front, others), self._added(b, of_back, lost[FRONT])
        hidden = self._hidden_columns(b, columns[BACK])
        none = self.sums.nothing(b, hidden) if hidden else ()
        return (front, back), (hidden, none), sent, (of_front, of_back)

    def _step(self, b: Builder, fixed: Tree, state: Tree, hops: Value) -> Tree:
        """Return the state after each device has attended to the block that has come in `hops` hops.

        fixed: the rows, and the gradients for columns that rows do not see. state: the sums so far, and the block.
        """
        rows, lost = fixed
        sums, hidden, columns, gradients = state
        if self.ring.low is None:
            mine, theirs = self._visit(b, rows[0], columns[0])
            added = self._added(b, gradients[0], theirs)
            return (self._merged(b, sums[0], mine),), hidden, columns, (added,)
        is_before = self.ring.comes_before(b, hops)
        always = self._visit(b, rows[BACK], columns[FRONT])
        sometimes = self._visit(b, choice(b, is_before, *rows), choice(b, is_before, *columns))
        sums = sums[FRONT], self._merged(b, sums[BACK], always[0])
        found = self._merged(b, choice(b, is_before, *sums), sometimes[0])
        sums = choice(b, is_before, found, sums[FRONT]), choice(b, is_before, sums[BACK], found)
        gradients = self._added(b, gradients[FRONT], always[1]), gradients[BACK]
        found = self._added(b, choice(b, is_before, *gradients), sometimes[1])
        gradients = (
            choice(b, is_before, found, gradients[FRONT]),
            choice(b, is_before, gradients[BACK], found),
        )
        gradients = self._with_hidden_rows(b, is_before, gradients, lost)
        return sums, self._with_hidden_columns(b, is_before, hidden, columns), columns, gradients

    def _with_hidden_columns(self, b: Builder, is_before: Value, hidden: Tree, columns: Tree) -> Tree:
        """Return the sums for rows with the halves of a block that are hidden from them."""
        front, back = hidden
        if not front:
            return hidden
        further = self._hidden_columns(b, columns[BACK])
        front = self._merged(b, front, further)
        some = self._merged(b, front, self._hidden_columns(b, columns[FRONT]))
        back = choice(b, is_before, self._merged(b, back, further), back)
        return choice(b, is_before, front, some), back

    def _with_hidden_rows(self, b: Builder, is_before: Value, gradients: Tree, lost: Tree) -> Tree:
        """Return the gradients for columns with the rows from which the columns are hidden."""
        front, back = gradients
        back = self._added(b, back, lost[FRONT])
        back = choice(b, is_before, self._added(b, back, lost[BACK]), back)
        return choice(b, is_before, front, self._added(b, front, lost[FRONT])), back

    def _merged(self, b: Builder, x: Tree, y: Tree) -> Tree:
        return self.sums.merged(b, x, y) if x else ()

    def _added(self, b: Builder, x: Tree, y: Tree) -> Tree:
        pairs = zip(x, y, strict=True)
        return tuple(b.ordered(b("add", *pair, name=pair[0].name), pair[0].type.dims) for pair in pairs)

    # Visits: some rows attend to some columns

    def _visit(self, b: Builder, rows: Tree, columns: Tree, has_mask: bool = False) -> tuple[Tree, Tree]:
        """Return the sums for rows that attend to columns, and the gradients for the columns."""
        row, column = self.ring.row, self.ring.column
        mask: dict[str, Attr] = {}
        if has_mask:
            mask = {ROWS.name: (self.ring.part(row),), COLUMNS.name: (self.ring.part(column),)}
            mask |= {LOW.name: self.ring.low or 0}
        given = dict(zip(self._places(row), rows, strict=True))
        given |= zip(self._places(column), columns, strict=True)
        return self._computed(b, [given.get(i, x) for i, x in enumerate(self.operands)], **mask)

    def _computed(self, b: Builder, operands: Sequence[Value], **changed: Attr) -> tuple[Tree, Tree]:
        """Add the attention equations on blocks of rows and columns. Return the sums for rows, and the gradients for columns.

        operands: the operands of the equations, with blocks in the place of whole arrays. changed: attributes that differ from
        those of a block without a mask.
        """
        attributes: dict[str, Attr] = {
            **{
                name: value for name, value in self.eqns[0].attrs.items() if name not in (LOW.name, HIGH.name)
            },
            RESULT_DIMS.name: self.ring.cut_dims(RESULT_DIMS.of(self.eqns[0].attrs)),
            MEMORY.name: self._memory(self.ring.part(self.ring.column)),
            ROWS.name: (),
            COLUMNS.name: (),
            **({} if self.is_gradient else {PART.name: True}),
            **changed,
        }
        rows: list[Value] = []
        columns: list[Value] = []
        for eqn in self.eqns:
            names = [value.name for value in eqn.results]
            block_results = b.several(eqn.op, *operands, names=names, **attributes)
            for value, result in zip(block_results, eqn.results, strict=True):
                (columns if self.ring.column in result.type.dims else rows).append(value)
        return self.sums.start(b, rows) if rows else (), tuple(columns)

    def _memory(self, part: Dim) -> tuple[Dim, ...]:
        """Return the dimensions of the keys that a step of the ring attends to: one part in the place of the split one."""
        memory = MEMORY.of(self.eqns[0].attrs)
        return tuple(part if dim == self.ring.column else dim for dim in memory)

    def _hidden_columns(self, b: Builder, columns: Sequence[Value]) -> Tree:
        """Return the sums for any one row that does not see these columns."""
        if not self._results(self.ring.row):
            return ()
        lost = self.ring.part(self.ring.row)
        given = dict(zip(self._places(self.ring.column), columns, strict=True))
        dims = self.ring.cut_dims(RESULT_DIMS.of(self.eqns[0].attrs))
        kept = tuple(dim for dim in dims if dim != lost)
        found, _ = self._unseen(
            b, given, lambda dims: [dim for dim in dims if dim != lost], {RESULT_DIMS.name: kept}
        )
        return found

    def _hidden_rows(self, b: Builder, rows: Sequence[Value]) -> Tree:
        """Return the gradients for any one column that these rows do not see."""
        if not self._results(self.ring.column):
            return ()
        lost, one = self.ring.part(self.ring.column), self.ring.one
        given = dict(zip(self._places(self.ring.row), rows, strict=True))
        changed: dict[str, Attr] = {MEMORY.name: self._memory(one)}
        _, found = self._unseen(b, given, lambda dims: [one if dim == lost else dim for dim in dims], changed)
        return tuple(
            b("reshape", each, dims=tuple(dim for dim in each.type.dims if dim != one)) for each in found
        )

    def _unseen(
        self,
        b: Builder,
        given: Mapping[int, Value],
        changed: Callable[[Sequence[Dim]], Sequence[Dim]],
        attributes: Mapping[str, Attr],
    ) -> tuple[Tree, Tree]:
        """Return the sums under a mask that hides everything. All numbers do in the place of operands that are not given.

        changed: the dimensions of these operands.
        """
        operands = []
        last = len(self.operands) - (4 if self.is_gradient else 0)
        for i, x in enumerate(self.operands):
            dims = changed(self.ring.cut_dims(x.type.dims))
            if i < 3 or i >= last:
                operands.append(given[i] if i in given else filled(b, 1, x.type.dtype, dims))
        operands.insert(3, filled(b, False, "bool", ()))
        return self._computed(b, operands, **{ROLES.name: "mask", **attributes})

    # Results

    def _finished(self, b: Builder, sums: Tree, hidden: Tree, gradients: Tree) -> list[tuple[Value, ...]]:
        """Return the results of each equation from the sums of each half."""
        rows = iter(()) if not sums[0] else self._joined_rows(b, sums, hidden)
        columns = zip(*gradients, strict=True)
        return [
            tuple(
                self.ring.joined(
                    b, next(columns) if self.ring.column in value.type.dims else next(rows), value.type.dims
                )
                for value in eqn.results
            )
            for eqn in self.eqns
        ]

    def _joined_rows(self, b: Builder, sums: Tree, hidden: Tree) -> Iterator[Sequence[Value]]:
        """Yield each result for rows, by halves."""
        if hidden:
            spread = (
                tuple(b.broadcast(x, like.type) for x, like in zip(y, x, strict=True))
                for x, y in zip(sums, hidden, strict=True)
            )
            sums = [self.sums.merged(b, x, y) for x, y in zip(sums, spread, strict=True)]
        results = self._results(self.ring.row)
        finished = [self.sums.finished(b, each) for each in sums]
        for value, halves in zip(results, zip(*finished, strict=True), strict=True):
            yield [b.cast(half, value.type.dtype) for half in halves]
