"""Suggest a new name where two dimensions of a tensor cannot both be split over an axis: no rule splits the new name.

Attention for example has `length` for the positions of queries and `memory` for the positions of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mtfc.compiler.ir.core import Equation, Value
from mtfc.frontend.facts import Facts, Tensor
from mtfc.frontend.rules import Rule, Section


def renaming(facts: Facts, affected: Iterable[Tensor], rules: Sequence[Rule], section: Section) -> str | None:
    """Return `; or rename ...` with the call, if a suitable operand exists.

    The operand belongs to an equation that makes one of these tensors, and has only one of the two rules' dimensions.
    """
    spans = {tensor.span for tensor in affected}
    for eqn in facts.equations:
        if eqn.span not in spans:
            continue
        for rule, beside in zip(rules, reversed(rules), strict=True):
            operand = _operand(facts, eqn, rule.dim, beside.dim)
            if operand is not None:
                return _text(facts, facts.paths[operand], rule.dim, section)
    return None


def _operand(facts: Facts, eqn: Equation, dim: str, other: str) -> Value | None:
    """Return an operand with a name of the user's that has the one dimension, and not the other."""
    fit = (value for value in eqn.operands if dim in value.type.names and other not in value.type.names)
    return next((value for value in fit if value in facts.paths), None)


def _text(facts: Facts, name: str, dim: str, section: Section) -> str:
    size = facts.program.dims[dim].size
    like = [
        each.name
        for each in facts.program.dims.values()
        if each.size == size and each.name != dim and each.name not in section
    ]
    free = next((each for each in like if "memory" in each or dim in each), None)
    new = free or f"{dim}_whole"
    declared = "" if free else f", with `dim {new} = {dim}`"
    variable = name.rpartition(".")[2]
    return f"; or rename one of them: `rename({variable}, {dim} -> {new})`{declared}"
