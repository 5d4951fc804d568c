"""The data of a training run: batches for one process, from files or from a Python function.

The order of examples depends on the seed alone, so all processes and layouts agree on the global batch, and each process reads
its own rows only. Grain mixes sources, reads ahead in threads, and counts the steps that were handed out. The position in the data is
the number of the next step, for any number of processes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from mtfc.backends.common.shares import Ranges, Share
from mtfc.compiler.diagnostics import nearest
from mtfc.compiler.ir.core import Program
from mtfc.driver.data.array_files import Array
from mtfc.driver.data.packages import import_package
from mtfc.driver.errors import UsageError, reason_of
from mtfc.driver.training.batch_iterators import (
    AHEAD,
    BatchIterator,
    DataSource,
    Position,
    PositionedIterator,
)
from mtfc.driver.training.data_inputs import DataInput, data_inputs
from mtfc.driver.training.example_files import TOKEN_DTYPES, Examples, open_examples
from mtfc.driver.training.example_order import ExampleOrder
from mtfc.driver.training.user_data import FUNCTION, load_function

SHUFFLE = 2
"""The number of the rule that orders examples: a position in one order has no meaning in another."""

THREADS = 2
"""The number of threads that read examples from files."""


def open_source(spec: str, program: Program, accumulate: int = 1, takes_rest: bool = False) -> DataSource:
    """Open data for the undistributed model. Raises `CompileError` (E501 to E504, E506), `UsageError` and `Unavailable`.

    spec: a file `.npz` or `.npy`, `NAME=FILE.npy,...` for several inputs, `FILE:DTYPE` for a file of tokens, a directory of such
    files, or `MODULE:FUNCTION`. accumulate: the number of micro-batches of a step. takes_rest: the data may have fewer
    examples than a step takes.
    """
    inputs = data_inputs(program)
    if not inputs:
        raise UsageError(f"model {program.name} has no inputs: leave out --data")
    if _is_function(spec):
        return load_function(spec, inputs, accumulate)
    try:
        source = FileSource(open_examples(*_location(spec), inputs), inputs, accumulate)
        return source if takes_rest and source.examples.count else source.checked()
    except OSError as error:
        raise UsageError(f"{spec}: {reason_of(error)}") from None


def _is_function(spec: str) -> bool:
    """Return True for `MODULE:FUNCTION`; a name before the colon that is a file is that of a file of tokens."""
    match = FUNCTION.fullmatch(spec)
    return match is not None and match[2] not in TOKEN_DTYPES and not Path(match[1]).is_file()


def _location(spec: str) -> tuple[str, str | None]:
    """Return the path and the dtype of tokens of a specification of files. Raises `UsageError`."""
    path, colon, dtype = spec.rpartition(":")
    if colon and dtype in TOKEN_DTYPES:
        return path, dtype
    if Path(spec).is_dir() or Path(spec).suffix in (".npz", ".npy"):  # `NAME=FILE.npy,...` ends so, too
        return spec, None
    if colon and Path(path).is_file():
        near = nearest(dtype, TOKEN_DTYPES)
        help = f"did you mean {near}?" if near else f"expected one of {', '.join(TOKEN_DTYPES)}"
        raise UsageError(f"{spec}: unknown dtype {dtype} of tokens; {help}")
    if Path(spec).is_file():
        raise UsageError(f"{spec}: give the dtype of its tokens, as in {spec}:uint16")
    raise UsageError(f"{spec}: no such file or directory; {FORMS}")


FORMS = (
    "expected a file .npz or .npy, NAME=FILE.npy,... for several inputs, FILE:DTYPE for tokens such as tokens.bin:uint16,"
    " a directory of such files, or MODULE:FUNCTION"
)


@attrs.frozen(eq=False)
class FileSource:
    """Examples of files, `accumulate` global batches a step."""

    examples: Examples
    inputs: Sequence[DataInput]
    accumulate: int = 1

    @property
    def per_step(self) -> int:
        """Number of examples in a step."""
        return self.examples.dim.size * self.accumulate

    @property
    def steps_per_epoch(self) -> int:
        return self.examples.count // self.per_step

    @property
    def rest(self) -> int:
        """Number of examples after the last whole step."""
        return self.examples.count % self.per_step

    def rest_batch(self, share: Share, inputs: Sequence[DataInput]) -> dict[str, Array]:
        """Return this process's rows of the examples after the last whole step of one batch, for a model with these inputs."""
        order = ExampleOrder(self.examples.count, None)
        return StepReads(attrs.evolve(self, inputs=inputs), share, order).batch(0, self.steps_per_epoch)

    def checked(self) -> FileSource:
        """Return this source. Raises `UsageError` if it has too few examples for one step."""
        if not self.steps_per_epoch:
            size, dim = self.examples.dim.size, self.examples.dim.name
            batches = (
                f"{self.accumulate} batches of {dim} = {size}" if self.accumulate > 1 else f"{dim} = {size}"
            )
            raise UsageError(
                f"{self.examples.name} has {self.examples.count} examples, and a step takes {batches}:"
                f" give more data, or a smaller batch with --dim {dim}=N"
            )
        return self

    def description(self) -> str:
        count, steps = self.examples.count, self.steps_per_epoch
        rest = count - steps * self.per_step
        left = f"; {rest} are left out of each epoch, too few for a step" if rest else ""
        return f"{self.examples.name}: {count} examples, {steps} step{'s'[: steps - 1]} an epoch{left}"

    def batches(self, share: Share, seed: int | None, start: Position | None = None) -> BatchIterator:
        reads = self._reads(share, seed)
        grain = import_package("grain", "grain")
        steps = self.steps_per_epoch if seed is None else sys.maxsize
        options = grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=AHEAD)
        iterator = iter(grain.MapDataset.range(steps).map(reads).to_iter_dataset(options))
        order = {"examples": self.examples.count, "per_step": self.per_step, "seed": seed, "shuffle": SHUFFLE}
        return PositionedIterator.at(iterator, order, start, self.examples.name)

    def _reads(self, share: Share, seed: int | None) -> StepReads:
        return StepReads(self, share, ExampleOrder(self.examples.count, seed))

    def places(self, position: Position, seed: int | None) -> str:
        reads = self._reads(Share(), seed)
        return self.examples.places(reads.numbers(position["iterator"]["next_index"] - 1))


