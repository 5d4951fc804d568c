"""Comparison of every layout on every backend with the undistributed program, for `mtfc verify`.

The reference is the interpreter, on the program before anything is split. Each case starts from the same inputs and parameters.
The comparison covers outputs, gradients of all floating-point inputs and parameters, and drawn parameters. If the file trains,
the comparison covers parameters and optimizer state after each of three training steps, too. Placements are cases on NumPy,
compared in outputs and gradients of parameters.

A model that asks for `training` is compared in both modes: gradients in training, `forward` outside of training.

Rounding grows through some networks. If two pixels are nearly equal, layouts may disagree on the larger one, and then on
whole gradients. Batch normalization over few numbers multiplies differences. So a case whose f32 difference exceeds the
tolerance runs again in f64. If the case agrees in f64, the difference was rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import attrs

from mtfc.backends.registry import BACKENDS
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.driver.data.array_files import Arrays
from mtfc.driver.data.inputs import given_parameters
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.selection import LayoutOnMesh, Selection, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import VerifyOptions
from mtfc.driver.running.execution import without_warnings
from mtfc.driver.verification.reference import MOST_VIRTUAL_DEVICES, Exact, Reference
from mtfc.reports.verification_report import CaseResult, verdict_text, verification_json


@attrs.frozen
class VerifiedModel:
    """The results of all cases, and the largest relative difference that passes for rounding."""

    results: Sequence[CaseResult]
    tolerance: float

    @property
    def ok(self) -> bool:
        """True if no result is wrong."""
        return not any(result.wrong for result in self.results)

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        return verification_json(self.results, self.ok, self.tolerance)

    def verdict(self) -> str:
        """Return a line with the number of cases that agree."""
        return verdict_text(self.results)


def verify(
    options: VerifyOptions, sources: Sources, show: Callable[[CaseResult], object] = lambda _: None
) -> VerifiedModel:
    """Compare all cases with the undistributed program. Raises `CompileError`, `UsageError` and `Unavailable`.

    show: receives each result as soon as it is known.
    """
    selection = select(options.file, options.choice, sources, every_layout=True, or_placement=True)
    backends = _backends(options, selection)
    if "jax" in backends:
        _start_jax(selection.cases)
    program = everything_in(selection.program, options.dtype) if options.dtype else selection.program
    given = dict(given_parameters(options.params, options.params_partial, options.seed, program))
    with without_warnings():
        return _compared(program, selection, backends, given, options, show)


def _compared(
    program: Program,
    selection: Selection,
    backends: Sequence[str],
    given: Arrays,
    options: VerifyOptions,
    show: Callable[[CaseResult], object],
) -> VerifiedModel:
    reference = Reference.of(program, given, options)
    exact = Exact(selection.program, given, options, reference)
    results = []
    compared = chain.from_iterable(reference.compared(case, backends) for case in selection.cases)
    are_asked = options.choice.layout is None or not selection.cases
    placements = selection.placements if are_asked and "numpy" in backends else ()
    placed = (reference.placed(placement) for placement in placements)
    for result in map(exact.settled, chain(compared, placed)):
        results.append(result)
        show(result)
    return VerifiedModel(results, reference.tolerance)


def _backends(options: VerifyOptions, selection: Selection) -> Sequence[str]:
    """Return the backends to compare. Raises `UsageError` for a placement on JAX."""
    if selection.cases:
        return (options.backend,) if options.backend else tuple(BACKENDS)
    if options.backend == "jax":
        raise UsageError("placements run on NumPy: no --backend jax")
    return ("numpy",)


def _start_jax(cases: Sequence[LayoutOnMesh]) -> None:
    """Make JAX's devices for the largest mesh, and raise the precision of dots. Raises `Unavailable`.

    JAX makes its devices once. By default it lets GPUs and TPUs round the operands of dots to 10 or 7 binary digits.
    """
    from mtfc.backends.common.devices import import_jax, reserve

    import_jax().config.update("jax_default_matmul_precision", "highest")
    reserve(
        max((case.mesh.devices for case in cases if case.mesh.devices <= MOST_VIRTUAL_DEVICES), default=1)
    )
