"""The cost model: each effect on a step states its exact cost and, in the same file, a lower bound for all layouts.

`exact` prices a placed function on a mesh of a machine. `bound` returns facts about the undistributed program, as terms and
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

from collections.abc import Mapping
from math import inf
from typing import Protocol, TypeVar

import attrs

from mtfc.compiler.cost.effects.halo_exchange import Halos
from mtfc.compiler.cost.effects.memory import LiveMemory
from mtfc.compiler.cost.effects.moved_data import DataMovement
from mtfc.compiler.cost.effects.pending_sums import PendingSums
from mtfc.compiler.cost.effects.roofline import Kernels
from mtfc.compiler.cost.effects.stored_parameters import ParameterStorage
from mtfc.compiler.cost.hardware import Device, Hardware
from mtfc.compiler.cost.lower_bounds import CommonProgram
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.types import Mesh

Facts = TypeVar("Facts", covariant=True)


class Effect(Protocol[Facts]):
    """One effect on the cost of a step."""

    def exact(self, function: Function, mesh: Mesh, hardware: Hardware) -> float:
        """Return the cost for one processor of a placed function with explicit collectives."""

    def bound(self, program: CommonProgram) -> Facts:
        """Return facts that bound the cost from below under every layout in which the common equations are as they are."""


KERNELS, MEMORY = Kernels(), LiveMemory()
PENDING_SUMS, DATA_MOVEMENT, STORED_PARAMETERS = PendingSums(), DataMovement(), ParameterStorage()


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


EFFECTS: Mapping[str, Effect[object]] = {
    "kernels": KERNELS,
    "pending sums": PENDING_SUMS,
    "data movement": DATA_MOVEMENT,
    "stored parameters": STORED_PARAMETERS,
    "halos": Halos(shards=2),
    "memory": MEMORY,
}
"""All effects; the facts of halos depend on the number of shards."""
