"""Predicted steps of placed modules on virtual devices, which share the cores and the host.

FlexFlow's assumptions hold for devices of their own: a device runs one task at a time, and a transfer takes bytes over
bandwidth. Virtual devices of the CPU differ. XLA runs the programs of all devices on one pool of threads, a transfer is a copy
by a core, and the host needs time for each call, also for pieces that are cut, joined and added. So each call of the module is a
task here. It is measured once for its program and sizes, alone. The tasks then share the cores, in the order in which the host
starts them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from time import perf_counter, process_time
from typing import Any

import attrs

from mtfc.backends.common.devices import import_jax

HOST = -1
"""The number of the host among the tasks under way."""

LEAST = 1e-7
"""Least seconds of a task."""

RUNS, RUN, MOST_CALLS = 4, 0.02, 1000
"""Runs in which a call is measured; the seconds of a run, and its most calls."""

KEPT = 1 << 26
"""Most bytes that a run makes, about as many as a step."""

Key = tuple[object, ...]


@attrs.frozen
class CallTime:
    """The seconds of one of many queued calls, and its processor seconds."""

    seconds: float
    processor: float


@attrs.frozen
class Call:
    """A call of a module. key: its program, and the shapes of its arrays. operands: the calls that it waits for, by number."""

    key: Key
    operands: tuple[int, ...]


@attrs.define
class Recorder:
    """Records the calls of steps, and measures those that are new."""

    known: dict[Key, CallTime] = attrs.field(factory=dict)

    def calls(self, module: Any, step: Callable[[], object]) -> list[Call]:
        """Return the calls of a step of a module, in the order in which the host makes them."""
        found: list[Call] = []
        makers: dict[int, int] = {}
        kept: list[object] = []  # arrays, whose addresses may not be used again
        tasks = {
            name: each for name, each in vars(module).items() if name == "send" or hasattr(each, "lower")
        }

        def recorded(name: str, function: Any) -> Callable[..., Any]:
            leaves = import_jax().tree.leaves

            def call(*arguments: Any) -> Any:
                arrays = [x for x in leaves(arguments) if hasattr(x, "dtype")]
                results = function(*arguments)
                if any(isinstance(x, import_jax().core.Tracer) for x in arrays):
                    return results
                operands = {makers[id(x)] for x in arrays if id(x) in makers}
                found.append(Call(self._measured(name, function, arguments, arrays), tuple(sorted(operands))))
                for x in leaves(results):
                    makers[id(x)] = len(found) - 1
                    kept.append(x)
                return results

            return call

        try:
            for name, function in tasks.items():
                setattr(module, name, recorded(name, function))
            step()
        finally:
            for name, function in tasks.items():
                setattr(module, name, function)
        return found

    def _measured(self, name: str, function: Any, arguments: Sequence[Any], arrays: Sequence[Any]) -> Key:
        """Measure a call unless an equal one is known; return its key."""
        text = name
        if name != "send":
            lowered = re.sub(r"@jit_\w+", "", function.lower(*arguments).as_text())
            text = sha256(lowered.encode()).hexdigest()
        key = (text, *((str(x.dtype), x.shape) for x in arrays))
        if key not in self.known:
            import_jax().block_until_ready(list(arrays))
            self.known[key] = call_time(lambda: function(*arguments))
        return key


def call_time(call: Callable[[], Any]) -> CallTime:
    """Measure one of many queued calls: the least of several runs, after one that compiles.

    Results are kept until a run ends, so that calls write to memory of their own, as in a step.
    """
    jax = import_jax()

    def run(count: int) -> tuple[float, float]:
        begin = perf_counter(), process_time()
        jax.block_until_ready([call() for _ in range(count)])
        return perf_counter() - begin[0], process_time() - begin[1]

    size = sum(x.nbytes for x in jax.tree.leaves(call()))
    count = int(min(MOST_CALLS, RUN / max(run(1)[0], LEAST), KEPT / max(size, 1))) or 1
    found = [run(count) for _ in range(RUNS)]
    return CallTime(min(wall for wall, _ in found) / count, min(used for _, used in found) / count)


def processor_seconds(calls: Sequence[Call], known: Mapping[Key, CallTime]) -> float:
    """Return the processor seconds of all calls."""
    return sum(known[each.key].processor for each in calls)


def step_seconds(
    calls: Sequence[Call], known: Mapping[Key, CallTime], dispatch: float, cores: int | None = None
) -> float:
    """Return the seconds of a step. dispatch: the seconds of the host for a call.

    The host starts the calls in order, and needs a core for it. A task that uses several cores alone gets as many if they are
    free. If tasks ask for more cores than there are, all get slower alike.
    """
    cores = cores or os.cpu_count() or 1
    lengths, widths = [], []
    for each in calls:
        time = known[each.key]
        work = max(time.processor - dispatch, LEAST)
        lengths.append(max(time.seconds - dispatch, work / cores))
        widths.append(min(cores, max(1.0, work / lengths[-1])))
    waiting = [len(each.operands) + 1 for each in calls]
    readers: list[list[int]] = [[] for _ in calls]
    for number, each in enumerate(calls):
        for operand in each.operands:
            readers[operand].append(number)
    now, started, left = 0.0, 0, {HOST: dispatch} if calls else {}
    while left:
        speed = min(1.0, cores / sum(1.0 if n == HOST else widths[n] for n in left))
        least = min(left.values())
        now += least / speed
        ended = [n for n, rest in left.items() if rest <= least * (1 + 1e-9)]
        left = {n: rest - least for n, rest in left.items() if n not in ended}
        for each_ended in ended:
            after = [started] if each_ended == HOST else readers[each_ended]
            if each_ended == HOST:
                started += 1
                left |= {HOST: dispatch} if started < len(calls) else {}
            for reader in after:
                waiting[reader] -= 1
                left |= {reader: lengths[reader]} if not waiting[reader] else {}
    return now
