"""Attention by cuDNN on GPUs: which attention it takes, what is lowered for CUDA, and its numbers by an emulated cuDNN."""

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.analysis.attention_forms import refusals
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Layout
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.fuse_attention import FuseAttention
from mtfc.compiler.passes.mixed_precision import everything_in
from mtfc.compiler.passes.pipelines import lower, run
from tests.backends.emulated_cudnn import emulated as emulated
from tests.harness import call, chosen_layout, generic_data, jax_module, load
from tests.sampling import some
from tests.test_attention import CAUSAL, FORMS, HEAD, SOFTMAX, WEIGHTS, Q, S

GROUPED = (
    "q: [batch, groups, heads, length, d_k], k: [batch, groups, memory, d_k], v: [batch, groups, memory, d_v]"
)
GROUPED_SOFTMAX = """
  e = exp(s - stop_gradient(max(s, over = memory)))
  y = einsum(e, v -> [batch, groups, heads, length, d_v]) / sum(e, over = memory)
"""

TAKEN = {
    **{
        name: FORMS[name]
        for name in ("plain", "scaled", "causal", "window", "groups", "one head of keys")
    },
    "a bias": (
        f"{Q}, b: [heads, length, memory]",
        f"s = where({CAUSAL}, b + einsum(q, k -> [batch, heads, length, memory]), -30000.0) {SOFTMAX}",
    ),
    "a bias for all heads": (f"{Q}, b: [memory, length]", f"{S} + b {WEIGHTS}"),
    "a bias of each example": (f"{Q}, b: [batch, heads, length, memory]", f"{S} + b {WEIGHTS}"),
    "a bias of groups": (
        f"{GROUPED}, b: [groups, heads, length, memory]",
        f"s = einsum(q, k -> [batch, groups, heads, length, memory]) + b {GROUPED_SOFTMAX}",
    ),
}  # fmt: skip
"""Forms that cuDNN computes."""


def fused_of(forms: Any, form: str, dtype: str = "bf16", change: str = "") -> tuple[Any, Program]:
    """Return a module of a form, with heads of 8 elements, and its program with attention as one op.

    change: a text of the source, an arrow, and the text that takes its place.
    """
    inputs, statements = forms[form]
    head = re.sub(r"dim (d_k|d_v) = \d+", r"dim \1 = 8", HEAD)
    source = f"{head}\nmodel net({inputs}) {{\n  {statements}\n  return y\n}}\n"
    before, _, after = change.partition(" -> ")
    assert before in source
    module = load(source.replace(before, after) if change else source)
    return module, everything_in(run(module.programs[0], (FuseAttention(least=1),)), dtype)


def expected_gradients(program: Program, arrays: Any) -> Any:
    """Return what separate ops compute in 64 bits."""
    wide = everything_in(program, "f64")
    differentiated = run(wide, (Differentiate("gradients"),))
    given = {name: x.astype("float64") if x.dtype.kind != "i" else x for name, x in arrays.items()}
    return interpret(differentiated.function("gradients"), differentiated, given)


REFUSED = {
    "a query that sees no key": "a query may see no key",
    "segments": "it has several biases, or a mask other than of positions",
    "two sequences": "it has several biases, or a mask other than of positions",
    "a mask": "it has several biases, or a mask other than of positions",
    "biases": "it has several biases, or a mask other than of positions",
    "a bias per head": "its bias has not the queries' bf16 for each pair of a query and a key",
    "a soft cap": "it has a soft cap",
    "keys shared by a batch": "its keys have a dimension that its queries lack",
    "one query": "there is one query for the keys",
    "one key": "a device has an odd number of queries or keys",
    "two dimensions of keys": "its keys or the elements of a head have several dimensions",
}
"""Form -> why cuDNN does not compute it."""

SPLIT = ("by_length", "by_memory", "by_both", "by_rest", "by_depth")
"""Layouts under which cuDNN does not take all forms."""


