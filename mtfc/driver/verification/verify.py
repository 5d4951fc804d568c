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

The dtype of each pending sum is checked where a collective completes it. Sums of f16 overflow where those of f32 do not, so f16
terms are sent in f32. The gradient of a parameter is summed in the dtype that `reduce` states (`docs/precision.md`). Terms in
bf16 may be rounded before they are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import product
from typing import Any

import attrs
import numpy as np

from mtfc.backends.registry import BACKENDS
from mtfc.compiler.ir.core import Equation, Function, Program, Value, walk
from mtfc.compiler.ir.loops import region_of
from mtfc.compiler.ir.opdef import no_flops
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.driver.data.array_files import Arrays
from mtfc.driver.data.inputs import given_parameters
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.cases import PlacementCase
from mtfc.driver.loading.selection import Case, Selection
from mtfc.driver.loading.sources import Sources, known_as
from mtfc.driver.options import VerifyOptions
from mtfc.driver.running.execution import without_warnings
from mtfc.driver.verification import checks
from mtfc.driver.verification.exact_cases import elements, exact_cases, selections_of, verify_all_sizes
from mtfc.driver.verification.reference import CaseModules, Reference, in_wide_numbers, jax_gradients
from mtfc.driver.verification.results import (
    CaseResult,
    CheckResult,
    ExactCase,
    JaxGradients,
    StepCase,
    Verified,
)
from mtfc.driver.verification.special_numbers import KINDS, fewest
from mtfc.driver.verification.step_check import checked_step

MOST_ELEMENTS = 1 << 33
"""Number of elements, over all values of a model, up to which it is verified: hours."""

MOST_VIRTUAL_DEVICES = 64
"""JAX runs on real devices or on up to this many virtual ones. A larger mesh is skipped, and the result says so."""


def verify(
    options: VerifyOptions, sources: Sources, show: Callable[[CheckResult | str], object] = lambda _: None
) -> Verified:
    """Compare all cases with the undistributed program. Raises `CompileError`, `UsageError` and `Unavailable`.

    show: receives each result as soon as it is known, and of several models the name of each before its results.
    """
    if options.all_sizes:
        return verify_all_sizes(options, sources, show)
    found, known = list[CheckResult](), checks_of(options, sources)
    remade = checks.Remade("mtfc.driver.verification.verify:checks_of", (options,))
    has_several = len({check.blank.model for check in known}) > 1
    for result in checks.results(known, remade, options.budget):
        if has_several and (not found or found[-1].model != result.model):
            show(result.model)
        found.append(result)
        show(result)
    return Verified(found)


def checks_of(options: VerifyOptions, sources: Sources | None = None) -> Sequence[checks.Check]:
    """Return the checks of all models, the exact ones first. Raises `CompileError`, `UsageError` and `Unavailable`."""
    sources = sources or Sources()
    selections = [_fitting(each) for each in _selections(options, sources)]
    backends = (options.backend,) if options.backend else tuple(BACKENDS)
    cases = [case for each in selections for case in _cases(each)]
    models = [VerifiedModel(each, backends, options, partial(_start_jax, cases)) for each in selections]
    if options.data or options.params:  # report a mistake in these files before any check runs
        Reference.of(models[0].reference_program, models[0].given, options)
    steps = [each.step_check(sources) for each in models if each.selection.program.training]
    if options.step and not steps:
        file = options.file
        raise UsageError(f"`--step` checks training steps, and no chosen model of {file} has a `train` block")
    if options.step:
        return steps
    exact = [each.exact_check() for each in models if options.exact]
    return [*exact, *steps, *(check for each in models for check in each.float_checks())]


def _fitting(selection: Selection) -> Selection:
    """Return a selection for variants of its program, in other dtypes. Raises `CompileError` if a memory limit is too small.

    Raises `UsageError` for a model whose values one machine cannot compute many times over.
    """
    program = selection.program
    if (size := elements(program)) > MOST_ELEMENTS:
        raise UsageError(
            f"the values of {program.name} have {size:.1e} elements, and `verify` computes all of them on this "
            "machine, many times: take --all-sizes, or smaller sizes with --dim"
        )
    for case in selection.cases:
        if case.limit is not None:
            case.lower(program)
    return attrs.evolve(selection, cases=tuple(case.as_near() for case in selection.cases))


