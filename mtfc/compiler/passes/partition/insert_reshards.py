"""insert-reshards: place every value, and put a `reshard` on each edge whose two ends want different placements.

The type of a value now says which axes split it and over which a sum is pending. Here each pending sum is completed before
its first use; place-reductions then looks for better places.

Input:   %y: f32[batch, io] = einsum %h, %v layout {batch: rows, hidden: cols}; %z = relu %y layout {batch: rows}
Output:  %y: f32[batch{rows}, io] +{cols} = einsum %h, %v ...; %y_2: f32[batch{rows}, io] = reshard %y; %z = relu %y_2 ...
After this pass types are split, and every operand is placed as its equation's layout needs it.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.verifier import Level
from mtfc.compiler.passes.partition.reshard_inserter import Passing, realize
from mtfc.compiler.passes.pass_base import Pass


@attrs.frozen
class InsertReshards(Pass):
    name: ClassVar[str] = "insert-reshards"
    level: ClassVar[Level | None] = "resharded"

    def run(self, program: Program) -> Program:
        mesh = program.placed_on
        return program.map_functions(lambda function: realize(function, mesh, Passing()))
