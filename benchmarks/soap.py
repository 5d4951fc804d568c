"""Measure placement searches beside FlexFlow (arXiv:1807.05358): its six networks on clusters of P100s and K80s.

Speed-ups are of simulated seconds, over data parallelism and over the expert's strategy. The paper has 1.3 to 3.3, ResNet-101
about 1 (section 8.2, Figure 7); NMT on 64 K80s has 1.7 to 2.4 with 2 to 5.5 times less transfer. A search has the time of Table
4's *delta* column divided by 20, as its full column counts K80s and P100s alike. A second search has ENOUGH time. Chains are so
long that the clock rarely ends them; the descent uses the rest. Delta over full simulation is measured for single kept changes
and for whole searches from random strategies, as in the paper.

Three further figures are only measured if they are selected: `SOAP=spaces` compares restricted spaces (Figure 10),
`SOAP="curves nmt"` prints the best step against the time of the search, by delta and by full simulation (Figure 12), and
`SOAP=parts` has Inception-v3 with batch normalization of each part (section 8.5).

`SOAP` in the environment selects rows, as in `SOAP="nmt 64 k80"`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from statistics import median
from typing import TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure
from mtfc.backends.common.allocator import keep_memory
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.frontend.hardware_targets import find_hardware
from mtfc.placements.mcmc import ChainSettings, McmcSearch, PlacementResult, SearchBudget
from mtfc.placements.operators.strategy import Configuration, random_strategy
from mtfc.placements.placement_search import (
    PlacementSpace,
    best_strategy,
    placement_search,
    placement_space,
)
from mtfc.placements.simulator.evaluation import EvaluatedStrategy, StrategyEvaluator

EXAMPLES = Path(__file__).parent.parent / "examples"
ENOUGH = 30.0
LAST = 0.0005
CHANGES, RUNS = 15, 5
CURVE, WARM = 12, 5.0
STARTS, PROPOSALS = {4: 10, 16: 5, 64: 2}, 1000
OPTIMUM, PROOF = 120.0, 30.0

Result = TypeVar("Result")


@attrs.frozen
class Row:
    """A row of Table 4: GPUs, seconds of a search by delta simulation, its speed-up over full simulation; and our proposals per
    chain.
    """

    gpus: int
    seconds: float
    ratio: float
    proposals: int

    @property
    def budget(self) -> float:
        """Seconds for a search. Its last proposal may begin at the end of them."""
        return 0.9 * self.target - LAST

    @property
    def target(self) -> float:
        return self.seconds / 20


TABLE = {
    "alexnet": (Row(4, 0.04, 2.9, 1000), Row(16, 0.48, 2.9, 800), Row(64, 5.9, 3.0, 450)),
    "resnet101": (Row(4, 0.4, 3.2, 220), Row(16, 7.3, 3.1, 160), Row(64, 158, 3.3, 80)),
    "inception_v3": (Row(4, 4.1, 3.4, 220), Row(16, 77, 5.0, 150), Row(64, 1278, 6.9, 500)),
    "rnntc": (Row(4, 7.5, 2.2, 110), Row(16, 170, 2.4, 130), Row(64, 1489, 3.0, 700)),
    "rnnlm": (Row(4, 9.2, 2.3, 200), Row(16, 121, 2.7, 110), Row(64, 969, 3.6, 450)),
    "nmt": (Row(4, 16, 2.5, 130), Row(16, 328, 3.0, 130), Row(64, 2190, 4.1, 800)),
}
CLUSTERS = ("p100", "k80")

COMPARED = (
    ("inception_v3", 4, "k80"),
    ("nmt", 4, "k80"),
    ("inception_v3", 16, "p100"),
    ("rnntc", 16, "p100"),
    ("rnnlm", 16, "p100"),
    ("nmt", 16, "p100"),
)
"""The pairs of network and machine of Figure 10: those of REINFORCE on 4 GPUs, those of OptCNN on 16."""

SPACES = {"placement only (O)": "O", "OptCNN's space (S, A, P)": "SAP", "all (S, O, A, P)": "SOAP"}


def figures() -> Iterator[Figure]:
    wanted = set(os.environ.get("SOAP", "").split())
    keep_memory()
    for name, measure in {"spaces": _spaces, "curves": _curves, "parts": _parts}.items():
        if name in wanted:
            yield from measure(wanted - {name})
            return
    for network, rows in TABLE.items():
        program = prepared(network)
        for row in rows:
            for cluster in CLUSTERS:
                if wanted <= {network, str(row.gpus), cluster}:
                    yield from _searched(program, network, row, cluster)
    for cluster in CLUSTERS:
        if wanted <= {"optimum", cluster}:
            yield from _optimum("lenet", {}, cluster)
            yield from _optimum("rnnlm", {"length": 2}, cluster)


def prepared(network: str, dims: dict[str, int] | None = None) -> Program:
    path = EXAMPLES / f"{network}.mtf"
    choice = Choice(None, None, None, dims or {})
    return run(choose(path.read_text("utf-8"), str(path), choice).program, simplification())


def _searched(program: Program, network: str, row: Row, cluster: str) -> Iterator[Figure]:
    make = partial(placement_space, program, find_hardware(f"{cluster}_cluster", {}), row.gpus)
    where, budget = f"{network}, {row.gpus} {cluster}", SearchBudget(row.budget, row.proposals)
    make()  # compiles
    space, operators = _timed(make)
    result, seconds = _timed(partial(placement_search, space, budget))
    before = f"before it operators in {operators:.2f} s"
    yield Figure(f"{where}: search, {_text(result)}; {before} (Table 4 / 20)", seconds, "s", row.target)
    data, expert, best = *result.baselines.values(), result.best
    yield Figure(f"{where}: data parallel over found", data.seconds / best.seconds, "x")
    yield Figure(f"{where}: expert over found", expert.seconds / best.seconds, "x")
    sent = max(best.sent, 1) / 1e9
    yield Figure(f"{where}: bytes of data parallel over found, {sent:.2f} GB", data.sent / 1e9 / sent, "x")
    less = 1 - float(computation(best).sum() / computation(data).sum())
    yield Figure(f"{where}: less computation than data parallel, all devices together", 100 * less, "%")
    if row.target < ENOUGH:
        longer = placement_search(space, SearchBudget(ENOUGH, row.proposals))
        what = f"{where}: found over that of {ENOUGH:.0f} s, {_text(longer)}"
        yield Figure(what, best.seconds / longer.best.seconds, "x")
    what, paper = f"{where}: delta over full simulation (paper {1 / row.ratio:.2f})", 1 / row.ratio
    yield Figure(what, delta_over_full(space), "", paper)
    what = f"{where}: searches by delta over full simulation (paper {1 / row.ratio:.2f})"
    yield Figure(what, searches_by_delta_over_full(space, STARTS[row.gpus]), "", paper)


def computation(strategy: EvaluatedStrategy) -> NDArray[np.float64]:
    """Return the seconds of each device's tasks."""
    graph = strategy.base.graph
    return np.bincount(graph.device, graph.seconds)[: len(strategy.memory)].astype(np.float64)


