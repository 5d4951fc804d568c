"""Run a model on batch after batch, and report each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import fsum

import attrs

from mtfc.compiler.activity import each_of
from mtfc.compiler.analysis.output_weights import with_weights
from mtfc.compiler.ir.core import Program
from mtfc.driver.data.array_files import Array, Arrays
from mtfc.driver.data.inputs import Batches, joined_axis
from mtfc.driver.running.execution import Session
from mtfc.reports.array_summary import is_figure
from mtfc.reports.run_report import StepRecord


def step_of(number: int, start: float, outputs: Arrays, program: Program) -> StepRecord:
    """Return number, loss and seconds of a step that began at `start` and has just ended."""
    minimized = program.training.minimize if program.training else None
    loss = float(outputs[minimized]) if minimized is not None and minimized in outputs else None
    return {"step": number, "loss": loss, "seconds": time.perf_counter() - start}


def reported(outputs: Arrays, program: Program) -> StepRecord:
    """Return the scalars and short vectors that a training step reports, if it reports any."""
    names = program.training.report if program.training else ()
    figures = {name: outputs[name].tolist() for name in names if is_figure(outputs[name])}
    return {"report": figures} if figures else {}


@attrs.frozen
class BatchResults:
    """The outputs of several batches.

    rows: the number of rows of each batch; None if all batches have the same number. axes: the axis along which each output is
    joined, if that is not the first. counts: for each output that is a mean over a count of the data, the count of each batch.
    """

    parts: Sequence[Arrays]
    rows: tuple[int, ...] | None = None
    axes: Mapping[str, int] = attrs.field(factory=dict)
    counts: Mapping[str, tuple[float, ...]] = attrs.field(factory=dict)

    def joined(self) -> Arrays:
        """Join each output of all batches along the rows; scalars become a row."""
        import numpy as np

        if len(self.parts) == 1:
            return dict(self.parts[0])
        columns = {name: [np.atleast_1d(part[name]) for part in self.parts] for name in self.parts[0]}
        return {name: np.concatenate(column, self.axes.get(name, 0)) for name, column in columns.items()}

    def mean(self, name: str) -> float:
        """Return the mean of an output over all batches: each weighs by its count, or else by its number of rows."""
        import numpy as np

        means = [float(np.mean(part[name], dtype=np.float64)) for part in self.parts]
        weights = self.counts.get(name, self.rows or (1,) * len(means))
        return weighted_mean(list(zip(means, weights, strict=True)))

    def means(self) -> dict[str, float]:
        """Return the means of the outputs with at most one dimension."""
        return {name: self.mean(name) for name, array in self.parts[0].items() if array.ndim < 2}

    def weighted(self) -> dict[str, float]:
        """Return the means of the scalar outputs for which batches have different weights."""
        scalars = [name for name, array in self.parts[0].items() if array.ndim == 0]
        return {name: self.mean(name) for name in scalars if self.rows is not None or name in self.counts}


def weighted_mean(parts: Sequence[tuple[float, float]]) -> float:
    """Return the mean of (mean, weight); a part of weight 0 may have a mean that is not a number."""
    total = fsum(weight for _, weight in parts)
    if not total:
        return fsum(mean for mean, _ in parts) / len(parts)
    return fsum(mean * weight for mean, weight in parts if weight) / total


def evaluate(
    session: Session,
    program: Program,
    batches: Batches,
    number: int,
    done: Callable[[int, float, Arrays], object],
) -> BatchResults:
    """Run the model on the first batches; call `done` with each batch's number, start and outputs.

    The session's `forward` has the counts of `with_weights`.
    """
    counts = with_weights(program)[1]
    parts, weights = list[Arrays](), list[dict[str, float]]()
    for i in each_of(range(number), "evaluating batch"):
        start = time.perf_counter()
        outputs = session.evaluate("forward", batches[i], batches.smaller(i))
        weights.append({name: float(outputs[count]) for name, count in counts.items()})
        parts.append({name: array for name, array in outputs.items() if name not in counts.values()})
        done(i, start, parts[-1])
    is_uneven = batches.rest and number == batches.count and number > 1
    rows = tuple(map(batches.rows, range(number))) if is_uneven else None
    types = {output.name: output.value.type for output in program.function("forward").handed_out}
    axes = {name: joined_axis(type, batches.dims) for name, type in types.items()}
    by_output = {name: tuple(each[name] for each in weights) for name in counts} if number > 1 else {}
    return BatchResults(parts, rows, axes, by_output)


def losses_of(steps: Sequence[StepRecord]) -> Array:
    """Return the losses of training steps as an array in f32."""
    import numpy as np

    return np.array([step["loss"] for step in steps], np.float32)
