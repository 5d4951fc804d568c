"""The rules of JAX's primitives: how their axes belong together, and the equations that compute them."""

from __future__ import annotations

from collections.abc import Mapping

from mtfc.frontend.jaxpr.primitive_rules import PrimitiveRule
from mtfc.frontend.jaxpr.rules import (
    dots,
    elementwise,
    indexing,
    loops,
    random,
    reductions,
    shapes,
)

RULES: Mapping[str, PrimitiveRule] = {
    **elementwise.RULES,
    **reductions.RULES,
    **shapes.RULES,
    **dots.RULES,
    **indexing.RULES,
    **loops.RULES,
    **random.RULES,
}
"""Primitive -> its rule."""
