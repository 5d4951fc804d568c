"""cuDNN's attention on CPUs: what its custom calls compute, as `jax.nn.dot_product_attention` hands them operands.

A test that asks for `emulated` runs all of a generated module but the kernel itself. `tests/backends/test_attention_cudnn.py`
compares the emulation with the implementation for XLA.
"""

from typing import Any

import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.interpreters import mlir

FORWARD, BACKWARD = cudnn._dot_product_attention_fwd_p, cudnn._dot_product_attention_bwd_p


def logits(q: Any, k: Any, bias: Any, variadic_args: Any, mask_type: Any, scale: float, window: Any) -> Any:
    """Return the logits [batch, heads of keys, group, rows, keys], minus infinity where a mask hides them."""
    batch, rows, heads, depth = q.shape
    grouped = jnp.float32(q).reshape(batch, rows, k.shape[2], -1, depth)
    found = jnp.einsum("btkgh,bskh->bkgts", grouped, jnp.float32(k)) * scale
    if variadic_args[0]:
        whole = jnp.broadcast_to(jnp.float32(bias), (batch, heads, *bias.shape[2:]))
        found += whole.reshape(found.shape)
    if mask_type == cudnn.MaskType.CAUSAL:
        ahead = jnp.arange(rows)[:, None] - jnp.arange(k.shape[1])
        found = jnp.where((ahead >= 0) & (ahead < (window or rows)), found, -jnp.inf)
    return found


def forward(q: Any, k: Any, v: Any, bias: Any, *others: Any, is_training: bool, **options: Any) -> list[Any]:
    """Return the attention and, in training, the logarithm of the sums of the exponentials [batch, heads, rows]."""
    found = logits(q, k, bias, **wanted(options))
    lse = jnp.log(jnp.sum(jnp.exp(found - found.max(-1, keepdims=True)), -1)) + found.max(-1)
    y = jnp.einsum("bkgts,bskh->btkgh", jnp.exp(found - lse[..., None]), jnp.float32(v)).reshape(q.shape)
    return [y.astype(q.dtype), *([lse.reshape(q.shape[0], q.shape[2], -1)] if is_training else [])]


def backward(q: Any, k: Any, v: Any, bias: Any, *others: Any, **options: Any) -> list[Any]:
    """Return the gradients from the logarithm of the sums, the result and its cotangent, which are the last operands."""
    found = logits(q, k, bias, **wanted(options))
    lse, result, given = others[-3:]
    split = (*q.shape[:2], k.shape[2], -1, q.shape[3])
    given, result = (jnp.float32(x).reshape(split) for x in (given, result))
    weights = jnp.exp(found - lse.reshape(found.shape[:-1])[..., None])
    delta = jnp.einsum("btkgh,btkgh->bkgt", given, result)
    change = weights * (jnp.einsum("btkgh,bskh->bkgts", given, jnp.float32(v)) - delta[..., None])
    dq = jnp.einsum("bkgts,bskh->btkgh", change, jnp.float32(k)) * options["scale"]
    dk = jnp.einsum("bkgts,btkgh->bskh", change, jnp.float32(q).reshape(split)) * options["scale"]
    dv = jnp.einsum("bkgts,btkgh->bskh", weights, given)
    gradients = [dq.reshape(q.shape).astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype)]
    if options["variadic_args"][1]:
        change = change.reshape(q.shape[0], q.shape[2], *change.shape[3:])
        axes = tuple(axis for axis in (0, 1) if bias.shape[axis] == 1)
        gradients.append(change.sum(axes, keepdims=True).astype(bias.dtype))
    return gradients


def wanted(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the logits; all others are those of plain attention."""
    assert options["layout"] == cudnn.AttentionLayout.BTNH.value and options["dropout_rate"] == 0
    assert options["mask_type"] in (cudnn.MaskType.NO_MASK, cudnn.MaskType.CAUSAL)
    found = {name: options[name] for name in ("variadic_args", "mask_type", "scale")}
    return {**found, "window": options["sliding_window_length"]}


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cuDNN's attention run on CPUs."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    for primitive, function in ((FORWARD, forward), (BACKWARD, backward)):
        lowering = mlir.lower_fun(function, multiple_results=True)
        mlir.register_lowering(primitive, lowering, platform="cpu")
