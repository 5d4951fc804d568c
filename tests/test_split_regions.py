"""Equations between two sums over an axis run on parts: results stay the same, and so do the bytes that are sent."""

from functools import cache

import attrs
import pytest

from mtfc.backends.hlo import collectives
from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.cost.volumes import PlacedCost, layout_cost, total
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.loops import carried, region_of
from mtfc.compiler.passes.pass_base import PipelineError
from mtfc.compiler.passes.pipelines import parse_pipeline, pipeline_of, run
from tests.harness import call, differentiated, generic_data, load, numpy_module, tolerance

MODEL = """
import nn
import transformer
dim batch = 8; dim length = 4; dim memory = 4; dim vocab = 16; dim d_model = 32
dim heads = 4; dim d_k = 4; dim d_ff = 16; dim layers = 3
mesh grid = [rows: 2, cols: 2]
layout hybrid on grid = { batch: rows, vocab: cols, d_ff: cols, heads: cols }
model lm(tokens: i32[batch, length]) {
  x = nn.dropout(nn.embedding[vocab = vocab, d_model = d_model](tokens), rate = 0.25)
  repeat layers {
    x = transformer.decoder_layer[memory = memory, heads = heads, d_k = d_k, d_ff = d_ff](x, rate = 0.25)
  }
  loss = mean(square(nn.dense_no_bias[d_out = vocab](nn.layer_norm(x))))
  return loss
}
train lm { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


@cache
def lowered(form: str, loop: str = "repeat layers") -> Program:
    """Return one processor's program of the model, with the pass in one of its forms."""
    module = load(MODEL.replace("repeat layers", loop))
    (layout,), (program,) = module.layouts, module.programs
    placed = attrs.evolve(program, mesh=layout.mesh, layout=layout.layout)
    options = f"split-regions.form={form},split-regions.least=0,split-regions.start=0"
    return run(placed, pipeline_of(parse_pipeline(f"default{{{options}}}"), "step"))


def sent(cost: PlacedCost) -> int:
    return whole(total(cost.step).sent.wire_bytes)


def test_the_same_bytes_are_sent_and_memory_is_smaller() -> None:
    """The few other bytes complete the gradients of normalization, which now sum over parts."""
    never, time, memory = (layout_cost(lowered(form)) for form in ("never", "time", "memory"))
    assert sent(never) <= sent(time) <= 1.04 * sent(never) < sent(memory)
    assert whole(memory.memory.total) < whole(time.memory.total) < 0.9 * whole(never.memory.total)
    assert set(total(time.step).collectives) == {"all_reduce", "all_gather", "reduce_scatter"}


@pytest.mark.parametrize("loop", ["repeat layers", "repeat layers checkpoint"])
def test_carries_stay_on_parts(loop: str) -> None:
    loops = [eqn for eqn in walk(lowered("time", loop).function("step").body) if eqn.regions]
    carries = [a.value.type for eqn in loops for a in carried(region_of(eqn)) if len(a.value.type.dims) == 3]
    assert [type.axes_of("batch") for type in carries] == [("rows", "cols")] * 2


def test_both_backends_give_the_undistributed_results() -> None:
    placed = lowered("time", "repeat layers checkpoint")
    (program,) = load(MODEL).programs
    original = differentiated(program, "step")
    arrays = generic_data(original.function("step"), 3)
    expected = interpret(original.function("step"), original, arrays)
    for module in (numpy_module(placed), jax_runtime.load(jax_backend.generate(placed))):
        tolerance(program).check(call(module, placed.function("step"), arrays), expected, module.__name__)


def test_predicted_bytes_are_those_that_xla_compiles() -> None:
    program = lowered("time", "repeat layers checkpoint")
    found = collectives(jax_runtime.hlo(program, "step"))
    for kind, volume in total(layout_cost(program).step).collectives.items():
        assert found[kind]["bytes_per_device"] == volume.bytes, kind


def test_small_programs_stay_as_they_are() -> None:
    module = load(MODEL)
    (layout,), (program,) = module.layouts, module.programs
    placed = attrs.evolve(program, mesh=layout.mesh, layout=layout.layout)
    found = run(placed, parse_pipeline("default{split-regions.form=time}"))
    assert set(total(layout_cost(found).step).collectives) == {"all_reduce"}


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(PipelineError, match="is one of layout, never, time, memory, not `parts`"):
        run(load(MODEL).programs[0], parse_pipeline("default{split-regions.form=parts}"))
