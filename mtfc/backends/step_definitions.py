"""The updates of the library's optimizers, and its schedules, as their papers define them: NumPy in f64.

`mtfc verify` compares training steps with these definitions. They share no code and no default with `mtfc/std`, from which steps
are compiled. A definition that both sides share would hide its own mistakes.
"""

from collections.abc import Callable, Mapping
from math import pi
from typing import Any

import numpy as np

Array = Any
States = Mapping[str, Array]
"""State of one parameter by name. A state that is missing is 0."""

Updated = tuple[Array, dict[str, Array]]
"""The new parameter and its new states."""

Rule = Callable[..., Updated]
"""(parameter, gradient, states, number of the step from 1, hyperparameters) -> the new parameter and states."""


def sgd(p: Array, g: Array, states: States, t: float, learning_rate: float) -> Updated:
    return p - learning_rate * g, {}


def sgdw(
    p: Array, g: Array, states: States, t: float, learning_rate: float, weight_decay: float = 1e-4
) -> Updated:
    """Krogh and Hertz, 1991: the gradient of the loss plus weight_decay / 2 |p|^2."""
    return p - learning_rate * g - learning_rate * weight_decay * p, {}


def momentum(
    p: Array, g: Array, states: States, t: float, learning_rate: float, momentum: float = 0.9
) -> Updated:
    """Polyak, 1964."""
    velocity = momentum * states.get("velocity", 0.0) + g
    return p - learning_rate * velocity, {"velocity": velocity}


def nesterov(
    p: Array, g: Array, states: States, t: float, learning_rate: float, momentum: float = 0.9
) -> Updated:
    """Sutskever et al., 2013, with the velocity in units of gradients."""
    velocity = momentum * states.get("velocity", 0.0) + g
    return p - learning_rate * (momentum * velocity + g), {"velocity": velocity}


def adam(
    p: Array,
    g: Array,
    states: States,
    t: float,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Updated:
    """Kingma and Ba, 2015, algorithm 1."""
    m = beta1 * states.get("m", 0.0) + (1 - beta1) * g
    v = beta2 * states.get("v", 0.0) + (1 - beta2) * g**2
    direction = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return p - learning_rate * direction, {"m": m, "v": v}


def adamw(
    p: Array,
    g: Array,
    states: States,
    t: float,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
) -> Updated:
    """Loshchilov and Hutter, 2019, algorithm 2, where the learning rate is also a factor of the decay."""
    moved, states = adam(p, g, states, t, learning_rate, beta1, beta2, epsilon)
    return moved - learning_rate * weight_decay * p, states


def adafactor(
    p: Array,
    g: Array,
    states: States,
    t: float,
    learning_rate: float,
    decay: float = 0.8,
    clip: float = 1.0,
    epsilon1: float = 1e-30,
    epsilon2: float = 1e-3,
) -> Updated:
    """Shazeer and Stern, 2018, algorithms 4 and 5, with means in the place of sums over rows and columns."""
    kept, squares = 1 - t**-decay, g**2 + epsilon1
    means = {"squares": squares}
    if p.ndim > 1:
        means = {"by_row": squares.mean(-1), "by_col": squares.mean(-2)}
    new = {name: kept * states.get(name, 0.0) + (1 - kept) * x for name, x in means.items()}
    estimate = new.get("squares")
    if estimate is None:
        rows, cols = new["by_row"], new["by_col"]
        estimate = rows[..., :, None] * cols[..., None, :] / rows.mean(-1)[..., None, None]
    u = g / np.sqrt(estimate)
    u = u / np.maximum(1.0, _rms(u) / clip)
    return p - learning_rate * np.maximum(epsilon2, _rms(p)) * u, new


def _rms(x: Array) -> Array:
    return np.sqrt(np.mean(x**2))


OPTIMIZERS: dict[str, Rule] = {
    each.__name__: each for each in (sgd, sgdw, momentum, nesterov, adam, adamw, adafactor)
}


def constant(value: float) -> Any:
    return value


def linear_warmup(step: float, peak: float, warmup: float) -> Any:
    return peak * step / warmup if step < warmup else peak


def warmup_rsqrt(step: float, peak: float = 0.01, warmup: float = 10000.0) -> Any:
    """Vaswani et al., 2017, section 5.3, with `peak` for 1 / sqrt(d_model warmup)."""
    t = step + 1
    return peak * np.sqrt(warmup) * np.minimum(t**-0.5, t * warmup**-1.5)


def cosine(step: float, peak: float, warmup: float, steps: float, end: float = 0.0) -> Any:
    """Loshchilov and Hutter, 2017, equation 5, after a linear increase."""
    if step < warmup:
        return peak * step / warmup
    share = np.minimum(np.maximum(step - warmup, 0.0) / (steps - warmup), 1.0)
    return end + (peak - end) * (1 + np.cos(pi * share)) / 2


def step_decay(step: float, start: float, factor: float, every: float) -> Any:
    return start * factor ** np.floor(step / every)


def exponential_decay(step: float, start: float, factor: float, every: float) -> Any:
    return start * factor ** (step / every)


SCHEDULES: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (constant, linear_warmup, warmup_rsqrt, cosine, step_decay, exponential_decay)
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(np, name)
        for name in ("exp", "log", "sqrt", "sin", "cos", "tanh", "abs", "sign", "floor")
    },
    **{name: getattr(np, name) for name in ("square", "minimum", "maximum", "where")},
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
"""Functions of numbers in hyperparameters."""

real = np.float64
