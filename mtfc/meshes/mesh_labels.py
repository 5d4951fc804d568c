"""The mesh of each equation of a program under a layout of several meshes.

A part has the places of calls, variables and loops in the source. Every equation keeps the place of its source line, through
differentiation too, so the backward pass of a part runs where the part runs. A parameter is stored on the mesh of the part that
declares it, or else of the first equation that reads it, and is updated there. An input arrives on the mesh of its first reader.

Equations that depend on nothing but constants and the number of the step have no mesh: each mesh that needs them computes them.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Argument, Equation, Function, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Layout, Mesh


@attrs.frozen
class MeshPart:
    """A part of a program: its mesh, its layout, and the places in the source of what runs there.

    is_rest: True for the part that has everything else.
    """

    mesh: Mesh
    layout: Layout
    places: tuple[Span, ...] = ()
    is_rest: bool = False


def rest_of(parts: Sequence[MeshPart]) -> int:
    """Return the number of the part that has everything that no other part has."""
    return next(number for number, part in enumerate(parts) if part.is_rest)


@attrs.frozen
class MeshLabels:
    """The part of each equation and each argument of a function, as a number. Copied equations have none.

    homes: argument -> the part on whose mesh it arrives, and is stored if it is a parameter or a state.
    """

    of: Mapping[Equation, int]
    homes: Mapping[Value, int]


def mesh_labels(
    function: Function,
    parts: Sequence[MeshPart],
    training: Span | None = None,
    slices: Mapping[Value, Value] = {},
) -> MeshLabels:
    """Return the labels of a global function. training: the place of the `train` block, whose equations go where operands are.

    slices: values that each mesh cuts out of an argument by itself -> the argument.
    """
    return _Labelling(function, parts, training, slices).labels()


def part_at(span: Span | None, parts: Sequence[MeshPart]) -> int | None:
    """Return the part of a place, if a part names it; the innermost call decides, and of nested places the smallest."""
    while span is not None:
        inside = [
            (place, number) for number, part in enumerate(parts) for place in part.places if _has(place, span)
        ]
        if inside:
            return max(
                inside,
                key=lambda each: (each[0].line, each[0].column, -each[0].end_line, -each[0].end_column),
            )[1]
        span = span.call
    return None


class _Labelling:
    """The labels of one function, as far as they are known."""

    def __init__(
        self,
        function: Function,
        parts: Sequence[MeshPart],
        training: Span | None,
        slices: Mapping[Value, Value],
    ) -> None:
        """Start without labels.

        parts: the meshes. rest: the mesh of whatever no line places. training: the place of the `train` block. slices: slice
        -> the whole that it is cut from. copied: values that each mesh computes for itself. made, homes: value or argument ->
        its part. updated: the place of a parameter's declaration -> the part that stores it.
        """
        self.function, self.parts, self.training, self.slices = function, parts, training, slices
        self.rest = rest_of(parts)
        self.copied: set[Value] = set()
        self.made: dict[Value, int] = {}
        self.homes: dict[Value, int] = {}
        self.updated: dict[Span, int] = {}

    def labels(self) -> MeshLabels:
        """Return the mesh of each equation that is placed, and the home of each argument.

        An equation runs on the mesh of its line, of its operands, or else on the rest.
        """
        self._note_copied()
        own = {eqn: part_at(eqn.span, self.parts) for eqn in self._placed()}
        readers = self._first_readers(own)
        for argument in self.function.arguments:
            home = self._home(argument, readers)
            self.homes[argument.value] = home
            if argument.role == "parameter" and argument.span is not None:
                self.updated[argument.span] = home
        found = dict[Equation, int]()
        for eqn in self._placed():
            found[eqn] = self._label(eqn, own[eqn])
            self.made |= dict.fromkeys(eqn.results, found[eqn])
        return MeshLabels(found, self.homes)

    def _placed(self) -> Iterator[Equation]:
        return (eqn for eqn in self.function.body if eqn.results[0] not in self.copied)

    def _note_copied(self) -> None:
        """Note the values that follow from the step's number alone, and slices: each mesh computes them for itself."""
        known = {a.value for a in self.function.arguments if a.role == "step"}
        for eqn in self.function.body:
            if known.issuperset(eqn.operands) and not eqn.regions and not has_trait(eqn, "random"):
                known.update(eqn.results)
        self.copied = known | self.slices.keys()

    def _first_readers(self, own: Mapping[Equation, int | None]) -> dict[Value, int]:
        """Return the part of the first equation that reads an argument, before the update if there is one.

        own: the part of each equation's line.
        """
        found = dict[Value, int]()
        for is_update in (False, True):
            for eqn in own:
                if (eqn.stage == "update") == is_update:
                    part = self._or_rest(own[eqn])
                    for operand in eqn.operands:
                        found.setdefault(self.slices.get(operand, operand), part)
        return found

    def _home(self, argument: Argument, readers: Mapping[Value, int]) -> int:
        """Return the mesh that stores an argument: a state's is that of its parameter, others have that of their line or
        first reader.
        """
        if argument.role == "state":
            owner = argument.value.name
            named = {value.name: home for value, home in self.homes.items()}
            while "." in owner and owner not in named:
                owner = owner.rpartition(".")[0]
            return named.get(owner, self.rest)
        declared = part_at(argument.span, self.parts) if argument.role == "parameter" else None
        return readers.get(argument.value, self.rest) if declared is None else declared

    def _label(self, eqn: Equation, own: int | None) -> int:
        """Return the mesh of an equation. own: the mesh of the equation's line, if the line has one.

        Updates run where their parameter lives. A sum of gradients runs where all of its operands are.
        """
        if eqn.stage == "update":
            home = self.updated.get(eqn.span) if eqn.span else None
            return self._of_operands(eqn) if home is None else home
        if own is None and eqn.span in (None, self.training):
            return self._of_operands(eqn)
        if eqn.stage == "backward" and has_trait(eqn, "add"):  # a sum of gradients has no line of its own
            there = [self.made[value] for value in eqn.operands if value in self.made]
            if len(set(there)) == 1:
                return there[0]
        return self._or_rest(own)

    def _or_rest(self, part: int | None) -> int:
        return self.rest if part is None else part

    def _of_operands(self, eqn: Equation) -> int:
        """Return the part of the largest operand. Scalars of all parts, such as a norm of all gradients, meet in the rest."""
        known = (self.made if value in self.made else self.homes for value in eqn.operands)
        there = [
            (value.type.size, table[value])
            for value, table in zip(eqn.operands, known, strict=True)
            if value in table
        ]
        size, part = max(there, key=lambda each: each[0], default=(1, self.rest))
        return part if size > 1 else self.rest


def _has(place: Span, span: Span) -> bool:
    """Return True if a place has another place of the same text in it, for the same call."""
    is_same = place.file == span.file and place.call == span.call
    starts = (place.line, place.column) <= (span.line, span.column)
    return is_same and starts and (span.end_line, span.end_column) <= (place.end_line, place.end_column)
