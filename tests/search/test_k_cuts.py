"""SoyBean's k-cuts, beside the paper's figures and beside the best tilings; and its theorem of flattening."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from time import monotonic
from typing import Any
from unittest.mock import patch

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtfc.backends.numpy import prelude
from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.loops import dim_of, region_of
from mtfc.compiler.ir.ops.collectives import KIND_OF, axes_of
from mtfc.compiler.ir.types import Axes, Layout, Mesh, Rules
from mtfc.compiler.search.found import Found
from mtfc.compiler.search.per_equation.choice_network import to_problem
from mtfc.compiler.search.per_equation.k_cuts import k_cuts, prime_factors
from mtfc.compiler.search.per_equation.per_equation_search import solve_with_memory
from mtfc.compiler.search.per_equation.sent_bytes import PublishedNetwork, counted_network
from mtfc.driver.loading.layout_targets import prepared
from tests.generators.programs import Generated, programs
from tests.harness import AMPLE, load
from tests.search.equation_networks import bytes_of, compiled, example

Array = Any

COUNTED: Mapping[str, Callable[[int], int]] = {
    "all_gather": lambda n: n,
    "reduce_scatter": lambda n: 1,
    "all_reduce": lambda n: 2,
    "all_to_all": lambda n: 1,
    "permute": lambda n: 1,
}
"""Multiples of one device's operand among n devices, as in the example of section 2.2."""


def counted_bytes(body: Iterable[Equation], mesh: Mesh) -> int:
    """Return the bytes that all devices exchange in a lowered function, as in the example of section 2.2."""
    total = 0
    for eqn in body:
        if eqn.regions:
            total += dim_of(eqn).size * counted_bytes(region_of(eqn).body, mesh)
        elif eqn.op in KIND_OF:
            size = sum(value.type.local_bytes(mesh) for value in eqn.operands)
            total += size * COUNTED[KIND_OF[eqn.op]](mesh.size(axes_of(eqn))) * mesh.devices
    return total


LINE, GRID = Mesh("line", (("gpus", 16),)), Mesh("grid", (("groups", 4), ("gpus", 4)))

SECTION_2_2: tuple[tuple[str, Mesh, dict[str, Axes], float], ...] = (
    ("data parallelism", LINE, {"batch": ("gpus",)}, 57.6e6),
    ("model parallelism", LINE, {"units": ("gpus",)}, 76.8e6),
    ("hybrid", GRID, {"batch": ("groups",), "units": ("gpus",)}, 33.6e6),
)


@pytest.mark.parametrize(("what", "mesh", "rules", "expected"), SECTION_2_2, ids=lambda each: str(each))
def test_the_worked_example(what: str, mesh: Mesh, rules: dict[str, Axes], expected: float) -> None:
    """SoyBean, section 2.2: five layers of 300 units, 400 examples, 16 GPUs. 300 units do not divide by 16, so all is 16 times as
    wide here, and the bytes 256 times as many. The loss, a number on each device, is not in the paper's count.
    """
    program = example("soybean_mlp", batch=16 * 400, units=16 * 300)
    step = compiled(program, mesh, Layout(what, Rules(tuple(rules.items()))))
    loss = 2 * 4 * mesh.devices
    assert counted_bytes(step.body, mesh) - loss == pytest.approx(256 * expected, rel=1e-12)


def cut_mesh(*sizes: int) -> Mesh:
    return Mesh("cuts", tuple((f"cut{i + 1}", size) for i, size in enumerate(sizes)))


def cuts_of(program: Program, mesh: Mesh) -> tuple[Found, float]:
    """Return the cuts, and the fewest bytes that any tiling sends."""
    function, dims = prepared(program), set(program.dims)
    cuts = k_cuts(function, mesh, dims, monotonic() + AMPLE)
    unit = 1000.0
    network = counted_network(function, mesh, dims, PublishedNetwork)
    best = solve_with_memory(to_problem(network, unit, None, "exact"), monotonic() + AMPLE)
    assert best.cost == best.lower_bound
    return cuts, best.cost / unit * mesh.devices


def test_four_devices_are_cut_as_well_as_can_be() -> None:
    """Examples first, then units: the hybrid of section 2.2."""
    cuts, best = cuts_of(example("soybean_mlp"), cut_mesh(2, 2))
    assert cuts.cuts[-1] == best
    rules = cuts.layout.value_rules["forward.layers.einsum"].by_dim
    assert rules == {"batch": ("cut1",), "made": ("cut2",)}


GREEDY = """
dim batch = 32
dim io = 12
dim hidden = 64
dim out = 24
mesh line = [all: 4]

model two_layer(x: [batch, io], w: [io, hidden], v: [hidden, out]) {
  y = relu(einsum(x, w -> [batch, hidden]))
  z = einsum(y, v -> [batch, out])
  loss = mean(square(z))
  d_y = einsum(z, v -> [batch, hidden])
  d_w = einsum(d_y, x -> [hidden, io])
  return loss, d_w
}
"""


