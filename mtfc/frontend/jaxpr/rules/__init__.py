"""The rules of JAX's primitives: how their axes belong together, and the equations that compute them."""

from collections.abc import Mapping

from mtfc.frontend.jaxpr.primitive_rules import PrimitiveRule
from mtfc.frontend.jaxpr.rules import calls, dots, elementwise, indexing, loops, reductions, shapes

RULES: Mapping[str, PrimitiveRule] = {
    **elementwise.RULES,
    **reductions.RULES,
    **shapes.RULES,
    **dots.RULES,
    **indexing.RULES,
    **loops.RULES,
    **calls.RULES,
}
"""Primitive -> its rule."""
