"""`mtfc calibrate`: measure the machine, and write what it is as a .mtf file for `--target`."""

from __future__ import annotations

import argparse
import platform
from typing import TYPE_CHECKING

from mtfc.cli.options import count
from mtfc.driver.data.files import STANDARD, check_writable, write_text
from mtfc.driver.errors import OK, UsageError, say
from mtfc.driver.sources import Sources

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware

EXAMPLES = """\
examples:
  mtfc calibrate -o here.mtf                            all devices that JAX has, then
  mtfc simulate model.mtf --target here.mtf             what a step takes here
  mtfc calibrate --devices 8 -o virtual.mtf             eight devices, virtual ones where there are fewer
  mtfc calibrate --backend numpy -o numpy.mtf           one device, as the NumPy backend computes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", dest="output", metavar="OUT.mtf", default=STANDARD, help="write to a file")
    parser.add_argument(
        "--backend", choices=("jax", "numpy"), default="jax", help="what computes (default: jax)"
    )
    parser.add_argument(
        "--devices", type=count, metavar="N", help="how many devices of JAX (default: all that there are)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few sizes and short runs: seconds in place of two minutes"
    )


def run(options: argparse.Namespace, sources: Sources) -> int:
    from mtfc.frontend.hardware.hardware_text import hardware_text

    if options.backend == "numpy" and options.devices is not None:
        raise UsageError("--devices is for JAX; NumPy computes on one device")
    check_writable(options.output)
    say("measuring; other work on this machine would disturb it")
    hardware, what = _measured(options)
    write_text(options.output, hardware_text(hardware, what))
    return OK


def _measured(options: argparse.Namespace) -> tuple[Hardware, str]:
    """The machine, and a comment that says what was measured."""
    from mtfc.backends.calibrate.calibration import QUICK, Effort, with_jax, with_numpy
    from mtfc.backends.common import allocator

    allocator.keep_memory()
    effort = QUICK if options.quick else Effort()
    hint = "Rates by size: FLOPs of a matrix product, bytes that a kernel reads and writes, bytes of a collective."
    if options.backend == "numpy":
        return with_numpy(
            "here", effort
        ), f"Measured by mtfc calibrate with NumPy on {platform.machine()}.\n{hint}"
    hardware = with_jax("here", options.devices, effort)
    import jax

    number = hardware.devices or 1
    kind = jax.devices()[0].device_kind
    devices = f"{number} device{'s'[: number - 1]} of kind {kind}"
    return hardware, f"Measured by mtfc calibrate with JAX {jax.__version__} on {devices}.\n{hint}"
