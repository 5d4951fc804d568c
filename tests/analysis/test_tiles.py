"""What TPUs fill up: against shapes that XLA chose, and what bounds rely on."""

from __future__ import annotations

from math import prod

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device, Rate
from mtfc.compiler.cost.memory import memory_on
from mtfc.compiler.cost.tpu.tiling import filled, is_dot, is_sum, least_bytes, stored_bytes
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, Mesh, TensorType
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED
from tests.harness import load, lowered

PLAIN = Device({"f32": Rate.constant(1e12)}, 1e9, Rate.constant(1e11))
TPU = attrs.evolve(PLAIN, matrix=128)


def tensor(dtype: str, *sizes: int) -> TensorType:
    return TensorType(dtype, tuple(Dim(f"d{i}", size) for i, size in enumerate(sizes)))


@pytest.mark.parametrize(
    ("type", "elements"),
    [
        (tensor("f32", 4096, 10), 4096 * 16),  # f32[4096,10]{0,1:T(8,128)}
        (tensor("bf16", 256, 256, 1024), 256 * 256 * 1024),
        (tensor("f32", 2, 48), 2 * 128),  # f32[2,48]{1,0:T(2,128)}
        (tensor("f32", 11, 11, 3, 96), 11 * 11 * 4 * 128),  # f32[11,11,3,96]{3,2,1,0:T(4,128)}
        (tensor("f32", 5, 100), 8 * 128),
        (tensor("f32", 100), 128),
        (tensor("f32"), 1),
        (tensor("f32", 4, 0, 2), 0),  # a slice that halos leave nothing of
    ],
)
def test_arrays_are_whole_tiles(type: TensorType, elements: int) -> None:
    """In comments, as XLA laid out such arrays."""
    assert stored_bytes(type, ONE_DEVICE, TPU) == elements * ITEM_BYTES[type.dtype]
    assert stored_bytes(type, ONE_DEVICE, PLAIN) == type.local_bytes(ONE_DEVICE)


SHAPES = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 8, 12])), max_size=4)


@given(SHAPES)
def test_parts_take_no_less_than_the_least_of_the_whole(shape: list[tuple[int, int]]) -> None:
    mesh = Mesh("grid", tuple((f"a{i}", parts) for i, (_, parts) in enumerate(shape)))
    whole = tensor("f32", *(size * parts for size, parts in shape))
    part = whole.split_by({f"d{i}": (f"a{i}",) for i in range(len(shape))})
    assert stored_bytes(part, mesh, TPU) * mesh.devices >= least_bytes(whole, TPU)
    assert least_bytes(whole, TPU) <= stored_bytes(whole, mesh, TPU)
    assert part.local_bytes(mesh) <= stored_bytes(part, mesh, TPU)


def einsum(sizes: dict[str, int], text: str) -> Equation:
    dims = "".join(f"dim {name} = {size}\n" for name, size in sizes.items())
    source = f"{dims}model net({text.split('|')[0]}) {{ y = {text.split('|')[1]}\n return y }}\n"
    (program,) = load(source).programs
    function = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("forward")
    (found,) = (eqn for eqn in function.body if eqn.op == "einsum")
    return found


def test_products_are_filled_up_to_the_matrix_unit() -> None:
    product = einsum({"m": 100, "n": 96, "k": 300}, "a: [m, k], b: [k, n] | einsum(a, b -> [m, n])")
    assert is_dot(product)
    assert not is_sum(product)
    assert filled(product, ONE_DEVICE, PLAIN) == 1
    through = 96 * 128 * 384  # the 96 are a multiple of 8, the 100 are not
    loaded = 128 * min(128 * 300, 100 * 384)
    assert filled(product, ONE_DEVICE, TPU) == pytest.approx((through + loaded) / (100 * 96 * 300))


@pytest.mark.parametrize(
    ("rows", "summed", "columns", "cycles"),
    [
        (4096, 512, 4096, 543874),
        (4096, 1024, 4096, 1073774),
        (4096, 2048, 4096, 2139749),
        (16, 150, 102400, 150987),  # LeNet's second convolution, of 1024 images
        (16, 102400, 150, 134571),  # the gradient of its filter
        (6, 400, 200704, 637980),  # that of the images
    ],
)
def test_products_take_the_cycles_that_the_compiler_expects(
    rows: int, summed: int, columns: int, cycles: int
) -> None:
    """On v2, which has one matrix unit a core: libtpu 0.0.42."""
    sizes = {"m": rows, "k": summed, "n": columns}
    product = einsum(sizes, "a: [m, k], b: [k, n] | einsum(a, b -> [m, n])")
    expected = filled(product, ONE_DEVICE, TPU) * rows * summed * columns / 128**2
    assert expected == pytest.approx(cycles, rel=0.07)


