"""`fuse-attention` on gradients that a program computes already: the equations of separate ops become the ops for gradients."""

import attrs
import numpy as np
import pytest

from mtfc.backends.interpreter import interpret
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.dce import Dce
from mtfc.compiler.passes.fuse_attention import FuseAttention, reasons
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.compiler.passes.pipelines import parse_pipeline, pipeline_of, run
from tests.harness import generic_data, load
from tests.test_attention import FORMS, HEAD, SOFTMAX, Q, S, program_of

GRADIENTS = {"attention_dq", "attention_dkv"}


def ops_of(program: Program) -> set[str]:
    return {eqn.op for function in program.functions for eqn in walk(function.body)}


def separate_gradients(program: Program) -> Program:
    """Return the program of a model's gradients, in separate ops."""
    (function,) = run(program, (Differentiate("gradients"), Dce())).functions[1:]
    return Program(program.name, program.dims, program.parameters, (function,))


def results(program: Program) -> dict[str, np.ndarray]:
    (function,) = program.functions
    return interpret(function, program, generic_data(function, 0))


@pytest.mark.parametrize("form", FORMS)
def test_separate_gradients_become_ops(form: str) -> None:
    separate = separate_gradients(everything_in(program_of(form), "f64"))
    fused = run(separate, (FuseAttention(least=1),))
    assert ops_of(fused) >= GRADIENTS and "exp" not in ops_of(fused)
    assert ("attention_dbias" in ops_of(fused)) == ("bias" in form)
    expected, found = results(separate), results(fused)
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)


ONCE = f"{S} {SOFTMAX}"

SEPARATE = {
    "a sum of squared weights": f"{ONCE} z = sum(e * e)",
    "a sum of logits": f"{ONCE} z = sum(s)",
    "a learned factor": f"{S} * exp(t) {SOFTMAX} z = t",
}
"""Statements whose gradients need more than the op gives."""


@pytest.mark.parametrize("statements", SEPARATE)
def test_gradients_that_need_logits_stay_separate_ops(statements: str) -> None:
    source = f"{HEAD}\nmodel net({Q}, t: []) {{\n  {SEPARATE[statements]}\n  return y, z\n}}\n"
    (program,) = load(source).programs
    separate = separate_gradients(program)
    assert not any(op.startswith("attention") for op in ops_of(run(separate, (FuseAttention(least=1),))))
    assert [reason.text for reason in reasons(separate, least=1)] == ["the weights are used otherwise, too"]


def test_second_derivatives_need_separate_ops() -> None:
    """The ops for gradients have no gradients, so a program that is differentiated keeps its gradients as they are."""
    (gradients,) = separate_gradients(program_of("causal")).functions
    outputs = tuple(attrs.evolve(output, name=f"{output.name}_given") for output in gradients.outputs)
    forward = attrs.evolve(gradients, name="forward", outputs=outputs)
    program = attrs.evolve(program_of("causal"), functions=(forward,))
    passes = parse_pipeline("fuse-attention{least=1},differentiation")
    assert ops_of(run(program, passes)) >= GRADIENTS
    differentiated = run(program, pipeline_of(passes, "gradients"))
    assert "exp" in ops_of(differentiated) and not GRADIENTS & ops_of(differentiated)


def test_two_attentions_in_a_row() -> None:
    """Two attentions in a row: the cotangent of the first is a gradient of the second."""
    second = f"{S} {SOFTMAX.replace('y =', 'q2 =')}".replace("d_v", "d_k").replace("v ->", "k ->")
    text = f"{second}\n  s2 = einsum(q2, k -> [batch, heads, length, memory])"
    text += SOFTMAX.replace("(s,", "(s2,").replace("(s ", "(s2 ").replace(" e ", " e2 ").replace("(e", "(e2")
    (program,) = load(f"{HEAD}\nmodel net({Q}) {{\n  {text}\n  return y\n}}\n").programs
    separate = separate_gradients(everything_in(program, "f64"))
    fused = run(separate, (FuseAttention(least=1),))
    ops = [eqn.op for eqn in fused.functions[0].body]
    assert (ops.count("attention"), ops.count("attention_dq"), ops.count("exp")) == (2, 2, 0)
    expected, found = results(separate), results(fused)
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)
