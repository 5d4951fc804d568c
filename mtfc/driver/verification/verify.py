"""Comparison of every layout on every backend with the undistributed program, for `mtfc verify`.

The reference is the interpreter, on the program before anything is split. Each case starts from the same inputs and parameters.
The comparison covers outputs, gradients of all floating-point inputs and parameters, and drawn parameters. If the file trains,
the comparison covers parameters, optimizer state and reports after each of three training steps, too. Placements are cases,
too: on JAX as layouts, on NumPy in outputs and gradients of parameters. Every model of the file is compared.

First, the exact check compares the NumPy module of each layout, and the operators of each placement on NumPy, with the
undistributed program over a finite field.

A case runs in the dtypes of its file and in f64, where hardly anything is rounded. `agreement.py` says what is rounding.
It also runs with special numbers: NaN, infinities, ties and indices out of range (`special_numbers.py`).

A model that asks for `training` is compared in both modes: gradients in training, `forward` outside of training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from mtfc.backends.registry import BACKENDS
from mtfc.compiler.activity import doing, each_of
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.types import FLOATS
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.driver.data.inputs import given_parameters
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.multi_mesh_case import MultiMeshCase
from mtfc.driver.loading.placement_case import PlacementCase
from mtfc.driver.loading.selection import Case, LayoutOnMesh, Selection, select, select_models
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import VerifyOptions
from mtfc.driver.running.execution import without_warnings
from mtfc.driver.verification.exact_cases import elements, exact_cases
from mtfc.driver.verification.reference import CaseModules, Reference, in_wide_numbers, jax_gradients
from mtfc.driver.verification.sum_dtypes import wrong_sums
from mtfc.reports.exact_report import ExactCase, exact_json
from mtfc.reports.verification_report import (
    NOUNS,
    CaseResult,
    Comparison,
    array_text,
    verdict_text,
    verification_json,
)

MOST_ELEMENTS = 1 << 33
"""Number of elements, over all values of a model, up to which it is verified: hours."""

MOST_VIRTUAL_DEVICES = 64
"""JAX runs on real devices or on up to this many virtual ones. A larger mesh is skipped, and the result says so."""


@attrs.frozen
class Verified:
    """The results of all cases. jax_gradients: model -> name -> comparison of a gradient of the reference with `jax.grad`.

    exact: the results of the exact check.
    """

    results: Sequence[CaseResult]
    jax_gradients: Mapping[str, Mapping[str, Comparison]]
    exact: Sequence[ExactCase] = ()

    @property
    def ok(self) -> bool:
        """True if no result is wrong."""
        cases = (*(not result.wrong for result in self.results), *(case.ok for case in self.exact))
        return all(cases) and not any(self._wrong_gradients())

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        return verification_json(self.results, self.ok, self.jax_gradients) | {
            "exact": exact_json(self.exact)
        }

    def verdict(self) -> str:
        """Return a line with the number of cases that agree, after the gradients that differ from those of JAX."""
        wrong = [case for case in self.exact if not case.ok]
        exact = [f"{len(wrong)} of {len(self.exact)} exact checks fail"] if wrong else []
        return "\n".join([*self._wrong_gradients(), *exact, verdict_text(self.results)])

    def _wrong_gradients(self) -> Iterator[str]:
        for arrays in self.jax_gradients.values():
            for name, each in arrays.items():
                if each.fault:
                    yield f"WRONG: jax.grad of the undistributed program differs\n{array_text(f'gradient {name}', each)}"


def verify(
    options: VerifyOptions,
    sources: Sources,
    show: Callable[[CaseResult | ExactCase], object] = lambda _: None,
) -> Verified:
    """Compare all cases with the undistributed program. Raises `CompileError`, `UsageError` and `Unavailable`.

    show: receives each result as soon as it is known.
    """
    selections = [_fitting(each) for each in _selections(options, sources)]
    backends = (options.backend,) if options.backend else tuple(BACKENDS)
    if "jax" in backends:
        cases: list[Sequence[Case]] = [(*each.cases, *each.multi_mesh) for each in selections]
        cases += [_placements(each) for each in selections]
        _start_jax([case for each in cases for case in each])
    results, gradients = list[CaseResult](), dict[str, Mapping[str, Comparison]]()
    exact = list[ExactCase]()
    with without_warnings():
        for selection in selections:
            model = VerifiedModel.of(selection, backends, options)
            if options.exact:
                placements = _placements(selection)
                for found in exact_cases(
                    selection.program, selection.cases, options.seed, selection.multi_mesh, placements
                ):
                    exact.append(found)
                    show(found)
            for result in model.results():
                results.append(result)
                show(result)
            if "jax" in backends:
                gradients[selection.program.name] = model.jax_gradients()
    return Verified(results, gradients, exact)


def _fitting(selection: Selection) -> Selection:
    """Return a selection for variants of its program, in other dtypes. Raises `CompileError` if a memory limit is too small."""
    _refuse_large(selection.program)
    for case in selection.cases:
        if case.limit is not None:
            case.lower(selection.program)
    return attrs.evolve(selection, cases=tuple(case.as_near() for case in selection.cases))


def _refuse_large(program: Program) -> None:
    """Raise `UsageError` for a model whose values one machine cannot compute many times over."""
    size = elements(program)
    if size > MOST_ELEMENTS:
        raise UsageError(
            f"the values of {program.name} have {size:.1e} elements, and `verify` computes all of them on this "
            "machine, many times: take --all-sizes, or smaller sizes with --dim"
        )


def _selections(options: VerifyOptions, sources: Sources) -> Sequence[Selection]:
    """Return every model of the file with its layouts; one model if an option speaks of one."""
    choice = options.choice
    if choice.model or choice.settings or options.data or options.params:
        found = [
            select(options.file, choice, sources, every_layout=True, or_placement=True, or_multi_mesh=True)
        ]
    else:
        found = list(select_models(options.file, choice, sources))
    are_asked = choice.layout is None or not (found[0].cases or found[0].multi_mesh)
    return found if are_asked else [attrs.evolve(each, placements=()) for each in found]


@attrs.frozen(slots=False, eq=False)
class VerifiedModel:
    """One model of the file with the references that its cases are compared with.

    program: the model in the dtypes of the file, or in the one that was asked for. wide: the model in f64; None if `program` is.
    """

    selection: Selection
    backends: Sequence[str]
    reference: Reference
    wide: Reference | None

    @classmethod
    def of(cls, selection: Selection, backends: Sequence[str], options: VerifyOptions) -> VerifiedModel:
        program = selection.program
        chosen = everything_in(program, options.dtype) if options.dtype else program
        is_wide = options.dtype == "f64" or _is_wide(program)
        given = dict(given_parameters(options.params, options.params_partial, options.seed, chosen))
        reference = Reference.of(chosen, given, options)
        if is_wide:
            return cls(selection, backends, reference, None)
        whole = {name: _in_f64(array) for name, array in given.items()}
        return cls(
            selection, backends, reference, Reference.of(everything_in(program, "f64"), whole, options)
        )

    @property
    def name(self) -> str:
        return self.selection.program.name

    def results(self) -> Iterator[CaseResult]:
        """Yield the result of each layout on each backend, those of several meshes too, and of each placement."""
        layouts: tuple[LayoutOnMesh | MultiMeshCase, ...] = (
            *self.selection.cases,
            *self.selection.multi_mesh,
        )
        for case in each_of(layouts, "layout"):
            lowered = case.lowered(self.reference.program)
            sums = tuple(dict.fromkeys(wrong for each in lowered for wrong in wrong_sums(each)))
            for backend in self.backends:
                with doing(f"{case.name} on {backend}"):
                    result = self._result(case, backend)
                yield attrs.evolve(result, sums=sums)
        for placed in each_of(_placements(self.selection), "placement"):
            if "numpy" in self.backends:
                yield self._on_numpy(placed)
            if "jax" in self.backends:
                yield attrs.evolve(self._result(placed, "jax"), placement=placed.placement)

    def jax_gradients(self) -> Mapping[str, Comparison]:
        """Compare the reference's gradients with those of JAX, in f64."""
        with doing("the gradients of JAX"), in_wide_numbers("jax"):
            return jax_gradients(self.wide or self.reference)

    def _result(self, case: Case, backend: str) -> CaseResult:
        if backend == "jax" and case.mesh.devices > MOST_VIRTUAL_DEVICES:
            most = f"more than the {MOST_VIRTUAL_DEVICES} devices that JAX is asked for"
            skipped = f"{case.mesh.devices} processors are {most}"
            return CaseResult(case.mesh, case.layout, backend, self.name, skipped=skipped)
        with in_wide_numbers(backend):
            modules = CaseModules.of(case, self.reference, backend)
            compared = self.reference.compared(modules)
            special = dict(self.reference.compared_in_special(modules, backend))
        with in_wide_numbers(backend):
            wide = self.wide.compared(CaseModules.of(case, self.wide, backend)) if self.wide else {}
        return CaseResult(
            case.mesh,
            case.layout,
            backend,
            self.name,
            compared,
            wide,
            special,
            len(special),
            not_finite=self._not_finite,
        )

    def _on_numpy(self, case: PlacementCase) -> CaseResult:
        return CaseResult(
            case.mesh,
            case.layout,
            "numpy",
            self.name,
            self.reference.placed(case),
            self.wide.placed(case) if self.wide else {},
            not_finite=self._not_finite,
            placement=case.placement,
        )

    @cached_property
    def _not_finite(self) -> tuple[str, ...]:
        return tuple(f"{NOUNS[part]} {name}" for part, name in self.reference.not_finite())


def _in_f64(array: Any) -> Any:
    import numpy as np

    numbers = np.asarray(array)
    return numbers if numbers.dtype.kind in "biu" else numbers.astype(np.float64)


def _is_wide(program: Program) -> bool:
    """True if a program computes in f64 alone."""
    values = [a.value for f in program.functions for a in f.arguments if a.role != "input"]
    values += [v for f in program.functions for eqn in walk(f.body) for v in eqn.results]
    precision = program.training.precision if program.training else None
    return precision is None and {v.type.dtype for v in values} & FLOATS == {"f64"}


def _placements(selection: Selection) -> tuple[PlacementCase, ...]:
    return tuple(PlacementCase(each, selection.program) for each in selection.placements)


def _start_jax(cases: Sequence[Case]) -> None:
    """Make JAX's devices for the largest mesh, and raise the precision of dots. Raises `Unavailable`.

    JAX makes its devices once. By default it lets GPUs and TPUs round the operands of dots to 10 or 7 binary digits.
    """
    from mtfc.backends.common.devices import import_jax, reserve

    import_jax().config.update("jax_default_matmul_precision", "highest")
    reserve(
        max((case.mesh.devices for case in cases if case.mesh.devices <= MOST_VIRTUAL_DEVICES), default=1)
    )