@pytest.mark.parametrize("form", some(TAKEN, 4))
@pytest.mark.usefixtures("emulated")
def test_cudnn_computes_what_the_op_computes(form: str) -> None:
    module, program = fused_of(TAKEN, form, "f16")
    arrays = generic_data(program.function("forward"), 0)
    expected = expected_gradients(program, arrays)
    for declared in module.layouts:
        placed = lower(program, declared.mesh, declared.layout, "gradients")
        text = jax_backend.generate(placed)
        calls = text.count("gpu=lambda")
        assert calls or declared.name in SPLIT
        changed = text.replace("kernel_platform(), plain", '"gpu", plain')
        found = call(jax_runtime.load(changed), placed.function("gradients"), arrays)
        for name, wanted in expected.items():
            close = {"rtol": 0, "atol": 0.004 * np.abs(wanted).max()}
            np.testing.assert_allclose(
                np.float64(found[name]), wanted, **close, err_msg=f"{declared.name}: {name}"
            )


@pytest.mark.parametrize("form", REFUSED)
def test_cudnn_takes_no_other_attention(form: str) -> None:
    module, program = fused_of(FORMS, form)
    mesh = module.layouts[0].mesh
    placed = lower(program, mesh, Layout("nothing"), "gradients")
    found = refusals(placed.function("gradients"), mesh)
    assert {text for _, device, text in found if device == "GPU"} == {REFUSED[form]}
    assert "gpu=lambda" not in jax_backend.generate(placed)


CHANGED = {
    ("plain", "f32", ""): "its numbers are f32",
    ("causal", "bf16", "-30000.0 -> 0.0"): "the number of its mask leaves weight to hidden keys",
    ("causal", "bf16", "dim d_v = 8 -> dim d_v = 16"): "a head on a device has no multiple of 8",
    ("causal", "bf16", "dim memory = 8 -> dim memory = 16"): "its mask is neither causal nor a window",
    ("window", "bf16", "far >= 0 -> far >= -1"): "its mask is neither causal nor a window",
}
"""Form, dtype and a change of the source -> the start of the reason."""


@pytest.mark.parametrize(("form", "dtype", "change"), CHANGED)
def test_cudnn_takes_no_changed_attention(form: str, dtype: str, change: str) -> None:
    module, program = fused_of(FORMS, form, dtype, change)
    mesh = module.layouts[0].mesh
    placed = lower(program, mesh, Layout("nothing"), "gradients")
    found = {text for _, device, text in refusals(placed.function("gradients"), mesh) if device == "GPU"}
    assert len(found) == 1 and next(iter(found)).startswith(CHANGED[form, dtype, change])


def test_a_layout_that_splits_masked_queries_has_no_kernel() -> None:
    module, program = fused_of(FORMS, "causal")
    declared = chosen_layout(module, "by_length")
    placed = lower(program, declared.mesh, declared.layout, "gradients")
    found = {text for _, _, text in refusals(placed.function("gradients"), declared.mesh)}
    assert "the layout splits the queries of its mask" in found