def _text(result: PlacementResult) -> str:
    is_local = ", local optimum" * result.locally_optimal
    return f"{1e3 * result.best.seconds:.1f} ms, {result.evaluated} strategies{is_local}"


def delta_over_full(space: PlacementSpace) -> float:
    """Return the time of delta over full simulation: the median over consecutive random changes of one operator.

    Each change has the least time of some walks.
    """
    kept = _walk(space)  # what parts need and take is known from now on
    walks = [_walk(space) for _ in range(RUNS)]
    ratios = []
    for i, (changed, _) in enumerate(kept):
        runs = [_timed(partial(space.evaluator.full, changed.strategy)) for _ in range(RUNS)]
        assert all(full.seconds == changed.seconds for full, _ in runs)
        ratios.append(min(walk[i][1] for walk in walks) / min(seconds for _, seconds in runs))
    return median(ratios)


def _walk(space: PlacementSpace) -> list[tuple[EvaluatedStrategy, float]]:
    """Make random changes, each from the last kept one; return the strategies and the seconds of each."""
    random, found = Random(0), list[tuple[EvaluatedStrategy, float]]()
    current = space.data_parallel()
    space.evaluator.delta(current, {0: space.choices[0].draw(random)})  # its timeline is known from now on
    for _ in range(CHANGES):
        operator = random.randrange(len(space.choices))
        change = {operator: space.choices[operator].draw(random)}
        found.append(_timed(partial(space.evaluator.delta, current, change)))
        changed = found[-1][0]
        current = changed if changed.seconds < 2 * current.seconds else current
    return found


class OneByOne(McmcSearch):
    """Proposes single operators, as FlexFlow does."""

    def propose(self) -> dict[int, Configuration]:
        operator = self.random.randrange(len(self.choices))
        return {operator: self.choices[operator].draw(self.random)}


def searches_by_delta_over_full(space: PlacementSpace, starts: int) -> float:
    """Return the time of searches by delta over full simulation, as in Table 4: chains from random strategies until nothing
    improves.

    Each kind has the least of some runs in turn.
    """
    _searches(space, False, starts)
    kinds = (False, True)
    runs = [[_searches(space, full, starts) for full in kinds] for _ in range(2)]
    assert all(found == runs[0][0][0] for run in runs for found, _ in run)
    delta, full = (min(run[i][1] for run in runs) for i in range(len(kinds)))
    return delta / full


