"""Cut a global function into segments: programs of one mesh each, which take turns.

A segment has equations of one mesh whose operands are arguments, or results of earlier segments. First come the equations that
other meshes wait for, then the others, such as gradients of parameters and updates: a mesh computes these while other meshes
work. A segment is a program with one function, `segment`, that the passes lower for its mesh like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value
from mtfc.compiler.ir.types import TensorType
from mtfc.meshes.mesh_labels import MeshLabels, MeshPart, mesh_labels, rest_of
from mtfc.meshes.micro_batches import written_out

SEGMENT = "segment"
"""The name of a segment's function."""


@attrs.frozen(eq=False)
class MeshPlace:
    """The place of an array: the number of a part, and its type there, which says how it is split over the part's mesh."""

    part: int
    type: TensorType

    def is_as(self, other: MeshPlace) -> bool:
        return (self.part, self.type.splits) == (other.part, other.type.splits)


@attrs.frozen(eq=False)
class Segment:
    """A part of a function on one mesh. part: its number. program: a program with the function `segment`, global or lowered."""

    part: int
    program: Program

    @property
    def function(self) -> Function:
        return self.program.function(SEGMENT)

    @cached_property
    def arguments(self) -> Mapping[str, MeshPlace]:
        """The places in which it takes its arguments."""
        return {a.value.name: MeshPlace(self.part, a.value.type) for a in self.function.arguments}

    @cached_property
    def outputs(self) -> Mapping[str, MeshPlace]:
        """The places of its outputs that replace no argument."""
        return {o.name: MeshPlace(self.part, o.value.type) for o in self.function.handed_out}

    @cached_property
    def updated(self) -> Mapping[str, MeshPlace]:
        """The places of its new parameters and states, by their names."""
        outputs = self.function.outputs
        return {o.updates: MeshPlace(self.part, o.value.type) for o in outputs if o.updates is not None}


@attrs.frozen(eq=False)
class CutFunction:
    """A function in segments, in the order in which they start. homes: argument or value -> the number of its part.

    whole: the function before it is cut.
    """

    whole: Function
    segments: tuple[Segment, ...]
    homes: Mapping[Value, int]

    @property
    def name(self) -> str:
        return self.whole.name

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """The number of the segment that hands out a value, by the value's name. Arguments have none."""
        return {name: number for number, each in enumerate(self.segments) for name in each.outputs}

    def updater(self, argument: str | None) -> int | None:
        """Return the number of the segment that replaces an argument; None if no segment does."""
        return next((i for i, each in enumerate(self.segments) if argument in each.updated), None)


def part_programs(program: Program, parts: Sequence[MeshPart]) -> tuple[Program, ...]:
    """Return a program for each part, to check the part's layout: its equations of `forward`, and the parameters on its mesh."""
    found = _Cut(program, program.function("forward"), parts)
    groups = [(n, [eqn for eqn, part in found.labels.of.items() if part == n]) for n in range(len(parts))]
    stored: dict[int, list[str]] = {}
    for argument in (each for each in found.function.arguments if each.role == "parameter"):
        stored.setdefault(found.homes[argument.value], []).append(argument.value.name)
    return tuple(
        attrs.evolve(
            each.program,
            mesh=program.mesh,
            layout=program.layout,
            functions=(attrs.evolve(each.function, name="forward"),),
        )
        for each in found.segments(groups, rest_of(parts), stored)
    )


def cut(program: Program, function: Function, parts: Sequence[MeshPart]) -> CutFunction:
    """Return a global function of a program in segments."""
    return _Cut(program, function, parts).run()


