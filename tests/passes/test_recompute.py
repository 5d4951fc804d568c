"""Recomputation under a memory limit: what is kept, the same numbers on both backends, and the memory that XLA takes."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mtfc
from mtfc.api import Compiled
from mtfc.backends.jax import runtime
from mtfc.compiler.cost.device_models import expected_memory
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.core import walk
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.passes.pipelines import run
from mtfc.compiler.passes.recompute import Recompute
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.memory_limit import bytes_in
from mtfc.driver.loading.sources import Sources
from mtfc.driver.simulate import simulate
from mtfc.frontend.hardware_targets import find_hardware
from tests.sampling import some

LAYERS = """
import losses
import nn
import transformer

dim batch    = 8
dim length   = 16
dim memory   = length
dim vocab    = 64
dim d_model  = 32
dim kv_heads = 2
dim sharers  = 2
dim d_k      = 8
dim d_ff     = 64
dim layers   = 4

mesh grid = [data: 4, model: 2]
layout fsdp on grid = {
  batch: data
  kv_heads: model
  d_ff: model
  params: { d_model: data }
}

model lm(tokens: i32[batch, length]) {
  x = nn.embedding[vocab = vocab, d_model = d_model](shift(tokens, length))
  repeat layers CHECKPOINT {
    x = transformer.llama_layer[
      memory = memory,
      groups = kv_heads,
      heads = sharers,
      d_k = d_k,
      d_ff = d_ff
    ](x, base = 500000.0)
    x = nn.dropout(x, rate = 0.1)
  }
  logits = nn.dense_no_bias[d_out = vocab](nn.rms_norm(x))
  loss = losses.softmax_cross_entropy(logits, tokens)
  return logits, loss
}

train lm {
  minimize loss
  optimizer = adamw(learning_rate = 1e-2)
}
"""
LOOP = LAYERS.replace("CHECKPOINT", "")

BLOCKS = """
import losses
import nn

dim batch = 512
dim d     = 16
dim h     = 32
dim c     = 8

mesh grid = [data: 2, model: 2]
layout dp on grid = { batch: data, h: model }

fn block(x: [batch, d]) -> [batch, d] {
  y = nn.gelu(nn.dense_no_bias[d_out = h](nn.rms_norm(x)))
  return x + nn.dense_no_bias[d_out = d](nn.dropout(y, rate = 0.1))
}

model deep(x: [batch, d], t: i32[batch]) {
  y = block(block(block(block(x))))
  logits = nn.dense_no_bias[d_out = c](y)
  loss = losses.softmax_cross_entropy(logits, t)
  return logits, loss
}

