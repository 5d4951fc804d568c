"""Joining other processes of one training run, which `jax.distributed` connects: each has some of the devices of the mesh."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import attrs

from mtfc.backends.common.devices import MOST_VIRTUAL, Unavailable, import_jax, reserve
from mtfc.driver.errors import UsageError
from mtfc.driver.training.peers import end_on_abort

LATE = 5
"""Seconds that the others wait longer than process 0, which says who is missing."""

STDERR = 2
"""The file descriptor of standard error."""

HEARTBEAT = 300
"""Seconds after which JAX takes a silent process for dead. `peers.py` finds out before, and names the process."""


@attrs.frozen
class Hosts:
    """The place of this process among others.

    coordinator: HOST:PORT of process 0. detect: take the place from what JAX finds: SLURM, Open MPI, TPU pods, Kubernetes.
    seconds: the time in which all processes must join.
    """

    coordinator: str | None = None
    processes: int | None = None
    process_id: int | None = None
    detect: bool = False
    seconds: int = 50

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
        jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM
        if self.processes is not None:
            reserve(devices // self.processes)
        where = self.coordinator or "the cluster that JAX finds"
        with _native_errors() as written, _joining(self.seconds):
            end_on_abort(lambda: self._alone(where, written()))
            try:
                jax.distributed.initialize(
                    heartbeat_timeout_seconds=HEARTBEAT,
                    initialization_timeout=self.seconds + LATE,
                    **self._place(),
                )
            except Exception as error:  # gRPC and XLA raise many kinds
                reason = str(error).strip().partition("\n")[0]
                raise Unavailable(f"cannot join the other processes at {where}: {reason}") from None

    def _alone(self, where: str, errors: str) -> str:
        """Return the message for an abort: JAX ends the process if the others do not join. errors: JAX's own messages."""
        own = "this process" if self.process_id is None else f"process {self.process_id} of {self.processes}"
        if absent := absent_processes(errors):
            missing = f"{absent} not joined"
        elif self.process_id == 0:
            missing = "one of the others has not joined"
        else:
            missing = "process 0 is not there, or lacks others"
        return (
            f"{own} has waited {self.seconds} s at {where}: {missing}; start all processes within that time, or wait longer"
            " with --join-seconds"
        )

    def _place(self) -> dict[str, Any]:
        if self.detect:
            return {}
        return {
            "coordinator_address": self.coordinator,
            "num_processes": self.processes,
            "process_id": self.process_id,
        }


def absent_processes(errors: str) -> str:
    """Return `processes 1, 2 and 5 more have`, from messages of JAX's coordination service, which names some; or nothing."""
    found = re.search(
        r"reached the barrier: (\d+)/(\d+)\.\n.*timed out task names:\s*\n((?:\S*\d\n)+)", errors
    )
    if found is None:
        return ""
    names = sorted({int(each) for each in re.findall(r"(\d+)\n", found[3])})
    more = int(found[2]) - int(found[1]) - len(names)
    shown = ", ".join(map(str, names)) + (f" and {more} more" if more > 0 else "")
    return f"process {shown} has" if len(names) == 1 and more <= 0 else f"processes {shown} have"


@contextmanager
def _joining(seconds: int) -> Iterator[None]:
    """Let process 0 end the wait for the others by itself: only then JAX says which ones are missing.

    JAX has no option for this.
    """
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    service = _jax.get_distributed_runtime_service
    _jax.get_distributed_runtime_service = partial(service, cluster_register_timeout=seconds)
    try:
        yield
    finally:
        _jax.get_distributed_runtime_service = service


@contextmanager
def _native_errors() -> Iterator[Callable[[], str]]:
    """Collect what libraries write to standard error; yield a function that returns it and ends the collection."""
    if os.environ.get("MTFC_DEBUG"):
        yield str
        return
    sys.stderr.flush()
    before = os.dup(STDERR)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), STDERR)

        def written() -> str:
            os.dup2(before, STDERR)
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield written
        finally:
            os.dup2(before, STDERR)
            os.close(before)


def keep_libraries_quiet() -> None:
    """Let Python alone write to the standard output and to standard error; MTFC_DEBUG shows the libraries' errors, too.

    Gloo prints a line for each group of processes that it connects, and JAX a C++ stack when another process is gone.
    """
    sys.stdout = _private(sys.stdout)
    if not os.environ.get("MTFC_DEBUG"):
        sys.stderr = _private(sys.stderr)


def _private(stream: TextIO) -> TextIO:
    """Return a stream with a file descriptor of its own to the same file; the old descriptor leads nowhere."""
    stream.flush()
    own = os.dup(stream.fileno())
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
    return os.fdopen(own, "w", 1, encoding=stream.encoding, errors=stream.errors)
