"""Simulated steps of placements beside measured ones, on virtual devices of the CPU (FlexFlow, section 8.3, Figure 11).

FlexFlow's six networks, at sizes that one machine computes in tenths of a second, under random strategies. Each call of a step is
measured once, alone, and the calls then share the cores: see `shared_cores.py`. Measured times are the least of several steps.

Other work on the machine lengthens steps. So the processor time of a step is compared, too: the sum over its calls beside what
the process has used.

`PLACEMENTS` in the environment selects networks, numbers of devices and the number of strategies: `PLACEMENTS="rnnlm 4 5"`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any

import attrs

from benchmarks.figures import Figure, seconds
from benchmarks.shared_cores import Recorder, processor_seconds, step_seconds
from mtfc.backends.common.allocator import keep_memory
from mtfc.backends.common.devices import import_jax, reserve
from mtfc.backends.jax.runtime import load
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Dim
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.data.inputs import draw_batch
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.driver.running.execution import Session
from mtfc.driver.training.train import use_compilation_cache
from mtfc.frontend.hardware_targets import find_machine
from mtfc.placements.declarations import DeclaredPlacement, PlacedOperator
from mtfc.placements.operators.strategy import Strategy, random_strategy
from mtfc.placements.placement_search import PlacementSpace, placement_space
from mtfc.placements.running.jax.module import generate
from mtfc.placements.running.placed_program import PlacedProgram

EXAMPLES = Path(__file__).parent.parent / "examples"
SIZES: Mapping[str, Mapping[str, int]] = {
    "alexnet": {"batch": 16, "height": 99, "width": 99, "units1": 512, "units2": 512, "classes": 128},
    "inception_v3": {"batch": 8, "height": 107, "width": 107, "grain": 8, "classes": 64},
    "resnet101": {
        "batch": 16,
        "height": 64,
        "width": 64,
        "stem": 16,
        "classes": 64,
        "blocks2": 1,
        "blocks3": 1,
        "blocks4": 2,
        "blocks5": 1,
    },
    "rnntc": {"batch": 64, "length": 4, "vocab": 1024, "units": 512, "layers": 2},
    "rnnlm": {"batch": 64, "length": 4, "words": 2048, "units": 512, "layers": 2},
    "nmt": {"batch": 64, "source": 3, "target": 3, "read": 2048, "units": 256},
}
DEVICES = (2, 4, 8)
STRATEGIES = 20
RUNS, MOST_RUNS, SECONDS = 9, 60, 2.0
"""Least and most measured steps, and the seconds for them."""

APART = 1.2
"""Measured times whose ratio is larger must be predicted in the same order."""

PAPER = 0.3
"""FlexFlow's simulated times differ from real ones by less than this."""


Pair = tuple[float, float]
"""Predicted and measured seconds."""


@attrs.frozen
class ComparedStep:
    """The seconds of a step, and its processor seconds."""

    step: Pair
    work: Pair

    def __str__(self) -> str:
        return (
            f"{1e3 * self.step[1]:.0f} ms, processor {1e3 * self.work[0]:.0f} of {1e3 * self.work[1]:.0f} ms"
        )


def figures() -> Iterator[Figure]:
    wanted = os.environ.get("PLACEMENTS", "").split()
    numbers = [int(word) for word in wanted if word.isdecimal()]
    devices = [n for n in numbers[:1] if n in DEVICES] or list(DEVICES)
    count = numbers[-1] if numbers[len(devices) == 1 :] else STRATEGIES
    keep_memory()
    use_compilation_cache()
    import_jax().config.update("jax_persistent_cache_min_compile_time_secs", 0)
    reserve(max(devices))
    recorder = Recorder()
    every: list[ComparedStep] = []
    for network in [each for each in SIZES if each in wanted] or SIZES:
        for number in devices:
            found = []
            for each in compared(network, number, count, recorder):
                found.append(each)
                where = f"{network}, {number} devices, strategy {len(found)}: {each}"
                yield Figure(f"{where}, predicted over measured", each.step[0] / each.step[1], "")
            every += found
            yield from _summary(f"{network}, {number} devices, steps", [each.step for each in found])
            yield from _summary(f"{network}, {number} devices, processor", [each.work for each in found])
    yield from _distribution("steps", [each.step for each in every])
    yield from _distribution("processor", [each.work for each in every])


def _summary(where: str, pairs: Sequence[Pair]) -> Iterator[Figure]:
    apart = [(a, b) for a, b in combinations(pairs, 2) if max(a[1], b[1]) > APART * min(a[1], b[1])]
    wrong = sum((a[0] - b[0]) * (a[1] - b[1]) <= 0 for a, b in apart)
    yield Figure(f"{where}: of {len(apart)} pairs more than 20 % apart, in the wrong order", wrong, "")
    yield Figure(f"{where}: mean relative error", fmean(abs(p / m - 1) for p, m in pairs), "", PAPER)


def _distribution(what: str, pairs: Sequence[Pair]) -> Iterator[Figure]:
    errors = sorted(abs(predicted / measured - 1) for predicted, measured in pairs)
    yield Figure(f"all {what}: median relative error", median(errors), "", PAPER)
    yield Figure(f"all {what}: share of errors below 30 %", sum(e < PAPER for e in errors) / len(errors), "")
    yield Figure(f"all {what}: largest error", errors[-1], "")


def compared(network: str, devices: int, count: int, recorder: Recorder) -> Iterator[ComparedStep]:
    """Compare steps under random strategies."""
    path = EXAMPLES / f"{network}.mtf"
    program = choose(
        path.read_text("utf-8"), str(path), Choice(dims=SIZES[network]), skip_illegal=True
    ).program
    space = placement_space(run(program, simplification()), find_machine("p100_cluster", {}), devices)
    random = Random(devices)
    for _ in range(count):
        strategy = random_strategy(space.choices, random)
        text = generate(PlacedProgram(program, declared(space, strategy), program))
        module, step = _started(program, text)
        calls = recorder.calls(module, step)
        wall, processor = _measured(step)
        predicted = step_seconds(calls, recorder.known)
        yield ComparedStep((predicted, wall), (processor_seconds(calls, recorder.known), processor))


def declared(space: PlacementSpace, strategy: Strategy) -> DeclaredPlacement:
    """Return a strategy as a placement that a file might declare."""
    nowhere = Span("<benchmark>", 1, 1, 1, 1)
    entries = (
        PlacedOperator(
            operator.name, tuple((Dim(name, n), n) for name, n in each.degrees), each.devices, nowhere
        )
        for operator, each in zip(space.graph.operators, strategy, strict=True)
    )
    return DeclaredPlacement("drawn", space.devices, tuple(entries), nowhere)


def _started(program: Program, text: str) -> tuple[Any, Callable[[], None]]:
    """Return a module, and a function that runs a step of it, which is compiled."""
    session: Any = Session.start(load(text), 0, {})
    batch = draw_batch(program.function("forward"), 0)[0]
    module, jax = session.module, import_jax()
    inputs = module.shard(dict(batch), module.INPUTS)

    def step() -> None:
        outputs, session.params, session.state = module.train_step(session.params, session.state, inputs, 0)
        jax.block_until_ready((outputs, session.params))

    step()
    return module, step


def _measured(step: Callable[[], None]) -> Pair:
    """Return the least seconds of several steps, and the least processor seconds."""
    found, until = list[Pair](), perf_counter() + SECONDS
    while len(found) < RUNS or (perf_counter() < until and len(found) < MOST_RUNS):
        begin = process_time()
        wall = seconds(step)
        found.append((wall, process_time() - begin))
    return min(wall for wall, _ in found), min(work for _, work in found)
