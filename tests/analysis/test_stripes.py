"""Few images on a TPU, and convolutions whose pixels are split: as if each processor had a program of its own."""

from __future__ import annotations

import attrs
import pytest

from mtfc.compiler.cost.fusion import Memory
from mtfc.compiler.cost.hardware import Device, Rate, Scratchpad
from mtfc.compiler.cost.tpu.register_traffic import held
from mtfc.compiler.cost.tpu.space_to_batch import striped_bytes
from mtfc.compiler.cost.tpu.tiling import pixels_of
from mtfc.compiler.ir.core import Program
from mtfc.driver.loading.selection import ONE_DEVICE
from tests.harness import lowered

TPU = Device({"f32": Rate.constant(1e30)}, 1e9, Rate.constant(1e11), matrix=128)
LATER = attrs.evolve(TPU, scratchpad=Scratchpad(1.0))
CHANNELS, PLACES = 128, 3
TEXT = f"""
mesh one  = [all: 1]
mesh grid = [rows: 2, cols: 4]
layout alone on one = {{}}
layout tiles on grid = {{ h: rows, w: cols, h2: rows, w2: cols, h3: rows, w3: cols }}
dim n = IMAGES
dim h = 32
dim w = COLUMNS
dim h2 = h
dim w2 = w
dim h3 = h
dim w3 = w
dim kh = {PLACES}
dim kw = {PLACES}
dim c = {CHANNELS}
dim d = {CHANNELS}
dim e = {CHANNELS}
fn conv[h, w, c, out_h, out_w, f, kh, kw](
  x: [n, h, w, c], filter: [kh, kw, c, f]
) -> [n, out_h, out_w, f] {{
  p = window(window(x, h -> [out_h, kh], padding = (1, 1)), w -> [out_w, kw], padding = (1, 1))
  return einsum(p, filter -> [n, out_h, out_w, f])
}}
model net(x: [n, h, w, c]) {{
  param one: [kh, kw, c, d] = normal()
  param two: [kh, kw, d, e] = normal()
  y = conv[out_h = h2, out_w = w2](x, one)
  loss = sum(conv[out_h = h3, out_w = w3](y, two))
  return loss
}}
train net {{ minimize loss; optimizer = sgd(learning_rate = 0.1) }}
"""


def program(images: int, columns: int, layout: str = "alone") -> Program:
    return lowered(TEXT.replace("IMAGES", str(images)).replace("COLUMNS", str(columns)), "step", layout)


def cut(images: int, columns: int, device: Device) -> dict[str, int]:
    """Bytes that each convolution and gradient of its images moves for stripes, and each gradient of a filter."""
    step = program(images, columns).function("step")
    memory, found = Memory(step, ONE_DEVICE, device), dict[str, int]()
    for eqn in step.body:
        if windows := memory.windows(eqn):
            kind = "images" if "n" in eqn.result.type.names else "filter"
            size = striped_bytes(eqn, ONE_DEVICE, device, windows)
            assert found.setdefault(kind, size) == size
    return found


@pytest.mark.parametrize(
    ("device", "images", "columns", "is_cut"),
    [
        (LATER, 7, 64, True),
        (LATER, 8, 64, False),
        (LATER, 2, 4, False),
        (TPU, 1, 64, True),
        (TPU, 2, 64, False),
    ],
)
def test_few_images_are_cut_into_stripes(device: Device, images: int, columns: int, is_cut: bool) -> None:
    """Of 64 columns 8 stripes have 10 each, with those that windows reach into."""
    stripes = images * 32 * columns * CHANNELS * 4 * 80 // 64 * is_cut
    assert cut(images, columns, device) == {"images": stripes * 3 // 2, "filter": stripes * 15}


def test_channels_of_their_own_are_no_images() -> None:
    """A depthwise convolution of two images, with 128 channels each."""
    text = f"""
dim n = 2
dim h = 32
dim w = 64
dim oh = h
dim ow = w
dim kh = {PLACES}
dim kw = {PLACES}
dim c = {CHANNELS}
mesh one = [all: 1]
layout alone on one = {{}}
model net(x: [n, h, w, c]) {{
  param filter: [kh, kw, c] = normal()
  p = window(window(x, h -> [oh, kh], padding = (1, 1)), w -> [ow, kw], padding = (1, 1))
  y = einsum(p, filter -> [n, oh, ow, c])
  return y
}}
"""
    step = lowered(text, "forward", "alone").function("forward")
    memory, (eqn,) = Memory(step, ONE_DEVICE, LATER), [each for each in step.body if each.op == "einsum"]
    windows = memory.windows(eqn)
    assert windows is not None
    assert striped_bytes(eqn, ONE_DEVICE, LATER, windows) == 2 * 32 * 80 * CHANNELS * 4 * 3 // 2


def test_what_has_pixels_lies_in_whole_tiles_where_images_are_cut() -> None:
    """Two images are a tile of two rows for each pixel, for which a convolution holds 8 where they are not cut."""
    step = program(2, 64).function("step")
    convolution = next(eqn for eqn in step.body if eqn.op == "einsum")
    seen = {value: [value.type] for value in convolution.operands}
    made = [convolution.result.type]
    bytes = [held(Memory(step, ONE_DEVICE, each), convolution, made, seen, each) for each in (TPU, LATER)]
    assert bytes == [8 * 32 * 64 * CHANNELS * 4, 0]


def windows(program: Program) -> list[tuple[set[str], str, int]]:
    """Of each convolution: pixels, the last of them, places in a row."""
    step = program.function("step")
    memory = Memory(step, program.placed_on, TPU)
    found = (memory.windows(eqn) for eqn in step.body)
    return [({dim.name for dim in each.pixels}, each.width.name, each.row) for each in found if each]


def test_pixels_are_those_of_the_whole_where_halos_are_added_to_parts() -> None:
    first, second = ({"h2", "w2"}, "w2", PLACES), ({"h3", "w3"}, "w3", PLACES)
    assert windows(program(8, 64)) == [first, second, second, second, first]
    assert windows(program(8, 64, "tiles")) == [first, second, second, second, first]
    alone, split = (program(8, 64, layout) for layout in ("alone", "tiles"))
    whole, parts = (pixels_of(each.function("step").body, each.placed_on) for each in (alone, split))
    assert {"h", "w", "h2", "w2", "h3", "w3", "kh", "kw"} == {dim.name for dim in whole}
    assert whole <= parts
    assert {dim.name for dim in parts}.isdisjoint({"n", "c", "d", "e"})
