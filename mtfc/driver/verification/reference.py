"""Compare a layout on a backend with the undistributed program.

The reference results come from the interpreter, on the program before any pass but differentiation. Three training steps run in
a row: each step starts from the parameters and the optimizer state of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.backends.common.devices import setting_kept
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.training_flag import asks_for_training
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.bind_training import BindTraining
from mtfc.compiler.passes.mixed_precision import MixedPrecision, everything_in
from mtfc.compiler.passes.pipelines import run as run_passes
from mtfc.driver.data.array_files import Arrays
from mtfc.driver.data.inputs import Batches, draw_batch, read_batches
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED, LayoutOnMesh
from mtfc.driver.options import VerifyOptions
from mtfc.driver.running.execution import Session, load
from mtfc.driver.verification.agreement import difference, is_rounding, judged, magnitude, tolerance_of
from mtfc.driver.verification.sensitivity import NOISE, RUNS, SPREAD, Noise, SplitStep
from mtfc.reports.verification_report import CaseResult, Part, largest

if TYPE_CHECKING:
    from mtfc.frontend.layouts.placements import DeclaredPlacement

MOST_VIRTUAL_DEVICES = 64
"""JAX runs on real devices or on up to this many virtual ones. A larger mesh is skipped, and the result says so."""

STEPS = 3
"""Number of training steps compared: the second step reads the state of the first, the third shows the state of the second."""

BOTH = ("step", "gradients")
"""The functions that differentiation adds for the comparison."""


@attrs.frozen
class Reference:
    """The undistributed program with its batches, and its expected results."""

    program: Program
    differentiated: Program
    batches: Batches
    given: Arrays
    seed: int
    expected: Mapping[Part, Arrays]
    tolerance: float

    @classmethod
    def of(cls, program: Program, given: Arrays, options: VerifyOptions) -> Reference:
        """Run the undistributed program. `given` has values of parameters. Raises `CompileError` where data does not fit."""
        from mtfc.backends.interpreter import interpret

        forward = program.function("forward")
        number = STEPS * program.training.accumulate if program.training else 1
        batches = (
            read_batches(options.data, forward) if options.data else draw_batch(forward, options.seed, number)
        )
        alone = LayoutOnMesh(ONE_DEVICE, UNDISTRIBUTED)
        parameters = Session.start(load(alone.lower(program), "numpy"), options.seed, given).parameters()
        differentiated = run_passes(program, (MixedPrecision(), *map(Differentiate, BOTH)))
        results = interpret(
            differentiated.function("gradients"), differentiated, {**batches[0], **parameters}
        )
        expected = {**_parts(results, program), "parameters": parameters}
        if asks_for_training(forward):
            apart = run_passes(program, (MixedPrecision(), BindTraining()))
            outputs = interpret(apart.function("forward"), apart, {**batches[0], **parameters})
            expected["outputs"] = {**expected["outputs"], **_in_evaluation(outputs)}
        if differentiated.has_function("step"):
            step = partial(interpret, differentiated.function("step"), differentiated)
            expected["training"] = _interpreted_training(differentiated, batches, parameters, step)
        tolerance = tolerance_of((differentiated,), options.dtype)
        return cls(program, differentiated, batches, given, options.seed, expected, tolerance)

    def compared(self, case: LayoutOnMesh, backends: Iterable[str]) -> Iterator[CaseResult]:
        """Yield the result of each backend for the program under a layout."""
        lowered = case.lower(self.program, of="+".join(BOTH))
        for backend in backends:
            if backend == "jax" and case.mesh.devices > MOST_VIRTUAL_DEVICES:
                most = f"more than the {MOST_VIRTUAL_DEVICES} devices that JAX is asked for"
                yield CaseResult(
                    case.mesh, case.layout, backend, {}, skipped=f"{case.mesh.devices} processors are {most}"
                )
            else:
                yield self._compared(case, lowered, backend)

    def placed(self, placement: DeclaredPlacement) -> CaseResult:
        """Return the result of the program's operators under a placement, on NumPy. Raises `CompileError`."""
        arrays = {**self.batches[0], **self.expected["parameters"]}
        outputs, gradients = _run_placed(placement, self.program, arrays)
        case = LayoutOnMesh(Mesh("devices", (("all", placement.devices),)), Layout(placement.name))
        result = self._judged(case, "numpy", {"outputs": outputs, "gradients": gradients})
        return attrs.evolve(result, placement=placement)

    def noise_of(self, result: CaseResult) -> float | None:
        """Return the gradient noise that moves undistributed training as far as the case differs; None if the case is wrong.

        See `sensitivity.py`.
        """
        program, errors = self.differentiated, result.errors["training"]
        apart = (error for name, error in result.errors["gradients"].items() if name in errors)
        noise = Noise(self.seed, NOISE * max(apart, default=0.0))
        step = partial(SplitStep.of(program.function("step")).interpret, program, noise=noise)
        arguments, expected = (self.batches, self.expected["parameters"], step), self.expected["training"]
        runs = [_interpreted_training(program, *arguments) for _ in range(RUNS)]
        for name, error in errors.items():
            spread = max(difference(run[name], expected[name]) for run in runs)
            if not error <= max(SPREAD * spread, self.tolerance * magnitude(expected[name])):
                return None
        return noise.size

    def _compared(self, case: LayoutOnMesh, lowered: Program, backend: str) -> CaseResult:
        module = load(lowered, backend)
        drawn = Session.start(module, self.seed, self.given).parameters()
        session = Session.start(module, self.seed, self.expected["parameters"])
        actual = {**_parts(session.evaluate("gradients", self.batches[0]), self.program), "parameters": drawn}
        if asks_for_training(self.program.function("forward")):
            evaluated = _in_evaluation(session.evaluate("forward", self.batches[0]))
            actual["outputs"] = {**actual["outputs"], **evaluated}
        if "training" in self.expected:
            actual["training"] = _training(session, self.batches, _accumulate(self.program))
        return self._judged(case, backend, actual)

    def _judged(self, case: LayoutOnMesh, backend: str, actual: Mapping[Part, Arrays]) -> CaseResult:
        errors = {
            part: {name: difference(array, self.expected[part][name]) for name, array in arrays.items()}
            for part, arrays in actual.items()
        }
        return judged(case, backend, errors, self.expected, self.tolerance)


