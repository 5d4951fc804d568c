"""Shared by tests of the search over global layouts: machines on which one thing is slow, and checks of bounds."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.cost.hardware import Device, DotShares, Hardware, Link, Rate, Scratchpad
from mtfc.compiler.cost.tables.collective_tables import Seconds
from mtfc.compiler.ir.core import Function, Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.search.found import Found, Objective, Pricing
from mtfc.compiler.search.global_layouts.effect_bounds import EffectBounds, MaskRange
from mtfc.compiler.search.global_layouts.global_search import GlobalSpace
from mtfc.compiler.search.global_layouts.layout_bound import LayoutBound
from mtfc.compiler.search.global_layouts.layout_space import LayoutSpace, Rows, layout_of, space_of
from mtfc.compiler.search.global_layouts.step_facts import StepFacts
from mtfc.compiler.search.global_layouts.sum_bound import SumBound
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.frontend.hardware_targets import find_hardware
from tests.documents import ROOT
from tests.harness import load

SLOW_LINKS = Hardware(
    "slow_links",
    Device({"f32": Rate.constant(1e12)}, 1e12, Rate.constant(1e12), 1e-7),
    (Link("net", "switch", (), Rate.constant(1e6), 1e-6),),
)
"""A machine on which only communication matters."""

FASTER = {
    "all_to_all": Rate.constant(4e6),
    "permute": Rate.constant(5e6),
    "reduce_scatter": Rate.constant(2e6),
}

NODES = attrs.evolve(
    SLOW_LINKS,
    name="nodes",
    links=(
        Link("node", "ring", (4,), Rate.constant(1e7), 1e-6, collectives={"all_gather": Rate.constant(3e7)}),
        Link("net", "switch", (), Rate.constant(1e6), 1e-5, shared=2, collectives=FASTER),
    ),
)
"""A machine whose groups lie on links of two speeds, with collectives of their own speeds."""

SLOW_CORES = Hardware(
    "slow_cores",
    Device(
        {"f32": Rate.constant(1e6)},
        1e12,
        Rate.constant(1e6),
        0.0,
        {"exp": 1e5, "max": 1e4, "sum": 1e5, "unpool": 1e4, "einsum": 1e5, "convolution": 1e4},
        overlap=0.5,
        loop=1e-4,
    ),
    (Link("net", "memory", (1024,), Rate.constant(1e12), 0.0),),
)
"""A machine on which only computation matters."""

UNEVEN = attrs.evolve(
    SLOW_LINKS,
    name="uneven",
    device=attrs.evolve(
        SLOW_CORES.device,
        ops={},
        dots=DotShares(
            short=Rate(((2.0, 0.2), (8.0, 1.0))),
            long=Rate.constant(0.9),
            summed=Rate(((4.0, 1.0), (8.0, 0.1))),
        ),
    ),
)
"""A machine on which a dot is slow if it has few rows or columns, or if it sums many elements."""

SLOW_TPU = attrs.evolve(
    SLOW_CORES,
    name="slow_tpu",
    device=attrs.evolve(
        SLOW_CORES.device,
        overhead=1e-3,
        ops={"bernoulli": 1e4, "uniform": 1e4},
        mxu_size=16,
        scratchpad=Scratchpad(1e5, latency=1e-3, reads=1e7, factors=1e8, results=1e7),
    ),
)
"""A TPU on which only padding, kernels and the scratchpad matter."""

TORUS = find_hardware("tpu_v2", {})


def example(name: str) -> Program:
    return load((ROOT / "examples" / f"{name}.mtf").read_text("utf-8")).programs[0]


def layouts(space: LayoutSpace, mesh: Mesh, most: int | None = None) -> Rows:
    """Return every legal row, or a random choice of at most `most` rows after each column."""
    rows, random = np.zeros((1, len(space.columns)), np.uint8), np.random.default_rng(0)
    for column in range(len(space.columns)):
        rows, _ = space.extended(rows, column, frozenset(range(column)), mesh)
        if most is not None and len(rows) > most:
            rows = rows[random.choice(len(rows), most, replace=False)]
    return rows


def check_bounds(
    program: Program, mesh: Mesh, hardware: Hardware, storage: bool, most: int | None = 6
) -> None:
    space = space_of(program.function("forward"), storage=storage)
    check_rows(program, mesh, hardware, space, layouts(space, mesh, most))


def check_rows(program: Program, mesh: Mesh, hardware: Hardware, space: LayoutSpace, rows: Rows) -> None:
    """Compare bounds and prices with all columns decided, and with some."""
    pricer, columns = LayoutPricer.of(program, hardware), range(len(space.columns))
    step = StepFacts.of(pricer.undistributed(), hardware.device)
    bound, beside = (LayoutBound(space, step, mesh, hardware, overlaps) for overlaps in (False, True))
    prices = [pricer(mesh, layout_of(space, row.tolist(), mesh)) for row in rows]
    computing = [i for i in columns if i not in space.storing]
    for decided in (columns, computing, columns[::2], columns[1::2], ()):
        known = bound.known(_only(rows, decided), frozenset(decided))
        flops = bound.flops(known)
        seconds, overlapping = (np.maximum(flops, each.seconds(known)) for each in (bound, beside))
        bounds = (seconds, overlapping, bound.memory(known))
        for row, price, least, at_once, memory in zip(rows, prices, *bounds, strict=True):
            where = layout_of(space, row.tolist(), mesh), decided
            assert least <= price.serial * (1 + 1e-9), where
            assert at_once <= price.seconds * (1 + 1e-9), where
            assert memory <= price.memory, where


def _only(rows: Rows, decided: Iterable[int]) -> Rows:
    found = np.zeros_like(rows)
    found[:, list(decided)] = rows[:, list(decided)]
    return found


def search(
    step: Function,
    forward: Function,
    meshes: Sequence[Mesh],
    hardware: Hardware,
    pricing: Pricing,
    until: float,
    objective: Objective = "serial",
    known: Iterable[tuple[Mesh, Layout]] = (),
    **others: Any,
) -> Found:
    """Return the best layout of a `GlobalSpace`. others: further fields of the space."""
    space = GlobalSpace(step, forward, meshes, hardware, objective, **others)
    return space.best(pricing, until, known)


def effects_of(bound: LayoutBound, known: MaskRange) -> Mapping[str, Seconds]:
    """Return the bound of each effect for layouts whose columns are all decided."""
    found: dict[str, Seconds] = defaultdict(lambda: np.zeros(len(known.low)))
    for own, rows in bound._regimes(known):
        for facts, some in own._by_facts(known.where(rows)):
            each = EffectBounds(own, known.where(rows[some]))
            sent, joined = each.halos()
            effects = {
                "kernels": each.total(facts.kernels) + joined,
                "pending sums": SumBound(own, attrs.evolve(facts, completing={})).seconds(each),
                "data movement": each.moved(facts.moved),
                "stored parameters": each.stored(facts.stored),
                "halos": sent,
            }
            for name, seconds in effects.items():
                found[name][rows[some]] = seconds
    return {**found, "memory": bound.memory(known)}
