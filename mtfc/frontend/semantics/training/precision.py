"""Elaborate `precision = { ... }` of a `train` block: dtypes, and the scale of the loss."""

from __future__ import annotations

import attrs

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import LossScale
from mtfc.compiler.ir.types import FLOATS, WRITTEN_BYTES
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.names.constants import number
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast

LOSS_SCALE = "loss_scale"
DTYPES = ("params", "compute", "reduce")
KEYS = (*DTYPES, LOSS_SCALE)
DYNAMIC = "dynamic"

FIRST_SCALE = 2.0**15
"""The first scale of a dynamic loss scale. The next power of 2 is infinite in f16."""


@frozen
class TrainPrecision:
    """The precision of a training. reduce: the dtype of sums of gradients, None for the dtype of the computation."""

    params: str = "f32"
    compute: str = "f32"
    reduce: str | None = None
    loss_scale: LossScale | None = None

    @property
    def dtypes(self) -> tuple[str, str]:
        return self.params, self.compute


def elaborate_precision(node: ast.Precision, scope: Scope) -> TrainPrecision:
    """Return the precision; dtypes are f32 by default. Entries with an error count as left out."""
    rules = _by_key(node, scope)
    given = {key: _dtype(rules[key].value, scope) for key in DTYPES if key in rules}
    found = TrainPrecision(given.get("params") or "f32", given.get("compute") or "f32")
    if reduce := given.get("reduce"):
        found = attrs.evolve(found, reduce=_reduced(reduce, found, rules["reduce"], scope))
    if LOSS_SCALE in rules:
        found = attrs.evolve(found, loss_scale=_loss_scale(rules[LOSS_SCALE].value, found, scope))
    return found


def _by_key(node: ast.Precision, scope: Scope) -> dict[str, ast.PrecisionRule]:
    rules: dict[str, ast.PrecisionRule] = {}
    places: dict[str, Span] = {}
    for rule in node.rules:
        key = rule.use.text
        if key not in KEYS:
            scope.unknown("E410", f"`precision` has no entry `{key}`", rule.use, KEYS)
        elif scope.is_first(rule.use, places, "E410", f"`{key}` is given twice", "first given here"):
            rules[key] = rule
    return rules


def _dtype(node: ast.Expr, scope: Scope) -> str | None:
    if not isinstance(node, ast.Name):
        scope.error("E410", "expected a dtype such as `bf16`", node.span)
        return None
    dtype = scope.dtype(node)
    if dtype is None or dtype in FLOATS:
        return dtype
    scope.error("E410", f"expected a floating-point dtype, found {dtype}", node.span)
    return None


def _reduced(dtype: str, precision: TrainPrecision, rule: ast.PrecisionRule, scope: Scope) -> str | None:
    """Return the dtype if it is wider than the computation's; None stands for the computation's own."""
    params, compute = precision.dtypes
    if dtype not in (params, compute):
        message = (
            f"gradients are computed in {compute} and stored in {params}, and cannot be summed in {dtype}"
        )
        help = f"write `reduce: {params}`" if params != compute else None
        scope.error("E410", message, rule.value.span, help=help)
        return None
    return dtype if WRITTEN_BYTES[dtype] > WRITTEN_BYTES[compute] else None


def _loss_scale(node: ast.Expr, precision: TrainPrecision, scope: Scope) -> LossScale | None:
    if WRITTEN_BYTES[precision.params] < WRITTEN_BYTES["f32"]:
        message = f"the unscaled gradients would underflow in {precision.params} again"
        scope.error("E410", message, node.span, help="store parameters as `params: f32`")
        return None
    if isinstance(node, ast.Name) and node.text == DYNAMIC:
        return LossScale(FIRST_SCALE, is_dynamic=True)
    value = f"`{node.text}`" if isinstance(node, ast.Name) else number(node, scope)
    if isinstance(value, int | float) and value > 0:
        return LossScale(float(value))
    if value is not None:
        scope.error("E410", f"expected a number above 0 or `{DYNAMIC}`, found {value}", node.span)
    return None
