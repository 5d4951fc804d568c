"""Test that instances are read as they were written, and the messages for malformed ones."""

import copy
import gzip
import json
from typing import Any

import pytest
from hypothesis import given

from mtfc.compiler.search.solver.assignment_problem import AssignmentProblem
from mtfc.driver.loading.contest_format import MalformedInstance, read, write
from tests.search.solver_problems import problems

EXAMPLE: dict[str, Any] = {
    "problem": {
        "name": "example",
        "nodes": {
            "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
            "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
            "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]],
        },
        "edges": {
            "nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
            "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]],
        },
        "usage_limit": 50,
    }
}
"""The example of google/iopddl."""


def test_the_example() -> None:
    problem = read(json.dumps(EXAMPLE).encode())
    assert (problem.name, problem.nodes, problem.limit) == ("example", 5, 50)
    assert problem.cost([0, 0, 2, 1, 0]) == 15 + 55 + 35 + 75 + 95 + 30 + 40 + 10 + 30 + 60
    assert problem.peak([0, 0, 2, 1, 0]) == 50
    assert problem.is_feasible([0, 0, 2, 1, 0]) and not problem.is_feasible([0, 0, 1, 1, 0])


def test_compressed_files_are_read() -> None:
    assert read(gzip.compress(json.dumps(EXAMPLE).encode())).nodes == 5


@given(problems())
def test_written_instances_are_read_back(problem: AssignmentProblem) -> None:
    text = write(problem)
    assert write(read(text.encode())) == text


WRONG: list[tuple[list[str | int], Any, str]] = [
    (["problem"], 3, "expected an object as `problem` of the file, found `3`"),
    (["problem", "nodes"], [], "expected an object as `nodes` of problem, found a list"),
    (["problem", "nodes", "costs"], 1, "expected a list as nodes.costs, found `1`"),
    (["problem", "nodes", "costs", 1], 1, "expected a list as nodes.costs[1], found `1`"),
    (["problem", "nodes", "costs", 1], [], "expected 0 numbers in nodes.usages[1], as many as strategies in"),
    (["problem", "nodes", "costs", 2, 1], 1.5, "in nodes.costs[2][1], found `1.5`"),
    (["problem", "nodes", "costs", 2, 1], True, "in nodes.costs[2][1], found `true`"),
    (["problem", "nodes", "costs", 2, 1], -1, "in nodes.costs[2][1], found `-1`"),
    (["problem", "nodes", "costs", 2, 1], 10**30, "in nodes.costs[2][1], found `1000"),
    (["problem", "nodes", "costs", 2, 1], None, "in nodes.costs[2][1], found `null`"),
    (["problem", "nodes", "usages", 0], [1, 2], "expected 1 numbers in nodes.usages[0]"),
    (["problem", "nodes", "usages"], [[1]], "expected as many entries in nodes.usages"),
    (["problem", "nodes", "intervals", 0], [1], "expected two numbers in nodes.intervals[0], found 1"),
    (["problem", "nodes", "intervals"], [], "expected as many entries in nodes.intervals"),
    (["problem", "edges", "nodes", 1], [0, 5], "expected nodes below 5 in edges.nodes[1], found [0, 5]"),
    (["problem", "edges", "nodes", 1], [2, 2], "expected two different nodes in edges.nodes[1]"),
    (["problem", "edges", "costs", 2], [1], "expected 4 numbers in edges.costs[2], one for each pair"),
    (["problem", "usage_limit"], "much", "expected bytes as `usage_limit` of problem, found 'much'"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=lambda case: str(case)[:40])
def test_malformed_files(path: list[str | int], value: Any, message: str) -> None:
    record: Any = copy.deepcopy(EXAMPLE)
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(MalformedInstance) as caught:
        read(json.dumps(record).encode())
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", b"{", b"\xff\xff", b"\x1f\x8b\x00", b"[" * 100_000])
def test_malformed_instances_are_refused(content: bytes) -> None:
    with pytest.raises(MalformedInstance):
        read(content)


def test_a_node_without_strategies() -> None:
    record: Any = copy.deepcopy(EXAMPLE)
    record["problem"]["nodes"]["costs"][0] = record["problem"]["nodes"]["usages"][0] = []
    with pytest.raises(MalformedInstance, match=r"at least one strategy in nodes.costs\[0\]"):
        read(json.dumps(record).encode())


def test_a_number_of_thousands_of_digits_is_refused_in_own_words() -> None:
    with pytest.raises(MalformedInstance, match="one has thousands of digits"):
        read(b'{"problem": ' + b"1" * 5000 + b"}")
