"""Rules of `simplify` that must not apply."""

from collections.abc import Mapping

import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value
from mtfc.compiler.ir.types import Dim, scalar
from mtfc.compiler.passes.pipelines import run
from mtfc.compiler.passes.simplify import Simplify

FACTORS = [(2.0, 3.0, True), (0.25, 8.0, True), (3.0, 5.0, False), (8.0, 0.25, False), (0.1, 3.0, False)]


@pytest.mark.parametrize(("first", "second", "merges"), FACTORS)
def test_factors_merge_if_no_result_changes(first: float, second: float, merges: bool) -> None:
    """One of them is a power of two, and the first product overflows only where the result does."""
    build = Builder(Names(["x"]))
    x = Value("x", scalar("f32"))
    result = build("mul", build("mul", x, build.constant(first, "f32")), build.constant(second, "f32"))
    found = _simplified(
        Function("forward", (Argument(x, "input"),), tuple(build.body), (Output("y", result),))
    )
    defined = {value: eqn for eqn in found.body for value in eqn.results}
    assert _products(defined, found.outputs[0].value) == (1 if merges else 2)


def _products(defined: Mapping[Value, Equation], value: Value) -> int:
    """Return the number of products on the way to a value."""
    if value not in defined or defined[value].op != "mul":
        return 0
    return 1 + _products(defined, defined[value].operands[0])


def _simplified(function: Function, *dims: Dim) -> Function:
    program = Program("m", {dim.name: dim for dim in dims}, (), (function,))
    return run(program, (Simplify(),)).function("forward")


def test_minus_a_whole_number_stays() -> None:
    """In u32 the result wraps, and no constant may be negative."""
    n = Dim("n", 3)
    build = Builder(Names())
    result = build("neg", build("full", dims=(n,), value=5, dtype="u32"))
    function = Function("forward", (), tuple(build.body), (Output("y", result),))
    simplified = _simplified(function, n)
    found = interpret(simplified, Program("m", {"n": n}, (), (simplified,)), {})["y"]
    assert found.dtype == np.uint32
    assert (found == 2**32 - 5).all()
