"""The forward and the backward pass of a strategy as tasks: parts of operators on their devices, with transfers between them.

Data and sums are those of the search's task graph: a value goes from the part that computes it to the parts that need it, and the
cotangent returns the same way. A device that needs the same elements twice receives them once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.operator_graph import Operator, OperatorStep
from mtfc.placements.operators.operator_parts import Box, OperatorParts, PartFunction
from mtfc.placements.operators.strategy import Configuration, Strategy
from mtfc.placements.operators.unroll_loops import Slices
from mtfc.placements.running.jax.parts import ModuleFunctions, WrittenFunction, passes_of
from mtfc.placements.running.jax.tasks import Ends, HeldPiece, TaskList, cells, common, volume


def whole_of(value: Value) -> Ends:
    return tuple((0, dim.size) for dim in value.type.dims)


def ends_of(value: Value, box: Box) -> Ends:
    return tuple(box.get(dim.name, (0, dim.size)) for dim in value.type.dims)


def hull(one: Ends, other: Ends) -> Ends:
    """Return the smallest region that has both."""
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


@attrs.frozen(eq=False)
class PlacedPart:
    """One part of a step, and its passes as functions of the module."""

    local: PartFunction
    forward: WrittenFunction
    backward: WrittenFunction | None


class PlacedGraph:
    """An operator graph under a strategy. Its parts are written once, whatever the number of micro-batches."""

    def __init__(self, flow: CotangentFlow, strategy: Strategy, functions: ModuleFunctions) -> None:
        """Split each operator by its configuration.

        _parts: the written parts.
        """
        self.flow, self.graph, self.functions = flow, flow.graph, functions
        operators = zip(self.graph.operators, strategy, strict=True)
        self.placed: dict[Operator, tuple[OperatorParts, Configuration]] = {
            operator: (OperatorParts(operator, each.degrees), each) for operator, each in operators
        }
        self._parts: dict[tuple[OperatorStep, int], PlacedPart] = {}

    def of(self, step: OperatorStep) -> tuple[OperatorParts, Sequence[int]]:
        """Return the parts of a step's operator, and their devices."""
        parts, configuration = self.placed[self.graph.operator_of[step]]
        return parts, configuration.devices

    def needed(self, value: Value, step: OperatorStep, part: int) -> Ends:
        """Return the region of a value that a part of a step needs."""
        parts, _ = self.of(step)
        return ends_of(value, parts.box(parts.needs[step].values.get(value, {}), part))

    def owned(self, value: Value, step: OperatorStep, part: int) -> Ends:
        """Return the region of a result that a part provides."""
        parts, _ = self.of(step)
        return ends_of(value, parts.box(parts.needs[step].owned(value), part))

    def origin(self, value: Value) -> tuple[str, Slices]:
        """Return the name of the argument that an argument of the unrolled program is a slice of, and the slice."""
        return self.graph.slices.get(value.name, (value.name, ()))

    def stored(self, role: str) -> dict[Value, dict[int, Ends]]:
        """Return for each argument of a role the region that each device needs; arguments without use are on device 0."""
        found = {a.value: dict[int, Ends]() for a in self.graph.function.arguments if a.role == role}
        for step in self.graph.steps:
            _, devices = self.of(step)
            for value in (each for each in step.arguments if each in found):
                for part, device in enumerate(devices):
                    needs = self.needed(value, step, part)
                    found[value][device] = hull(found[value].get(device, needs), needs)
        returned = {output.value for output in self.graph.function.outputs}
        for value, regions in found.items():
            if not regions or value in returned:
                regions[min(regions, default=0)] = whole_of(value)
        return found

    def part(self, step: OperatorStep, number: int) -> PlacedPart:
        """Return one part of a step as functions of the module, which is written when it is first asked for."""
        key = (step, number)
        if key not in self._parts:
            parts, _ = self.of(step)
            self._parts[key] = written_part(self.flow, self.functions, step, parts, parts.place(number))
        return self._parts[key]


def written_part(
    flow: CotangentFlow,
    functions: ModuleFunctions,
    step: OperatorStep,
    parts: OperatorParts,
    place: Mapping[str, int],
) -> PlacedPart:
    """Write the passes of one part as functions."""
    local = flow.local(step, parts, place)
    given = [local.values[value] for value in (*step.inputs, *step.arguments)]
    name = parts.operator.name
    forward, backward = passes_of(local, given, [local.values[value] for value in step.outputs], name)
    origins = {eqn.results[0]: origin for eqn, origin in local.sources.items()}
    written = functions.add(forward, name, f"Compute a part of {name}.", origins)
    if backward is None or not flow.gradients[step]:
        return PlacedPart(local, written, None)
    doc = f"Return gradients of {name}."
    return PlacedPart(local, written, functions.add(backward, f"{name}_backward", doc, origins))


