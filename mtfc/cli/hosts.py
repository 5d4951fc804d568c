"""Options of commands that several processes can run together, and the end of such a command."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from mtfc.cli.errors import diagnosed, guarded, leave
from mtfc.cli.options import count
from mtfc.driver.loading.sources import Sources
from mtfc.driver.training.hosts import Hosts, keep_libraries_quiet


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the place of this process among others."""
    hosts = parser.add_argument_group("several processes")
    hosts.add_argument(
        "--coordinator", metavar="HOST:PORT", help="an address of process 0 that the others reach"
    )
    hosts.add_argument("--processes", metavar="N", type=count, help="number of processes")
    hosts.add_argument("--process-id", metavar="I", type=_index, help="number of this process, from 0")
    hosts.add_argument(
        "--distributed", action="store_true", help="take these from SLURM, Open MPI, TPU pods or Kubernetes"
    )
    hosts.add_argument(
        "--join-seconds",
        metavar="S",
        type=count,
        default=50,
        help="seconds in which all processes must have started (default: 50)",
    )


def _index(text: str) -> int:
    """Return a whole number from 0 on, as an option's type."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, not `{text}`")
    return int(text)


def chosen_hosts(options: argparse.Namespace) -> Hosts:
    return Hosts(
        options.coordinator, options.processes, options.process_id, options.distributed, options.join_seconds
    )


def run_joined(hosts: Hosts, action: Callable[[], int], sources: Sources, format: str) -> int:
    """Return the status of `action`; one of several processes ends at once, because libraries would wait for the others."""
    if not hosts.are_several:
        return action()
    hosts.check()
    keep_libraries_quiet()
    status = guarded(lambda: diagnosed(action, sources, format))
    return leave(status)
