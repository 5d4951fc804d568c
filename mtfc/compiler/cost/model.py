"""The cost model: the effects on a step, and the regimes of a device.

The cost of a placed function is exact: the kernels of `effects/roofline.py`, the collectives of `topology.py`, and the bytes of
`effects/memory.py`. Each effect also has a lower bound for all layouts: facts about the undistributed program, as terms and
arrays of named dimensions (`lower_bounds.py`). Searches evaluate the facts under many layouts at once, and never ask what kind of
device they search for. No bound may exceed the exact cost of a layout: `tests/properties/test_cost_bounds.py`.

| effect | unit | file |
| --- | --- | --- |
| kernels | seconds of computing | `roofline.py`, with `fusion.py` and `tpu/` |
| pending sums | seconds of communication | `pending_sums.py` |
| data movement | seconds of communication | `moved_data.py` |
| stored parameters | seconds of communication | `stored_parameters.py` |
| halos | seconds of communication, and of computing | `halo_exchange.py` |
| memory | bytes | `memory.py` |

Collectives are timed by `topology.py`, both exactly and at their best rates.
"""

from __future__ import annotations

from math import inf

import attrs

from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.ir.core import Function


@attrs.frozen
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
