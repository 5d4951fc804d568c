"""What kernels of TPUs move: as their compiler expects of single kernels, and as it was seen to do in networks."""

from __future__ import annotations

import attrs
import pytest

from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device, Hardware, Rate, Scratchpad
from mtfc.compiler.cost.roofline import Work, work
from mtfc.compiler.cost.step_time import step_time
from mtfc.compiler.cost.tpu.tiling import is_dot, stored_bytes
from mtfc.compiler.ir.core import Equation, Function
from mtfc.compiler.ir.loops import region_of
from mtfc.compiler.ir.types import Dim, TensorType
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED
from tests.harness import load

N = 1024
TPU = Device({"f32": Rate.constant(1e15)}, 1e9, Rate.constant(1e11), matrix=128)


def function(text: str, name: str = "forward") -> Function:
    (program,) = load(text).programs
    return lower(program, ONE_DEVICE, UNDISTRIBUTED).function(name)


def works(found: Function) -> list[tuple[Equation, Work]]:
    return list(zip(found.body, work(found, ONE_DEVICE, TPU), strict=True))


@pytest.mark.parametrize(
    ("dtype", "inputs", "formula", "bytes"),
    [
        ("f32", "x", "x * 2", 8),
        ("f32", "xyz", "x + y * z", 16),
        ("f32", "x", "sum(x * x, over = m)", 8),
        ("bf16", "x", "x * 2", 8),
        ("bf16", "xyz", "x + y * z", 12),
        ("bf16", "xy", "where(x > 0, y, 0)", 10),
        ("bf16", "x", "sum(x * x, over = m)", 6),
    ],
)
def test_a_kernel_takes_the_bytes_that_the_compiler_expects(
    dtype: str, inputs: str, formula: str, bytes: int
) -> None:
    """For each element: libtpu 0.0.42, for v2, v3, v5e and v5p alike, within 4 per cent."""
    arguments = ", ".join(f"{name}: {dtype}[n, m]" for name in inputs)
    text = f"dim n = {N}\ndim m = {N}\nmodel net({arguments}) {{\n  out = {formula}\n  return out\n}}\n"
    moved = sum(each.bytes for _, each in works(function(text)))
    assert moved / N**2 == pytest.approx(bytes, rel=0.01)


@pytest.mark.parametrize(
    ("dtype", "rows", "inputs", "formula", "bytes"),
    [
        ("f32", 2, "x", "x * 2", 24),
        ("f32", 2, "xyz", "x + y * z", 32),
        ("f32", 2, "x", "sum(x * x, over = m)", 20),
        ("f32", 4, "x", "x * 2", 16),
        ("f32", 4, "xyz", "x + y * z", 24),
        ("f32", 4, "x", "sum(x * x, over = m)", 12),
        ("bf16", 4, "x", "x * 2", 12),
        ("bf16", 4, "xyz", "x + y * z", 16),
        ("bf16", 4, "x", "sum(x * x, over = m)", 10),
    ],
)
def test_tiles_of_few_rows_take_the_time_of_eight(
    dtype: str, rows: int, inputs: str, formula: str, bytes: int
) -> None:
    """For each element: libtpu 0.0.42, for v2, v3 and v5p alike, within 17 per cent."""
    arguments = ", ".join(f"{name}: {dtype}[n, m]" for name in inputs)
    text = (
        f"dim n = {rows}\ndim m = {N * N}\nmodel net({arguments}) {{\n  out = {formula}\n  return out\n}}\n"
    )
    moved = sum(each.bytes for _, each in works(function(text)))
    assert moved / (rows * N**2) == pytest.approx(bytes, rel=0.01)


def test_a_product_that_is_added_to_something_is_not_stored() -> None:
    text = f"""\
dim n = {N}
dim m = {N}
dim k = {N}
model net(x: [n, k], y: [k, m], z: [n, m]) {{
  out = z + einsum(x, y -> [n, m])
  return out
}}
"""
    moved = {eqn.op: each.bytes for eqn, each in works(function(text))}
    assert moved == {"einsum": 2 * 4 * N**2, "add": 2 * 4 * N**2}


def test_several_sums_of_an_array_hold_it_once() -> None:
    text = f"""\
dim n = {N}
dim m = {N}
model net(x: [n, m]) {{
  a = sum(x, over = n)
  b = sum(x * x, over = n)
  c = max(x, over = n)
  return a, b, c
}}
"""
    found = [each.bytes for eqn, each in works(function(text)) if eqn.op in ("sum", "max", "einsum")]
    size, row = 4 * N**2, 4 * N
    assert max(found) == 2 * size + row
    assert sum(found) <= 4 * size + 3 * row


