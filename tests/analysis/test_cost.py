"""Charges of each equation of a placed program, checked by hand on IR text."""

from fractions import Fraction

import pytest

from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.volumes import Charge, charges, grouped, layout_cost, total
from mtfc.compiler.ir.ops.collectives import KINDS
from mtfc.compiler.ir.parser import read_program
from mtfc.reports.cost_report import layout_json

HEAD = """\
program m
source "m.mtf"
mesh grid = [rows: 2, cols: 4]
layout hybrid = {batch: rows, hidden: cols}
dim batch = 64
dim io = 128
dim hidden = 512
dim length = 8
dim memory = 8
"""


def charged(body: str) -> tuple[Charge, ...]:
    """Return the charges of a function with this text between its braces."""
    program = read_program(f"{HEAD}function forward placed {{\n{body}\n}}\n")
    assert program.mesh is not None
    return charges(program.function("forward"), Numbers(program.mesh))


def test_contraction_costs_two_operations_per_point_of_its_own_shard() -> None:
    (charge,) = charged("""
      input %x: f32[batch{rows}, io]
      parameter %w: f32[io, hidden{cols}]
      %h: f32[batch{rows}, hidden{cols}] = einsum %x, %w dims=[batch, hidden] at 3:1-3:9
      output h = %h
    """)
    assert charge.flops == 2 * 32 * 128 * 128
    assert charge.kind is None
    assert charge.span is not None and charge.span.line == 3


def test_split_contracted_dim_divides_the_work() -> None:
    """Each processor multiplies its own part of `hidden`, although the result is not split."""
    (charge,) = charged("""
      input %h: f32[batch, hidden{cols}]
      parameter %v: f32[hidden{cols}, io]
      %y: f32[batch, io] +{cols} = einsum %h, %v dims=[batch, io] layout {hidden: cols}
      output y = %y
    """)
    assert charge.flops == 2 * 64 * 128 * 512 // 4


def test_elementwise_ops_cost_their_result_and_reductions_their_operand() -> None:
    relu, broadcast_add, reduced = charged("""
      input %x: f32[batch{rows}, io]
      parameter %b: f32[io]
      %r: f32[batch{rows}, io] = relu %x
      %a: f32[batch{rows}, io] = add %r, %b
      %s: f32[io] +{rows} = sum %a over=[batch] layout {batch: rows}
      %t: f32[io] +{rows} = transpose %s dims=[io]
      output t = %t
    """)
    assert [relu.flops, broadcast_add.flops, reduced.flops] == [32 * 128] * 3


# kind: (equation, elements and bytes of one processor's operand, bytes on the wire)
COLLECTIVES = {
    "all_reduce": ("f32[length, memory] = all_reduce %s axes={cols}", 64, 256, Fraction(2 * 256 * 3, 4)),
    "all_gather": ("f32[length, memory] = all_gather %g dim=length axes={cols}", 16, 64, 64 * 3),
    "reduce_scatter": ("f32[length{cols}, memory] = reduce_scatter %s dim=length axes={cols}", 64, 256, 64 * 3),
    "all_to_all": ("f32[length, memory{cols}] = all_to_all %g source=length target=memory axes={cols}", 16, 64,
     Fraction(64 * 3, 4)),
    "permute": ("bf16[length{rows, cols}, memory] = permute %p dim=length axes={rows, cols}", 8, 16, 16),
}  # fmt: skip


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_collective(kind: str) -> None:
    """A group over `cols` has n = 4 processors. For an array of S bytes in all, a ring sends S(n-1)/n in a gather or scatter. It
    sends twice as many bytes in an all-reduce, and S(n-1)/n**2 in an all-to-all.
    """
    equation, elements, size, wire = COLLECTIVES[kind]
    *_, charge = charged(f"""
      input %x: f32[length, memory, io{{cols}}]
      input %g: f32[length{{cols}}, memory]
      input %p: bf16[length{{cols, rows}}, memory]
      %s: f32[length, memory] +{{cols}} = sum %x over=[io] layout {{io: cols}}
      %y: {equation}
      output y = %y
    """)
    assert (charge.kind, charge.sent.count) == (kind, 1)
    assert (charge.sent.elements, charge.sent.bytes, charge.sent.wire_bytes) == (elements, size, wire)


def test_slicing_sends_nothing() -> None:
    assert not charged("""
      input %x: f32[batch, io]
      %y: f32[batch{rows}, io] = local_slice %x dim=batch axes={rows}
      output y = %y
    """)


COMBINED = """
  input %x: f32[batch{rows}, io]
  %a: f32[io] +{rows} = sum %x over=[batch] layout {batch: rows} at 3:1-3:9
  %b: f32[] +{rows} = sum %x over=[batch, io] layout {batch: rows} at 5:1-5:9
  %a_2: f32[io], %b_2: f32[] = all_reduce %a, %b axes={rows} at 3:1-3:9
  output a = %a_2
  output b = %b_2
"""


def test_combined_collective_counts_once_and_each_line_answers_for_its_operand() -> None:
    sent = [charge for charge in charged(COMBINED) if charge.kind]
    totals = total(sent)
    assert list(totals.collectives) == ["all_reduce"]
    assert (totals.sent.count, totals.sent.elements, totals.sent.bytes) == (1, 129, 516)
    by_line = grouped(sent, lambda charge: charge.span and charge.span.line)
    assert {line: total(group).sent.elements for line, group in by_line.items()} == {3: 128, 5: 1}


def test_totals_of_groups_add_up() -> None:
    found = charged(COMBINED)
    for parts in (
        grouped(found, lambda c: c.stage),
        grouped(found, lambda c: c.span),
        grouped(found, lambda c: c.axes),
    ):
        assert sum(total(group).flops for group in parts.values()) == total(found).flops == 2 * 32 * 128
        assert sum(total(group).sent.bytes for group in parts.values()) == total(found).sent.bytes


def test_json_of_a_model_that_does_not_train() -> None:
    program = read_program(f"{HEAD}function forward placed {{{COMBINED}}}\n")
    cost = layout_cost(program)
    nothing = {"count": 0, "elements_per_device": 0, "bytes_per_device": 0, "wire_bytes_per_device": 0}
    sent = {"count": 1, "elements_per_device": 129, "bytes_per_device": 516, "wire_bytes_per_device": 516}
    assert cost.model == "m"
    layout = layout_json(cost)
    assert layout == {
        "layout": "hybrid",
        "mesh": {"rows": 2, "cols": 4},
        "devices": 8,
        "forward": layout["step"],
        "step": {
            "flops_per_device": 8192,
            "collectives": dict.fromkeys(KINDS, nothing) | {"all_reduce": sent},
            "wire_bytes_per_device": 516,
        },
        "pipelines": [],
        "loops_ended_by_data": [],
        "memory_per_device": {
            "parameters": 0,
            "gradients": 0,
            "optimizer": 0,
            "activations_peak": 4 * (32 * 128 + 128 + 1),
            "total": 4 * (32 * 128 + 128 + 1),
        },
    }
