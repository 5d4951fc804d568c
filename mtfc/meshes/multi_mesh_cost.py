"""Computation, communication and memory on each of several meshes, and the values that travel between them."""

from collections.abc import Iterable, Iterator, Mapping

import attrs

from mtfc.compiler.cost.effects.memory import MemoryUse, memory_of
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.compiler.cost.volumes import Charge, PipelineCost, PlacedCost, charges, pipeline_costs
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Function, source_file
from mtfc.compiler.ir.types import Mesh
from mtfc.meshes.mesh_labels import MeshPart
from mtfc.meshes.multi_mesh_program import MultiMeshProgram
from mtfc.meshes.segments import CutFunction, MeshPlace


@attrs.frozen
class Travel:
    """A value that is sent from one place to another.

    span: the line that makes it. bytes: the bytes that arrive at all devices of the target. maker, reader: the numbers of
    segments; maker is None for an argument, reader is None if the function returns the value.
    """

    value: str
    span: Span | None
    source: MeshPlace
    target: MeshPlace
    bytes: int
    maker: int | None
    reader: int | None


@attrs.frozen
class MultiMeshCost:
    """The cost of a model under a layout of several meshes.

    meshes: the cost of each mesh, per device; travels: the values that travel in a step.
    """

    layout: str
    trains: bool
    meshes: tuple[PlacedCost, ...]
    travels: tuple[Travel, ...]

    @property
    def model(self) -> str:
        return self.meshes[0].model

    @property
    def file(self) -> str | None:
        return self.meshes[0].file

    @property
    def between_meshes(self) -> int:
        """The bytes that go from one mesh to another in a step."""
        return sum(each.bytes for each in self.travels if each.source.part != each.target.part)


def multi_mesh_cost(multi_mesh: MultiMeshProgram) -> MultiMeshCost:
    """Return the cost of a step, or of a forward pass if the model does not train."""
    trains = any(function.name == "step" for function in multi_mesh.functions)
    forward, step = multi_mesh.function("forward"), multi_mesh.function("step" if trains else "forward")
    file = source_file(multi_mesh.program.functions)
    meshes = []
    for number, part in enumerate(multi_mesh.parts):
        layout = attrs.evolve(part.layout, name=multi_mesh.name)
        own = [list(_charges(function, number, part.mesh)) for function in (forward, step)]
        on_mesh = [each.function for each in step.segments if each.part == number]
        meshes.append(
            PlacedCost(
                multi_mesh.program.name,
                file,
                trains,
                layout,
                part.mesh,
                tuple(own[0]),
                tuple(own[1]),
                _memory(multi_mesh, step, number),
                tuple(_pipelines(on_mesh, part)),
            )
        )
    return MultiMeshCost(multi_mesh.name, trains, tuple(meshes), tuple(travels(multi_mesh, step)))


def _pipelines(functions: Iterable[Function], part: MeshPart) -> Iterator[PipelineCost]:
    """Yield the pipelines on a mesh, each once, however many micro-batches run through it."""
    seen = set[Span | None]()
    for function in functions:
        for each in pipeline_costs(function, part.mesh, part.layout, Numbers(part.mesh)):
            if each.span not in seen:
                seen.add(each.span)
                yield each


def _charges(function: CutFunction, part: int, mesh: Mesh) -> Iterator[Charge]:
    """Yield the charges of the segments on a mesh."""
    for each in function.segments:
        if each.part == part:
            yield from charges(each.function, Numbers(mesh))


