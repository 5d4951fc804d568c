"""Readers of training data: batches of a large token file and of a function, and the wait of a step for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.figures import Figure
from mtfc.backends.common.shares import Share
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program
from mtfc.driver.training.data_interface import BatchIterator
from mtfc.driver.training.data_sources import open_source
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.parser import parse

BATCH, LENGTH = 64, 1024

MODEL = f"""\
dim batch = {BATCH}
dim length = {LENGTH}
dim vocab = 65536
model lm(tokens: i32[batch, length]) {{
  param w: f32[vocab] = normal()
  loss = mean(gather(w, tokens, vocab))
  return loss
}}
"""

GIGABYTE = 2**30
STEPS = 500
STEP_SECONDS = 0.05
TIMED_STEPS = 60


def figures() -> Iterator[Figure]:
    (program,) = elaborate(parse(MODEL, "lm.mtf", Diagnostics()), Diagnostics()).programs
    with TemporaryDirectory() as folder:
        spec = f"{_token_file(Path(folder))}:uint16"
        yield from _rates(spec, program)
        yield _wait(spec, program)


def _token_file(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    with (folder / "tokens.bin").open("wb") as file:
        for _ in range(16):
            file.write(generator.integers(0, 60000, GIGABYTE // 32, np.uint16).tobytes())
    return folder / "tokens.bin"


def _batches(spec: str, program: Program, share: Share) -> BatchIterator:
    batches = open_source(spec, program).batches(share, seed=0)
    next(batches)
    return batches


def _rates(spec: str, program: Program) -> Iterator[Figure]:
    """Yield the times of a batch when nothing else runs: the whole one, and the part of one process of eight."""
    part = Share({"tokens": ((0, BATCH // 8),)})
    for what, share in (("the whole batch", Share()), ("the part of one process of 8", part)):
        batches = _batches(spec, program, share)
        start = time.perf_counter()
        for _ in range(STEPS):
            next(batches)
        milliseconds = 1e3 * (time.perf_counter() - start) / STEPS
        batches.close()
        yield Figure(f"1 GB of tokens, {BATCH} x {LENGTH}, {what}", milliseconds, "ms a batch", 5)


def _wait(spec: str, program: Program) -> Figure:
    """Return the part of the time that steps of 50 ms wait for the next batch; a step leaves the processor free."""
    batches = _batches(spec, program, Share())
    waited, start = 0.0, time.perf_counter()
    for _ in range(TIMED_STEPS):
        time.sleep(STEP_SECONDS)
        before = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - before
    share = 100 * waited / (time.perf_counter() - start)
    batches.close()
    return Figure(f"steps of {1e3 * STEP_SECONDS:.0f} ms that wait for data", share, "% of the time", 1)
