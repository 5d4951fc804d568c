"""The measured figures of this machine as hardware text, for `mtfc calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from mtfc.backends.registry import BACKENDS
from mtfc.driver.errors import UsageError

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware

HINT = (
    "Rates by size: FLOPs of a matrix product, bytes that a kernel reads and writes, bytes of a collective."
)


def check_devices(backend: str, devices: int | None) -> None:
    """Raise `UsageError` if a number of devices is given for NumPy."""
    if backend == "numpy" and devices is not None:
        raise UsageError("--devices is for JAX; NumPy computes on one device")


def measure(backend: str, devices: int | None, quick: bool, shapes: bool = False) -> str:
    """Measure the machine, and return its declaration with a comment. Raises `Unavailable`.

    devices: the number of JAX devices; None takes all. quick: take few sizes and short runs. shapes: measure also dots of
    matrices that are not square.
    """
    from mtfc.frontend.hardware.hardware_text import hardware_text

    return hardware_text(*_measured(backend, devices, quick, shapes))


def _measured(backend: str, devices: int | None, quick: bool, shapes: bool) -> tuple[Hardware, str]:
    """Return the machine, and a comment that says what was measured."""
    from mtfc.backends.calibrate.calibration import QUICK, Effort
    from mtfc.backends.common import allocator

    allocator.keep_memory()
    effort = attrs.evolve(QUICK if quick else Effort(), shapes=shapes)
    hardware, tool = BACKENDS[backend].measure(devices, effort)
    return hardware, f"Measured by mtfc calibrate with {tool}.\n{HINT}"
