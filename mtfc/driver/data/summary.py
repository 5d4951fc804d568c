"""Arrays in a few numbers: what one is like, and how far two are apart."""

from __future__ import annotations

import math
from typing import Any

from mtfc.driver.data.npz import Array


def finite(number: float | None) -> float | None:
    """A number as JSON can have it: None for NaN and the infinities."""
    return number if number is not None and math.isfinite(number) else None


def number_text(number: float | None) -> str:
    return "not finite" if number is None else f"{number:.6g}"


def summary(array: Array) -> dict[str, Any]:
    """An array's shape, dtype, mean and extremes; of a scalar also the value. None stands for what is not finite."""
    import numpy as np

    dtype = np.asarray(array).dtype.name
    numbers = np.asarray(array).astype(np.float64)
    about = {"mean": numbers.mean(), "min": numbers.min(), "max": numbers.max()}
    statistics = {name: finite(float(number)) for name, number in about.items()}
    value = {} if numbers.ndim else {"value": statistics["mean"]}
    return {"shape": list(numbers.shape), "dtype": dtype, **statistics, **value}


def summary_text(about: dict[str, Any]) -> str:
    """`float32[64, 128]  mean 0.01  min -3.2  max 3.4`"""
    shape = f"{about['dtype']}[{', '.join(map(str, about['shape']))}]"
    if "value" in about:
        return f"{shape:<20} {number_text(about['value'])}"
    return f"{shape:<20} " + "  ".join(
        f"{name} {number_text(about[name])}" for name in ("mean", "min", "max")
    )


def difference(actual: Array, expected: Array) -> float:
    """The largest absolute difference of two arrays; infinite where one has a number and the other none."""
    import numpy as np

    a, b = (np.asarray(array).astype(np.float64) for array in (actual, expected))
    if a.shape != b.shape:
        return math.inf
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    return float(np.where(np.isnan(apart), math.inf, apart).max(initial=0.0))


def is_finite(array: Array) -> bool:
    """True if an array holds neither NaN nor infinities."""
    import numpy as np

    return bool(np.isfinite(np.asarray(array).astype(np.float64)).all())


def magnitude(array: Array) -> float:
    """The largest finite absolute value, and at least 1: what an error is relative to."""
    import numpy as np

    numbers = np.abs(np.asarray(array).astype(np.float64))
    return float(numbers[np.isfinite(numbers)].max(initial=1.0))