train deep {
  minimize loss
  optimizer = sgd(learning_rate = 1e-1)
}
"""


@cache
def compiled(source: str, memory: str | int | None, **options: Any) -> Compiled:
    return mtfc.compile_text(source, memory=memory, **options)


@cache
def total(program: Compiled) -> int:
    return program.cost()["memory_per_device"]["total"]


@cache
def flops(program: Compiled) -> int:
    return program.cost()["step"]["flops_per_device"]


@cache
def least(source: str, layout: str | None = None) -> int:
    """Return the least memory, as the error for a limit of one byte says."""
    with pytest.raises(CompileError, match="E321") as raised:
        total(compiled(source, 1, layout=layout))
    (size,) = re.findall(r"allow `--memory ([^`]*)`", str(raised.value.diagnostics[0].help))
    return bytes_in(size)


@pytest.mark.parametrize("source", [BLOCKS, LOOP.replace("optimizer =", "accumulate = 2; optimizer =")])
def test_less_memory_takes_more_flops(source: str) -> None:
    whole = compiled(source, None)
    tight = least(source)
    assert tight < 0.75 * total(whole)
    before = flops(whole)
    assert flops(compiled(source, total(whole))) == before
    for limit in ((total(whole) + tight) // 2, tight):
        found = compiled(source, limit)
        assert total(found) <= limit
        assert flops(found) >= before
        before = flops(found)
    assert before > flops(whole)


WITHIN = [
    (LOOP, None),
    (BLOCKS, None),
    (LOOP, "full"),
    (LOOP, "minimal"),
    (LOOP, "selective"),
    (LOOP, "alternate"),
]


@pytest.mark.parametrize(("source", "memory"), some(WITHIN, 4))
def test_steps_keep_their_bits(source: str, memory: str | None) -> None:
    results = [_after_two_steps(compiled(source, limit)) for limit in (None, memory or least(source))]
    assert results[0].keys() == results[1].keys()
    for name, array in results[0].items():
        assert np.array_equal(array, results[1][name]), name


LONG = LOOP.replace("length   = 16", "length   = 1024").replace("dim batch    = 8", "dim batch    = 4")


def test_words_say_what_a_loop_keeps() -> None:
    """`full` repeats all, `alternate` half of the dots, `minimal` no dots, and `selective` neither dots nor attention."""
    found = {word: compiled(LONG, word or None) for word in ("", "selective", "minimal", "full")}
    sizes, work = ([count(each) for each in found.values()] for count in (total, flops))
    assert sizes == sorted(set(sizes), reverse=True) and work == sorted(set(work))
    dots, attended = (
        [_repeated(each, trait) - _repeated(found[""], trait) for each in found.values()]
        for trait in ("dot", "attention")
    )
    assert dots[:3] == [0, 0, 0] and dots[3] > 0
    assert attended == [0, 0, 1, 1]
    half = compiled(LONG, "alternate")
    assert 0 < _repeated(half, "dot") - _repeated(found[""], "dot") < dots[3]
    assert _repeated(half, "attention") == _repeated(found[""], "attention")


def _repeated(program: Compiled, trait: str) -> int:
    return sum(has_trait(eqn, trait) for eqn in walk(program.program.function("step").body))


def test_a_word_leaves_code_outside_of_loops() -> None:
    assert flops(compiled(BLOCKS, "full")) == flops(compiled(BLOCKS, None))


@pytest.mark.parametrize("word", ["Full", "all", "full@h100", "minimal,selective"])
def test_unknown_words(word: str) -> None:
    with pytest.raises(ValueError, match="or one of full, minimal, selective, alternate"):
        compiled(LOOP, word)


def test_explanations_name_the_word(tmp_path: Path) -> None:
    path = tmp_path / "model.mtf"
    path.write_text(LOOP)
    found = mtfc.explain(path, memory="minimal")["recomputation"]
    assert found["limit"] == "minimal" and found["memory_within"] < found["memory_without"]


def _after_two_steps(program: Compiled) -> dict[str, Any]:
    module, random, inputs = program.load("numpy"), np.random.default_rng(5), {}
    for argument in program.program.function("step").arguments:
        if argument.role == "input":
            shape = [dim.size for dim in argument.value.type.dims]
            dtype = numpy_dtype(np, argument.value.type.dtype)
            inputs[argument.value.name] = random.integers(0, 8, shape).astype(dtype)
    sharded, outputs = module.shard(inputs, module.INPUTS), dict[str, Any]()
    params, state = module.init(seed=0), module.init_state() if module.STATE else {}
    for step in range(2):
        outputs, params, state = module.train_step(params, state, sharded, step)
    return {**outputs, **params}


@pytest.mark.parametrize(("source", "layout"), some([(BLOCKS, "dp"), (LOOP, "fsdp")], 1))
def test_layouts_agree_with_the_whole_program(source: str, layout: str, tmp_path: Any) -> None:
    path = tmp_path / "model.mtf"
    small = source.replace("batch = 512", "batch = 8").replace("layers   = 4", "layers   = 2")
    path.write_text(small)
    memory = least(path.read_text(), layout=layout)
    assert mtfc.verify(path, layout=layout, memory=memory, backend="numpy", dtype="f64", exact=False)["ok"]


def test_copies_run_after_what_comes_before_them() -> None:
    """Outside of loops each copy reads an array through `after`, directly or by another copy."""
    step = compiled(BLOCKS, least(BLOCKS)).program.function("step")
    held = [eqn for eqn in step.body if has_trait(eqn, "after")]
    order = {value: i for i, eqn in enumerate(step.body) for value in eqn.results}
    assert held and all(order[eqn.operands[1]] < order[eqn.result] for eqn in held)


def test_a_checkpoint_wins() -> None:
    source = LAYERS.replace("CHECKPOINT", "checkpoint")
    free, tight = compiled(source, None), least(source)
    assert _loops(compiled(source, tight)) == _loops(free)
    assert _loops(compiled(LOOP, least(LOOP))) != _loops(compiled(LOOP, None))


def _loops(program: Compiled) -> list[list[str]]:
    step = program.program.function("step")
    return [[each.op for each in walk(eqn.regions[0].body)] for eqn in step.body if eqn.regions]


def test_attention_is_kept_longest() -> None:
    """A loop computes most of a layer again before it computes attention again."""
    source = LOOP.replace("length   = 16", "length   = 1024").replace("dim batch    = 8", "dim batch    = 4")
    whole, fewest = compiled(source, None), least(source)
    found = compiled(source, fewest + (total(whole) - fewest) // 4)
    step = found.program.function("step")
    assert flops(found) > flops(whole)
    assert sum(has_trait(eqn, "attention") for eqn in walk(step.body)) == 1


def test_explanations_say_what_is_kept(tmp_path: Any) -> None:
    path = tmp_path / "model.mtf"
    path.write_text(LOOP)
    for record in (mtfc.explain(path, memory="300KiB"), mtfc.cost(path, memory="300KiB")["layouts"][0]):
        found = record["recomputation"]
        assert found["memory_within"] <= found["limit"] == 300 * 1024 < found["memory_without"]
        assert sum(line["saved_bytes"] for line in found["lines"]) > 0
        assert sum(line["added_flops"] for line in found["lines"]) > 0
    assert "recomputation" not in mtfc.explain(path)


LARGE_LLAMA = {"layout": "fsdp", "mesh": "data: 8; model: 8"}


@pytest.fixture(scope="module")
def large_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 8 B parameters whose layers keep all values."""
    path = tmp_path_factory.mktemp("llama") / "llama.mtf"
    text = (Path(__file__).parents[2] / "examples" / "llama.mtf").read_text()
    path.write_text(text.replace("repeat layers checkpoint {", "repeat layers {"))
    return path