def _selections(options: VerifyOptions, sources: Sources) -> Sequence[Selection]:
    """Return every model of the file with its layouts; one model if an option speaks of one."""
    found = list(selections_of(options, sources, or_placement=True, or_multi_mesh=True))
    are_asked = options.choice.layout is None or not (found[0].cases or found[0].multi_mesh)
    return found if are_asked else [attrs.evolve(each, placements=()) for each in found]


@attrs.frozen(slots=False, eq=False)
class VerifiedModel:
    """One model of the file with the references that its cases are compared with.

    start_jax: makes JAX's devices.
    """

    selection: Selection
    backends: Sequence[str]
    options: VerifyOptions
    start_jax: Callable[[], None]

    @property
    def name(self) -> str:
        return self.selection.program.name

    @cached_property
    def given(self) -> Arrays:
        """Parameters from the user's file, the missing ones drawn. Raises `CompileError` where they do not fit."""
        options = self.options
        return dict(
            given_parameters(options.params, options.params_partial, options.seed, self.reference_program)
        )

    @property
    def reference_program(self) -> Program:
        """The undistributed program, in the dtype that was asked for."""
        program, dtype = self.selection.program, self.options.dtype
        return everything_in(program, dtype) if dtype else program

    @property
    def reference(self) -> Reference:
        """The model in the dtypes of the file, or in the one that was asked for."""
        return self._reference_and_kind[0]

    @cached_property
    def _reference_and_kind(self) -> tuple[Reference, Callable[[Any], Any]]:
        """A reference all of whose results have finite numbers, if a kind of drawn inputs makes these, and the kind."""
        given, kinds = (self.reference_program, self.given, self.options), [*KINDS.values()]
        tried = (
            (Reference.of(*given, change), change) for change in kinds[: 1 if self.options.data else None]
        )
        return fewest(tried, lambda pair: len(pair[0].without_numbers()))

    @cached_property
    def wide(self) -> Reference | None:
        """The model in f64; None if `reference` is."""
        program = self.selection.program
        if self.options.dtype == "f64" or _is_wide(program):
            return None
        whole = {name: _in_f64(array) for name, array in self.given.items()}
        return Reference.of(everything_in(program, "f64"), whole, self.options, self._reference_and_kind[1])

    def exact_check(self) -> checks.Check:
        """Return the exact check of the gradients, of each layout and of each placement."""
        chosen = self.selection
        given = chosen.program, chosen.cases, self.options.seed, chosen.multi_mesh, _placements(chosen)
        run = partial(exact_cases, *given)
        return self._check(f"exact check of {self.name}", ExactCase(self.name, "exact check"), run)

    def step_check(self, sources: Sources) -> checks.Check:
        """Return the comparison of the training step with the `train` block of the file."""
        choice, file = self.options.choice, known_as(self.options.file)

        def run() -> Iterator[CheckResult]:
            scope = self.selection.module.scope
            yield checked_step(self.wide or self.reference, file, sources.texts[file], choice, scope)

        return self._check(f"training step of {self.name}", StepCase(self.name), run)

    def float_checks(self) -> Iterator[checks.Check]:
        """Yield a check of each layout on each backend, those of several meshes too, and of each placement."""
        for case, backend in product(_cases(self.selection), self.backends):
            blank = CaseResult(self.name, case.mesh, case.layout, backend)
            run = partial(self._results, case, blank)
            yield self._check(f"{self.name}: {case.name} on {backend}", blank, run, backend)
        if "jax" in self.backends:
            what = f"the gradients of {self.name} in JAX"
            yield self._check(what, JaxGradients(self.name), self._jax_gradients, "jax")

    def _check(
        self, what: str, blank: CheckResult, run: Callable[[], Iterator[CheckResult]], backend: str = "numpy"
    ) -> checks.Check:
        """Return a check of a model. run: yields its results."""

        def results() -> Iterator[CheckResult]:
            if backend == "jax":
                self.start_jax()
            with without_warnings():
                yield from run()

        return checks.Check(what, results, blank, checks.seconds_for(elements(self.selection.program)))

    def _jax_gradients(self) -> Iterator[CheckResult]:
        """Compare the reference's gradients with those of JAX, in f64."""
        with in_wide_numbers("jax"):
            yield JaxGradients(self.name, jax_gradients(self.wide or self.reference))

    def _results(self, case: Case, blank: CaseResult) -> Iterator[CheckResult]:
        yield self._result(case, blank)

    def _result(self, case: Case, blank: CaseResult) -> CaseResult:
        """Return the result of a case on a backend: its arrays compared in plain, wide and special numbers.

        blank: the result so far.
        """
        backend = blank.backend
        if backend == "jax" and case.mesh.devices > MOST_VIRTUAL_DEVICES:
            most = f"more than the {MOST_VIRTUAL_DEVICES} devices that JAX is asked for"
            return attrs.evolve(blank, skipped=f"{case.mesh.devices} processors are {most}")
        if isinstance(case, PlacementCase) and backend == "numpy":
            compared, wide = self.reference.placed(case), self.wide.placed(case) if self.wide else {}
            return attrs.evolve(blank, compared=compared, wide=wide, **self._numberless)
        lowered = case.lowered(self.reference.program)
        sums = tuple(dict.fromkeys(wrong for each in lowered for wrong in wrong_sums(each)))
        with in_wide_numbers(backend):
            modules = CaseModules.of(case, self.reference, backend)
            compared = self.reference.compared(modules)
            special = dict(self.reference.compared_in_special(modules, backend))
        with in_wide_numbers(backend):
            wide = self.wide.compared(CaseModules.of(case, self.wide, backend)) if self.wide else {}
        found = attrs.evolve(blank, compared=compared, wide=wide, special=special, sums=sums)
        return attrs.evolve(found, **self._numberless)

    @cached_property
    def _numberless(self) -> Mapping[str, Any]:
        """The results that are not finite in places, and those that are not finite wholly, as fields of a `CaseResult`."""
        not_finite = self.reference.names(lambda each: not each.is_finite)
        return {"not_finite": not_finite, "without_numbers": self.reference.without_numbers()}


