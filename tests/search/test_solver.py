"""Test the solver: it finds the least cost, its bounds hold, and it ends in time."""

import subprocess
import sys
from os import environ, pathsep
from pathlib import Path
from time import monotonic, process_time

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from mtfc.compiler.activity import progress_to
from mtfc.compiler.search import jit as jit_module
from mtfc.compiler.search.solver import elimination, network_reductions
from mtfc.compiler.search.solver import exact as exact_solver
from mtfc.compiler.search.solver.assignment_problem import (
    FORBIDDEN,
    AssignmentProblem,
    Infeasible,
    Integers,
    NotFound,
    Ragged,
)
from mtfc.compiler.search.solver.elimination import eliminate, elimination_order
from mtfc.compiler.search.solver.exact import solve_exactly
from mtfc.compiler.search.solver.lagrangian import BoundCertificate, Lagrangian, certify
from mtfc.compiler.search.solver.local_search import Incumbent
from mtfc.compiler.search.solver.network_arrays import pack
from mtfc.compiler.search.solver.network_reductions import ReducibleNetwork
from mtfc.compiler.search.solver.solve import solve
from mtfc.compiler.search.solver.solver_search import SolverSearch, allowance, core, region
from mtfc.compiler.search.solver.worker import solved
from tests.harness import AMPLE
from tests.search.solver_problems import chain, least_cost, problems

MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def exact(network: ReducibleNetwork) -> Integers | None:
    """Return a best choice of a network, by integer programming alone."""
    return solve_exactly(network, monotonic() + AMPLE).choices


@MANY
@given(problems())
def test_integer_programs_find_the_least_cost(problem: AssignmentProblem) -> None:
    try:
        choices = exact(ReducibleNetwork(problem))
    except Infeasible:
        choices = None
    least = least_cost(problem)
    assert (choices is None) == (least is None)
    assert choices is None or (problem.is_feasible(choices) and problem.cost(choices) == least)


@MANY
@given(problems())
def test_elimination_finds_the_least_cost_where_memory_does_not_count(problem: AssignmentProblem) -> None:
    problem = attrs.evolve(problem, limit=None)
    network = ReducibleNetwork(problem)
    order = elimination_order(network)
    assert order is not None and sorted(order) == sorted(network.nodes)
    choices, least = eliminate(network, order), least_cost(problem)
    assert (choices is None) == (least is None)
    assert choices is None or problem.cost(choices) == least


def test_elimination_takes_no_large_tables_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain(30, 3)
    assert elimination_order(ReducibleNetwork(problem)) is None
    free = ReducibleNetwork(attrs.evolve(problem, limit=None))
    assert elimination_order(free) is not None
    monkeypatch.setattr(elimination, "LARGEST", 9)
    assert elimination_order(free) is None
    monkeypatch.setattr(elimination, "LARGEST", 10**9)
    monkeypatch.setattr(elimination, "MOST", 100)
    assert elimination_order(free) is None


