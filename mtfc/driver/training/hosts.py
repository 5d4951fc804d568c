"""The processes of one training run: they join, exchange values, and each learns within a minute which one has ended.

`jax.distributed` connects them, and each has some of the devices of the mesh. Besides, every process keeps a TCP connection to
process 0, and writes a line to it every few seconds. The system closes the connections of a process that ends in any way. A
process that is frozen, or a machine that is gone, is silent.

A collective never returns if one of its processes is gone. JAX watches its processes too, but aborts with a C++ stack, and does
not say which process it was. So its limits are longer than those here, and an abort waits for the name.
"""

import ctypes
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

import attrs

from mtfc.backends.common.devices import MOST_VIRTUAL, Unavailable, import_jax, reserve
from mtfc.driver.errors import ENVIRONMENT, UsageError, say

LATE = 5
"""Seconds that the others wait longer than process 0, which says who is missing."""

STDERR = 2
"""The file descriptor of standard error."""

HEARTBEAT = 300
"""Seconds after which JAX takes a silent process for dead. The links here find out before, and name the process."""


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
                    coordinator_address=self.coordinator,
                    num_processes=self.processes,
                    process_id=self.process_id,
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


BEAT = 5.0
"""Seconds between two lines of a process that has nothing else to say."""

SILENCE = 30
"""Seconds without a line after which a process counts as gone."""

JOINING = 50.0
"""Seconds in which all processes must connect."""

PATIENCE = 3.0
"""Seconds for a process to fail by itself after another one has: often the cause is the same, and each shows its own message."""

LEAVING = 5.0
"""Seconds that an ending process waits for the others to hear of it."""

MEETING = 24 * 3600 * 1000
"""Milliseconds in which all processes must have come to a place: a process that has ended is noticed before."""

NAMING = 45.0
"""Seconds that a failed process waits for the name of the process that has ended."""

AGAIN = "the others end, too; the same command on all processes goes on from the last checkpoint"