def _in_f64(array: Any) -> Any:
    numbers = np.asarray(array)
    return numbers if numbers.dtype.kind in "biu" else numbers.astype(np.float64)


def _is_wide(program: Program) -> bool:
    """True if a program computes in f64 alone."""
    values = [a.value for f in program.functions for a in f.arguments if a.role != "input"]
    values += [v for f in program.functions for eqn in walk(f.body) for v in eqn.results]
    precision = program.training.precision if program.training else None
    return precision is None and {v.type.dtype for v in values} & FLOATS == {"f64"}


def _cases(selection: Selection) -> tuple[Case, ...]:
    return (*selection.cases, *selection.multi_mesh, *_placements(selection))


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


# The dtypes of sums


def wrong_sums(program: Program) -> Iterator[str]:
    """Yield a text for each pending sum of a lowered program that is completed in a wrong dtype."""
    asked = program.training.reduce if program.training else None
    for function in program.functions:
        for eqn in filter(_completes, walk(function.body)):
            if asked != "f16":
                yield from (f"sum {v.name} in f16" for v in eqn.operands if v.type.local_dtype == "f16")
        if function.name == "step" and asked is not None:
            for eqn in _sums_of_gradients(function):
                narrow = (v for v in eqn.operands if ITEM_BYTES[v.type.local_dtype] < ITEM_BYTES[asked])
                yield from (f"sum {v.name} in {v.type.dtype}, and not in {asked}" for v in narrow)


def _completes(eqn: Equation) -> bool:
    """True for a collective that completes a pending sum of floats."""
    first, result = (eqn.operands or eqn.results)[0].type, eqn.results[0].type
    is_sum = first.reduction == "sum" and len(result.pending) < len(first.pending)
    return has_trait(eqn, "placement") and is_sum and first.dtype in FLOATS


def _sums_of_gradients(step: Function) -> Iterator[Equation]:
    """Yield the collectives that complete gradients: those between a dot or sum of the backward pass and the update."""
    made = {value: eqn for eqn in walk(step.body) for value in eqn.results}
    waiting = [v for eqn in step.body if eqn.stage == "update" for v in eqn.operands]
    seen = set[Value]()
    while waiting:
        value = waiting.pop()
        eqn = made.get(value)
        if eqn is None or eqn.stage == "forward" or value in seen:
            continue
        seen.add(value)
        if eqn.regions:
            waiting.append(region_of(eqn).outputs[eqn.results.index(value)].value)
        elif _hands_on(eqn):
            waiting += eqn.operands
            if _completes(eqn):
                yield eqn


def _hands_on(eqn: Equation) -> bool:
    """True for a collective, a cast, an addition, or an op that only moves elements."""
    moves = OPS[eqn.op].flops is no_flops and bool(eqn.operands)
    return moves or has_trait(eqn, "cast", "add", "placement")
