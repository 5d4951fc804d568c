"""What a program runs on: batches of inputs from a file or drawn from a seed, and parameters from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

import attrs

from mtfc.cli.npz import Array, Arrays, Fitting, listed, whole
from mtfc.compiler.diagnostics import nearest
from mtfc.compiler.ir.core import Argument, Equation, Function, Program
from mtfc.compiler.ir.ops.componentwise import numpy_dtype
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType

INDEXED_BY = frozenset({"one_hot", "gather"})
"""Ops with an operand of indices into their dimension `dim`."""


@attrs.frozen
class Batches:
    """`count` batches of inputs; an array of one batch, or of a scalar input, is the same in all of them."""

    types: Mapping[str, TensorType]
    arrays: Arrays
    count: int

    def __getitem__(self, number: int) -> dict[str, Array]:
        """Batch `number` from 0; after the last one comes the first."""
        return {name: self._part(name, type, number % self.count) for name, type in self.types.items()}

    def step(self, number: int, accumulate: int) -> dict[str, Array]:
        """What training step `number` takes: one batch, or `accumulate` in a row, stacked."""
        import numpy as np

        if accumulate == 1:
            return self[number]
        parts = [self[number * accumulate + i] for i in range(accumulate)]
        return {name: np.stack([part[name] for part in parts]) for name in self.types}

    def _part(self, name: str, type: TensorType, number: int) -> Array:
        array = self.arrays[name]
        size = type.dims[0].size if type.dims else 0
        return array[number * size : (number + 1) * size] if size and len(array) > size else array


def inputs_of(function: Function) -> list[Argument]:
    return [argument for argument in function.arguments if argument.role == "input"]


def _types(function: Function) -> dict[str, TensorType]:
    return {argument.value.name: argument.value.type.unsplit() for argument in inputs_of(function)}


def read_batches(path: str, function: Function) -> Batches:
    """The inputs of `function` from a file. Raises `CompileError` (E501 to E504, E506)."""
    fitting = Fitting(path)
    types, arrays, counts = _types(function), {}, {}
    for argument in inputs_of(function):
        name, type = argument.value.name, types[argument.value.name]
        if name not in fitting.arrays:
            fitting.missing("input", name, argument.span)
        elif not (count := _batches(fitting.arrays[name].shape, type)):
            help = "its first dimension may be a multiple, for several batches" if type.dims else None
            fitting.misshaped("input", name, type, argument.span, help)
        else:
            counts[name], arrays[name] = count, fitting.converted("input", name, type, argument.span)
    several = {name: count for name, count in counts.items() if count > 1}
    if len(set(several.values())) > 1:
        numbers = ", ".join(f"{count} of `{name}`" for name, count in several.items())
        fitting.error("E506", f"the inputs have different numbers of batches: {numbers}")
    fitting.diagnostics.raise_if_errors()
    return Batches(types, arrays, max(several.values(), default=1))


def _batches(shape: tuple[int, ...], type: TensorType) -> int:
    """How many batches an array of that shape holds; 0 where it does not fit the type."""
    wanted = tuple(dim.size for dim in type.dims)
    if shape == wanted:
        return 1
    if not wanted or len(shape) != len(wanted) or shape[1:] != wanted[1:] or shape[0] % wanted[0]:
        return 0
    return shape[0] // wanted[0]


def draw_batch(function: Function, seed: int) -> Batches:
    """One batch drawn from a seed: standard normal numbers, indices that are in range, truth values."""
    types = _types(function)
    arrays = {name: _draw(name, type, _bound(name, function.body), seed) for name, type in types.items()}
    return Batches(types, arrays, 1)


def _draw(name: str, type: TensorType, bound: int, seed: int) -> Array:
    import numpy as np

    generator = np.random.default_rng([seed, crc32(name.encode())])
    shape = tuple(dim.size for dim in type.dims)
    numbers: Any = (
        generator.standard_normal(shape) if type.dtype in FLOATS else generator.integers(0, bound, shape)
    )
    return np.asarray(numbers).astype(numpy_dtype(np, type.dtype))


def _bound(name: str, body: Iterable[Equation]) -> int:
    """Integers are drawn below the smallest dimension that they index; below 2 where they index none."""
    uses = (
        eqn.attrs["dim"] for eqn in body if eqn.op in INDEXED_BY and any(v.name == name for v in eqn.operands)
    )
    return min((dim.size for dim in uses if isinstance(dim, Dim)), default=2)


def read_parameters(path: str, program: Program) -> dict[str, Array]:
    """Initial values by full name, of some parameters or all. Raises `CompileError` (E501, E503 to E505).

    A file that `--save` has written also holds the losses, which are passed over.
    """
    fitting = Fitting(path)
    declared = {parameter.name: parameter for parameter in program.parameters}
    values = {}
    for name, array in fitting.arrays.items():
        if name not in declared:
            _unknown(name, declared, fitting)
            continue
        type, span = declared[name].type, declared[name].span
        if array.shape != tuple(dim.size for dim in type.dims):
            fitting.misshaped("parameter", name, type, span)
        else:
            values[name] = fitting.converted("parameter", name, type, span)
    fitting.diagnostics.raise_if_errors()
    return values


def _unknown(name: str, declared: Iterable[str], fitting: Fitting) -> None:
    if name != "loss":
        near = nearest(name, declared)
        help = f"did you mean `{near}`?" if near else f"the model has {listed(declared)}"
        fitting.error(
            "E505", f"{fitting.path} has an array `{name}`, which is no parameter", whole(fitting.path), help
        )
