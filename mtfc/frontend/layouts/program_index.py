"""Index the tensors, names and equations of a program for the checks of layouts; one index serves all layouts."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import attrs

from mtfc.compiler.cost.sizes import UNDISTRIBUTED
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Equation, Program, Role, Value
from mtfc.compiler.ir.loops import carried, executed, region_of
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.contraction import reduced_dims
from mtfc.compiler.ir.types import TensorType
from mtfc.compiler.records import frozen

HEAVY = 100
"""An einsum is heavy if it does at least 1/HEAVY of the work of all einsums."""


@frozen
class Tensor:
    """A value of the program.

    span: the place where the value is made. path: the user's name for the value. role: its role if it is an argument.
    """

    type: TensorType
    span: Span | None
    path: str | None
    role: Role | None

    @property
    def place(self) -> Span | None:
        """The place in the main file where the value is made: for a function of another file, the call of the function."""
        return self.span and in_main_file(self.span)

    @property
    def shown(self) -> str:
        return f"`{self.path}`" if self.path else "this value"


def in_main_file(span: Span) -> Span:
    """Return a place in the main file: the place itself, or the innermost call in that file that led to the place."""
    return attrs.evolve(span.inside(span.inside(None).file), call=None)


Shapes = dict[tuple[str, ...], list[Tensor]]
"""Tensors by their dimensions: a layout splits tensors with the same dimensions alike."""


def by_shape(tensors: Iterable[Tensor]) -> Shapes:
    """Return tensors by the names of their dimensions."""
    shapes: Shapes = {}
    for tensor in tensors:
        shapes.setdefault(tensor.type.names, []).append(tensor)
    return shapes


NamedTargets = Callable[[], Mapping[str, Tensor]]
"""Returns the layout targets that the compiler names, such as equations of the step, as tensors with their dimensions.

The call takes a while: it compiles the program.
"""


@frozen(slots=False)
class ProgramIndex:
    """Tensors, names and equations of `forward`; `find_targets` returns the layout targets that the compiler names."""

    program: Program
    find_targets: NamedTargets = dict

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors of the forward pass: arguments, results, and results of loops."""
        forward = self.program.function("forward")
        arguments = (Tensor(a.value.type, a.span, a.value.name, a.role) for a in forward.arguments)
        results = (Tensor(v.type, eqn.span, eqn.path, None) for eqn in self.equations for v in eqn.results)
        handed_out = (
            Tensor(value.type, eqn.span, output.name, None)
            for eqn in self.loops
            for value, output in zip(eqn.results, region_of(eqn).outputs, strict=True)
        )
        return (*arguments, *results, *handed_out)

    def size(self, single: bool) -> int:
        """Return the number of checks of a layout: one for each shape and heavy equation, or for each tensor if it has rules for
        single values.
        """
        return 1 + (len(self.tensors) if single else len(self.shapes) + len(self.heavy))

    @cached_property
    def shapes(self) -> Shapes:
        return by_shape(self.tensors)

    @cached_property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.role == "parameter")

    @cached_property
    def stored(self) -> Shapes:
        """The parameters by shape."""
        return by_shape(self.parameters)

    @cached_property
    def by_path(self) -> dict[str, list[Tensor]]:
        """The values of each variable; a variable that is rebound has several."""
        found: dict[str, list[Tensor]] = {}
        for tensor in self.tensors:
            if tensor.path:
                found.setdefault(tensor.path, []).append(tensor)
        return found

    @cached_property
    def layout_targets(self) -> Mapping[str, Tensor]:
        """The layout targets that the compiler names."""
        return self.find_targets()

    def of_path(self, path: str) -> list[Tensor]:
        """Return the tensors that a `value` rule with this path is for: values of the user, else a name of the compiler."""
        if path in self.by_path:
            return self.by_path[path]
        return [self.layout_targets[path]] if path in self.layout_targets else []

    @cached_property
    def neighbours(self) -> dict[str, set[str]]:
        """For each dimension, itself and all dimensions that some tensor has beside it."""
        found: dict[str, set[str]] = {}
        for names in self.shapes:
            for name in names:
                found.setdefault(name, set()).update(names)
        return found

    @cached_property
    def equations(self) -> tuple[Equation, ...]:
        """All equations of the program and of loop bodies, without the loops themselves."""
        return tuple(eqn for eqn, _ in self._executed if not eqn.regions)

    @cached_property
    def loops(self) -> tuple[Equation, ...]:
        return tuple(eqn for eqn, _ in self._executed if eqn.regions)

    @cached_property
    def _executed(self) -> tuple[tuple[Equation, int], ...]:
        """Every equation, with the number of its executions in one step."""
        return tuple(executed(self.program.function("forward").body))

    @cached_property
    def paths(self) -> dict[Value, str]:
        """The names of the user's values: arguments, variables, and the carried and yielded values of loops."""
        found = {a.value: a.value.name for a in self.program.function("forward").arguments}
        found |= {eqn.result: eqn.path for eqn in self.equations if eqn.path}
        for eqn in self.loops:
            found |= {a.value: a.value.name for a in carried(region_of(eqn))}
            found |= {v: o.name for v, o in zip(eqn.results, region_of(eqn).outputs, strict=True)}
        return found

    @cached_property
    def heavy(self) -> Mapping[Equation, int]:
        """The heavy einsums that sum over a dimension, with their FLOPs."""
        einsums = [(eqn, times) for eqn, times in self._executed if has_trait(eqn, "dot")]
        work = [times * OPS[eqn.op].flops(eqn, UNDISTRIBUTED) for eqn, times in einsums]
        total = sum(work)
        pairs = ((eqn, flops) for (eqn, _), flops in zip(einsums, work, strict=True))
        return {eqn: flops for eqn, flops in pairs if flops * HEAVY >= total and reduced_dims(eqn)}
