"""The share of attention that a kernel computes: blocks that a mask hides are left out, on each device and under each layout."""

from random import Random

import numpy as np
import pytest

from mtfc.compiler.analysis.attention_forms import (
    GRADIENT_DOTS,
    computed_share,
    is_attention,
    least_share,
)
from mtfc.compiler.cost.effects.roofline import work
from mtfc.compiler.ir.core import Equation, Function, walk
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import LayoutOnMesh, choose
from mtfc.frontend.hardware_targets import find_hardware

SOURCE = """
dim batch  = 4
dim heads  = 4
dim length = LENGTH
dim memory = length
dim d_k    = 64
mesh grid = [x: 2, y: 2]
layout whole on grid = { allow W601 }
layout by_batch on grid = { batch: (x, y) }
layout by_heads on grid = { heads: x, batch: y }

model m(x: [batch, heads, length, d_k]) {
  param w: [d_k] = ones()
  q = x * w
  k = rename(q, length -> memory)
  s = einsum(q, k -> [batch, heads, length, memory])
  ahead = broadcast(range(length) -> [length, memory]) - range(memory)
  s = where(MASK, s, -1e30)
  e = exp(s - stop_gradient(max(s, over = memory)))
  y = einsum(e, k -> [batch, heads, length, d_k]) / sum(e, over = memory)
  loss = mean(square(y))
  return loss
}

train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
  precision = { params: f32, compute: bf16 }
}
"""

CAUSAL = "ahead >= 0"
MASKS = {
    "causal": (CAUSAL, lambda ahead: ahead >= 0),
    "window": ("ahead >= 0 and ahead <= 300", lambda ahead: (ahead >= 0) & (ahead <= 300)),
    "both sides": ("ahead >= -100 and ahead <= 100", lambda ahead: abs(ahead) <= 100),
    "all": ("ahead >= -127", lambda ahead: ahead >= -127),
}


def attention(mask: str, length: int, layout: str) -> tuple[list[Equation], LayoutOnMesh]:
    """Return the attention of a lowered step, and its gradients."""
    source = SOURCE.replace("MASK", mask).replace("LENGTH", str(length))
    selection = choose(source, "m.mtf", Choice(layout=layout))
    case = selection.case
    assert isinstance(case, LayoutOnMesh)
    step = case.lower(selection.program).function("step")
    return [eqn for eqn in walk(step.body) if is_attention(eqn)], case


def visible(length: int, block: int, counts: object) -> float:
    """Return the share of the blocks with a visible logit, from the whole mask."""
    index = np.arange(length)
    mask = counts(index[:, None] - index)  # type: ignore[operator]
    blocks = mask.reshape(length // block, block, length // block, block)
    return float(blocks.any(axis=(1, 3)).mean())


@pytest.mark.parametrize("length", [1024, 2048, 4096])
@pytest.mark.parametrize("mask", MASKS)
def test_a_kernel_computes_the_blocks_that_a_mask_shows(mask: str, length: int) -> None:
    text, counts = MASKS[mask]
    found, case = attention(text, length, "by_batch")
    assert len(found) == 3
    for eqn in found:
        dots = 1.0 if eqn.op == "attention" else GRADIENT_DOTS
        block = 1024
        assert computed_share(eqn, case.mesh, "tpu") == pytest.approx(visible(length, block, counts))
        share = computed_share(eqn, case.mesh, "gpu")
        if mask in ("both sides", "all"):
            assert share is None, "cuDNN knows no such band"
        else:
            assert share == pytest.approx(dots * visible(length, 128, counts))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", ["whole", "by_batch", "by_heads"])
def test_no_layout_computes_less_than_the_bound(mask: str, layout: str) -> None:
    """`tests/search/test_attention_bounds.py` has layouts that split the rows."""
    length = Random(f"{mask} {layout}").choice([1024, 2048, 4096])
    whole, _ = attention(MASKS[mask][0], length, "whole")
    for platform in ("tpu", "gpu"):
        least = {eqn.op: least_share(eqn, platform) for eqn in whole}
        found, case = attention(MASKS[mask][0], length, layout)
        assert found
        for eqn in found:
            share = computed_share(eqn, case.mesh, platform)
            assert 0 < least[eqn.op] <= (1.0 if share is None else share)


@pytest.mark.parametrize("target", ["h100", "tpu_v5p"])
def test_causal_attention_is_charged_for_half_where_a_kernel_computes_it(target: str) -> None:
    """The V100 has no such kernel."""
    found, case = attention(CAUSAL, 8192, "by_batch")
    function = Function("attention", (), tuple(found), ())
    done = {
        name: sum(each.flops for each in work(function, case.mesh, find_hardware(name, {}).device))
        for name in (target, "v100")
    }
    assert 0.35 < done[target] / done["v100"] < 0.6
