"""A program under a layout of several meshes: its functions in lowered segments, and the places of all arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial

import attrs

from mtfc.backends.common.emitter import NAMES
from mtfc.backends.common.module import STACKED, stacked_inputs
from mtfc.compiler.ir.core import Equation, Function, Output, Program
from mtfc.compiler.ir.types import Layout, Mesh, Rules, TensorType
from mtfc.compiler.passes.cse import Cse
from mtfc.compiler.passes.dce import Dce
from mtfc.compiler.passes.pipeline_loops import LoopPipeliner
from mtfc.compiler.passes.pipelines import differentiation, partitioning, run
from mtfc.compiler.passes.spatial.position_blocks import NewDims
from mtfc.meshes.mesh_labels import MeshPart, part_at, rest_of
from mtfc.meshes.segments import SEGMENT, CutFunction, Segment, cut


@attrs.frozen(eq=False)
class MeshPlace:
    """The place of an array: the number of a part, and its type there, which says how it is split over the part's mesh."""

    part: int
    type: TensorType

    def is_as(self, other: MeshPlace) -> bool:
        return (self.part, self.type.splits) == (other.part, other.type.splits)


@attrs.frozen(eq=False)
class LoweredSegment:
    """A segment, and its program for one processor of its mesh."""

    segment: Segment
    program: Program

    @property
    def part(self) -> int:
        return self.segment.part

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
class LoweredFunction:
    """A function of a program in lowered segments."""

    cut: CutFunction
    segments: tuple[LoweredSegment, ...]

    @property
    def name(self) -> str:
        return self.cut.function.name

    @cached_property
    def makers(self) -> Mapping[str, int]:
        """The number of the segment that hands out a value, by the value's name. Arguments have none."""
        return {name: number for number, each in enumerate(self.segments) for name in each.outputs}

    def updater(self, output: str) -> int | None:
        """Return the number of the segment that replaces an argument by an output of the function; None if no segment does."""
        return next((i for i, each in enumerate(self.segments) if output in each.segment.updates), None)


