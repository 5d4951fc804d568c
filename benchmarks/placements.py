"""Simulated steps of placements beside measured ones, on virtual devices of the CPU (FlexFlow, section 8.3, Figure 11).

FlexFlow's six networks, at sizes that one machine computes in tenths of a second, under random strategies. Each part of an
operator is measured once, alone; so are transfers, and the calls that the host makes. Virtual devices share the cores and the
host, so a step takes at least the time of all its tasks on all cores, and at least that of all calls. Measured times are the
least of several steps.

Other work on the machine lengthens steps, which need all cores, more than parts. So the processor time of a step is compared,
too: the sum over its parts and calls beside what the process has used.

`PLACEMENTS` in the environment selects networks, numbers of devices and the number of strategies: `PLACEMENTS="rnnlm 4 5"`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import perf_counter, process_time
from typing import Any

import attrs
import numpy as np

from benchmarks.figures import Figure, seconds
from mtfc.backends.calibrate import calibration
from mtfc.backends.common.allocator import keep_memory
from mtfc.backends.common.devices import import_jax
from mtfc.backends.jax.runtime import load
from mtfc.compiler.cost.hardware import Rate
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Dim
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.data.inputs import draw_batch
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.driver.running.execution import Session
from mtfc.driver.training.train import use_compilation_cache
from mtfc.placements.declarations import DeclaredPlacement, PlacedOperator
from mtfc.placements.operators.operator_parts import OperatorParts
from mtfc.placements.operators.strategy import Strategy, random_strategy
from mtfc.placements.placement_search import PlacementSpace, placement_space
from mtfc.placements.running.jax.module import generate
from mtfc.placements.running.jax.part_times import (
    MeasuredTimes,
    PartPass,
    least_seconds,
    passes,
    transfer_times,
)
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
RUNS = 9
APART = 1.2
"""Measured times whose ratio is larger must be predicted in the same order."""

UPDATED = 1 << 24
"""Bytes of the parameter whose update is measured."""

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
    every: list[ComparedStep] = []
    for network in [each for each in SIZES if each in wanted] or SIZES:
        for number in devices:
            found = []
            for each in compared(network, number, count):
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


def compared(network: str, devices: int, count: int) -> Iterator[ComparedStep]:
    """Compare steps under random strategies."""
    path = EXAMPLES / f"{network}.mtf"
    program = choose(path.read_text("utf-8"), str(path), Choice(dims=SIZES[network])).program
    rates = {clock: _update_rate(clock) for clock in (perf_counter, process_time)}
    machine = calibration.with_jax("here", devices, calibration.QUICK)
    bandwidth = Rate.constant(rates[perf_counter])
    machine = attrs.evolve(machine, device=attrs.evolve(machine.device, bandwidth=bandwidth))
    used: dict[str, float] = {}

    def measure(each: PartPass) -> float:
        call = each.call()
        used[each.key] = least_seconds(call, process_time)
        return least_seconds(call)

    times = MeasuredTimes({}, transfer_times(devices), measure)
    space = placement_space(run(program, simplification()), machine, devices, times=times)
    calls = {clock: _calls(devices, clock) for clock in (perf_counter, process_time)}
    random = Random(devices)
    for _ in range(count):
        strategy = random_strategy(space.choices, random)
        text = generate(PlacedProgram(program, declared(space, strategy), program))
        predicted = _predicted(space, strategy, _host_seconds(text, calls[perf_counter]))
        slower = rates[perf_counter] / rates[process_time]
        work = slower * _updates(space, strategy) + _work(space, strategy, measure, used)
        work += _host_seconds(text, calls[process_time])
        step, processor = _measured(program, text)
        yield ComparedStep((predicted, step), (work, processor))


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


def _calls(devices: int, clock: Callable[[], float]) -> Pair:
    """Measure the call of a jitted function that does next to nothing, and that of a small transfer."""
    jax = import_jax()
    first, second = jax.devices()[0], jax.devices()[min(devices, 2) - 1]
    function, x = jax.jit(lambda x: x + 1), jax.device_put(np.float32(0), first)
    return least_seconds(lambda: function(x), clock), least_seconds(lambda: jax.device_put(x, second), clock)


def _host_seconds(text: str, calls: Pair) -> float:
    """Return the seconds in which the host makes the calls of a step."""
    step = text.partition("def train_step")[2].partition("\n\n\n")[0]
    called = re.findall(r" = (\w+)\(", step)
    sends = called.count("send")
    return (len(called) - sends) * calls[0] + sends * calls[1]


def _update_rate(clock: Callable[[], float]) -> float:
    """Measure the update of a parameter: bytes that are read and written in a second."""
    jax = import_jax()
    function = jax.jit(lambda x, d_x: x - 0.1 * d_x)
    x = jax.device_put(np.ones(UPDATED // 4, np.float32), jax.devices()[0])
    return 3 * UPDATED / least_seconds(lambda: function(x, x), clock)


def _updates(space: PlacementSpace, strategy: Strategy) -> float:
    """Return the simulated seconds of all updates."""
    tasks, graph = space.evaluator.tasks, space.evaluator.full(strategy).base.graph
    blocks = [i for i, name in enumerate(tasks.names) if name.kind == "updated"]
    return float(sum(graph.seconds[graph.offsets[i] : graph.offsets[i + 1]].sum() for i in blocks))


def _work(
    space: PlacementSpace,
    strategy: Strategy,
    measure: Callable[[PartPass], float],
    used: Mapping[str, float],
) -> float:
    """Return the processor seconds of all parts. measure: adds those of a part to `used`."""
    flow, total = space.evaluator.tasks.flow, 0.0
    for operator, chosen in zip(space.graph.operators, strategy, strict=True):
        parts = OperatorParts(operator, chosen.degrees)
        for each in (each for step in operator.steps for each in passes(flow, step, parts)):
            if each.key not in used:
                measure(each)
            total += parts.count * used[each.key]
    return total


def _predicted(space: PlacementSpace, strategy: Strategy, host: float) -> float:
    """Return the simulated seconds, or more if the cores or the host that all devices share need more."""
    found, tasks = space.evaluator.full(strategy), space.evaluator.tasks
    graph, cores = found.base.graph, os.cpu_count() or 1
    working = float(graph.seconds[graph.device < tasks.links.count].sum())
    return max(found.seconds, (working + host) / cores, host)


def _measured(program: Program, text: str) -> Pair:
    """Return the least seconds of several steps, and the least processor seconds."""
    session: Any = Session.start(load(text), 0, {})
    batch = draw_batch(program.function("forward"), 0)[0]
    module, jax = session.module, import_jax()
    inputs = module.shard(dict(batch), module.INPUTS)

    def step() -> None:
        outputs, session.params, session.state = module.train_step(session.params, session.state, inputs, 0)
        jax.block_until_ready((outputs, session.params))

    step()
    found = []
    for _ in range(RUNS):
        begin = process_time()
        wall = seconds(step)
        found.append((wall, process_time() - begin))
    return min(wall for wall, _ in found), min(work for _, work in found)
