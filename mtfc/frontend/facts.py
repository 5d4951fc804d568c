"""What the checks of layouts need to know of a program: found once, however many layouts there are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Equation, Program, Role, Value, walk
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.contraction import reduced_dims
from mtfc.compiler.ir.types import Axes, Dim, TensorType

HEAVY = 100
"""An einsum is heavy when it does at least one part in so many of the work of all einsums."""


@attrs.frozen
class Tensor:
    """A value of the program: its type, where it is made, the user's name for it, and its role if it is an argument."""

    type: TensorType
    span: Span | None
    path: str | None
    role: Role | None

    @property
    def shown(self) -> str:
        return f"`{self.path}`" if self.path else "this value"


Shapes = dict[tuple[str, ...], list[Tensor]]
"""Tensors by their dimensions: those that have the same are alike to a layout."""


def by_shape(tensors: Iterable[Tensor]) -> Shapes:
    shapes: Shapes = {}
    for tensor in tensors:
        shapes.setdefault(tensor.type.names, []).append(tensor)
    return shapes


class Undistributed:
    """Sizes of whole tensors."""

    def dim(self, dim: Dim, axes: Axes) -> int:
        return dim.size

    def elements(self, type: TensorType) -> int:
        return type.size


@attrs.frozen(slots=False)
class Facts:
    """Of `forward`."""

    program: Program

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        forward = self.program.function("forward")
        arguments = (Tensor(a.value.type, a.span, a.value.name, a.role) for a in forward.arguments)
        results = (Tensor(v.type, eqn.span, eqn.path, None) for eqn in self.equations for v in eqn.results)
        return (*arguments, *results)

    @cached_property
    def shapes(self) -> Shapes:
        return by_shape(self.tensors)

    @cached_property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role == "parameter")

    @cached_property
    def stored(self) -> Shapes:
        """The parameters."""
        return by_shape(self.parameters)

    @cached_property
    def by_path(self) -> dict[str, list[Tensor]]:
        """The values of each variable: several, where it is rebound."""
        found: dict[str, list[Tensor]] = {}
        for tensor in self.tensors:
            if tensor.path:
                found.setdefault(tensor.path, []).append(tensor)
        return found

    @cached_property
    def neighbours(self) -> dict[str, set[str]]:
        """For each dimension, itself and those that some tensor has beside it."""
        found: dict[str, set[str]] = {}
        for names in self.shapes:
            for name in names:
                found.setdefault(name, set()).update(names)
        return found

    @cached_property
    def equations(self) -> tuple[Equation, ...]:
        return tuple(walk(self.program.function("forward").body))

    @cached_property
    def paths(self) -> dict[Value, str]:
        """The values that the user has named: arguments and variables."""
        arguments = {a.value: a.value.name for a in self.program.function("forward").arguments}
        return arguments | {eqn.result: eqn.path for eqn in self.equations if eqn.path}

    @cached_property
    def einsums(self) -> tuple[Equation, ...]:
        return tuple(eqn for eqn in self.equations if eqn.op == "einsum")

    @cached_property
    def heavy(self) -> tuple[Equation, ...]:
        """The contractions that do a good part of the work."""
        work = [OPS[eqn.op].flops(eqn, Undistributed()) for eqn in self.einsums]
        total = sum(work)
        pairs = zip(self.einsums, work, strict=True)
        return tuple(eqn for eqn, flops in pairs if flops * HEAVY >= total and reduced_dims(eqn))
