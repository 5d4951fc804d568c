"""Attention whose queries and keys are split alike: rings and all-to-alls give what one device gives."""

from typing import Any

import attrs
import numpy as np
import pytest

from mtfc.backends.exact.check import ExactReference
from mtfc.backends.hlo import collectives
from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.cost.volumes import layout_cost
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.fuse_attention import FuseAttention
from mtfc.compiler.passes.partition.spread_attention import SpreadAttention
from mtfc.compiler.passes.pass_base import PipelineError
from mtfc.compiler.passes.pipelines import default_pipeline, parse_pipeline, run
from tests.harness import call, chosen_layout, generic_data, load, numpy_module
from tests.sampling import some

HEAD = """
dim batch = 2; dim heads = 2; dim groups = 2; dim length = 24; dim memory = 24; dim d_k = 4; dim d_v = 6
mesh pair = [a: 2]
mesh three = [a: 3]
mesh grid = [a: 4, b: 2]
layout n2 on pair = { length: a }
layout n3 on three = { length: a }
layout n4 on grid = { length: a, heads: b }
"""
Q = "q: [batch, heads, length, d_k], keys: [batch, heads, length, d_k], values: [batch, heads, length, d_v]"
GROUPS = """q: [batch, groups, heads, length, d_k], keys: [batch, groups, length, d_k],
  values: [batch, groups, length, d_v]"""
CAUSAL = "broadcast(range(memory) -> [length, memory]) <= range(length)"
DOT = "einsum(q, k -> [batch, heads, length, memory])"
MEAN = "y = einsum(e, v -> [batch, heads, length, d_v]) / sum(e, over = memory)"
GROUP_MEAN = MEAN.replace("heads", "groups, heads")

FORMS = {
    "plain": (Q, f"s = {DOT}", MEAN),
    "causal": (Q, f"s = where({CAUSAL}, {DOT}, -30000.0)", MEAN),
    "strictly causal": (Q, f"s = where({CAUSAL.replace('<=', '<')}, {DOT}, -30000.0)", MEAN),
    "a soft cap": (Q, f"s = where({CAUSAL}, 2.0 * tanh({DOT} / 2.0), -30000.0)", MEAN),
    "segments": (
        f"{Q}, ids: i32[batch, length]",
        f"""same = broadcast(rename(ids, length -> memory) -> [batch, length, memory]) == ids
  s = where(broadcast({CAUSAL} -> [batch, length, memory]) and same, {DOT}, -30000.0)""",
        MEAN,
    ),
    "a mask": (f"{Q}, keep: bool[batch, length]", f"s = where(rename(keep, length -> memory), {DOT}, -30000.0)", MEAN),
    "groups": (GROUPS, f"s = where({CAUSAL}, {DOT.replace('heads', 'groups, heads')}, -30000.0)", GROUP_MEAN),
}  # fmt: skip


def module_of(form: str, heads: int = 2) -> Any:
    inputs, logits, mean = FORMS[form]
    head = HEAD.replace("heads = 2", f"heads = {heads}")
    return load(f"""{head}
model net({inputs}) {{
  k = rename(keys, length -> memory)
  v = rename(values, length -> memory)
  {logits}
  e = exp(s - stop_gradient(max(s, over = memory)))
  {mean}
  return y
}}
""")


def fused(form: str) -> Program:
    return run(module_of(form).programs[0], (FuseAttention(least=1),))


def spread(program: Program, layout: Any, form: str) -> Program:
    passes = (
        attrs.evolve(each, form=form) if isinstance(each, SpreadAttention) else each
        for each in default_pipeline("gradients")
    )
    return run(attrs.evolve(program, mesh=layout.mesh, layout=layout.layout), passes)


def ops(program: Program) -> set[str]:
    return {eqn.op for f in program.functions for eqn in walk(f.body) if has_trait(eqn, "sends")}


@pytest.mark.parametrize("form", some(FORMS, 4))
def test_rings_are_exact(form: str) -> None:
    program = fused(form)
    reference = ExactReference(program)
    for layout in module_of(form).layouts:
        placed = spread(program, layout, "ring")
        assert "shift_shards" in ops(placed) and "all_gather" not in ops(placed)
        found = reference.compare(placed)
        assert found.ok, f"{layout.name}: {found.wrong}"


