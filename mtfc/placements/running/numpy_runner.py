"""Execution of a placement strategy on NumPy: every part of an operator on its own device, with transfers between devices.

The tasks are those of the JAX module (`running/jax/passes.py`), computed at once instead of written. Each variable is an array on
one device, and a part reads only variables of its device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from mtfc.backends.common import random_numbers
from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Function, Value
from mtfc.compiler.ir.opdef import Shard
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import TensorType
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.strategy import Strategy
from mtfc.placements.running.jax.parts import ModuleFunctions, Origin, WrittenFunction
from mtfc.placements.running.jax.passes import PlacedGraph, PlacedRun, whole_of
from mtfc.placements.running.jax.pieces import StoredPiece, pieces_by_value, pieces_of
from mtfc.placements.running.jax.sums import summed_gradients
from mtfc.placements.running.jax.tasks import Ends, HeldPiece, TaskList

Array = Any


@attrs.frozen(eq=False)
class Executed:
    """Outputs and parameter gradients by name, as whole arrays; and the bytes sent from device to device."""

    outputs: Mapping[str, Array]
    gradients: Mapping[str, Array]
    sent: int


@attrs.frozen(eq=False)
class Arithmetic:
    """Functions of NumPy and of random numbers, or others in their place: the exact check has some that compute on residues."""

    numpy: Any = np
    random: Any = random_numbers


def execute(
    flow: CotangentFlow,
    strategy: Strategy,
    arrays: Mapping[str, Array],
    arithmetic: Arithmetic = Arithmetic(),
) -> Executed:
    """Run the forward and backward pass of a graph under a strategy.

    arrays: the model's inputs and parameters by name. Arrays that loops slice are whole, and so are their gradients.
    """
    tasks = ArrayTasks(Names(()), arithmetic=arithmetic)
    placed = PlacedGraph(flow, strategy, ArrayFunctions(tasks))
    stored = _stored(placed)
    by_value = pieces_by_value(stored)
    loss = flow.graph.loss
    seed = None if loss is None else partial(tasks.filled, loss.type, 1)
    run = PlacedRun(placed, tasks, _held(flow, tasks, stored, arrays), seed)
    run.run()
    gradients: dict[str, Array] = {}
    for value in {
        value: None for step in flow.graph.steps for value in step.arguments if value in flow.gradients[step]
    }:
        name = placed.origin(value)[0]
        gradients.setdefault(name, arithmetic.numpy.zeros_like(arrays[name]))
    reduced = summed_gradients(tasks, by_value, [run])
    for name, whole in gradients.items():
        for piece in stored[name]:
            if (piece.value.name, piece.device) in reduced:
                whole[_index(piece)] = tasks.arrays[reduced[piece.value.name, piece.device]]
    sent = tasks.sent
    outputs = {
        output.name: tasks.arrays[run.gathered(output.value, whole_of(output.value), 0, 0)[0]]
        for output in flow.graph.function.outputs
    }
    return Executed(outputs, gradients, sent)


def _stored(placed: PlacedGraph) -> dict[str, list[StoredPiece]]:
    """Return the pieces of each argument: what the parts on a device need of it."""
    found: dict[str, list[StoredPiece]] = {}
    for role in dict.fromkeys(argument.role for argument in placed.graph.function.arguments):
        for value, regions in placed.stored(role).items():
            name, at = placed.origin(value)
            found.setdefault(name, []).extend(pieces_of(value, regions, at))
    return found


def _held(
    flow: CotangentFlow,
    tasks: ArrayTasks,
    stored: Mapping[str, Sequence[StoredPiece]],
    arrays: Mapping[str, Array],
) -> dict[Value, list[HeldPiece]]:
    """Put the pieces of arguments on their devices."""
    given = {argument.value.name: argument.value for argument in flow.graph.function.arguments}
    found: dict[Value, list[HeldPiece]] = {}
    for name, piece in ((name, piece) for name, pieces in stored.items() for piece in pieces):
        value = given[piece.value.name]
        array = tasks.numpy.asarray(arrays[name])[_index(piece)]
        variable = tasks.put(array.astype(numpy_dtype(np, value.type.dtype)), piece.device)
        found.setdefault(value, []).append(HeldPiece(piece.device, piece.ends, variable))
    return found


def _index(piece: StoredPiece) -> tuple[Any, ...]:
    """Return the index of a piece in its array."""
    return tuple(each if isinstance(each, int) else slice(*each) for each in piece.index)


@attrs.define(eq=False)
class ArrayTasks(TaskList):
    """Tasks that are computed as they are added. functions: name -> part of an operator; arrays: variable -> array."""

    arithmetic: Arithmetic = Arithmetic()
    functions: dict[str, Callable[..., Sequence[Array]]] = attrs.field(factory=dict)
    arrays: dict[str, Array] = attrs.field(factory=dict)

    @property
    def numpy(self) -> Any:
        return self.arithmetic.numpy

    def put(self, array: Array, device: int) -> str:
        """Return a new variable with an array on a device."""
        name = self.given("x", device)
        self.arrays[name] = array
        return name

    def filled(self, type: TensorType, value: float, device: int) -> str:
        """Return a variable with an array of equal numbers on a device."""
        shape = tuple(dim.size for dim in type.dims)
        return self.put(self.numpy.full(shape, value, numpy_dtype(np, type.dtype)), device)

    def apply(
        self, device: int, function: str, given: Sequence[object], wanted: Sequence[str], work: int = 1
    ) -> list[str]:
        """Compute a call of a function; its variables are on the device, but for the array that `send` takes."""
        variables = [each for each in given if isinstance(each, str)]
        assert function == "send" or all(self.device[each] == device for each in variables)
        operands = [self.arrays[each] if isinstance(each, str) else each for each in given]
        compute = self.functions.get(function) or getattr(self, f"_{function}")
        return [self.put(array, device) for array in compute(*operands)]

    def _send(self, x: Array, device: int) -> list[Array]:
        return [x.copy()]

    def _cut(self, x: Array, ends: Ends) -> list[Array]:
        return [x[tuple(slice(*each) for each in ends)]]

    def _assembled(self, shape: tuple[int, ...], places: Sequence[Ends], *pieces: Array) -> list[Array]:
        whole = self.numpy.zeros(shape, pieces[0].dtype)
        for ends, piece in zip(places, pieces, strict=True):
            whole[tuple(slice(*each) for each in ends)] = piece
        return [whole]

    def _scattered(self, shape: tuple[int, ...], places: Sequence[Ends], *pieces: Array) -> list[Array]:
        whole = self.numpy.zeros(shape, pieces[0].dtype)
        for ends, piece in zip(places, pieces, strict=True):
            whole[tuple(slice(*each) for each in ends)] += piece
        return [whole]

    def _total(self, first: Array, *others: Array) -> list[Array]:
        return [sum(others, start=first)]


class ArrayFunctions(ModuleFunctions):
    """Parts of operators as functions of arrays."""

    def __init__(self, tasks: ArrayTasks) -> None:
        super().__init__(None)
        self.tasks = tasks

    def add(
        self, function: Function, wanted: str, doc: str, origins: Mapping[Value, Origin] | None = None
    ) -> WrittenFunction:
        """Return a function that computes these equations."""
        name = self._names.fresh(wanted)
        self.tasks.functions[name] = partial(_evaluated, self.tasks.arithmetic, function, origins or {})
        return WrittenFunction(name, (), 1, "")


def _evaluated(
    arithmetic: Arithmetic, function: Function, origins: Mapping[Value, Origin], *operands: Array
) -> list[Array]:
    """Return the outputs of a part. Random numbers depend on an element's place in the whole tensor."""
    known = dict(zip((argument.value for argument in function.arguments), operands, strict=True))
    for eqn in function.body:
        source, first = origins.get(eqn.results[0], (eqn, {}))
        shape = tuple(dim.size for dim in eqn.results[0].type.dims)
        seen = source if "stream" in eqn.attrs else eqn
        shard = Shard(arithmetic.numpy, arithmetic.random, seen, shape, partial(_offset, first))
        found = OPS[eqn.op].evaluate(shard, *(known[value] for value in eqn.operands))
        results = found if len(eqn.results) > 1 else (found,)
        known.update(zip(eqn.results, map(arithmetic.numpy.asarray, results), strict=True))
    return [known[output.value] for output in function.outputs]


def _offset(first: Mapping[str, int], dim: str) -> int:
    """Return the first index of a part along a dimension of the whole tensor."""
    return first.get(dim, 0)
