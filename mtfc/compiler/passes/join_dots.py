"""join-dots: compute a sum of dots as one dot over joined dimensions, where that takes less time.

The gradient of a value that several dots read is a sum of dots, such as that of the input of attention: q's gradient times its
weights, plus k's, plus v's. Each of these dots writes the whole result, and each addition reads it again. If the summed
dimensions are short, moving these bytes takes longer than the arithmetic. As [a b] times [v; w] = a v + b w, one dot over the
joined dimensions writes the result once. Joining copies the operands, which pays if they are small beside the result.

Dots that share an operand but are not added are left alone: their joined result would have to be cut again.

A dot takes the longer of two times: of its FLOPs, and of its bytes. In the time of a byte of memory traffic a device computes
`balance` FLOPs: about 170 on TPU v5p, 240 on v5e, 300 on an H100. With `balance=0` the layout's `forms` say the balance; without
them nothing is joined. Dimensions that the layout splits are not joined; dots with the same ones are.

Input:   %x = einsum %a, %v dims=[i, o]; %y = einsum %b, %w dims=[i, o]; %z = add %x, %y   with a[i, k], v[k, o], b[i, m], w[m, o]
Output:  %c = concat %a, %b ..; %d = concat %v, %w ..; %z = einsum %c, %d dims=[i, o]
After this pass no such sum of dots would take less time as one dot.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import ClassVar

from mtfc.compiler.analysis.liveness import readers_of
from mtfc.compiler.ir.builder import Builder, Rewrite, rewritten
from mtfc.compiler.ir.core import Equation, Function, Program, Value, walk
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.contraction import iteration_dims, reduced_dims
from mtfc.compiler.ir.sharding_rules import is_sum_of_all
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, Rules
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.binarize_einsum import ShardElements
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.spatial.position_blocks import NewDims
from mtfc.compiler.records import frozen


@frozen
class JoinDots(Pass):
    """The pass. balance: the FLOPs that take as long as a byte of memory traffic; with 0, the layout's `forms` say it."""

    name: ClassVar[str] = "join-dots"
    takes: ClassVar[tuple[Level, ...]] = ("global",)
    balance: int = 0

    def run(self, program: Program) -> Program:
        """Return the program with joined dots, if the pass or the layout says how many FLOPs a byte is worth."""
        balance = self.balance or (program.layout.forms.flops_per_byte if program.layout else 0)
        if not balance:
            return program
        rules = program.layout.compute if program.layout else Rules()
        elements = ShardElements(rules, program.mesh)
        joiner = DotJoiner(elements, balance, NewDims(program.dims))
        return joiner.dims.declared_in(program.map_functions(joiner.function))


@frozen
class Term:
    """A dot of two operands that is added to others.

    left, right: operands. own: dimensions of the result that only the left one has, and those that only the right one has.
    split: summed dimensions that the layout splits. joined: the other summed dimensions.
    """

    eqn: Equation
    left: Value
    right: Value
    own: tuple[frozenset[Dim], frozenset[Dim]]
    split: frozenset[Dim]
    joined: tuple[Dim, ...]

    @property
    def key(self) -> object:
        """Terms with equal keys can be joined."""
        return self.own, self.split, frozenset(self.eqn.result.type.dims), self.eqn.result.type.dtype


def joinable(function: Function) -> set[Equation]:
    """Return all dots and additions that the pass may replace under some layout."""
    uses, dots, found = readers_of(walk(function.body)), Counter[Value](), set[Equation]()
    for eqn in walk(function.body):
        if has_trait(eqn, "dot"):
            dots[eqn.result] = 1
            found.update([eqn] if any(map(_is_addition, uses[eqn.result])) else [])
        elif _is_addition(eqn):
            dots[eqn.result] = sum(dots[value] for value in eqn.operands if len(uses[value]) == 1)
            found.update([eqn] if dots[eqn.result] > 1 else [])
    return found