def test_commands_agree_on_the_memory_of_a_machine(large_llama: Path) -> None:
    """The embedding leaves a pending sum, which no loop can stack."""
    file, limit = large_llama, "40GiB@tpu_v5p"
    on_machine = mtfc.cost(file, memory=limit, **LARGE_LLAMA)["layouts"][0]
    size = on_machine["memory_per_device"]
    assert 30 * 2**30 < size["total"] <= 40 * 2**30
    for memory in some([limit, "40GiB"], 1):
        choice = Choice(memory=memory, **LARGE_LLAMA)
        step = simulate(str(file), choice, "tpu_v5p", Sources()).record()
        assert step["memory_per_device"] == size and step["fits"]
    found = on_machine["recomputation"]
    assert found["machine"] == "tpu_v5p" and found["memory_within"] == size["total"]
    assert found["memory_without"] > 95 * 2**30
    with pytest.raises(CompileError, match="E321"):
        mtfc.cost(file, memory="40GiB", **LARGE_LLAMA)


def test_a_limit_on_a_machine_is_met_exactly_or_refused() -> None:
    program, machine = compiled(LOOP, None).program, find_hardware("tpu_v5p", {})
    tightest = run(program, [Recompute(1, must_fit=False, hardware=machine)], level="lowered")
    fewest = whole(expected_memory(tightest.function("step"), program.placed_on, machine.device).total)
    assert total(compiled(LOOP, f"{fewest}@tpu_v5p")) == fewest
    with pytest.raises(CompileError, match="E321") as raised:
        total(compiled(LOOP, f"{fewest - 1}@tpu_v5p"))
    assert "@tpu_v5p`" in str(raised.value.diagnostics[0].help)
    assert flops(compiled(LOOP, "900TiB@tpu_v5p")) == flops(compiled(LOOP, None))


def test_a_machine_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "box.mtf"
    device = "device: { flops: { f32: 1e12 }, memory: 3e5, bandwidth: 1e11 }"
    path.write_text(
        f"hardware box = {{\n{device}\nlink l: {{ kind: switch, size: 8, bandwidth: 1e9, latency: 1e-6 }}\n}}\n"
    )
    for limit in (str(path), f"200KiB@{path}"):
        assert total(compiled(LOOP, limit)) <= 3e5
    with pytest.raises(FileNotFoundError, match="no_such"):
        compiled(LOOP, f"1GiB@{tmp_path / 'no_such.mtf'}")


@pytest.mark.parametrize("memory", ["40GiB@", "@h100", "2x@h100", "40GiB@h100@h100", "40GiB@nothing"])
def test_wrong_machines_are_refused(memory: str) -> None:
    with pytest.raises(ValueError, match="`memory`: "):
        compiled(LOOP, memory)


@pytest.mark.parametrize("memory", ["2x", "", "-1GiB", "0", "1e99", "GiB", 0, -5])
def test_wrong_sizes_are_refused(memory: str | int) -> None:
    with pytest.raises(ValueError, match="`memory`: expected a size such as 80GiB"):
        compiled(LOOP, memory)


def test_xla_takes_as_much_memory_as_predicted() -> None:
    """In loops, XLA for CPUs takes at most a third more than the limit allows beside the arguments."""
    dims = {"batch": 64, "length": 64, "layers": 8}
    program = mtfc.compile_text(LOOP, memory="6MiB", dims=dims)
    memory = program.cost()["memory_per_device"]
    predicted = memory["total"] - memory["parameters"] - memory["optimizer"]
    found = runtime.lowered(program.program, "step").compile().memory_analysis().temp_size_in_bytes
    assert found <= 4 / 3 * predicted
