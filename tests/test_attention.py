"""Attention as one op: it is found in many forms, and computes what separate ops compute, whole and split, on both backends."""

import os
import re
from types import SimpleNamespace

import numpy as np
import pytest

from mtfc.backends.exact.check import ExactReference
from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.types import Layout
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.fuse_attention import FuseAttention, reasons
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.compiler.passes.pipelines import lower, run
from tests.harness import call, chosen_layout, generic_data, jax_module, load, numpy_module
from tests.sampling import some

HEAD = """
dim batch = 2; dim heads = 4; dim groups = 2; dim length = 8; dim memory = 8; dim d_k = 4; dim d_v = 6; dim one = 1
mesh pair = [a: 2]
mesh grid = [a: 2, b: 2]
layout by_batch on pair = { batch: a }
layout by_heads on pair = { heads: a }
layout by_length on pair = { length: a }
layout by_memory on pair = { memory: a }
layout by_depth on pair = { d_k: a, d_v: a }
layout by_both on grid = { length: a, memory: b }
layout by_groups on pair = { groups: a }
layout by_rest on grid = { memory: b, heads: a }
"""

SOFTMAX = """
  e = exp(s - stop_gradient(max(s, over = memory)))
  y = einsum(e, v -> [batch, heads, length, d_v]) / sum(e, over = memory)
"""
WEIGHTS = """
  e = exp(s - stop_gradient(max(s, over = memory)))
  p = e / sum(e, over = memory)
  y = einsum(p, v -> [batch, heads, length, d_v])
"""
DROPPED = """
  keep = random.bernoulli([batch, heads, length, memory], 0.75)
  e = exp(s - stop_gradient(max(s, over = memory)))
  w = e / sum(e, over = memory)
"""
MEAN = "\n  y = einsum(p, v -> [batch, heads, length, d_v])"
Q = "q: [batch, heads, length, d_k], k: [batch, heads, memory, d_k], v: [batch, heads, memory, d_v]"
S = "s = einsum(q, k -> [batch, heads, length, memory])"
CAUSAL = "broadcast(range(memory) -> [length, memory]) <= range(length)"

