# mypy: allow-untyped-calls
"""`mtfc train`: its loop beside a bare loop, checkpoints while it trains, and the memory of opening them.

All run on one device of the CPU. Steps and the threads that write a checkpoint share the cores there, so steps beside a save take
longer; on an accelerator only the call of `save` holds up training.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import attrs

import mtfc
from benchmarks.figures import Figure
from mtfc.backends.common import allocator
from mtfc.driver.data.array_files import About
from mtfc.driver.training.checkpoints import Checkpoints, Saving, kinds
from mtfc.driver.training.data_interface import BatchIterator
from mtfc.driver.training.data_sources import open_source
from mtfc.driver.training.loop import Schedule, TrainLoop
from mtfc.driver.training.metrics import JsonLines, Lines, Sink, Throughput
from mtfc.driver.training.signals import Stop

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import JaxProgram

ARRAYS = 16
"""Number of parameters that share the gigabyte."""

PARAMETERS = "\n".join(f"  param w{i}: [rows, columns] = normal(stddev = 0.02)" for i in range(ARRAYS))

LARGE = f"""
dim rows = 512
dim columns = 32768
mesh one = [only: 1]
mesh line = [all: 8]
layout alone on one = {{}}
layout fsdp on line = {{ params: {{ *: all }} }}
model large(x: [rows]) {{
{PARAMETERS}
  loss = {" + ".join(f"mean(square(w{i} * x))" for i in range(ARRAYS))}
  return loss
}}
train large {{
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}}
"""

NETWORK = """
dim batch = 128
dim io = 256
dim hidden = 2048
dim middle = 2048
mesh one = [only: 1]
layout alone on one = {}
model network(x: [batch, io], y: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.05)
  param m: [hidden, middle] = normal(stddev = 0.02)
  param v: [middle, io] = normal(stddev = 0.02)
  h = tanh(einsum(x, w -> [batch, hidden]))
  k = tanh(einsum(h, m -> [batch, middle]))
  loss = mean(square(einsum(k, v -> [batch, io]) - y))
  return loss
}
train network {
  minimize loss
  optimizer = adam(learning_rate = 0.001)
}
"""
"""Steps of about 50 ms on two cores."""

STEPS = 30
"""Steps of one measurement of a loop."""

ROUNDS = 5
"""Measurements of each loop, in turns."""

SAVES = 3
"""Saves that are measured, after a first one: that one also takes new memory from the system."""


def figures() -> Iterator[Figure]:
    allocator.keep_memory()  # as in `mtfc train`
    yield from loops()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        yield from saves(Path(folder))
        for devices, layout in ((1, "alone"), (8, "fsdp")):
            growth = restored_in_a_process(Path(folder), layout)
            what = f"peak memory of opening it on {devices} device{'s'[: devices - 1]}, over its size"
            yield Figure(what, growth, "x", 1.3)


def program(source: str, layout: str = "alone") -> JaxProgram:
    from mtfc.backends.jax.jax_program import JaxProgram

    return JaxProgram.of(mtfc.compile_text(source, layout=layout).jax())


# The loop


@attrs.frozen(eq=False)
class TimedBatches(BatchIterator):
    """Batches of a source, and the seconds that each one was waited for."""

    waits: list[float] = attrs.field(factory=list)

    def __next__(self) -> dict[str, Any]:
        start = time.perf_counter()
        batch = super().__next__()
        self.waits.append(time.perf_counter() - start)
        return batch


def loops() -> Iterator[Figure]:
    """Compare the loop of `mtfc train`, with data of a file and metrics, with a loop around `train_step` on arrays in memory."""
    import numpy as np

    on_device, numbers = program(NETWORK), np.random.default_rng(0)
    arrays = {name: numbers.standard_normal((128 * 20, 256), np.float32) for name in "xy"}
    batches = [{name: x[128 * i :][:128] for name, x in arrays.items()} for i in range(20)]
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/data.npz", allow_pickle=False, **arrays)
        measured = [(bare(on_device, batches), trained(on_device, Path(folder))) for _ in range(ROUNDS + 1)]
    rounds = measured[1:]
    step = median(seconds for seconds, _ in rounds)
    yield Figure("step of a loop around train_step", 1000 * step, "ms")
    yield Figure("step of mtfc train", 1000 * median(seconds for _, (seconds, _) in rounds), "ms")
    ratio = median(seconds / alone for alone, (seconds, _) in rounds)
    yield Figure("mtfc train over a loop around train_step", ratio, "x", 1.03)
    waits = [wait for _, (_, found) in rounds for wait in found[1:]]
    yield Figure("waiting for a batch, median, as a share of a step", 100 * median(waits) / step, "%", 1)


def bare(on_device: JaxProgram, batches: list[dict[str, Any]]) -> float:
    """Return the seconds of a step."""
    state = on_device.init(0)
    state, metrics = on_device.train_step(state, batches[0])
    float(metrics["loss"])
    start = time.perf_counter()
    for i in range(STEPS):
        state, metrics = on_device.train_step(state, batches[(i + 1) % len(batches)])
    float(metrics["loss"])
    return (time.perf_counter() - start) / STEPS


def trained(on_device: JaxProgram, folder: Path) -> tuple[float, list[float]]:
    """Return the seconds of a step of `mtfc train`, after the first, and the seconds that each batch was waited for."""
    compiled = mtfc.compile_text(NETWORK, layout="alone")
    source = open_source(str(folder / "data.npz"), compiled.program)
    read = source.batches(on_device.share, 0)
    batches = TimedBatches(read.iterator, read.order)
    sinks: list[Sink] = [
        JsonLines.open(folder / "metrics.jsonl", 0),
        Lines(StringIO(), STEPS + 1, max(1, STEPS // 20)),
    ]
    state = on_device.init(0)
    about = About("network", "", 0, 0, kinds(state), {})
    loop = TrainLoop(
        on_device,
        state,
        batches,
        Schedule(STEPS + 1),
        "loss",
        Throughput("examples", 128),
        None,
        lambda _: {},
        Saving(None, about, None, None),
        sinks,
    )
    loop.run(Stop())
    batches.close()
    for sink in sinks:
        sink.close()
    return sum(step.seconds for step in loop.steps[1:]) / STEPS, batches.waits


# Checkpoints


def saves(folder: Path) -> Iterator[Figure]:
    """Save 1 GB of parameters between steps."""
    import jax
    import numpy as np

    on_device, batch = program(LARGE), {"x": np.full(512, 0.1, np.float32)}
    state = on_device.init(0)

    def step() -> float:
        nonlocal state
        start = time.perf_counter()
        state, _ = on_device.train_step(state, batch)
        jax.block_until_ready(state)
        return time.perf_counter() - start

    found = []
    with Checkpoints.open(folder, keep=1) as checkpoints:
        for _ in range(SAVES + 1):
            alone = median(step() for _ in range(5))
            about = About("large", "", int(state.step), 0, kinds(state), {})
            start = time.perf_counter()
            checkpoints.save(state, about)
            pause, beside = time.perf_counter() - start, []
            assert checkpoints.under_way is not None
            while not checkpoints.under_way.done():
                beside.append(step())
            checkpoints.wait()
            written = time.perf_counter() - start
            found.append((written, pause, sum(beside) - alone * len(beside)))
    written = median(written for written, _, _ in found[1:])
    yield Figure("writing a checkpoint of 1 GB beside training", written, "s")
    pause = median(100 * pause / written for written, pause, _ in found[1:])
    yield Figure("training stands still for the save, of the time of writing", pause, "%", 5)
    slower = median(100 * (pause + longer) / written for written, pause, longer in found[1:])
    yield Figure("the same with the longer steps beside the writer, on shared cores", slower, "%")


def restored_in_a_process(folder: Path, layout: str) -> float:
    """Return the growth of a new process's peak memory over the size of the checkpoint that it opens."""
    code = f"from benchmarks.training import restored; restored({str(folder)!r}, {layout!r})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def restored(folder: str, layout: str) -> None:
    """Open the newest checkpoint, and print the growth of the peak memory over its size. Linux counts the peak."""
    import jax

    from mtfc.backends.common.devices import reserve

    reserve(8)
    allocator.use_one_heap()  # as in `mtfc train`
    abstract = program(LARGE, layout).abstract_state
    jax.block_until_ready(jax.jit(lambda: jax.numpy.zeros(8))())
    size = sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(abstract))
    with Checkpoints.open(Path(folder), keep=1) as checkpoints:
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        state, _ = checkpoints.restore(checkpoints.steps[-1], abstract)
        jax.block_until_ready(state)
        print((_memory("VmHWM") - before) / size)


def _memory(name: str) -> int:
    """Return a figure of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
