"""The registry of ops: a table from name to record, one file per family."""

from __future__ import annotations

from mtfc.compiler.ir.opdef import OpDef
from mtfc.compiler.ir.ops import (
    collectives,
    componentwise,
    contraction,
    creation,
    indexing,
    positions,
    random,
    reductions,
    structure,
    windows,
)

FAMILIES = (
    componentwise,
    reductions,
    contraction,
    structure,
    positions,
    windows,
    indexing,
    creation,
    random,
    collectives,
)

OPS: dict[str, OpDef] = {op.name: op for family in FAMILIES for op in family.OPS}
