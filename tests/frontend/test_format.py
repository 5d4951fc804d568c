"""Test the formatter: it keeps the meaning, and formatting twice changes nothing."""

import pytest
from hypothesis import given

from mtfc.compiler.diagnostics import CompileError, Diagnostics
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.format import WIDTH, format_source
from mtfc.frontend.syntax.lexer import COMMENT, lex
from mtfc.frontend.syntax.parser import parse
from tests.frontend.strategies import disguised, junk

# The complete file of the language's definition, section 1.
TWO_LAYER = """\
# Two fully-connected layers (Mesh-TensorFlow paper, section 8).
dim batch  = 64
dim io     = 128
dim hidden = 4 * io

mesh line = [all: 8]
mesh grid = [rows: 2, cols: 4]

layout replicated     on line = {}
layout data_parallel  on line = { batch: all }
layout model_parallel on line = { hidden: all }
layout hybrid         on grid = { batch: rows, hidden: cols }

model two_layer(x: f32[batch, io], target: f32[batch, io]) {
  param w:    f32[io, hidden] = normal(stddev = 0.05)
  param bias: f32[hidden]     = zeros()
  param v:    f32[hidden, io] = normal(stddev = 0.05)

  h = relu(einsum(x, w -> [batch, hidden]) + bias)
  y = einsum(h, v -> [batch, io])
  loss = mean(square(y - target))
  return y, loss
}

train two_layer {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


def comments(text: str) -> list[str]:
    return sorted(token.text.rstrip() for token in lex(text) if token.kind == COMMENT)


def test_the_example_is_canonical() -> None:
    assert format_source(TWO_LAYER) == TWO_LAYER


@given(disguised())
def test_meaning_and_comments_stay(disguise: tuple[ast.File, str]) -> None:
    tree, text = disguise
    formatted = format_source(text)
    diagnostics = Diagnostics()
    assert parse(formatted, "t.mtf", diagnostics) == tree
    assert not list(diagnostics)
    assert comments(formatted) == comments(text)


@given(disguised())
def test_the_form_is_canonical(disguise: tuple[ast.File, str]) -> None:
    formatted = format_source(disguise[1])
    assert format_source(formatted) == formatted
    assert formatted == "" or (formatted.endswith("\n") and not formatted.endswith("\n\n"))
    assert "\n\n\n" not in formatted
    assert not {"\r", "\t", "\f"} & set(formatted)
    assert all(line == line.rstrip() for line in formatted.split("\n"))


@given(junk())
def test_only_programs_are_formatted(text: str) -> None:
    diagnostics = Diagnostics()
    parse(text, "<input>", diagnostics)
    if diagnostics.errors:
        with pytest.raises(CompileError):
            format_source(text)
    else:
        format_source(text)


CASES = {
    "spaces": (
        "dim  a=- 4*( b+1 )**2\nmodel m(x:[a,],y :f32[ ]){z=f [b=c] (x,- 1,k=(1,2,))as  g;return z}",
        """\
dim a = -4 * (b + 1) ** 2
model m(x: [a], y: f32[]) { z = f[b = c](x, -1, k = (1, 2)) as g; return z }
""",
    ),
    "blank lines": (
        "\n\n\nimport nn\n\n\n\n# why\n\nmodel m() {\n\n  a = b\n\n\n  return a\n\n}\n\n",
        """\
import nn

# why

model m() {
  a = b

  return a
}
""",
    ),
    "columns": (
        """\
dim a = 1
dim long = 2  # why

dim b = 3
layout none = {}
layout of_mesh on grid = { a: rows }
layout over_lines on grid = {
  a: rows,  b: cols
}
dim = 3
""".replace("dim = 3\n", ""),
        """\
dim a    = 1
dim long = 2  # why

dim b = 3
layout none            = {}
layout of_mesh on grid = { a: rows }
layout over_lines on grid = {
  a: rows
  b: cols
}
""",
    ),
    "long lines": (
        "model m() {\n  y = relu(einsum(a_long_name, another_long_name, the_third_of_the_names -> [batch, hidden])"
        " + long_bias)\n  h = f(y, [batch, hidden], start = 2)(x)\n}\n".replace("(x)\n", "\n"),
        """\
model m() {
  y = relu(
    einsum(a_long_name, another_long_name, the_third_of_the_names -> [batch, hidden]) + long_bias
  )
  h = f(y, [batch, hidden], start = 2)
}
""",
    ),
    "comments in a call": (
        "model m() {  # body\n  y = f( # first\n    a, # of a\n    # of b\n    b + # odd\n    c\n    # last\n  ) # of y\n}\n",
        """\
model m() {  # body
  y = f(  # first
    a,  # of a
    # of b
    # odd
    b + c
    # last
  )  # of y
}
""",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_form(case: str) -> None:
    text, expected = CASES[case]
    assert format_source(text) == expected


def test_lines_are_broken_where_they_can_be() -> None:
    call = ", ".join(f"argument_{index}" for index in range(30))
    formatted = format_source(f"dim a = f(g({call}), h[b = c]({call}))\n")
    assert max(map(len, formatted.split("\n"))) <= WIDTH
