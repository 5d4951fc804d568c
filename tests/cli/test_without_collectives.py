"""`mtfc run --without-collectives`: steps that send nothing, and whose numbers are wrong."""

from unittest.mock import patch

import pytest
from hypothesis import given, settings

from mtfc.backends import hlo
from mtfc.backends.jax import backend, runtime
from mtfc.backends.jax.local_collectives import local
from mtfc.compiler.passes.pipelines import lower
from tests.cli.conftest import Mtfc
from tests.generators.programs import Generated, programs
from tests.harness import load
from tests.search.equation_networks import EXAMPLES

RUN = ("run", str(EXAMPLES / "two_layer.mtf"), "--layout", "hybrid", "--without-collectives")
WRONG = "ALL NUMBERS ARE WRONG"


def test_a_run_says_that_its_numbers_are_wrong(mtfc: Mtfc) -> None:
    run = mtfc(*RUN, "--backend", "jax", "--train", "--steps", "2")
    assert run.status == 0
    assert WRONG in run.out and WRONG in run.err
    record = mtfc(*RUN, "--backend", "jax", "--format", "json").json
    assert record["without_collectives"] is True
    right = mtfc(*RUN[:-1], "--backend", "jax", "--format", "json").json
    assert "without_collectives" not in right
    assert right["outputs"]["loss"] != record["outputs"]["loss"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--backend", "numpy"], "takes --backend jax"),
        (
            ["--backend", "jax", "--save", "out.npz"],
            "--without-collectives and --save: the numbers are wrong",
        ),
        (["--backend", "jax", "--train", "--eval", "eval.npz"], "--without-collectives and --eval"),
    ],
)
def test_wrong_numbers_are_not_kept(mtfc: Mtfc, options: list[str], says: str) -> None:
    run = mtfc(*RUN, *options)
    assert run.status == 2
    assert says in run.err


@settings(max_examples=8)
@given(programs())
def test_no_program_sends_anything(generated: Generated) -> None:
    module = load(generated.source)
    program, declared = module.programs[0], module.layouts[0]
    name = "step" if program.training is not None else "forward"
    lowered = lower(program, declared.mesh, declared.layout, name)
    with patch.object(runtime, "generate", lambda program: local(backend.generate(program))):
        text = runtime.lowered(lowered, name).compile().as_text()
    assert not hlo.collectives(text)
