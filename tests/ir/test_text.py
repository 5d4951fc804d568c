"""IR text: its form, the round trip through the parser, and the errors for text that is not IR."""

import sys
from collections import Counter
from typing import Any

import attrs
import pytest
from hypothesis import given

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Output, Program, Value
from mtfc.compiler.ir.parser import ReadError, read_program
from mtfc.compiler.ir.printer import bytes_text, print_program
from mtfc.compiler.ir.types import Dim, TensorType
from tests.ir.strategies import programs
from tests.program_equality import same_program

LOWERED = """\
program two_layer
source "two_layer.mtf"
mesh grid = [rows: 2, cols: 4]
layout hybrid = {batch: rows, hidden: cols, params: {io: rows}, value h: {hidden: (rows, cols)}}
dim batch = 64
dim io = 128
dim hidden = 512
param w: f32[io, hidden] = normal(stddev = 0.05) at 12:3-12:48
train at 22:1-25:2 minimize loss precision (f32, bf16) clip 1.0 accumulate 2
update w, `params` with momentum {
  parameter %p: f32[io, hidden]
  input %g: f32[io, hidden] at 24:15-24:39
  state %velocity: f32[io, hidden] = 0.5
  %p_2: f32[io, hidden] = sub %p, %velocity as p
  output p = %p_2 updates p
  output velocity = %g updates velocity
}

function step placed {
  input %x: f32[batch{rows}, io] at 11:17-11:34
  parameter %w: f32[io{rows}, hidden{cols}]
  state %w.velocity: f32[io{rows}, hidden{cols}] layout {}
  %w_2: f32[io, hidden{cols}] = all_gather %w dim=io axes={rows} at 16:7-16:42  // 32 KiB
  %h: f32[batch{rows}, hidden{cols}] = einsum %x, %w_2 dims=[batch, hidden] as h at 16:7-16:42
  %y: f32[batch{rows}] +{cols} = sum %h over=[hidden] layout {batch: rows, hidden: cols}
  %top: f32[batch{rows}] max{cols} = max %h over=[hidden] layout none
  backward:
  %c: f32[] = constant value=-inf dtype="f32"
  %a: f32[batch{rows}], %b: f32[batch{rows}] = all_reduce %y, %top axes={cols} at "nn.mtf" 3:1-3:9  // 256 B
  %r: f32[io{rows, cols}] = rename %b mapping=(batch -> io)
  %loop: f32[batch{rows}], %all: f32[io, batch{rows}] = loop %a dim=io reverse=false checkpoint=true region ios {
    carried %a: f32[batch{rows}]
    update:
    %n: f32[batch{rows}] = neg %a at "nn.mtf" 7:1-7:4 in 9:2-9:8
    output n = %n updates a
    output all = %n
  }
  %last: f32[batch{rows}] = neg %loop
  output loss = %a
  output w = %w updates w layout {io: rows}
}
"""

GLOBAL = """\
program tiny
mesh grid = [rows: 2, cols: 4]
dim batch = 64

function forward {
  input %x: f32[batch]
  %y: f32[batch] = neg %x  // nn.mtf:3
  %z: f32[batch]  +{rows}= all_reduce %y axes={rows}// 256 B
  output y = %z
}
"""


@given(programs())
def test_every_program_reads_back_as_it_was(program: Program) -> None:
    assert same_program(program, read_program(print_program(program, locations=True)))


@given(programs())
def test_without_locations_all_but_the_spans_reads_back(program: Program) -> None:
    assert same_program(program, read_program(print_program(program)), locations=False)


def test_printed_text_is_the_text_that_was_read() -> None:
    assert print_program(read_program(LOWERED), locations=True) == LOWERED


def test_comments_name_what_is_sent_and_the_source_line() -> None:
    lines = print_program(read_program(LOWERED)).splitlines()
    assert lines[21] == "  %w_2: f32[io, hidden{cols}] = all_gather %w dim=io axes={rows}  // 32 KiB, line 16"
    assert "  // 256 B, nn.mtf:3" in next(line for line in lines if "all_reduce" in line)