@attrs.define(eq=False)
class PeerLink:
    """A connection to another process. name: the process with its pid and host."""

    connection: socket.socket
    name: str
    writing: threading.Lock = attrs.field(factory=threading.Lock)
    closed: threading.Event = attrs.field(factory=threading.Event)

    def send(self, **message: Any) -> None:
        with suppress(OSError), self.writing:
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield messages until the connection is closed. Raises `TimeoutError` after `SILENCE`.

        A process counts its own seconds: if it was stopped itself for a while, it does not blame the others.
        """
        rest, quiet = b"", 0
        reading = self.connection.dup()
        reading.settimeout(1.0)
        with reading:
            while quiet < SILENCE:
                try:
                    part = reading.recv(1 << 16)
                except TimeoutError:
                    quiet += 1
                    continue
                if not part:
                    return
                *lines, rest = (rest + part).split(b"\n")
                quiet = 0
                yield from map(json.loads, lines)
        raise TimeoutError


@attrs.define(eq=False)
class Peers:
    """The other processes of a run; none without `jax.distributed`.

    links: to all others in process 0, and to process 0 in the others. on_stop: is told that another process was asked to stop;
    True if time is short. given: the values that process 0 has been given, until all are there. gathered: those of all.
    """

    index: int = 0
    count: int = 1
    links: dict[int, PeerLink] = attrs.field(factory=dict)
    on_stop: Callable[[bool], None] | None = None
    changing: threading.Lock = attrs.field(factory=threading.Lock)
    given: dict[int, Any] = attrs.field(factory=dict)
    gathered: SimpleQueue[list[Any]] = attrs.field(factory=SimpleQueue)
    leaving: bool = False

    @property
    def name(self) -> str:
        return f"process {self.index} of {self.count} (pid {os.getpid()} on {socket.gethostname()})"

    def name_of(self, index: int) -> str:
        """Return the name of a process, with pid and host where this process knows them."""
        if index == self.index:
            return self.name
        return self.links[index].name if index in self.links else f"process {index} of {self.count}"

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in their order: anything that JSON has. All call this equally often."""
        if self.count == 1:
            return [value]
        if self.index:
            self.links[0].send(value=value)
        else:
            self._take(0, value)
        return self.gathered.get()

    def meet(self, name: str) -> None:
        """Wait, in any thread, until all processes have come to a place, by a name that is new each time."""
        if self.count > 1:
            from jax._src.distributed import global_state

            assert global_state.client is not None
            global_state.client.wait_at_barrier(f"mtfc/{name}", MEETING)

    def tell_stop(self, is_short: bool, besides: int | None = None) -> None:
        """Tell the others that this process was asked to stop; process 0 passes it on."""
        for index, link in self.links.items():
            if index != besides:
                link.send(stop=is_short)

    def failed(self, reason: str) -> None:
        """Tell the others that this process ends with an error, and wait until they have heard."""
        if self._leave():
            text = f"{self.name} has failed: {reason}"
            self._tell(failed=text)

    def end(self, text: str, status: int = ENVIRONMENT) -> None:
        """Tell the others why the run ends, and end this process."""
        if self._leave():
            say(text)
            with suppress(OSError, ValueError):
                sys.stdout.flush()
            self._tell(ended=text, status=status)
            os._exit(status)

    def finish(self) -> None:
        """Wait until all processes have come to their end in order."""
        self.gather(None)
        if self._leave():
            self._tell(finished=True)  # process 0 stays until the last: JAX aborts processes that outlive it

    def blamed(self) -> None:
        """Wait for the name of a process that has ended, after an error of this one: then the process ends."""
        time.sleep(NAMING)

    def aborted(self) -> str:
        """Return why this process ends where JAX aborts it, if no other process is named before."""
        self.blamed()
        return f"JAX has ended {self.name}"

    def _leave(self) -> bool:
        """Return True for the first caller: a process ends once."""
        with self.changing:
            first, self.leaving = not self.leaving, True
        return first

    def _tell(self, **message: Any) -> None:
        """Send a last message to all other processes, and wait a while until they have closed their ends."""
        for link in self.links.values():
            link.send(**message)
            with suppress(OSError):
                link.connection.shutdown(socket.SHUT_WR)
        until = time.monotonic() + LEAVING
        for link in self.links.values():
            link.closed.wait(max(0.0, until - time.monotonic()))

    def _take(self, index: int, value: Any) -> None:
        """Take a value for process 0, and pass on the values once all are there: until then, no process gives another."""
        with self.changing:
            self.given[index] = value
            if len(self.given) < self.count:
                return
            whole, self.given = [self.given[each] for each in range(self.count)], {}
        for link in self.links.values():
            link.send(values=whole)
        self.gathered.put(whole)

    def watch(self, index: int) -> None:
        """Read what another process says until its connection is closed; then end, unless this process is ending."""
        link = self.links[index]
        reason = "has ended"
        try:
            for message in link.messages():
                if "finished" in message:
                    link.closed.set()
                    return
                self._hear(index, message)
        except TimeoutError:
            reason = f"has not answered for {SILENCE} s"
        except OSError:
            pass
        link.closed.set()
        self.end(f"{link.name} {reason}: {AGAIN}")

    def _hear(self, index: int, message: dict[str, Any]) -> None:
        """Act on the message of another host: a value, a stop, a failure, or its end. index: the number of that host."""
        if "value" in message:
            self._take(index, message["value"])
        elif "values" in message:
            self.gathered.put(message["values"])
        elif "stop" in message:
            if self.index == 0:
                self.tell_stop(message["stop"], besides=index)
            if self.on_stop is not None:
                self.on_stop(message["stop"])
        elif "failed" in message:
            time.sleep(PATIENCE)
            self.end(f"{message['failed']}; {AGAIN}")
        elif "ended" in message:
            self.end(message["ended"], message["status"])

    def beat(self) -> None:
        """Say every few seconds that this process lives."""
        while True:
            time.sleep(BEAT)
            for link in self.links.values():
                link.send()