def _searches(space: PlacementSpace, full: bool, starts: int) -> tuple[list[float], float]:
    """Return the step times that the searches find, and their seconds. full: simulate everything for each proposal."""
    evaluator = StrategyEvaluator(space.evaluator.tasks)
    found, total = list[float](), 0.0
    for seed in range(starts):
        start = evaluator.full(random_strategy(space.choices, Random(seed)))
        search = OneByOne(evaluator, space.choices, ChainSettings(seed=seed, full=full))
        best, seconds = _timed(partial(search.chain, start, PROPOSALS, inf))
        found.append(best.seconds)
        total += seconds
    return found, total


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return the result, and the seconds."""
    begin = time.perf_counter()
    return work(), time.perf_counter() - begin


def _spaces(wanted: set[str]) -> Iterator[Figure]:
    """Compare the best placements of restricted spaces (Figure 10)."""
    for network, gpus, cluster in COMPARED:
        if wanted <= {network, str(gpus), cluster}:
            machine = find_hardware(f"{cluster}_cluster", {})
            space, best = placement_space(prepared(network), machine, gpus), dict[str, float]()
            for name, allowed in SPACES.items():
                best[name] = placement_search(space.within(allowed), SearchBudget(ENOUGH)).best.seconds
            where, least = f"{network}, {gpus} {cluster}", best[list(SPACES)[-1]]
            yield Figure(f"{where}: a step, {list(SPACES)[-1]}", 1e3 * least, "ms")
            for name in list(SPACES)[:-1]:
                yield Figure(f"{where}: {name} over that", best[name] / least, "x")


def _curves(wanted: set[str]) -> Iterator[Figure]:
    """Print the best step against the time of the search, for NMT on 16 P100s or the selected networks (Figure 12)."""
    for network in sorted(wanted & set(TABLE)) or ["nmt"]:
        space = placement_space(prepared(network), find_hardware("p100_cluster", {}), 16)
        placement_search(space, SearchBudget(WARM))  # the costs of parts are known from now on
        for kind in ("delta", "full"):
            settings = ChainSettings(full=kind == "full")
            found = placement_search(
                space, SearchBudget(ENOUGH), settings, starts=["data_parallel", "random"]
            )
            shown = [each for each in found.history if each.cost < inf]
            for each in shown[:: max(len(shown) // CURVE, 1)]:
                yield Figure(
                    f"{network}, 16 p100, {kind}: a step after {each.seconds:.2f} s", 1e3 * each.cost, "ms"
                )
            yield Figure(
                f"{network}, 16 p100, {kind}: simulated placements a second", found.evaluated / ENOUGH, ""
            )


def _parts(_: set[str]) -> Iterator[Figure]:
    """Compare Inception-v3 on 4 P100s with batch normalization over the batch and over each of four parts (section 8.5)."""
    text = (EXAMPLES / "inception_v3.mtf").read_text("utf-8")
    for what, own in (("the batch", text), ("each part", in_parts(text))):
        program = run(choose(own, "inception_v3.mtf", Choice(None, None, None, {})).program, simplification())
        space = placement_space(program, find_hardware("p100_cluster", {}), 4)
        found = placement_search(space, SearchBudget(ENOUGH))
        data = found.baselines["data_parallel"]
        where = f"inception_v3, 4 p100, batch normalization over {what}"
        yield Figure(f"{where}: a step of data parallelism", 1e3 * data.seconds, "ms")
        yield Figure(f"{where}: computation of its busiest device", 1e3 * computation(data).max(), "ms")
        yield Figure(f"{where}: data parallelism over found", data.seconds / found.best.seconds, "x")


def in_parts(text: str) -> str:
    """Return Inception-v3 with a batch of four parts, each normalized by itself."""
    text = text.replace("dim batch   = 64", "dim parts   = 4\ndim batch   = 64 // parts")
    text = re.sub(r"\[(batch|late|samples), ", r"[parts, \1, ", text).replace(
        "i32[batch]", "i32[parts, batch]"
    )
    return text.replace("nn.batch_norm(", "nn.part_batch_norm[parts = parts](")


def _optimum(network: str, dims: dict[str, int], cluster: str) -> Iterator[Figure]:
    """Compare the search with the best of all strategies, on 4 devices (section 8.4)."""
    space = placement_space(prepared(network, dims), find_hardware(f"{cluster}_cluster", {}), 4)
    found = placement_search(space, SearchBudget(30.0, 1000)).best
    begin = time.perf_counter()
    proven = best_strategy(space.evaluator, space.choices, found, begin + OPTIMUM)
    seconds = time.perf_counter() - begin
    what = "the best of all" if proven.is_optimal else f"the best in {OPTIMUM:.0f} s, unproven"
    yield Figure(f"{network}, 4 {cluster}: found over {what}", found.seconds / proven.best.seconds, "x", 1.0)
    looked = f"{float(space.strategies):.1e} strategies, {proven.evaluated} simulated"
    yield Figure(f"{network}, 4 {cluster}: exhaustive search, {looked}", seconds, "s", PROOF)