def test_comments_and_spacing_do_not_matter() -> None:
    tight = "\n".join(line.partition("//")[0].rstrip() for line in GLOBAL.splitlines())
    assert same_program(read_program(GLOBAL), read_program("// a comment\n\n" + tight + "\n// and another"))


def differing() -> dict[str, tuple[str, str]]:
    """Edits of LOWERED, each of which makes a different program."""
    return {
        "name": ("program two_layer", "program other"),
        "mesh": ("cols: 4", "cols: 2"),
        "rules": ("{batch: rows, hidden: cols, params", "{batch: cols, hidden: rows, params"),
        "stored rules": ("params: {io: rows}", "optimizer: {io: rows}"),
        "stored rules for all": ("params: {io: rows}", "params: {*: rows}"),
        "value rules": ("hidden: (rows, cols)", "hidden: (cols, rows)"),
        "initializer": ("stddev = 0.05", "stddev = 0.5"),
        "clip": ("clip 1.0", "clip 1"),
        "accumulate": (" accumulate 2", ""),
        "split": ("%last: f32[batch{rows}]", "%last: f32[batch]"),
        "pending": ("+{cols}", "min{cols}"),
        "layout": ("updates w layout {io: rows}", "updates w"),
        "no layout": (" layout none", ""),
        "path": (" as h", ""),
        "role": ("state %w", "step %w"),
        "attribute": ("value=-inf", "value=+nan"),
        "stage": ("backward:", "update:"),
        "operand": ("neg %loop", "neg %a"),
        "updates": ("%w updates w layout", "%w layout"),
        "yield": ("output all = %n", "output all = %a"),
        "region": ("region ios", "region ion"),
        "call": (" in 9:2-9:8", ""),
        "span": ("at 16:7-16:42\n  %y", "at 16:7-16:43\n  %y"),
    }


@pytest.mark.parametrize("edit", differing())
def test_programs_that_differ_are_told_apart(edit: str) -> None:
    old, new = differing()[edit]
    assert old in LOWERED
    assert not same_program(read_program(LOWERED), read_program(LOWERED.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("neg %loop", "neg %lop", "line 38: %lop is not defined"),
        ("over=[hidden]", "over=[hiden]", "line 25: dimension `hiden` is not declared"),
        ("input %x:", "input x:", "line 20: cannot read `input x: f32[batch{rows}, io] at 11:17-11:34` from column 9 on"),
        ("layout {io: rows}\n}\n", "layout {io: rows}\n",
         "line 40: cannot read `output w = %w updates w layout {io: rows}` from column 44 on"),
    ],
)  # fmt: skip
def test_text_that_is_not_ir(old: str, new: str, message: str) -> None:
    with pytest.raises(ReadError) as error:
        read_program(LOWERED.replace(old, new, 1))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (3 << 20, "3 MiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_bytes_as_people_read_them(count: int, text: str) -> None:
    assert bytes_text(count) == text


def chain(length: int) -> Program:
    """Make a program of about `length` equations."""
    batch = Dim("batch", 64)
    x = Value("x", TensorType("f32", (batch,)))
    builder = Builder(Names(["x"]))
    h = x
    for _ in range(length):
        h = builder("mul", h, x)
    function = Function("forward", (Argument(x, "input"),), tuple(builder.body), (Output("h", h),))
    return Program("chain", {"batch": batch}, (), (function,))


def test_printing_takes_linear_time() -> None:
    """Lines of Python are counted: they do not depend on the load."""

    def lines(program: Program) -> int:
        events: Counter[str] = Counter()

        def trace(frame: object, event: str, _: object) -> Any:
            events[event] += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            print_program(program)
        finally:
            sys.settrace(before)
        return events["line"]

    assert lines(chain(4_000)) < 8.5 * lines(chain(500))


def test_values_may_have_one_name_in_two_functions() -> None:
    program = chain(2)
    twice = attrs.evolve(
        program, functions=(*program.functions, attrs.evolve(program.functions[0], name="step"))
    )
    assert same_program(twice, read_program(print_program(twice)))
