"""Golden IR after each pass: a `*.test` file holds a source that names the pass to stop after, a line `---`, and the IR.

`pytest --update-golden` rewrites the IR; the diff is then to be read.
"""

import re
from pathlib import Path

import attrs
import pytest

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.passes import pipelines
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.parser import parse

CASES = sorted(Path(__file__).parent.glob("*.test"))


STORED = """\
# after: insert-reshards
dim batch = 8
dim vocab = 8
dim io = 4
mesh grid = [rows: 2, cols: 2]
layout stored on grid = { batch: rows, vocab: cols, params: { *: rows } }
model net(words: i32[batch]) {
  param table: [vocab, io] = normal()
  x = gather(table, words, vocab)
  return x
}
"""
"""An operand is gathered for an op without FLOPs, whose result is resharded."""


def lowered_until(source: str, stop_after: str, times: int = 1) -> str:
    """The IR of the file's model under its layout, once the first pass of that name has run, with the options that are given.

    times: how often that pass runs.
    """
    diagnostics = Diagnostics()
    module = elaborate(parse(source, "case.mtf", diagnostics), diagnostics)
    diagnostics.raise_if_errors()
    (declared,) = module.layouts
    program = attrs.evolve(module.programs[0], mesh=declared.mesh, layout=declared.layout)
    passes = pipelines.default_pipeline()
    (last,) = pipelines.parse_pipeline(stop_after)
    first = next(i for i, each in enumerate(passes) if each.name == last.name)
    chosen = last if "{" in stop_after else passes[first]
    return print_program(pipelines.run(program, (*passes[:first], *[chosen] * times)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_ir_after_pass(case: Path, update_golden: bool) -> None:
    source, expected = case.read_text("utf-8").split("---\n", 1)
    stop_after = re.match(r"# after: (\S+)\n", source)
    assert stop_after, "the first line says after which pass"
    actual = lowered_until(source, stop_after[1])
    if update_golden:
        case.write_text(f"{source}---\n{actual}", "utf-8")
        return
    assert actual == expected


@pytest.mark.parametrize("source", [STORED, *(case.read_text("utf-8") for case in CASES)])
def test_every_pass_runs_again_on_its_own_result(source: str) -> None:
    (last,) = pipelines.parse_pipeline(source.split("\n")[0].removeprefix("# after: "))
    if (last.level or last.takes[0]) in last.takes:
        lowered_until(source.split("---\n")[0], str(last), times=2)


def test_every_pass_has_a_case() -> None:
    shown = {re.match(r"# after: ([\w-]+)", case.read_text("utf-8"))[1] for case in CASES}  # type: ignore[index]
    assert shown == set(pipelines.PASSES)