CONVOLVED = """
mesh line = [all: 1]
layout alone on line = {{}}
dim n = {images}
dim height = {side}
dim width = {side}
dim oh = {made}
dim ow = {made}
dim kh = {place}
dim kw = {place}
dim c = {channels}
dim f = {filters}
model net(scale: []) {{
  param x: [n, height, width, c] = normal(stddev = 1)
  param filter: [kh, kw, c, f] = normal(stddev = 1)
  p = window(window(x, height -> [oh, kh], padding = ({pad}, {pad})), width -> [ow, kw], padding = ({pad}, {pad}))
  y = einsum(p, filter -> [n, oh, ow, f])
  loss = scale * sum(y * y)
  return loss
}}
train net {{
  minimize loss
  optimizer = sgd(learning_rate = 1)
}}
"""


def convolved(is_gradient: bool, **sizes: int) -> float:
    """Cycles of one matrix unit for a convolution, or for the gradient of its images."""
    function = lowered(CONVOLVED.format(**sizes), "gradients", "alone").function("gradients")
    memory = Memory(function, ONE_DEVICE, TPU)
    (found,) = (
        eqn
        for eqn in function.body
        if (windows := memory.windows(eqn)) and windows.is_made == is_gradient
        if is_gradient or "kh" not in eqn.result.type.names
    )
    dims = {dim for value in (*found.operands, found.result) for dim in value.type.dims}
    products = prod(dim.size for dim in dims)
    return filled(found, ONE_DEVICE, TPU, memory.windows(found)) * products / 128**2


@pytest.mark.parametrize(
    ("images", "side", "made", "place", "pad", "channels", "filters", "cycles"),
    [
        (1024, 14, 10, 5, 0, 6, 16, 637980),  # LeNet's second convolution
        (128, 12, 8, 5, 0, 16, 16, 61815),
        (32, 28, 28, 3, 1, 64, 64, 235965),
        (128, 28, 28, 3, 1, 3, 64, 462950),
        (128, 28, 28, 3, 1, 64, 64, 465972),
        (128, 28, 28, 3, 1, 16, 128, 919491),
    ],
)
def test_gradients_of_images_take_the_cycles_that_the_compiler_expects(
    images: int, side: int, made: int, place: int, pad: int, channels: int, filters: int, cycles: int
) -> None:
    """On v2, which has one matrix unit a core: libtpu 0.0.42."""
    sizes = {"images": images, "side": side, "made": made, "place": place, "pad": pad}
    taken = convolved(True, **sizes, channels=channels, filters=filters)
    assert taken == pytest.approx(cycles, rel=0.08)


@pytest.mark.parametrize(("images", "cycles"), [(16, 168105), (32, 377895)])
def test_convolutions_of_few_images_hold_the_filter(images: int, cycles: int) -> None:
    """On v3, which has two matrix units a core; the compiler is not as regular as this."""
    taken = convolved(False, images=images, side=56, made=56, place=3, pad=1, channels=64, filters=64)
    assert taken / 2 == pytest.approx(cycles, rel=0.21)


def test_what_has_no_rows_and_columns_is_a_sum() -> None:
    added = einsum({"m": 100, "k": 300}, "a: [m, k], b: [m, k] | einsum(a, b -> [m])")
    assert is_sum(added)
    assert not is_dot(added)
    assert filled(added, ONE_DEVICE, TPU) == 1


@given(*[st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 3, 5, 8]))] * 3)
def test_parts_of_a_product_are_filled_up_no_less(
    m: tuple[int, int], n: tuple[int, int], k: tuple[int, int]
) -> None:
    sizes = {name: size * parts for name, (size, parts) in {"m": m, "n": n, "k": k}.items()}
    whole = einsum(sizes, "a: [m, k], b: [k, n] | einsum(a, b -> [m, n])")
    mesh = Mesh("grid", tuple((axis, parts) for axis, (_, parts) in zip("xyz", (m, n, k), strict=True)))
    split = {"m": ("x",), "n": ("y",), "k": ("z",)}
    part = attrs.evolve(
        whole,
        operands=tuple(
            attrs.evolve(
                value, type=value.type.split_by({d: a for d, a in split.items() if d in value.type.names})
            )
            for value in whole.operands
        ),
    )
    assert filled(part, mesh, TPU) >= filled(whole, mesh, TPU) * (1 - 1e-12)


def test_memory_of_a_tpu_is_that_of_whole_tiles() -> None:
    text = "dim n = 4096\ndim k = 10\nmodel net(x: [n, k]) {\n  y = exp(x)\n  return y\n}\n"
    (program,) = load(text).programs
    found = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("forward")
    assert memory_on(found, ONE_DEVICE, PLAIN).total == 2 * 4 * 4096 * 10
    assert memory_on(found, ONE_DEVICE, TPU).total == 2 * 4 * 4096 * 16
