"""Options of commands that several processes can run together, and the end of such a command."""

from __future__ import annotations

from collections.abc import Callable

from mtfc.cli.errors import diagnosed, guarded, leave
from mtfc.cli.options import Options
from mtfc.driver.training.hosts import Hosts, keep_libraries_quiet

HOSTS = """
several processes:
  --coordinator HOST:PORT    an address of process 0 that the others reach
  --processes N          number of processes
  --process-id I         number of this process, from 0
  --distributed          take these from SLURM, Open MPI, TPU pods or Kubernetes
  --join-seconds S       seconds in which all processes must have started (default: 50)
"""
"""The place of this process among others: the fields of `Hosts`."""


def run_joined(hosts: Hosts, action: Callable[[], int], options: Options) -> int:
    """Return the status of `action`; one of several processes ends at once, because libraries would wait for the others."""
    if not hosts.are_several:
        return action()
    hosts.check()
    keep_libraries_quiet()
    status = guarded(lambda: diagnosed(action, options))
    return leave(status)
