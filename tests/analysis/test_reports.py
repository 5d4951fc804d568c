"""The text of `mtfc cost`: `reports/*.test` holds a source, a line `---`, and the text by line, side by side and as formulas.

`pytest --update-golden` rewrites the texts; the diff is then to be read.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from mtfc.compiler.cost.volumes import layout_cost
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import lower
from mtfc.reports.cost_report import comparison, formula_report, formulas, formulas_json, layout_report
from mtfc.reports.table import aligned, count_text, flops_text, shortened, wrapped
from tests.harness import FILE, load

CASES = sorted((Path(__file__).parent / "reports").glob("*.test"))


def placed(source: str) -> list[Program]:
    """Return the program of the source's only model under each layout."""
    module = load(source)
    (program,) = module.programs
    return [lower(program, layout.mesh, layout.layout) for layout in module.layouts]


def report(source: str) -> str:
    programs = placed(source)
    costs = [layout_cost(program) for program in programs]
    texts = [layout_report(cost, {FILE: source}) for cost in costs]
    return "\n".join([*texts, comparison(costs), formula_report([formulas(program) for program in programs])])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_text_of_report(case: Path, update_golden: bool) -> None:
    source, _, expected = case.read_text("utf-8").partition("---\n")
    actual = report(source)
    assert max(map(len, actual.splitlines())) <= 120
    if update_golden:
        case.write_text(f"{source}---\n{actual}", "utf-8")
        return
    assert actual == expected


def test_formulas_in_json() -> None:
    source = CASES[0].read_text("utf-8").partition("---\n")[0]
    programs = placed(source)
    for layout in map(formulas, programs):
        found = formulas_json(layout)
        assert found["flops_per_device"] == str(layout.flops)
        assert found["memory_per_device"].keys() == layout.bytes.keys()
        assert found["leading"]["elements_per_flop"] == layout.leading_ratio


def test_costs_need_neither_numpy_nor_jax_nor_sympy() -> None:
    script = """
import sys
from mtfc.compiler.cost import volumes
from mtfc.reports import cost_report
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.passes.pipelines import lower
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.parser import parse

module = elaborate(parse(open("examples/two_layer.mtf").read(), "f", Diagnostics()), Diagnostics())
programs = [lower(module.programs[0], layout.mesh, layout.layout) for layout in module.layouts]
costs = [volumes.layout_cost(program) for program in programs]
formulas = [cost_report.formulas(program) for program in programs]
cost_report.comparison(costs), cost_report.formula_report(formulas)
list(map(cost_report.layout_json, costs)), list(map(cost_report.formulas_json, formulas))
print(*sorted({"numpy", "jax", "scipy", "sympy", "rich"} & sys.modules.keys()))
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1 kFLOP"),
        (42_402_817, "42.4 MFLOP"),
        (10**19, "1e+04 PFLOP"),
    ],
)
def test_flops_text(count: int, text: str) -> None:
    assert flops_text(count) == text
    assert count_text(count) == text.removesuffix("FLOP").strip()


def test_columns() -> None:
    assert aligned([["a", "bbb", "c"], ["aaaa", "b", ""]], right={1}) == ["  a     bbb  c", "  aaaa    b"]
    assert shortened("abcdefgh", 8) == "abcdefgh"
    assert shortened("abcd fghi", 8) == "abcd..."


def test_pieces_are_not_broken() -> None:
    pieces = ["head =", *(f"+ term{i}*{'x' * 20}" for i in range(10))]
    lines = wrapped(pieces, 7)
    assert " ".join(line.strip() for line in lines) == " ".join(pieces)
    assert len(lines) > 1
    assert all(line.startswith("       + term") and len(line) <= 118 for line in lines[1:])
