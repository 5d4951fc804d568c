"""Compare a layout on a backend with the undistributed program.

The reference results come from the interpreter, on the program before any pass but differentiation. Three training steps run in
a row: each step starts from the parameters and the optimizer state of the step before. The program of a case is the one that
`run`, `train` and `compile` make; the gradients of all inputs and parameters come from a second program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from mtfc.backends.common.devices import setting_kept
from mtfc.backends.exact.check import call
from mtfc.compiler.activity import doing
from mtfc.compiler.ir.core import Function, Program, walk
from mtfc.compiler.ir.loops import has_condition
from mtfc.compiler.ir.training import asks_for_training
from mtfc.compiler.passes.autodiff.backward import with_differentiable_loops
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.bind_training import BindTraining
from mtfc.compiler.passes.mixed_precision import MixedPrecision
from mtfc.compiler.passes.pipelines import run as run_passes
from mtfc.driver.data.array_files import Array, Arrays
from mtfc.driver.data.inputs import Batches, draw_batch, read_batches, stacked
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED, Case, LayoutOnMesh
from mtfc.driver.options import VerifyOptions
from mtfc.driver.running.execution import Session, load, loaded, source
from mtfc.driver.verification.agreement import Expected, InfinityMarks, Limits, OtherRounding, OverflowMarks
from mtfc.driver.verification.results import NOUNS, Compared, Comparison, Part, worst
from mtfc.driver.verification.special_numbers import KINDS, SpecialDraw, has_convolution, special_draws

if TYPE_CHECKING:
    from mtfc.backends.interpreter import Evaluation
    from mtfc.driver.loading.cases import PlacementCase

STEPS = 3
"""Number of training steps compared: the second step reads the state of the first, the third shows the state of the second."""

ROUNDINGS = (OtherRounding(1, flushes=True, adds_in_order=True), OtherRounding(2), OtherRounding(3))
MORE_ROUNDINGS = tuple(
    OtherRounding(4 + i, units, adds_in_order=i % 2 == 0) for i, units in enumerate((1, 1, 1, 1, 2, 2, 4, 4))
)
"""The other roundings of every reference. A few runs may miss what happens in few orders only."""

MARKS = (OverflowMarks(math.nan), OverflowMarks(0.0), InfinityMarks())
"""The evaluations that show what special numbers leave open."""

Results = Iterable[tuple[Part, str, Array]]
"""Part, name and array of each result; a name may come twice, from two functions that compute the same."""

ExpectedArrays = Mapping[Part, Mapping[str, Expected]]


@attrs.define(slots=False, eq=False)
class ReferenceRuns:
    """The results of the undistributed program for some arguments, in as many evaluations as a comparison needs.

    stages: the evaluations of each stage. Results are compared in the first stage, those with a fault in the next one, too.
    """

    run: Callable[[Evaluation | None], Mapping[Part, Arrays]]
    limits: Limits
    stages: Sequence[Sequence[Evaluation]]
    _runs: list[Mapping[Part, Arrays]] = attrs.field(factory=list)
    _expected: list[ExpectedArrays] = attrs.field(factory=list)

    @property
    def expected(self) -> ExpectedArrays:
        """The expected arrays of the first stage."""
        return self.at_stage(0)

    def at_stage(self, number: int) -> ExpectedArrays:
        """Return what is expected of a layout after some stages of runs, which are computed when they are first asked for."""
        with doing("the undistributed program"):
            if not self._runs:
                self._runs.append(self.run(None))
            while len(self._expected) <= number:
                self._runs += map(self.run, self.stages[len(self._expected)])
                self._expected.append(self._of_runs())
        return self._expected[number]

    def _of_runs(self) -> ExpectedArrays:
        """Return the expected arrays of each part, with all runs of the reference and the limits of agreement."""
        first, *others = self._runs
        return {
            part: {
                name: Expected(
                    [array, *(run[part][name] for run in others if part in run)],
                    self.limits.for_array(array),
                )
                for name, array in arrays.items()
            }
            for part, arrays in first.items()
        }

    def judged(self, results: Results) -> Compared:
        """Compare results in the first stage, and those with a fault in the next stages."""
        results = list(results)
        found = _judged(results, self.expected)
        for number in range(1, len(self.stages)):
            faulty = {(part, n) for part, arrays in found.items() for n, each in arrays.items() if each.fault}
            if not faulty:
                break
            again = _judged([each for each in results if each[:2] in faulty], self.at_stage(number))
            found = {part: {**arrays, **again.get(part, {})} for part, arrays in found.items()}
        return found


@attrs.frozen(slots=False, eq=False)
class Reference:
    """The undistributed program with its batches, its parameters, and what is expected of each layout."""

    program: Program
    batches: Batches
    parameters: Arrays
    given: Arrays
    seed: int
    _last: dict[str, Any] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(
        cls,
        program: Program,
        given: Arrays,
        options: VerifyOptions,
        change: Callable[[Any], Any] = KINDS["mixed"],
    ) -> Reference:
        """Draw inputs and parameters. `given` has values of parameters. Raises `CompileError` where data does not fit.

        change: makes drawn floats of another kind.
        """
        forward = program.function("forward")
        number = STEPS * program.training.accumulate if program.training else 1
        drawn = partial(draw_batch, forward, options.seed, number, change)
        batches = read_batches(options.data, forward) if options.data else drawn()
        alone = LayoutOnMesh(ONE_DEVICE, UNDISTRIBUTED)
        parameters = Session.start(load(alone.lower(program), "numpy"), options.seed, given).parameters()
        return cls(program, batches, parameters, given, options.seed)

    def lowered(self, case: LayoutOnMesh) -> Program:
        """Return the program of one processor, with all gradients and the training step. The last one is kept."""
        if self._last.get("case") != case:
            self._last.update(case=case, program=case.lower(self.program, of="step+gradients"))
        program: Program = self._last["program"]
        return program

    @cached_property
    def runs(self) -> ReferenceRuns:
        """The results for drawn numbers."""
        return ReferenceRuns(self._run, self.limits, (ROUNDINGS[:1], ROUNDINGS[1:], MORE_ROUNDINGS))

    @cached_property
    def special(self) -> Sequence[tuple[SpecialDraw, ReferenceRuns]]:
        """Arguments with special numbers, and the results for them."""
        function = self.differentiated.function("gradients")
        draws = special_draws(function, {**self.batches[0], **self.parameters}, self.seed)
        stages = (ROUNDINGS[:1], (*ROUNDINGS[1:], *MARKS), MORE_ROUNDINGS)
        return [
            (draw, ReferenceRuns(partial(self._passes, draw.arguments), self.limits, stages))
            for draw in draws
        ]

    def names(self, of: Callable[[Expected], bool]) -> tuple[str, ...]:
        """Return the names of some results of the undistributed program."""
        parts = self.runs.expected.items()
        return tuple(
            f"{NOUNS[part]} {name}" for part, arrays in parts for name, each in arrays.items() if of(each)
        )

    def without_numbers(self) -> tuple[str, ...]:
        """Return the results that are NaN or infinite wholly in the undistributed program."""
        return self.names(lambda each: not each.has_numbers)

    def compared(self, modules: CaseModules) -> Compared:
        """Compare a case with drawn numbers."""
        return self.runs.judged(modules.results(self))

    def compared_in_special(self, modules: CaseModules, backend: str) -> Iterator[tuple[str, Compared]]:
        """Yield the comparison of a case for each draw with special numbers."""
        skips = backend == "jax" and has_convolution(self.differentiated.function("forward"))
        for draw, runs in self.special:
            if skips and not draw.is_finite:
                continue
            inputs = {name: draw.arguments[name] for name in self.batches.types}
            parameters = {name: draw.arguments[name] for name in self.parameters}
            compared = runs.judged(modules.passes(self, inputs, parameters))
            yield draw.what, _without_numbers(compared) if draw.is_huge else compared

    def placed(self, case: PlacementCase) -> Compared:
        """Compare the program's operators under a placement, on NumPy. Raises `CompileError`."""
        module = loaded(case.source(self.program, "numpy", "gradients"), "numpy")
        arguments = {**self.batches[0], **self.parameters}
        parts = _parts(call(module, self.differentiated.function("gradients"), arguments), self.program)
        return self.runs.judged(
            (part, name, array) for part, arrays in parts.items() for name, array in arrays.items()
        )

    # The undistributed program

    @cached_property
    def differentiated(self) -> Program:
        wanted = (Differentiate("step"), Differentiate("gradients"))
        return run_passes(self.program, (MixedPrecision(), *wanted))

    @cached_property
    def _outside_of_training(self) -> Program:
        return run_passes(self.program, (MixedPrecision(), BindTraining()))

    @cached_property
    def limits(self) -> Limits:
        return Limits.of(self.differentiated)

    def _run(self, evaluate: Evaluation | None = None) -> dict[Part, Arrays]:
        """Return outputs, gradients and training of the undistributed program; plain parameters once."""
        found = self._passes({**self.batches[0], **self.parameters}, evaluate)
        if evaluate is None:
            found["parameters"] = self.parameters
        if self.differentiated.has_function("step"):
            found["training"] = self._training(evaluate)
        return found

    def _passes(self, arguments: Arrays, evaluate: Evaluation | None = None) -> dict[Part, Arrays]:
        """Return outputs and gradients of the undistributed program."""
        gradients = self.differentiated.function("gradients")
        results = interpreted(gradients, self.differentiated, arguments, evaluate=evaluate)
        found = _parts(results, self.program)
        if asks_for_training(self.program.function("forward")):
            program = self._outside_of_training
            outputs = interpreted(program.function("forward"), program, arguments, evaluate=evaluate)
            found["outputs"] = {**found["outputs"], **_in_evaluation(outputs)}
        return found

    def _training(self, evaluate: Evaluation | None) -> dict[str, Any]:
        """Return the state after each step, and the outputs of each step, stacked."""
        known: Arrays = {**self.parameters, **_initial_state(self.differentiated.function("step"))}
        steps = []
        for number in range(STEPS):
            batch = self.batches.step(number, accumulate_of(self.program))
            known, outputs = self.stepped(known, number, batch, evaluate)
            steps.append({**known, **reported(outputs)})
        return stacked(steps)

    def stepped(
        self, known: Arrays, number: int, batch: Arrays, evaluate: Evaluation | None = None
    ) -> tuple[Arrays, Arrays]:
        """Return parameters and states after a step of the undistributed program, and the values that the step returns."""
        step = self.differentiated.function("step")
        results = interpreted(step, self.differentiated, {**batch, **known}, number, evaluate)
        new = {o.updates: results[o.name] for o in step.outputs if o.updates is not None}
        return new, {o.name: results[o.name] for o in step.handed_out}


