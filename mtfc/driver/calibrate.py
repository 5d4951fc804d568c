"""The measured figures of this machine, for `mtfc calibrate`: as hardware text, and of operator parts in a file of the cache.

There is a file for each kind of device and each set of versions: times of other versions are not times of this machine. `mtfc
simulate --measured` reads it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.backends.common.devices import devices, import_jax, reserve
from mtfc.backends.registry import BACKENDS
from mtfc.compiler.activity import each_of
from mtfc.driver.data.files import cache, write_text
from mtfc.driver.errors import UsageError, say
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.version import installed_version

if TYPE_CHECKING:
    from mtfc.compiler.ir.core import Program
    from mtfc.placements.running.jax.part_times import MeasuredTimes

HINT = (
    "Rates by size: FLOPs of a matrix product, bytes that a kernel reads and writes, bytes of a collective."
)


def check_devices(backend: str, devices: int | None) -> None:
    """Raise `UsageError` if a number of devices is given for NumPy."""
    if backend == "numpy" and devices is not None:
        raise UsageError("--devices is for JAX; NumPy computes on one device")


def measure(backend: str, devices: int | None, quick: bool, shapes: bool = False) -> str:
    """Measure the machine, and return its declaration with a comment. Raises `Unavailable`.

    devices: the number of JAX devices; None takes all. quick: take few sizes and short runs. shapes: measure also dots of
    matrices that are not square.
    """
    from mtfc.backends.calibrate.calibration import QUICK, Effort
    from mtfc.backends.common import allocator
    from mtfc.frontend.hardware.declarations import hardware_text

    allocator.keep_memory()
    effort = attrs.evolve(QUICK if quick else Effort(), shapes=shapes)
    hardware, tool = BACKENDS[backend].measure(devices, effort)
    return hardware_text(hardware, f"Measured by mtfc calibrate with {tool}.\n{HINT}")


SAVED = 20
"""The number of newly measured parts after which the file is written."""


def surroundings() -> dict[str, str]:
    """Return the facts that measured times depend on. Raises `Unavailable` without JAX."""
    from importlib.metadata import version

    jax = import_jax()
    device = devices(1)[0]
    return {
        "mtfc": str(installed_version()),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "device": f"{device.platform} {device.device_kind}",
        "machine": f"{platform.node()} {platform.machine()} {os.cpu_count()}",
        "XLA_FLAGS": " ".join(sorted(os.environ.get("XLA_FLAGS", "").split())),
    }


def times_file(about: Mapping[str, str]) -> Path:
    """Return the path of the times in some surroundings."""
    return cache() / "operators" / f"{sha256(repr(sorted(about.items())).encode()).hexdigest()[:16]}.json"


def read_times(devices: int) -> MeasuredTimes:
    """Return the times that are on disk for these surroundings; none if there are none, or if the file is damaged."""
    from mtfc.placements.running.jax.part_times import MeasuredTimes

    reserve(devices)
    path = times_file(surroundings())
    try:
        record = json.loads(path.read_text("utf-8"))
        known = {str(key): float(seconds) for key, seconds in record["seconds"].items()}
        latency, bandwidth = map(float, record["transfer"]) if record["transfer"] else (0.0, 0.0)
    except FileNotFoundError:
        return MeasuredTimes({})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        say(f"{path} is damaged, and measured anew")
        return MeasuredTimes({})
    return MeasuredTimes(known, (latency, bandwidth) if bandwidth else None)


def write_times(times: MeasuredTimes) -> Path:
    """Write the times for these surroundings; return the path. Raises `UsageError`."""
    about = surroundings()
    path = times_file(about)
    record: dict[str, Any] = {"about": about, "transfer": times.transfer, "seconds": times.known}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    write_text(str(path), json.dumps(record, indent=1) + "\n")
    return path


def calibrate_operators(file: str, choice: Choice, sources: Sources, count: int | None) -> str:
    """Measure every part of the operators of a model that is not on disk; return a sentence about the result.

    The parts are those of the chosen placement, or else of every legal configuration on `count` devices, by default all that JAX
    has. Raises `CompileError`, `UsageError` and `Unavailable`.
    """
    from mtfc.placements.running.jax.part_times import transfer_times

    selection = select(file, choice, sources, or_placement=True)
    placement = None if selection.cases else selection.placements[0]
    if placement is not None and count is not None:
        raise UsageError(f"`{placement.name}` is a placement, which has devices of its own: no --devices")
    number = placement.devices if placement else count or len(import_jax().devices())
    times = read_times(number)
    before, new = len(times.known), 0

    def measured(each: Any) -> float:
        """Return the measured seconds of a part; the times are saved every so often."""
        nonlocal new
        new += 1
        if new % SAVED == 0:
            write_times(times)
            say(f"{new} parts are measured")
        return float(each.seconds())

    times.measure = measured
    times.transfer = times.transfer or transfer_times(number)
    for step, parts, flow in each_of([*_parts_of(selection.program, placement, number)], "part"):
        times.seconds(flow, step, parts)
    path = write_times(times)
    return f"{len(times.known) - before} of {len(times.known)} parts in {path} are new"


def _parts_of(program: Program, placement: Any, count: int) -> Any:
    """Yield each step, its parts and the graph they belong to."""
    from mtfc.compiler.diagnostics import Diagnostics
    from mtfc.compiler.passes.pipelines import run, simplification
    from mtfc.frontend.hardware_targets import find_hardware
    from mtfc.placements.declarations import strategy_of
    from mtfc.placements.operators.operator_parts import OperatorParts
    from mtfc.placements.placement_search import placement_space

    space = placement_space(run(program, simplification()), find_hardware("p100_cluster", {}), count)
    flow = space.evaluator.tasks.flow
    if placement is not None:
        strategy = strategy_of(placement, space.graph, Diagnostics())
        chosen = [[each.degrees] for each in strategy]
    else:
        chosen = [list(each.degrees) for each in space.choices]
    for operator, options in zip(space.graph.operators, chosen, strict=True):
        for degrees in options:
            parts = OperatorParts(operator, degrees)
            yield from ((step, parts, flow) for step in operator.steps)