Contributions = dict[Any, list[HeldPiece]]
"""Key of an array -> pieces whose sum it is; elements without a piece are 0."""


@attrs.define(eq=False)
class PlacedRun:
    """One forward and backward pass, under construction.

    held: pieces of each value on devices; those of a step's result are its parts in order. seed: device -> variable with the
    loss's cotangent there; None for a forward pass alone.
    """

    placed: PlacedGraph
    tasks: TaskList
    held: dict[Value, list[HeldPiece]]
    seed: Callable[[int], str] | None = None
    cotangents: Contributions = attrs.field(factory=dict)
    gradients: Contributions = attrs.field(factory=dict)
    _local: dict[tuple[OperatorStep, int], dict[Value, str]] = attrs.field(factory=dict)
    _sources: dict[tuple[Value, OperatorStep, int], list[tuple[int, Ends]]] = attrs.field(factory=dict)

    def run(self) -> None:
        """Add the tasks of the forward pass, and of the backward pass if there is a seed."""
        graph, flow = self.placed.graph, self.placed.flow
        for step in graph.steps:
            self._forward(step)
        if self.seed is None or graph.loss is None:
            return
        micro, _ = self.tasks.group
        self.tasks.group = (micro, 0)
        for step in reversed(graph.steps):
            if flow.gradients[step]:
                self._backward(step)

    def gathered(
        self, value: Value, wanted: Ends, device: int, turn: int
    ) -> tuple[str, list[tuple[int, Ends]]]:
        """Return a variable with a region of a value on a device, and the held pieces that its elements come from."""
        held_pieces, local_pieces = self.held[value], list[HeldPiece]()
        sources = sources_of(held_pieces, wanted, device, turn)
        for number, region in sources:
            piece = held_pieces[number]
            name = self.tasks.cut(piece.name, piece.ends, region)
            name = self.tasks.on(name, device, volume(region) * ITEM_BYTES[value.type.dtype])
            local_pieces.append(HeldPiece(device, region, name))
        return self.tasks.joined(device, wanted, local_pieces, short(value), adds=False), sources

    def _forward(self, step: OperatorStep) -> None:
        """Run the parts of a step's forward pass: gather what each part reads, call its function, and keep the pieces it
        computes.
        """
        _, devices = self.placed.of(step)
        pieces_of: dict[Value, list[HeldPiece]] = {value: [] for value in step.outputs}
        for part, device in enumerate(devices):
            placed = self.placed.part(step, part)
            names_of: dict[Value, str] = {}
            for value in (*step.inputs, *step.arguments):
                wanted = self.placed.needed(value, step, part)
                name, sources = self.gathered(value, wanted, device, part)
                names_of[placed.local.values[value]] = name
                self._sources[value, step, part] = sources
            operands = [names_of[argument.value] for argument in placed.forward.function.arguments]
            results = [output.value for output in placed.forward.function.outputs]
            names = self.tasks.call(device, placed.forward, operands, [short(each) for each in results])
            names_of.update(zip(results, names, strict=True))
            self._local[step, part] = names_of
            for value in step.outputs:
                ends = self.placed.owned(value, step, part)
                pieces_of[value].append(HeldPiece(device, ends, names_of[placed.local.values[value]]))
        for value, pieces in pieces_of.items():
            self.held[value] = self._completed(value, step, pieces) if value in step.pending else pieces

    def _completed(self, value: Value, step: OperatorStep, terms: Sequence[HeldPiece]) -> list[HeldPiece]:
        """Return the sum of the terms of parts with the same piece, on the device of each part; a term may lack a name.

        Devices add up, then one of them adds the sums of all, and sends the sum to all.
        """
        parts, _ = self.placed.of(step)
        found, base = list(terms), f"{short(value)}_sum"
        for group in parts.groups(value):
            here: dict[int, list[str]] = {terms[part].device: [] for part in group.tolist()}
            for part in group.tolist():
                here[terms[part].device] += [terms[part].name] if terms[part].name else []
            pieces = [
                HeldPiece(device, terms[group[0]].ends, self.tasks.total(device, names, base))
                for device, names in sorted(here.items())
            ]
            sums = self.tasks.summed(pieces, ITEM_BYTES[value.type.dtype], base)
            for part in group.tolist():
                found[part] = attrs.evolve(terms[part], name=sums.get(terms[part].device, ""))
        return found

    def _backward(self, step: OperatorStep) -> None:
        """Run the parts of a step's backward pass: pass on the cotangents of its outputs to the values that each part reads.

        A part to which no cotangent comes is left out.
        """
        _, devices = self.placed.of(step)
        assert self.seed is not None
        for value in step.outputs:
            self._seeded(value, step, self.seed)
        for part, device in enumerate(devices):
            placed = self.placed.part(step, part)
            if placed.backward is None:
                continue
            known = self._local[step, part]
            given = {d: self._cotangent(value, step, part) for value, d in placed.local.cotangents.items()}
            if not any(given.values()):
                continue  # nothing that the part computes reaches the loss by this way
            zeros = {d: name or self.tasks.filled(d.type, 0, device) for d, name in given.items()}
            operands = [zeros.get(a.value) or known[a.value] for a in placed.backward.function.arguments]
            values = list(placed.local.gradients)
            names = self.tasks.call(device, placed.backward, operands, [f"d_{short(v)}" for v in values])
            for value, name in zip(values, names, strict=True):
                self._contribute(
                    value, step, part, HeldPiece(device, self.placed.needed(value, step, part), name)
                )

    def _seeded(self, value: Value, step: OperatorStep, seed: Callable[[int], str]) -> None:
        """Add the loss's own cotangent, and give all terms of a sum the sum's cotangent."""
        parts, devices = self.placed.of(step)
        if value is self.placed.graph.loss:
            for group in parts.groups(value):
                first = int(group[0])
                piece = HeldPiece(devices[first], self.placed.owned(value, step, first), seed(devices[first]))
                self.cotangents.setdefault((value, first), []).append(piece)
        if value not in step.pending:
            return
        terms = [
            HeldPiece(device, self.placed.owned(value, step, part), self._cotangent(value, step, part) or "")
            for part, device in enumerate(devices)
        ]
        for part, each in enumerate(self._completed(value, step, terms)):
            if each.name:
                self.cotangents[value, part] = [each]

    def _cotangent(self, value: Value, step: OperatorStep, part: int) -> str | None:
        """Return the cotangent of a part's result; None if nothing contributes to it."""
        pieces = self.cotangents.get((value, part))
        if not pieces:
            return None
        ends = self.placed.owned(value, step, part)
        name = self.tasks.joined(pieces[0].device, ends, pieces, f"d_{short(value)}", adds=True)
        self.cotangents[value, part] = [HeldPiece(pieces[0].device, ends, name)]
        return name

    def _contribute(self, value: Value, step: OperatorStep, part: int, gradient: HeldPiece) -> None:
        """Send the gradient of an operand to where the operand comes from, or keep that of a parameter."""
        graph, flow = self.placed.graph, self.placed.flow
        if value not in graph.makers:
            if value in flow.gradients[step]:
                self.gradients.setdefault((value, gradient.device), []).append(gradient)
            return
        if not flow.returns(value, step):
            return
        for source, region in self._sources[value, step, part]:
            device = self.held[value][source].device
            name = self.tasks.cut(gradient.name, gradient.ends, region)
            name = self.tasks.on(name, device, volume(region) * ITEM_BYTES[value.type.dtype])
            self.cotangents.setdefault((value, source), []).append(HeldPiece(device, region, name))


