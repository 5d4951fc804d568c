"""What kernels hold in registers on a TPU, besides what they read and write, as XLA's compiler for TPUs has it (libtpu 0.0.42).

Of single kernels it expects, the same on v2 to v6e, that these take the time of their bytes in f32 as if they were written:

- What is added up: `sum(x * x)` takes twice as long as reading x. Several reductions of an array hold it once.
- What is computed and stored in 16 bits, component-wise or by a product. If something is given away that a kernel computes, what
  it computes of that is not held again.
- What is computed in tiles of fewer than 8 rows, as of an image or two: these take the time of 8. A product holds it for all
  that follows in its kernel, and other kernels once. What they hold already is added up as it lies in memory, unless pixels stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mtfc.compiler.analysis.buffer_kinds import is_elementwise, storage
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.tpu.space_to_batch import has_stripes
from mtfc.compiler.cost.tpu.tiling import held_bytes, is_dot, is_sum
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.types import ITEM_BYTES, TensorType

if TYPE_CHECKING:
    from mtfc.compiler.cost.fusion import Memory

HELD = "f32"


def is_short(type: TensorType) -> bool:
    """Whether an element has 16 bits."""
    return ITEM_BYTES[type.dtype] == 2


def holds(eqn: Equation, device: Device) -> bool:
    """Whether it holds what it adds up."""
    return device.matrix is not None and (storage(eqn) == "reduced" or is_sum(eqn))


def held(
    memory: Memory,
    eqn: Equation,
    made: Sequence[TensorType],
    seen: Mapping[Value, Sequence[TensorType]],
    device: Device,
) -> int:
    """Bytes, where its results have the types `made`; `seen` are those of each operand and of what that is a view of."""
    if is_holding(memory, eqn, device):
        return max(_added_up(memory, eqn, value, types, device) for value, types in seen.items())
    widened, product = is_widened(memory, eqn, device), memory.following.get(eqn)
    if product not in (None, eqn):
        return sum(_rows(memory, type, device) for type in made) if widened else 0
    if not (widened or product or eqn in memory.firsts):
        return 0
    whole = sum(_whole(memory, type, device) for type in made if widened or _is_narrow(memory, type, device))
    for each in memory.folds(eqn.results[0]):
        whole = whole * each.result.type.size // each.operands[0].type.size
    return whole


def is_holding(memory: Memory, eqn: Equation, device: Device) -> bool:
    """Whether it holds what it adds up, as none before does."""
    sources = [memory.seen(value)[-1] for value in eqn.operands] if holds(eqn, device) else []
    return bool(sources) and all(memory.holders[source] is eqn for source in sources)


def is_widened(memory: Memory, eqn: Equation, device: Device) -> bool:
    """Whether it computes what it stores in 16 bits, and its kernel does not hold it yet."""
    is_able = device.matrix is not None and memory.is_stored(eqn)
    if not (is_able and all(is_short(value.type) for value in eqn.results)):
        return False
    return not is_held(memory, eqn, device) if is_elementwise(eqn) else is_dot(eqn)


def is_held(memory: Memory, eqn: Equation, device: Device) -> bool:
    """Whether its kernel holds already what it computes component-wise of: it is given away, too."""
    joined = (value for value in eqn.operands if memory.is_joined(eqn, value, device))
    return any(memory.seen(value)[-1] in memory.given for value in joined)


def rounding_bytes(type: TensorType, memory: Memory, device: Device) -> int:
    """Read, written and held where an array in f32 is rounded to 16 bits; nothing where it has 16."""
    if type.dtype != HELD:
        return 0
    return memory.bytes(type, device) * 3 // 2 + _whole(memory, type, device)


def clearing_bytes(type: TensorType, memory: Memory, device: Device) -> int:
    """Written, and held where it has 16 bits."""
    return memory.bytes(type, device) + (_whole(memory, type, device) if is_short(type) else 0)


def copying_bytes(type: TensorType, memory: Memory, device: Device) -> int:
    """Read, written and held as what is computed."""
    is_held = is_short(type) or _is_narrow(memory, type, device)
    return 2 * memory.bytes(type, device) + (_whole(memory, type, device) if is_held else 0)


def _added_up(
    memory: Memory, eqn: Equation, value: Value, types: Sequence[TensorType], device: Device
) -> int:
    is_beside = memory.is_window(value) or _is_made_beside(memory, eqn, value, device)
    return min(_rows(memory, type, device) if is_beside else _whole(memory, type, device) for type in types)


def _is_made_beside(memory: Memory, eqn: Equation, value: Value, device: Device) -> bool:
    """Whether the kernel that stores what it adds up adds it up, too, to less than pixels."""
    source = memory.seen(value)[-1]
    is_stored_by_it = source in memory.stored and memory.is_joined(eqn, value, device)
    is_beside = is_stored_by_it or memory.makers.get(source) in memory.following
    return is_beside and memory.pixels.isdisjoint(eqn.results[0].type.dims)


def _rows(memory: Memory, type: TensorType, device: Device) -> int:
    """Bytes of an array in f32 as it lies in memory."""
    return memory.bytes(type.with_dtype(HELD), device)


def _whole(memory: Memory, type: TensorType, device: Device) -> int:
    """Bytes of whole tiles of it."""
    is_cut = has_stripes(device) and not memory.pixels.isdisjoint(type.dims)
    return _rows(memory, type, device) if is_cut else held_bytes(type, memory.mesh, memory.pixels)


def _is_narrow(memory: Memory, type: TensorType, device: Device) -> bool:
    return _whole(memory, type, device) > _rows(memory, type, device)
