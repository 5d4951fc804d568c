"""Measured times of operator parts, and of transfers between devices (FlexFlow, section 5: assumptions A1 and A2).

A part of some size takes the same time on every device, whatever its numbers. So each is measured once, alone on one device,
under a key that names its equations and sizes: parts of other operators, networks and placements share the time. Caches are
warm, and calls are queued without waiting, as in a step.
"""

import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import attrs
import numpy as np

from mtfc.backends.common.devices import devices, import_jax
from mtfc.backends.common.module import executed
from mtfc.compiler.ir.types import ARRAY_DTYPES
from mtfc.placements.operators.cotangent_flow import CotangentFlow
from mtfc.placements.operators.operator_graph import OperatorStep
from mtfc.placements.operators.operator_parts import OperatorParts
from mtfc.placements.running.jax.module import whole_module
from mtfc.placements.running.jax.parts import ModuleFunctions, WrittenFunction
from mtfc.placements.running.jax.passes import written_part
from mtfc.placements.strategy_tasks import middle

RUNS = 3
SECONDS = 0.02
"""Least time of a run, in which a part is called again and again."""

MOST_CALLS = 1000
MESSAGES = (1 << 6, 1 << 22)
"""Bytes of the transfers that are measured."""


@attrs.frozen
class PartPass:
    """One pass of a part: its function, and the text of the part's functions."""

    text: str
    function: WrittenFunction

    @property
    def operands(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The dtypes and the sizes of its operands."""
        types = (argument.value.type for argument in self.function.function.arguments)
        return tuple((type.dtype, tuple(dim.size for dim in type.dims)) for type in types)

    @property
    def key(self) -> str:
        """A name of the equations and sizes, without names and lines of the file."""
        return sha256(repr((self.function.text, self.operands)).encode()).hexdigest()[:24]

    def seconds(self) -> float:
        """Measure a call on a device whose queue is never empty: the least of several runs."""
        return least_seconds(self.call())

    def call(self) -> Callable[[], Any]:
        """Return the pass as a function without arguments, on the first device."""
        jax = import_jax()
        (device,) = devices(1)
        function = getattr(executed(whole_module([self.text])), self.function.name)
        random = np.random.default_rng(0)
        arrays = [_numbers(random, *each) for each in self.operands]
        given = [jax.device_put(x, device) for x in (*arrays, *map(np.int32, self.function.positions))]
        return lambda: function(*given)


def _numbers(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return varied floats; integers are 0, which every index may be."""
    if dtype in ("f32", "bf16", "f16", "f64"):
        numbers = random.standard_normal(shape, np.float32)
        return numbers.astype(import_jax().numpy.dtype(ARRAY_DTYPES[dtype]))
    return np.zeros(shape, ARRAY_DTYPES[dtype])


def least_seconds(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one of many queued calls: the least of several runs, after one that compiles."""
    wait = import_jax().block_until_ready

    def run(count: int) -> float:
        start = clock()
        for _ in range(count - 1):
            call()
        wait(call())
        return clock() - start

    wait(call())
    count = max(1, min(MOST_CALLS, int(SECONDS / max(run(1), 1e-7))))
    return min(run(count) / count for _ in range(RUNS))


def passes(flow: CotangentFlow, step: OperatorStep, parts: OperatorParts) -> Iterator[PartPass]:
    """Yield the forward pass of the middle part, and its backward pass if it has one."""
    functions = ModuleFunctions(None)
    part = written_part(flow, functions, step, parts, middle(parts.degrees))
    text = "\n\n".join(functions.texts)
    yield from (PartPass(text, each) for each in (part.forward, part.backward) if each is not None)


@attrs.define
class MeasuredTimes:
    """The known times of parts by key, and of transfers.

    measure: the function that measures a part whose time is not known; None leaves it to the roofline. found, missing: the number
    of parts whose time was known or measured, and of others.
    """

    known: dict[str, float]
    transfer: tuple[float, float] | None = None
    measure: Callable[[PartPass], float] | None = None
    found: int = 0
    missing: int = 0

    def seconds(
        self, flow: CotangentFlow, step: OperatorStep, parts: OperatorParts
    ) -> tuple[float, float] | None:
        """Return the seconds of both passes of the middle part; None if one of them is not known."""
        times = [self._time(each) for each in passes(flow, step, parts)]
        if None in times:
            self.missing += 1
            return None
        self.found += 1
        forward, *backward = (each for each in times if each is not None)
        return forward, sum(backward)

    def _time(self, each: PartPass) -> float | None:
        """Return the seconds of a pass of a part, measured once; None if nothing is measured."""
        if each.key not in self.known and self.measure is not None:
            self.known[each.key] = self.measure(each)
        return self.known.get(each.key)


def transfer_times(count: int) -> tuple[float, float] | None:
    """Measure transfers between two of `count` devices: latency, and bytes per second; None for one device."""
    if count == 1:
        return None
    jax = import_jax()
    first, second = devices(count)[:2]
    arrays = [jax.device_put(np.ones(size // 4, np.float32), first) for size in MESSAGES]
    times = [least_seconds(lambda x=x: jax.device_put(x, second)) for x in arrays]  # type: ignore[misc]
    return times[0], (MESSAGES[1] - MESSAGES[0]) / max(times[1] - times[0], 1e-9)
