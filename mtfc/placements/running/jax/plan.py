"""The plan of a placed module: operator graphs under the placement, and where the pieces of all arrays are between calls."""

from collections.abc import Callable
from functools import cached_property

import attrs

from mtfc.backends.common.module import arguments
from mtfc.compiler.analysis.output_weights import unit_of, weights_of, with_weights
from mtfc.compiler.diagnostics import CompileError, Diagnostic
from mtfc.compiler.ir.core import Program, Value, source_file
from mtfc.compiler.ir.training import bound, updated
from mtfc.compiler.ir.types import ARRAY_DTYPES, TensorType
from mtfc.compiler.passes.autodiff.differentiate import numbered
from mtfc.compiler.passes.bind_training import BindTraining
from mtfc.compiler.passes.cse import Cse
from mtfc.compiler.passes.dce import Dce
from mtfc.compiler.passes.mixed_precision import MixedPrecision
from mtfc.compiler.passes.pipelines import differentiation, run
from mtfc.compiler.passes.simplify import Simplify
from mtfc.placements.operators.cotangent_flow import cotangent_flow
from mtfc.placements.operators.operator_graph import operators_of
from mtfc.placements.operators.unroll_loops import Slices
from mtfc.placements.running.jax.parts import ModuleFunctions
from mtfc.placements.running.jax.passes import PlacedGraph, PlacedRun, hull, whole_of
from mtfc.placements.running.jax.pieces import PiecesByName, StoredPiece, cover, pieces_of
from mtfc.placements.running.jax.tasks import Ends, TaskList
from mtfc.placements.running.jax.updates import is_local, updates_slice
from mtfc.placements.running.placed_program import PlacedProgram, strategy_for

PLACED = ("common/checks.py", "../placements/running/jax/prelude.py")
"""The files of functions that placed modules are made of, from the folder of the backends."""

Seed = Callable[[int], str]
"""Device -> variable with the cotangent of the loss there."""