FORMS = {
    "plain": (Q, f"{S} {SOFTMAX}"),
    "weights first": (Q, f"{S} {WEIGHTS}"),
    "scaled": (Q, f"s = einsum(q, k -> [batch, heads, length, memory]) * 0.5 {WEIGHTS}"),
    "divided": (Q, f"s = einsum(q, k -> [batch, heads, length, memory]) / 2.0 {SOFTMAX}"),
    "causal": (Q, f"s = where({CAUSAL}, einsum(q, k -> [batch, heads, length, memory]), -30000.0) {SOFTMAX}"),
    "window": (
        Q,
        f"""far = broadcast(range(length) -> [length, memory]) - range(memory)
  s = where(far >= 0 and far < 3, einsum(q, k -> [batch, heads, length, memory]), -30000.0) {SOFTMAX}""",
    ),
    "a query that sees no key": (
        Q,
        f"""far = broadcast(range(length) -> [length, memory]) - range(memory)
  s = where(far > 2, einsum(q, k -> [batch, heads, length, memory]), -30000.0) {SOFTMAX}""",
    ),
    "segments": (
        f"{Q}, ids: i32[batch, length]",
        f"""same = broadcast(rename(ids, length -> memory) -> [batch, length, memory]) == ids
  seen = broadcast({CAUSAL} -> [batch, length, memory]) and same
  s = where(seen, einsum(q, k -> [batch, heads, length, memory]), -30000.0) {SOFTMAX}""",
    ),
    "two sequences": (
        f"{Q}, ids: i32[batch, length], others: i32[batch, memory]",
        f"""same = broadcast(others -> [batch, length, memory]) == ids
  s = where(same, einsum(q, k -> [batch, heads, length, memory]), -30000.0) {SOFTMAX}""",
    ),
    "a mask": (f"{Q}, keep: bool[batch, memory]",
     f"s = where(keep, einsum(q, k -> [batch, heads, length, memory]), -30000.0) {WEIGHTS}"),
    "biases": (f"{Q}, b: [heads, length, memory], c: [memory, heads]",
     f"s = where({CAUSAL}, b + einsum(q, k -> [batch, heads, length, memory]) * 0.25 + c, -30000.0) {SOFTMAX}"),
    "a bias that is subtracted": (f"{Q}, b: [heads, length, memory]",
     f"s = where({CAUSAL}, einsum(q, k -> [batch, heads, length, memory]) * 0.25 - b, -30000.0) {SOFTMAX}"),
    "a bias per head": (f"{Q}, b: [heads, length]", f"s = einsum(q, k -> [batch, heads, length, memory]) + b {SOFTMAX}"),
    "a soft cap": (
        Q,
        f"""t = einsum(q, k -> [batch, heads, length, memory]) * 0.5
  s = where({CAUSAL}, 2.0 * tanh(t / 2.0), -30000.0) {SOFTMAX}""",
    ),
    "dropout": (Q, f"{S} {DROPPED}\n  p = where(keep, w / 0.75, 0.0) {MEAN}"),
    "dropout under a flag": (
        Q,
        f"""s = where({CAUSAL}, einsum(q, k -> [batch, heads, length, memory]), -30000.0) {DROPPED}
  p = where(training, where(keep, w * 1.25, 0.0), w) {MEAN}""",
    ),
    "groups": (
        "q: [batch, groups, heads, length, d_k], k: [batch, groups, memory, d_k], v: [batch, groups, memory, d_k]",
        f"""s = where({CAUSAL}, einsum(q * rsqrt(d_k), k -> [batch, groups, heads, length, memory]), -30000.0)
  e = exp(s - stop_gradient(max(s, over = memory)))
  y = einsum(e, v -> [batch, groups, heads, length, d_k]) / sum(e, over = memory)""",
    ),
    "one head of keys": (
        "q: [length, heads, batch, d_k], k: [memory, batch, d_k], v: [d_k, memory, batch]",
        """s = einsum(k, q -> [memory, batch, heads, length])
  e = exp(s - stop_gradient(max(s, over = memory)))
  y = einsum(v, e -> [heads, d_k, length, batch]) / sum(e, over = memory)""",
    ),
    "keys shared by a batch": ("q: [heads, length, d_k], k: [batch, heads, memory, d_k], v: [batch, heads, memory, d_v]",
     f"{S} {SOFTMAX}"),
    "one query": (
        "q: [batch, heads, d_k], k: [batch, heads, memory, d_k], v: [batch, heads, memory, d_v]",
        """s = where(range(memory) <= 5, einsum(q, k -> [batch, heads, memory]), -30000.0)
  e = exp(s - stop_gradient(max(s, over = memory)))
  y = einsum(e, v -> [batch, heads, d_v]) / sum(e, over = memory)""",
    ),
    "one key": (
        "q: [batch, length, d_k], k: [batch, one, d_k], v: [batch, one, d_v]",
        """s = einsum(q, k -> [batch, length, one])
  e = exp(s - stop_gradient(max(s, over = one)))
  y = einsum(e, v -> [batch, length, d_v]) / sum(e, over = one)""",
    ),
    "two dimensions of keys": (
        "q: [batch, length, d_k], k: [batch, heads, memory, d_k], v: [batch, heads, memory, d_v]",
        """s = einsum(q, k -> [batch, length, heads, memory])
  e = exp(s - stop_gradient(max(s, over = [heads, memory])))
  y = einsum(e, v -> [batch, length, d_v]) / sum(e, over = [heads, memory])""",
    ),
}  # fmt: skip


def source_of(form: str) -> str:
    inputs, statements = FORMS[form]
    return f"{HEAD}\nmodel net({inputs}) {{\n  {statements}\n  return y\n}}\n"


def program_of(form: str) -> Program:
    (program,) = load(source_of(form)).programs
    return program


def count(program: Program) -> int:
    return sum(has_trait(eqn, "attention") for f in program.functions for eqn in walk(f.body))


def gradients(program: Program) -> dict[str, np.ndarray]:
    differentiated = run(program, (Differentiate("gradients"),))
    function = differentiated.function("gradients")
    return interpret(function, differentiated, generic_data(program.function("forward"), 0))


@pytest.mark.parametrize("form", FORMS)
def test_the_op_computes_what_separate_ops_compute(form: str) -> None:
    plain = everything_in(program_of(form), "f64")
    fused = run(plain, (FuseAttention(least=1),))
    assert count(fused) == 1
    assert len(fused.function("forward").body) < len(plain.function("forward").body)
    expected, found = gradients(plain), gradients(fused)
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("form", some(FORMS, 9))
def test_layouts_are_exact(form: str) -> None:
    module = load(source_of(form))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    reference = ExactReference(fused)
    assert reference.wrong_gradients() == ()
    for layout in module.layouts:
        found = reference.compare(lower(fused, layout.mesh, layout.layout, "gradients"))
        assert found.ok, f"{layout.name}: {found.wrong}"


