"""The diagnostics of a file, and the advice of a faster layout, for `mtfc check`.

Predict in little time how much faster another layout would be, for the advice of `mtfc check`.

A small program is compiled under each layout, and its step is simulated as `mtfc simulate` does. For a large program, only the
equation under advice is compiled, with its gradients, in milliseconds. That part has the FLOPs, the bytes, and the collectives
that the equation's own dimensions cause.

All diagnostics of a file, for `mtfc check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.cost.step_time import step_time
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value, walk
from mtfc.compiler.ir.loops import pairs
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipelines import differentiation, partitioning
from mtfc.compiler.records import define
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.frontend.layouts.legality import MACHINE, Faster

if TYPE_CHECKING:
    from mtfc.frontend.layouts.declared_layouts import MultiMeshLayout
    from mtfc.frontend.layouts.program_index import Tensor
    from mtfc.placements.declarations import DeclaredPlacement


MOST_EQUATIONS = 40
"""A program with more equations before differentiation is large."""

MOST_PRICES = 24
"""Maximum number of programs that one run of the command compiles."""


def predictor() -> Faster:
    """Return the predictor for the default machine."""
    return _Predictor(find_hardware(MACHINE, {}))


@define
class _Predictor:
    """Predicts speedups. `left` is the number of programs that may still be compiled."""

    hardware: Hardware
    left: int = MOST_PRICES

    def __call__(
        self, program: Program, eqn: Equation, mesh: Mesh, layout: Layout, others: Sequence[Layout]
    ) -> Sequence[float] | None:
        """Return the factors by which other layouts would make an equation faster; None after too many compiled programs.

        Of a large program only the equation alone is simulated.
        """
        if len(others) >= self.left or Topology.of(mesh, self.hardware).overfull():
            return None
        self.left -= 1 + len(others)
        size = sum(1 for _ in walk(program.function("forward").body))
        small = size <= MOST_EQUATIONS
        smaller, of = (program, "step") if small else (_alone(program, eqn), "gradients")
        alike = None if layout.pipelines else _run(smaller, differentiation(of))
        wholes = (
            attrs.evolve(alike, mesh=mesh, layout=each)
            if alike
            else _run(attrs.evolve(smaller, mesh=mesh, layout=each), differentiation(of))
            for each in (layout, *others)
        )
        before, *after = (self._seconds(each, mesh) for each in wholes)
        return [before / each if each else 1.0 for each in after]

    def _seconds(self, program: Program, mesh: Mesh) -> float:
        """Return the time of a step; the gradients of the program depend on the layout if a loop is a pipeline."""
        last = attrs.evolve(program, functions=program.functions[-1:])
        (function,) = _run(last, partitioning()).functions
        return step_time(function, mesh, self.hardware).seconds


def _run(program: Program, passes: Iterable[Pass]) -> Program:
    """Run the passes without the verifier, which takes as long as the passes."""
    for each in passes:
        program = each.run(program)
    return program


def _alone(program: Program, eqn: Equation) -> Program:
    """Return a program of one equation; parameters of the whole program are parameters there."""
    parameters = set(_parameters(program.function("forward")))
    dtype = program.training.precision[1] if program.training and program.training.precision else None
    given = {value: _argument(value, value in parameters, dtype) for value in eqn.operands}
    result = Value(eqn.result.name, eqn.result.type.with_dtype(dtype or eqn.result.type.dtype))
    operands = tuple(given[value].value for value in eqn.operands)
    body = (attrs.evolve(eqn, operands=operands, results=(result,)),)
    forward = Function("forward", tuple(given.values()), body, (Output(result.name, result),))
    return Program(program.name, program.dims, (), (forward,))


def _argument(value: Value, is_parameter: bool, dtype: str | None) -> Argument:
    type = value.type.with_dtype(dtype or value.type.dtype)
    return Argument(Value(value.name, type), "parameter" if is_parameter else "input")


def _parameters(forward: Function) -> Iterator[Value]:
    """Yield the parameters, and the arguments that stand for parameters inside of loops."""
    found = {each.value for each in forward.arguments if each.role == "parameter"}
    yield from found
    for eqn in walk(forward.body):
        for value, argument in pairs(eqn) if eqn.regions else ():
            if value in found:
                found.add(argument.value)
                yield argument.value


def check_file(path: str, choice: Choice, sources: Sources) -> list[Diagnostic]:
    """Return all diagnostics of a file; a file that is not text has one. Raises `UsageError` if the file cannot be read."""
    if choice.source is not None:
        return _check_source_program(path, choice, sources)
    try:
        file = sources.read(path)
    except CompileError as error:
        return list(error.diagnostics)
    return check_source(file, choice, sources)


def check_source(file: str, choice: Choice, sources: Sources) -> list[Diagnostic]:
    """Return all diagnostics of a file whose text is in `sources`."""
    from mtfc.frontend.check import check

    sources.add_choice(choice)
    text = sources.texts[file]
    given = choice.dims, choice.model, choice.layout, choice.mesh, sources.neighbour
    return list(check(text, file, *given, _layout_targets, choice.settings, _predictor, *_CHECKS))


def _check_source_program(path: str, choice: Choice, sources: Sources) -> list[Diagnostic]:
    """Return the diagnostics of a program that is not read from a .mtf file, and of its layout."""
    from mtfc.driver.loading.selection import select

    assert choice.source is not None
    try:
        select(path, choice, sources)
    except CompileError as error:
        return list(error.diagnostics)
    return list(choice.source.warnings)


def verdict(diagnostics: Iterable[Diagnostic]) -> str:
    """Return `2 errors, 1 warning`."""
    found = [each.severity for each in diagnostics]
    counts = {severity: found.count(severity) for severity in ("error", "warning")}
    texts = [f"{count} {severity}{'s' if count > 1 else ''}" for severity, count in counts.items() if count]
    return ", ".join(texts) or "no errors"


def _layout_targets(program: Program, mesh: Mesh, layout: Layout) -> Mapping[str, Tensor]:
    """Import the passes late: only a layout with names that no line of the file has needs them."""
    from mtfc.driver.loading.layout_targets import layout_targets

    return layout_targets(program, mesh, layout)


def _placement_errors(program: Program, placements: Iterable[DeclaredPlacement]) -> Iterable[Diagnostic]:
    """Import the search late: only a placement needs the operators of a model."""
    from mtfc.compiler.passes.pipelines import run, simplification
    from mtfc.placements.declarations import strategy_of
    from mtfc.placements.operators.operator_graph import operators_of

    found = Diagnostics()
    try:
        graph = operators_of(run(program, simplification()))
    except CompileError as error:
        return error.diagnostics
    for each in placements:
        try:
            strategy_of(each, graph, found)
        except CompileError:
            continue
    return found


def _multi_mesh_errors(
    programs: Sequence[Program], layouts: Sequence[MultiMeshLayout]
) -> Iterable[Diagnostic]:
    """Import the labels of meshes late: only a layout of several meshes needs them."""
    from mtfc.driver.loading.cases import check_multi_mesh

    return check_multi_mesh(programs, layouts)


_CHECKS = (_placement_errors, _multi_mesh_errors)


def _predictor() -> Faster:
    """Import the simulator late: only a wasteful layout needs predictions."""

    return predictor()
