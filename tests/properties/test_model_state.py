"""Random models with state: every layout has the results of the undistributed program, after every pass and on NumPy."""

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mtfc.backends.interpreter import interpret
from tests.harness import call, changes, differentiated, exact_data, load, numpy_module, tolerance
from tests.sampling import EVERY_CASE

HEAD = """
dim batch = 4; dim hidden = 4; dim layers = 2; dim blocks = 2
mesh grid = [rows: 2, cols: 2]

fn centred[d](x: [..., d]) -> [..., d] {
  state average: [d] = 0.5
  now = mean(x -> [d])
  update average = 0.75 * average + 0.25 * now
  return x - where(training, now, average)
}
"""
PIECES = (
    "h = centred(h)",
    "state NAME: [hidden] = 1; h = h * NAME; update NAME = NAME + 0.25 * mean(h -> [hidden])",
    "state NAME: [] = 0.5; update NAME = 0.5 * NAME + 0.25 * max(h); h = h + NAME",
    "state NAME: [batch, hidden] = 0.25; h = 0.5 * h + NAME; update NAME = 0.5 * h",
    "state NAME: i32[hidden] = 2; h = h * cast(NAME, f32); update NAME = NAME - 1",
    "state NAME: [hidden, batch] = 1; update NAME = einsum(NAME, 0.25 * h -> [hidden, batch])",
    "param NAME: [hidden] = ones(); h = tanh(h * NAME)",
)
LOOPS = ("repeat layers", "repeat blocks", "repeat layers checkpoint", "repeat blocks checkpoint")
RULES = (
    "batch: rows", "batch: (rows, cols)", "batch: rows, hidden: cols", "hidden: (cols, rows)",
    "batch: rows, params: { *: cols }", "batch: rows, params: { hidden: cols }, optimizer: { hidden: () }",
    "hidden: rows, optimizer: { *: cols }", "batch: cols, params: { layers: rows }",
)  # fmt: skip
SETTINGS = (
    "",
    "accumulate = 2",
    "average = 0.75; clip = 0.5",
    "average = 0.5; accumulate = 3",
    "precision = { params: f32, compute: bf16 }",
)


@st.composite
def bodies(draw: st.DrawFn, loops: tuple[str, ...] = LOOPS) -> str:
    """Draw statements; loops are along different dimensions."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        if loops and draw(st.booleans()):
            loop = draw(st.sampled_from(loops))
            inner = tuple(each for each in loops if each.split()[1] != loop.split()[1])
            found.append(f"{loop} {{ {draw(bodies(inner))} }}")
        else:
            found.append(draw(st.sampled_from(PIECES)))
    return "; ".join(found)


@st.composite
def models(draw: st.DrawFn) -> str:
    pieces = draw(bodies()).split("NAME")
    body, number = pieces[0], 0
    for before, piece in pairwise(pieces):
        number += before.endswith(("state ", "param "))
        body += f"s{number}{piece}"
    return f"""{HEAD}
layout drawn = {{ {draw(st.sampled_from(RULES))} }}
model m(x: [batch, hidden]) {{
  param w: [hidden] = ones()
  h = x * w
  {body}
  loss = mean(square(h))
  return h, loss
}}
train m {{ minimize loss; optimizer = momentum(learning_rate = 0.5); {draw(st.sampled_from(SETTINGS))} }}
"""


@settings(max_examples=14 if EVERY_CASE else 8)
@given(models())
def test_every_pass_and_numpy_keep_the_results(source: str) -> None:
    module = load(source)
    (program,) = module.programs
    original = differentiated(program, "step")
    arrays: dict[str, Any] = exact_data(original.function("step"), seed=7)
    expected = interpret(original.function("step"), original, arrays)
    seen = [*changes(program, module.layouts[0], "step")]
    for name, placed in seen:
        found = interpret(placed.function("step"), placed, arrays)
        tolerance(program).check(found, expected, f"{name}\n{source}")
    placed = seen[-1][1]
    found = call(numpy_module(placed), placed.function("step"), arrays)
    tolerance(program).check(found, expected, source)