@attrs.frozen(eq=False)
class MultiMeshProgram:
    """A global program, before any pass, under the parts of a layout.

    of: the functions to make besides `forward`, as for `differentiation`.
    """

    program: Program
    parts: tuple[MeshPart, ...]
    name: str
    of: str = "step"

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        return tuple(part.mesh for part in self.parts)

    @cached_property
    def _pipelined(self) -> tuple[Program, tuple[MeshPart, ...]]:
        """The differentiated program with the pipelines of all parts, and the parts with rules for the pipelines' dimensions."""
        passes = differentiation() if self.of == "forward" else differentiation(self.of)
        named = Layout(self.name, values=tuple(rule for part in self.parts for rule in part.layout.values))
        program = run(attrs.evolve(self.program, layout=named), passes)
        parts = list(self.parts)
        for number, part in enumerate(self.parts):
            if part.layout.pipelines:
                dims = NewDims(program.dims)
                takes = partial(self._runs_in, number)
                changer = LoopPipeliner(part.mesh, part.layout, program.dims, dims, takes)
                placed = attrs.evolve(program, layout=part.layout).map_functions(changer.function)
                program = dims.declared_in(placed)
                assert program.layout is not None, "it has the layout of the part"
                parts[number] = attrs.evolve(part, layout=program.layout)
        return attrs.evolve(run(program, (Cse(), Dce())), layout=None), tuple(parts)

    def _runs_in(self, part: int, eqn: Equation) -> bool:
        found = part_at(eqn.span, self.parts)
        return (rest_of(self.parts) if found is None else found) == part

    @cached_property
    def differentiated(self) -> Program:
        """The global program with its gradients, before it is cut. Values with rules of their own stay."""
        whole, _ = self._pipelined
        if self.of == "forward":
            return attrs.evolve(whole, functions=(whole.function("forward"),))
        return whole

    @cached_property
    def functions(self) -> tuple[LoweredFunction, ...]:
        whole = self.differentiated
        _, parts = self._pipelined
        return tuple(_lowered(cut(whole, function, parts)) for function in whole.functions)

    def function(self, name: str) -> LoweredFunction:
        return next(each for each in self.functions if each.name == name)

    def segment_names(self, function: LoweredFunction) -> list[str]:
        """Return the names of a function's segments in a generated module."""
        meshes = (self.meshes[each.part].name for each in function.segments)
        return [f"{NAMES[function.name]}_{number}_{mesh}" for number, mesh in enumerate(meshes)]

    @cached_property
    def places(self) -> Mapping[str, MeshPlace]:
        """The places of parameters, states and inputs between calls. An argument that nothing reads is not split."""
        stacked = stacked_inputs(self.differentiated)
        return self._places([f for f in self.functions if not (stacked and f.name in STACKED)], stacked)

    @cached_property
    def batches(self) -> Mapping[str, MeshPlace]:
        """The places of the inputs of several micro-batches, if a step takes them."""
        stacked = stacked_inputs(self.differentiated)
        found = self._places([f for f in self.functions if f.name in STACKED], {}) if stacked else {}
        return {name: found[name] for name in stacked}

    def places_for(self, function: str) -> Mapping[str, MeshPlace]:
        """Return the places of the arguments of a function."""
        return {**self.places, **(self.batches if function in STACKED else {})}

    def made_at(self, function: LoweredFunction, name: str) -> tuple[int | None, MeshPlace]:
        """Return the segment that makes a value of a function, None for an argument, and the place of the value there."""
        maker = function.makers.get(name)
        if maker is None:
            return None, self.places_for(function.name)[name]
        return maker, function.segments[maker].outputs[name]

    def returned_from(self, function: LoweredFunction, output: Output) -> tuple[int | None, MeshPlace]:
        """Return the segment that makes an output of a function, and its place there; see `made_at`."""
        updater = function.updater(output.name)
        if updater is None or output.updates is None:
            return self.made_at(function, output.value.name)
        return updater, function.segments[updater].updated[output.updates]

    def _places(
        self, functions: Sequence[LoweredFunction], stacked: Mapping[str, TensorType]
    ) -> dict[str, MeshPlace]:
        """Return the places in which functions take arguments. stacked: inputs of other functions, with other types."""
        found: dict[str, MeshPlace] = {}
        others = [f for f in self.functions if f not in functions]
        for function in (*reversed(functions), *others):
            names = stacked if function in others else {}
            for name, place in _own_places(function):
                if name not in names:
                    found.setdefault(name, place)
        for each in (*(f.cut.function for f in functions), *(f.cut.function for f in others)):
            for argument in each.arguments:
                whole = argument.value.type.unsplit()
                found.setdefault(argument.value.name, MeshPlace(rest_of(self.parts), whole))
        return found


def _own_places(function: LoweredFunction) -> Iterator[tuple[str, MeshPlace]]:
    """Yield the places of the arguments that segments take on their own meshes."""
    homes = {value.name: part for value, part in function.cut.homes.items()}
    for each in function.segments:
        for name, place in each.arguments.items():
            if homes.get(name) == each.part:
                yield name, place


def _lowered(found: CutFunction) -> LoweredFunction:
    """Lower the segments in order. A value of the same mesh arrives as it was computed there."""
    lowered = list[LoweredSegment]()
    made: dict[str, MeshPlace] = {}
    for segment in found.segments:
        inputs = (a.value.name for a in segment.function.arguments if a.role == "input")
        there = [(name, made[name]) for name in inputs if name in made and made[name].part == segment.part]
        layout = segment.program.layout
        assert layout is not None, "a segment has a layout"
        values = tuple((f"input.{name}", _rules(place.type)) for name, place in there)
        placed = attrs.evolve(segment.program, layout=attrs.evolve(layout, values=(*layout.values, *values)))
        each = LoweredSegment(segment, run(placed, partitioning()))
        lowered.append(each)
        made |= each.outputs
    return LoweredFunction(found, tuple(lowered))


def _rules(type: TensorType) -> Rules:
    pairs = zip(type.names, type.splits, strict=True)
    return Rules(tuple((name, axes) for name, axes in pairs if axes))