def test_k_cuts_are_not_always_the_best() -> None:
    """Between two groups it is cheapest to gather z [32, 24] and to split d_y by units; among four devices it is to split d_y by
    examples and to send it all-to-all, which costs 3/4 of it and not twice 1/2. Docs: tiling.md.
    """
    (program,) = load(GREEDY).programs
    cuts, best = cuts_of(program, cut_mesh(2, 2))
    loss = 2 * 4 * np.array([1, 3])  # each device's own
    gathered, exchanged = 4 * 32 * 24, 4 * 32 * 64
    assert cuts.cuts[0] == gathered + loss[0]
    assert best == 3 / 4 * exchanged + loss[1]
    assert cuts.cuts[1] == 7192 > best


def test_a_shift_is_not_cut_where_it_sends() -> None:
    """Units of one element each would travel between devices, which no cut counts."""
    (program,) = load("""
dim batch = 4
dim hidden = 2
model m(w: [hidden, batch]) {
  h = sigmoid(shift(w, hidden, by = 1, wrap = false))
  return h
}
""").programs
    cuts, best = cuts_of(program, cut_mesh(2, 2))
    assert bytes_of(compiled(program, cuts.mesh, cuts.layout).body, cuts.mesh) == cuts.cuts[1] == best == 0


@settings(max_examples=12)
@given(programs())
def test_cuts_send_no_less_than_the_best_tiling(generated: Generated) -> None:
    (program,) = load(generated.source).programs
    cuts, best = cuts_of(program, cut_mesh(2, 2))
    assert cuts.cuts[0] <= cuts.cuts[1]
    assert cuts.cuts[1] >= best - 1e-6
    assert bytes_of(compiled(program, cuts.mesh, cuts.layout).body, cuts.mesh) <= cuts.cuts[1] + 1e-6


# Theorem 2 (flattening): the order of cuts does not matter, and a tiling is a grid


@given(st.data())
def test_cuts_in_any_order_make_the_same_grid_of_tiles(data: st.DataObject) -> None:
    """A device's tile is what the cuts leave, one after the other; and a tensor is a grid of tiles, each on as many devices."""
    rank = data.draw(st.integers(1, 3))
    cuts = data.draw(st.lists(st.one_of(st.none(), st.integers(0, rank - 1)), min_size=1, max_size=4))
    shape = tuple(2 ** cuts.count(dim) * data.draw(st.integers(1, 2)) for dim in range(rank))
    whole = np.arange(np.prod(shape)).reshape(shape)
    counts = [cuts.count(dim) for dim in range(rank)]
    grid = _halves([whole], [dim for dim in range(rank) for _ in range(counts[dim])])
    copies = 2 ** cuts.count(None)
    for order in (cuts, data.draw(st.permutations(cuts))):
        tiles = _tiles(whole, order)
        assert [each.tolist() for each in tiles] == [each.tolist() for each in _halves([whole], order)]
        expected = sorted(str(each.tolist()) for each in grid for _ in range(copies))
        assert sorted(str(each.tolist()) for each in tiles) == expected


def _halves(tiles: list[Array], cuts: Sequence[int | None]) -> list[Array]:
    """Cut each tile in two along a dimension, or copy it, again and again."""
    for dim in cuts:
        tiles = [half for tile in tiles for half in ([tile, tile] if dim is None else np.split(tile, 2, dim))]
    return tiles


def _tiles(whole: Array, cuts: Sequence[int | None]) -> list[Array]:
    """Return the tile of each device as the generated modules split an array, with a mesh axis for each cut."""
    names = [f"cut{i}" for i in range(len(cuts))]
    layout = [
        tuple(name for name, cut in zip(names, cuts, strict=True) if cut == dim) or None
        for dim in range(whole.ndim)
    ]
    with patch.object(prelude, "MESH", dict.fromkeys(names, 2)):
        stacked = prelude.split(whole, layout)
    full = np.broadcast_to(stacked, (2,) * len(cuts) + stacked.shape[len(cuts) :])
    return [full[place] for place in product(range(2), repeat=len(cuts))]


@settings(max_examples=25)
@given(programs(), st.data())
def test_the_order_of_cuts_changes_no_bytes(generated: Generated, data: st.DataObject) -> None:
    """A mesh axis can be several cuts, and the mesh can have its cuts in any order: as many bytes are sent."""
    module = load(generated.source)
    (program,) = module.programs
    declared = module.layouts[0]
    parts = {
        axis: tuple((f"{axis}{i}", each) for i, each in enumerate(prime_factors(size) or [1]))
        for axis, size in declared.mesh.axes
    }
    cuts = data.draw(st.permutations([cut for each in parts.values() for cut in each]))
    refined = _renamed(
        declared.layout, {axis: tuple(name for name, _ in each) for axis, each in parts.items()}
    )
    flat = Mesh("cuts", tuple(cuts))
    before = bytes_of(compiled(program, declared.mesh, declared.layout).body, declared.mesh)
    assert bytes_of(compiled(program, flat, refined).body, flat) == pytest.approx(before)


def _renamed(layout: Layout, names: Mapping[str, Axes]) -> Layout:
    def section(rules: Rules) -> Rules:
        return Rules(
            tuple((dim, tuple(new for axis in axes for new in names[axis])) for dim, axes in rules.axes)
        )

    sections = {name: section(getattr(layout, name)) for name in ("rules", "params", "optimizer")}
    return attrs.evolve(
        layout, **sections, values=tuple((path, section(rules)) for path, rules in layout.values)
    )
