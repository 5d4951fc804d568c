"""binarize-einsum: contract two operands at a time, in the order that costs least under the layout.

First each operand is summed over the dimensions that no other operand and no result has. So a product of sums is never computed
as the sum of an outer product. Then the pass chooses the order of pairwise contractions with the fewest multiplications on a
processor: by dynamic programming over sets of operands for up to `EXHAUSTIVE` operands, else greedily. With `most=2`, einsums
of more operands stay as they are, and the result does not depend on the layout.

Input:   %y = einsum %a, %b, %c dims=[i, l]             with a[i, j], b[j, k], c[k, l]
Output:  %y_ab = einsum %a, %b dims=[i, k]; %y = einsum %y_ab, %c dims=[i, l]
After this pass every einsum of up to `most` operands has two.
"""

from collections.abc import Collection, Sequence
from itertools import combinations
from math import prod
from operator import itemgetter
from typing import ClassVar

from mtfc.compiler.ir.builder import Builder, rewritten
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.contraction import iteration_dims
from mtfc.compiler.ir.types import Dim, Mesh, Rules
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.records import frozen

EXHAUSTIVE = 8

Dims = frozenset[Dim]
Tree = int | tuple["Tree", "Tree"]


@frozen
class BinarizeEinsum(Pass):
    name: ClassVar[str] = "binarize-einsum"
    most: int = 1 << 30

    def run(self, program: Program) -> Program:
        """Return the program with einsums of at most two operands. Costs are those of shards under the layout."""
        rules = program.layout.compute if program.layout else Rules()
        cost = ShardElements(rules, program.mesh)
        return program.map_functions(lambda function: binarized(function, cost, self.most))


@frozen
class ShardElements:
    """Elements on one processor: sizes are divided by the axes that split them, each axis once."""

    rules: Rules
    mesh: Mesh | None

    def __call__(self, dims: Collection[Dim]) -> float:
        axes = {axis for dim in dims for axis in self.rules.get(dim.name)}
        return prod(dim.size for dim in dims) / (self.mesh.size(axes) if self.mesh else 1)


def _joined(a: Dims, b: Dims, rest: Dims) -> Dims:
    """Return the dims of two operands that other operands or the result still need."""
    return (a | b) & rest


def _others(operands: Sequence[Dims], taken: int, result: Dims) -> Dims:
    """Return the dims of operands outside the set `taken` (a bit mask), and of the result."""
    return result.union(*(dims for i, dims in enumerate(operands) if not taken >> i & 1))


def best_tree(operands: Sequence[Dims], result: Dims, cost: ShardElements) -> Tree:
    """Return the cheapest order of pairwise contractions of all operands."""
    best: dict[int, tuple[float, Dims, Tree]] = {1 << i: (0.0, dims, i) for i, dims in enumerate(operands)}

    def split(part: int, mask: int) -> tuple[float, Dims, Tree]:
        """Return the contraction of two sets of operands: `part`, and the others of `mask`."""
        (cost_a, dims_a, tree_a), (cost_b, dims_b, tree_b) = best[part], best[mask ^ part]
        dims = _joined(dims_a, dims_b, _others(operands, mask, result))
        return cost_a + cost_b + cost(dims_a | dims_b), dims, (tree_a, tree_b)

    everything = (1 << len(operands)) - 1
    for size in range(2, len(operands) + 1):
        for members in combinations(range(len(operands)), size):
            mask = sum(1 << i for i in members)
            best[mask] = min((split(part, mask) for part in _halves(mask)), key=itemgetter(0))
    return best[everything][2]


def _halves(mask: int) -> list[int]:
    """Return the proper subsets of a bit mask that contain its lowest bit: one of each complementary pair."""
    low = mask & -mask
    rest, subset, halves = mask ^ low, mask ^ low, []
    while subset:
        subset = (subset - 1) & rest
        halves.append(subset | low)
    return halves


def greedy_tree(operands: Sequence[Dims], result: Dims, cost: ShardElements) -> Tree:
    """Contract the cheapest pair until one is left."""
    nodes: list[tuple[Dims, Tree]] = [(dims, i) for i, dims in enumerate(operands)]
    while len(nodes) > 1:
        i, j = min(combinations(range(len(nodes)), 2), key=lambda p: cost(nodes[p[0]][0] | nodes[p[1]][0]))
        (dims_a, tree_a), (dims_b, tree_b) = nodes[i], nodes[j]
        del nodes[j], nodes[i]
        rest = result.union(*(dims for dims, _ in nodes))
        nodes.append((_joined(dims_a, dims_b, rest), (tree_a, tree_b)))
    return nodes[0][1]


def _build(b: Builder, tree: Tree, operands: Sequence[Value], wanted: Dims) -> Value:
    """Build the contraction that `tree` describes, keeping the dims in `wanted`."""
    if isinstance(tree, int):
        return operands[tree]
    left, right = tree
    outside = [operands[i] for i in range(len(operands)) if i not in {*_leaves(left), *_leaves(right)}]
    needed = wanted.union(*(value.type.dims for value in outside))
    x, y = _build(b, left, operands, wanted), _build(b, right, operands, wanted)
    dims = [dim for dim in dict.fromkeys((*x.type.dims, *y.type.dims)) if dim in needed]
    return b.einsum(x, y, dims=dims)


def _leaves(tree: Tree) -> list[int]:
    return [tree] if isinstance(tree, int) else _leaves(tree[0]) + _leaves(tree[1])


def _presummed(b: Builder, eqn: Equation) -> list[Value]:
    """Sum each operand over the dims that no other operand and no result has."""
    summed = []
    for i, value in enumerate(eqn.operands):
        others = [v for j, v in enumerate(eqn.operands) if j != i]
        shared = set(eqn.result.type.dims).union(*(v.type.dims for v in others))
        summed.append(b.sum_to(value, [dim for dim in value.type.dims if dim in shared]))
    return summed


def _contract(b: Builder, eqn: Equation, cost: ShardElements) -> Value:
    """Append an einsum as dots of two operands, in the cheapest order, and return its result."""
    result = frozenset(eqn.result.type.dims)
    operands = _presummed(b, eqn)
    sets = [frozenset(value.type.dims) for value in operands]
    tree = (best_tree if len(sets) <= EXHAUSTIVE else greedy_tree)(sets, result, cost)
    return b.ordered(_build(b, tree, operands, result), eqn.result.type.dims)


def is_simple(eqn: Equation) -> bool:
    """Return True unless the equation is an einsum to rewrite: two operands that share each summed dim stay."""
    if not has_trait(eqn, "dot"):
        return True
    if len(eqn.operands) != 2:
        return False
    x, y = (set(value.type.dims) for value in eqn.operands)
    return all(dim in eqn.result.type.dims or dim in x & y for dim in iteration_dims(eqn))


def binarized(function: Function, cost: ShardElements, most: int) -> Function:
    """Return a function whose einsums of up to `most` operands are dots of two."""

    def contracted(build: Builder, eqn: Equation) -> Sequence[Value] | None:
        stays = is_simple(eqn) or len(eqn.operands) > most
        return None if stays else (_contract(build, eqn, cost),)

    return rewritten(function, lambda _: contracted)
