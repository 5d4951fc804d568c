"""Predicted times beside measured ones.

- Training steps on eight virtual CPU devices, which `mtfc calibrate` measures first. Figures are the error of each prediction,
  and the number of pairs predicted in the wrong order, of those whose measured times are more than 20 per cent apart. Of several
  rounds, each with a calibration of its own, the least predicted and measured times count.
- Training steps that the TPU compiler compiles without a TPU (this needs libtpu). Its cycles of computation are compared with
  predicted computation, without gradients of max-pools, for which it states no cycles. Its collectives and its memory are
  compared with `mtfc cost`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import combinations
from math import exp, log
from statistics import fmean
from typing import Any

from benchmarks.figures import Figure, median_seconds
from benchmarks.steps import AS_DECLARED, FEW_IMAGES, IN_SCRATCHPAD, LARGE, MEASURED, OTHERS, Case
from mtfc.backends import hlo
from mtfc.backends.calibrate import calibration
from mtfc.backends.common.allocator import keep_memory
from mtfc.backends.common.devices import Unavailable
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.backends.jax import tpu_topologies
from mtfc.compiler.cost.device_models import fusion_of
from mtfc.compiler.cost.effects.memory import memory_on
from mtfc.compiler.cost.effects.roofline import work
from mtfc.compiler.cost.fusion import FusionModel
from mtfc.compiler.cost.hardware import Device, Hardware
from mtfc.compiler.cost.sizes import Numbers, whole
from mtfc.compiler.cost.step_time import StepTime, step_time
from mtfc.compiler.cost.volumes import charges, total
from mtfc.compiler.ir.core import Equation, Function, Program
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.types import Mesh
from mtfc.driver.compiled_step import memory_of
from mtfc.driver.data.inputs import draw_batch
from mtfc.frontend.hardware_targets import find_hardware

DEVICES = 8
RUNS = 5
ROUNDS = 5
"""Number of times that the machine is calibrated and all steps are measured, as its speed changes from minute to minute."""

APART = 1.2
"""Measured times whose ratio is larger must be predicted in the same order."""

MOST_ERROR = 0.11
"""The largest mean error of the predicted computation on TPUs, over all compared steps."""


def figures() -> Iterator[Figure]:
    os.environ["JAX_PLATFORMS"] = "cpu"  # where libtpu is installed, it has no TPU to run on
    yield from _measured()
    yield from _compiled()


def predicted(program: Program, hardware: Hardware) -> StepTime:
    assert program.mesh is not None
    return step_time(program.function("step"), program.mesh, hardware)


# Measured


def _measured() -> Iterator[Figure]:
    keep_memory()
    programs = [case.lowered() for case in MEASURED]
    steps = [stepping(program) for program in programs]
    rounds = []
    for number in range(ROUNDS):
        hardware, _ = calibration.with_jax(DEVICES, calibration.Effort())
        found = [predicted(program, hardware).seconds for program in programs]
        rounds.append([*zip(found, (median_seconds(each, RUNS) for each in steps), strict=True)])
        yield Figure(f"round {number + 1}: mean relative error", mean_error(rounds[-1]), "")
        yield Figure("    pairs predicted in the wrong order", order(rounds[-1])[1], "")
    fastest = []
    for case, turns in zip(MEASURED, zip(*rounds, strict=True), strict=True):
        said, seconds = zip(*turns, strict=True)
        fastest.append((min(said), min(seconds)))
        yield Figure(f"{case.name}: measured step, of the fastest round", min(seconds), "s")
        yield Figure("    that of the slowest round over it", max(seconds) / min(seconds), "")
        yield Figure("    predicted over measured", min(said) / min(seconds), "")
    yield Figure("steps measured", len(fastest), "")
    yield Figure("mean relative error", mean_error(fastest), "")
    typical = exp(fmean(abs(log(p / m)) for p, m in fastest))
    yield Figure("typical factor between predicted and measured", typical, "")
    apart, wrong = order(fastest)
    yield Figure("pairs that are more than 20 per cent apart", apart, "")
    yield Figure("of these predicted in the wrong order", wrong, "", 0)


def mean_error(found: Sequence[tuple[float, float]]) -> float:
    """Return the mean relative error of (predicted, measured) times."""
    return fmean(abs(p / m - 1) for p, m in found)


def measured(program: Program, at_once: int = 1) -> float:
    """Return the seconds of a training step. at_once: number of steps that are started before their results are awaited."""
    return median_seconds(stepping(program, at_once), RUNS) / at_once


def stepping(program: Program, at_once: int = 1) -> Callable[[], None]:
    """Return a function that runs `at_once` training steps on random data and waits for their results."""
    module = jax_runtime.load(jax_backend.generate(program))
    batch = draw_batch(program.function("forward"), 0)[0]
    held = {
        "parameters": module.init(0),
        "state": module.init_state() if hasattr(module, "init_state") else {},
    }
    inputs = module.shard(batch, module.INPUTS)

    def steps() -> None:
        for _ in range(at_once):
            outputs, held["parameters"], held["state"] = module.train_step(
                held["parameters"], held["state"], inputs, 0
            )
        outputs["loss"].block_until_ready()

    steps()  # the first steps are slower, until the process has all its memory
    steps()
    return steps


def order(found: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Return the number of pairs whose measured times are apart, and of those that are predicted in the wrong order."""
    apart = [
        (a, b) for a, b in combinations(sorted(found, key=lambda each: each[1]), 2) if b[1] > APART * a[1]
    ]
    return len(apart), sum(a[0] >= b[0] for a, b in apart)


