"""Sums of dots become one dot, where that takes less time."""

from pathlib import Path

import attrs
import pytest

from mtfc.backends.exact.check import ExactReference
from mtfc.compiler.ir.core import Equation, Program, walk
from mtfc.compiler.passes.join_dots import JoinDots
from mtfc.compiler.passes.pipelines import differentiation, parse_pipeline, preparation, run
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from tests.harness import load

LLAMA = Path(__file__).parents[1] / "examples" / "llama.mtf"

ALWAYS = 10**12
"""FLOPs in the time of a byte: a join pays if its operands are small beside its result."""

SUMS = """
dim rows = 256; dim io = 64; dim k = 4; dim m = 2; dim n = 4
mesh grid = [a: 2, b: 2]
layout none on grid = {{ rows: a }}
layout common on grid = {{ rows: a, n: b }}
layout own on grid = {{ rows: a, k: b }}
layout result on grid = {{ io: a, n: b }}
model m(x: [rows, io], r: [m]) {{
  param v: [n, k, io] = normal(stddev = 0.5)
  param w: [n, m, io] = normal(stddev = 0.5)
  a = einsum(x, v -> [rows, n, k])
  b = einsum(w, x -> [n, rows, m])
  y = {}
  loss = mean(square(y))
  return y, loss
}}
train m {{ minimize loss; optimizer = sgd(learning_rate = 0.1) }}
"""
TERMS = ("einsum(a, v -> [rows, io])", "einsum(w, b -> [rows, io])")
CASES = {
    "two": (f"{TERMS[0]} + {TERMS[1]}", {"none", "common", "result"}),
    "with others between": (f"{TERMS[0]} + x + sum(r) + {TERMS[1]}", {"none", "common", "result"}),
    "the same twice": (f"{TERMS[0]} + {TERMS[0]}", set()),
    "no sum": (f"{TERMS[0]} * {TERMS[1]}", set()),
}


def joined(program: Program) -> list[Equation]:
    return [
        eqn for f in program.functions for eqn in walk(f.body) if "joined" in str(eqn.attrs.get("target"))
    ]


@pytest.mark.parametrize("name", CASES)
def test_sums_of_dots_are_exact(name: str) -> None:
    sum, layouts = CASES[name]
    module = load(SUMS.format(sum))
    (program,) = module.programs
    reference = ExactReference(program, draws=(0,))
    for layout in module.layouts:
        placed = attrs.evolve(program, mesh=layout.mesh, layout=layout.layout)
        found = run(
            placed, parse_pipeline(f"default{{differentiate.of=gradients,join-dots.balance={ALWAYS}}}")
        )
        is_joined = any(eqn.stage == "forward" for eqn in joined(found))
        assert is_joined == (layout.name in layouts), layout.name
        assert reference.compare(found).ok, layout.name


def test_the_input_of_attention_has_one_gradient_dot_in_llama() -> None:
    """The gradients of gate and up stay apart: as their summed dimension is long, arithmetic takes longer than memory traffic."""
    selection = choose(LLAMA.read_text("utf-8"), str(LLAMA), Choice(layout="tensor_parallel"))
    (case,) = selection.cases
    placed = attrs.evolve(selection.program, mesh=case.mesh, layout=case.layout)
    made = run(placed, (*differentiation(), *preparation()))
    assert joined(made) == []
    left, right = joined(run(made, (JoinDots(170),)))
    assert [len(eqn.operands) for eqn in (left, right)] == [3, 3]
    assert {dim.name for dim in right.result.type.dims} == {"kv_heads", "d_model", "d_k.joined"}