@pytest.mark.parametrize(
    ("form", "layout"),
    [
        ("biases", "by_both"),
        ("segments", "by_length"),
        ("a soft cap", "by_rest"),
        ("dropout", "by_both"),
        ("dropout under a flag", "by_rest"),
    ],
)
def test_jax_computes_gradients_in_blocks(form: str, layout: str) -> None:
    """Blocks have few rows here; in modules they have many."""
    module = load(source_of(form))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    declared = chosen_layout(module, layout)
    placed = lower(fused, declared.mesh, declared.layout, "gradients")
    text = jax_backend.generate(placed)
    small = text.replace("most=2**19, least=64", "most=70, least=1")
    assert small != text
    arrays = generic_data(fused.function("forward"), 0)
    found = call(jax_runtime.load(small), placed.function("gradients"), arrays)
    for name, wanted in gradients(fused).items():
        np.testing.assert_allclose(found[name], wanted, rtol=2e-4, atol=2e-5, err_msg=name)


def test_no_dropout_is_left_outside_of_training() -> None:
    """Then kernels compute the attention."""
    module = load(with_long_rows("dropout under a flag"))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    placed = lower(fused, module.layouts[0].mesh, Layout("nothing"), "forward+gradients")
    roles = [
        [eqn.attrs["roles"] for eqn in walk(f.body) if has_trait(eqn, "attention")] for f in placed.functions
    ]
    assert roles == [[""], ["keep"]]
    text = jax_backend.generate(placed)
    assert "random_uniform(" not in text[: text.index("def gradients")]


@pytest.mark.parametrize("form", ["biases", "segments", "groups", "a soft cap", "dropout"])
def test_the_matrix_unit_sums_exponentials(form: str) -> None:
    """The module is told that it runs on TPUs."""
    module = load(re.sub(r": \[", ": bf16[", source_of(form)))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    placed = lower(fused, module.layouts[0].mesh, Layout("nothing"), "forward")
    text = jax_backend.generate(placed)
    on_tpu = text.replace('mesh_platform() != "tpu"', "False").replace(
        "kernels.get(kernel_platform(), plain)", "plain"
    )
    assert on_tpu != text
    arrays = generic_data(fused.function("forward"), 0)
    found, wanted = (
        call(jax_runtime.load(each), placed.function("forward"), arrays) for each in (on_tpu, text)
    )
    for name in wanted:
        np.testing.assert_allclose(
            np.float32(found[name]), np.float32(wanted[name]), rtol=0.02, atol=0.02, err_msg=name
        )


def with_long_rows(form: str) -> str:
    """Return a form with sizes that the kernels take."""
    source = re.sub(r"dim (length|memory) = \d+", r"dim \1 = 256", source_of(form))
    return re.sub(r"dim (d_k|d_v) = \d+", r"dim \1 = 64", source)


KERNELS = ("segments", "plain", "causal", "window", "a soft cap", "groups", "one head of keys")
"""Forms that a kernel computes on TPUs. `make test` runs the first, `make examples` all."""


