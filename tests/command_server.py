"""Run commands in forks of one process that has imported the compiler: the start of a command takes longer than most commands.

A client stands in the place of `mtfc` or `python`. It sends its arguments, folder, environment and standard files to a server
at a socket, and ends as the fork ends. One server has imported JAX, for the commands that compute with JAX or read functions of
JAX. All other commands go to a server without JAX: they must do without. `Started` is a client within a test, which can send
signals to the fork.
"""

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from select import select
from tempfile import TemporaryFile
from types import ModuleType
from typing import NoReturn

ROOT = Path(__file__).parents[1]

IMPORTED = ("mtfc.cli", "mtfc.driver")
"""Packages whose modules a server imports, with what these import."""

OF_JAX = ("jax.numpy", "grain", "orbax.checkpoint", "mtfc.backends.jax.jax_program")
"""Modules that a server with JAX imports besides."""

CLIENT = """\
#!{python} -IS
import json, os, socket, sys
arguments = sys.argv[1:]
script = arguments and arguments[0].endswith(".py") and b"jax" in open(arguments[0], "rb").read()
with_jax = script or {{"train", "eval", "verify"}} & {{*arguments[:1]}} or {{"jax", "--args"}} & {{*arguments}}
server = socket.socket(socket.AF_UNIX)
server.connect({folder!r} + ("/jax" if with_jax else "/plain"))
request = json.dumps([{name!r}, arguments, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [len(request).to_bytes(4, "little")], [0, 1, 2])
server.sendall(request)
number, status = map(int, server.makefile())
sys.exit(status if status >= 0 else 128 - status)
"""


@contextmanager
def command_servers(folder: Path, environment: Mapping[str, str], with_jax: Path) -> Iterator[None]:
    """Put the programs `mtfc` and `python` into a folder, and serve their commands until the block ends.

    with_jax: the socket of a server that has imported JAX.
    """
    (folder / "jax").symlink_to(with_jax)
    for name in ("mtfc", "python"):
        text = CLIENT.format(python=sys.executable, name=name, folder=str(folder))
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o755)
    with server(folder, "plain", environment):
        yield


@contextmanager
def server(folder: Path, kind: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Serve commands at a socket in a folder, whose path is yielded, until the block ends."""
    command = [sys.executable, "-m", "tests.command_server", str(folder / kind), kind]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe
    ) as process:  # the end closes its input
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield folder / kind


class Started:
    """A `python` command in a fork of a server. pid: that of the fork. The methods are those of `subprocess.Popen`."""

    def __init__(
        self, place: Path, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> None:
        """Start the command. place: the socket of a server. timeout: seconds to wait for the end in `communicate`."""
        self._files = TemporaryFile("w+"), TemporaryFile("w+")  # noqa: SIM115
        self._server = socket.socket(socket.AF_UNIX)
        self._server.connect(str(place.resolve()))
        self._server.settimeout(timeout)
        request = json.dumps(["python", arguments, str(cwd), dict(env)]).encode()
        files = [0, *(each.fileno() for each in self._files)]
        socket.send_fds(self._server, [len(request).to_bytes(4, "little")], files)
        self._server.sendall(request)
        self._answers = self._server.makefile()
        self.pid = int(self._answers.readline())

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def is_running(self) -> bool:
        return not select([self._server], [], [], 0)[0]

    def kill(self) -> None:
        """Kill the process, if it has not ended."""
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[str, str]:
        """Wait for the end; return output and errors."""
        self.returncode = int(self._answers.readline())
        for each in self._files:
            each.seek(0)
        out, err = (each.read() for each in self._files)
        return out, err


def main(place: str, kind: str) -> None:
    """Serve commands until standard input ends."""
    for package in map(import_module, IMPORTED):
        for each in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(each.name)
    assert "jax" not in sys.modules
    for module in OF_JAX if kind == "jax" else ():
        import_module(module)
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen()
    print("ready", flush=True)
    while sys.stdin not in select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        if not os.fork():
            listening.close()
            _answer(connection)
        connection.close()
        _reap(os.WNOHANG)
    _reap(0)


def _reap(options: int) -> None:
    """Wait for forks that have ended, or for all."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _answer(connection: socket.socket) -> NoReturn:
    """Run the command of a client in a fork, and send its exit status."""
    header, files, *_ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        program, arguments, folder, environment = json.loads(stream.read(int.from_bytes(header, "little")))
    child = os.fork()
    if not child:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        _end(_mtfc if program == "mtfc" else _python, arguments)
    connection.sendall(b"%d\n" % child)
    with suppress(BrokenPipeError):  # a test no longer waits
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


def _end(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> NoReturn:
    """Run a command, and end as Python does, but leave all modules as they are: to take them apart is most of an end."""
    try:
        status = command(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else end.code is not None
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _mtfc(arguments: Sequence[str]) -> int:
    """Run `python -m mtfc`, and checks of `verify` in this process, which costs no start of another."""
    checks = import_module("mtfc.driver.verification.checks")
    if arguments[:1] == ["verify"]:
        checks.results = checks.results_here  # type: ignore[attr-defined]
    sys.path[0] = str(Path.cwd())
    sys.argv = [str(ROOT / "mtfc" / "__main__.py"), *arguments]
    status: int = import_module("mtfc.cli").main()
    return status


def _python(arguments: Sequence[str]) -> int:
    """Run `python -c TEXT` or `python FILE`. An error is shown without the frame of this function."""
    if arguments[0] == "-c":
        text, file, folder, sys.argv = arguments[1], "<string>", "", ["-c", *arguments[2:]]
    else:
        text, file, sys.argv = Path(arguments[0]).read_text("utf-8"), arguments[0], [*arguments]
        folder = str(Path(file).resolve().parent)
    sys.path[0] = folder
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__dict__.update({} if arguments[0] == "-c" else {"__file__": file})
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
        return 1
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
