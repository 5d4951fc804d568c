"""Kernels of programs that lie in the memory of a TPU's own, as its compiler was seen to make them."""

from __future__ import annotations

import attrs
import pytest

from mtfc.compiler.cost.device_models import fusion_of_program
from mtfc.compiler.cost.hardware import Device, Rate, Scratchpad
from mtfc.compiler.cost.roofline import work
from mtfc.compiler.cost.tpu.scratchpad import ScratchpadFusion
from mtfc.compiler.ir.core import Function
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED
from tests.harness import load

N = 1024
ARRAY = 4 * N**2
KERNEL, LATENCY = 1e-3, 1e-1
OWN = Scratchpad(1e9, latency=LATENCY)
FREE = Device(
    {"f32": Rate.constant(1e30)}, 1e9, Rate.constant(1e30), overhead=KERNEL, mxu_size=128, scratchpad=OWN
)
"""Where only kernels count."""
SLOW = attrs.evolve(
    FREE, bandwidth=Rate.constant(1.0), overhead=0.0, scratchpad=attrs.evolve(OWN, latency=0.0)
)
"""Where only what is moved counts, a second a byte."""

PRODUCT = "y = einsum(x, w -> [batch, hidden])"
FACTORS = ("x: [batch, io]", "w: [io, hidden]")
DIMS = "".join(f"dim {name} = {N}\n" for name in ("batch", "io", "hidden"))
TRAINED = f"""\
{DIMS}
mesh line = [all: 2]
layout split on line = {{ batch: all }}
model net(x: [batch, io]) {{
  param w: [io, hidden] = zeros()
  loss = mean(relu(einsum(x, w -> [batch, hidden])))
  return loss
}}
train net {{
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}}
"""


def model(statements: list[str], given: str, *inputs: str) -> Function:
    body = "".join(f"  {each}\n" for each in (*statements, f"return {given}"))
    (program,) = load(f"{DIMS}\nmodel net({', '.join(inputs)}) {{\n{body}}}\n").programs
    return lower(program, ONE_DEVICE, UNDISTRIBUTED).function("forward")


def kernels(found: Function) -> tuple[int, int]:
    """How many there are beside those of products, and how many of these."""
    seconds = sum(each.seconds for each in work(found, ONE_DEVICE, FREE))
    products, rest = divmod(seconds + KERNEL / 2, LATENCY)
    return int(rest / KERNEL), int(products)


def seconds_of(found: Function, op: str, **rates: float) -> list[float]:
    """With these rates in the scratchpad."""
    device = attrs.evolve(SLOW, scratchpad=Scratchpad(1e9, **rates))
    done = zip(found.body, work(found, ONE_DEVICE, device), strict=True)
    return [each.seconds for eqn, each in done if eqn.op == op]


def test_what_follows_a_product_is_part_of_its_kernel() -> None:
    """What is component-wise, and what that is reduced to. Alone, they are kernels."""
    follows = ["z = relu(y + 1)", "s = sum(z)"]
    assert kernels(model([PRODUCT, *follows], "z, s", *FACTORS)) == (0, 1)
    assert kernels(model(follows, "z, s", "y: [batch, hidden]")) == (2, 0)


def test_what_follows_a_product_that_something_else_uses_is_a_kernel() -> None:
    """But for reductions."""
    assert kernels(model([PRODUCT, "z = relu(y)"], "y, z", *FACTORS)) == (1, 1)
    assert kernels(model([PRODUCT, "z = sum(y)"], "y, z", *FACTORS)) == (0, 1)


def test_what_needs_a_reduction_of_a_product_is_no_part_of_its_kernel() -> None:
    """As in a softmax: the largest element is found by the kernel of the product, the sum by the next one."""
    statements = [PRODUCT, "z = sum(exp(y - max(y, over = hidden)), over = hidden)"]
    assert kernels(model(statements, "z", *FACTORS)) == (1, 1)


def test_products_compute_their_operands_themselves() -> None:
    """Each of them."""
    statements = [
        "y = relu(x) * 2",
        "a = einsum(y, w -> [batch, hidden])",
        "b = einsum(y, v -> [batch, hidden])",
    ]
    found = model(statements, "a, b", *FACTORS, "v: [io, hidden]")
    assert kernels(found) == (0, 2)
    assert seconds_of(found, "relu") + seconds_of(found, "mul") == pytest.approx([ARRAY, 0.0])
    assert seconds_of(found, "einsum") == [2 * ARRAY, 2 * ARRAY]
    assert seconds_of(found, "einsum", factors=4.0, results=2.0) == [ARRAY / 4 + ARRAY / 2] * 2


