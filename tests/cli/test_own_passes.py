"""Passes of one's own: given in Python, or by entry points of installed packages."""

from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

import mtfc
from mtfc import ir
from tests.cli.conftest import Mtfc


@attrs.frozen
class Doubled(ir.Pass):
    """Compute a + a for a + b: a fault that only the check of results can find."""

    name: ClassVar[str] = "doubled"
    times: int = 2

    def run(self, program: ir.Program) -> ir.Program:
        return program.map_functions(self._changed)

    def _changed(self, function: Any) -> Any:
        def equation(eqn: ir.Equation) -> ir.Equation:
            same = eqn.op == "mul" and len({value.type for value in eqn.operands}) == 1
            return attrs.evolve(eqn, operands=eqn.operands[:1] * 2) if same else eqn

        return attrs.evolve(function, body=tuple(map(equation, function.body)))


SOURCE = """
dim n = 4
mesh line = [all: 2]
layout split on line = { n: all }
model m(x: [n]) {
  param w: [n] = normal(stddev = 0.5)
  loss = sum(x * w)
  return loss
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.5) }
"""


@attrs.frozen
class EntryPoint:
    name: str
    value: str
    found: Any

    def load(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[EntryPoint]:
    """Return the entry points of the group `mtfc.passes`, to which a test adds its own."""
    points: list[EntryPoint] = []

    def entry_points(group: str) -> Iterable[EntryPoint]:
        assert group == "mtfc.passes"
        return points

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    Path("own.mtf").write_text(SOURCE)
    return points


def test_a_wrong_pass_is_found(mtfc: Mtfc, installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("doubled", "own:Doubled", Doubled))
    outcome = mtfc("verify", "own.mtf", "--backend", "numpy", "--passes", "doubled{times=3},default")
    assert outcome.status == 1
    assert "exact  WRONG" in outcome.out
    assert mtfc("verify", "own.mtf", "--backend", "numpy", "--passes", "default").status == 0


def test_every_command_lowers_by_the_passes(mtfc: Mtfc, installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("doubled", "own:Doubled", Doubled))
    text = mtfc("compile", "own.mtf", "--passes", "differentiation,doubled,partitioning").out
    assert "= mul %x, %x" in text
    options = ("run", "own.mtf", "--format", "json", "--seed", "3")
    plain, wrong = (
        mtfc(*options, *more).json["outputs"]["loss"] for more in ((), ("--passes", "doubled,default"))
    )
    assert plain != wrong
    asked, plainly = ("own.mtf", "--passes", "doubled,default"), ("own.mtf",)
    assert mtfc("cost", *asked).out != mtfc("cost", *plainly).out
    assert (
        mtfc("explain", *asked).status
        == mtfc("diff", *asked, "--layout", "split", "--layout", "n:all").status
        == 0
    )
    target = ("--target", "h100", "--format", "json")
    steps = [mtfc("simulate", *each, *target).json["compute_seconds"] for each in (asked, plainly)]
    assert steps[0] != steps[1]


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("bogus", "unknown pass `bogus`; the passes are fuse-attention, "),
        ("simplify", "the passes end with a program that is global, and it has to be lowered"),
        ("default,differentiate", "`differentiate` has to run before `assign-layouts`"),
        ("broken,default", "pass `broken` of own:broken cannot be imported: no such module"),
        ("wrong,default", "`wrong` of own:wrong is no class derived from `mtfc.ir.Pass`"),
    ],
)
def test_wrong_passes(mtfc: Mtfc, installed: list[EntryPoint], passes: str, message: str) -> None:
    if passes.startswith("broken"):
        installed.append(EntryPoint("broken", "own:broken", ImportError("no such module")))
    if passes.startswith("wrong"):
        installed.append(EntryPoint("wrong", "own:wrong", print))
    outcome = mtfc("cost", "own.mtf", "--passes", passes)
    assert outcome.status == 2
    assert f"mtfc: --passes: {message}" in outcome.err


@attrs.frozen
class Failing(ir.Pass):
    """Do what a pass must not do."""

    name: ClassVar[str] = "failing"
    how: str = "raises"

    def run(self, program: ir.Program) -> Any:
        if self.how == "raises":
            raise KeyError("oops")
        if self.how == "nothing":
            return None
        return program.map_functions(lambda function: attrs.evolve(function, body=function.body[1:]))


@attrs.frozen
class Needing(ir.Pass):
    """A pass with an option that text cannot give."""

    name: ClassVar[str] = "needing"
    table: dict[str, int]


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("failing,default", "KeyError in the pass `failing`: 'oops'"),
        ("failing{how=nothing},default", "TypeError in the pass `failing`: its `run` returns NoneType"),
        ("default,failing{how=cuts}", "VerifyError in the pass `failing`: %"),
        ("needing,default", "pass `needing` has options without a default, which text cannot give: table"),
        ("default{join-dots.balance=1, join-dots.balance=2}", "an option is there twice"),
        (f"default{{join-dots.balance={'9' * 5000}}}", "takes a whole number"),
        ("twice,default", "several packages offer a pass `twice`: a:P, b:P"),
    ],
)
def test_faults_of_a_pass_are_those_of_the_user(
    mtfc: Mtfc, installed: list[EntryPoint], passes: str, message: str
) -> None:
    """A package that cannot be imported hides no pass of another one."""
    named = {"failing": Failing, "needing": Needing, "broken": ImportError("no such module")}
    installed += [EntryPoint(name, f"own:{name}", found) for name, found in named.items()]
    installed += [EntryPoint("twice", place, Failing) for place in ("a:P", "b:P")]
    for command in ("cost", "verify"):
        outcome = mtfc(command, "own.mtf", "--passes", passes)
        assert (outcome.status, message in outcome.err) == (2, True), outcome.err
        assert "bug in mtfc" not in outcome.err and "broken" not in outcome.err


def test_passes_in_python(installed: list[EntryPoint]) -> None:
    passes = [*ir.pipeline("differentiation"), Doubled(), *ir.pipeline("partitioning")]
    assert "= mul %x, %x" in mtfc.compile("own.mtf", passes=passes).ir()
    assert "def value_and_grad" in mtfc.compile("own.mtf", passes=passes).jax()
    found = mtfc.verify("own.mtf", passes=passes, backend="numpy")
    assert not found["ok"]
    with pytest.raises(ValueError, match=r"is no `mtfc\.ir\.Pass`"):
        mtfc.compile("own.mtf", passes=["default"])  # type: ignore[list-item]
