"""Run a model on batch after batch, and report each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import attrs

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
    joined, if that is not the first.
    """

    parts: Sequence[Arrays]
    rows: tuple[int, ...] | None = None
    axes: Mapping[str, int] = attrs.field(factory=dict)

    def joined(self) -> Arrays:
        """Join each output of all batches along the rows; scalars become a row."""
        import numpy as np

        if len(self.parts) == 1:
            return dict(self.parts[0])
        columns = {name: [np.atleast_1d(part[name]) for part in self.parts] for name in self.parts[0]}
        return {name: np.concatenate(column, self.axes.get(name, 0)) for name, column in columns.items()}

    def mean(self, name: str) -> float:
        """Return the mean of an output over all rows: each batch weighs by its number of rows."""
        import numpy as np

        means = [np.mean(part[name], dtype=np.float64) for part in self.parts]
        return float(np.average(means, weights=self.rows))

    def means(self) -> dict[str, float]:
        """Return the means of the outputs with at most one dimension."""
        return {name: self.mean(name) for name, array in self.parts[0].items() if array.ndim < 2}

    def weighted(self) -> dict[str, float]:
        """Return the means of scalar outputs, if batches have different numbers of rows."""
        if self.rows is None:
            return {}
        return {name: self.mean(name) for name, array in self.parts[0].items() if array.ndim == 0}


def evaluate(
    session: Session,
    program: Program,
    batches: Batches,
    number: int,
    done: Callable[[int, float, Arrays], object],
) -> BatchResults:
    """Run the model on the first batches; call `done` with each batch's number, start and outputs."""
    parts = []
    for i in range(number):
        start = time.perf_counter()
        parts.append(session.evaluate("forward", batches[i], batches.smaller(i)))
        done(i, start, parts[-1])
    is_uneven = batches.rest and number == batches.count and number > 1
    rows = tuple(map(batches.rows, range(number))) if is_uneven else None
    outputs = {output.name: output.value.type for output in program.function("forward").handed_out}
    return BatchResults(
        parts, rows, {name: joined_axis(type, batches.dims) for name, type in outputs.items()}
    )


def losses_of(steps: Sequence[StepRecord]) -> Array:
    """Return the losses of training steps as an array in f32."""
    import numpy as np

    return np.array([step["loss"] for step in steps], np.float32)
