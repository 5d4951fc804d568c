"""Joining other processes of one training run, which `jax.distributed` connects: each has some of the devices of the mesh."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import attrs

from mtfc.backends.common.devices import MOST_VIRTUAL, Unavailable, import_jax, reserve
from mtfc.driver.errors import UsageError

HEARTBEAT = 20
"""Seconds after which JAX takes a silent process for dead."""


@attrs.frozen
class Hosts:
    """The place of this process among others.

    coordinator: HOST:PORT of process 0. detect: take the place from what JAX finds: SLURM, Open MPI, TPU pods, Kubernetes.
    """

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None
    detect: bool = False

    @property
    def are_several(self) -> bool:
        return self.detect or self.coordinator is not None

    def check(self) -> None:
        """Raise `UsageError` for options that contradict each other."""
        given = [self.coordinator, self.processes, self.process_id]
        if self.detect and any(each is not None for each in given):
            raise UsageError(
                "--distributed takes what JAX finds: leave out --coordinator, --processes and --process-id"
            )
        if any(each is None for each in given) and any(each is not None for each in given):
            raise UsageError("--coordinator, --processes and --process-id go together")
        if self.processes is not None and self.process_id is not None and self.process_id >= self.processes:
            raise UsageError(
                f"--process-id {self.process_id} with --processes {self.processes}: ids are 0 to {self.processes - 1}"
            )

    def join(self, devices: int) -> None:
        """Connect to the other processes, if there are any. devices: the number in the mesh.

        Raises `Unavailable` and `UsageError`.
        """
        if not self.are_several:
            reserve(min(devices, MOST_VIRTUAL))
            return
        if self.processes is not None and devices % self.processes:
            raise UsageError(
                f"the mesh has {devices} processors, which {self.processes} processes cannot share equally"
            )
        jax = import_jax()
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_enable_preemption_service", True)
        if self.processes is not None:
            reserve(devices // self.processes)
        try:
            jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT, **self._place())
        except Exception as error:  # gRPC and XLA raise many kinds
            reason = str(error).strip().partition("\n")[0]
            where = self.coordinator or "the cluster that JAX finds"
            raise Unavailable(f"cannot join the other processes at {where}: {reason}") from None

    def _place(self) -> dict[str, Any]:
        if self.detect:
            return {}
        return {
            "coordinator_address": self.coordinator,
            "num_processes": self.processes,
            "process_id": self.process_id,
        }


def keep_libraries_off_stdout() -> None:
    """Let Python alone write to the standard output: Gloo prints a line for each group of processes that it connects."""
    sys.stdout.flush()
    own = os.dup(sys.stdout.fileno())
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    sys.stdout = os.fdopen(own, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