@pytest.mark.parametrize("seed", range(3))
def test_networks_that_are_nearly_trees_need_no_search(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = attrs.evolve(chain(25, 6, seed), limit=None)
    monkeypatch.setattr("mtfc.compiler.search.solver.solve.ExactWorker", None)
    solution = solve(problem, monotonic() + AMPLE)
    best = exact(ReducibleNetwork(problem))
    assert best is not None
    assert solution.cost == solution.lower_bound == problem.cost(best)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_memory_are_added_as_they_are_violated(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows were once in the order of their prices instead of time. The program then had other constraints and a wrong optimum."""
    problem = chain(12, 3, seed)
    best = exact(ReducibleNetwork(problem))
    network = ReducibleNetwork(problem)
    network.prices = np.random.default_rng(seed).random(len(network.free))
    monkeypatch.setattr(exact_solver, "ALL_ROWS", 0)
    outcome = solve_exactly(network, monotonic() + AMPLE)
    assert outcome.is_optimal and outcome.choices is not None and best is not None
    assert problem.is_feasible(outcome.choices)
    assert problem.cost(outcome.choices) == problem.cost(best)


@pytest.mark.parametrize(
    "rule", [None, *network_reductions.RULES], ids=lambda rule: getattr(rule, "__name__", "all")
)
def test_reductions_keep_the_least_cost(
    rule: network_reductions.Rule | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rule is not None:
        monkeypatch.setattr(
            network_reductions, "RULES", (network_reductions.forbidden, network_reductions.single, rule)
        )

    @settings(MANY, max_examples=40)
    @given(problems())
    def check(problem: AssignmentProblem) -> None:
        outcome = solved(ReducibleNetwork(problem), 60)
        least = least_cost(problem)
        assert outcome.is_optimal
        assert (outcome.choices is None) == (least is None)
        if outcome.choices is not None:
            assert problem.is_feasible(outcome.choices)
            assert problem.cost(outcome.choices) == least

    check()


def climbed(problem: AssignmentProblem, steps: int) -> tuple[Lagrangian, BoundCertificate]:
    network = ReducibleNetwork(problem)
    network.settle_memory()
    lagrangian = Lagrangian(pack(network), network.constant)
    for _ in range(steps):
        lagrangian.advance(lagrangian.bound + 5)
    return lagrangian, certify(lagrangian)


@MANY
@given(problems())
def test_bounds_are_never_above_the_least_cost(problem: AssignmentProblem) -> None:
    least = least_cost(problem)
    if least is not None:
        assert climbed(problem, 1)[1].bound <= least
        assert climbed(problem, 45)[1].bound <= least


@settings(MANY, max_examples=40)
@given(problems())
def test_excess_is_what_a_strategy_costs_more_at_least(problem: AssignmentProblem) -> None:
    try:
        network = ReducibleNetwork(problem)
        network.settle_memory()
    except Infeasible:
        return
    lagrangian, certificate = climbed(problem, 40)
    first = lagrangian.arrays.first
    for node in range(problem.nodes):
        for strategy in range(len(problem.costs[node])):
            fixed = network.copy()
            fixed.keep(node, np.array([strategy]))
            choices = exact(fixed)
            if choices is not None:
                cost = problem.cost(fixed.restore(choices))
                assert certificate.bound + certificate.excess[first[node] + strategy] <= cost


@settings(MANY, max_examples=60)
@given(problems())
def test_a_core_of_the_gap_contains_all_better_choices(problem: AssignmentProblem) -> None:
    least = least_cost(problem)
    if least is None:
        return
    network = ReducibleNetwork(problem)
    network.settle_memory()
    lagrangian, certificate = climbed(problem, 40)
    arrays = lagrangian.arrays
    best = exact(network)
    assert best is not None
    gap = least - certificate.bound
    assert allowance(arrays, certificate, gap, 10**6) == gap
    small = core(network, arrays, certificate, best[arrays.nodes], gap)
    found = exact(small)
    assert found is not None and problem.cost(small.restore(found)) == least
    nothing = core(network, arrays, certificate, best[arrays.nodes], -1, region(arrays, 0, 100))
    assert all(len(costs) == 1 for costs in nothing.costs)


def searched(problem: AssignmentProblem, seconds: float) -> tuple[int, Integers]:
    """Return a bound and choices by search alone."""
    network = ReducibleNetwork(problem)
    network.settle_memory()
    return SolverSearch(network, monotonic() + seconds).run(None)


def test_the_search_closes_the_gap_of_a_chain() -> None:
    problem = chain(30, 3)
    solution = solve(problem, monotonic() + AMPLE)
    bound, choices = searched(problem, 10)
    assert problem.is_feasible(choices)
    assert bound <= solution.cost <= problem.cost(choices)
    assert solution.lower_bound == solution.cost
    assert problem.cost(choices) - bound <= 0.1 * solution.cost


def test_local_search_only_improves() -> None:
    problem = chain(200, 5)
    network = ReducibleNetwork(problem)
    network.settle_memory()
    arrays = pack(network)
    incumbent = Incumbent(arrays)
    assert incumbent.offer(np.array([problem.usages[node].argmin() for node in range(problem.nodes)]))
    first = incumbent.cost
    for _ in range(10):
        incumbent.polish(np.zeros(len(arrays.free)))
    assert incumbent.cost < first
    assert incumbent.choices is not None
    assert problem.is_feasible(incumbent.choices)
    assert problem.cost(incumbent.choices) == incumbent.cost + network.constant


@pytest.mark.parametrize("reports", [0, 1, 2])
def test_an_interrupted_search_has_the_best_so_far(reports: int) -> None:
    problem, told = chain(300, 5), list[str]()

    def interrupt(doing: str, cost: float | None, bound: float | None) -> None:
        told.append(doing)
        if len(told) > reports:
            raise KeyboardInterrupt

    network = ReducibleNetwork(problem)
    network.settle_memory()
    search = SolverSearch(network, monotonic() + AMPLE)
    with progress_to(interrupt):
        bound, choices = search.run(None)
    assert search.is_interrupted
    assert problem.is_feasible(network.restore(choices))
    assert bound <= problem.cost(network.restore(choices))


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_the_time_limit_is_kept(seconds: float) -> None:
    """A busy machine adds no time of the processor. The loops are compiled before, as compiling cannot be interrupted."""
    searched(chain(30, 3), 2)
    problem = chain(1500, 8)
    start = process_time()
    try:
        solution = solve(problem, monotonic() + seconds)
    except NotFound:
        assert process_time() - start < seconds + 5
        return
    assert process_time() - start < seconds + 5
    assert problem.is_feasible(solution.choices)
    assert solution.lower_bound <= solution.cost == problem.cost(solution.choices)


def test_infeasibility_is_proven() -> None:
    two = Ragged.of([[1, 2], [3, 4]])
    no_edges, no_tables = np.zeros((0, 2), np.int64), Ragged.of([])
    full = AssignmentProblem(two, two, np.array([[0, 2], [1, 3]]), no_edges, no_tables, limit=3)
    with pytest.raises(Infeasible, match="more memory"):
        solve(full, monotonic() + AMPLE)
    impossible = AssignmentProblem(
        two, two, np.zeros((2, 2), np.int64), np.array([[0, 1]]), Ragged.of([[10**18] * 4])
    )
    with pytest.raises(Infeasible, match="no strategy of node"):
        solve(impossible, monotonic() + AMPLE)


def test_large_numbers_are_exact() -> None:
    large = 4 * 10**17
    costs = Ragged.of([[large + 1, large], [large, large + 3]])
    edge = Ragged.of([[5, 9, 9, 5]])
    problem = AssignmentProblem(
        costs, Ragged.of([[0, 0]] * 2), np.zeros((2, 2), np.int64), np.array([[0, 1]]), edge, 10
    )
    solution = solve(problem, monotonic() + AMPLE)
    assert (solution.cost, solution.lower_bound) == (2 * large + 6, 2 * large + 6)


def test_many_impossible_pairs_are_no_bargain() -> None:
    """Twelve times FORBIDDEN exceeds 64 bits."""
    nodes = 13
    pairs = [(node, node + 1) for node in range(nodes - 1)]
    problem = AssignmentProblem(
        costs=Ragged.of([[5, 7]] * nodes),
        usages=Ragged.of([[0, 0]] * nodes),
        intervals=np.zeros((nodes, 2), np.int64),
        edges=np.array(pairs, np.int64),
        edge_costs=Ragged.of([[0, FORBIDDEN, FORBIDDEN, 0]] * len(pairs)),
    )
    incumbent = Incumbent(pack(ReducibleNetwork(problem)))
    assert not incumbent.offer(np.arange(nodes) % 2)
    assert incumbent.offer(np.ones(nodes, np.int64)) and incumbent.cost == 7 * nodes


READY = """
from time import monotonic
from mtfc.compiler.search.solver import lagrangian, local_search
from mtfc.compiler.search.solver.network_reductions import ReducibleNetwork
from mtfc.compiler.search.solver.solver_search import compile_loops
from mtfc.compiler.search.solver.solver_search import SolverSearch
from tests.search.solver_problems import chain

def known():
    loops = [each for module in (lagrangian, local_search) for each in vars(module).values() if hasattr(each, "signatures")]
    return {each.__name__: list(each.signatures) for each in loops}

compile_loops()
before = known()
assert all(before[name] for name in ("pass_messages", "improve", "reparametrize")), before
network = ReducibleNetwork(chain(300, 5))
network.settle_memory()
SolverSearch(network, monotonic() + 0.5).run(None)
assert known() == before
"""


def test_no_search_compiles_loops_once_they_are_ready() -> None:
    """The test runs in a process of its own, where no test before has compiled the loops."""
    pytest.importorskip("numba")
    subprocess.run([sys.executable, "-c", READY], check=True, cwd=Path(__file__).parents[2])


INNER = """\
from mtfc.compiler.search import jit
jit._stamp = lambda: STAMP

@jit.jit
def number():
    return STAMP
"""

OUTER = """\
from within import number
from mtfc.compiler.search.jit import jit

@jit
def twice():
    return 2 * number()

print(twice())
"""


def test_compiled_loops_are_not_kept_when_others_change(tmp_path: Path) -> None:
    """Numba checks only the file of a function, but compiled code contains the functions that it calls."""
    pytest.importorskip("numba")
    (tmp_path / "outer.py").write_text(OUTER, "utf-8")
    within = {**environ, "PYTHONPATH": f"{tmp_path}{pathsep}{Path(__file__).parents[2]}"}
    within["PYTHONDONTWRITEBYTECODE"] = "1"  # it would be taken for that of another file of the same second
    printed = []
    for stamp in ("1", "2"):
        (tmp_path / "within.py").write_text(INNER.replace("STAMP", stamp), "utf-8")
        command = [sys.executable, "outer.py"]
        done = subprocess.run(command, cwd=tmp_path, env=within, capture_output=True, check=True)
        printed.append(done.stdout.strip())
    assert printed == [b"2", b"4"]
    names = {name for name, *_ in jit_module._stamp()}
    assert {"task_graph_builder.py", "evaluation.py", "lagrangian.py", "local_search.py"} <= names


NAMED = """\
from typing import NamedTuple
from mtfc.compiler.search.jit import jit

class CLASS(NamedTuple):
    number: int

@jit
def twice(given):
    return 2 * given.number

if __name__ == "named":
    print(twice(CLASS(1)))
"""


def test_compiled_loops_of_classes_that_are_no_more_are_compiled_anew(tmp_path: Path) -> None:
    """An update of mtfc leaves Numba's old cache behind."""
    pytest.importorskip("numba")
    within = {**environ, "PYTHONPATH": f"{tmp_path}{pathsep}{Path(__file__).parents[2]}"}
    within["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in ("Before", "Later"):
        (tmp_path / "named.py").write_text(NAMED.replace("CLASS", name), "utf-8")
        command = [sys.executable, "-c", "import named"]
        done = subprocess.run(command, cwd=tmp_path, env=within, capture_output=True, check=True)
        assert done.stdout.strip() == b"2"
    assert list(tmp_path.rglob("*.nbi"))
