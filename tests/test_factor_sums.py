"""Factors are taken out of sums that would wait for them, and out of no others."""

from random import Random

import attrs
import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Dim, Layout, Rules, TensorType
from mtfc.compiler.passes.factor_sums import FactorSums
from mtfc.compiler.passes.pipelines import default_pipeline, run
from tests.harness import load

A, B, C, D = Dim("a", 3), Dim("b", 4), Dim("c", 2), Dim("d", 5)

Case = tuple[Function, dict[str, np.ndarray]]


class Chain:
    """Builds a program with a sum of `terms`, changed by several factors. All numbers are positive multiples of 1/4."""

    def __init__(self, seed: int, dtype: str = "f64") -> None:
        self.random, self.numbers = Random(seed), np.random.default_rng(seed)
        self.dtype, self.builder = dtype, Builder(Names())
        self.arguments: list[Argument] = []
        self.arrays: dict[str, np.ndarray] = {}

    def argument(self, *dims: Dim) -> Value:
        value = Value(self.builder.names.fresh("x"), TensorType(self.dtype, dims))
        shape = tuple(dim.size for dim in dims)
        self.arguments.append(Argument(value, "input"))
        self.arrays[value.name] = self.numbers.integers(1, 9, shape) / 4
        return value

    def later(self, *dims: Dim) -> Value:
        """Return a factor that a sum gives."""
        return self.builder("sum", self.argument(D, *dims), over=(D,))

    def function(self, result: Value) -> Function:
        return Function("forward", tuple(self.arguments), tuple(self.builder.body), (Output("y", result),))


def _program(function: Function, layout: Layout | None = None) -> Program:
    return Program("m", {dim.name: dim for dim in (A, B, C, D)}, (), (function,), layout=layout)


def _factored(function: Function, layout: Layout | None = None) -> Function:
    return run(_program(function, layout), (FactorSums(),)).function("forward")


def _sums_of(function: Function, terms: Value) -> list[Equation]:
    return [eqn for eqn in function.body if has_trait(eqn, "sum") and eqn.operands == (terms,)]


def _chain(seed: int) -> tuple[Chain, Value, Value]:
    """Return a random chain, its terms, and the sum."""
    chain = Chain(seed)
    dims = chain.random.sample([A, B, C], 3)
    over = tuple(dims[: chain.random.randint(1, 2)])
    terms = value = chain.builder("exp", chain.argument(*chain.random.sample(dims, 3)))
    others = [dim for dim in dims if dim not in over]
    makers = [chain.later, *chain.random.choices([chain.later, chain.argument], k=chain.random.randint(0, 3))]
    for maker in chain.random.sample(makers, len(makers)):
        factor = maker(*chain.random.sample(others, chain.random.randint(0, len(others))))
        op = chain.random.choice(["mul", "mul", "div", "neg"])
        operands = [value, factor] if op == "div" or chain.random.random() < 0.5 else [factor, value]
        value = chain.builder(op, *(operands if op != "neg" else [value]))
    return chain, terms, chain.builder("sum", value, over=over)


@pytest.mark.parametrize("seed", range(60))
def test_chains_keep_their_sums(seed: int) -> None:
    chain, terms, result = _chain(seed)
    function = chain.function(result)
    found = _factored(function)
    before, after = (interpret(each, _program(each), chain.arrays)["y"] for each in (function, found))
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12)
    waits = any(has_trait(eqn, "multiply", "divide") and _is_late(function, eqn) for eqn in function.body)
    assert len(_sums_of(found, terms)) == waits
    if waits:
        place = next(i for i, eqn in enumerate(found.body) if terms in eqn.results)
        assert found.body[place + 1].operands == (terms,)


def _is_late(function: Function, eqn: Equation) -> bool:
    made = {value: each for each in function.body for value in each.results}
    return any(value in made and has_trait(made[value], "sum") for value in eqn.operands)


