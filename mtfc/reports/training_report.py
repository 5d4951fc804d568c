"""Steps of `mtfc train` as lines, JSON and a table at the end."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import attrs

from mtfc.reports.array_summary import Figure, figure_text, finite
from mtfc.reports.source_lines import aligned


@attrs.frozen
class Prediction:
    """The seconds of a step on a machine that a user has named. ideal: those of its FLOPs at the machine's peak rates."""

    seconds: float
    ideal: float


@attrs.frozen
class TrainingStep:
    """A finished step. number: counted from 1. seconds: since the step before it ended.

    report: further scalars and short vectors of the step. evaluation: means over the evaluation data, if it ran after this step.
    rate: tokens or examples a second. predicted: the prediction of the cost model, if a machine was named.
    """

    number: int
    loss: float
    seconds: float
    unit: str
    rate: float
    report: Mapping[str, Figure] = attrs.field(factory=dict)
    evaluation: Mapping[str, float] = attrs.field(factory=dict)
    predicted: Prediction | None = None

    @property
    def share(self) -> float | None:
        """Predicted time over measured time."""
        return None if self.predicted is None else self.predicted.seconds / self.seconds

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization: the FLOPs of the step over those of the machine in the same time, at its peak rates."""
        return None if self.predicted is None else self.predicted.ideal / self.seconds

    def figures(self) -> dict[str, Figure]:
        """Return every figure by name; a reported value with the name of another figure is `report/NAME`."""
        rest = {"seconds": self.seconds, f"{self.unit}_per_second": self.rate}
        share = {} if self.share is None else {"predicted_share": self.share, "mfu": self.mfu or 0.0}
        taken = {"step", "loss", *rest, *share}
        report = {f"report/{name}" if name in taken else name: value for name, value in self.report.items()}
        evaluation = {f"eval/{name}": value for name, value in self.evaluation.items()}
        return {"loss": self.loss, **report, **rest, **share, **evaluation}

    def record(self) -> dict[str, Any]:
        """Return the JSON record; numbers that are not finite are None."""
        return {"step": self.number, **finite(self.figures())}


def step_line(step: TrainingStep, total: int) -> str:
    """Return a line about a step."""
    parts = [
        f"step {step.number:>{len(str(total))}}/{total}",
        f"loss {step.loss:.6f}",
        *(f"{name} {figure_text(value)}" for name, value in step.report.items()),
        f"{1000 * step.seconds:.1f} ms",
        f"{step.rate:,.0f} {step.unit}/s",
        *([] if step.share is None else [f"{step.share:.0%} of the predicted speed", f"MFU {step.mfu:.1%}"]),
        *(f"eval {name} {value:.4f}" for name, value in step.evaluation.items()),
    ]
    return "  ".join(parts)


def evaluation_table(means: Mapping[str, float]) -> str:
    """Return the means of an evaluation as a table."""
    return "\n".join(aligned([(f"eval {name}", f"{value:.6f}") for name, value in means.items()], indent=""))


@attrs.frozen
class EvaluationSummary:
    """The means of the outputs of a model over data."""

    means: Mapping[str, float]
    layout: str
    mesh: Mapping[str, int]

    def record(self) -> dict[str, Any]:
        """Return the JSON record; numbers that are not finite are None."""
        return {"layout": self.layout, "mesh": dict(self.mesh), "eval": finite(self.means)}

    def table(self) -> str:
        return evaluation_table(self.means)


@attrs.frozen
class TrainingSummary:
    """The figures of a training run that has ended. steps: the steps of this run. first: the number of steps before this run.

    evaluation: of a run that had ended before, or whose last step was skipped. best: the best checkpoint, if a metric says which
    one it is.
    """

    steps: Sequence[TrainingStep]
    first: int
    layout: str
    mesh: Mapping[str, int]
    checkpoint: str | None = None
    evaluation: Mapping[str, float] = attrs.field(factory=dict)
    best: str | None = None

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        last = self.steps[-1] if self.steps else None
        return {
            "layout": self.layout,
            "mesh": dict(self.mesh),
            "first_step": self.first + 1,
            "last_step": last.number if last else self.first,
            "loss": finite(last.loss) if last else None,
            "eval": finite(self._evaluation()),
            "step_seconds": self._seconds(),
            **({f"{last.unit}_per_second": self._rate()} if last else {}),
            "predicted_step_seconds": last.predicted.seconds if last and last.predicted else None,
            "mfu": self._mfu(),
            "checkpoint": self.checkpoint,
            **({} if self.best is None else {"best_checkpoint": self.best}),
        }

    def table(self) -> str:
        """Return the figures as a table; only those of an evaluation if no step ran."""
        if not self.steps:
            return evaluation_table(self.evaluation)
        first, last = self.steps[0], self.steps[-1]
        seconds = self._seconds()
        rows = [
            ("steps", f"{first.number} to {last.number}"),
            ("loss", f"{first.loss:.6f} -> {last.loss:.6f}"),
            *((f"eval {name}", f"{value:.6f}") for name, value in self._evaluation().items()),
            *([] if seconds is None else [("step time", f"{1000 * seconds:.2f} ms (median)")]),
            ("throughput", f"{self._rate():,.0f} {last.unit}/s"),
            *(self._predicted(last.predicted) if last.predicted else []),
            *([] if self.checkpoint is None else [("checkpoint", self.checkpoint)]),
            *([] if self.best is None else [("best checkpoint", self.best)]),
        ]
        return "\n".join(aligned(rows, indent=""))

    def _evaluation(self) -> Mapping[str, float]:
        """Return the means of the last evaluation; empty without one."""
        return self.evaluation or next(
            (each.evaluation for each in reversed(self.steps) if each.evaluation), {}
        )

    def _seconds(self) -> float | None:
        """Return the median time of a step; the first one is left out, as it compiles."""
        times = [step.seconds for step in self.steps[1:]] or [step.seconds for step in self.steps]
        return median(times) if times else None

    def _mfu(self) -> float | None:
        """Return the utilization in a step of median time."""
        last, seconds = self.steps[-1] if self.steps else None, self._seconds()
        return last.predicted.ideal / seconds if last and last.predicted and seconds else None

    def _predicted(self, predicted: Prediction) -> list[tuple[str, str]]:
        return [
            ("predicted step time", f"{1000 * predicted.seconds:.2f} ms"),
            ("MFU", f"{self._mfu() or 0.0:.1%}"),
        ]

    def _rate(self) -> float:
        last, seconds = self.steps[-1], self._seconds()
        return last.rate * last.seconds / seconds if seconds else 0.0