def test_what_is_component_wise_moves_at_rates_of_its_own() -> None:
    found = model(["a = sum(x, over = io)", "b = relu(x)"], "a, b", "x: [batch, io]")
    assert seconds_of(found, "relu") == [2 * ARRAY]
    assert seconds_of(found, "relu", reads=4.0, writes=2.0) == [ARRAY / 4 + ARRAY / 2]


def test_any_number_of_equations_may_follow_a_product() -> None:
    follows = ["y = tanh(y)"] * 1500
    assert kernels(model([PRODUCT, *follows], "y", *FACTORS)) == (0, 1)


def test_what_larger_arrays_are_computed_of_is_a_kernel() -> None:
    """If it was computed, and is no number."""
    x = "x: [batch, io]"
    assert kernels(model(["y = x * exp(sum(x, over = io))"], "y", x)) == (3, 0)
    assert kernels(model(["y = x * exp(z)"], "y", x, "z: [batch]")) == (1, 0)
    assert kernels(model(["y = x * exp(sum(x))"], "y", x)) == (2, 0)


def test_reductions_of_arrays_with_the_same_dimensions_are_one_kernel() -> None:
    """If none needs another."""
    x = "x: [batch, io]"
    assert kernels(model(["a = sum(x * x, over = io)", "b = max(x, over = batch)"], "a, b", x)) == (1, 0)
    assert kernels(model(["a = max(x)", "b = sum(x - a, over = io)"], "a, b", x)) == (2, 0)


def test_a_product_that_is_rounded_waits_for_memory() -> None:
    """Where nothing is read faster than there. What something else uses, too, is not rounded."""
    first = "z = einsum(x, v -> [batch, hidden])"
    uses = ["h = relu(y)", "a = einsum(h, v -> [batch, io])", "b = einsum(h, x -> [hidden, io])"]
    slower, faster = (
        attrs.evolve(FREE, overhead=3 * LATENCY, scratchpad=attrs.evolve(OWN, reads=reads))
        for reads in (None, 1e31)
    )
    for given, device, waits in (("a, b", slower, 3), ("a, b", faster, 1), ("a, b, h", slower, 1)):
        found = model([first, PRODUCT, *uses], f"{given}, z", *FACTORS, "v: [hidden, io]")
        fusion = fusion_of_program(found, ONE_DEVICE, device)
        products = [eqn for eqn in found.body if eqn.op == "einsum"]
        assert fusion.latency(products[1]) == pytest.approx(waits * LATENCY)


def test_an_update_is_part_of_the_kernel_of_the_gradient_unless_that_is_sent() -> None:
    module = load(TRAINED)
    (program,), (split,) = module.programs, module.layouts
    for mesh, layout, expected in ((ONE_DEVICE, UNDISTRIBUTED, 0.0), (split.mesh, split.layout, KERNEL)):
        step = lower(program, mesh, layout).function("step")
        fusion = fusion_of_program(step, mesh, FREE)
        assert sum(fusion.latency(eqn) for eqn in step.body if eqn.op == "sub") == expected


def test_the_first_product_waits_for_memory() -> None:
    found = model([PRODUCT, "z = einsum(y, v -> [batch, io])"], "z", *FACTORS, "v: [hidden, io]")
    slower = attrs.evolve(FREE, overhead=3 * LATENCY)
    waits = [fusion_of_program(found, ONE_DEVICE, slower).latency(eqn) for eqn in found.body]
    assert waits == [3 * LATENCY, LATENCY]


def test_programs_that_are_larger_or_have_loops_lie_in_memory() -> None:
    found = model(["y = relu(x)"], "y", "x: [batch, io]")
    assert isinstance(fusion_of_program(found, ONE_DEVICE, FREE), ScratchpadFusion)
    small = attrs.evolve(FREE, scratchpad=Scratchpad(ARRAY))
    assert not isinstance(fusion_of_program(found, ONE_DEVICE, small), ScratchpadFusion)
    loop = model(["h = x", "repeat hidden {", "h = tanh(h)", "}"], "h", "x: [batch]")
    assert not isinstance(fusion_of_program(loop, ONE_DEVICE, FREE), ScratchpadFusion)
