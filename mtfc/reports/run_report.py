"""Results of `mtfc run` as text and as JSON: steps, and summaries of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtfc.reports.array_summary import figure_text, finite, summary, summary_text

StepRecord = dict[str, Any]
"""An entry of `steps`: number from 1, loss, seconds, reported figures, and means of outputs with `--eval`."""


def summaries_text(summaries: Mapping[str, dict[str, Any]]) -> str:
    """Return a line for each output."""
    width = max(map(len, summaries), default=0)
    return "\n".join(f"{name:<{width}}  {summary_text(about)}" for name, about in summaries.items())


def summaries_of(outputs: Mapping[str, Any], means: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Summarize each output. means: the means of outputs that replace those of the arrays."""
    found = {name: summary(array) for name, array in outputs.items()}
    replaced = {name: {"mean": finite(mean)} for name, mean in means.items()}
    return {name: {**about, **replaced.get(name, {})} for name, about in found.items()}


def step_text(step: StepRecord) -> str:
    """Return a line about a training step."""
    report = step.get("report", {})
    shown = "".join(f"  {name} {figure_text(value, _number_text)}" for name, value in report.items())
    scores = "".join(f"  {name} {value:.4f}" for name, value in step.get("eval", {}).items())
    evaluated = f"   eval:{scores}" if scores else ""
    loss, seconds = f"loss {step['loss']:.6f}", f"{1000 * step['seconds']:9.2f} ms"
    return f"step {step['step']:>5}  {loss}{shown}  {seconds}{evaluated}"


def _number_text(value: float) -> str:
    """Write a truth value or whole number in full, any other number with at most six significant digits."""
    return str(value).lower() if isinstance(value, int) else f"{value:.6g}"
