"""Run a model on batch after batch, and report each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.core import Program
from mtfc.driver.data.inputs import Batches
from mtfc.driver.data.npz import Array, Arrays
from mtfc.driver.data.summary import finite
from mtfc.driver.running.execution import Session

Step = dict[str, Any]
"""An entry of `steps` in the output: number from 1, loss, seconds, reported scalars, and means of outputs with `--eval`."""


def step_of(number: int, start: float, outputs: Arrays, program: Program) -> Step:
    """Return number, loss and seconds of a step that began at `start` and has just ended."""
    minimized = program.training.minimize if program.training else None
    loss = float(outputs[minimized]) if minimized is not None and minimized in outputs else None
    return {"step": number, "loss": loss, "seconds": time.perf_counter() - start}


def reported(outputs: Arrays, program: Program) -> Step:
    """The scalars that a training step reports, if it reports any."""
    names = program.training.report if program.training else ()
    scalars = {name: outputs[name].item() for name in names if not outputs[name].ndim}
    return {"report": scalars} if scalars else {}


@attrs.frozen
class Results:
    """The outputs of several batches, and the number of rows of each batch; None if all batches have the same number."""

    parts: Sequence[Arrays]
    rows: tuple[int, ...] | None = None

    def joined(self) -> Arrays:
        """Join each output of all batches along the first dimension; scalars become a row."""
        import numpy as np

        if len(self.parts) == 1:
            return dict(self.parts[0])
        columns = {name: [np.asarray(part[name]) for part in self.parts] for name in self.parts[0]}
        return {name: np.concatenate([np.atleast_1d(x) for x in column]) for name, column in columns.items()}

    def mean(self, name: str) -> float:
        """Return the mean of an output over all rows: each batch weighs by its number of rows."""
        import numpy as np

        means = [np.mean(part[name], dtype=np.float64) for part in self.parts]
        return float(np.average(means, weights=self.rows))

    def means(self) -> dict[str, float]:
        """The means of the outputs with at most one dimension."""
        return {name: self.mean(name) for name, array in self.parts[0].items() if array.ndim < 2}

    def weighted(self) -> dict[str, float]:
        """Return the means of scalar outputs, if batches have different numbers of rows."""
        if self.rows is None:
            return {}
        return {name: self.mean(name) for name, array in self.parts[0].items() if array.ndim == 0}


def evaluate(
    session: Session, batches: Batches, number: int, done: Callable[[int, float, Arrays], object]
) -> Results:
    """Run the model on the first batches; calls `done` with each batch's number, start and outputs."""
    parts = []
    for i in range(number):
        start = time.perf_counter()
        parts.append(session.evaluate("forward", batches[i], batches.smaller(i)))
        done(i, start, parts[-1])
    is_uneven = batches.rest and number == batches.count and number > 1
    rows = tuple(map(batches.rows, range(number))) if is_uneven else None
    return Results(parts, rows)


def step_text(step: Step) -> str:
    shown = "".join(f"  {name} {_number_text(value)}" for name, value in step.get("report", {}).items())
    scores = "".join(f"  {name} {value:.4f}" for name, value in step.get("eval", {}).items())
    evaluated = f"   eval:{scores}" if scores else ""
    loss, seconds = f"loss {step['loss']:.6f}", f"{1000 * step['seconds']:9.2f} ms"
    return f"step {step['step']:>5}  {loss}{shown}  {seconds}{evaluated}"


def _number_text(value: float) -> str:
    """Write a truth value or whole number in full, any other number with at most six significant digits."""
    return str(value).lower() if isinstance(value, int) else f"{value:.6g}"


def finite_step(step: Step) -> Step:
    """Return the step for JSON, with None for numbers that are not finite."""
    named: Step = {
        part: {k: finite(v) for k, v in step[part].items()} for part in ("report", "eval") if part in step
    }
    return {**step, "loss": finite(step["loss"]), **named}


def losses_of(steps: Sequence[Step]) -> Array:
    import numpy as np

    return np.array([step["loss"] for step in steps], np.float32)
