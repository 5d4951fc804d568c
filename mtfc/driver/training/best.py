"""The best evaluation of a run: which checkpoint is kept for it, and whether the run ends early.

The evaluations of a run are a file in its folder, so that a run that goes on knows those before its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import Any

import attrs

from mtfc.backends.common.devices import Unavailable
from mtfc.compiler.diagnostics import nearest
from mtfc.compiler.ir.core import Program
from mtfc.driver.data.files import parsed_json
from mtfc.driver.errors import UsageError, reason_of
from mtfc.driver.options import Metric
from mtfc.reports.array_summary import finite
from mtfc.reports.table import listed

EVALUATIONS_FILE = "evaluations.json"
"""The name in the folder of a run."""


@attrs.define
class Evaluations:
    """The evaluations of a run. found: step -> means. patience: evaluations without a better one after which the run ends.

    path: of the file, in the process that writes it. keeps: the checkpoint of the best evaluation stays. is_over: none of the
    last evaluations was the best.
    """

    metric: Metric
    patience: int | None
    path: Path | None
    keeps: bool
    found: dict[int, Mapping[str, float]]
    is_over: bool = False

    @classmethod
    def read(
        cls, metric: Metric, patience: int | None, keeps: bool, folder: Path | None, after: int, leads: bool
    ) -> Evaluations:
        """Return the evaluations up to step `after`, the last one before this run. A damaged file counts as none."""
        path = folder / EVALUATIONS_FILE if folder else None
        found: dict[int, Mapping[str, float]] = {}
        if path is not None and path.is_file():
            try:
                read: Any = parsed_json(path.read_bytes())
                found = {
                    int(step): {str(k): nan if v is None else float(v) for k, v in means.items()}
                    for step, means in read.items()
                }
            except (OSError, ValueError, TypeError, AttributeError):
                found = {}
        kept = {step: means for step, means in sorted(found.items()) if step <= after}
        evaluations = cls(metric, patience, path if leads else None, keeps, kept)
        evaluations.is_over = evaluations._ends()
        return evaluations

    def add(self, step: int, means: Mapping[str, float]) -> bool:
        """Add an evaluation, and return True if it is the best one so far."""
        self.found[step] = means
        self.is_over = self._ends()
        return self.best == step

    def write(self) -> None:
        """Write the file, in the process that does. Raises `Unavailable` if the disk is full."""
        if self.path is None:
            return
        part = self.path.with_name(f".{self.path.name}.part")
        finite_means = {each: {k: finite(v) for k, v in of.items()} for each, of in self.found.items()}
        try:
            part.write_text(json.dumps(finite_means), "utf-8")
            part.replace(self.path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise Unavailable(f"cannot write {self.path}: {reason_of(error)}") from None

    @property
    def best(self) -> int | None:
        """The step of the best evaluation, the first of equals; None without one."""
        values = {
            step: means[self.metric.name] for step, means in self.found.items() if self.metric.name in means
        }
        sign = -1 if self.metric.is_best_high else 1
        return min(
            (step for step in values if isfinite(values[step])),
            key=lambda step: sign * values[step],
            default=None,
        )

    def _ends(self) -> bool:
        if self.patience is None:
            return False
        best = self.best or 0
        return sum(step > best for step in self.found) >= self.patience


def metric_of(wanted: Metric | None, program: Program) -> Metric:
    """Return the metric with its direction, by default the loss. Raises `UsageError`."""
    assert program.training is not None
    loss, outputs = program.training.minimize, program.function("forward").handed_out
    known = [each.name for each in outputs if len(each.value.type.dims) < 2]
    known += [f"averaged_{name}" for name in known if program.training.average is not None]
    metric = wanted or Metric(loss)
    if metric.name not in known:
        near = nearest(metric.name, known)
        help = f"did you mean `{near}`?" if near else f"an evaluation has {listed(known)}"
        raise UsageError(f"--keep-best: an evaluation has no mean `{metric.name}`; {help}")
    if metric.is_best_high is None and metric.name not in (loss, f"averaged_{loss}"):
        name = metric.name
        raise UsageError(f"--keep-best {name}: say which is better, as {name}:max or {name}:min")
    return attrs.evolve(metric, is_best_high=bool(metric.is_best_high))
