"""Texts of graphs: the statements of a body, their checks by the front end, and the line of Python of each.

A body is that of the model, or of a function. The checks elaborate one statement alone, as a model whose inputs have the types of
the operands, so types and errors are those of the language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Diagnostic, Diagnostics, Label, Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import TensorType
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.parser import parse

CHECKED = "<graph>"
RESULTS = re.compile(r"1 name for (?:the )?(\d+) values")
"""The message of E218 for a call with several results."""


@attrs.define(eq=False)
class GraphBody:
    """The body of the model, or of a function.

    made: the function of Python that makes the function. around: the body that calls it. loop: the loop whose statements are
    written now. given: the arguments by name, each with the value that the call passes. captured: those arguments that the
    function reads from around it. states: the declaration and the loop of each state. once: statements that may stand in
    the body once.
    """

    made: object = None
    around: GraphBody | None = None
    loop: Any = None
    lines: list[tuple[str, Span, int]] = attrs.field(factory=list)
    names: set[str] = attrs.field(factory=set)
    given: dict[str, Any] = attrs.field(factory=dict)
    captured: dict[str, Any] = attrs.field(factory=dict)
    states: dict[str, tuple[str, Any]] = attrs.field(factory=dict)
    once: set[str] = attrs.field(factory=set)

    def text(self, first: str, last: str) -> list[str]:
        """Return the lines of the body between a first and a last line."""
        own = (f"{'  ' * depth}{text}{comment(place)}" for text, place, depth in self.lines)
        return [first, *own, f"  {last}", "}"]

    def outwards(self) -> Iterator[GraphBody]:
        """Yield the body, and the bodies around it that its call is in."""
        yield self
        if self.around is not None:
            yield from self.around.outwards()


@attrs.frozen
class StatementCheck:
    """The errors of a statement, and the text that they point into. types: those of the results, if there are no errors."""

    errors: Sequence[Diagnostic]
    text: str
    types: Sequence[TensorType] = ()

    def shown(self, place: Span, made: Mapping[str, Span]) -> list[Diagnostic]:
        """Return the errors at a line of Python, with labels where their operands are made."""
        lines = self.text.splitlines()
        found = []
        for each in self.errors:
            labels = []
            for label in each.labels:
                line = lines[label.span.line - 1] if label.span.line <= len(lines) else ""
                name = line[label.span.column - 1 : label.span.end_column - 1]
                if name in made and made[name] != place:
                    labels.append(Label(made[name], label.message))
            found.append(Diagnostic(each.code, each.message, place, tuple(labels), each.help))
        return found


def check_expression(
    head: Iterable[str], text: str, given: Mapping[str, TensorType], number: int
) -> StatementCheck:
    """Check an expression. head: declarations before it. given: its variables. number: of its results, 0 to find it out."""
    names = "r0__"
    for _ in range(2):
        source = f"model m({arguments_text(given)}) {{\n  {names} = {text}\n  return {names}\n}}"
        program, errors = _elaborated(head, source)
        count = next((int(m[1]) for each in errors if (m := RESULTS.match(each.message))), 0)
        if number or count < 2:
            break
        names = ", ".join(f"r{i}__" for i in range(count))
    if program is None:
        return StatementCheck(errors, source)
    outputs = {output.name: output.value.type for output in program.function("forward").outputs}
    return StatementCheck((), source, [outputs[name] for name in names.split(", ")])


def check_statements(
    head: Iterable[str],
    lines: Iterable[str],
    given: Mapping[str, TensorType] | None = None,
    loops: Sequence[str] = (),
) -> StatementCheck:
    """Check statements of a model. loops: the first lines of the loops around the last statement."""
    *before, last = lines
    body = [*before, *(f"{each} {{" for each in loops), last, *("}" for _ in loops), "checked__ = zeros([])"]
    source = "\n".join([f"model m({arguments_text(given or {})}) {{", *body, "return checked__", "}"])
    return check_model(head, source)


def check_model(head: Iterable[str], source: str) -> StatementCheck:
    """Check the text of a whole model."""
    return StatementCheck(_elaborated(head, source)[1], source)


def check_declaration(text: str) -> StatementCheck | None:
    """Check the text of one declaration; None for several declarations."""
    found = Diagnostics()
    tree = parse(text, CHECKED, found)
    return StatementCheck(found.errors, text) if found.errors or len(tree.declarations) == 1 else None


def _elaborated(head: Iterable[str], model: str) -> tuple[Program | None, Sequence[Diagnostic]]:
    """Return the program of a model, or errors."""
    found = Diagnostics()
    tree = parse("; ".join([*head, ""]) + model, CHECKED, found)
    programs = () if found.errors else elaborate(tree, found).programs
    return (programs[0] if programs and not found.errors else None), found.errors


def arguments_text(types: Mapping[str, TensorType]) -> str:
    return ", ".join(f"{name}: {type_text(type)}" for name, type in types.items())


def type_text(type: TensorType) -> str:
    return f"{type.dtype}[{', '.join(dim.name for dim in type.dims)}]"


def comment(place: Span) -> str:
    name = " ".join(Path(place.file).name.split())
    return f"  # {name}:{place.line}"
