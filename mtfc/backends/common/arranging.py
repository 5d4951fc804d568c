"""Statements in an order in which copies of a layer, and updates of parameters, are equal and stand together.

Input: the statements of a function, in order. Output: statements that compute the same, where

- constants and values of scalars stand in front, so that the first copy of a layer is like the others;
- a collective of many operands reads a list, which is filled where the operands are defined;
- a value that one statement reads stands in front of this statement, where both are of one place of the user's code.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Sequence
from operator import itemgetter

import attrs

from mtfc.backends.common.repeats import LEAST, NUMBER, Statement

_TOGETHER = re.compile(r"([^=\n]+) = ([\w.]+)\(\((.+)\), (.+)\)")


def arranged(
    statements: Sequence[Statement], mark: Callable[[str], str], texts: dict[str, str], scalars: Iterable[str]
) -> list[Statement]:
    """Return statements in another order.

    mark: makes a name. texts: argument -> the text that reads it; results of collectives are added. scalars: the arguments
    without dimensions.
    """
    return _sunk(_collected(_scalars_first(statements, {*scalars}, {*texts}), mark, texts), texts)


def _scalars_first(
    statements: Sequence[Statement], scalars: set[str], arguments: set[str]
) -> list[Statement]:
    """Return the constants, and the scalars that are computed from constants and scalars, then all other statements."""
    seen, constants, late = arguments, set[str](), list[bool]()
    for statement in statements:
        made = statement.names - seen
        reads = statement.names - made - constants
        late.append(
            bool(reads - scalars if statement.is_scalar else reads) or statement.text.startswith("\n")
        )
        seen |= made
        if not late[-1]:
            (scalars if reads else constants).update(made)
    return [statement for _, statement in sorted(zip(late, statements, strict=True), key=itemgetter(0))]


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
                kind = NUMBER.sub("", texts.get(name, " "))
                fills[place].append(Statement(f"{terms} += [{name}]", kind=kind))
            texts |= {name: f"{results}[{i}]" for i, name in enumerate(together[1].split(", "))}
            text = f"{results} = {together[2]}(tuple({terms}), {together[4]})"
            statement = attrs.evolve(statement, text=text)
        found.append(statement)
    return [each for i, statement in enumerate(found) for each in (statement, *fills[i])]


def _sunk(statements: Sequence[Statement], texts: Container[str]) -> list[Statement]:
    """Return statements, each that only one other of its place reads in front of this one."""
    readers, makers = defaultdict[str, set[int]](set), dict[str, int]()
    places = list[str]()
    for i, statement in enumerate(statements):
        places.append(statement.place or (places[-1] if places else ""))
        for name in statement.names:
            if makers.setdefault(name, i) != i:
                readers[name].add(i)
    above, roots, sunk = defaultdict[int, list[int]](list), deque[int](), list[Statement]()
    for i, statement in enumerate(statements):
        made = (name for name in statement.names if makers[name] == i and name not in texts)
        found = {reader for name in made for reader in readers[name]}
        is_root = len(found) != 1 or {*places[i : max(found)]} != {places[i]}
        (roots if is_root else above[found.pop()]).append(i)
    while roots:
        if roots[0] in above:
            roots.extendleft(reversed(above.pop(roots[0])))
        else:
            sunk.append(statements[roots.popleft()])
    return sunk
