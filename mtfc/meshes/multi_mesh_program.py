"""A program under a layout of several meshes: its functions in lowered segments, and the places of all arrays."""

from collections.abc import Mapping
from functools import cached_property, partial

import attrs

from mtfc.backends.common.emitter import NAMES
from mtfc.backends.common.module import STACKED, stacked_inputs
from mtfc.compiler.ir.core import Equation, Output, Program
from mtfc.compiler.ir.types import Layout, Mesh, Rules, TensorType
from mtfc.compiler.passes.cse import Cse
from mtfc.compiler.passes.dce import Dce
from mtfc.compiler.passes.pipeline_loops import LoopPipeliner
from mtfc.compiler.passes.pipelines import differentiation, partitioning, run
from mtfc.compiler.passes.spatial.position_blocks import NewDims
from mtfc.meshes.mesh_labels import MeshPart, part_at, rest_of
from mtfc.meshes.segments import CutFunction, MeshPlace, Segment, cut


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
    def functions(self) -> tuple[CutFunction, ...]:
        """The functions of the program, cut into segments and lowered."""
        whole = self.differentiated
        _, parts = self._pipelined
        return tuple(_lowered(cut(whole, function, parts)) for function in whole.functions)

    def function(self, name: str) -> CutFunction:
        return next(each for each in self.functions if each.name == name)

    def segment_names(self, function: CutFunction) -> list[str]:
        """Return the names of a function's segments in a generated module."""
        meshes = (self.meshes[each.part].name for each in function.segments)
        return [f"{NAMES[function.name]}_{number}_{mesh}" for number, mesh in enumerate(meshes)]

    @cached_property
    def places(self) -> Mapping[str, MeshPlace]:
        """The places of parameters, states and inputs between calls. An argument that nothing reads is not split."""
        return {name: place for (name, is_stacked), place in self._places.items() if not is_stacked}

    @cached_property
    def batches(self) -> Mapping[str, MeshPlace]:
        """The places of the inputs of several micro-batches, if a step takes them."""
        return {name: place for (name, is_stacked), place in self._places.items() if is_stacked}

    @cached_property
    def _places(self) -> Mapping[tuple[str, bool], MeshPlace]:
        """The places of arguments, and of stacked inputs, which have other types, with True beside the name."""
        stacked, found = stacked_inputs(self.differentiated), dict[tuple[str, bool], MeshPlace]()
        functions = list(reversed(self.functions))
        functions.sort(key=lambda function: bool(stacked) and function.name in STACKED)
        for function in functions:
            homes = {value.name: part for value, part in function.homes.items()}
            for each in function.segments:
                for name, place in each.arguments.items():
                    if homes.get(name) == each.part:
                        found.setdefault((name, name in stacked and function.name in STACKED), place)
        for function in functions:
            for argument in function.whole.arguments:
                name, whole = argument.value.name, argument.value.type.unsplit()
                key = name, name in stacked and function.name in STACKED
                found.setdefault(key, MeshPlace(rest_of(self.parts), whole))
        return found

    def places_for(self, function: str) -> Mapping[str, MeshPlace]:
        """Return the places of the arguments of a function."""
        return {**self.places, **(self.batches if function in STACKED else {})}

    def made_at(self, function: CutFunction, name: str) -> tuple[int | None, MeshPlace]:
        """Return the segment that makes a value of a function, None for an argument, and the place of the value there."""
        maker = function.makers.get(name)
        if maker is None:
            return None, self.places_for(function.name)[name]
        return maker, function.segments[maker].outputs[name]

    def returned_from(self, function: CutFunction, output: Output) -> tuple[int | None, MeshPlace]:
        """Return the segment that makes an output of a function, and its place there; see `made_at`."""
        updater = function.updater(output.updates)
        if updater is None or output.updates is None:
            return self.made_at(function, output.value.name)
        return updater, function.segments[updater].updated[output.updates]


def _lowered(found: CutFunction) -> CutFunction:
    """Lower the segments in order. A value of the same mesh arrives as it was computed there."""
    lowered = list[Segment]()
    made: dict[str, MeshPlace] = {}
    for segment in found.segments:
        inputs = (a.value.name for a in segment.function.arguments if a.role == "input")
        there = [(name, made[name]) for name in inputs if name in made and made[name].part == segment.part]
        layout = segment.program.layout
        assert layout is not None, "a segment has a layout"
        values = tuple((f"input.{name}", _rules(place.type)) for name, place in there)
        placed = attrs.evolve(segment.program, layout=attrs.evolve(layout, values=(*layout.values, *values)))
        lowered_segment = Segment(segment.part, run(placed, partitioning()))
        lowered.append(lowered_segment)
        made |= lowered_segment.outputs
    return attrs.evolve(found, segments=tuple(lowered))


def _rules(type: TensorType) -> Rules:
    pairs = zip(type.names, type.splits, strict=True)
    return Rules(tuple((name, axes) for name, axes in pairs if axes))