@pytest.mark.parametrize("form", ["plain", "causal"])
def test_all_to_alls_are_exact(form: str) -> None:
    program = fused(form)
    placed = spread(program, chosen_layout(module_of(form), "n2"), "heads")
    assert ops(placed) == {"all_to_all"}
    assert ExactReference(program).compare(placed).ok


SPECIAL = {
    "finite": ("q", 0, 1.0),
    "a hidden value": ("values", 20, np.inf),
    "a hidden key": ("keys", 22, np.inf),
    "a key that is no number": ("keys", 13, np.nan),
    "a query that is no number": ("q", 3, np.nan),
    "an infinite query": ("q", 5, np.inf),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("form", ["causal", "a soft cap"])
def test_special_numbers_reach_what_they_reach_on_one_device(form: str) -> None:
    program = fused(form)
    whole = run(program, (Differentiate("gradients"),))
    placed = spread(program, chosen_layout(module_of(form), "n3"), "ring")
    modules = (numpy_module(placed), jax_runtime.load(jax_backend.generate(placed)))
    for name, (operand, position, number) in SPECIAL.items():
        arrays = {
            key: np.array(x, np.float32) for key, x in generic_data(program.function("forward"), 0).items()
        }
        arrays[operand][..., position, 1] = number
        expected = interpret(whole.function("gradients"), whole, arrays)
        for module in modules:
            found = call(module, placed.function("gradients"), arrays)
            for key, wanted in expected.items():
                np.testing.assert_allclose(found[key], wanted, rtol=2e-4, atol=2e-5, err_msg=f"{name}: {key}")


def test_a_loop_of_layers_with_checkpoint_is_a_ring_in_both_directions() -> None:
    module = load(f"""{HEAD}
dim layers = 2
model net(x: [batch, heads, length, d_k]) {{
  repeat layers checkpoint {{
    param w: [d_k] = normal()
    k = rename(x * w, length -> memory)
    s = where({CAUSAL}, {DOT.replace("q,", "x,")}, -30000.0)
    e = exp(s - stop_gradient(max(s, over = memory)))
    x = x + einsum(e, k -> [batch, heads, length, d_k]) / sum(e, over = memory)
  }}
  return x
}}
""")
    program = run(module.programs[0], (FuseAttention(least=1),))
    placed = spread(program, chosen_layout(module, "n4"), "ring")
    assert "all_gather" not in ops(placed)
    assert ExactReference(program).compare(placed).ok


def test_predicted_bytes_are_those_that_xla_compiles() -> None:
    pytest.importorskip("jax")
    program = fused("causal")
    placed = spread(program, chosen_layout(module_of("causal"), "n4"), "ring")
    functions = tuple(f for f in placed.functions if f.name == "forward")
    forward = attrs.evolve(placed, functions=functions)
    found = collectives(jax_runtime.hlo(forward, "forward"))["permute"]["bytes_per_device"]
    charges = layout_cost(forward).forward
    predicted = sum(charge.sent.bytes for charge in charges if charge.kind == "permute")
    assert found == predicted


def test_the_form_with_the_least_time_is_chosen() -> None:
    """A ring hides what it sends behind enough products; if these are few, all-to-alls send less."""
    module = module_of("plain", heads=12)
    layout = chosen_layout(module, "n3")
    program = run(module.programs[0], (FuseAttention(least=1),))
    forms = {}
    for balance in (1, 10**6):
        options = f"default{{differentiate.of=gradients,spread-attention.balance={balance},spread-attention.least=1}}"
        placed = run(attrs.evolve(program, mesh=layout.mesh, layout=layout.layout), parse_pipeline(options))
        forms[balance] = ops(placed)
    assert forms == {1: {"shift_shards"}, 10**6: {"all_to_all"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default{spread-attention.form=square}", "is one of auto, gather, ring, heads, not `square`"),
        ("default{spread.form=ring}", "`default` has no pass `spread`"),
        ("default{form=ring}", "`default` takes options such as `spread-attention.form=ring`"),
        ("default{spread-attention.shape=ring}", "has no option `shape`"),
    ],
)
def test_wrong_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        run(fused("plain"), parse_pipeline(text))
