"""How SoyBean counts bytes in its example (arXiv:1805.04170, section 2.2): with what each device has already.

A tensor that is gathered counts once whole for each device, one that is summed and split once, one that is summed and given to
all twice. Section 4.2.1, which the search minimizes, leaves out what a device has: that is what rings send, (n - 1) / n of this
for n devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.collectives import axes_of, kind_of
from mtfc.compiler.ir.types import Mesh

COUNTED: Mapping[str, Callable[[int], int]] = {
    "all_gather": lambda n: n,
    "reduce_scatter": lambda n: 1,
    "all_reduce": lambda n: 2,
    "all_to_all": lambda n: 1,
    "permute": lambda n: 1,
}
"""Of one device's operand, among n devices."""


def counted_bytes(body: Iterable[Equation], mesh: Mesh) -> int:
    """What all devices together exchange in a lowered function."""
    total = 0
    for eqn in body:
        if eqn.regions:
            total += dim_of(eqn).size * counted_bytes(region_of(eqn).body, mesh)
        elif has_trait(eqn, "sends"):
            size = sum(value.type.local_bytes(mesh) for value in eqn.operands)
            total += size * COUNTED[kind_of(eqn)](mesh.size(axes_of(eqn))) * mesh.devices
    return total
