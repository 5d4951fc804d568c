"""Small models, and the batches that data gives them."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from mtfc.backends.common.shares import Share
from mtfc.compiler.ir.core import Program
from mtfc.driver.training.data_sources import DataSource
from tests.harness import load

Batch = Mapping[str, Any]

BATCH, LENGTH, IO, VOCAB = 8, 5, 3, 300

CLASSIFIER = """\
dim batch = 8
dim io = 3
dim classes = 300
model small(x: f32[batch, io], scale: f32[io], labels: i32[batch]) {
  param w: f32[io, classes] = normal()
  loss = mean(square(einsum(x * scale, w -> [batch, classes]) - one_hot(labels, classes)))
  return loss
}
"""

TOKENS = """\
dim batch = 8
dim length = 5
dim vocab = 300
model lm(tokens: i32[batch, length]) {
  param w: f32[vocab] = normal()
  loss = mean(gather(w, tokens, vocab))
  return loss
}
"""


SCALED = """\
dim batch = 8
model scaled(factor: f32[], x: f32[batch], chosen: bool[batch]) {
  param w: f32[] = normal()
  loss = mean(where(chosen, x * factor, 0.0) * w)
  return loss
}
"""


@lru_cache
def program(source: str) -> Program:
    (found,) = load(source).programs
    return found


def steps(source: DataSource, share: Share, seed: int | None, start: Any = None) -> Iterator[Batch]:
    """Yield the batches of a source, and close it."""
    iterator = source.batches(share, seed, start)
    try:
        while True:
            try:
                yield next(iterator)
            except StopIteration:
                return
    finally:
        iterator.close()


def taken(source: DataSource, count: int, seed: int | None, share: Share | None = None) -> list[Batch]:
    return list(islice(steps(source, share or Share(), seed), count))


def shares(processes: int) -> list[Share]:
    """Return the parts of processes that split the batch; all of them hold the same rows of `scale`."""
    part = BATCH // processes
    split = ("x", "labels", "tokens")
    return [
        Share(dict.fromkeys(split, ((i * part, (i + 1) * part),)) | {"scale": ((1, 3),)})
        for i in range(processes)
    ]