@attrs.frozen
class CaseModules:
    """The modules of a case: one with the functions that `run`, `train` and `compile` make, and one with all gradients.

    A layout has both in one module, which is lowered once.
    """

    program: Any
    gradients: Any

    @classmethod
    def of(cls, case: Case, reference: Reference, backend: str) -> CaseModules:
        """Load the modules of a case. A layout of one mesh has its step and its gradients in the same module."""
        if not isinstance(case, LayoutOnMesh):
            texts = (case.source(reference.program, backend, of) for of in ("step", "gradients"))
            return cls(*(loaded(text, backend) for text in texts))
        module = loaded(source(reference.lowered(case), backend), backend)
        return cls(module, module)

    def results(self, reference: Reference) -> Results:
        """Yield all results for the reference's arguments."""
        yield from self.passes(reference, reference.batches[0], reference.parameters)
        session = Session.start(self.program, reference.seed, reference.given)
        yield from (("parameters", *each) for each in session.parameters().items())
        if hasattr(self.program, "train_step"):
            session = Session.start(self.program, reference.seed, reference.parameters)
            trained = _trained(session, reference.batches, accumulate_of(reference.program))
            yield from (("training", *each) for each in trained.items())

    def passes(self, reference: Reference, inputs: Arrays, parameters: Arrays) -> Results:
        """Yield outputs and gradients for some arguments."""
        program, seed = reference.program, reference.seed
        session = Session.start(self.gradients, seed, parameters)
        for part, arrays in _parts(session.evaluate("gradients", inputs), program).items():
            yield from ((part, *each) for each in arrays.items())
        outputs: Arrays = Session.start(self.program, seed, parameters).evaluate("forward", inputs)
        if asks_for_training(program.function("forward")):
            outputs = _in_evaluation(outputs)
        yield from (("outputs", *each) for each in outputs.items())


