"""The user's function with sharding constraints on its intermediate values, for `jax.jit`.

The function is evaluated as its jaxpr says, so custom derivatives, recomputation and the lines of the user's file stay as
they are. Results of equations get constraints, but for those of opaque primitives: XLA may have a better rule for these than to
compute the whole everywhere. Arguments get theirs at each use, because they may be stored otherwise, and the update of a model
computes on them as they are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import attrs

from mtfc.backends.common.devices import jax
from mtfc.frontend.jaxpr.equations import (
    INLINED,
    RECOMPUTING,
    bound,
    evaluated,
    has_elements,
    kept_apart,
    makes_step,
    scan_counts,
)
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Flat, Operand, Var, chooses, data_of

FREE = frozenset({"slice"})
"""Primitives whose results get no constraint: two slices of an array that is split would gather it twice."""

DOTS, SUMS = {"dot_general", "conv_general_dilated"}, {"add", "add_any"}

CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"})

OWN = {"sharding_constraint": "sharding", "reshard": "dst_sharding", "mesh_cast": "dst_sharding"}
"""Primitive of a constraint of the user -> the parameter that has the sharding."""


@attrs.frozen
class Constrain:
    """Functions that apply constraints. planned: (array, its variable) -> the array with the plan's constraint.

    own: (array, the user's sharding, the step) -> the array with the user's constraint, or without. arguments: those of the
    function and of the bodies of its loops. updates: arrays that only update the model; they get no constraints.
    """

    planned: Callable[[Any, Var], Any]
    own: Callable[[Any, Any, AppliedPrimitive], Any]
    arguments: frozenset[Var]
    updates: frozenset[Var]

    def used(self, operands: Sequence[Any], step: AppliedPrimitive) -> list[Any]:
        """Return the operands of a step, with constraints on those that are arguments."""
        if len(operands) != len(step.operands):  # some arrays have no elements
            return [*operands]
        pairs = zip(operands, step.operands, strict=True)
        return [self.planned(x, v) if isinstance(v, Var) and v in self.arguments else x for x, v in pairs]


def unconstrained(bodies: Sequence[Body], is_split: Callable[[Operand], bool]) -> Iterator[Var]:
    """Yield arrays where a constraint would send more than it saves. bodies: the function's own, then those of its loops.

    is_split: True for an array that is split by the axes over which FSDP stores the weights.
    """
    for body in bodies:
        if _gathers_more(body, is_split):
            yield from (*body.arguments, *(var for step in body.steps for var in step.results))
    yield from (var for body in bodies[1:] for var in _sums(body))


def _gathers_more(body: Body, is_split: Callable[[Operand], bool]) -> bool:
    """Return True if the dots of a body have larger weights than activations.

    If dots run on parts of the batch, weights are gathered, and gradients are summed. Else the activations move.
    """
    dots = [step for step in body.steps if step.primitive in DOTS]
    weights = [v for step in dots for v in (*step.operands, *step.results * 2) if not is_split(v)]
    activations = [v for step in dots for v in step.results if is_split(v)]
    return 0 < sum(map(data_of, activations)) < sum(map(data_of, weights))


def _sums(body: Body) -> Iterator[Var]:
    """Yield carries that only add up, such as gradients of micro-batches, and their new values.

    The update may split a sum otherwise, and a constraint would move the sum in each iteration.
    """
    uses, outputs = Counter(v for step in body.steps for v in step.operands), {*body.outputs}
    once = {v for v in body.arguments if uses[v] == 1}
    for step in body.steps:
        carries = [v for v in step.operands if v in once]
        if step.primitive in SUMS and carries and not outputs.isdisjoint(step.results):
            yield from (*carries, *step.results)


def constrained(flat: Flat, constrain: Constrain) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function of the arguments' leaves that computes the outputs' leaves."""

    def function(leaves: Sequence[Any]) -> list[Any]:
        return _evaluated(flat.closed, leaves, iter(flat.body.steps), constrain)

    return function


def _evaluated(
    closed: Any, values: Sequence[Any], steps: Iterator[AppliedPrimitive], constrain: Constrain
) -> list[Any]:
    return evaluated(closed, values, partial(_applied, steps=steps, constrain=constrain))


def _applied(
    eqn: Any, operands: list[Any], steps: Iterator[AppliedPrimitive], constrain: Constrain
) -> Sequence[Any]:
    """Return the results of an equation, with constraints on its operands and results where its steps have a planned layout.

    steps: the steps of the flat program from this equation on; the equation takes its own.
    """
    name = eqn.primitive.name
    inner = eqn.params.get(INLINED[name]) if name in INLINED else None
    if inner is not None and name in RECOMPUTING:
        if any(is_apart := kept_apart(eqn)):
            next(steps)
            operands = _kept_apart(operands, is_apart)

        def body(*xs: Any) -> list[Any]:
            return _evaluated(inner, xs, steps, constrain)

        options = {key: eqn.params[key] for key in ("prevent_cse", "policy") if key in eqn.params}
        return list(jax.checkpoint(body, **options)(*operands))
    if inner is not None and name not in CUSTOM:
        jaxpr = getattr(inner, "jaxpr", inner)
        return _evaluated(inner, operands[len(operands) - len(jaxpr.invars) :], steps, constrain)
    if inner is not None:
        _skip(inner, steps)
        return _bound(eqn, operands)
    if not makes_step(eqn):
        return _bound(eqn, operands)
    step = _last(eqn, steps)
    if step.is_expansion or (chooses(eqn) and not step.bodies):
        return _bound(eqn, operands)
    if step.bodies and name != "scan":
        made = iter(step.results[-sum(map(has_elements, eqn.outvars)) :])
        pairs = zip(_bound(eqn, operands), eqn.outvars, strict=True)
        return [constrain.planned(x, next(made)) if has_elements(v) else x for x, v in pairs]
    if step.bodies:
        return _scanned(eqn, operands, step.bodies[0], constrain)
    if name in OWN:
        return [constrain.own(operands[0], eqn.params[OWN[name]], step)]
    if not constrain.updates.isdisjoint(step.results):
        return _bound(eqn, operands)
    found = _bound(eqn, constrain.used(operands, step))
    if name in FREE:
        return found
    results = iter(step.results)  # arrays without elements are no results of steps
    return [
        constrain.planned(x, next(results)) if has_elements(v) else x
        for x, v in zip(found, eqn.outvars, strict=True)
    ]


def _kept_apart(operands: Sequence[Any], is_apart: Sequence[bool]) -> list[Any]:
    """Return the operands of a computation, those that are kept apart behind one barrier, as JAX itself has it."""
    behind = iter(jax.lax.optimization_barrier([*compress(operands, is_apart)]))
    return [next(behind) if is_own else x for x, is_own in zip(operands, is_apart, strict=True)]


def _skip(closed: Any, steps: Iterator[AppliedPrimitive]) -> None:
    """Go past the steps of a jaxpr that is bound as a whole."""
    for eqn in getattr(closed, "jaxpr", closed).eqns:
        name = eqn.primitive.name
        inner = eqn.params.get(INLINED[name]) if name in INLINED else None
        if inner is not None:
            if any(kept_apart(eqn)):
                next(steps)
            _skip(inner, steps)
        elif makes_step(eqn):
            _last(eqn, steps)


def _last(eqn: Any, steps: Iterator[AppliedPrimitive]) -> AppliedPrimitive:
    """Return the last step of an equation. Conditionals and loops have several, which JAX evaluates itself."""
    return next(step for step in steps if step.ends is eqn)


def _bound(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    return bound(eqn.primitive, operands, eqn.params)


def _scanned(eqn: Any, operands: Sequence[Any], body: Body, constrain: Constrain) -> list[Any]:
    """Return the results of a `scan` whose body has constraints, too."""
    params: Mapping[str, Any] = eqn.params
    consts, carries = scan_counts(params)

    def iteration(carry: Any, xs: Any) -> tuple[list[Any], list[Any]]:
        given = [*operands[:consts], *carry, *xs]
        found = _evaluated(params["jaxpr"], given, iter(body.steps), constrain)
        return found[:carries], found[carries:]

    carry, stacked = jax.lax.scan(
        iteration,
        list(operands[consts : consts + carries]),
        list(operands[consts + carries :]),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *stacked]