@pytest.mark.parametrize("form", KERNELS if os.environ.get("EVERY_LAYOUT") == "1" else KERNELS[:1])
def test_kernels_compute_what_the_op_computes(form: str) -> None:
    """Pallas interprets the kernels. It cannot under a mesh whose axes split something."""
    module = load(with_long_rows(form))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    placed = lower(fused, module.layouts[0].mesh, Layout("nothing"), "gradients")
    text = jax_backend.generate(placed)
    chooses = "kernels.get(kernel_platform(), plain)"
    assert text.count("tpu=lambda") == 4 and chooses in text
    interpreted = text.replace(chooses, 'kernels["tpu"]').replace("interpret=False", "interpret=True")
    arrays = generic_data(fused.function("forward"), 0)
    arrays |= {"ids": np.arange(512, dtype=np.int32).reshape(2, 256) // 100} if "ids" in arrays else {}
    differentiated = run(fused, (Differentiate("gradients"),))
    expected = interpret(differentiated.function("gradients"), differentiated, arrays)
    found = call(jax_runtime.load(interpreted), placed.function("gradients"), arrays)
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        ("TPU v2", "plain"),
        ("TPU v3", "plain"),
        ("TPU v4", "kernel"),
        ("TPU v5 lite", "kernel"),
        ("cpu", "plain"),
    ],
)
def test_kernels_are_for_tpus_from_v4_on(kind: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    module = load(with_long_rows("causal"))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    emitted = jax_module(lower(fused, module.layouts[0].mesh, Layout("nothing"), "gradients"))
    device = SimpleNamespace(platform=kind.split()[0].lower(), device_kind=kind)
    monkeypatch.setattr(jax.sharding, "get_abstract_mesh", lambda: SimpleNamespace(abstract_device=device))
    assert emitted.on_device(lambda: "plain", tpu=lambda: "kernel") == chosen


@pytest.mark.parametrize(
    ("dtype", "d_k", "block"), [("f32", 128, 512), ("bf16", 128, 1024), ("f32", 1024, None)]
)
def test_blocks_fit_into_vmem(dtype: str, d_k: int, block: int | None) -> None:
    source = re.sub(r"dim (length|memory) = \d+", r"dim \1 = 2048", source_of("causal"))
    module = load(re.sub(r"dim (d_k|d_v) = \d+", rf"dim \1 = {d_k}", source))
    fused = everything_in(run(module.programs[0], (FuseAttention(least=1),)), dtype)
    text = jax_backend.generate(lower(fused, module.layouts[0].mesh, module.layouts[0].layout, "gradients"))
    assert {int(size) for size in re.findall(r"block=(\d+)", text)} == ({block} if block else set())


@pytest.mark.parametrize("form", ["biases", "a mask", "two sequences", "one query", "two dimensions of keys"])
def test_no_kernel_takes_what_kernels_do_not_compute(form: str) -> None:
    module = load(with_long_rows(form))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    text = jax_backend.generate(lower(fused, module.layouts[0].mesh, Layout("nothing"), "gradients"))
    assert "tpu=lambda" not in text


def test_no_kernel_takes_keys_that_are_split() -> None:
    module = load(with_long_rows("causal"))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    declared = chosen_layout(module, "by_memory")
    assert "tpu=lambda" not in jax_backend.generate(lower(fused, declared.mesh, declared.layout, "gradients"))


def test_no_kernel_takes_a_mask_that_hides_nothing() -> None:
    """Beside a number of 0, hidden keys have weight, and kernels give them none."""
    module = load(with_long_rows("causal").replace("-30000.0", "0.0"))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    text = jax_backend.generate(lower(fused, module.layouts[0].mesh, Layout("nothing"), "gradients"))
    assert "attention(" in text and "tpu=lambda" not in text


def test_a_kernel_takes_a_part_of_the_rows() -> None:
    """Each half of the rows alone gives its half of the results, and its terms of the gradients of keys and values."""
    jax = pytest.importorskip("jax")
    module = load(with_long_rows("window"))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    declared = chosen_layout(module, "by_length")
    text = jax_backend.generate(lower(fused, declared.mesh, declared.layout, "gradients"))
    assert text.count("shards=2, first=") == 4
    emitted = jax_runtime.load(text.replace("interpret=False", "interpret=True"))
    arrays = generic_data(fused.function("forward"), 0)
    q, k, v = (arrays[name] for name in "qkv")
    differentiated = run(fused, (Differentiate("gradients"),))
    expected = interpret(differentiated.function("gradients"), differentiated, arrays)

    @jax.jit
    def half(number, rows):  # type: ignore[no-untyped-def]
        form = "bhld,bhmd,bhmv->bhlm->bhlv"
        options = {"row": "l", "block": 128, "varying": (), "dtype": "float32", "band": ("l", "m", 0, 2)}
        options |= {"shards": 2, "first": {"l": 128 * number}}
        y, largest, total = emitted.splash_attention(form, rows, k, v, **options)
        operands = (rows, k, v, largest, total, 0 * y + 1, y.sum(-1))
        dq = emitted.splash_attention_dq(form, *operands, **options)
        return y, dq, *emitted.splash_attention_dkv(form, *operands, **options)

    with jax.set_mesh(jax.make_mesh((1,), ("x",))):
        parts = [half(number, q[:, :, 128 * number : 128 * (number + 1)]) for number in range(2)]
    y, dq = (np.concatenate([part[i] for part in parts], axis=2) for i in range(2))
    dk, dv = (sum(np.asarray(part[i]) for part in parts) for i in (2, 3))
    for name, found in {"y": y, "d_q": dq, "d_k": dk, "d_v": dv}.items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_jax_differentiates_an_emitted_forward() -> None:
    jax = pytest.importorskip("jax")
    module = load(with_long_rows("causal"))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    placed = lower(fused, module.layouts[0].mesh, module.layouts[0].layout, "gradients")
    assert "differentiable_on_device(lambda" in jax_backend.generate(placed)
    emitted = jax_module(placed)
    inputs = emitted.shard(generic_data(fused.function("forward"), 0), emitted.INPUTS)
    own = emitted.gradients({}, inputs)
    found = jax.grad(lambda given: emitted.forward({}, given)["y"].sum())(inputs)
    for name in inputs:
        np.testing.assert_allclose(found[name], own[f"d_{name}"], rtol=1e-3, atol=1e-3, err_msg=name)


def test_a_loop_with_checkpoint_keeps_the_result() -> None:
    source = (
        HEAD
        + f"""
dim layers = 2
model net(x: [batch, heads, length, d_k], k: [batch, heads, memory, d_k]) {{
  repeat layers checkpoint {{
    param w: [d_k] = normal()
    s = where({CAUSAL}, einsum(x * w, k -> [batch, heads, length, memory]), -30000.0)
    e = exp(s - stop_gradient(max(s, over = memory)))
    x = x + einsum(e, k -> [batch, heads, length, d_k]) / sum(e, over = memory)
  }}
  return x
}}
"""
    )
    plain = everything_in(load(source).programs[0], "f64")
    fused = run(plain, (FuseAttention(least=1),))
    differentiated = run(fused, (Differentiate("gradients"),)).function("gradients")
    forward, backward = (eqn for eqn in differentiated.body if eqn.regions)
    ops = [[eqn.op for eqn in walk(each.regions[0].body)] for each in (forward, backward)]
    assert ops[0].count("attention") == 1
    assert "attention" not in ops[1] and {"attention_dq", "attention_dkv"} <= {*ops[1]}
    for name, wanted in gradients(plain).items():
        np.testing.assert_allclose(gradients(fused)[name], wanted, rtol=1e-9, atol=1e-9, err_msg=name)


def test_half_precision_is_rounded_once() -> None:
    """The weights are f32, so the result of bf16 operands is that of f32 ones, rounded."""
    module = load(source_of("causal"))
    fused = run(module.programs[0], (FuseAttention(least=1),))
    narrow = everything_in(fused, "bf16")
    arrays = {name: x.astype("float32") for name, x in generic_data(narrow.function("forward"), 0).items()}
    expected = interpret(fused.function("forward"), fused, arrays)["y"]
    for layout in module.layouts:
        placed = lower(narrow, layout.mesh, layout.layout, "gradients")
        found = call(numpy_module(placed), placed.function("forward"), arrays)["y"]
        np.testing.assert_allclose(
            found.astype("float32"), expected, rtol=2**-6, atol=2**-6, err_msg=layout.name
        )


SEPARATE = {
    f"{DROPPED}\n  p = where(keep, w * w, 0.0) {MEAN}": "the weights are changed",
    "e = exp(s)\n  y = einsum(e, v -> [batch, heads, length, d_v]) / sum(e, over = memory)": "its weights are not computed",
    "e = exp(s - log(sum(exp(s), over = memory)))\n  y = einsum(e, v -> [batch, heads, length, d_v])": (
        "its weights are not computed"
    ),
    f"{SOFTMAX} z = sum(e)": "the weights are used otherwise",
    f"{SOFTMAX} z = sum(s)": "the logits are used otherwise",
    f"z = 2.0 * sum(q)\n  t = relu(s)\n  s = 0.5 * t {SOFTMAX}": "",
    f"z = s * 0.5\n  s = einsum(q, k -> [batch, heads, length, memory]) * z {SOFTMAX}": "its logits come from two dots",
}
"""Statements behind a dot, and the start of the reason; an empty text where the softmax is not one of a dot's results."""


@pytest.mark.parametrize("statements", SEPARATE)
def test_other_softmaxes_stay_separate_ops(statements: str) -> None:
    returned = "y, z" if "z =" in statements else "y"
    (program,) = load(f"{HEAD}\nmodel net({Q}) {{\n  {S}\n  {statements}\n  return {returned}\n}}\n").programs
    assert count(run(program, (FuseAttention(least=1),))) == 0
    found = [reason.text for reason in reasons(program, least=1)]
    assert len(found) == bool(SEPARATE[statements])
    assert all(text.startswith(SEPARATE[statements]) for text in found)


def test_short_softmaxes_stay_separate_ops() -> None:
    program = program_of("causal")
    assert count(run(program, (FuseAttention(),))) == 0
    assert reasons(program) == []
