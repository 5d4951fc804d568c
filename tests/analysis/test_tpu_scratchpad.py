"""Kernels of programs that lie in the scratchpad of a TPU, as its compiler makes them."""

import attrs
import pytest

from mtfc.compiler.cost.device_models import fusion_of_program
from mtfc.compiler.cost.effects.roofline import work
from mtfc.compiler.cost.hardware import Device, Rate, Scratchpad
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
"""A device on which only the starts of kernels take time."""
SLOW = attrs.evolve(
    FREE, bandwidth=Rate.constant(1.0), overhead=0.0, scratchpad=attrs.evolve(OWN, latency=0.0)
)
"""A device on which only bytes take time, one second each."""

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
    """Return the number of kernels without dots, and of those with dots."""
    seconds = sum(each.seconds for each in work(found, ONE_DEVICE, FREE))
    dots, rest = divmod(seconds + KERNEL / 2, LATENCY)
    return int(rest / KERNEL), int(dots)


def seconds_of(found: Function, op: str, **rates: float) -> list[float]:
    """Return the seconds of all equations with an op, at these rates of the scratchpad."""
    device = attrs.evolve(SLOW, scratchpad=Scratchpad(1e9, **rates))
    done = zip(found.body, work(found, ONE_DEVICE, device), strict=True)
    return [each.seconds for eqn, each in done if eqn.op == op]


KERNELS: dict[str, list[tuple[list[str], str, tuple[str, ...], tuple[int, int]]]] = {
    "elementwise equations and their reductions belong to the kernel of a dot; alone, they are kernels": [
        ([PRODUCT, "z = relu(y + 1)", "s = sum(z)"], "z, s", FACTORS, (0, 1)),
        (["z = relu(y + 1)", "s = sum(z)"], "z, s", ("y: [batch, hidden]",), (2, 0)),
    ],
    "an equation after a dot with other readers is a kernel, and a reduction still belongs to the dot": [
        ([PRODUCT, "z = relu(y)"], "y, z", FACTORS, (1, 1)),
        ([PRODUCT, "z = sum(y)"], "y, z", FACTORS, (0, 1)),
    ],
    "in a softmax, the kernel of the dot computes the maximum, and the next kernel the sum": [
        ([PRODUCT, "z = sum(exp(y - max(y, over = hidden)), over = hidden)"], "z", FACTORS, (1, 1))
    ],
    "any number of equations may follow a dot": [([PRODUCT, *["y = tanh(y)"] * 1500], "y", FACTORS, (0, 1))],
    "small operands of larger arrays are kernels, but for arguments and scalars": [
        (["y = x * exp(sum(x, over = io))"], "y", FACTORS[:1], (3, 0)),
        (["y = x * exp(z)"], "y", (*FACTORS[:1], "z: [batch]"), (1, 0)),
        (["y = x * exp(sum(x))"], "y", FACTORS[:1], (2, 0)),
    ],
    "reductions of arrays with the same dimensions are one kernel, unless one needs the other": [
        (["a = sum(x * x, over = io)", "b = max(x, over = batch)"], "a, b", FACTORS[:1], (1, 0)),
        (["a = max(x)", "b = sum(x - a, over = io)"], "a, b", FACTORS[:1], (2, 0)),
    ],
}
"""Rule -> statements, results, inputs, and the numbers of kernels without and with dots."""


@pytest.mark.parametrize("rule", KERNELS)
def test_kernels(rule: str) -> None:
    for statements, given, inputs, expected in KERNELS[rule]:
        assert kernels(model(statements, given, *inputs)) == expected, statements


def test_dots_compute_their_elementwise_operands() -> None:
    """Each dot computes the operands that it needs."""
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


def test_elementwise_kernels_have_their_own_rates() -> None:
    found = model(["a = sum(x, over = io)", "b = relu(x)"], "a, b", "x: [batch, io]")
    assert seconds_of(found, "relu") == [2 * ARRAY]
    assert seconds_of(found, "relu", reads=4.0, writes=2.0) == [ARRAY / 4 + ARRAY / 2]


def test_a_dot_with_a_rounded_result_waits_for_memory() -> None:
    """Dots wait only if elementwise kernels read no faster than from memory, and if only dots read the result."""
    first = "z = einsum(x, v -> [batch, hidden])"
    uses = ["h = relu(y)", "a = einsum(h, v -> [batch, io])", "b = einsum(h, x -> [hidden, io])"]
    slower, faster = (
        attrs.evolve(FREE, overhead=3 * LATENCY, scratchpad=attrs.evolve(OWN, reads=reads))
        for reads in (None, 1e31)
    )
    for given, device, waits in (("a, b", slower, 3), ("a, b", faster, 1), ("a, b, h", slower, 1)):
        found = model([first, PRODUCT, *uses], f"{given}, z", *FACTORS, "v: [hidden, io]")
        fusion = fusion_of_program(found, ONE_DEVICE, device)
        dots = [eqn for eqn in found.body if eqn.op == "einsum"]
        assert fusion.latency(dots[1]) == pytest.approx(waits * LATENCY)


def test_an_update_belongs_to_the_kernel_of_its_gradient_unless_the_gradient_is_sent() -> None:
    module = load(TRAINED)
    (program,), (split,) = module.programs, module.layouts
    for mesh, layout, expected in ((ONE_DEVICE, UNDISTRIBUTED, 0.0), (split.mesh, split.layout, KERNEL)):
        step = lower(program, mesh, layout).function("step")
        fusion = fusion_of_program(step, mesh, FREE)
        assert sum(fusion.latency(eqn) for eqn in step.body if eqn.op == "sub") == expected


def test_the_first_dot_waits_for_memory() -> None:
    found = model([PRODUCT, "z = einsum(y, v -> [batch, io])"], "z", *FACTORS, "v: [hidden, io]")
    slower = attrs.evolve(FREE, overhead=3 * LATENCY)
    waits = [fusion_of_program(found, ONE_DEVICE, slower).latency(eqn) for eqn in found.body]
    assert waits == [3 * LATENCY, LATENCY]


def test_larger_programs_and_programs_with_loops_lie_in_memory() -> None:
    found = model(["y = relu(x)"], "y", "x: [batch, io]")
    assert isinstance(fusion_of_program(found, ONE_DEVICE, FREE), ScratchpadFusion)
    small = attrs.evolve(FREE, scratchpad=Scratchpad(ARRAY))
    assert not isinstance(fusion_of_program(found, ONE_DEVICE, small), ScratchpadFusion)
    loop = model(["h = x", "repeat hidden {", "h = tanh(h)", "}"], "h", "x: [batch]")
    assert not isinstance(fusion_of_program(loop, ONE_DEVICE, FREE), ScratchpadFusion)
