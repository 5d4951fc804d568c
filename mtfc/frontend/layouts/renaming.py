"""Suggest a new name where two dimensions of a tensor cannot both be split over an axis: no rule splits the new name.

Attention for example has `length` for the positions of queries and `memory` for the positions of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mtfc.compiler.ir.core import Equation, Value
from mtfc.frontend.layouts.facts import Facts, Tensor
from mtfc.frontend.layouts.rules import Rule, Section


def renaming(
    facts: Facts, affected: Iterable[Tensor], rules: Sequence[Rule], section: Section, may_declare: bool
) -> str | None:
    """Return `; or rename ...` with the call, if a suitable operand exists, and `; or declare ...` for inputs and parameters.

    The operand belongs to an equation that makes one of these tensors, and has only one of the two rules' dimensions.
    """
    affected = tuple(affected)
    argument = next((each for each in affected if each.role is not None and each.path), None)
    if argument is not None:
        return _redeclared(facts, argument, rules[0].dim, section) if may_declare else None
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


def _redeclared(facts: Facts, tensor: Tensor, dim: str, section: Section) -> str:
    """Return help for an input or a parameter, which has both dimensions by its declaration."""
    new, declared = _new(facts, dim, section, tensor.type.names)
    names = ", ".join(new if name == dim else name for name in tensor.type.names)
    dtype = "" if tensor.type.dtype == "f32" else tensor.type.dtype
    variable = (tensor.path or "").rpartition(".")[2]
    return f"; or declare `{variable}: {dtype}[{names}]`{declared}, and `rename` the values that it meets"


def _text(facts: Facts, name: str, dim: str, section: Section) -> str:
    new, declared = _new(facts, dim, section)
    variable = name.rpartition(".")[2]
    return f"; or rename one of them: `rename({variable}, {dim} -> {new})`{declared}"


def _new(facts: Facts, dim: str, section: Section, taken: Sequence[str] = ()) -> tuple[str, str]:
    """Return a name for a dimension of the same size that no rule splits, and its declaration if it needs one."""
    size = facts.program.dims[dim].size
    like = [
        each.name
        for each in facts.program.dims.values()
        if each.size == size and each.name != dim and each.name not in (*section, *taken)
    ]
    free = next((each for each in like if "memory" in each or dim in each), None)
    new = free or f"{dim}_whole"
    declared = "" if free else f", with `dim {new} = {dim}`"
    return new, declared