class _Cut:
    """The cut of one function."""

    def __init__(self, program: Program, function: Function, parts: Sequence[MeshPart]) -> None:
        """Write out the function's loops over micro-batches, and label its equations.

        micro: equation -> its micro-batch. labels: the part of each equation. makers: value -> the equation that computes it.
        homes: argument or value -> its part. alone: outputs that no part computes.
        """
        out = written_out(program, function)
        self.program, self.function = out.program, out.function
        self.parts, self.micro = parts, out.micro_batches
        place = program.training.span if program.training else None
        self.labels: MeshLabels = mesh_labels(self.function, parts, place, out.slices)
        self.makers = {value: eqn for eqn in self.function.body for value in eqn.results}
        self.homes = dict(self.labels.homes)
        for eqn, part in self.labels.of.items():
            self.homes |= dict.fromkeys(eqn.results, part)
        self.alone = [o.value for o in self.function.outputs if o.value not in self.homes]

    def run(self) -> CutFunction:
        """Return the function in segments. Outputs that no part computes belong to a last segment of the rest."""
        groups = list(_Schedule(self).groups())
        if self.alone:
            groups.append((rest_of(self.parts), []))
        return CutFunction(self.function, tuple(self.segments(groups, len(groups) - 1)), self.homes)

    def segments(
        self,
        groups: Sequence[tuple[int, list[Equation]]],
        rest: int,
        stored: Mapping[int, Collection[str]] = {},
    ) -> Iterator[Segment]:
        """Yield segments with the equations of groups. rest: the group of outputs that no argument reaches.

        stored: part -> the arguments that its segments have in any case.
        """
        self.homes |= dict.fromkeys(self.alone, rest_of(self.parts))
        last = {value: number for number, (_, body) in enumerate(groups) for value in self._results(body)}
        last |= dict.fromkeys(self.alone, rest)
        read = self._read_later(groups)
        for number, (part, body) in enumerate(groups):
            yield self._segment(number, part, body, last, read, stored.get(part, ()))

    def needs(self, eqn: Equation) -> Iterator[Value]:
        """Yield the operands of an equation that segments or arguments give."""
        return (value for value in eqn.operands if value in self.homes)

    def _results(self, body: Iterable[Equation]) -> Iterator[Value]:
        return (value for eqn in body for value in eqn.results)

    def _read_later(self, groups: Sequence[tuple[int, list[Equation]]]) -> dict[Value, set[int]]:
        """Return value -> the segments that read it."""
        found: dict[Value, set[int]] = {}
        for number, (_, body) in enumerate(groups):
            for value in (value for eqn in body for value in self.needs(eqn)):
                found.setdefault(value, set()).add(number)
        return found

    # Programs

    def _segment(
        self,
        number: int,
        part: int,
        body: list[Equation],
        last: Mapping[Value, int],
        read: Mapping[Value, set[int]],
        stored: Collection[str],
    ) -> Segment:
        """Return a segment. last: value -> the segment that has it last. read: value -> the segments that read it.

        number: the number of the segment. part: the number of its mesh. stored: the names of stored arrays.
        """
        leaving = [output for output in self.function.outputs if last.get(output.value) == number]
        updating = {o.name: o for o in leaving if o.updates is not None and self._is_at_home(o, part)}
        handed_out = [value for value in self._results(body) if read.get(value, set()) - {number}]
        handed_out += [output.value for output in leaving if output.name not in updating]
        equations = self._with_copies(body, {output.value for output in leaving})
        arguments = self._arguments(equations, {*stored, *(o.updates for o in updating.values())}, part)
        outputs = _outputs(dict.fromkeys(handed_out), updating.values())
        function = Function(SEGMENT, arguments, tuple(equations), outputs)
        return Segment(part, self._program(function, part))

    def _arguments(
        self, equations: Sequence[Equation], updated: Iterable[str | None], part: int
    ) -> tuple[Argument, ...]:
        """Return the arguments of a segment: what its equations read, and what it updates."""
        needed = {value for eqn in equations for value in eqn.operands} - set(self._results(equations))
        given = [a for a in self.function.arguments if a.value in needed or a.value.name in updated]
        computed = needed - {argument.value for argument in given}
        arriving = [self._arriving(argument, part) for argument in given]
        made = ((value, eqn.span) for value, eqn in self.makers.items() if value in computed)
        return (*arriving, *(Argument(value, "input", span) for value, span in made))

    def _program(self, function: Function, part: int) -> Program:
        """Return a program with the function of a segment alone."""
        stored = {a.value.name for a in function.arguments if a.role == "parameter"}
        return attrs.evolve(
            self.program,
            parameters=tuple(each for each in self.program.parameters if each.name in stored),
            functions=(function,),
            training=None,
            mesh=self.parts[part].mesh,
            layout=self.parts[part].layout,
        )

    def _is_at_home(self, output: Output, part: int) -> bool:
        """Return True if an output replaces an argument that is stored on the mesh of a part."""
        stored = (a.value for a in self.function.arguments if a.value.name == output.updates)
        return all(self.homes[value] == part for value in stored)

    def _arriving(self, argument: Argument, part: int) -> Argument:
        """Return an argument in a segment; one that is stored on another mesh arrives as an input."""
        is_own = argument.role == "step" or self.homes[argument.value] == part
        return argument if is_own else Argument(argument.value, "input", argument.span)

    def _with_copies(self, body: Sequence[Equation], outputs: Iterable[Value]) -> list[Equation]:
        """Return equations with those that each mesh computes for itself, in the order of the function."""
        wanted = {*body}
        waiting = [value for eqn in body for value in eqn.operands] + list(outputs)
        while waiting:
            maker = self.makers.get(waiting.pop())
            if maker is not None and maker not in self.labels.of and maker not in wanted:
                wanted.add(maker)
                waiting += maker.operands
        return [eqn for eqn in self.function.body if eqn in wanted]