@contextmanager
def watched_peers() -> Iterator[Peers]:
    """Connect to the other processes of `jax.distributed`, and watch them during the block.

    Raises `Unavailable` if one of them does not connect. JAX's devices are not used: they wait for all processes.
    """
    from jax._src.distributed import global_state

    if global_state.client is None or global_state.num_processes == 1:
        yield Peers()
        return
    peers = Peers(global_state.process_id, global_state.num_processes)
    _connect(peers, global_state)
    end_on_abort(peers.aborted)
    for index in peers.links:
        threading.Thread(target=peers.watch, args=(index,), daemon=True).start()
    threading.Thread(target=peers.beat, daemon=True).start()
    try:
        with _collectives_named(peers):
            yield peers
    except BaseException as error:
        is_stop = isinstance(error, KeyboardInterrupt)
        peers.failed(
            "it was interrupted" if is_stop else str(error).partition("\n")[0] or type(error).__name__
        )
        raise
    peers.finish()


@contextmanager
def _collectives_named(peers: Peers) -> Iterator[None]:
    """Wait for the name of the process behind the error of a collective without all its processes."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not is_of_a_collective(error):
            raise
        peers.blamed()
        reason = str(error).strip().partition("\n")[0]
        raise Unavailable(f"a collective of several processes has failed: {reason}") from None


def is_of_a_collective(error: Exception) -> bool:
    """Return True for an error of XLA, if several processes compute. JAX makes a `ValueError` of some of Gloo's."""
    return isinstance(error, import_jax().errors.JaxRuntimeError) or "Gloo" in str(error)


def end_on_abort(reason: Callable[[], str]) -> None:
    """End this process with a sentence where a library would abort it."""

    def handle(_: int) -> None:
        say(reason())
        os._exit(ENVIRONMENT)

    handler = HANDLER(handle)
    HANDLERS.append(handler)
    install = ctypes.CDLL(None).signal
    install.argtypes = (ctypes.c_int, HANDLER)
    install(signal.SIGABRT, handler)


HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)

HANDLERS: list[Any] = []
"""C functions that stay alive as long as the process."""

KEY = "mtfc/peers"
"""The name under which process 0 publishes its port, and a word that its peers know."""


def _connect(peers: Peers, jax_state: Any) -> None:
    """Fill in the links."""
    if peers.index == 0:
        with _listener() as listener:
            word = uuid.uuid4().hex
            jax_state.client.key_value_set(KEY, json.dumps([listener.getsockname()[1], word]))
            _accept(peers, listener, word)
        return
    try:
        port, word = json.loads(jax_state.client.blocking_key_value_get(KEY, int(1000 * JOINING)))
        host = jax_state.coordinator_address.rpartition(":")[0].strip("[]")
        connection = socket.create_connection((host, port), timeout=JOINING)
        hello = {"word": word, "index": peers.index, "name": peers.name}
        connection.sendall(json.dumps(hello).encode() + b"\n")
        peers.links[0] = PeerLink(connection, _line(connection)["name"])
    except Exception as error:  # gRPC raises many kinds
        reason = str(error).strip().partition("\n")[0]
        raise Unavailable(f"{peers.name} cannot reach process 0 of {peers.count}: {reason}") from None


def _listener() -> socket.socket:
    """Return a socket that other processes can connect to, by IPv6 too if the system has it."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _accept(peers: Peers, listener: socket.socket, word: str) -> None:
    """Accept the connections of all other processes. Whoever does not know the word is none of them."""
    until = time.monotonic() + JOINING
    while len(peers.links) < peers.count - 1:
        listener.settimeout(max(0.01, until - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            missing = [str(i) for i in range(1, peers.count) if i not in peers.links]
            raise Unavailable(
                f"process{'es' * (len(missing) > 1)} {', '.join(missing)} of {peers.count} did not connect to {peers.name}"
                f" within {JOINING:.0f} s: its ports must be open to all others"
            ) from None
        connection.settimeout(JOINING)
        with suppress(OSError, ValueError, KeyError, TypeError):
            hello = _line(connection)
            if hello["word"] == word:
                peers.links[hello["index"]] = PeerLink(connection, hello["name"])
                peers.links[hello["index"]].send(name=peers.name)


def _line(connection: socket.socket) -> dict[str, Any]:
    """Return the first message of a connection, which is short and alone."""
    with connection.makefile("rb", buffering=0) as lines:
        line = lines.readline(1000)
    if not line:
        raise OSError("the connection was closed")
    message = json.loads(line)
    return message if isinstance(message, dict) else {}
