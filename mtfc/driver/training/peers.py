"""A watch over the other processes of a training run: each one learns within seconds which process has ended, and ends, too.

A collective never returns if one of its processes is gone. JAX notices that by a timeout of minutes, and does not say which
process it was. So every process keeps a TCP connection to process 0. The system closes the connections of a process that ends in
any way, and keepalive packets find machines that are gone.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs

from mtfc.backends.common.devices import import_jax
from mtfc.driver.errors import ENVIRONMENT, say

GOODBYE = "goodbye"
"""The line that a process sends before it ends in order."""

KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds of silence before a first packet, seconds between packets, packets without an answer: 20 s in all."""

WAIT = 15.0
"""Seconds that a failed process waits for the name of the process that has ended."""


@attrs.define
class Peers:
    """The connections of this process. lost: set when another process has ended without a goodbye."""

    index: int
    count: int
    connections: list[socket.socket] = attrs.field(factory=list)
    lost: threading.Event = attrs.field(factory=threading.Event)

    def watch(self, connection: socket.socket, name: str | None) -> None:
        """Read lines of one connection until it ends. name: the process at its other end, None until it introduces itself."""
        with suppress(OSError), connection.makefile("r", encoding="utf-8") as lines:
            for line in map(str.strip, lines):
                if line == GOODBYE:
                    return
                if name is None:
                    name = line
                else:
                    self.end(line)  # process 0 passes on the name of a process that has ended
        self.end(name or "a process that never introduced itself")

    def end(self, name: str) -> None:
        """Tell the others which process has ended, and end this one."""
        if self.lost.is_set():
            return
        self.lost.set()
        for connection in self.connections:
            with suppress(OSError):
                connection.sendall(f"{name}\n".encode())
        say(
            f"{name} has ended: the others end, too; the same command on all processes goes on from the last checkpoint"
        )
        os._exit(ENVIRONMENT)

    def goodbye(self) -> None:
        """Say that this process ends in order."""
        for connection in self.connections:
            with suppress(OSError):
                connection.sendall(f"{GOODBYE}\n".encode())

    def blamed(self) -> bool:
        """Wait for the name of a process that has ended, after an error of this one; False if none has."""
        return self.lost.wait(WAIT)


@contextmanager
def watched_peers(host: str | None = None) -> Iterator[Peers | None]:
    """Watch the other processes of `jax.distributed` during the block; None if there are none.

    host: the host of process 0 if it is known; else process 0 tells its address.
    """
    jax = import_jax()
    index, count = jax.process_index(), jax.process_count()
    if count == 1:
        yield None
        return
    peers = Peers(index, count)
    listener = _listen() if index == 0 else None
    address, port = _agreed_address(listener)
    if listener is not None:
        threads = [_started(peers, _accepted(peers, listener), None) for _ in range(count - 1)]
    else:
        connection = socket.create_connection((host or address, port), timeout=60)
        connection.settimeout(None)
        _keep_alive(connection)
        connection.sendall(f"{_own_name(index, count)}\n".encode())
        peers.connections.append(connection)
        threads = [_started(peers, connection, f"process 0 of {count}")]
    yield peers
    peers.goodbye()
    for thread in threads:
        thread.join(WAIT)


def _own_name(index: int, count: int) -> str:
    return f"process {index} of {count} (pid {os.getpid()} on {socket.gethostname()})"


def _listen() -> socket.socket:
    listener = socket.create_server(("", 0))
    listener.settimeout(60)
    return listener


def _accepted(peers: Peers, listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    _keep_alive(connection)
    peers.connections.append(connection)
    return connection


def _started(peers: Peers, connection: socket.socket, name: str | None) -> threading.Thread:
    thread = threading.Thread(target=peers.watch, args=(connection, name), daemon=True)
    thread.start()
    return thread


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _agreed_address(listener: socket.socket | None) -> tuple[str, int]:
    """Return the address of process 0, which has the listener; JAX sends it to the others."""
    import numpy as np
    from jax.experimental import multihost_utils

    own: Any = np.zeros(5, np.int32)
    if listener is not None:
        with suppress(OSError):
            own[:4] = [int(part) for part in socket.gethostbyname(socket.gethostname()).split(".")]
        own[4] = listener.getsockname()[1]
    found = [int(number) for number in np.asarray(multihost_utils.broadcast_one_to_all(own))]
    return ".".join(map(str, found[:4])), found[4]