B, H = N // 2, 2 * N
LOOP = f"""\
dim layers = 4
dim batch = {B}
dim io = {N}
dim hidden = {H}
model net(x: [batch, io]) {{
  repeat layers {{
    param w: [io, hidden] = normal()
    param v: [hidden, io] = normal()
    h = tanh(einsum(x, w -> [batch, hidden]))
    x = einsum(h, v -> [batch, io])
  }}
  loss = sum(x * x)
  return loss
}}
train net {{ minimize loss; optimizer = sgd(learning_rate = 0.1) }}
"""


def test_loops_take_more_than_their_iterations() -> None:
    """The first rounds w and v: reads, holds and writes them. It keeps each h and x, and x is copied, as it is not computed
    there. The second, which runs backwards, clears the gradients of w and v.
    """
    step = function(LOOP, "step")
    loops = [(eqn, each) for eqn, each in works(step) if eqn.regions]
    extra = {bool(eqn.attrs["reverse"]): each.bytes for eqn, each in loops}
    rounded, copied, cleared = 2 * (4 + 4 + 2) * 4 * N * H, 2 * 4 * 4 * B * N, 2 * 4 * 4 * N * H
    assert extra == {False: rounded + copied, True: cleared}
    whole = step_time(step, ONE_DEVICE, Hardware("one", TPU, ()))
    inside = sum(4 * each.seconds for eqn, _ in loops for _, each in works(region_of(eqn)))
    assert whole.seconds == pytest.approx(whole.total.compute)
    assert whole.total.compute == pytest.approx(inside + sum(each.seconds for _, each in works(step)))


def test_a_loop_that_runs_once_is_none() -> None:
    step = function(LOOP.replace("layers = 4", "layers = 1"), "step")
    assert {each.bytes for eqn, each in works(step) if eqn.regions} == {0}


PERCEPTRON = f"""\
dim layers = 4
dim batch = {B}
dim units = {N}
dim made = units
model net(x: [batch, units]) {{
  repeat layers {{
    param w: [units, made] = normal()
    x = {{next}}
  }}
  loss = sum(x * x)
  return loss
}}
"""


@pytest.mark.parametrize(
    ("next", "copies"),
    [
        ("tanh(rename(einsum(x, w -> [batch, made]), made -> units))", 1),
        ("rename(einsum(tanh(x), w -> [batch, made]), made -> units)", 1),
        ("x + rename(einsum(x, w -> [batch, made]), made -> units)", 1),
        (
            "x + rename(einsum(rename(einsum(x, w -> [batch, made]), made -> units), w -> [batch, made]), made -> units)",
            0,
        ),
    ],
)
def test_what_is_carried_is_copied_where_the_product_reads_it_that_takes_its_place(
    next: str, copies: int
) -> None:
    """libtpu 0.0.42, for v3."""
    found = works(function(PERCEPTRON.replace("{next}", next)))
    (bytes,) = (each.bytes for eqn, each in found if eqn.regions)
    assert bytes == (4 + 4 + 2) * 4 * N * N + copies * 4 * (4 + 4) * B * N


def test_what_a_loop_keeps_and_uses_is_written_twice() -> None:
    forward = next(eqn for eqn, _ in works(function(LOOP, "step")) if eqn.regions)
    moved = {eqn.op: each.bytes for eqn, each in works(region_of(forward))}
    read, written = 4 * B * H, 4 * B * H  # a product; what the next product needs, and the gradient
    assert moved["tanh"] == read + 2 * written


TWO_LOOPS = f"""\
dim layers = 4
dim n = {N}
model net(x: [n]) {{
  param w: [n] = normal()
  y = x * w
  repeat layers {{ y = tanh(y) }}
  z = rename(y, n -> m)
  {{more}}
  loss = sum(z)
  return loss
}}
dim m = {N}
train net {{ minimize loss; optimizer = sgd(learning_rate = 0.1) }}
"""


@pytest.mark.parametrize(("more", "cleared"), [("", [0]), ("repeat layers { z = tanh(z) }", [1, 1])])
def test_what_two_loops_fill_alike_is_cleared_before_each(more: str, cleared: list[int]) -> None:
    """They keep what the gradient needs, which is as large under another name."""
    step = function(TWO_LOOPS.replace("{more}", more), "step")
    forward = [each.bytes for eqn, each in works(step) if eqn.regions and not eqn.attrs["reverse"]]
    assert [bytes / (4 * 4 * N) for bytes in forward] == cleared