def test_two_sums_of_the_same_terms_follow_each_other() -> None:
    """The terms are an argument, so both stand at the start."""
    chain = Chain(0)
    terms = chain.argument(A, B)
    one, other = (
        chain.builder("sum", chain.builder("mul", terms, chain.later(B)), over=(A,)) for _ in range(2)
    )
    found = _factored(chain.function(chain.builder("add", one, other)))
    assert [eqn.operands for eqn in found.body[:2]] == [(terms,), (terms,)]


def test_a_sum_of_sums_moves_behind_the_first() -> None:
    chain = Chain(0)
    terms = chain.argument(A, B, C)
    inner = chain.builder("sum", chain.builder("mul", chain.later(C), terms), over=(A,))
    last = chain.builder("sum", chain.builder("mul", chain.later(A, C), chain.argument(A, C)), over=(A,))
    outer = chain.builder("sum", chain.builder("div", inner, last), over=(B,))
    function = chain.function(outer)
    found = _factored(function)
    assert [eqn.op for eqn in found.body[:2]] == ["sum", "sum"]
    assert found.body[1].operands == (found.body[0].result,)
    before, after = (interpret(each, _program(each), chain.arrays)["y"] for each in (function, found))
    np.testing.assert_allclose(after, before, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["f16", "i32"])
def test_other_dtypes_keep_their_factors(dtype: str) -> None:
    """Without its factor a sum of f16 may be infinite, and a quotient of integers is rounded."""
    chain = Chain(0, dtype)
    product = chain.builder("mul", chain.argument(A, B), chain.later(B))
    function = chain.function(chain.builder("sum", product, over=(A,)))
    assert _factored(function).body == function.body


def test_factors_with_a_summed_dimension_stay() -> None:
    chain = Chain(0)
    terms = chain.argument(A, B)
    for other in (chain.later(A, B), chain.later(A), terms):
        chain.builder("sum", chain.builder("mul", terms, other), over=(A,))
    chain.builder("sum", chain.builder("div", chain.later(B), terms), over=(A,))
    function = chain.function(chain.builder.body[-1].result)
    assert _factored(function).body == function.body


def test_factors_that_are_known_before_the_terms_stay() -> None:
    """To take them out would let no sum begin earlier."""
    chain = Chain(0)
    terms = chain.builder("mul", chain.later(A, B), chain.argument(A, B))
    function = chain.function(
        chain.builder("sum", chain.builder("mul", terms, chain.later(B)), over=(A,)),
    )
    assert _factored(function).body == function.body


def test_a_sum_that_a_rule_names_keeps_its_terms() -> None:
    chain = Chain(0)
    product = chain.builder("mul", chain.argument(A, B), chain.later(B))
    chain.builder.body.append(
        Equation("sum", (product,), (Value("s", TensorType("f64", (B,))),), {"over": (A,)}, path="s")
    )
    function = chain.function(chain.builder.body[-1].result)
    layout = Layout("rules", values=(("s", Rules()),))
    assert _factored(function, layout).body == function.body
    assert len(_factored(function).body) == len(function.body) + 1


WEIGHTED = """
dim batch = 8; dim io = 4
mesh line = [all: 4]
layout data on line = { batch: all }
model weighted(x: [batch, io]) {
  centered = x - mean(x, over = batch)
  variance = mean(square(centered), over = batch)
  s = sum(variance * centered, over = batch)
  return s
}
"""


def test_sums_without_their_factors_travel_together() -> None:
    """The deviations are summed beside their squares, as in the gradient of a batch normalization."""
    module = load(WEIGHTED)
    (program,), (layout,) = module.programs, module.layouts
    placed = attrs.evolve(program, mesh=layout.mesh, layout=layout.layout)
    plain = [each for each in default_pipeline() if not isinstance(each, FactorSums)]
    counts = [
        sum(has_trait(eqn, "all_reduce") for eqn in run(placed, passes).function("forward").body)
        for passes in (plain, default_pipeline())
    ]
    assert counts == [3, 2]
