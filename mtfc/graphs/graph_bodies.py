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
from mtfc.compiler.ir.types import TensorType
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.parser import parse

CHECKED = "<graph>"
RESULTS = re.compile(r"1 name for (?:the )?(\d+) values")
"""The message of E218 for a call with several results."""


@attrs.define(eq=False)
class GraphBody:
    """The body of the model, or of a function.

    made: the Python function that was traced to write this body. around: the body that calls this one. loop: the loop whose
    statements are being written. lines: the statements, each with its text, place and depth. names: the names in use. given:
    the arguments by name, each with the value that the call passes. captured: the arguments that the function reads from around
    it. states: the declaration and the loop of each state. once: the written statements
    that a body may have only once.
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


def check_statements(
    head: Iterable[str],
    lines: Sequence[str],
    given: Mapping[str, TensorType] = {},
    loops: Sequence[str] = (),
    returned: str = "checked__",
) -> StatementCheck:
    """Check statements of a model. head: declarations before it. loops: the first lines of the loops around the last
    statement.

    returned: the names of the values whose types are wanted. given: the types of the values that are read.
    """
    body = [*lines[:-1], *(f"{each} {{" for each in loops), *lines[-1:], *("}" for _ in loops)]
    body += ["checked__ = zeros([])"] if returned == "checked__" else []
    source = "\n".join([f"model m({arguments_text(given)}) {{", *body, f"return {returned}", "}"])
    found = Diagnostics()
    tree = parse("; ".join([*head, ""]) + source, CHECKED, found)
    programs = () if found.errors else elaborate(tree, found).programs
    if found.errors:
        return StatementCheck(found.errors, source)
    outputs = {output.name: output.value.type for output in programs[0].function("forward").outputs}
    return StatementCheck((), source, [outputs[name] for name in returned.split(", ")])


def check_expression(head: Sequence[str], text: str, given: Mapping[str, TensorType]) -> StatementCheck:
    """Check an expression, which may have several results. given: its variables."""
    found = check_statements(head, [f"r0__ = {text}"], given, returned="r0__")
    count = next((int(m[1]) for each in found.errors if (m := RESULTS.match(each.message))), 0)
    if count < 2:
        return found
    names = ", ".join(f"r{i}__" for i in range(count))
    return check_statements(head, [f"{names} = {text}"], given, returned=names)


def check_declaration(text: str) -> StatementCheck | None:
    """Check the text of one declaration; None for several declarations."""
    found = Diagnostics()
    tree = parse(text, CHECKED, found)
    return StatementCheck(found.errors, text) if found.errors or len(tree.declarations) == 1 else None


def arguments_text(types: Mapping[str, TensorType]) -> str:
    return ", ".join(f"{name}: {type_text(type)}" for name, type in types.items())


def type_text(type: TensorType) -> str:
    return f"{type.dtype}[{', '.join(dim.name for dim in type.dims)}]"


def comment(place: Span) -> str:
    name = " ".join(Path(place.file).name.split())
    return f"  # {name}:{place.line}"
