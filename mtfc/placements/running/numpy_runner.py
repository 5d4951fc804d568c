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
from mtfc.placements.running.jax.parts import ModuleFunctions, Origin, WrittenFunction
from mtfc.placements.running.jax.pieces import PiecesByName, StoredPiece
from mtfc.placements.running.jax.plan import ModulePlan
from mtfc.placements.running.jax.step import FunctionWriter, Returned, Unpacked
from mtfc.placements.running.jax.tasks import Ends, TaskList
from mtfc.placements.running.placed_program import PlacedProgram

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
    placed: PlacedProgram, arrays: Mapping[str, Array], arithmetic: Arithmetic = Arithmetic()
) -> Executed:
    """Run the forward and backward pass of a program under a placement. Raises `CompileError` (E317, E319).

    arrays: the model's inputs and parameters by name. Arrays that loops slice are whole, and so are their gradients.
    """
    tasks = ArrayTasks(Names(()), arithmetic=arithmetic)
    plan = ModulePlan(placed, ArrayFunctions(tasks))
    writer = ArrayWriter(plan, tasks, arrays)
    writer.gradients()
    outputs, gradients = dict[str, Array](), dict[str, Array]()
    for output in placed.program.function("forward").handed_out:
        outputs[output.name] = tasks.arrays[str(writer.returned[output.name])]
    for name in plan.differentiated():
        gradients[name] = arithmetic.numpy.zeros_like(arrays[name])
        for piece, variable in zip(plan.parameters[name], writer.returned[f"d_{name}"], strict=True):
            gradients[name][_index(piece)] = tasks.arrays[variable]
    return Executed(outputs, gradients, tasks.sent)


class ArrayWriter(FunctionWriter):
    """Computes a function of a module at once. arrays: its arguments. returned: the variables of its outputs."""

    def __init__(self, plan: ModulePlan, tasks: ArrayTasks, arrays: Mapping[str, Array]) -> None:
        super().__init__(plan, tasks)
        self.arrays, self.returned = arrays, Returned()

    def unpacked(self, source: str, pieces: PiecesByName, turn: int = 0) -> Unpacked:
        """Put the pieces of arguments on their devices; return their variables."""
        return {name: [self._put(name, piece) for piece in own] for name, own in pieces.items()}

    def _put(self, name: str, piece: StoredPiece) -> str:
        tasks = self.tasks
        assert isinstance(tasks, ArrayTasks), "tasks are computed at once"
        array = tasks.numpy.asarray(self.arrays[name])[_index(piece)]
        return tasks.put(array.astype(numpy_dtype(np, piece.value.type.dtype)), piece.device)

    def definition(self, name: str, signature: str, doc: str, returned: Mapping[str, Returned]) -> str:
        """Keep the variables of the outputs; there is no text."""
        self.returned = returned["outputs"]
        return ""


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

    def full(self, type: TensorType, value: float, device: int, wanted: str) -> str:
        """Return a variable with an array of equal numbers on a device."""
        return self.filled(type, value, device)

    def apply(
        self, device: int, function: str, given: Sequence[object], wanted: Sequence[str], work: int = 1
    ) -> list[str]:
        """Compute a call of a function; its variables are on the device, but for the array that `send` takes."""
        variables = [each for each in given if isinstance(each, str)]
        assert function == "send" or all(self.device[each] == device for each in variables)
        operands = [self.arrays[each] if isinstance(each, str) else each for each in given]
        compute = self.functions.get(function) or getattr(self, f"_{function}")
        return [self.put(array, device) for array in compute(*operands)]

    def _at(self, position: int, device: int) -> list[Array]:
        return [self.numpy.asarray(np.int32(position))]

    def _send(self, x: Array, device: int) -> list[Array]:
        return [x.copy()]

    def _cut(self, x: Array, ends: Ends) -> list[Array]:
        return [x[tuple(slice(*each) for each in ends)]]

    def _assembled(
        self, shape: tuple[int, ...], places: Sequence[Ends], adds: bool, *pieces: Array
    ) -> list[Array]:
        whole = self.numpy.zeros(shape, pieces[0].dtype)
        for ends, piece in zip(places, pieces, strict=True):
            there = tuple(slice(*each) for each in ends)
            whole[there] = whole[there] + piece if adds else piece
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
