"""The verifier: programs that hold every invariant pass, and an error names each violation and its place."""

import attrs
import pytest

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.parser import ReadError, read_program
from mtfc.compiler.ir.verifier import Level, Verifier, VerifyError, verify

GLOBAL = """\
program tiny
source "tiny.mtf"
dim batch = 8
dim io = 4
param w: f32[io] = zeros()
train minimize loss
update w with counted {
  parameter %p: f32[io]
  input %g: f32[io]
  state %n: f32[]
  %q: f32[io] = sub %p, %g
  output p = %q updates p
  output n = %n updates n
}
function forward {
  input %x: f32[batch, io]
  parameter %w: f32[io]
  %y: f32[batch, io] = mul %x, %w at 5:3-5:12
  %loss: f32[] = sum %y over=[batch, io] at 6:3-6:12
  output y = %y
  output loss = %loss
}
"""

ASSIGNED = """\
program tiny
mesh grid = [rows: 2, cols: 2]
dim batch = 8
dim io = 4
function forward placed {
  input %x: f32[batch, io] layout {batch: rows}
  %y: f32[batch] = sum %x over=[io] layout {batch: rows, io: cols}
  output y = %y layout {batch: rows}
}
"""

RESHARDED = """\
program tiny
mesh grid = [rows: 2, cols: 2]
dim batch = 8
dim io = 4
function forward placed {
  input %x: f32[batch{rows}, io]
  %x_2: f32[batch{rows}, io{cols}] = reshard %x
  %y: f32[batch{rows}] +{cols} = sum %x_2 over=[io] layout {batch: rows, io: cols}
  %y_2: f32[batch{rows}] = reshard %y
  output y = %y_2
}
"""

LOWERED = """\
program tiny
mesh grid = [rows: 2, cols: 2]
dim batch = 8
dim io = 4
function step placed {
  input %x: f32[batch{rows}, io]
  state %m: f32[batch{rows}]
  %x_2: f32[batch{rows}, io{cols}] = local_slice %x dim=io axes={cols}
  %y: f32[batch{rows}] +{cols} = sum %x_2 over=[io] layout {batch: rows, io: cols}
  %y_2: f32[batch{rows}] = all_reduce %y axes={cols}
  %n: f32[batch{rows}] = add %y_2, %m
  output m = %n updates m
}
"""

PLACED = """
program m
mesh grid = [rows: 2, cols: 2]
dim batch = 8
dim io = 4

function step placed {
  input %x: f32[batch{rows}, io]
  %y: f32[batch{rows}] +{cols} = sum %x over=[io] layout {batch: rows, io: cols}
  %z: f32[batch{rows}] +{cols} = add %y, %y
  %s: f32[batch{rows}] = square %z
  output s = %s
  output z = %z
}
"""

SOUND: dict[Level, str] = {
    "global": GLOBAL, "assigned": ASSIGNED, "placed": PLACED, "resharded": RESHARDED, "lowered": LOWERED,
}  # fmt: skip


@pytest.mark.parametrize("level", SOUND)
def test_sound_programs_pass(level: Level) -> None:
    verify(read_program(SOUND[level]), level)