def short(value: Value) -> str:
    """Return the last part of a value's name, as a variable is called."""
    name = value.name.rpartition(".")[2]
    found = "".join(each if each.isalnum() and each.isascii() else "_" for each in name).strip("_")
    return found if found[:1].isalpha() else f"x{found}"


def sources_of(held: Sequence[HeldPiece], wanted: Ends, device: int, turn: int) -> list[tuple[int, Ends]]:
    """Return numbers of held pieces and their regions that together are the wanted region.

    A piece on the device itself comes first; other devices with the same piece take turns.
    """
    here = [i for i, each in enumerate(held) if each.device == device and common(each.ends, wanted) == wanted]
    if here:
        return [(here[0], wanted)]
    alike: dict[Ends, list[int]] = {}
    for i, each in enumerate(held):
        alike.setdefault(each.ends, []).append(i)
    chosen = {
        ends: next((i for i in group if held[i].device == device), group[turn % len(group)])
        for ends, group in alike.items()
    }
    overlaps = [(i, region) for ends, i in chosen.items() if (region := common(ends, wanted)) is not None]
    if sum(volume(region) for _, region in overlaps) == volume(wanted):
        return overlaps
    whole = next((i for i, region in overlaps if region == wanted), None)
    return [(whole, wanted)] if whole is not None else list(cells(chosen, wanted))