# Compiled


def _compiled() -> Iterator[Figure]:
    try:
        tpu_topologies.topology(LARGE[0][0])
    except Unavailable as error:
        print(f"  left out: {error}")
        return
    sets = {
        "large networks": LARGE,
        "other networks": OTHERS,
        "few images a core": FEW_IMAGES,
        "smallest examples": AS_DECLARED,
        "small networks in the scratchpad": IN_SCRATCHPAD,
    }
    errors: list[float] = []
    for name, cases in sets.items():
        found = []
        for topology, case in cases:
            found.append((yield from _beside_compiled(topology, case, 0 if cases is LARGE else None)))
        errors += found
        within = sum(error <= 0.15 for error in found)
        yield Figure(f"{name}: steps with a relative error of at most 0.15, of {len(found)}", within, "")
        yield Figure("    mean relative error", fmean(found), "")
    yield Figure(f"mean relative error of all {len(errors)} steps", fmean(errors), "", MOST_ERROR)


def _beside_compiled(
    topology: str, case: Case, unpredicted_at_most: int | None = 0
) -> Generator[Figure, None, float]:
    """Yield the figures of one step, and return the relative error of its predicted computation."""
    program, generation = case.lowered(), topology.split(":")[0]
    step = jax_runtime.lowered(program, "step", tpu_topologies.topology(topology)).compile()
    text = tpu_topologies.text(step)
    cycles = hlo.cycles(text)
    compiled, hardware = (
        cycles / tpu_topologies.GENERATIONS[generation].clock,
        find_hardware(f"tpu_{generation}", {}),
    )
    said_nothing_of = unpooling(program.function("step"), program.placed_on, hardware.device)
    computation = predicted(program, hardware).total.compute - said_nothing_of
    yield Figure(f"{case.name} on TPU {generation}: cycles of computation", cycles, "")
    yield Figure("    predicted computation over the compiler's", computation / compiled, "")
    wrong = unpredicted(program, text)
    yield Figure("    elements in collectives that were not predicted", wrong, "", unpredicted_at_most)
    yield Figure(
        "    predicted memory over the compiler's",
        memory(program, hardware) / allocated(step, is_tpu=True),
        "",
    )
    return abs(computation / compiled - 1)


def unpredicted(program: Program, text: str) -> int:
    """Return the number of elements, kind by kind, by which the collectives in HLO differ from those of `mtfc cost`."""
    found = {kind: each["elements_per_device"] for kind, each in hlo.collectives(text).items()}
    charged = total(charges(program.function("step"), Numbers(program.placed_on)))
    said = {kind: whole(sent.elements) for kind, sent in charged.collectives.items()}
    return sum(abs(found.get(kind, 0) - said.get(kind, 0)) for kind in found.keys() | said.keys())


def memory(program: Program, hardware: Hardware) -> int:
    return whole(memory_on(program.function("step"), program.placed_on, hardware.device).total)


def allocated(step: Any, is_tpu: bool = False) -> int:
    """Return the bytes of one device while a compiled step runs. Results overwrite the arguments that they replace."""
    return memory_of(step, is_tpu)["total"]


def unpooling(function: Function, mesh: Mesh, device: Device) -> float:
    """Return the predicted seconds of gradients of max-pools. The compiler states no cycles of its select-and-scatter."""
    fusion, seconds = fusion_of(function, mesh, device), 0.0
    for eqn, each in zip(function.body, work(function, mesh, device), strict=True):
        if eqn.regions:
            seconds += dim_of(eqn).size * unpooling(region_of(eqn), mesh, device)
        elif fusion.kernel(eqn) == "unpool" or _is_of_pool(eqn, fusion):
            seconds += each.seconds
    return seconds


def _is_of_pool(eqn: Equation, fusion: FusionModel) -> bool:
    """True for an equation that marks the largest elements of windows, or that puts gradients there for `fold`."""
    if eqn.op == "is_argmax":
        seen = (each for value in eqn.operands for each in fusion.seen(value)[:-1])
        return any(fusion.makers[each].op == "window" for each in seen)
    users = [*fusion.users(eqn.results[0])] if eqn.op == "mask" else []
    return bool(users) and all(user.op == "fold" for user in users)
