"""The model of kernels for each kind of device: the one place that tells TPUs from other devices.

A device is a TPU if its declaration has the size of a matrix unit (`Device.mxu_size`).

The cost of a placed function is exact: the kernels of `effects/roofline.py`, the collectives of `topology.py`, and the bytes of
`effects/memory.py`. Each effect also has a lower bound for all layouts: facts about the undistributed program, as terms and
arrays of named dimensions (`lower_bounds.py`). Searches evaluate the facts under many layouts at once, and never ask what kind of
device they search for. No bound may exceed the exact cost of a layout: `tests/properties/test_cost_bounds.py`.

| effect | unit | file |
| --- | --- | --- |
| kernels | seconds of computing | `roofline.py`, with `fusion.py` and `tpu/` |
| pending sums | seconds of communication | `pending_sums.py` |
| data movement | seconds of communication | `moved_data.py` |
| stored parameters | seconds of communication | `moved_data.py` |
| halos | seconds of communication, and of computing | `moved_data.py` |
| memory | bytes | `memory.py` |

Collectives are timed by `topology.py`, both exactly and at their best rates.
"""

from math import inf

from mtfc.compiler.analysis.dimension_names import SINGLE
from mtfc.compiler.analysis.liveness import Inside, nothing_inside
from mtfc.compiler.cost.effects.memory import MemoryUse, memory_on
from mtfc.compiler.cost.fusion import FusionModel
from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.cost.sizes import whole as whole_number
from mtfc.compiler.cost.tpu_kernels import ScratchpadFusion, TpuFusion
from mtfc.compiler.ir.core import Function, Value
from mtfc.compiler.ir.loops import is_loop_body
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.records import frozen

AMPLE = 1.5
"""If so many times the memory of the step with nothing split fits on a device, no layout computes values again."""


def fusion_of(function: Function, mesh: Mesh, device: Device, whole: Function | None = None) -> FusionModel:
    """Return the kernels of a function that is a part of a program. whole: the function with its further equations, if any."""
    kind = FusionModel if device.mxu_size is None else TpuFusion
    return kind(function, mesh, device, whole)


def fusion_of_program(function: Function, mesh: Mesh, device: Device, is_placed: bool = True) -> FusionModel:
    """Return the kernels of a whole program or of a loop body. is_placed: True if the collectives are explicit."""
    vmem = device.vmem
    has_loops = is_loop_body(function) or any(eqn.regions for eqn in function.body)
    if vmem is None or has_loops or whole_number(memory_on(function, mesh, device).total) > vmem.bytes:
        return fusion_of(function, mesh, device)
    return ScratchpadFusion(function, mesh, device, vmem, is_placed)


def expected_memory(function: Function, mesh: Mesh, device: Device) -> MemoryUse:
    """Return the memory of a placed function on a device: the figure of each command that knows the device."""
    return memory_on(function, mesh, device, inside_kernels(mesh, device))


def may_be_short(function: Function, device: Device) -> bool:
    """Return True if some layout may need more memory than a device has, so that values are computed again.

    A layout needs less memory than nothing split, but for copies in other placements, and for padding.
    """
    return AMPLE * whole_number(expected_memory(function, SINGLE, device).total) > device.memory


def inside_kernels(mesh: Mesh, device: Device) -> Inside:
    """Return what gives the values that never leave a kernel of a TPU; on other devices they count as stored."""

    def inside(body: Function) -> set[Value]:
        """Return the values of a body that no kernel stores."""
        fusion = fusion_of(body, mesh, device)
        single = (eqn.results[0] for eqn in body.body if len(eqn.results) == 1 and not eqn.regions)
        return {*single} - fusion.stored - fusion.near

    return nothing_inside if device.mxu_size is None else inside


@frozen
class Regime:
    """Programs of at most `bytes` of memory cost no less than on `device`."""

    bytes: float
    device: Device


def regimes(function: Function, device: Device) -> tuple[Regime, ...]:
    """Return the regimes of a function on a device, in ascending order of memory; the last one has no limit."""
    every = Regime(inf, device)
    if device.vmem is None or any(eqn.regions for eqn in function.body):
        return (every,)
    return Regime(device.vmem.bytes, device.weightless), every


def cheapest(device: Device) -> Device:
    """Return a device on which no kernel costs more than in any regime of the given device."""
    return device.weightless if device.vmem else device
