"""The optimizers: hyperparameters, state, and the update of one parameter, in terms of other ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from mtfc.compiler.ir.core import Value

if TYPE_CHECKING:
    from mtfc.compiler.ir.builder import Builder

States = dict[str, Value]
Update = Callable[["Builder", Value, Value, States, Mapping[str, float]], tuple[Value, States]]


@attrs.frozen
class Optimizer:
    """How one parameter is updated.

    hyper: hyperparameter -> default, None where it must be given. states: names of the tensors kept for each parameter, zero at
    first. update: (builder, parameter, gradient, states, hyperparameters) -> new parameter, new states.
    """

    name: str
    hyper: Mapping[str, float | None]
    states: tuple[str, ...]
    update: Update


def _sgd(b: Builder, p: Value, g: Value, states: States, hyper: Mapping[str, float]) -> tuple[Value, States]:
    """p - lr g."""
    return b("sub", p, b("mul", g, b.like(hyper["learning_rate"], g))), {}


def _momentum(
    b: Builder, p: Value, g: Value, states: States, hyper: Mapping[str, float]
) -> tuple[Value, States]:
    """m = mu m + g; p - lr m."""
    m = b("add", b("mul", states["momentum"], b.like(hyper["momentum"], g)), g)
    return b("sub", p, b("mul", m, b.like(hyper["learning_rate"], m))), {"momentum": m}


OPTIMIZERS = {
    optimizer.name: optimizer
    for optimizer in (
        Optimizer("sgd", {"learning_rate": None}, (), _sgd),
        Optimizer("momentum", {"learning_rate": None, "momentum": 0.9}, ("momentum",), _momentum),
    )
}
