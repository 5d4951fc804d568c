"""Arranged statements: their copies stand in rows, and blocks of copies become loops over rows.

Input: the statements of a function, in order. Output: statements that compute the same, where

- constants and values of scalars stand in front, so that the first copy of a layer is like the others;
- a collective of many operands reads a list, which is filled where the operands are defined;
- a value that one statement reads stands in front of this statement, where both are of one place of the user's code;
- blocks of statements that hand on no value become one loop, as for the update of each parameter. What differs between the blocks
  is in the loop's rows: names in quotes, and values.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.backends.common.repeats import LEAST, MARK, NUMBER, Column, Statement, lines_of, long_runs

if TYPE_CHECKING:
    from mtfc.compiler.search.repeated_layers import Run

_TOGETHER = re.compile(r"([^=\n]+) = ([\w.]+)\(\((.+)\), (.+)\)")
_VALUE = re.compile(f"({MARK}\\d+{MARK})(\\.transpose\\([\\d, ]+\\))?")
_PART = re.compile(f'{MARK}\\d+{MARK}(?:\\.transpose\\([\\d, ]+\\))?|"[^"\\n]*"')
_READ = re.compile(r'(\w+)\["([^"\n]+)"\]')


def arranged(
    statements: Sequence[Statement],
    mark: Callable[[str], str],
    reads: Mapping[str, str],
    scalars: Iterable[str],
) -> tuple[list[Statement], dict[str, str]]:
    """Return arranged statements, or the statements as they are if they repeat little, and the texts of values without a variable.

    mark: makes a name. reads: argument -> the text that reads it. scalars: the arguments that are no arrays.
    """
    texts = dict(reads)
    if not long_runs(statements):
        return [*statements], texts
    found = _sunk(_collected(_scalars_first(statements, reads, scalars), mark, texts), texts)
    return _RowLoops(found, mark, texts).statements(), texts


def _scalars_first(
    statements: Iterable[Statement], reads: Iterable[str], scalars: Iterable[str]
) -> Iterator[Statement]:
    """Yield the statements that read nothing but scalars, then all others."""
    others, seen, known = list[Statement](), {*reads}, {*scalars}
    for statement in statements:
        made = statement.names - seen
        seen |= made
        if statement.names - made <= known and not statement.text.startswith("\n"):
            known |= made
            yield statement
        else:
            others.append(statement)
    yield from others


def _collected(
    statements: Iterable[Statement], mark: Callable[[str], str], texts: dict[str, str]
) -> list[Statement]:
    """Return statements in which a collective of many operands reads a list of them, and its results are parts of a list."""
    found, fills = list[Statement](), defaultdict[int, list[Statement]](list)
    arguments, births = {*texts}, dict[str, int]()
    for number, statement in enumerate(statements):
        births |= dict.fromkeys(statement.names - births.keys() - arguments, number)
        together = _TOGETHER.fullmatch(statement.text)
        if together is not None and together[3].count(",") >= LEAST:
            terms, results, operands = mark("terms"), mark("results"), together[3].split(", ")
            place = next((births[name] for name in operands if name in births), number - 1)
            fills[place].append(Statement(f"{terms} = []"))
            for name in operands:
                place = max(place, births.get(name, place))
                kind = NUMBER.sub("", texts.get(name, ""))
                fills[place].append(Statement(f"{terms} += [{name}]", kind=kind))
            texts |= {name: f"{results}[{i}]" for i, name in enumerate(together[1].split(", "))}
            text = f"{results} = {together[2]}(tuple({terms}), {together[4]})"
            statement = attrs.evolve(statement, text=text)
        found.append(statement)
    return [each for i, statement in enumerate(found) for each in (statement, *fills[i])]


def _sunk(statements: Sequence[Statement], texts: Container[str]) -> list[Statement]:
    """Return statements, each that only one other of its place reads in front of this one."""
    readers, makers = defaultdict[str, set[int]](set), dict[str, int]()
    places = [*accumulate((each.place for each in statements), lambda before, place: place or before)]
    for i, statement in enumerate(statements):
        for name in statement.names:
            if makers.setdefault(name, i) != i:
                readers[name].add(i)
    above, below = defaultdict[int, list[int]](list), set[int]()
    for i, statement in enumerate(statements):
        made = (name for name in statement.names if makers[name] == i and name not in texts)
        found = {reader for name in made for reader in readers[name]}
        if len(found) == 1 and {*places[i : max(found)]} == {places[i]}:
            above[found.pop()].append(i)
            below.add(i)
    waiting, sunk = [i for i in reversed(range(len(statements))) if i not in below], list[Statement]()
    while waiting:
        number = waiting.pop()
        if number in above:
            waiting += [number, *reversed(above.pop(number))]
        else:
            sunk.append(statements[number])
    return sunk


class _RowLoops:
    """Makes loops over rows.

    _spans: value -> the numbers of its first and its last statement.
    """

    def __init__(
        self, statements: Sequence[Statement], mark: Callable[[str], str], texts: Mapping[str, str]
    ) -> None:
        self._all, self._mark, self._texts = statements, mark, texts
        self._spans = dict.fromkeys(texts, (-1, -1))
        for i, statement in enumerate(statements):
            for name in statement.names:
                self._spans[name] = self._spans.get(name, (i, i))[0], i

    def statements(self) -> list[Statement]:
        """Return the statements with loops in the place of blocks."""
        found, position = list[Statement](), 0
        for run in sorted(long_runs(self._all, lambda each: each.form), key=lambda run: run.start):
            shifted = (attrs.evolve(run, start=run.start + i) for i in range(run.period))
            whole = next(filter(None, map(self._whole, shifted)), None)
            loop = [] if whole is None or whole.start < position else [*self._loop(whole)]
            if loop:
                found += [*self._all[position : whole.start], *loop]
                position = whole.equations.stop
        return [*found, *self._all[position:]]

    def _whole(self, run: Run) -> Run | None:
        """Return the blocks from a run's start on that hand on no value, or None if these are too few."""
        first = self._shape(run.start, run)
        copies = 0
        while first is not None and self._shape(run.start + copies * run.period, run) == first:
            copies += 1
        return attrs.evolve(run, copies=copies) if run.period * (copies - 1) >= LEAST else None

    def _shape(self, start: int, run: Run) -> Any:
        """Return the forms of a block's statements and the places of its values, or None if it hands on a value."""
        block, places = self._all[start : start + run.period], list[Any]()
        for name, turned in (found for statement in block for found in _VALUE.findall(statement.text)):
            born, last = self._spans[name]
            if born >= run.start and (born < start or last >= start + run.period):
                return None
            places.append((born - start, turned) if born >= run.start else None)
        return [each.form for each in block], places

    def _loop(self, run: Run) -> Iterator[Statement]:
        """Yield the statements that fill a list of rows, and the loop over the list."""
        blocks = [self._all[i : i + run.period] for i in run.equations[:: run.period]]
        holes = zip(
            *([part for each in block for part in _PART.findall(each.text)] for block in blocks), strict=True
        )
        columns = [each for each in holes if len({*each}) > 1 and not self._is_inner(each[0], run)]
        found = dict.fromkeys(self._read(column)[1] for column in columns)
        if 2 * len(found) > run.period + 3:
            return
        fields, rows = self._fields(found, blocks[0][0].place), self._mark("rows")
        yield Statement(f"{rows} = []", blocks[0][0].place)
        for row in zip(*fields.values(), strict=True):
            text = f"({', '.join(row)})" if len(row) > 1 else row[0]
            kind = NUMBER.sub("", _VALUE.sub(lambda part: f"{self._texts.get(part[1], '')}{part[2]}", text))
            yield Statement(f"{rows} += [{text}]", kind=kind)
        texts = {column[-1]: self._field(column, fields) for column in columns}
        body = (
            attrs.evolve(each, text=_PART.sub(lambda part: texts.get(part[0], part[0]), each.text))
            for each in blocks[-1]
        )
        lines = [f"for {', '.join(fields)} in {rows}:", *(f"    {line}" for line in lines_of(body))]
        yield Statement("\n".join(lines))

    def _is_inner(self, part: str, run: Run) -> bool:
        return any(self._spans[name][0] >= run.start for name, _ in _VALUE.findall(part))

    def _read(self, column: Column) -> tuple[str, Column]:
        """Return the dict that the arguments of a column are read from, and their names in quotes; "" for other columns."""
        found = [_READ.fullmatch(self._texts.get(part, "")) for part in column]
        sources = {each[1] if each else "" for each in found}
        if len(sources) > 1 or sources == {""}:
            return "", column
        return sources.pop(), tuple(f'"{each[2]}"' for each in found if each)

    def _fields(self, columns: Iterable[Column], place: str) -> dict[str, Column]:
        """Return the variables of a loop, and the parts of its rows for each."""
        fields = dict[str, Column]()
        for column in sorted(columns, key=lambda each: len(each[0]) if each[0][0] == '"' else 10**9):
            if column[0][0] != '"':
                fields[self._mark("grad" if place.endswith("update") else "x")] = column
            elif _part_of(column, fields) is None:
                fields[self._mark("name")] = column
        return fields

    def _field(self, column: Column, fields: Mapping[str, Column]) -> str:
        """Return the text in a loop's body for a column."""
        source, parts = self._read(column)
        name, before, after = _part_of(parts, fields)
        text = f'f"{before}{{{name}}}{after}"' if before or after else name
        return f"{source}[{text}]" if source else text


def _part_of(column: Column, fields: Mapping[str, Column]) -> tuple[str, str, str] | None:
    """Return the field whose parts are within those of a column, and the texts before and after them."""
    for name, parts in fields.items():
        before, _, after = column[0].strip('"').partition(parts[0].strip('"'))
        if column == parts or column == tuple(f'"{before}{part.strip(chr(34))}{after}"' for part in parts):
            return name, before, after
    return None