def _judged(results: Results, expected: ExpectedArrays) -> dict[Part, dict[str, Comparison]]:
    """Compare results; of two arrays with one name, keep the comparison that is worse."""
    found: dict[Part, dict[str, list[Comparison]]] = {}
    for part, name, array in results:
        found.setdefault(part, {}).setdefault(name, []).append(expected[part][name].compared(array))
    return {part: {name: worst(each) for name, each in arrays.items()} for part, arrays in found.items()}


def _without_numbers(compared: Compared) -> Compared:
    """Return comparisons in which numbers may differ, but not in kind."""
    return {
        part: {n: attrs.evolve(e, fault=None) if e.fault == "differs" else e for n, e in arrays.items()}
        for part, arrays in compared.items()
    }


def jax_gradients(reference: Reference) -> Mapping[str, Comparison]:
    """Compare the reference's gradients with `jax.grad` of the undistributed program's `forward` in JAX.

    JAX also differentiates iterations after the end of a loop with `while`. Gradients that are not finite for it are left out.
    """
    from mtfc.backends.common.devices import import_jax
    from mtfc.compiler.ir.types import FLOATS

    program = run_passes(reference.program, (BindTraining(training=True),)).map_functions(
        with_differentiable_loops
    )
    lowered = LayoutOnMesh(ONE_DEVICE, UNDISTRIBUTED).lower(program)
    forward = lowered.function("forward")
    names = {a.value.name for a in forward.arguments if a.value.type.dtype in FLOATS}
    outputs = [o.name for o in forward.handed_out if o.value.type.dtype in FLOATS]
    minimized = [program.training.minimize] if program.training else outputs
    if not minimized or not names:
        return {}
    module = load(lowered, "jax")
    params = module.shard(dict(reference.parameters), module.PARAMETERS)
    inputs = module.shard(dict(reference.batches[0]), module.INPUTS)

    def objective(varying: Mapping[str, Any]) -> Any:
        """Return the sum of the minimized outputs for varying arrays."""
        given = [{**part, **{k: v for k, v in varying.items() if k in part}} for part in (params, inputs)]
        results = module.forward(*given)
        return sum(results[name].sum() for name in minimized)

    with setting_kept("jax_enable_x64"):
        found = import_jax().grad(objective)({k: v for k, v in {**params, **inputs}.items() if k in names})
    if any(has_condition(eqn) for eqn in walk(reference.program.function("forward").body)):
        found = {name: x for name, x in found.items() if np.isfinite(x).all()}
    wanted = reference.runs.expected["gradients"]
    compared = reference.runs.judged(("gradients", name, x) for name, x in found.items() if name in wanted)
    return compared.get("gradients", {})