class ModulePlan:
    """The graphs of a placed program and the pieces of its arrays.

    step: the operators of a training step; None without training. forward: the operators outside of training. lowered: the
    undistributed program, which says what functions there are. inside: the program in training, before differentiation.
    parameters, inputs: the pieces of each, by the user's name.
    """

    def __init__(self, placed: PlacedProgram, backend: str = "jax") -> None:
        """Lower the program, and split it over the devices of its placement.

        backend: the one that writes the functions of parts.
        """
        self.placed, self.program = placed, placed.program
        self.training = self.program.training
        self.devices = placed.placement.devices
        self.functions = ModuleFunctions(source_file(self.program.functions), backend)
        self._configurations = placed.configurations()
        self.lowered = run(self.program, differentiation("module" if placed.of == "module" else "step"))
        self.trains = self.lowered.has_function("step")
        differentiates = self.training is not None or placed.of == "gradients"
        self.inside = _in_training(self.program)
        forward = self.inside.function("forward")
        self.weights = weights_of(forward, self.training)
        self.unit = unit_of(forward, self.training) if self.training else 1.0
        self.step = self._graph(self.inside) if differentiates else None
        outside = run(self.program, (MixedPrecision(), BindTraining(), Simplify(), Cse(), Dce()))
        self.forward = self._graph(outside)
        self._refuse_sliced()
        self.parameters, self.inputs = self._stored("parameter"), self._stored("input")

    def _graph(self, program: Program) -> PlacedGraph:
        """Return the operators of a program under the placement."""
        flow = cotangent_flow(operators_of(program.map_functions(numbered)))
        return PlacedGraph(flow, strategy_for(flow.graph, self._configurations), self.functions)

    @property
    def graphs(self) -> list[PlacedGraph]:
        return [each for each in (self.step, self.forward) if each is not None]

    @cached_property
    def trained(self) -> frozenset[str]:
        """The parameters that training updates."""
        return frozenset(updated(self.training)) if self.training else frozenset()

    # Pieces

    def _refuse_sliced(self) -> None:
        """Raise `CompileError` (E319) for a parameter that a loop slices, and whose optimizer looks at all slices together."""
        values = (value for placed in self.graphs for value in placed.graph.parameters)
        for name, value in ((self.graphs[0].origin(value)[0], value) for value in values):
            if self.training and name in self.trained and not updates_slice(self.training, name, value):
                whole = "a loop slices it, and its optimizer looks at the whole parameter"
                help = "declare the parameter in the loop, or use an optimizer that works element by element"
                message = f"`{name}` cannot be split: {whole}"
                raise CompileError([Diagnostic("E319", message, self.placed.placement.span, help=help)])

    def _stored(self, role: str) -> dict[str, list[StoredPiece]]:
        """Return the pieces of parameters, where a training step needs them, or of inputs, where evaluation needs them, too."""
        known: dict[str, tuple[Value, dict[int, Ends], tuple[str, Slices]]] = {}
        for placed in self.graphs:
            for value, held in placed.stored(role).items():
                is_first = value.name not in known
                _, regions, _ = known.setdefault(value.name, (value, {}, placed.origin(value)))
                for device, ends in held.items() if is_first or role == "input" else ():
                    regions[device] = hull(regions.get(device, ends), ends)
        found: dict[str, list[StoredPiece]] = {}
        for value, regions, (name, at) in known.values():
            held = self._whole(name, value, regions) if role == "parameter" else regions
            found.setdefault(name, []).extend(pieces_of(value, held, at))
        return found

    def _whole(self, name: str, value: Value, held: dict[int, Ends]) -> dict[int, Ends]:
        """Return the region of a parameter that each device stores; together these cover the parameter.

        held: the regions that the devices read. An optimizer that looks at all elements needs the whole one on each device.
        """
        whole = whole_of(value)
        if self.training is not None and name in self.trained and not is_local(self.training, name):
            return dict.fromkeys(held, whole)
        return held if cover([*held.values()], whole) else {**held, min(held): whole}

    @property
    def accumulate(self) -> int:
        """The number of micro-batches in a step."""
        return self.training.accumulate if self.training is not None and self.trains else 1

    @cached_property
    def batches(self) -> PiecesByName:
        """The pieces of stacked inputs: those of each micro-batch in turn."""
        if self.accumulate == 1:
            return {}
        return {
            name: [
                attrs.evolve(piece, index=(micro, *piece.index))
                for micro in range(self.accumulate)
                for piece in self.inputs[name]
            ]
            for name in arguments(self.lowered, "input")
        }

    @cached_property
    def states(self) -> PiecesByName:
        """The pieces of the optimizer's states: where their parameters are; scalars of all are on device 0."""
        if not self.trains:
            return {}
        found = dict[str, list[StoredPiece]]()
        for name, type in arguments(self.lowered, "state").items():
            owner = self.owner(name)
            if owner is None:
                found[name] = [StoredPiece(Value(name, type), 0, (), ())]
            else:
                found[name] = [self._state(piece, type, owner) for piece in self.parameters[owner]]
        return found

    def owner(self, state: str) -> str | None:
        """Return the parameter that a state belongs to; None for scalars of the whole optimizer."""
        return max((name for name in self.parameters if state.startswith(f"{name}.")), key=len, default=None)

    def _state(self, piece: StoredPiece, type: TensorType, owner: str) -> StoredPiece:
        """Return the piece of a state that belongs to a piece of its parameter."""
        if arguments(self.lowered, "parameter")[owner].dims == type.dims:
            return piece
        front = [each for each in piece.index if isinstance(each, int)]
        rest = tuple((0, dim.size) for dim in type.dims[len(front) :])
        return attrs.evolve(piece, ends=rest, index=(*front, *rest))

    def differentiated(self) -> list[str]:
        """Return the parameters that have a gradient."""
        if self.step is None or self.step.graph.loss is None:
            return []
        flow = self.step.flow
        active = (v for step in flow.graph.steps for v in flow.gradients[step] if v not in flow.graph.makers)
        whole = {self.step.origin(value)[0] for value in active}
        return [name for name in arguments(self.lowered, "parameter") if name in whole]


def _in_training(program: Program) -> Program:
    """Return the program of a training step before differentiation, with the updates of the model's states."""
    narrow = run(program, (MixedPrecision(),))
    flagged = narrow.map_functions(lambda function: bound(function, training=True))
    if program.training is not None and program.training.weigh_by is not None:
        flagged = with_weights(flagged)[0]
    return run(flagged, (Simplify(), Cse(), Dce()))


def outputs_of(placed: PlacedGraph) -> dict[str, Value]:
    """Return the outputs of a pass; new values of the model's state are none."""
    return {o.name: o.value for o in placed.graph.function.outputs if o.updates is None}


def whole_on(run_: PlacedRun, value: Value) -> str:
    """Return a variable with a whole value, on a device that has some of it."""
    return run_.gathered(value, whole_of(value), run_.held[value][0].device, 0)[0]


def seed_of(
    placed: PlacedGraph,
    tasks: TaskList,
    share: float,
    scale: str | None = None,
    weight: Callable[[], str] | None = None,
) -> Seed | None:
    """Return the function from a device to a variable with the cotangent of the loss there; None without a loss.

    scale: a variable with a loss scale that changes, or None. weight: returns one with the weight of the micro-batch.
    """
    if placed.graph.loss is None:
        return None
    type = placed.graph.loss.type

    def seed(device: int) -> str:
        """Return a variable on a device with the cotangent of the loss: the share, times scale and weight if there are any."""
        factors = [tasks.on(each, device, 4) for each in (scale, weight and weight()) if each is not None]
        if not factors:
            return tasks.filled(type, share, device, "d_loss")
        text = f'scaled({share!r}, "{ARRAY_DTYPES[type.dtype]}", {", ".join(factors)})'
        return tasks.add(device, text, factors, ["d_loss"])[0]

    return seed
