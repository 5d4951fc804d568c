"""Repeated statements become `for` loops: copies of a layer, and the update of each parameter by an optimizer.

Input: the statements of a function, in order. Output: its lines, where a run of blocks that differ only in names is a loop over
the last block. Python executes the same statements in the same order, so JAX traces the same program.

A *column* holds the name at one place of each block. In the loop it is

- an ordinary variable, if each block defines its own entry;
- a variable that the loop updates, if each block takes a value of the block before: a carry;
- a text with the loop's index, if the entries are arguments or values of an earlier loop: `params[f"layers_{i}_w"]`,
  `saved[i]["h"]`. The earlier loop saves these values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from mtfc.compiler.search.repeated_layers import Run

MARK = "\u0298"
"""Stands around the number of a value in a text without names. It is a letter that no name in a .mtf file has."""

LEAST = 24
"""The fewest statements that a loop saves, and the fewest operands of a sum that are collected in a list."""

_HOLE = re.compile(f'{MARK}\\d+{MARK}|(?<=\\[)"[^"\\n]*"|"[^"\\n]*\\d[^"\\n]*"')
NUMBER = re.compile(f"(?<![\\d{MARK}])(\\d+)(?![\\d{MARK}])")
_PART = re.compile(f'{MARK}\\d+{MARK}(?:\\.transpose\\([\\d, ]+\\))?|"[^"\\n]*"')
_TURNED = re.compile(f"(?<={MARK})\\.transpose\\([\\d, ]+\\)")

Column = tuple[str, ...]
"""The name, or the text in quotes, at one place of each block."""


@attrs.frozen(eq=False, slots=False)
class Statement:
    """A statement with marks in the place of names.

    place: the comment in front of it. is_scalar: what it defines has no dimensions. is_store: it stores a result by name.
    kind: differs where equal texts are no copies.
    """

    text: str
    place: str = ""
    is_scalar: bool = False
    is_store: bool = False
    kind: str = ""

    @cached_property
    def holes(self) -> list[str]:
        """The parts in which copies of the statement may differ: names, and texts in quotes."""
        return _HOLE.findall(self.text)

    @cached_property
    def template(self) -> tuple[str, str, str]:
        """The part of the statement that its copies have in common."""
        return self.place, _HOLE.sub("@", self.text), self.kind

    @cached_property
    def form(self) -> tuple[str, str, str]:
        """The template without orders of dimensions."""
        return self.place, _HOLE.sub("@", _TURNED.sub("", self.text)), self.kind

    @cached_property
    def names(self) -> set[str]:
        """The values that the statement computes or reads."""
        return {hole for hole in self.holes if hole[0] == MARK}


TEMPLATE, FORM = attrgetter("template"), attrgetter("form")


@attrs.define(eq=False)
class RepeatedBlocks:
    """A loop over equal blocks of statements.

    inner: the columns of the values that the blocks define, by their last entry. carries: name of a carry -> its first and its
    new value. numbers: the numbers that the index takes. texts: last entry of a column -> the text that the loop has for it.
    saved: the name of the dict in which the loop saves `exports`, the values that later statements read.
    """

    run: Run
    saved: str
    inner: dict[str, Column] = attrs.field(factory=dict)
    carries: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    numbers: range = range(0)
    texts: dict[str, str] = attrs.field(factory=dict)
    exports: dict[str, None] = attrs.field(factory=dict)

    def order(self) -> tuple[int, int]:
        """Return a key for comparison: a loop with a larger key has more iterations, or as many and fewer carries and texts."""
        return self.run.copies, -len(self.carries) - len(self.texts)


class LoopWriter:
    """Writes the statements of a function.

    mark: makes a name. texts: argument, or result of a collective of many operands -> the text that reads it. births, lasts:
    value -> the number of the first and of the last statement that has it. origins: value of a loop -> the loop, the number of
    its block, and the value's name in the loop. stores: statement that stores a result outside of loops -> value.
    """

    def __init__(
        self,
        statements: Sequence[Statement],
        mark: Callable[[str], str],
        reads: Iterable[str],
        texts: Mapping[str, str],
    ) -> None:
        self.mark, self.reads, self.texts = mark, frozenset(reads), texts
        self.origins: dict[str, tuple[RepeatedBlocks, int, str]] = {}
        self.stores: dict[str, str] = {}
        self._number(statements)
        self._number(self._with_rows())
        self.index = mark("i")

    def _number(self, statements: Sequence[Statement]) -> None:
        self.statements, self.births, self.lasts = statements, dict[str, int](), dict[str, int]()
        for i, statement in enumerate(statements):
            self.births |= dict.fromkeys(statement.names - self.births.keys() - self.texts.keys(), i)
            self.lasts |= dict.fromkeys(statement.names, i)

    def lines(self) -> list[str]:
        """Return the lines of the statements: runs of copies as loops, and all others as they are."""
        pieces, position = list[tuple[RepeatedBlocks | None, list[Statement]]](), 0
        for run in long_runs(self.statements, TEMPLATE):
            loop = max(filter(None, self._loops(run)), key=RepeatedBlocks.order, default=None)
            if loop is not None and loop.run.start >= position:
                pieces.append((None, self._resolved(position, loop.run.start)))
                position, loop.saved = loop.run.equations.stop, self.mark("saved")
                pieces.append((loop, self._resolved(position - loop.run.period, position, loop)))
                for last, column in loop.inner.items():
                    self.origins |= {name: (loop, i, last) for i, name in enumerate(column)}
        pieces.append((None, self._resolved(position, len(self.statements))))
        return [line for loop, statements in pieces for line in _written(loop, statements, self.index)]

    def _with_rows(self) -> list[Statement]:
        """Return statements in which blocks that hand on no value are loops over rows of what differs."""
        found, position = list[Statement](), 0
        for run in long_runs(self.statements, FORM):
            starts = range(max(position, run.start), run.start + run.period)
            counts = (run.copies, run.copies - 1) if run.copies > 2 else (run.copies,)
            for tried in (attrs.evolve(run, start=i, copies=count) for i in starts for count in counts):
                if loop := self._over_rows(tried):
                    found += [*self.statements[position : tried.start], *loop]
                    position = tried.equations.stop
                    break
        return [*found, *self.statements[position:]]

    def _over_rows(self, run: Run) -> list[Statement]:
        """Return statements that fill a list of rows, and the loop over the list; none where rows say as much as blocks."""
        starts, columns = run.equations[:: run.period], self._columns(run, FORM)
        if columns is None or any(
            self.lasts[name] >= start + run.period
            for column in columns[0].values()
            for name, start in zip(column, starts, strict=True)
        ):
            return []
        blocks = [self.statements[i : i + run.period] for i in starts]
        texts = ["\n".join(self._read(each.text) for each in block) for block in blocks]
        parts = dict.fromkeys(zip(*map(_PART.findall, texts), strict=True))
        varied = [column for column in parts if len({*column}) > 1 and not _is_of(column[-1], columns[0])]
        ends = {each[-1]: {part.partition(".")[2] for part in each} for each in parts if each not in varied}
        is_copied = (
            len({_PART.sub("@", text) for text in texts}) == 1 == max(map(len, ends.values()), default=1)
        )
        if not is_copied or len({column[-1] for column in parts}) < len(parts):
            return []
        names = sorted((each for each in varied if each[0][0] == '"'), key=lambda column: len(column[0]))
        values = [column for column in varied if column not in names]
        keys = [key for key in _keys(names[:1]) if all(_with_key(each, key, "x") for each in names)][:1]
        if not 1 <= 2 * len([*keys, *values]) <= run.period + 1 or len(names) > len(keys) * len(names):
            return []
        place = blocks[0][0].place
        fields = {column: self.mark("name") for column in keys}
        instead = {each[-1]: _with_key(each, *key) for each in names for key in fields.items()}
        instead |= {column[-1]: self.mark("grad" if place.endswith("update") else "x") for column in values}
        fields |= {column: instead[column[-1]] for column in values}
        rows = self.mark("rows")
        found = [Statement(f"{rows} = []", place)]
        for row in zip(*fields, strict=True):
            text = f"({', '.join(row)})" if len(row) > 1 else row[0]
            kind = NUMBER.sub("", _HOLE.sub(lambda name: self.texts.get(name[0], name[0]), text))
            found.append(Statement(f"{rows} += [{text}]", kind=kind))
        body = [
            attrs.evolve(s, text=_PART.sub(lambda part: instead.get(part[0], part[0]), self._read(s.text)))
            for s in blocks[-1]
        ]
        lines = [f"for {', '.join(fields.values())} in {rows}:", *(f"    {line}" for line in lines_of(body))]
        return [*found, Statement("\n".join(lines))]

    def _read(self, text: str) -> str:
        """Return a text in which arguments are read from their dicts."""
        return _HOLE.sub(lambda name: self.texts[name[0]] if name[0] in self.reads else name[0], text)

    def _resolved(self, start: int, end: int, loop: RepeatedBlocks | None = None) -> list[Statement]:
        """Return statements with texts in the place of names that have no variable there. Leave out stores outside of loops."""
        found = []
        for statement in self.statements[start:end]:
            instead = {hole: self._instead(hole, loop) for hole in statement.holes}
            if statement.text.startswith("\n"):  # a loop may bind its names anew
                changed = [name for name, text in instead.items() if name[0] == MARK and text != name]
                found += [Statement(f"{name} = {instead.pop(name)}", statement.place) for name in changed]
            text = _substituted(statement.text, instead)
            if statement.is_store and loop is None:
                self.stores[statement.text] = text.split(" = ")[1]
            elif found and statement.kind and found[-1].text.startswith(start_of := text.partition("[")[0]):
                added = f"{found.pop().text[:-1]}, {text.removeprefix(start_of)[1:]}"  # to the same list
                found.append(attrs.evolve(statement, text=added))
            else:
                found.append(attrs.evolve(statement, text=text))
        if loop is not None:
            loop.carries = {c: (self._instead(first, None), new) for c, (first, new) in loop.carries.items()}
        return found

    def _instead(self, name: str, loop: RepeatedBlocks | None) -> str:
        """Return the text for a name in a loop's body, or outside of loops."""
        if loop is not None and name in loop.texts:
            return self._used(loop.texts[name])
        return name if name in self.reads else self._used(self._text(name, is_bound=True))

    def _text(self, name: str, is_bound: bool = False) -> str:
        """Return the text that reads a value. is_bound: values of a loop's last iteration have variables."""
        if name not in self.origins:
            return self.texts.get(name, name)
        loop, i, last = self.origins[name]
        return name if is_bound and i == loop.run.copies - 1 else f'{loop.saved}[{loop.numbers[i]}]["{last}"]'

    def _used(self, text: str) -> str:
        """Let the loops save the values that a text reads. Return the text."""
        for name in re.findall(f'\\["({MARK}\\d+{MARK})"\\]', text):
            self.origins[name][0].exports[name] = None
        return text

    def _loops(self, run: Run) -> Iterator[RepeatedBlocks | None]:
        """Yield loops over the blocks of a run that start at another place of the user's code, or None."""
        before, is_found = self.statements[: run.start + 2 * run.period], False
        places = [statement.place or statement.kind for statement in before]
        sizes = [(run.period, count) for count in range(run.copies, max(run.copies - 4, 1), -1)]
        sizes += [(run.period * n, run.copies // n) for n in range(2, min(run.copies // 2, 16) + 1)]
        starts = range(run.start, len(before))
        cuts = [
            start for start in starts if start == run.start or places[start] not in ("", places[start - 1])
        ]
        for start in (*cuts, *(start for start in starts if start not in cuts)):
            if is_found and start >= run.start + run.period:
                return
            tries = (attrs.evolve(run, start=start, period=p, copies=count) for p, count in sizes)
            yield (loop := next(filter(None, map(self._loop, tries)), None))
            is_found |= loop is not None

    def _loop(self, run: Run) -> RepeatedBlocks | None:
        """Return the loop over blocks, or None if they are not equal."""
        columns = self._columns(run, TEMPLATE)
        loop = None if columns is None else RepeatedBlocks(run, "", columns[0])
        return loop if columns and loop and self._fill(loop, columns[1]) else None

    def _columns(
        self, run: Run, form: Callable[[Statement], Hashable]
    ) -> tuple[dict[str, Column], list[Column]] | None:
        """Return the columns of values that blocks define, by their last entry, and all others; None if blocks are not equal."""
        starts, inner, outer = run.equations[:: run.period], dict[str, Column](), dict[Column, None]()
        if run.equations.stop > len(self.statements):
            return None
        for offset in range(run.period):
            block = [self.statements[start + offset] for start in starts]
            if len({*map(form, block)}) > 1:
                return None
            for column in zip(*(statement.holes for statement in block), strict=True):
                births = {self.births.get(x, -1) - start for x, start in zip(column, starts, strict=True)}
                if not any(0 <= birth < run.period for birth in births):
                    outer[column] = None
                elif len(births) > 1 or inner.setdefault(column[-1], column) != column:
                    return None
        return inner, [*outer]

    def _fill(self, loop: RepeatedBlocks, outer: Sequence[Column]) -> bool:
        """Fill the carries and the texts of a loop. Return False if a column is neither."""
        carried = {column[:-1]: last for last, column in loop.inner.items()}
        varied = [column for column in outer if len({*column}) > 1]
        loop.carries = {c[-1]: (c[0], carried[c[1:]]) for c in varied if c[1:] in carried}
        counted = {c[-1]: numbered([*map(self._text, c)]) for c in varied if c[1:] not in carried}
        known = [each for each in counted.values() if each is not None]
        steps = [each for text, each in known if abs(each.step) == 1 and text[0] != MARK]
        if len(known) < len(counted) or len({column[-1] for column in outer}) < len(outer):
            return False
        numbers = steps[0] if steps else range(loop.run.copies)
        loop.numbers = numbers
        for name, (text, own) in zip(counted, known, strict=True):
            slope = own.step // numbers.step
            loop.texts[name] = _indexed(text, self.index, slope, own[0] - slope * numbers[0])
        return True


def long_runs(statements: Sequence[Statement], form: Callable[[Statement], Hashable]) -> list[Run]:
    """Return the runs of copies that are worth a loop, in order. form: what copies have in common."""
    import numpy as np  # not loaded by commands that write no module

    from mtfc.compiler.search.repeated_layers import runs

    numbers: dict[Hashable, int] = {}
    tokens = np.array([numbers.setdefault(form(each), len(numbers)) for each in statements], np.int64)
    found = (run for run in runs(tokens) if run.period * (run.copies - 1) >= LEAST)
    return sorted(found, key=lambda run: run.start)


def _is_of(part: str, values: Container[str]) -> bool:
    """Return True if a part of a text is one of the values, in any order of dimensions."""
    return part.partition(".")[0] in values


def _keys(names: Sequence[Column]) -> Iterator[Column]:
    """Yield columns of texts in quotes, and then what follows the characters that all their entries begin with."""
    yield from names
    for column in names:
        start = next(i for i, each in enumerate(zip(*column, strict=False)) if len({*each}) > 1)
        yield tuple(f'"{part[start:]}' for part in column)


def _with_key(column: Column, key: Column, name: str) -> str:
    """Return the text for a column of texts in quotes, where `name` holds the entries of `key`; empty if it lacks them."""
    before, _, after = column[0][1:-1].partition(key[0][1:-1])
    if column != tuple(f'"{before}{part[1:-1]}{after}"' for part in key):
        return ""
    return f'f"{before}{{{name}}}{after}"' if before or after else name


def _substituted(text: str, instead: Mapping[str, str]) -> str:
    """Return a text with other texts in the place of its holes."""
    return _HOLE.sub(lambda hole: instead.get(hole[0], hole[0]), text)


def numbered(texts: Sequence[str]) -> tuple[str, range] | None:
    """Return texts that differ in one number, in equal steps, as a text with `@` in its place, and the numbers."""
    parts = [NUMBER.split(text) for text in texts]
    if len({*map(len, parts)}) > 1 or any(set(text) & set("{@}") for text in texts):
        return None
    fields = [*zip(*parts, strict=True)]
    varied = {field for field in fields if len({*field}) > 1}
    if len(varied) != 1 or not all(each.isdigit() and str(int(each)) == each for each in min(varied)):
        return None
    first, second, *_ = numbers = [*map(int, min(varied))]
    if first == second:
        return None
    steps = range(first, first + (second - first) * len(numbers), second - first)
    return ("".join("@" if f in varied else f[0] for f in fields), steps) if [*steps] == numbers else None


def _indexed(text: str, index: str, slope: int, shift: int) -> str:
    """Return a text with `slope * index + shift` in the place of `@`, which may stand in quotes."""
    times = index if abs(slope) == 1 else f"{abs(slope)}*{index}"
    number = f"{shift}-{times}" if slope < 0 else f"{times}{shift:+}" if shift else times
    quoted = re.sub(r'"[^"]*@[^"]*"', lambda key: f"f{key[0].replace('@', f'{{{number}}}')}", text)
    return quoted.replace("@", number)


def _written(loop: RepeatedBlocks | None, statements: Sequence[Statement], index: str) -> Iterator[str]:
    """Yield the lines of statements, as the body of a loop if there is one. index: the name of the loop's variable."""
    if loop is None:
        yield from lines_of(statements)
        return
    if loop.exports:
        yield f"{loop.saved} = {{}}"
    yield from (f"{name} = {first}" for name, (first, _) in loop.carries.items())
    yield f"for {index} in {loop.numbers!r}:"
    body = [*lines_of(statements)]
    if loop.exports:
        body.append(f"{loop.saved}[{index}] = dict({', '.join(f'{name}={name}' for name in loop.exports)})")
    body += [f"{name} = {new}" for name, (_, new) in loop.carries.items()]
    yield from (f"    {line}" if line else "" for line in body)


def lines_of(statements: Iterable[Statement]) -> Iterator[str]:
    """Yield the lines of statements, and the places in front of the first statement of each."""
    previous = ""
    for statement in statements:
        if statement.text.startswith("\n"):
            yield ""
        if statement.place not in ("", previous):
            yield (previous := statement.place)
        yield from statement.text.removeprefix("\n").split("\n")