@pytest.mark.parametrize(
    ("form", "forward", "backward"),
    [
        ("causal", "fmhaSoftmax", ["fmhaSoftmaxBackward"] * 2),
        ("a bias", "fmhaScaleBiasSoftmax", ["fmhaScaleBiasSoftmaxBackward"] * 3),
    ],
)
def test_calls_of_cudnn_are_lowered_for_cuda(
    form: str, forward: str, backward: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX lowers for CUDA without a GPU. Attention is computed once, and XLA makes one of equal calls."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    sizes = "dim length = 8; dim memory = 8 -> dim length = 64; dim memory = 64"
    module, program = fused_of(TAKEN, form, "bf16", sizes)
    declared = chosen_layout(module, "by_batch")
    placed = lower(program, declared.mesh, declared.layout, "gradients")
    text = jax_backend.generate(placed)
    emitted = jax_runtime.load(text.replace("kernel_platform(), plain", '"gpu", plain'))
    arrays = generic_data(placed.function("gradients"), 0)
    with jax.set_mesh(emitted.make_mesh()):
        traced = jax.jit(emitted.gradients).trace({}, emitted.shard(arrays, emitted.INPUTS))
    lowered = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert sorted(re.findall(r"@__cudnn\$(\w+)", lowered)) == sorted([forward, *backward])
    stored = {*re.findall(r"tensor<(?:\d+x)+64x64xf32>", lowered)}
    assert stored == ({"tensor<4x64x64xf32>"} if form == "a bias" else set())  # the bias and its gradient


def test_modules_without_gpus_take_the_plain_form() -> None:
    module, program = fused_of(TAKEN, "causal")
    emitted = jax_module(lower(program, module.layouts[0].mesh, Layout("nothing"), "gradients"))
    with jax.set_mesh(emitted.make_mesh()):
        assert emitted.kernel_platform() == "cpu"
        assert emitted.on_device(lambda: "plain", tpu=lambda: "splash", gpu=lambda: "cudnn") == "plain"


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [("7.0", "plain"), ("8.0", "cudnn"), ("9.0", "cudnn"), ("10.3", "cudnn"), ("gfx942", "plain")],
)
def test_gpus_need_a_compute_capability(
    capability: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, program = fused_of(TAKEN, "causal")
    emitted = jax_module(lower(program, module.layouts[0].mesh, Layout("nothing"), "gradients"))
    mesh = SimpleNamespace(abstract_device=SimpleNamespace(platform="gpu", device_kind="a GPU"))
    monkeypatch.setattr(jax.sharding, "get_abstract_mesh", lambda: mesh)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability=capability)])
    assert emitted.on_device(lambda: "plain", tpu=lambda: "splash", gpu=lambda: "cudnn") == chosen


@pytest.mark.parametrize("bias", [None, (1, 4), (2, 4), (1, 1)])
@pytest.mark.parametrize("window", [None, (5, 0), "causal"])
@pytest.mark.usefixtures("emulated")
def test_the_emulation_is_attention_of_jax(bias: Any, window: Any) -> None:
    """The reference is `jax.nn.dot_product_attention` by XLA, which stores the logits."""
    random = np.random.default_rng(0)
    shapes = [(2, 16, 4, 8), (2, 16, 2, 8), (2, 16, 2, 8), *([] if bias is None else [(*bias, 16, 16)])]
    arrays = [jnp.asarray(random.normal(size=shape), jnp.float16) for shape in shapes]
    options = {"is_causal": window is not None, "scale": 0.5}
    options["local_window_size"] = None if window == "causal" else window

    def attention(kind: str, *arrays: Any) -> Any:
        return jax.nn.dot_product_attention(*arrays, implementation=kind, **options)

    found, expected = (jax.vjp(partial(attention, kind), *arrays) for kind in ("cudnn", "xla"))
    np.testing.assert_allclose(*(np.float32(y) for y, _ in (found, expected)), atol=0.01)
    for a, b in zip(*(pull_back(found[0]) for _, pull_back in (found, expected)), strict=True):
        np.testing.assert_allclose(np.float32(a), np.float32(b), atol=0.02)


@pytest.mark.usefixtures("emulated")
def test_a_cotangent_of_zero_has_gradients_of_zero() -> None:
    module, program = fused_of(TAKEN, "causal", "f16")
    placed = lower(program, module.layouts[0].mesh, Layout("nothing"), "gradients")
    emitted = jax_runtime.load(jax_backend.generate(placed))
    delta = jnp.asarray([[0.0], [3.0], [0.0]])
    given = jnp.asarray([[0.0] * 4, [1e-6, 0.5, -2.0, 0.0], [1e-7, 0.0, 0.0, 0.0]], jnp.float16)
    found = emitted.cudnn_result(given, delta)
    np.testing.assert_allclose(jnp.sum(jnp.float32(found * given), -1), delta[:, 0], rtol=2e-3)