def _run_placed(placement: DeclaredPlacement, program: Program, arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Run a program's operators on the devices of a placement, on NumPy. Raises `CompileError` (E317, E319).

    Return outputs, and gradients of parameters, by name; without training there are no gradients.
    """
    from mtfc.backends.numpy.placement_runner import execute
    from mtfc.compiler.diagnostics import Diagnostics
    from mtfc.compiler.passes.pipelines import simplification
    from mtfc.compiler.search.placement.operators.cotangent_flow import cotangent_flow
    from mtfc.compiler.search.placement.placement_search import operators_of
    from mtfc.frontend.layouts.placements import strategy_of

    graph = operators_of(run_passes(program, simplification()))
    found = execute(cotangent_flow(graph), strategy_of(placement, graph, Diagnostics()), arrays)
    return dict(found.outputs), dict(found.gradients)


def _accumulate(program: Program) -> int:
    return program.training.accumulate if program.training else 1


def _parts(results: Arrays, program: Program) -> dict[Part, Arrays]:
    """Split the results of `gradients` into outputs and gradients; a gradient goes by the name of its value."""
    outputs = [output.name for output in program.function("forward").handed_out]
    gradients = {name.removeprefix("d_"): array for name, array in results.items() if name not in outputs}
    return {"outputs": {name: results[name] for name in outputs}, "gradients": gradients}


def _in_evaluation(outputs: Arrays) -> Arrays:
    """Rename the outputs of `forward`, which `training` makes differ from the outputs of `gradients`."""
    return {f"{name} in evaluation": array for name, array in outputs.items()}


# Training


def _training(session: Session, batches: Batches, accumulate: int) -> dict[str, Any]:
    """Return parameters and optimizer state after each step of the session, stacked."""
    after = []
    for number in range(STEPS):
        session.train(batches.step(number, accumulate), number)
        after.append({**session.parameters(), **session.optimizer_state()})
    return _stacked(after)


def _interpreted_training(
    program: Program, batches: Batches, parameters: Arrays, run: Callable[[Arrays], Arrays]
) -> dict[str, Any]:
    """Return parameters and optimizer state after each step of the undistributed program, stacked; `run` executes a step."""
    step, after = program.function("step"), []
    known = {**parameters, **_initial_state(step)}
    numbers = [argument.value.name for argument in step.arguments if argument.role == "step"]
    for number in range(STEPS):
        batch = batches.step(number, _accumulate(program))
        results = run({**batch, **known, **dict.fromkeys(numbers, number)})
        known = {
            output.updates: results[output.name] for output in step.outputs if output.updates is not None
        }
        after.append(known)
    return _stacked(after)


def _initial_state(step: Function) -> dict[str, Any]:
    import numpy as np

    states = (argument for argument in step.arguments if argument.role == "state")
    return {
        state.value.name: np.full([dim.size for dim in state.value.type.dims], state.initial)
        for state in states
    }


def _stacked(after: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import numpy as np

    return {name: np.stack([np.array(each[name]) for each in after]) for name in after[0]}


# In f64


@attrs.frozen(slots=False)
class Exact:
    """The same program in f64, with its undistributed results on demand."""

    program: Program
    given: Arrays
    options: VerifyOptions
    rounded: Reference

    @cached_property
    def reference(self) -> Reference:
        options = attrs.evolve(self.options, dtype="f64")
        return Reference.of(everything_in(self.program, "f64"), self.given, options)

    def settled(self, result: CaseResult) -> CaseResult:
        """Return a doubtful result as f64 judges it. Agreement in f64 proves rounding; otherwise noise may explain wrong
        training.
        """
        if not result.is_doubtful:
            return result
        again = None if self.options.dtype else self._again(result)
        if again is not None and is_rounding(result, again):
            return attrs.evolve(result, wrong=(), in_f64=max(largest(again.errors).values()))
        if not result.is_training_alone or (noise := self.rounded.noise_of(result)) is None:
            return result
        return attrs.evolve(result, wrong=(), noise=noise)

    def _again(self, result: CaseResult) -> CaseResult:
        # a module in f64 turns on 64-bit numbers for the whole process
        with setting_kept("jax_enable_x64") if result.backend == "jax" else nullcontext():
            if result.placement:
                return self.reference.placed(result.placement)
            (again,) = self.reference.compared(LayoutOnMesh(result.mesh, result.layout), (result.backend,))
            return again