BROKEN: list[tuple[Level, str, str, str]] = [
    # names and scopes
    ("global", "  output y", "  output loss", "two outputs are called loss"),
    ("global", "output loss = %loss\n}", "output loss = %loss\n}\nfunction forward {\n}", "two functions are called forward"),
    ("global", "  %loss: f32[] =", "  %x: f32[batch, io] = neg %y\n  %loss: f32[] =", "another value is called %x"),
    ("global", "minimize loss", "minimize y", "y is minimized, and is a f32[batch, io] of forward"),
    ("global", "minimize loss", "minimize h", "h is minimized, and is no output of forward"),
    ("global", "parameter %w: f32[io]", "parameter %v: f32[io]\n  input %w: f32[io]", "does not declare such a parameter"),
    ("global", "param w: f32[io]", "param w: f32[batch]", "does not declare such a parameter"),
    ("lowered", "updates m", "updates x", "it is f32[batch{rows}] and updates x"),
    ("lowered", "= %n updates m", "= %n updates m\n  output n = %n updates m", "two updates are called m"),
    # updates
    ("global", "update w with", "update v with", "has at most one update"),
    ("global", "update w with", "update w, w with", "has at most one update"),
    ("global", "state %n: f32[]", "input %n: f32[]", "counted takes a parameter, a gradient, and states"),
    ("global", "input %g: f32[io]", "input %g: f32[]", "the gradient must have the parameter's type"),
    ("global", "  output n = %n updates n\n", "", "returns the new parameter and the new states, and nothing else"),
    ("global", "%p: f32[io]\n  input %g: f32[io]", "%p: f32[batch]\n  input %g: f32[batch]", "for f32[batch], not for %w"),
    ("global", "output p = %q", "output p = %n", "it is f32[] and updates p"),
    # types
    ("global", "%y: f32[batch, io] = mul %x, %w", "%y: f32[io, batch] = mul %x, %w",
     "the type rule of mul infers f32[batch, io], not f32[io, batch]"),
    ("global", "sum %y over=[batch, io]", "sum %w over=[batch]", "the type rule of sum refuses: cannot reduce over `batch`"),
    ("global", "input %x: f32[batch, io]", "input %x: f32[batch, batch]", "a dimension occurs twice"),
    ("global", "input %x: f32[batch, io]", "input %x: f31[batch, io]", "unknown dtype f31"),
    ("resharded", "%x: f32[batch{rows}, io]", "%x: f32[batch{ranks}, io]", "the mesh lacks one of its axes"),
    ("resharded", "%x: f32[batch{rows}, io]", "%x: f32[batch{rows}, io{rows}]", "a mesh axis is used twice"),
    ("resharded", "dim batch = 8", "dim batch = 9", "a split does not divide its dimension evenly"),
    ("resharded", "%y: f32[batch{rows}] +{cols}", "%y: f32[batch] +{cols, rows}", "pending axes are not in mesh order"),
    ("resharded", "output y = %y_2", "output y = %y", "no reduction may be pending there"),
    # placement
    ("global", "%y: f32[batch, io] = mul", "%y: f32[batch{rows}, io] = mul", "the mesh lacks one of its axes"),
    ("assigned", "%y: f32[batch] =", "%y: f32[batch{rows}] =", "at level assigned types are global"),
    ("assigned", "%x: f32[batch, io] layout {batch: rows}", "%x: f32[batch, io] layout none", "it has no layout"),
    ("assigned", "layout {batch: rows, io: cols}", "layout none", "at level assigned every equation has a layout"),
    ("assigned", "layout {batch: rows, io: cols}", "layout {batch: cols, io: cols}", "puts two dimensions on one mesh axis"),
    ("assigned", "dim io = 4", "dim io = 5", "io (size 5) cannot be split over cols"),
    ("assigned", "sum %x over=[io] layout {batch: rows, io: cols}", "prod %x over=[io] layout {io: cols}",
     "its layout names io, which is no dimension of its iteration space"),
    ("assigned", "%y: f32[batch] = sum %x over=[io] layout {batch: rows, io: cols}\n  output y = %y layout {batch: rows}",
     "%y: f32[batch, io] = shift %x dim=io by=1 wrap=false layout {io: cols}", "its layout splits io, which the op needs whole"),
    ("placed", "%y: f32[batch{rows}] +{cols}", "%y: f32[batch{rows}]", "the place rule of sum gives f32[batch{rows}] +{cols}"),
    ("placed", "%s: f32[batch{rows}] =", "%s: f32[batch{rows}] +{cols} =", "the place rule of square gives f32[batch{rows}]"),
    ("resharded", "%x: f32[batch{rows}, io]", "%x: f32[batch{rows}, io] layout {}", "and its layout makes it f32[batch, io]"),
    ("resharded", "sum %x_2 ", "sum %x ", "the place rule of sum refuses: operand %x is f32[batch{rows}, io], and the layout"
     " needs f32[batch{rows}, io{cols}]"),
    ("resharded", "%y: f32[batch{rows}] +{cols}", "%y: f32[batch{rows}]",
     "the place rule of sum gives f32[batch{rows}] +{cols}, not f32[batch{rows}]"),
    ("resharded", "%y_2: f32[batch{rows}] = reshard %y\n", "%y_2: f32[batch{rows}] +{cols} = square %y\n",
     "the place rule of square refuses: a sum pending over cols does not pass through square"),
    ("lowered", "%y_2: f32[batch{rows}] = all_reduce %y axes={cols}", "%y_2: f32[batch{rows}] = reshard %y",
     "op reshard is not legal at level lowered"),
    ("lowered", "all_reduce %y axes={cols}", "all_reduce %y axes={rows}", "the place rule of all_reduce refuses"),
    ("lowered", "mesh grid = [rows: 2, cols: 2]", "mesh grid = [rows: 2]", "the mesh lacks one of its axes"),
]  # fmt: skip


@pytest.mark.parametrize(("level", "old", "new", "reason"), BROKEN)
def test_a_broken_invariant_is_named(level: Level, old: str, new: str, reason: str) -> None:
    text = SOUND[level].replace(old, new, 1)
    assert text != SOUND[level]
    with pytest.raises(VerifyError) as error:
        verify(read_program(text), level)
    assert reason in error.value.reason


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (ASSIGNED, "global"),
        (GLOBAL, "assigned"),
        (RESHARDED, "assigned"),
        (RESHARDED, "lowered"),
        (LOWERED, "resharded"),
    ],
)
def test_a_program_of_another_level_is_refused(text: str, level: Level) -> None:
    with pytest.raises(VerifyError):
        verify(read_program(text), level)


