"""Faults of the training step: a line of the compiler or of the library is wrong, and `mtfc verify --step` must find it.

A fault is a text in a source file and what takes its place. The compiler makes both sides of the other checks from that text, so
only a definition that shares no code with it shows the fault.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import attrs

import mtfc
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.driver.options import VerifyOptions
from mtfc.driver.verification.reference import Reference
from mtfc.driver.verification.step_check import checked_step
from mtfc.frontend.semantics.names import standard_library
from tests.generators.train_blocks import train_source
from tests.harness import FILE
from tests.mutants.reasons import CAUGHT, MISSED

ROOT = Path(mtfc.__file__).parent
STEP = "compiler/passes/autodiff"
OPTIMIZERS, SCHEDULES = "std/optimizers.mtf", "std/schedules.mtf"

PLAIN = "optimizer = sgd(0.1)"
CLIP = 'optimizer = sgd(0.1)\n  clip = 0.3\n  optimizer for "bias" = momentum(0.1)'
AVERAGE = "optimizer = sgd(0.1)\n  average = 0.9"
MICRO = "optimizer = sgd(0.1)\n  accumulate = 3"
FIXED = "optimizer = momentum(0.1)\n  precision = { loss_scale: 1024 }\n  report loss_scale"
DYNAMIC = "optimizer = momentum(0.1)\n  average = 0.9\n  precision = { loss_scale: dynamic }"
ADAM, ADAMW = "optimizer = adam(0.1)", "optimizer = adamw(0.1)"
GROUPS = 'optimizer = adamw(0.1)\n  optimizer for "bias" = adam(0.1)\n  frozen "scale"'
ADAFACTOR = "optimizer = adafactor(0.1)"


@attrs.frozen
class StepFault:
    """A fault: in a file of mtfc, `after` takes the place of `before`. entries: the `train` block that shows it."""

    name: str
    file: str
    before: str
    after: str
    entries: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        text = (ROOT / self.file).read_text("utf-8")
        assert text.count(self.before) >= 1, f"{self.file} has no `{self.before}`"
        wrong = text.replace(self.before, self.after)
        caches = (standard_library.text, standard_library.sections, standard_library.declaration)
        with ExitStack() as stack:
            if self.file.endswith(".mtf"):
                found = dict.fromkeys([Path(self.file).stem], wrong)
                right = standard_library.text
                read = lambda module: found.get(module) or right(module)  # noqa: E731
                stack.enter_context(patch.object(standard_library, "text", read))
                for cache in caches[1:]:
                    cache.cache_clear()
                    stack.callback(cache.cache_clear)
            else:
                for module, name, value in _replaced(f"mtfc/{self.file}", wrong):
                    stack.enter_context(patch.object(module, name, value))
            yield


def _replaced(file: str, text: str) -> Iterator[tuple[Any, str, Any]]:
    """Yield the functions and classes that a changed text defines, in every module that has the old ones."""
    module = import_module(file.removesuffix(".py").replace("/", "."))
    space = {"__name__": module.__name__}
    exec(compile(text, file, "exec", dont_inherit=True), space)
    own = {n: x for n, x in vars(module).items() if getattr(x, "__module__", None) == module.__name__}
    for name, old in own.items():
        for other in [m for key, m in sys.modules.items() if key.startswith("mtfc")]:
            if vars(other).get(name) is old and name in space:
                yield other, name, space[name]


ROWS = (
    ("clip by one parameter's norm", f"{STEP}/update_equations.py", "for gradient in gradients)",
     "for gradient in [*gradients][:1])", CLIP),
    ("average with the wrong sign", f"{STEP}/update_equations.py", 'builder("add", old, step', 'builder("sub", old, step',
     AVERAGE),
    ("weight decay times ten", OPTIMIZERS, "+ weight_decay * p)", "+ 10 * weight_decay * p)", ADAMW),
    ("only the last micro-batch", f"{STEP}/differentiate.py", 'inner("add", total, value)', "value", MICRO),
    ("default decay", OPTIMIZERS, "weight_decay = 0.01\n", "weight_decay = 0.1\n", ADAMW),
    ("no bias correction of the mean", OPTIMIZERS, "mean = m / (1 - beta1 ** (step + 1))", "mean = m", ADAM),
    ("no bias correction of the variance", OPTIMIZERS, "variance = v / (1 - beta2 ** (step + 1))", "variance = v", ADAM),
    ("bias correction one step late", OPTIMIZERS, "beta1 ** (step + 1)", "beta1 ** (step + 2)", ADAM),
    ("epsilon inside of the root", OPTIMIZERS, "(sqrt(variance) + epsilon)", "sqrt(variance + epsilon)", ADAM),
    ("epsilon before the correction", OPTIMIZERS, "variance = v / (", "variance = (v + epsilon) / (", ADAM),
    ("betas swapped", OPTIMIZERS, "adam_direction(m, v, beta1, beta2,", "adam_direction(m, v, beta2, beta1,", ADAM),
    ("gradient not squared", OPTIMIZERS, "v = beta2 * v + (1 - beta2) * square(g)", "v = beta2 * v + (1 - beta2) * abs(g)",
     ADAM),
    ("decay in the gradient", OPTIMIZERS,
     "(1 - beta1) * g\n  v = beta2 * v + (1 - beta2) * square(g)\n  p = p - learning_rate * (adam",
     "(1 - beta1) * (g + weight_decay * p)\n  v = beta2 * v + (1 - beta2) * square(g)\n  p = p - learning_rate * (adam", ADAMW),
    ("decay without the learning rate", OPTIMIZERS, "(adam_direction(m, v, beta1, beta2, epsilon, step) + weight_decay * p)",
     "adam_direction(m, v, beta1, beta2, epsilon, step) - weight_decay * p", ADAMW),
    ("groups by the first entry", "frontend/semantics/training/parameter_groups.py",
     "chosen.update(dict.fromkeys(matching, number))", "chosen.update({n: number for n in matching if n not in chosen})",
     'optimizer = sgd(0.1)\n  frozen "scale", "bias"\n  optimizer for "bias" = adam(0.1)'),
    ("frozen parameters decay", "frontend/semantics/training/parameter_groups.py",
     "tuple(name for name in names if name not in chosen)",
     "tuple(n for n in names if n not in chosen or isinstance(decl.groups[chosen[n]], ast.Frozen))", GROUPS),
    ("group entries ignored", "frontend/semantics/training/train_blocks.py", "nodes = (*own, *self.groups.optimized)",
     "nodes = (*own,)", GROUPS),
    ("velocity before its update", OPTIMIZERS, "velocity = momentum * velocity + g\n  p = p - learning_rate * velocity",
     "p = p - learning_rate * velocity\n  velocity = momentum * velocity + g", "optimizer = momentum(0.1)"),
    ("Nesterov without the look", OPTIMIZERS, "(momentum * velocity + g)", "velocity", "optimizer = nesterov(0.1)"),
    ("Adafactor's rows and columns", OPTIMIZERS, "mean(by_row, over = row)", "mean(by_row, over = row) ** 2", ADAFACTOR),
    ("Adafactor without its clip", OPTIMIZERS, "maximum(rms(u) / clip, 1.0)", "maximum(rms(u) / clip, 0.0)", ADAFACTOR),
    ("Adafactor's absolute step", OPTIMIZERS, "maximum(rms(p), epsilon2)", "1.0", ADAFACTOR),
    ("Adafactor's decay one step late", OPTIMIZERS, "(step + 1) ** -decay", "(step + 2) ** -decay", ADAFACTOR),
    ("cosine one step late", SCHEDULES, "done = minimum(maximum(step - warmup", "done = minimum(maximum(step + 1 - warmup",
     "optimizer = sgd(schedules.cosine(step, peak = 0.1, warmup = 50, steps = 200))"),
    ("cosine without its end", SCHEDULES, "falling = end +", "falling =",
     "optimizer = sgd(schedules.cosine(step, 0.1, warmup = 50, steps = 200, end = 0.01))"),
    ("warm-up from step one", SCHEDULES, "peak * minimum(step / warmup", "peak * minimum((step + 1) / warmup",
     "optimizer = sgd(schedules.linear_warmup(step, 0.1, 100))"),
    ("steps of decay one late", SCHEDULES, "floor(step / every)", "floor((step - 1) / every + 1 / 1024)",
     "optimizer = sgd(schedules.step_decay(step, 0.1, 0.5, 30))"),
    ("inverse root from step zero", SCHEDULES, "sqrt(warmup / (step + 1))", "sqrt(warmup / maximum(step, 1))",
     "optimizer = sgd(schedules.warmup_rsqrt(step, 0.1, 100))"),
    ("clip leaves out a parameter", f"{STEP}/differentiate.py",
     "return {value: _times(builder, g, scale) for value, g in gradients.items()}",
     "return {v: g if i == 0 else _times(builder, g, scale) for i, (v, g) in enumerate(gradients.items())}", CLIP),
    ("clip always", f"{STEP}/differentiate.py", 'builder("maximum", norm, most)', "norm", CLIP),
    ("clip never", f"{STEP}/differentiate.py", 'builder("maximum", norm, most)', "most", CLIP),
    ("clip of half the norm", f"{STEP}/differentiate.py", 'builder.constant(limit, "f32")',
     'builder.constant(limit / 2, "f32")', CLIP),
    ("square of the norm", f"{STEP}/update_equations.py", 'builder("sqrt", summed, name=GRAD_NORM)', "summed", CLIP),
    ("average starts one step late", f"{STEP}/update_equations.py", "new = builder.wide(output.value)",
     "new = next(v for v in trained if v.name == output.updates)", AVERAGE),
    ("average without its correction", f"{STEP}/update_equations.py", 'builder("div", builder.constant(1.0, "f32"), steps)',
     'builder.constant(1 - share, "f32")', AVERAGE),
    ("average keeps the rest", f"{STEP}/update_equations.py", 'builder.constant(share, "f32")',
     'builder.constant(1 - share, "f32")', AVERAGE),
    ("sum of micro-batches", f"{STEP}/differentiate.py", "training, scale, unit, weight)", "training, scale)", MICRO),
    ("first micro-batch dropped", f"{STEP}/differentiate.py", "over.argument(b.zeros(value.type),",
     "over.argument(b('full', dims=value.type.dims, value=1.0, dtype=value.type.dtype),", MICRO),
    ("sum of losses", f"{STEP}/differentiate.py", "builder.like(1 / training.accumulate, totals[name])",
     "builder.like(1.0, totals[name])", MICRO),
    ("fixed scale not divided out", f"{STEP}/update_equations.py", "builder.like(1 / loss_scale.start, g)",
     "builder.like(1.0, g)", FIXED),
    ("reported scale", f"{STEP}/update_equations.py", 'builder.constant(loss_scale.start, "f32")', 'builder.constant(1.0, "f32")',
     FIXED),
    ("dynamic scale not divided out", f"{STEP}/update_equations.py",
     'builder("div", builder.constant(1.0, "f32"), state.scale.value)', 'builder.constant(1.0, "f32")', DYNAMIC),
    ("overflow not skipped", f"{STEP}/update_equations.py", 'builder("where", good, o.value, old[o.updates or ""], name=o.name)',
     "o.value", DYNAMIC),
    ("averages of skipped steps", f"{STEP}/differentiate.py", "changed += kept_unless(builder, good, others,",
     "changed += kept_unless(builder, None, others,", DYNAMIC),
    ("scale not halved", f"{STEP}/update_equations.py", '("maximum", 0.5, SMALLEST)', '("maximum", 1.0, SMALLEST)', DYNAMIC),
    ("scale not doubled", f"{STEP}/update_equations.py", '("minimum", 2.0, LARGEST)', '("minimum", 1.0, LARGEST)', DYNAMIC),
    ("patience one step longer", f"{STEP}/update_equations.py", 'builder("ge", count', 'builder("gt", count', DYNAMIC),
    ("good steps not reset", f"{STEP}/update_equations.py", 'builder("mask", counts, count', 'builder("mask", good, count',
     DYNAMIC),
    ("no largest scale", f"{STEP}/update_equations.py", "SMALLEST, LARGEST = 1.0, 2.0**24", "SMALLEST, LARGEST = 1.0, 2.0**30",
     DYNAMIC),
    ("no smallest scale", f"{STEP}/update_equations.py", "SMALLEST, LARGEST = 1.0,", "SMALLEST, LARGEST = 0.0,", DYNAMIC),
    ("first scale", "frontend/semantics/training/train_blocks.py", "FIRST_SCALE = 2.0**15", "FIRST_SCALE = 2.0**14", DYNAMIC),
    ("model state of skipped steps", f"{STEP}/differentiate.py",
     "others += [Output(name, value, name) for name, value in found.states.items()]",
     "changed += [Output(name, value, name) for name, value in found.states.items()]", DYNAMIC),
    ("sum of slices in a loop", f"{STEP}/update_equations.py", 'return (*self.stack, *value) if key == "dims" else value',
     'return (*self.stack, *value) if key == "dims" else (*self.stack, *value) if key == "over" else value', ADAFACTOR),
    ("sign of the step", OPTIMIZERS, "p = p - learning_rate * g\n", "p = p + learning_rate * g\n", PLAIN),
    ("clip read wrongly", "frontend/semantics/training/train_blocks.py", "is_possible(value):\n        return value",
     "is_possible(value):\n        return value and 2 * value", CLIP),
)  # fmt: skip
FAULTS = tuple(StepFault(*row) for row in ROWS)


@attrs.frozen
class TrainBlocks:
    """The `train` blocks in which faults are planted."""

    def mutants(self, random: Random) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the faults with their outcomes."""
        for fault in FAULTS:
            yield fault.name, partial(self.outcome, fault)

    def outcome(self, fault: StepFault) -> str:
        """Return `CAUGHT` if the step is not as declared, or cannot be compiled; else `MISSED`."""
        with fault.planted():
            try:
                return CAUGHT if wrong_in(fault.entries) else MISSED
            except Exception:  # a fault may make equations that the verifier refuses
                return CAUGHT


def wrong_in(entries: str) -> tuple[str, ...]:
    """Return the results of a step that are not as its `train` block declares."""
    text = train_source(f"  {entries}")
    selection = choose(text, FILE, Choice())
    reference = Reference.of(everything_in(selection.program, "f64"), {}, VerifyOptions(FILE))
    return checked_step(reference, FILE, text, Choice(), selection.module.scope).wrong
