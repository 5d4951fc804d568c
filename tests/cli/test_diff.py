"""`mtfc diff`: two layouts, line by line."""

import re

import pytest

from tests.cli.conftest import Mtfc


def test_lines_add_up_to_the_difference_of_costs(mtfc: Mtfc) -> None:
    found = mtfc("diff", "model.mtf", "--layout", "data", "--layout", "both", "--format", "json").json
    assert (found["model"], found["layouts"]) == ("small", ["data", "both"])
    costs = mtfc("cost", "model.mtf", "--format", "json").json["layouts"]
    data, both = (next(c for c in costs if c["layout"] == name) for name in found["layouts"])
    steps = [data["step"], both["step"]]
    assert found["flops_per_device"] == [step["flops_per_device"] for step in steps]
    assert found["bytes_per_device"] == [
        sum(kind["bytes_per_device"] for kind in step["collectives"].values()) for step in steps
    ]
    assert found["memory_per_device"] == [cost["memory_per_device"]["total"] for cost in (data, both)]
    for figure in ("flops_per_device", "bytes_per_device", "memory_per_device"):
        assert [sum(line[figure][i] for line in found["lines"]) for i in (0, 1)] == found[figure]


def test_on_a_machine_lines_add_up_to_the_difference_of_steps(mtfc: Mtfc) -> None:
    layouts, target = ["data", "both"], ["--target", "p2_8xlarge", "--format", "json"]
    found = mtfc("diff", "model.mtf", *(f"--layout={each}" for each in layouts), *target).json
    for which, layout in enumerate(layouts):
        step = mtfc("simulate", "model.mtf", "--layout", layout, *target).json["step_seconds"]
        assert found["seconds"][which] == pytest.approx(step)
        assert sum(line["seconds"][which] for line in found["lines"]) == pytest.approx(step)
    text = mtfc("diff", "model.mtf", "--target", "p2_8xlarge").out
    assert re.search(r"line  source +time +FLOPs +sent +memory", text)
    assert "time" not in mtfc("diff", "model.mtf").out


def test_a_layout_differs_from_itself_in_nothing(mtfc: Mtfc) -> None:
    out = mtfc("diff", "model.mtf", "--layout", "both", "--layout", "both").out
    assert out.splitlines()[-1].strip() == "all"


def test_the_first_two_layouts_are_the_default_and_rules_may_be_given(mtfc: Mtfc) -> None:
    assert "from layout replicated to layout data" in mtfc("diff", "model.mtf").out
    out = mtfc("diff", "model.mtf", "--mesh", "rows:2", "--layout", "batch:rows", "--layout", "{}").out
    assert "from layout given to layout given_2" in out
    assert "  given: " in out and "  given_2: " not in out


def test_diff_refuses_a_single_layout_and_unknown_names(mtfc: Mtfc) -> None:
    outcome = mtfc("diff", "model.mtf", "--layout", "both")
    assert outcome.status == 2
    assert "--layout A --layout B" in outcome.err
    outcome = mtfc("diff", "model.mtf", "--layout", "both", "--layout", "bath: rows")
    assert outcome.status == 1
    assert "bath" in outcome.err