def in_wide_numbers(backend: str) -> Any:
    """Return a context that a module in f64 runs in: JAX turns on 64-bit numbers for the whole process."""
    return setting_kept("jax_enable_x64") if backend == "jax" else nullcontext()


def accumulate_of(program: Program) -> int:
    return program.training.accumulate if program.training else 1


def interpreted(
    function: Function,
    program: Program,
    arguments: Arrays,
    number: int = 0,
    evaluate: Evaluation | None = None,
) -> Arrays:
    """Return the outputs of a function that is not distributed, by name. number: the number of the training step."""
    from mtfc.backends.interpreter import interpret, meaning

    numbers = {a.value.name: number for a in function.arguments if a.role == "step"}
    return interpret(function, program, {**arguments, **numbers}, evaluate=evaluate or meaning)


def _parts(results: Arrays, program: Program) -> dict[Part, Arrays]:
    """Split the results of `gradients` into outputs and gradients; a gradient goes by the name of its value."""
    outputs = [output.name for output in program.function("forward").handed_out]
    gradients = {name.removeprefix("d_"): array for name, array in results.items() if name not in outputs}
    return {"outputs": {name: results[name] for name in outputs}, "gradients": gradients}


def _in_evaluation(outputs: Arrays) -> Arrays:
    """Rename the outputs of `forward`, which `training` makes differ from the outputs of `gradients`."""
    return {f"{name} in evaluation": array for name, array in outputs.items()}


# Training


def _trained(session: Session, batches: Batches, accumulate: int) -> dict[str, Any]:
    """Return parameters and optimizer state after each step of the session, and the steps' outputs, stacked."""
    steps = []
    for number in range(STEPS):
        outputs = session.train(batches.step(number, accumulate), number)
        steps.append({**session.parameters(), **session.optimizer_state(), **reported(outputs)})
    return stacked(steps)


def reported(outputs: Arrays) -> Arrays:
    """Rename the outputs of steps, which may have the name of a parameter."""
    return {f"the reported {name}": array for name, array in outputs.items()}


def _initial_state(step: Function) -> dict[str, Any]:
    """Return the first value of each state of the optimizer: an array of equal numbers."""
    states = (argument for argument in step.arguments if argument.role == "state")
    return {
        state.value.name: np.full([dim.size for dim in state.value.type.dims], state.initial)
        for state in states
    }
