"""Padding on TPUs: against the layouts and cycles of XLA, and the properties that lower bounds rely on."""

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from mtfc.compiler.analysis.dot_operand_layout import is_dot
from mtfc.compiler.cost.device_models import fusion_of
from mtfc.compiler.cost.effects.memory import memory_on
from mtfc.compiler.cost.hardware import Device, Rate
from mtfc.compiler.cost.sizes import bytes_of
from mtfc.compiler.cost.tpu.tpu_fusion import Tiles, least_tiled_bytes, stored_bytes
from mtfc.compiler.ir.core import Equation, Function
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, Mesh, TensorType
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED
from tests.harness import load

PLAIN = Device({"f32": Rate.constant(1e12)}, 1e9, Rate.constant(1e11))
TPU = attrs.evolve(PLAIN, mxu_size=128)


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
        (tensor("f32", 4, 0, 2), 0),  # a slice that is empty without halos
    ],
)
def test_arrays_are_whole_tiles(type: TensorType, elements: int) -> None:
    """The comments show the layouts of XLA."""
    assert stored_bytes(type, ONE_DEVICE, TPU) == elements * ITEM_BYTES[type.dtype]
    assert stored_bytes(type, ONE_DEVICE, PLAIN) == type.local_bytes(ONE_DEVICE)


SHAPES = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 8, 12])), max_size=4)


@given(SHAPES)
def test_shards_have_at_least_the_least_bytes_of_the_whole(shape: list[tuple[int, int]]) -> None:
    mesh = Mesh("grid", tuple((f"a{i}", parts) for i, (_, parts) in enumerate(shape)))
    whole = tensor("f32", *(size * parts for size, parts in shape))
    part = whole.split_by({f"d{i}": (f"a{i}",) for i in range(len(shape))})
    assert stored_bytes(part, mesh, TPU) * mesh.devices >= least_tiled_bytes(whole)
    assert least_tiled_bytes(whole) <= stored_bytes(whole, mesh, TPU)
    assert part.local_bytes(mesh) <= stored_bytes(part, mesh, TPU)


def padding(eqn: Equation, mesh: Mesh, device: Device) -> float:
    return fusion_of(Function("one", (), (eqn,), ()), mesh, device).mxu_padding(eqn)


def einsum(sizes: dict[str, int], text: str) -> Equation:
    dims = "".join(f"dim {name} = {size}\n" for name, size in sizes.items())
    source = f"{dims}model net({text.split('|')[0]}) {{ y = {text.split('|')[1]}\n return y }}\n"
    (program,) = load(source).programs
    function = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("forward")
    (found,) = (eqn for eqn in function.body if eqn.op == "einsum")
    return found


def test_dots_are_padded_to_the_mxu() -> None:
    product = einsum({"m": 100, "n": 96, "k": 300}, "a: [m, k], b: [k, n] | einsum(a, b -> [m, n])")
    assert is_dot(product)
    assert padding(product, ONE_DEVICE, PLAIN) == 1
    through = 96 * 128 * 384  # the 96 are a multiple of 8, the 100 are not
    loaded = 128 * min(128 * 300, 100 * 384)
    assert padding(product, ONE_DEVICE, TPU) == pytest.approx((through + loaded) / (100 * 96 * 300))


@pytest.mark.parametrize(
    ("rows", "summed", "columns", "cycles"),
    [
        (4096, 512, 4096, 543874),
        (4096, 1024, 4096, 1073774),
        (4096, 2048, 4096, 2139749),
        (16, 150, 102400, 150987),  # LeNet's second convolution, for 1024 images
        (16, 102400, 150, 134571),  # the gradient of its filter
        (6, 400, 200704, 637980),  # that of the images
    ],
)
def test_dots_take_the_cycles_that_the_compiler_expects(
    rows: int, summed: int, columns: int, cycles: int
) -> None:
    """The cycles are those of libtpu 0.0.42 on v2, which has one matrix unit per core."""
    sizes = {"m": rows, "k": summed, "n": columns}
    product = einsum(sizes, "a: [m, k], b: [k, n] | einsum(a, b -> [m, n])")
    expected = padding(product, ONE_DEVICE, TPU) * rows * summed * columns / 128**2
    assert expected == pytest.approx(cycles, rel=0.07)


def test_an_einsum_without_rows_and_columns_is_no_dot() -> None:
    added = einsum({"m": 100, "k": 300}, "a: [m, k], b: [m, k] | einsum(a, b -> [m])")
    assert not is_dot(added)
    assert padding(added, ONE_DEVICE, TPU) == 1


@given(*[st.tuples(st.integers(1, 40), st.sampled_from([1, 2, 3, 5, 8]))] * 3)
def test_shards_of_a_dot_are_padded_at_least_as_much(
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
    assert padding(part, mesh, TPU) >= padding(whole, mesh, TPU) * (1 - 1e-12)


def test_arrays_take_whole_tiles_in_the_memory_of_a_tpu() -> None:
    text = "dim n = 4096\ndim k = 10\nmodel net(x: [n, k]) {\n  y = exp(x)\n  return y\n}\n"
    (program,) = load(text).programs
    found = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("forward")
    assert memory_on(found, ONE_DEVICE, PLAIN).total == 2 * 4 * 4096 * 10
    assert memory_on(found, ONE_DEVICE, TPU).total == 2 * 4 * 4096 * 16


@pytest.mark.parametrize("device", [PLAIN, TPU])
def test_terms_of_16_bits_take_the_bytes_of_their_sums(device: Device) -> None:
    mesh = Mesh("mesh", (("x", 2),))
    type = attrs.evolve(tensor("f16", 256, 256), pending=frozenset({"x"}))
    assert type.local_dtype == "f32"
    assert bytes_of(type, Tiles(mesh, device, set())) == stored_bytes(type, mesh, device) == 4 * 256 * 256