def test_products_hold_what_they_store_in_16_bits() -> None:
    text = f"""\
dim n = {N}
dim m = {N}
dim k = 64
model net(x: bf16[n, k], y: bf16[k, m]) {{
  out = einsum(x, y -> [n, m])
  return out
}}
"""
    (found,) = (each.bytes for eqn, each in works(function(text)) if eqn.op == "einsum")
    assert found == 2 * 2 * 64 * N + (2 + 4) * N**2


def test_component_wise_results_of_one_kernel_are_held_once() -> None:
    text = f"""\
dim n = {N}
dim m = {N}
model net(x: bf16[n, m]) {{
  y = tanh(x)
  z = y * 2
  return y, z
}}
"""
    assert sum(each.bytes for _, each in works(function(text))) == (2 + 4 + 2 + 2) * N**2


POOLED = """\
dim b = 128
dim h = 32
dim w = 32
dim p = h // 2
dim q = w // 2
dim kh = 3
dim kw = 3
dim ph = 2
dim pw = 2
dim c = 8
dim f = 128
model net(x: [b, h, w, c]) {
  param filter: [kh, kw, c, f] = normal()
  param bias: [f] = normal()
  windows = window(window(x, h -> [h, kh], padding = (1, 1)), w -> [w, kw], padding = (1, 1))
  y = tanh(einsum(windows, filter -> [b, h, w, f]) + bias)
  z = max(window(window(y, h -> [p, ph], stride = 2), w -> [q, pw], stride = 2), over = [ph, pw])
  return z
}
"""


def test_pools_read_what_is_stored_and_inputs_of_convolutions_are_rounded() -> None:
    """The sum is not stored, but what is computed of it, which the pool reads, holds and makes a quarter of."""
    moved = {eqn.op: each.bytes for eqn, each in works(function(POOLED))}
    image, filter, result = 4 * 32 * 32 * 8 * 128, 4 * 9 * 8 * 128, 4 * 128 * 32 * 32 * 128
    assert moved["einsum"] == image + image * 5 // 2 + filter
    assert moved["tanh"] == result
    assert moved["max"] == 2 * result + result // 4


def test_a_convolution_of_few_images_holds_whole_tiles_once_for_all_that_follows_in_its_kernel() -> None:
    """Of two images a tile is a pixel of each, with 128 channels."""
    moved = {eqn.op: each.bytes for eqn, each in works(function(POOLED.replace("dim b = 128", "dim b = 2")))}
    image, filter, result = 4 * 32 * 32 * 2 * 128, 4 * 9 * 8 * 128, 4 * 32 * 32 * 2 * 128
    assert moved["einsum"] == image + image * 3 // 2 + 4 * image + filter + 4 * result
    assert moved["tanh"] == result
    assert moved["max"] == 2 * result + result // 4


def test_tiles_lie_along_channels_and_batch() -> None:
    """f32[32,2,55,55,48]{4,0,1,3,2:T(8,128)}"""
    dims = tuple(Dim(name, size) for name, size in (("b", 32), ("g", 2), ("h", 55), ("w", 55), ("c", 48)))
    image = TensorType("f32", dims)
    assert stored_bytes(image, ONE_DEVICE, TPU, {dims[2], dims[3]}) == 4 * 32 * 2 * 55 * 55 * 128
    assert stored_bytes(image, ONE_DEVICE, TPU) == 4 * 32 * 2 * 55 * 128 * 48


@pytest.mark.parametrize(("groups", "features"), [(2, 48), (2, 128), (1, 96)])
def test_features_of_several_dimensions_become_one_by_copying(groups: int, features: int) -> None:
    text = f"""\
dim b = 32
dim h = 56
dim w = 56
dim kh = 3
dim kw = 3
dim c = 128
dim g = {groups}
dim f = {features}
model net(x: [b, h, w, c]) {{
  param filter: [kh, kw, c, g, f] = normal()
  windows = window(window(x, h -> [h, kh], padding = (1, 1)), w -> [w, kw], padding = (1, 1))
  y = einsum(windows, filter -> [b, h, w, g, f])
  return y
}}
"""
    ((eqn, found),) = ((eqn, each) for eqn, each in works(function(text)) if eqn.op == "einsum")
    pixels = {dim for dim in eqn.operands[1].type.dims if dim.name in ("kh", "kw")}
    result = stored_bytes(eqn.result.type, ONE_DEVICE, TPU, pixels)
    read = sum(
        stored_bytes(t, ONE_DEVICE, TPU, pixels)
        for t in (eqn.operands[1].type, function(text).arguments[0].value.type)
    )
    copied = 2 * result if groups > 1 and features % 128 else 0
    rounded = stored_bytes(function(text).arguments[0].value.type, ONE_DEVICE, TPU, pixels) * 5 // 2
    assert found.bytes == pytest.approx(read + result + copied + rounded, rel=0.1)


