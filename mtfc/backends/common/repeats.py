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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from mtfc.compiler.search.repeated_layers import Run

MARK = "\u0298"
"""Stands around the number of a value in a text without names. It is a letter that no name in a .mtf file has."""

LEAST = 24
"""The fewest statements that a loop saves, and the fewest operands of a sum that are collected in a list."""

_HOLE = re.compile(f'{MARK}\\d+{MARK}|(?<=\\[)"[^"\\n]*"|"[^"\\n]*\\d[^"\\n]*"')
_NUMBER = re.compile(f"(?<![\\d{MARK}])(\\d+)(?![\\d{MARK}])")
_TOGETHER = re.compile(r"([^=\n]+) = ([\w.]+)\(\((.+)\), (.+)\)")

Column = tuple[str, ...]
"""The name, or the text in quotes, at one place of each block."""


@attrs.frozen(eq=False, slots=False)
class Statement:
    """A statement with marks in the place of names.

    place: the comment in front of it. is_store: it stores a result by name. kind: differs where equal texts are no copies.
    """

    text: str
    place: str = ""
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

    mark: makes a name. texts: argument -> text that reads it. births: value -> the number of the statement that defines it.
    origins: value of a loop -> the loop, the number of its block, and the value's name in the loop. stores: statement that
    stores a result outside of loops -> value; no line has these statements.
    """

    def __init__(
        self, statements: Iterable[Statement], mark: Callable[[str], str], texts: dict[str, str]
    ) -> None:
        """Collect the statements, and note for each value the number of the statement that defines it.

        reads: the arguments. index: the name of the variable that counts iterations.
        """
        self.mark, self.index, self.reads, self.texts = mark, mark("i"), frozenset(texts), dict(texts)
        self.statements: list[Statement] = []
        self.births: dict[str, int] = {}
        for part in (part for each in statements for part in self._parted(each)):
            for hole in part.holes:
                if hole[0] == MARK and hole not in self.texts:
                    self.births.setdefault(hole, len(self.statements))
            self.statements.append(part)
        self.origins: dict[str, tuple[RepeatedBlocks, int, str]] = {}
        self.stores: dict[str, str] = {}

    def _parted(self, statement: Statement) -> Iterator[Statement]:
        """Yield a collective of many operands as statements that collect the operands, and the collective of the list."""
        found = _TOGETHER.fullmatch(statement.text)
        if found is None or found[3].count(",") < LEAST:
            yield statement
            return
        terms, results = self.mark("terms"), self.mark("results")
        self.texts |= {name: f"{results}[{i}]" for i, name in enumerate(found[1].split(", "))}
        yield Statement(f"{terms} = []", statement.place)
        for name in found[3].split(", "):
            read, born = self.texts.get(name, ""), self.births.get(name)
            kind = _NUMBER.sub("", read) if born is None else str(self.statements[born].template)
            yield Statement(f"{terms} += [{name}]", kind=kind)
        yield Statement(f"{results} = {found[2]}(tuple({terms}), {found[4]})", statement.place)

    def lines(self) -> list[str]:
        """Return the lines of the statements: runs of copies as loops, and all others as they are."""
        import numpy as np  # not loaded by commands that write no module

        from mtfc.compiler.search.repeated_layers import runs

        numbers: dict[tuple[str, ...], int] = {}
        tokens = np.array([numbers.setdefault(s.template, len(numbers)) for s in self.statements], np.int64)
        long = [run for run in runs(tokens) if run.period * (run.copies - 1) >= LEAST]
        pieces, position = list[tuple[RepeatedBlocks | None, list[Statement]]](), 0
        for run in sorted(long, key=lambda run: run.start):
            loop = max(filter(None, self._loops(run)), key=RepeatedBlocks.order, default=None)
            if loop is not None and loop.run.start >= position:
                pieces.append((None, self._resolved(position, loop.run.start)))
                position, loop.saved = loop.run.equations.stop, self.mark("saved")
                pieces.append((loop, self._resolved(position - run.period, position, loop)))
                for last, column in loop.inner.items():
                    self.origins |= {name: (loop, i, last) for i, name in enumerate(column)}
        pieces.append((None, self._resolved(position, len(self.statements))))
        return [line for loop, statements in pieces for line in _written(loop, statements, self.index)]

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
            elif found and found[-1].kind and statement.kind:  # further terms of a collective
                added = f"{found.pop().text[:-1]}, {text.split('[', 1)[1]}"
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
        for start in range(run.start, run.start + 2 * run.period):
            if is_found and start == run.start + run.period:
                return
            if start == run.start or places[start] not in ("", places[start - 1]):
                counts = range(run.copies, max(run.copies - 4, 1), -1)
                tries = (attrs.evolve(run, start=start, copies=count) for count in counts)
                yield (loop := next(filter(None, map(self._loop, tries)), None))
                is_found |= loop is not None

    def _loop(self, run: Run) -> RepeatedBlocks | None:
        """Return the loop over blocks, or None if they are not equal."""
        starts = range(run.start, run.equations.stop, run.period)
        loop, outer = RepeatedBlocks(run, ""), dict[Column, None]()
        if run.equations.stop > len(self.statements):
            return None
        for offset in range(run.period):
            block = [self.statements[start + offset] for start in starts]
            if len({statement.template for statement in block}) > 1:
                return None
            for column in zip(*(statement.holes for statement in block), strict=True):
                births = {self.births.get(x, -1) - start for x, start in zip(column, starts, strict=True)}
                if not any(0 <= birth < run.period for birth in births):
                    outer[column] = None
                elif len(births) > 1 or loop.inner.setdefault(column[-1], column) != column:
                    return None
        return loop if self._fill(loop, list(outer)) else None

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


def _substituted(text: str, instead: Mapping[str, str]) -> str:
    """Return a text with other texts in the place of its holes."""
    return _HOLE.sub(lambda hole: instead.get(hole[0], hole[0]), text)


def numbered(texts: Sequence[str]) -> tuple[str, range] | None:
    """Return texts that differ in one number, in equal steps, as a text with `@` in its place, and the numbers."""
    parts = [_NUMBER.split(text) for text in texts]
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
