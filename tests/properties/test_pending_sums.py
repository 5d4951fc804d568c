"""Pending sums are completed where that sends the fewest bytes, in any order of factors: random products of sums."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product
from random import Random

import attrs
import pytest
from hypothesis import strategies as st

from mtfc.compiler.ir.core import Function, Value
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.passes.partition.place_reductions import (
    CutProblem,
    cut_problem,
    minimum_cut,
    pending_values,
)
from mtfc.compiler.passes.pipelines import layout_assignment, run
from tests.harness import communication, load
from tests.properties.campaign import holds_for

HEAD = """
dim batch = 8; dim i = 4; dim j = 6; dim k = 2
mesh line = [all: 2]
layout split on line = { batch: all }
"""

SUMS = {
    "sum(square(x))": (),
    "sum(x, over = batch)": ("i",),
    "sum(z, over = batch)": ("j",),
    "einsum(x, z -> [i, j])": ("i", "j"),
    "einsum(x, w -> [i, k])": ("i", "k"),
    "einsum(z, w -> [j, k])": ("j", "k"),
    "c": ("i", "j"),
}
"""Expressions, with their dimensions; all but `c` are pending where `batch` is split."""

CHAINED = 8
"""Factors of the products that have more choices than are all tried."""


@attrs.frozen
class ProductCase:
    """A model in two texts that differ in the order of factors alone."""

    body: str
    mirrored: str

    def source(self, body: str) -> str:
        return f"{HEAD}model m(x: [batch, i], z: [batch, j], w: [batch, k], c: [i, j]) {{\n{body}\n}}\n"


def case_of(seed: int, steps: int = 3) -> ProductCase:
    random = Random(seed)
    known = {f"s{n}": random.choice(list(SUMS)) for n in range(3)}
    dims = {name: SUMS[text] for name, text in known.items()}
    lines = [(f"{name} = {text}",) * 2 for name, text in known.items()]
    for n in range(steps):
        one, other = random.choice(list(dims)), random.choice(list(dims))
        joint = tuple(dict.fromkeys((*dims[one], *dims[other])))
        kept = tuple(dim for dim in joint if random.random() < 0.6)
        einsum = f"einsum({{}}, {{}} -> [{', '.join(kept)}])"
        broadcasts = set(dims[one]) <= set(dims[other]) or set(dims[other]) <= set(dims[one])
        pattern = random.choice(["{} * {}", "sum({} * {})", einsum]) if broadcasts else einsum
        name = f"p{n}"
        dims[name] = {"{": joint, "e": kept, "s": ()}[pattern[0]]
        lines.append((f"{name} = {pattern.format(one, other)}", f"{name} = {pattern.format(other, one)}"))
    ends = [f"tanh({name})" if random.random() < 0.5 else name for name in random.sample(list(dims), 2)]
    ends.append(f"tanh(p{steps - 1})")
    lines += [(f"o{n} = {end}",) * 2 for n, end in enumerate(ends)]
    lines.append(("return o0, o1, o2",) * 2)
    return ProductCase(*("\n".join(text) for text in zip(*lines, strict=True)))


def cases() -> st.SearchStrategy[ProductCase]:
    return st.integers(0, 2**32).map(case_of)


def assigned(source: str) -> tuple[Function, Mesh]:
    module = load(source)
    (program,), (layout,) = module.programs, module.layouts
    program = run(attrs.evolve(program, mesh=layout.mesh, layout=layout.layout), layout_assignment())
    return program.function("forward"), layout.mesh


def bytes_sent(source: str) -> int:
    return sum(elements for _, _, elements in communication(source))


@holds_for(cases(), 60)
def test_the_order_of_factors_never_changes_the_bytes(case: ProductCase) -> None:
    assert bytes_sent(case.source(case.body)) == bytes_sent(case.source(case.mirrored))


@holds_for(cases(), 60)
def test_no_other_choice_would_send_fewer_bytes(case: ProductCase) -> None:
    function, mesh = assigned(case.source(case.body))
    problem = cut_problem(function, "all")
    groups = pending_values(problem, mesh)
    chosen, pending = minimum_cut(problem, groups, mesh)
    assert set(groups) == pending & set(problem.through)
    assert chosen == pytest.approx(min(_costs(problem, mesh)), abs=1e-9)


def _costs(problem: CutProblem, mesh: Mesh) -> Iterator[float]:
    """Yield the bytes of each set of values that can be pending together, in each way that sums can pass to them."""
    linear = {each.eqn.result: each for each in problem.linear}
    for chosen in chain.from_iterable(combinations(linear, n) for n in range(len(linear) + 1)):
        pending = {*problem.sources, *chosen}
        ways = product(*(linear[value].groups for value in chosen))
        for way in ways:
            passing = dict(zip(chosen, way, strict=True))
            if all(linear[v].eqn.operands[i] in pending for v, group in passing.items() for i in group):
                yield sum(_bytes(value, problem, mesh) for value in _completed(problem, pending, passing))


def _completed(problem: CutProblem, pending: set[Value], passing: dict[Value, tuple[int, ...]]) -> set[Value]:
    """Return the pending values that some use needs complete."""
    read = {
        value
        for each in problem.linear
        for i, value in enumerate(each.eqn.operands)
        if i not in passing.get(each.eqn.result, ())
    }
    return pending & (read | set(problem.needed))


def _bytes(value: Value, problem: CutProblem, mesh: Mesh) -> float:
    return (2 if value in problem.whole else 1) * value.type.local_bytes(mesh) + 2.0**-20


def test_many_factors_are_chosen_one_after_another() -> None:
    """More combinations than are all tried: the sum passes through the large factors, and scalars are completed."""
    names = [f"s{n}" for n in range(CHAINED)]
    body = [f"{name} = sum(square(x) * {n}.0)" for n, name in enumerate(names, 2)]
    body += ["y = einsum(x, z -> [i, j])"]
    products = [f"p{n} = {name} * {'y' if n == 0 else f'p{n - 1}'}" for n, name in enumerate(names)]
    end = [f"t = tanh(sum(p{CHAINED - 1}))", "return t"]
    case = ProductCase("\n".join([*body, *products, *end]), "")
    assert bytes_sent(case.source(case.body)) == CHAINED + 1
