"""Rules of `simplify` that must not apply."""

from __future__ import annotations

import numpy as np

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Function, Output, Program
from mtfc.compiler.ir.types import Dim
from mtfc.compiler.passes.pipelines import run
from mtfc.compiler.passes.simplify import Simplify


def test_minus_a_whole_number_stays() -> None:
    """In u32 the result wraps, and no constant may be negative."""
    n = Dim("n", 3)
    build = Builder(Names())
    result = build("neg", build("full", dims=(n,), value=5, dtype="u32"))
    function = Function("forward", (), tuple(build.body), (Output("y", result),))
    program = Program("m", {"n": n}, (), (function,))
    simplified = run(program, (Simplify(),))
    found = interpret(simplified.function("forward"), simplified, {})["y"]
    assert found.dtype == np.uint32
    assert (found == 2**32 - 5).all()