def _outputs(handed_out: Iterable[Value], updating: Iterable[Output]) -> tuple[Output, ...]:
    """Return outputs for values under their own names, and the outputs that update arguments under names beside these."""
    plain = [Output(value.name, value) for value in handed_out]
    names = Names(output.name for output in plain)
    return (*plain, *(attrs.evolve(output, name=names.fresh(output.name)) for output in updating))


Waiting = tuple[int, bool, int]
"""The equations of a segment wait under a key: the micro-batch, false if other meshes wait for them, and the part."""


class _Schedule:
    """The order of segments, from a rough simulation: an equation takes time in proportion to the elements of its results.

    A mesh takes, of what is ready, the earliest micro-batch, and there first what other meshes wait for. So the backward pass
    of a micro-batch comes before the forward pass of a later one, as in a pipeline of one forward, one backward, and values
    of few micro-batches are there at once.
    """

    def __init__(self, of: _Cut) -> None:
        """Start with all equations waiting.

        waiting: the equations that have not started, by key. known: value -> the time at which it is computed. free: the time
        at which each mesh is free.
        """
        self.of = of
        urgent = self._urgent()
        self.waiting: dict[Waiting, list[Equation]] = {}
        last = len(of.function.body)
        for eqn, part in of.labels.of.items():
            key = of.micro.get(eqn, last), eqn not in urgent, part
            self.waiting.setdefault(key, []).append(eqn)
        self.known = dict.fromkeys((a.value for a in of.function.arguments), 0)
        self.free = [0] * len(of.parts)

    def groups(self) -> Iterator[tuple[int, list[Equation]]]:
        """Yield the equations of each segment with the number of their part, in the order in which they start."""
        while self.waiting:
            start, key = min((start, key) for key in self.waiting if (start := self._start(key)) is not None)
            yield key[2], self._take(start, key)

    def _start(self, key: Waiting) -> int | None:
        """Return the time at which the first equations of a key can start; None while their operands are not known.

        What nobody waits for starts when all of it can, so that it is one segment.
        """
        micro, is_idle, part = key
        if micro - min(each[0] for each in self.waiting if each[2] == part) >= len(self.free):
            return None  # as many micro-batches as meshes are under way
        inside = dict.fromkeys((v for eqn in self.waiting[key] for v in eqn.results), 0) if is_idle else {}
        times = [self._ready(eqn, inside) for eqn in self.waiting[key]]
        known = [time for time in times if time is not None]
        if not known or (is_idle and len(known) < len(times)):
            return None
        return max(max(known) if is_idle else min(known), self.free[part])

    def _ready(self, eqn: Equation, inside: Mapping[Value, int]) -> int | None:
        """Return the time at which all operands are there; None if some are not known. inside: results of the same segment."""
        times = [inside.get(value, self.known.get(value)) for value in self.of.needs(eqn)]
        return None if None in times else max((time for time in times if time is not None), default=0)

    def _take(self, start: int, key: Waiting) -> list[Equation]:
        """Return the waiting equations of a mesh that are ready at a time, in order, and mark their results as known.

        The time of a segment is the number of elements that its equations make.
        """
        made_here: dict[Value, int] = {}
        taken, left = list[Equation](), list[Equation]()
        for eqn in self.waiting.pop(key):
            ready = self._ready(eqn, made_here)
            is_ready = ready is not None and ready <= start
            (taken if is_ready else left).append(eqn)
            made_here |= dict.fromkeys(eqn.results if is_ready else (), start)
        if left:
            self.waiting[key] = left
        end = start + sum(value.type.size for value in made_here)
        self.known |= dict.fromkeys(made_here, end)
        self.free[key[2]] = end
        return taken

    def _urgent(self) -> set[Equation]:
        """Return the equations that another mesh waits for, directly or not."""
        found = set[Equation]()
        for eqn in reversed(self.of.function.body):
            part = self.of.labels.of.get(eqn)
            if part is None:
                continue
            for value in self.of.needs(eqn):
                maker = self.of.makers.get(value)
                if maker is not None and (self.of.labels.of[maker] != part or eqn in found):
                    found.add(maker)
        return found
