"""Chains of collectives: axes that stay together count as one, and many axes take the direct chain."""

import time
from collections.abc import Sequence
from random import Random

from mtfc.compiler.analysis import reshard_plans
from mtfc.compiler.analysis.reshard_plans import axis_groups, plan
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import ReshardStep
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.sharding_rules import placed_types
from mtfc.compiler.ir.types import Dim, Mesh, TensorType

MANY = 24


def mesh_of(count: int) -> Mesh:
    return Mesh("m", tuple((f"a{i}", 2) for i in range(count)))


def drawn(random: Random, mesh: Mesh, may_pend: bool) -> TensorType:
    """Draw a placement of a matrix in which axes often stand one after the other."""
    names = list(mesh.names)
    if random.random() < 0.5:
        random.shuffle(names)
    cuts = sorted(random.randint(0, len(names)) for _ in range(3))
    rows, columns, pending = (names[a:b] for a, b in zip([0, *cuts], cuts, strict=False))
    dims = (Dim("rows", 2 ** len(names)), Dim("columns", 2 ** len(names)))
    waits = mesh.ordered(tuple(pending)) if may_pend else ()
    return TensorType("f32", dims, (tuple(rows), tuple(columns)), waits)


def check_chain(source: TensorType, target: TensorType, mesh: Mesh, steps: Sequence[ReshardStep]) -> None:
    """Each collective takes the type before it, and its place rule gives the type after it."""
    types = [source, *(step.after for step in steps)]
    assert types[-1] == target
    for step, before in zip(steps, types, strict=False):
        assert step.before == before
        eqn = Equation(step.op, (Value("x", before),), (Value("y", step.after),), dict(step.attrs))
        assert placed_types(OPS[step.op], eqn, mesh) == (step.after,)


def test_axes_that_stay_together_count_as_one() -> None:
    mesh = mesh_of(4)
    dims = (Dim("rows", 16), Dim("columns", 16))
    source = TensorType("f32", dims, (("a0", "a1", "a2"), ()))
    target = TensorType("f32", dims, ((), ("a0", "a1", "a2")))
    assert axis_groups(source, target, mesh) == (("a0", "a1", "a2"),)
    assert axis_groups(source, source.split_by({"rows": ("a0",)}), mesh) == (("a0",), ("a1", "a2"))


def test_groups_cost_no_bytes() -> None:
    random, mesh = Random(1), mesh_of(3)
    joined = 0
    for _ in range(150):
        source, target = drawn(random, mesh, True), drawn(random, mesh, random.random() < 0.3)
        sent, steps = plan(source, target, mesh)
        check_chain(source, target, mesh, steps)
        joined += any(len(group) > 1 for group in axis_groups(source, target, mesh))
        assert sent == reshard_plans._cheapest(source, target, mesh)[0]
    assert joined > 20


def test_many_axes_take_the_direct_chain() -> None:
    random, mesh = Random(2), mesh_of(MANY)
    start = time.process_time()
    for _ in range(50):
        source, target = drawn(random, mesh, True), drawn(random, mesh, random.random() < 0.3)
        sent, steps = plan(source, target, mesh)
        check_chain(source, target, mesh, steps)
        assert sent >= 0
    assert time.process_time() - start < 10