def seconds_of(found: Function, device: Device) -> float:
    return sum(each.seconds for each in work(found, ONE_DEVICE, device))


def test_what_is_one_kernel_has_one_overhead() -> None:
    """`b` joins `a`; a sum is a kernel of its own, and a product waits for what it reads and for what it writes."""
    text = f"""\
dim n = {N}
dim m = {N}
dim k = {N}
model net(x: [n, m], y: [m, k]) {{
  a = exp(x)
  b = a + 1
  c = sum(b, over = m)
  d = einsum(x, y -> [n, k])
  return a, b, c, d
}}
"""
    found, overhead = function(text), 1e-3
    more = seconds_of(found, attrs.evolve(TPU, overhead=overhead)) - seconds_of(found, TPU)
    assert more == pytest.approx(4 * overhead)


RECURRENT = f"""\
dim time = 8
dim batch = 128
dim units = {N}
dim inputs = units
model net(x: [time, batch, units]) {{
  param w: [inputs, units] = zeros()
  h = zeros([batch, units])
  scan x_t = x along time {{
    h = tanh(einsum(rename(h, units -> inputs), w -> [batch, units]) + x_t)
  }}
  loss = sum(h * h)
  return loss
}}
train net {{
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}}
"""


def test_a_loop_keeps_what_it_multiplies_with_where_an_iteration_fits() -> None:
    """The weights, and in the loop backwards their gradient too, which is read and written. Products there do not wait."""
    step, weights = function(RECURRENT, "step"), 4 * N * N
    near = attrs.evolve(TPU, scratchpad=Scratchpad(1e9, results=1e12))
    loops = [eqn for eqn in step.body if eqn.regions]
    assert len(loops) == 2
    for loop, times in zip(loops, (1, 3), strict=True):
        moved = [sum(each.bytes for each in work(region_of(loop), ONE_DEVICE, d)) for d in (TPU, near)]
        assert moved[0] - moved[1] == times * weights
        number = step.body.index(loop)
        around = [work(step, ONE_DEVICE, device)[number].bytes for device in (TPU, near)]
        copied = 8 * 2 * 4 * 128 * N  # h, or its gradient, which products leave near, too
        assert around[1] - around[0] == times * weights - copied
    waiting = [attrs.evolve(device, overhead=1e-3) for device in (TPU, near)]
    more = [seconds_of(region_of(loops[0]), device) for device in waiting]
    assert more[0] - more[1] == pytest.approx(1e-3, rel=0.1)  # it reads, and a sum is stored
    small = attrs.evolve(TPU, scratchpad=Scratchpad(1e6, results=1e12))
    assert seconds_of(region_of(loops[0]), small) == seconds_of(region_of(loops[0]), TPU)


def test_a_loop_keeps_a_part_where_not_all_of_it_fits_or_results_go_to_memory() -> None:
    """What it adds up alone, or the weights alone, for which products wait less."""
    step, weights = function(RECURRENT, "step"), 4 * N * N
    backwards = [eqn for eqn in step.body if eqn.regions][-1]
    for own, kept in (
        (Scratchpad(1e9, results=1e12), 3 * weights),
        (Scratchpad(2.5 * weights, results=1e12), 2 * weights),
        (Scratchpad(1e9), weights),
        (Scratchpad(1.5 * weights), 0),
    ):
        near = attrs.evolve(TPU, scratchpad=own)
        moved = [sum(each.bytes for each in work(region_of(backwards), ONE_DEVICE, d)) for d in (TPU, near)]
        assert moved[0] - moved[1] == kept
    waiting = attrs.evolve(TPU, overhead=1e-3, scratchpad=Scratchpad(1e9, wait=5.0))
    products = [eqn for eqn in region_of(backwards).body if is_dot(eqn)]
    memory = Memory(region_of(backwards), ONE_DEVICE, waiting)
    assert products and all(memory.waiting(eqn, waiting) == 5.0 for eqn in products)


def test_pads_are_part_of_the_kernel_that_adds_them() -> None:
    text = f"""\
dim n = {N}
dim m = {N}
dim more = {2 * N}
model net(x: [n, m], y: [n, m]) {{
  out = pad(x, m -> more) + pad(y, m -> more, before = {N})
  return out
}}
"""
    assert sum(each.bytes for _, each in works(function(text))) == 4 * (2 + 2) * N**2