@attrs.frozen(eq=False)
class StepReads:
    """Reads the rows of a step for one process."""

    source: FileSource
    share: Share
    order: ExampleOrder

    def __call__(self, step: int) -> dict[str, Array]:
        """Return the arrays of a step, counted from 0."""
        import numpy as np

        epoch, within = divmod(step, self.source.steps_per_epoch)
        count = self.source.accumulate
        parts = [self.batch(epoch, within * count + i) for i in range(count)]
        if count == 1:
            return parts[0]
        return {name: np.stack([part[name] for part in parts]) for name in parts[0]}

    def numbers(self, step: int) -> Array:
        """Return the numbers of the examples of a step, counted from 0, in the global batch."""
        import numpy as np

        per_step = self.source.per_step
        epoch, within = divmod(step, self.source.steps_per_epoch or sys.maxsize)
        return self.order.numbers(epoch, within * per_step + np.arange(per_step))

    def batch(self, epoch: int, number: int) -> dict[str, Array]:
        """Return this process's rows of a global batch; `number` counts from the first one of the epoch."""
        examples = self.source.examples
        known: dict[Ranges, Array] = {}  # inputs mostly have the same rows
        batch = {}
        for each in self.source.inputs:
            rows = self.share.rows(each.name, each.rows)
            if each.name in examples.constants:
                constant = examples.constants[each.name]
                batch[each.name] = constant[rows] if each.shape else constant
                continue
            ranges = self.share.ranges_of(each.name, each.rows)
            if ranges not in known:
                known[ranges] = self.order.numbers(epoch, number * examples.dim.size + rows)
            batch[each.name] = examples.read(each, known[ranges])
        return batch
