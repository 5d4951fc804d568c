"""Repeated statements become `for` loops: copies of a layer, and the update of each parameter by an optimizer.

Input: the statements of a function, in order. Output: its lines, where a run of blocks that differ only in names is a loop over
the last block. Python executes the same statements in the same order, so JAX traces the same program.

A *column* holds the name at one place of each block. Inside the loop the column has the name of its last entry:

- a column of the blocks' own values is an ordinary variable;
- a *carry* holds a value of the block before;
- texts with a number, such as keys of arguments, become f-strings of the loop's index;
- other columns are rows to iterate over. An earlier loop appends to the rows that come from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import nlargest
from itertools import pairwise

import attrs
import numpy as np

MARK = "\u0298"
"""Stands around the number of a value in a text without names. It is a letter that no name in a .mtf file has."""

LEAST = 24
"""The fewest statements that a loop saves."""

_HOLE = re.compile(f'{MARK}\\d+{MARK}|(?<=\\[)f?"[^"\\n]*"|f?"[^"\\n]*\\d[^"\\n]*"')
_TEXT = re.compile('"[^"\\n]*"')

Column = tuple[str, ...]
"""The name, or the text in quotes, at one place of each block."""


@attrs.frozen(eq=False, slots=False)
class Statement:
    """A statement with marks in the place of names. place: the comment in front of it. is_store: it stores a result by name."""

    text: str
    place: str = ""
    is_store: bool = False

    @cached_property
    def holes(self) -> list[str]:
        return _HOLE.findall(self.text)

    @cached_property
    def template(self) -> tuple[str, str]:
        return self.place, _HOLE.sub("@", self.text)


@attrs.define(eq=False, slots=False)
class Block:
    """A run of equal blocks of statements; a single block for statements without repetition.

    inner: the columns of the blocks' own values, by last entry. outer: other columns that differ. index: a name, and its numbers. before:
    lines in front of the loop. loops: (target, iterable). unpacked: the first lines of the body. texts: text in quotes -> text inside the loop.
    reads: the arguments to read inside the loop. saves: values to append in each iteration -> list. updates: (carry, new value).
    """

    start: int
    period: int
    count: int
    inner: dict[str, Column] = attrs.field(factory=dict)
    outer: list[Column] = attrs.field(factory=list)
    index: tuple[str, tuple[int, ...]] | None = None
    before: list[str] = attrs.field(factory=list)
    loops: list[tuple[str, str]] = attrs.field(factory=list)
    unpacked: list[str] = attrs.field(factory=list)
    texts: dict[str, str] = attrs.field(factory=dict)
    reads: dict[str, str] = attrs.field(factory=dict)
    saves: dict[tuple[str, ...], str] = attrs.field(factory=dict)
    updates: list[tuple[str, str]] = attrs.field(factory=list)

    @property
    def end(self) -> int:
        return self.start + self.period * self.count

    @cached_property
    def carried(self) -> dict[Column, str]:
        """The entries of a carry after the first -> the value that updates it."""
        return {column[:-1]: last for last, column in self.inner.items()}


Place = tuple[Block, int] | None
"""The loop and the iteration that a value comes from; None for a value outside of loops."""


class Scope:
    """Writes the statements of a function or of a loop's body.

    mark: makes a name. reads: argument -> text that reads it. own: the values that the statements define; None for all but
    `reads`. stores: of a function, the stores outside of loops, which no line has.
    """

    def __init__(
        self,
        statements: Sequence[Statement],
        mark: Callable[[str], str],
        reads: Mapping[str, str],
        own: set[str] | None = None,
    ) -> None:
        self.statements, self.mark, self.reads, self.is_body = statements, mark, reads, own is not None
        self.births: dict[str, int] = {}
        for i, statement in enumerate(statements):
            for hole in statement.holes:
                if hole[0] == MARK and hole not in reads and (own is None or hole in own):
                    self.births.setdefault(hole, i)
        numbers: dict[tuple[str, str], int] = {}
        self.keys = np.array([numbers.setdefault(s.template, len(numbers)) for s in statements])
        self.origins: dict[str, tuple[Block, int, str]] = {}
        self.stores: list[Statement] = []

    def lines(self) -> list[str]:
        blocks = list(self._blocks())
        for block in blocks:
            self._prepare(block)  # adds to `saves` of earlier blocks
        return [line for block in blocks for line in self._written(block)]

    # The loops

    def _blocks(self) -> Iterator[Block]:
        """Yield loops and the statements between them, in order."""
        position = 0
        for block in self._runs(0, len(self.statements)):
            yield self._single(position, block.start)
            yield block
            position = block.end
            for last, column in block.inner.items():
                self.origins |= {name: (block, i, last) for i, name in enumerate(column)}
        yield self._single(position, len(self.statements))

    def _single(self, start: int, end: int) -> Block:
        """Return statements without repetition. Their outer columns are values of loops, but for those of the last iteration."""
        block = Block(start, end - start, 1)
        for name in dict.fromkeys(hole for s in self.statements[start:end] for hole in s.holes):
            loop, i, _ = self.origins.get(name, (block, 0, name))
            if i < loop.count - 1:
                block.outer.append((name,))
        return block

    def _runs(self, start: int, end: int) -> Iterator[Block]:
        for first, period, length in self._candidates(start, end):
            blocks = [
                Block(i, period, (first + length - i) // period) for i in self._starts(first, period, length)
            ]
            found = [block for block in blocks if self._fill_columns(block)]
            if found:
                block = min(found, key=lambda block: (len(block.outer) - block.count, block.start))
                yield from self._runs(start, block.start)
                yield block
                yield from self._runs(block.end, end)
                return

    def _starts(self, first: int, period: int, length: int) -> list[int]:
        """Return where the first of equal blocks may start: at a statement of another place than the one before."""
        last = min(first + 2 * period, first + length - 2 * period)
        places = [statement.place for statement in self.statements[: last + 1]]
        return [i for i in range(first, last + 1) if i == first or places[i] not in ("", places[i - 1])]

    def _candidates(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (start, period, length) of runs of statements with equal templates, those that save the most first."""
        keys, found = self.keys[start:end], []
        for period in range(1, len(keys) // 2 + 1):
            equal = keys[period:] == keys[:-period]
            if np.count_nonzero(equal) < max(period, LEAST):
                continue
            ends = np.flatnonzero(np.concatenate([[True], ~equal, [True]]))
            for left, right in zip(ends[:-1].tolist(), (ends[1:] - 1).tolist(), strict=True):
                saved = (right - left) // period * period
                if saved >= LEAST:
                    found.append((saved, -period, start + left, right - left + period))
        return [(first, -period, length) for _, period, first, length in nlargest(20, found)]

    def _fill_columns(self, block: Block) -> bool:
        """Find the columns of blocks. Return False if the blocks are not equal, or if a loop is no shorter."""
        first, period, outer = block.start, block.period, dict[Column, None]()
        starts = [first + i * period for i in range(block.count)]
        for offset in range(period):
            for column in zip(*(self.statements[start + offset].holes for start in starts), strict=True):
                births = {
                    self.births.get(name, -1) - start for name, start in zip(column, starts, strict=True)
                }
                own = [0 <= birth < period for birth in births]
                if not any(own):
                    outer[column] = None
                elif len(births) > 1 or block.inner.setdefault(column[-1], column) != column:
                    return False
        if len({column[-1] for column in outer}) < len(outer):
            return False
        block.outer = [column for column in outer if len({*column}) > 1]
        rows = [column for column in block.outer if column[1:] not in block.carried]
        if any(self.births.get(name, -1) >= first for column in rows for name in column):
            return False
        rows = [column for column in rows if not numbered(self._texts(column))]
        return len(rows) * block.count < period * (block.count - 1)

    def _texts(self, column: Column) -> Column:
        """Return the keys of a column of arguments; other columns as they are."""
        if any(name not in self.reads for name in column):
            return column
        return tuple(_TEXT.findall(self.reads[name])[0] for name in column)

    # The names of columns inside a loop

    def _prepare(self, block: Block) -> None:
        """Fill what a loop has beside its statements. A single block gets lines that read values of loops."""
        groups: dict[tuple[Place, ...], list[tuple[str, Column]]] = {}
        for column in block.outer:
            texts, last = self._texts(column), column[-1]
            if column[1:] in block.carried:
                block.updates.append((last, block.carried[column[1:]]))
                block.before.append(f"{last} = {column[0]}")
            elif texts[-1][0] == MARK:
                groups.setdefault(self._places(block, column), []).append((last, column))
            elif texts[-1] not in block.texts and not self._count(block, texts):
                block.texts[texts[-1]] = self.mark("key")
                groups.setdefault((None,) * block.count, []).append((block.texts[texts[-1]], texts))
            if texts is not column:
                block.reads[last] = self.reads[last].replace(texts[-1], block.texts[texts[-1]])
        for places, columns in groups.items():
            self._iterate(block, [name for name, _ in columns], self._rows(places, [c for _, c in columns]))

    def _count(self, block: Block, texts: Column) -> bool:
        """Write texts with a number by means of the loop's index. Return False if they have none, or another step."""
        found = numbered(texts)
        if found is None:
            return False
        numbers = found[1]
        index, known = block.index = block.index or (self.mark("i"), numbers)
        shifts = {number - by for number, by in zip(numbers, known, strict=True)}
        if len(shifts) == 1:
            shift = min(shifts)
            sign = f"{shift:+}" if shift else ""
            block.texts[texts[-1]] = f"f{found[0].replace('@', f'{{{index}{sign}}}')}"
        return len(shifts) == 1

    def _places(self, block: Block, column: Column) -> tuple[Place, ...]:
        """Return where each entry comes from. Entries of several columns of one loop are read in front of the block."""
        found = [self.origins.get(name) for name in column]
        if len({each[::2] for each in found if each}) == len({each[0] for each in found if each}):
            return tuple(each and each[:2] for each in found)
        single = Block(
            0,
            0,
            1,
            outer=[
                (n,) for n, each in zip(column, found, strict=True) if each and each[1] < each[0].count - 1
            ],
        )
        self._prepare(single)
        block.before += single.before
        return (None,) * block.count

    def _rows(self, places: tuple[Place, ...], columns: list[Column]) -> str:
        """Return the text of a list with the rows of columns. Loops that values come from get a list to append them to."""
        lists: dict[Block, str] = {}
        pieces: list[str | tuple[Block, list[int]]] = []
        for i, place in enumerate(places):
            if place is None:
                pieces.append(_tuple([column[i] for column in columns]))
                continue
            loop, iteration = place
            if loop not in lists:
                values = tuple(self.origins[column[i]][2] for column in columns)
                lists[loop] = loop.saves.setdefault(values, self.mark("saved"))
            if (
                pieces
                and not isinstance(pieces[-1], str)
                and pieces[-1][0] is loop
                and _continues(*pieces[-1][1], iteration)
            ):
                pieces[-1][1].append(iteration)
            else:
                pieces.append((loop, [iteration]))
        texts = [p if isinstance(p, str) else _slice(lists[p[0]], p[1], p[0].count) for p in pieces]
        if len(pieces) == 1 and not isinstance(pieces[0], str):
            return texts[0]
        return (
            f"[{', '.join(t if isinstance(p, str) else f'*{t}' for t, p in zip(texts, pieces, strict=True))}]"
        )

    def _iterate(self, block: Block, names: list[str], rows: str) -> None:
        """Let a loop iterate over rows; a single block reads the first row."""
        if block.count == 1:
            block.before.append(f"{', '.join(names)} = {rows}[0]")
            return
        if rows[0] == "[":
            block.before.append(f"{(known := self.mark('rows'))} = {rows}")
            rows = known
        target = names[0] if len(names) == 1 else self.mark("row")
        block.loops.append((target, rows))
        block.unpacked += [f"{', '.join(names)} = {target}"] * (len(names) > 1)

    # Lines

    def _written(self, block: Block) -> Iterator[str]:
        if block.count > 1:
            yield from (f"{name} = []" for name in block.saves.values())
            yield from block.before
            yield _head(block)
            body = Scope([*self._body(block)], self.mark, {}, self._own(block))
            yield from (f"    {line}" if line else "" for line in [*block.unpacked, *body.lines()])
            return
        yield from block.before
        statements = self.statements[block.start : block.end]
        self.stores += [s for s in statements if s.is_store and not self.is_body]
        yield from lines_of(s for s in statements if self.is_body or not s.is_store)

    def _own(self, block: Block) -> set[str]:
        """Return the values that a loop's body defines."""
        born = {name for name, at in self.births.items() if block.end - block.period <= at < block.end}
        return born | {*block.reads}

    def _body(self, block: Block) -> Iterator[Statement]:
        """Yield the statements of a loop's body: those of the last block, with arguments read where they are used first."""
        unread = dict(block.reads)
        for statement in self.statements[block.end - block.period : block.end]:
            yield from (
                Statement(f"{x} = {unread.pop(x)}") for x in dict.fromkeys(statement.holes) if x in unread
            )
            text = _HOLE.sub(lambda hole: block.texts.get(hole[0], hole[0]), statement.text)
            yield attrs.evolve(statement, text=text)
        yield from (Statement(f"{name}.append({_tuple(values)})") for values, name in block.saves.items())
        yield from (Statement(f"{carry} = {value}") for carry, value in block.updates)


def lines_of(statements: Iterable[Statement]) -> Iterator[str]:
    """Yield the lines of statements, and the places in front of the first statement of each."""
    previous = ""
    for statement in statements:
        if statement.text.startswith("\n"):
            yield ""
        if statement.place not in ("", previous):
            yield (previous := statement.place)
        yield from statement.text.removeprefix("\n").split("\n")


def numbered(texts: Column) -> tuple[str, tuple[int, ...]] | None:
    """Return texts that differ in one number, in equal steps, as a text with `@` in its place, and the numbers."""
    parts = [re.split(r"(\d+)", text) for text in texts]
    if texts[0][0] != '"' or len({*map(len, parts)}) > 1 or any(set(text) & set("{@}") for text in texts):
        return None
    fields = [*zip(*parts, strict=True)]
    varied = {field for field in fields if len({*field}) > 1}
    if len(varied) != 1 or not all(each.isdigit() and str(int(each)) == each for each in min(varied)):
        return None
    numbers = tuple(map(int, min(varied)))
    steps = {b - a for a, b in pairwise(numbers)}
    return ("".join("@" if f in varied else f[0] for f in fields), numbers) if len(steps) == 1 else None


def _head(block: Block) -> str:
    """Return the line that opens a loop."""
    loops = list(block.loops)
    if block.index is not None:
        index, numbers = block.index
        step = numbers[1] - numbers[0]
        over = f"range({numbers[0]}, {numbers[-1] + step}, {step})"
        if step == 1:
            over = f"range({numbers[0]}, {numbers[-1] + 1})" if numbers[0] else f"range({numbers[-1] + 1})"
        loops.insert(0, (index, over))
    if len(loops) < 2:
        target, over = loops[0] if loops else ("_", f"range({block.count})")
        return f"for {target} in {over}:"
    return f"for {', '.join(t for t, _ in loops)} in zip({', '.join(over for _, over in loops)}):"


def _tuple(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _continues(*numbers: int) -> bool:
    """Return True if numbers go up or down in steps of one."""
    return {b - a for a, b in pairwise(numbers)} in ({1}, {-1})


def _slice(name: str, numbers: Sequence[int], count: int) -> str:
    """Return the elements of a list at these places, which go up or down in steps of one."""
    low, high = min(numbers), max(numbers)
    part = name if (low, high) == (0, count - 1) else f"{name}[{low}:{high + 1}]"
    return f"{part}[::-1]" if numbers[0] > numbers[-1] else part