def travels(multi_mesh: MultiMeshProgram, function: CutFunction) -> Iterator[Travel]:
    """Yield what a function sends, in the order of the segments that read it. Several readers in one place share a copy."""
    places, copies = multi_mesh.places_for(function.name), list[tuple[str, MeshPlace]]()
    spans = _spans(function)

    def travel(
        name: str, wanted: MeshPlace, maker: int | None, found: MeshPlace, reader: int | None
    ) -> Travel:
        """Return the travel of a value to the place where it is wanted. maker, reader: the segments at both ends.

        wanted, found: the places at both ends.
        """
        mesh = multi_mesh.meshes[wanted.part]
        size = wanted.type.local_bytes(mesh) * mesh.devices
        return Travel(name, spans.get(name), found, wanted, size, maker, reader)

    for reader, segment in enumerate(function.segments):
        for argument in segment.function.arguments:
            if argument.role == "step":
                continue
            name, wanted = argument.value.name, segment.arguments[argument.value.name]
            maker, found = multi_mesh.made_at(function, name)
            known = any(key == name and place.is_as(wanted) for key, place in copies)
            if not found.is_as(wanted) and not known:
                copies.append((name, wanted))
                yield travel(name, wanted, maker, found, reader)
    for output in function.whole.outputs:
        if output.updates is None:
            continue
        maker, found = multi_mesh.returned_from(function, output)
        if not found.is_as(places[output.updates]):
            yield travel(output.value.name, places[output.updates], maker, found, None)


def _spans(function: CutFunction) -> Mapping[str, Span | None]:
    """Return the lines that make the values of a function."""
    return {value.name: eqn.span for eqn in function.whole.body for value in eqn.results}


# Memory

_Held = tuple[Span | None, int]
"""The line of a value, and its bytes on a device."""


def _memory(multi_mesh: MultiMeshProgram, function: CutFunction, part: int) -> MemoryUse:
    """Return the memory of a device of a mesh: what is stored, and the largest sum of all else that is there at once.

    Beside the values of a segment these are values that later segments read, and new parameters and states: a step does not
    write them over the old ones.
    """
    mesh, roles = multi_mesh.meshes[part], {a.value.name: a.role for a in function.whole.arguments}
    spans, lines = {a.value.name: a.span for a in function.whole.arguments}, _spans(function)
    stored = {n: p for n, p in multi_mesh.places_for(function.name).items() if p.part == part and n in roles}
    sizes = {name: place.type.local_bytes(mesh) for name, place in stored.items()}
    last = {name: number for number, each in enumerate(function.segments) for name in each.arguments}
    new, made, fullest, peak = list[_Held](), dict[str, _Held](), list[_Held](), None
    for number, each in enumerate(function.segments):
        if each.part != part:
            continue
        segment_memory = memory_of(each.function, mesh, Numbers(mesh))
        new += [(spans[name], place.type.local_bytes(mesh)) for name, place in each.updated.items()]
        waiting = [
            held for name, held in made.items() if last.get(name, 0) > number and name not in each.arguments
        ]
        occupied = [*_other_than_stored(each.function, segment_memory), *new, *waiting]
        made |= {name: (lines[name], place.type.local_bytes(mesh)) for name, place in each.outputs.items()}
        if _bytes(occupied) > _bytes(fullest):
            fullest, peak = occupied, segment_memory.peak
    if not any(each.part == part for each in function.segments):
        fullest = [(spans[name], sizes[name]) for name in stored if roles[name] == "input"]
    stored_arrays = [(spans[name], sizes[name]) for name in stored if roles[name] in ("parameter", "state")]
    return MemoryUse(
        parameters=sum(sizes[name] for name in stored if roles[name] == "parameter"),
        gradients=0,
        optimizer=sum(sizes[name] for name in stored if roles[name] == "state"),
        activations_peak=_bytes(fullest),
        peak=peak,
        kept=(),
        stored=tuple(stored_arrays),
        occupied=(*stored_arrays, *fullest),
    )


def _other_than_stored(function: Function, own: MemoryUse) -> Iterator[_Held]:
    """Yield the bytes of the values of a segment at its peak, without parameters and states, which come first."""
    stored = sum(argument.role != "input" for argument in function.arguments)
    return ((span, whole(amount)) for span, amount in own.occupied[stored:])


def _bytes(held: Iterable[_Held]) -> int:
    return sum(size for _, size in held)
