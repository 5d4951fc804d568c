"""Micro-batches: the model's equations several times in one step, each time on one slice of the inputs."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Program, Value
from mtfc.compiler.ir.rewrite import Substitution
from mtfc.compiler.ir.types import Dim, TensorType


def with_micro_dims(program: Program, number: int) -> tuple[Program, Dim, Dim]:
    """The program with two more dimensions: one that counts micro-batches, and one of size 1 for a slice of it."""
    taken = Names(program.dims)
    micro, single = Dim(taken.fresh("micro"), number), Dim(taken.fresh("micro_1"), 1)
    return attrs.evolve(program, dims={**program.dims, micro.name: micro, single.name: single}), micro, single


def stacked(argument: Argument, micro: Dim) -> Argument:
    """An input with `micro` as its first dimension; a parameter as it is."""
    if argument.role != "input":
        return argument
    old = argument.value
    return attrs.evolve(argument, value=Value(old.name, TensorType(old.type.dtype, (micro, *old.type.dims))))


def copies(
    b: Builder, forward: Function, arguments: tuple[Argument, ...], micro: Dim, single: Dim
) -> Iterator[Substitution]:
    """Append `forward` once for each micro-batch of the stacked arguments; gives the map from old values to the copy's.

    What the caller appends between two copies stands between them.
    """
    pairs = [
        (old.value, new.value)
        for old, new in zip(forward.arguments, arguments, strict=True)
        if new is not old
    ]
    span = b.span
    for number in range(micro.size):
        b.span, b.stage = span, "forward"
        inputs = {old: _slice(b, new, old, number, single) for old, new in pairs}
        yield _copy(b, forward, Substitution(inputs))


def _slice(b: Builder, whole: Value, original: Value, number: int, single: Dim) -> Value:
    """Micro-batch `number` of a stacked input, with the input's own dimensions."""
    part = b("slice", whole, source=whole.type.dims[0], target=single, start=number, stride=1)
    return b("reshape", part, dims=original.type.dims, name=original.name)


def _copy(b: Builder, forward: Function, new: Substitution) -> Substitution:
    for eqn in forward.body:
        for value in eqn.results:
            new[value] = Value(b.names.fresh(value.name), value.type)
        b.append(new.equation(eqn))
    return new
