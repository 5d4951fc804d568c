"""Arrays as a few numbers: shape, dtype, mean and extremes; and results of `mtfc run`, as text and as JSON."""

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

Figure = float | list[float]
"""A scalar, or the elements of a short vector."""

MOST_ELEMENTS = 64
"""Most elements of a vector that is a figure."""

MOST_SHOWN = 8
"""Most elements of a vector in a line of text."""


def is_figure(array: Any) -> bool:
    """Return True for a scalar, and for a vector that is short enough to be shown in full."""
    return bool(array.ndim == 0 or (array.ndim == 1 and array.size <= MOST_ELEMENTS))


def finite(data: Any) -> Any:
    """Return numbers, or lists and mappings of numbers, as JSON can hold them: None stands for NaN and the infinities."""
    if isinstance(data, Real):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): finite(value) for key, value in data.items()}
    return [*map(finite, data)] if isinstance(data, list | tuple) else data


def scalars(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return every figure by name, and each element of a vector as `NAME/INDEX`."""
    found: dict[str, Any] = {}
    for name, figure in figures.items():
        if isinstance(figure, list):
            found |= {f"{name}/{i}": number for i, number in enumerate(figure)}
        else:
            found[name] = figure
    return found


def figure_text(figure: Figure, text: Callable[[float], str] = "{:.6g}".format) -> str:
    """Return a figure as text; of a long vector, the first and the last elements."""
    if not isinstance(figure, list):
        return text(figure)
    parts = [text(number) for number in figure]
    half = MOST_SHOWN // 2
    return f"[{', '.join(parts if len(parts) <= MOST_SHOWN else [*parts[:half], '...', *parts[-half:]])}]"


def number_text(number: float | None) -> str:
    """Return a number with six digits, or `not finite` for None."""
    return "not finite" if number is None else f"{number:.6g}"


def summary(array: Any) -> dict[str, Any]:
    """Return an array's shape, dtype, mean and extremes, and a scalar's value; None stands for a number that is not finite."""
    import numpy as np

    dtype = np.asarray(array).dtype.name
    numbers = np.asarray(array).astype(np.float64)
    about = {"mean": numbers.mean(), "min": numbers.min(), "max": numbers.max()}
    statistics = {name: finite(float(number)) for name, number in about.items()}
    value = {} if numbers.ndim else {"value": statistics["mean"]}
    return {"shape": list(numbers.shape), "dtype": dtype, **statistics, **value}


def summary_text(about: dict[str, Any]) -> str:
    """Return `float32[64, 128]  mean 0.01  min -3.2  max 3.4` for a summary."""
    shape = f"{about['dtype']}[{', '.join(map(str, about['shape']))}]"
    if "value" in about:
        return f"{shape:<20} {number_text(about['value'])}"
    return f"{shape:<20} " + "  ".join(
        f"{name} {number_text(about[name])}" for name in ("mean", "min", "max")
    )


# Results of `mtfc run`

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
