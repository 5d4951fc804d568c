"""Predicted steps of placed modules on virtual devices, which share the cores and the host.

FlexFlow's assumptions hold for devices of their own: a device runs one task at a time, and a transfer takes bytes over
bandwidth. Virtual devices of the CPU differ. XLA runs the programs of all devices on one pool of threads, a transfer is a copy
by a core, and the host needs time for each call, also for pieces that are cut, joined and added. So each call of the module is a
task here. It is measured once for its program and sizes, alone, with arrays that no cache holds. The tasks then share the cores,
in the order in which the host starts them.
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

RUNS, RUN, MOST_CALLS = 4, 0.02, 250
"""Runs in which a call is measured; the seconds of a run, and its most calls."""

QUEUED = 16
"""Calls for which the host does not wait: JAX lets no more than 32 be under way on a device."""

KEPT = 1 << 26
"""Most bytes that a run makes, about as many as a step."""

Key = tuple[object, ...]


@attrs.frozen
class CallTime:
    """The seconds of the host for one of many queued calls, those until its result is there, and its processor seconds."""

    host: float
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
            self.known[key] = call_time(function, arguments)
        return key


def call_time(function: Any, arguments: Sequence[Any]) -> CallTime:
    """Measure one of many queued calls: the least of several runs, after one that compiles.

    Results are kept until a run ends, and calls take turns with copies of the arguments, so that calls read and write memory that
    no cache holds, as in a step.
    """
    jax = import_jax()
    copies = [arguments]

    def run(count: int) -> tuple[float, float, float]:
        begin = perf_counter(), process_time()
        results = [function(*copies[n % len(copies)]) for n in range(min(count, QUEUED))]
        host = (perf_counter() - begin[0]) / len(results)
        results += [function(*copies[n % len(copies)]) for n in range(QUEUED, count)]
        jax.block_until_ready(results)
        return host, (perf_counter() - begin[0]) / count, (process_time() - begin[1]) / count

    results, operands = bytes_of(function(*arguments)), bytes_of(arguments)
    count = int(min(MOST_CALLS, RUN / max(run(1)[1], LEAST), KEPT / max(results, 1))) or 1
    for _ in range(min(count - 1, KEPT // max(operands, 1))):
        copies.append(jax.tree.map(lambda x: x.copy() if hasattr(x, "nbytes") else x, arguments))
    jax.block_until_ready(copies)
    found = [run(count) for _ in range(RUNS)]
    return CallTime(*(min(each) for each in zip(*found, strict=True)))


def bytes_of(tree: Any) -> int:
    """Return the bytes of the arrays of a tree."""
    return sum(getattr(x, "nbytes", 0) for x in import_jax().tree.leaves(tree))


def processor_seconds(calls: Sequence[Call], known: Mapping[Key, CallTime]) -> float:
    """Return the processor seconds of all calls."""
    return sum(known[each.key].processor for each in calls)


def step_seconds(calls: Sequence[Call], known: Mapping[Key, CallTime], cores: int | None = None) -> float:
    """Return the seconds of a step.

    The host starts the calls in order, and needs a core for it. A task that uses several cores alone gets as many if they are
    free. If tasks ask for more cores than there are, all get slower alike.
    """
    cores = cores or os.cpu_count() or 1
    hosts, lengths, widths = [], [], []
    for each in calls:
        time = known[each.key]
        hosts.append(min(time.host, time.processor))
        work = max(time.processor - hosts[-1], LEAST)
        lengths.append(max(time.seconds - hosts[-1], work / cores))
        widths.append(min(cores, max(1.0, work / lengths[-1])))
    waiting = [len(each.operands) + 1 for each in calls]
    readers: list[list[int]] = [[] for _ in calls]
    for number, each in enumerate(calls):
        for operand in each.operands:
            readers[operand].append(number)
    now, started, left = 0.0, 0, {HOST: hosts[0]} if calls else {}
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
                left |= {HOST: hosts[started]} if started < len(calls) else {}
            for reader in after:
                waiting[reader] -= 1
                left |= {reader: lengths[reader]} if not waiting[reader] else {}
    return now