@frozen
class DotJoiner:
    """Joins the dots of one program, by the rules of its layout."""

    elements: ShardElements
    balance: int
    dims: NewDims

    def function(self, function: Function) -> Function:
        """Return a function with joined dots."""
        return rewritten(function, self._rule)

    def _rule(self, function: Function) -> Rewrite:
        """Return a rewrite that replaces the last addition of a sum of dots by sums of joined dots.

        Additions whose only use is another addition are inner nodes of the sum.
        """
        makers = {value: eqn for eqn in function.body for value in eqn.results}
        uses = Counter(value for eqn in function.body for value in eqn.operands)
        uses.update(output.value for output in function.outputs)
        inner = {
            value
            for eqn in function.body
            if _is_addition(eqn)
            for value in eqn.operands
            if uses[value] == 1 and value in makers and _is_addition(makers[value])
        }

        def joined(build: Builder, eqn: Equation) -> Sequence[Value] | None:
            """Return a sum with its dots joined into fewer ones; None for other equations."""
            if not _is_addition(eqn) or eqn.result in inner:
                return None
            leaves = list(_leaves(eqn, makers, inner))
            dims = {*eqn.result.type.dims}
            alone = [value for value in leaves if uses[value] == 1 and {*value.type.dims} == dims]
            groups = self._groups(alone, makers)
            if not groups:
                return None
            taken = {term.eqn.result for group in groups for term in group}
            terms = [self._join(group, eqn.result.type.dims, build) for group in groups]
            terms += [value for value in leaves if value not in taken]
            total = terms[0]
            for term in terms[1:]:
                total = build("add", total, term)
            return (total,)

        return joined

    def _groups(self, values: Sequence[Value], makers: Mapping[Value, Equation]) -> list[list[Term]]:
        """Return the groups of terms that take less time as one dot."""
        found: dict[object, list[Term]] = {}
        for value in values:
            if value in makers and (term := self._term(makers[value])) is not None:
                found.setdefault(term.key, []).append(term)
        return [group for group in found.values() if len(group) > 1 and self._pays(group)]

    def _term(self, eqn: Equation) -> Term | None:
        """Return a dot as a term that may be joined; None if it sums over nothing, or if its operands share a dimension of the
        result.

        The left operand is the one whose own dimensions come first by name, so that terms with the same dimensions agree.
        """
        if not has_trait(eqn, "dot") or len(eqn.operands) != 2 or not reduced_dims(eqn):
            return None
        one, other = eqn.operands
        result, both = {*eqn.result.type.dims}, {*one.type.dims} & {*other.type.dims}
        if not both.issuperset(reduced_dims(eqn)) or one is other:
            return None
        sides = [(frozenset(result.intersection(v.type.dims) - both), v) for v in (one, other)]
        (own_left, left), (own_right, right) = sorted(sides, key=lambda side: sorted(d.name for d in side[0]))
        split = frozenset(dim for dim in reduced_dims(eqn) if self.elements.rules.get(dim.name))
        joined = tuple(dim for dim in reduced_dims(eqn) if dim not in split)
        return Term(eqn, left, right, (own_left, own_right), split, joined) if own_left != own_right else None

    def _bytes(self, value: Value) -> float:
        return self.elements(value.type.dims) * ITEM_BYTES[value.type.dtype]

    def _pays(self, group: Sequence[Term]) -> bool:
        """Return True if one dot takes less time than the dots and their additions. Times are in FLOPs."""
        flops = [2 * self.elements(iteration_dims(term.eqn)) for term in group]
        read = [self._bytes(term.left) + self._bytes(term.right) for term in group]
        result = self._bytes(group[0].eqn.result)
        apart = sum(max(f, self.balance * (r + result)) for f, r in zip(flops, read, strict=True))
        adding = self.balance * result * (len(group) - 1)
        copying = self.balance * 2 * sum(read)
        return max(sum(flops), self.balance * (sum(read) + result)) + copying < apart + adding

    def _join(self, group: Sequence[Term], dims: Sequence[Dim], build: Builder) -> Value:
        """Return the sum of the terms as one dot."""
        parts = [self._part(term.joined) for term in group]
        target = self.dims.get(
            f"{parts[0].name.removesuffix('.part')}.joined", sum(dim.size for dim in parts)
        )
        sources = tuple(parts)
        operands = []
        for values in ([term.left for term in group], [term.right for term in group]):
            kept = tuple(dim for dim in values[0].type.dims if dim not in group[0].joined)
            aligned = [
                build("reshape", build.ordered(value, (*kept, *term.joined)), dims=(*kept, part))
                for value, term, part in zip(values, group, parts, strict=True)
            ]
            operands.append(build("concat", *aligned, sources=sources, target=target))
        return build.einsum(*operands, dims=dims)

    def _part(self, joined: Sequence[Dim]) -> Dim:
        name = joined[0].name if joined else "one"
        return self.dims.get(f"{name}.part", prod(dim.size for dim in joined))


def _is_addition(eqn: Equation) -> bool:
    return has_trait(eqn, "add") and is_sum_of_all(OPS[eqn.op], eqn)


def _leaves(eqn: Equation, makers: Mapping[Value, Equation], inner: set[Value]) -> Iterator[Value]:
    """Yield the values that a tree of additions adds."""
    for value in eqn.operands:
        if value in inner:
            yield from _leaves(makers[value], makers, inner)
        else:
            yield value
