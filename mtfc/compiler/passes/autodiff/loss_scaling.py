"""Loss scaling: the backward pass of a scaled loss, so that small gradients do not underflow in f16.

The seed of the backward pass is the scale S instead of 1. Gradients are divided by S in the dtype of the parameters, before their
norm is computed and before clipping.

A dynamic scale is a state of the step, and so is the number of good steps in a row. A step whose gradients are not all finite
keeps parameters and states, also those of the model, and halves the scale. After `PATIENCE` good steps in a row the scale
doubles. The decision is `norm <= the largest f32`, with the joint norm of all gradients. The norm is one sum over all processors,
which clipping computes too. So all processors decide alike, and the decision costs one scalar in an all-reduce.

Sources: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2; the constants are those of jmp and NVIDIA Apex.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from mtfc.compiler.ir.attributes import fitted
from mtfc.compiler.ir.builder import Builder
from mtfc.compiler.ir.core import Argument, LossScale, Output, Value
from mtfc.compiler.ir.training import LOSS_SCALE
from mtfc.compiler.ir.types import scalar
from mtfc.compiler.records import frozen

GOOD_STEPS = "good_steps"
PATIENCE = 2000
"""Good steps in a row after which the scale doubles."""

SMALLEST, LARGEST = 1.0, 2.0**24
"""Limits of a dynamic scale."""

LARGEST_NUMBER = (2 - 2**-23) * 2.0**127
"""The largest finite f32."""


@frozen
class ScaleState:
    """The states of a dynamic scale at the start of a step."""

    scale: Argument
    good_steps: Argument

    @property
    def arguments(self) -> tuple[Argument, Argument]:
        return self.scale, self.good_steps


def scale_state(builder: Builder, loss_scale: LossScale | None) -> ScaleState | None:
    """Return the states of a dynamic scale; a fixed scale has none."""
    if loss_scale is None or not loss_scale.is_dynamic:
        return None
    scale = Value(builder.names.fresh(LOSS_SCALE), scalar("f32"))
    steps = Value(builder.names.fresh(GOOD_STEPS), scalar("i32"))
    return ScaleState(
        Argument(scale, "state", builder.span, initial=loss_scale.start),
        Argument(steps, "state", builder.span),
    )


def seed(
    builder: Builder,
    loss: Value,
    loss_scale: LossScale | None,
    scale: Value | None,
    share: float = 1.0,
    weight: Value | None = None,
) -> Value:
    """Return the cotangent of the loss: `share` times the scale. Without a scale from a state, the first scale counts.

    weight: a further factor.
    """
    if weight is not None:
        weighed = builder("mul", seed(builder, weight, loss_scale, scale, share), weight)
        return builder.cast(weighed, loss.type.dtype)
    if scale is None:
        start = loss_scale.start if loss_scale else 1.0
        return builder("full", dims=(), value=fitted(share * start, loss.type.dtype), dtype=loss.type.dtype)
    return builder("mul", builder.cast(scale, loss.type.dtype), builder.constant(share, loss.type.dtype))


def scale_value(builder: Builder, loss_scale: LossScale, state: ScaleState | None) -> Value:
    """Return the scale of the step, f32[]."""
    return builder.constant(loss_scale.start, "f32") if state is None else state.scale.value


def unscaled(
    builder: Builder, gradients: Mapping[Value, Value], loss_scale: LossScale, state: ScaleState | None
) -> dict[Value, Value]:
    """Append the division of all gradients by the scale. The reciprocal of a power of 2 is exact."""
    if state is None:
        return {p: builder("mul", g, builder.like(1 / loss_scale.start, g)) for p, g in gradients.items()}
    factor = builder("div", builder.constant(1.0, "f32"), state.scale.value)
    return {p: builder("mul", g, builder.cast(factor, g.type.dtype)) for p, g in gradients.items()}


def is_finite(builder: Builder, norm: Value) -> Value:
    """Append the decision of the step from the norm of its gradients: bool[], false for an infinite norm and for NaN."""
    return builder("le", norm, builder.constant(LARGEST_NUMBER, "f32"))


def kept_unless(
    builder: Builder, good: Value | None, outputs: Sequence[Output], arguments: Iterable[Value]
) -> list[Output]:
    """Return the outputs of an update, each replaced by the old value of its argument unless the step is good.

    good: None if every step is.
    """
    if good is None:
        return list(outputs)
    old = {argument.name: argument for argument in arguments}
    chosen = (builder("where", good, o.value, old[o.updates or ""], name=o.name) for o in outputs)
    return [attrs.evolve(o, value=value) for o, value in zip(outputs, chosen, strict=True)]


def next_scale(builder: Builder, good: Value, state: ScaleState) -> list[Output]:
    """Append the scale and the number of good steps for the next step."""
    scale, steps = state.scale.value, state.good_steps.value
    count = builder("add", steps, builder.constant(1, "i32"))
    is_due = builder("ge", count, builder.constant(PATIENCE, "i32"))
    doubled, halved = (
        builder(op, builder("mul", scale, builder.constant(by, "f32")), builder.constant(limit, "f32"))
        for op, by, limit in (("minimum", 2.0, LARGEST), ("maximum", 0.5, SMALLEST))
    )
    after = builder("where", good, builder("where", is_due, doubled, scale), halved, name=scale.name)
    counts = builder("and", good, builder("not", is_due))
    counted = builder("mask", counts, count, name=steps.name)
    return [Output(scale.name, after, scale.name), Output(steps.name, counted, steps.name)]
