"""Test the memory model on IR text, with figures worked out by hand: shared buffers, and the values alive at the peak."""

import pytest

from mtfc.compiler.analysis.buffer_kinds import folded
from mtfc.compiler.analysis.liveness import buffers, peak
from mtfc.compiler.cost.effects.memory import MemoryUse, memory_of, memory_on
from mtfc.compiler.cost.hardware import Device, Rate
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.parser import read_program

HEAD = """\
program m
source "m.mtf"
mesh line = [all: 4]
layout l = {a: all}
dim a = 8
dim b = 8
dim c = 16
dim d = 3
"""


def program(body: str, name: str = "forward") -> Program:
    return read_program(f"{HEAD}function {name} placed {{\n{body}\n}}\n")


def shared(body: str) -> list[list[str]]:
    """Return the names of the values in each buffer."""
    read = program(body)
    assert read.mesh is not None
    return [[v.name for v in buffer.values] for buffer in buffers(read.function("forward"), read.mesh)]


def memory(body: str, name: str = "step") -> MemoryUse:
    read = program(body, name)
    assert read.mesh is not None
    return memory_of(read.function(name), read.mesh, Numbers(read.mesh))


SHARING = {
    "an elementwise result takes over the buffer of an operand at its last use": (
        "%p: f32[a{all}, b] = exp %x; %q: f32[a{all}, b] = relu %p",
        [["p", "q"]],
    ),
    "no result takes over the buffer of an argument": ("%q: f32[a{all}, b] = relu %x", [["q"]]),
    "an operand with a later use keeps its buffer": (
        "%p: f32[a{all}, b] = exp %x; %r: f32[a{all}, b] = relu %p; %q: f32[a{all}, b] = mul %r, %p",
        [["p"], ["r", "q"]],
    ),
    "buffers of different sizes are not shared": ("%p: f32[a{all}] = sum %x over=[b]; %q: f32[a{all}, b] = mul %p, %x",
     [["p"], ["q"]]),
    "buffers of different element types are not shared": ("%p: f32[a{all}, b] = exp %x; %q: bool[a{all}, b] = gt %p, %x",
     [["p"], ["q"]]),
    "a transposition has a second buffer": ("%p: f32[a{all}, b] = exp %x; %q: f32[b, a{all}] = transpose %p dims=[b, a]",
     [["p"], ["q"]]),
    "a contraction has a second buffer, even of the same size": (
        "%p: f32[a{all}, b] = exp %x; %r: f32[b, c] = exp %y; %s: f32[a{all}, c] = einsum %p, %r dims=[a, c];"
        " %q: f32[a{all}, b] = einsum %s, %r dims=[a, b]",
        [["p"], ["r"], ["s"], ["q"]],
    ),
    "a rename shares the buffer of its operand": ("%p: f32[b, c] = exp %y; %q: f32[a, c] = rename %p mapping=(b -> a)",
     [["p", "q"]]),
    "an all-reduce is done in place": (
        "%p: f32[b] +{all} = sum %x over=[a] layout {a: all}; %q: f32[b] = all_reduce %p axes={all}",
        [["p", "q"]],
    ),
    "a combined all-reduce is done in place": (
        "%p: f32[b] +{all} = sum %x over=[a] layout {a: all}; %r: f32[] +{all} = sum %x over=[a, b] layout {a: all};"
        " %s: f32[b], %t: f32[] = all_reduce %p, %r axes={all}; %q: f32[b] = mul %s, %t",
        [["p", "s", "q"], ["r", "t"]],
    ),
    "windows have no buffer: readers read the source, which stays": (
        "%p: f32[b, c] = exp %y; %w: f32[a, d, c] = window %p source=b out=a kernel=d stride=1 before=1 after=1 dilation=1"
        " value=0.0; %r: f32[a, d, c] = broadcast %y dims=[a, d, c]; %q: f32[a] = einsum %w, %r dims=[a]",
        [["p"], ["q"]],
    ),
    "windows that are an output have a buffer": (
        "%q: f32[a, d, c] = window %y source=b out=a kernel=d stride=1 before=1 after=1 dilation=1 value=0.0",
        [["q"]],
    ),
    "the windows that a dot makes for a fold are not stored": (
        "%p: f32[a, d] = einsum %x, %x dims=[a, d]; %q: f32[b] = fold %p source=b out=a kernel=d stride=1 before=1 after=1"
        " dilation=1",
        [["q"]],
    ),
    "an all-gather has a second buffer": ("%p: f32[a{all}, b] = exp %x; %q: f32[a, b] = all_gather %p dim=a axes={all}",
     [["p"], ["q"]]),
    "an all-to-all has a second buffer of the same size": (
        "%p: f32[a{all}, b] = exp %x; %q: f32[a, b{all}] = all_to_all %p source=a target=b axes={all}",
        [["p"], ["q"]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", SHARING)
def test_sharing(rule: str) -> None:
    equations, expected = SHARING[rule]
    lines = equations.replace("; ", "\n")
    assert shared(f"input %x: f32[a{{all}}, b]\ninput %y: f32[b, c]\n{lines}\noutput q = %q") == expected


def test_a_folded_dot_that_is_also_an_output_is_stored() -> None:
    body = """
      input %x: f32[a, d]
      %p: f32[a, d] = einsum %x, %x dims=[a, d]
      %q: f32[b] = fold %p source=b out=a kernel=d stride=1 before=1 after=1 dilation=1
      output q = %q
    """
    function = program(body).function("forward")
    assert [value.name for value in folded(function)] == ["p"]
    assert not folded(program(f"{body}\n      output p = %p").function("forward"))


def test_peak_is_the_first_equation_where_most_is_alive() -> None:
    read = program("""
      input %x: f32[a{all}, b]
      input %y: f32[c]
      %p: f32[a, b] = all_gather %x dim=a axes={all}
      %s: f32[a] = sum %p over=[b]
      %q: f32[a, c] = einsum %s, %y dims=[a, c]
      %t: f32[a] = sum %q over=[c]
      %u: f32[a] = add %s, %t
      output u = %u
    """)
    assert read.mesh is not None
    found = buffers(read.function("forward"), read.mesh)
    assert [(b.birth, b.death) for b in found] == [(0, 1), (1, 5), (2, 3), (3, 4)]
    assert peak(found, read.mesh) == 3
    held = memory_of(read.function("forward"), read.mesh, Numbers(read.mesh))
    assert held.activations_peak == 4 * (2 * 8 + 16 + 8 * 16 + 8 + 8)  # x, y, q, s and t


def test_empty_function_holds_its_arguments() -> None:
    held = memory("input %x: f32[a{all}, b]\nparameter %w: f32[b, c]\noutput x = %x", "forward")
    assert held.parts() == {
        "parameters": 4 * 128,
        "gradients": 0,
        "optimizer": 0,
        "activations_peak": 4 * 16,
        "total": 4 * 144,
    }
    assert held.peak is None


STEP = """
  input %x: f32[a{all}, b]
  parameter %w: f32[b] at 2:1-2:9
  state %w.momentum: f32[b] at 2:1-2:9
  %y: f32[a{all}, b] = mul %x, %w at 3:1-3:9
  %z: f32[a{all}, b] = exp %y at 4:1-4:9
  %loss: f32[] +{all} = sum %z over=[a, b] layout {a: all} at 5:1-5:9
  %loss_2: f32[] = all_reduce %loss axes={all} at 5:1-5:9
  backward:
  %d_w: f32[b] +{all} = einsum %z, %x dims=[b] layout {a: all} at 3:1-3:9
  %d_w_2: f32[b] = all_reduce %d_w axes={all} at 3:1-3:9
  update:
  %c: f32[] = constant value=0.5 dtype="f32" at 2:1-2:9
  %decayed: f32[b] = mul %w.momentum, %c at 2:1-2:9
  %m: f32[b] = add %decayed, %d_w_2 at 2:1-2:9
  %scaled: f32[b] = mul %m, %c at 2:1-2:9
  %new: f32[b] = sub %w, %scaled at 2:1-2:9
  output loss = %loss_2
  output w = %new updates w
  output w.momentum = %m updates w.momentum
"""


def test_step() -> None:
    """`d_w` and `d_w_2` share the gradient's buffer. `m` and `new` are in the buffers of their arguments, `z` is in the buffer of
    `y`.
    """
    held = memory(STEP)
    assert held.parameters == held.gradients == held.optimizer == 4 * 8
    assert held.activations_peak == 4 * (16 + 16 + 1)  # x, z and the loss
    assert held.peak is not None and held.peak.line == 5
    assert held.total == 4 * (3 * 8 + 33)


def test_gradient_that_is_reduced_with_the_loss() -> None:
    """A combined all-reduce has the stage of its first operand, the loss. Its second result is still a gradient."""
    body = """
      input %x: f32[a{all}, b]
      parameter %w: f32[b]
      %loss: f32[] +{all} = sum %x over=[a, b] layout {a: all}
      backward:
      %d_w: f32[b] +{all} = sum %x over=[a] layout {a: all}
      forward:
      %loss_2: f32[], %d_w_2: f32[b] = all_reduce %loss, %d_w axes={all}
      update:
      %new: f32[b] = sub %w, %d_w_2
      output loss = %loss_2
      output w = %new updates w
    """
    assert memory(body).gradients == 4 * 8


def test_stored_by_line() -> None:
    """Line 2 has the parameter and its momentum. The backward pass reads the input, and `z` alone of the activations."""
    stored = [(span.line if span else None, amount) for span, amount in memory(STEP).stored]
    assert stored == [(2, 4 * 8), (2, 4 * 8), (None, 4 * 16), (4, 4 * 16)]


def test_old_value_used_after_the_update_keeps_its_buffer() -> None:
    """The new value cannot be written over `w` while `w` is still read."""
    body = """
      parameter %w: f32[a, c]
      %new: f32[a, c] = neg %w
      %late: f32[] = sum LATE over=[a, c]
      output w = %new updates w
      output late = %late
    """
    size = 4 * 8 * 16
    assert memory(body.replace("LATE", "%new")).total == size + 4
    assert memory(body.replace("LATE", "%w")).total == 2 * size + 4


def test_unchanged_parameter_needs_nothing_more() -> None:
    assert memory("parameter %w: f32[a, c]\noutput w = %w updates w").total == 4 * 8 * 16


# On CPUs

FLOPS = {dtype: Rate.constant(rate) for dtype, rate in {"f32": 2e10, "bf16": 1e10}.items()}
CPU = Device(FLOPS, memory=1e10, bandwidth=Rate.constant(1e10), ops={"reordered": 1e9})
GPU = Device({**FLOPS, "bf16": Rate.constant(4e10)}, memory=1e10, bandwidth=Rate.constant(1e10))


def peak_on(device: Device, body: str, dtype: str = "f32") -> int:
    read = program(body.replace("DTYPE", dtype))
    assert read.mesh is not None
    peak = memory_on(read.function("forward"), read.mesh, device).activations_peak
    assert isinstance(peak, int)
    return peak


COPIED = """
  input %x: DTYPE[a{all}, c, b]
  input %y: DTYPE[a{all}, c, d]
  %p: DTYPE[a{all}, c, b] = exp %x
  %z: DTYPE[b, d] +{all} = einsum %p, %y dims=[b, d] layout {a: all}
  %z_2: DTYPE[b, d] = all_reduce %z axes={all}
  %q: DTYPE[a{all}, c, b] = add %p, %x
  output z = %z_2
  output q = %q
"""
X, Y, Z = 2 * 16 * 8, 2 * 16 * 3, 8 * 3
"""Elements of a processor's arrays."""


def test_a_dot_on_a_cpu_reads_a_copy_in_another_order_from_when_its_operand_is_made() -> None:
    """The dot sums over [a, c], the first dimensions of `p`: XLA wants them last. `y` is the second operand, and stays."""
    assert peak_on(GPU, COPIED) == 4 * (X + Y + X + Z)  # p and z
    assert peak_on(CPU, COPIED) == 4 * (X + Y + X + Z + X)  # and a copy of p


def test_an_operand_that_nothing_else_reads_is_written_in_the_wanted_order() -> None:
    body = COPIED.replace("add %p, %x", "exp %x")
    assert peak_on(CPU, body) == peak_on(GPU, body)


def test_short_floats_take_32_bits_where_their_dots_are_no_faster() -> None:
    """Arguments have their own bytes."""
    assert peak_on(GPU, COPIED, "bf16") == 2 * (X + Y + X + Z)
    assert peak_on(CPU, COPIED, "bf16") == 2 * (X + Y) + 4 * (X + Z + X)


def test_an_all_reduce_on_a_cpu_has_a_result_of_its_own() -> None:
    body = """
      input %x: f32[a{all}, b]
      %s: f32[b] +{all} = sum %x over=[a] layout {a: all}
      %s_2: f32[b] = all_reduce %s axes={all}
      output s = %s_2
    """
    assert peak_on(GPU, body) == 4 * (2 * 8 + 8)
    assert peak_on(CPU, body) == 4 * (2 * 8 + 8 + 8)


def test_short_floats_of_a_loop_take_32_bits_too() -> None:
    body = """
  input %x: bf16[a{all}, b]
  input %w: bf16[d, b]
  %h: bf16[a{all}, b], %s: bf16[d, a{all}, b] = loop %x, %w dim=d reverse=false checkpoint=false region r {
    carried %k: bf16[a{all}, b]
    sliced %v: bf16[b]
    %m: bf16[a{all}, b] = mul %k, %v
    output k = %m updates k
    output s = %m
  }
  output h = %h
  output s = %s
"""
    carry, stack, slice = 2 * 8, 3 * 2 * 8, 8
    arguments = carry + 3 * 8
    assert peak_on(CPU, body) - 2 * arguments == 2 * (peak_on(GPU, body) - 2 * arguments)
    assert peak_on(GPU, body) >= 2 * (arguments + carry + stack + slice)
