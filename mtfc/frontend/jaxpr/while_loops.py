"""Find how often a `while` runs.

A loop of programs runs along a dimension, whose size is the largest number of iterations. A condition gives one if it has a part
`i < n`, where the body adds a number to the carry i, which starts as a number. Any other loop is unbounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

HAVE_JAXPRS = {"jaxpr", "call_jaxpr", "fun_jaxpr", "branches", "body_jaxpr"}
"""Parameters of primitives that execute jaxprs, which a condition must not have."""

MOST = 2**20
"""A loop that may run more often is unbounded."""

EXPECTED = 100
"""The number of iterations that costs count for a loop without a counter."""


@attrs.frozen
class LoopCounter:
    """The most iterations of a loop. is_exact: True if the loop ends only then. is_bound: False if it may run longer."""

    most: int
    is_exact: bool
    is_bound: bool = True


NO_COUNTER = LoopCounter(EXPECTED, False, False)


@attrs.frozen(eq=False)
class WhileLoop:
    """The two jaxprs of a `while`. Its operands are the constants of the condition, those of the body, and the first carries."""

    condition: Any
    body: Any
    condition_constants: int
    body_constants: int

    @classmethod
    def of(cls, eqn: Any) -> WhileLoop:
        """Return the loop of an equation of a jaxpr."""
        params = eqn.params
        counts = params["cond_nconsts"], params["body_nconsts"]
        return cls(params["cond_jaxpr"], params["body_jaxpr"], *counts)

    @property
    def constants(self) -> int:
        """The number of the operands before the carries."""
        return self.condition_constants + self.body_constants

    @property
    def is_batched(self) -> bool:
        """True if the condition has several truth values, as under `jax.vmap`."""
        return bool(self.condition.out_avals[0].shape)

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables that stand for the operands in an iteration."""
        return (*self.condition.jaxpr.invars[: self.condition_constants], *self.body.jaxpr.invars)

    def counter(self, starts: Sequence[int | None]) -> LoopCounter:
        """Return the counter. starts: the whole numbers that carries start as, None for others."""
        condition, body = self.condition.jaxpr, self.body.jaxpr
        if any(each.params.keys() & HAVE_JAXPRS for each in condition.eqns):
            return NO_COUNTER
        carries = condition.invars[self.condition_constants :]
        inside = body.invars[self.body_constants :]
        makers = {var: each for each in condition.eqns for var in each.outvars}
        parts = [*_parts(condition.outvars[0], makers)]
        for part in parts:
            limit = _limit(part, carries)
            if limit is None:
                continue
            place, end = limit
            step, start = _step(body, inside[place], body.outvars[place]), starts[place]
            if step is not None and start is not None:
                most = -((start - end) // step)
                is_exact = len(parts) == 1 and 0 < most <= MOST
                return LoopCounter(min(max(most, 1), MOST), is_exact, most <= MOST)
        return NO_COUNTER


def _parts(var: Any, makers: dict[Any, Any]) -> Iterator[Any]:
    """Yield the equations of a conjunction's parts; None for a part that is no result of an equation."""
    eqn = None if hasattr(var, "val") else makers.get(var)
    if eqn is not None and eqn.primitive.name == "and":
        for each in eqn.invars:
            yield from _parts(each, makers)
    elif (
        eqn is not None
        and eqn.primitive.name == "convert_element_type"
        and eqn.invars[0].aval.dtype == var.aval.dtype
    ):
        yield from _parts(eqn.invars[0], makers)
    else:
        yield eqn


def _number(var: Any) -> int | None:
    """Return a whole number that is written in a jaxpr."""
    value = getattr(var, "val", None)
    is_whole = value is not None and var.aval.shape == () and "int" in str(var.aval.dtype)
    return int(value) if is_whole else None  # type: ignore[arg-type]


def _limit(eqn: Any, carries: Sequence[Any]) -> tuple[int, int] | None:
    """Return the place of a carry, and the number that it has to be below."""
    if eqn is None or eqn.primitive.name not in ("lt", "le", "gt", "ge"):
        return None
    low, high = eqn.invars if eqn.primitive.name in ("lt", "le") else eqn.invars[::-1]
    number = _number(high)
    if hasattr(low, "val") or low not in carries or number is None:
        return None
    return [*carries].index(low), number + (eqn.primitive.name in ("le", "ge"))


def _step(body: Any, before: Any, after: Any) -> int | None:
    """Return the positive number that a body adds to a carry.

    before, after: the carry at the start and at the end of the body.
    """
    for eqn in body.eqns:
        if after in eqn.outvars and eqn.primitive.name == "add" and not hasattr(after, "val"):
            numbers = [_number(x) for x in eqn.invars if x is not before]
            if len(numbers) == 1 and numbers[0] is not None and numbers[0] > 0:
                return numbers[0]
    return None
