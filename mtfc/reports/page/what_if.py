"""Costs as formulas for the page, which evaluates them exactly at the sizes that a user chooses.

A formula is a list of terms `[numerator, denominator, {symbol: power}]`, with numerators and denominators as text, since they may
have more digits than a float. The activations have a formula for each moment at which they may peak; the page takes the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from mtfc.compiler.cost.effects.memory import memory_moments
from mtfc.compiler.cost.sizes import FormulaSizes, Numbers, bytes_of, whole
from mtfc.compiler.cost.symbolic import Formula, Monomial, formula
from mtfc.compiler.cost.volumes import layout_cost, total
from mtfc.compiler.ir.core import Function, Program, walk
from mtfc.compiler.ir.types import Axes, Dim

MOST_MOMENTS, MOST_PEAKS = 256, 32
"""Most moments with a formula, those with the most bytes at the sizes of the file; and most formulas that a page evaluates."""


def sizes_json(dims: Mapping[str, Dim], expressions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the declared dimensions in order of declaration: name, size, and how the size is computed from others, if it is.

    expressions: a number, a name, or `[operator, operand, ...]`, by name of the dimension.
    """
    return [
        {"name": dim.name, "size": dim.size, "expression": expressions.get(dim.name)} for dim in dims.values()
    ]


def formulas_json(program: Program, declared: Mapping[str, Dim]) -> dict[str, Any]:
    """Return the formulas of one processor's step, and the splits that sizes must allow.

    symbols: the names of mesh axes in formulas, by axis. divisible: dimensions, each with the axes that split it.
    positions: sizes of dimensions that the compiler has added, such as the blocks of a dimension whose positions are split.
    """
    mesh = program.placed_on
    scale = FormulaSizes(program.dims.values(), mesh)
    cost = layout_cost(program, scale)
    function = program.function("step" if cost.trains else "forward")
    sums, memory = total(cost.step), cost.memory
    inputs: Formula = sum(
        (formula(bytes_of(a.value.type, scale)) for a in function.arguments if a.role == "input"),
        start=Formula(),
    )
    peaks = _undominated(_largest_peaks(function, program, scale)) or [Formula()]
    parts = {name: formula(getattr(memory, name)) for name in ("parameters", "gradients", "optimizer")}
    return {
        "symbols": {axis: str(scale.group((axis,))) for axis in mesh.names},
        "positions": {name: dim.size for name, dim in program.dims.items() if name not in declared},
        "divisible": [[dim, list(axes)] for dim, axes in sorted(_splits(program))],
        "flops": _terms(formula(sums.flops)),
        "sent": _terms(formula(sums.sent.bytes)),
        "wire": _terms(formula(sums.sent.wire_bytes)),
        "memory": {name: _terms(each) for name, each in parts.items()},
        "activations": [_terms(each + inputs) for each in peaks],
    }


def _splits(program: Program) -> set[tuple[str, Axes]]:
    return {
        (dim.name, axes)
        for function in program.functions
        for eqn in walk(function.body)
        for value in (*eqn.operands, *eqn.results)
        for dim, axes in zip(value.type.dims, value.type.splits, strict=True)
        if axes and dim.name in program.dims
    }


def _largest_peaks(function: Function, program: Program, scale: FormulaSizes) -> list[Formula]:
    """Return the bytes at the moments with the most bytes at the sizes of the file, the largest first."""
    mesh = program.placed_on
    sizes = [whole(each.peak) for each in memory_moments(function, mesh, Numbers(mesh))]
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])[:MOST_MOMENTS]
    moments = memory_moments(function, mesh, scale)
    return [formula(moments[i].peak) for i in order]


def _undominated(peaks: Iterable[Formula]) -> Sequence[Formula]:
    """Return the formulas that may be the largest at some sizes, in order.

    A formula whose terms all have coefficients at most those of another one is never larger.
    """
    kept: list[Formula] = []
    for each in peaks:
        if not any(_covers(other.terms, each.terms) for other in kept):
            kept.append(each)
    return kept[:MOST_PEAKS]


def _covers(larger: Mapping[Monomial, Fraction], smaller: Mapping[Monomial, Fraction]) -> bool:
    return all(larger.get(monomial, 0) >= coefficient for monomial, coefficient in smaller.items())


def _terms(amount: Formula) -> list[list[Any]]:
    return [
        [str(a.numerator), str(a.denominator), {symbol.name: power for symbol, power in monomial}]
        for monomial, a in amount.sorted_terms()
    ]