def with_body(program: Program, *body: Equation) -> Program:
    return program.map_functions(lambda function: attrs.evolve(function, body=body))


def test_a_value_is_defined_before_its_use() -> None:
    program = read_program(GLOBAL)
    y, loss = program.functions[0].body
    with pytest.raises(VerifyError, match="%y is not defined before its use"):
        verify(with_body(program, loss, y), "global")


def test_a_value_is_defined_once() -> None:
    program = read_program(GLOBAL)
    y, loss = program.functions[0].body
    with pytest.raises(VerifyError, match="%y is defined twice"):
        verify(with_body(program, y, y, loss), "global")


def test_dimensions_are_those_of_the_program() -> None:
    program = read_program(GLOBAL)
    other = attrs.evolve(program, dims={**program.dims, "io": attrs.evolve(program.dims["io"], size=5)})
    with pytest.raises(VerifyError, match="does not declare with that size"):
        verify(other, "global")


def test_the_message_says_where() -> None:
    with pytest.raises(VerifyError) as error:
        verify(read_program(GLOBAL.replace("%y: f32[batch, io] =", "%y: f32[batch] =")), "global")
    assert error.value.span == Span("tiny.mtf", 5, 3, 5, 12)
    assert str(error.value) == (
        "the type rule of mul infers f32[batch, io], not f32[batch]\n"
        "  in %y: f32[batch] = mul %x, %w\n"
        "  from tiny.mtf:5:3"
    )


LOOP = """\
program looped
dim batch = 8
dim io = 4
function forward {
  input %x: f32[batch, io]
  input %w: f32[io]
  %last: f32[io], %all: f32[batch, io] = loop %w, %w, %x dim=batch reverse=false checkpoint=false region batches {
    carried %h: f32[io]
    invariant %v: f32[io]
    sliced %x: f32[io]
    %y: f32[io] = mul %h, %v
    %z: f32[io] = add %y, %x
    output h = %z updates h
    output all = %y
  }
  output last = %last
  output all = %all
}
"""


def test_a_region_has_a_scope_of_its_own() -> None:
    verify(read_program(LOOP), "global")
    with pytest.raises(ReadError, match="%w is not defined"):
        read_program(LOOP.replace("mul %h, %v", "mul %h, %w"))
    with pytest.raises(VerifyError, match="another value is called %x"):
        verify(read_program(LOOP.replace("%y", "%x")), "global")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("%z: f32[io] = add %y, %x", "%z: f32[io] = sum %y over=[io]", r"the type rule of sum infers f32\[\]"),
        ("loop %w, %w, %x", "loop %w, %x", "one operand for each argument"),
        ("loop %w, %w, %x", "loop %w, %w, %w", "sliced along batch, which must not be split"),
        ("carried %h", "sliced %h", "carried, then invariant, then sliced"),
        ("output h = %z updates h", "output h = %z", "update its carries"),
        ("%all: f32[batch, io] = loop", "%all: f32[io] = loop", "output all gives"),
        ("dim=batch", "dim=io", "sliced %x is f32\\[io\\], and its operand gives f32\\[batch\\]"),
        ("loop %w, %w, %x dim=batch reverse=false checkpoint=false", "concat %w, %w, %x sources=[io, io, batch] target=io",
         "op concat with 1 regions"),
    ],
)  # fmt: skip
def test_a_loop_that_does_not_fit_its_region_is_named(old: str, new: str, why: str) -> None:
    assert old in LOOP
    with pytest.raises(VerifyError, match=why):
        verify(read_program(LOOP.replace(old, new)), "global")


def test_a_verifier_that_has_seen_a_sound_program_still_finds_a_bug() -> None:
    """The verifier remembers equations, not programs: it checks scopes every time, and every new equation."""
    verifier, program = Verifier(), read_program(GLOBAL)
    verifier.check(program, "global")
    y, loss = program.functions[0].body
    with pytest.raises(VerifyError, match="not defined before"):
        verifier.check(with_body(program, loss, y), "global")
    wrong = attrs.evolve(loss, attrs={"over": (program.dims["io"],)})
    with pytest.raises(VerifyError, match="infers"):
        verifier.check(with_body(program, y, wrong), "global")
    with pytest.raises(VerifyError, match="layout"):
        verifier.check(program, "assigned")
    resized = attrs.evolve(program, dims=program.dims | {"io": attrs.evolve(program.dims["io"], size=3)})
    with pytest.raises(VerifyError, match="does not declare with that size"):
        verifier.check(resized, "global")
