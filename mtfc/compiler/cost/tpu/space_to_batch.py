"""Few images on a TPU: XLA's compiler (libtpu 0.0.42) cuts each across its columns into 8 stripes, and takes those as images.

From v4 on it does so where a processor has fewer than 8 images, of 8 columns or more; before v4 where it has one. A stripe has
the columns, too, that its windows reach into. What has pixels lies in whole tiles then (`register_traffic.py`), but for each convolution
stripes are padded, cut, joined and turned around.

Of chains of convolutions, of 3 x 3 and 5 x 5 pixels, 64 to 256 channels, 28 to 128 columns, and 2 or 4 images, the gradient of a
filter took longer than with 8 images by the time of 13 to 17 times its stripes in f32 on v5e and v5p, 17 to 24 times on v4, 10
to 12 times on v6e, and 17 to 21 times on v3 with one image; a convolution and the gradient of its images together by up to 7
times theirs.
"""

from __future__ import annotations

from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.tpu.tiling import LANES, Windows, size_of, up
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.types import ITEM_BYTES, Mesh

STRIPES = 8
OF_FILTER, OF_IMAGES = 15.0, 1.5
"""How many times its stripes the gradient of a filter moves, and another convolution."""


def has_stripes(device: Device) -> bool:
    """Whether images are cut wherever there are few."""
    return device.own is not None


def striped_bytes(eqn: Equation, mesh: Mesh, device: Device, windows: Windows) -> int:
    """What a convolution, or a gradient of one, moves for it."""
    arrays = [set(value.type.dims) for value in (*eqn.operands, eqn.result)]
    images = [dims for dims in arrays if not windows.pixels.isdisjoint(dims)]
    filters = [dims for dims in arrays if windows.pixels.isdisjoint(dims)]
    if len(images) != 2 or all(dim.size == 1 for dim in windows.places):
        return 0
    pixels = images[0] & windows.pixels
    batch = (images[0] & images[1]) - pixels - filters[0]
    number, columns = size_of(batch, eqn, mesh), size_of([windows.width], eqn, mesh)
    if number >= (STRIPES if has_stripes(device) else 2) or columns < STRIPES:
        return 0
    channels = max(size_of(dims - batch - pixels - windows.places, eqn, mesh) for dims in images)
    size = number * size_of(pixels, eqn, mesh) * up(channels, LANES) * ITEM_BYTES["f32"]
    cut = (up(columns, STRIPES) + STRIPES * (windows.row - 1)) / columns
    return int(size * cut * (OF_FILTER if filters[0] == arrays[-1] else OF_IMAGES))
