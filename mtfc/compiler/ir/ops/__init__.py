"""The registry of ops: a table from name to record, one file per family. `has_trait` replaces tests of an op's name."""

from typing import Protocol

from mtfc.compiler.ir.opdef import OpDef, Trait
from mtfc.compiler.ir.ops import (
    attention,
    calls,
    collectives,
    contraction,
    creation,
    elementwise,
    indexing,
    positions,
    random,
    reductions,
    structure,
    windows,
)

FAMILIES = (
    elementwise,
    reductions,
    contraction,
    attention,
    structure,
    positions,
    windows,
    indexing,
    creation,
    random,
    calls,
    collectives,
)

OPS: dict[str, OpDef] = {op.name: op for family in FAMILIES for op in family.OPS}


class Operation(Protocol):
    """An equation, or a step of a plan that becomes one."""

    @property
    def op(self) -> str: ...


def has_trait(operation: Operation, *traits: Trait) -> bool:
    """Return True if the op has one of the traits; a loop has none."""
    opdef = OPS.get(operation.op)
    return opdef is not None and not opdef.traits.isdisjoint(traits)
