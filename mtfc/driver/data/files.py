"""Read and write files of this machine: completely, or not at all. Read and write files of other machines by way of copies.

A file of another machine, such as `gs://bucket/tokens.bin`, is copied once to this machine's cache, which is then read. Data are
memory-mapped and weights are read in parts, which an object store cannot do. The name of a copy depends on the size and the
version of the remote file, so that a changed file is copied again.

`RemoteFolder` writes: each file whole, because object stores cannot append, rename or lock.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any, TextIO

from mtfc.backends.common.devices import Unavailable, installing
from mtfc.compiler.records import frozen
from mtfc.driver.data.packages import import_package
from mtfc.driver.errors import UsageError, raised_as, say

SCHEME = re.compile(r"[a-z][a-z0-9]+://")
"""The start of a remote path."""

URL = re.compile(r"[a-z][a-z0-9]+://[^\s,=:@]+")
"""A remote path, also within a specification of data."""

VERSIONS = ("etag", "ETag", "md5Hash", "mtime", "updated", "LastModified", "created")
"""The names that file systems of fsspec give to the version of a file."""


def is_remote(path: str) -> bool:
    return SCHEME.match(path) is not None


def with_local_copies(spec: str) -> str:
    """Return a text with the paths of local copies in place of remote ones. Raises `Unavailable` and `UsageError`."""
    return URL.sub(lambda match: str(local_copy(match[0])), spec)


def local_copy(url: str) -> Path:
    """Copy a file or a folder to the cache, whole or not at all, unless the cache has this version."""
    with reported(f"cannot read {url}"):
        system, path = _system(url)
        found = system.find(path, detail=True)
        if not found:
            raise UsageError(f"{url}: no such file or directory")
        place = cache() / "remote" / _identity(url, found) / Path(path.rstrip("/")).name
        if not place.exists():
            say(f"copying {url} to {place}")
            _copy(system, path, place)
    return place


def _system(url: str) -> tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the path in it. Raises `Unavailable` if its package is missing."""
    fsspec = import_package("fsspec", "fsspec", url, "remote")
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise Unavailable(f"{url}: {error}: {installing('remote')}") from None
    return system, str(path).rstrip("/")


@contextmanager
def reported(message: str) -> Iterator[None]:
    """Raise `Unavailable` with a message and the reason for the errors of file systems, which are of many kinds."""
    try:
        yield
    except (UsageError, Unavailable):
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise Unavailable(f"{message}: {reason}") from None


def _copy(system: Any, path: str, place: Path) -> None:
    """Copy a file or a folder from a remote file system to a place, which appears only when it is complete."""
    import shutil
    import tempfile

    place.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=place.parent, prefix=".part"))
    try:
        target = part / place.name
        system.get(path.rstrip("/"), str(target), recursive=system.isdir(path))
        if not place.exists():  # another process may have been faster
            target.rename(place)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _identity(url: str, found: dict[str, dict[str, Any]]) -> str:
    """Return a hash of the names, sizes and versions of files."""
    from hashlib import sha256  # loads OpenSSL, which commands without remote files need not do

    lines = [
        f"{name} {info.get('size')} {[str(info.get(each)) for each in VERSIONS]}"
        for name, info in sorted(found.items())
    ]
    return sha256("\n".join([url, *lines]).encode()).hexdigest()[:16]


def cache() -> Path:
    """Return the folder of this machine for copies."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "mtfc"


@frozen
class RemoteFolder:
    """A folder of a remote file system, whose files are written whole. Names are relative to the folder.

    The methods raise `Unavailable` with the URL if the file system cannot be reached or refuses.
    """

    url: str
    system: Any

    @classmethod
    def open(cls, url: str) -> RemoteFolder:
        """Return the folder, which need not exist.

        Raises `Unavailable` if the package of its file system is missing, and `UsageError` for a URL without a place.
        """
        if url.rstrip("/").endswith(":"):
            raise UsageError(f"{url} names no place: write a bucket or folder after it")
        with reported(f"cannot use {url}"):
            system, path = _system(url)
            wrapper = import_package("fsspec.implementations.dirfs", "fsspec", url, "remote").DirFileSystem
            return cls(url.rstrip("/"), wrapper(path, system))

    def names(self, under: str = "") -> list[str]:
        """Return the names of the files in the folder, or in a folder of it, as the file system has them now."""
        with reported(f"cannot read {self.url}"):
            self.system.invalidate_cache()
            try:
                found = self.system.find(under)
            except FileNotFoundError:
                return []
        return sorted(each for each in found if each and not each.endswith("/"))

    def has(self, name: str) -> bool:
        """Return True if there is a file of that name."""
        with reported(f"cannot read {self.url}/{name}"):
            return bool(self.system.exists(name))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is no such file."""
        with reported(f"cannot read {self.url}/{name}"):
            try:
                return bytes(self.system.cat_file(name))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or replace it."""
        with reported(f"cannot write {self.url}/{name}"):
            self._make_folders([name])
            self.system.pipe_file(name, content)

    def send(self, files: Mapping[str, Path]) -> None:
        """Copy files of this machine, each to its name."""
        with reported(f"cannot write to {self.url}"):
            self._make_folders(files)
            self.system.put([str(each) for each in files.values()], list(files))

    def fetch(self, names: Collection[str], to: Path) -> None:
        """Copy files to a folder of this machine, under their names."""
        for name in names:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
        with reported(f"cannot read {self.url}"):
            self.system.get(list(names), [str(to / name) for name in names])

    def copy(self, name: str, new: str) -> None:
        """Copy a file within the folder."""
        with reported(f"cannot write {self.url}/{new}"):
            self._make_folders([new])
            self.system.cp_file(name, new)

    def remove(self, names: Collection[str]) -> None:
        """Remove files, as far as they are there."""
        with reported(f"cannot remove files of {self.url}"):
            for name in names:
                try:
                    self.system.rm_file(name)
                except FileNotFoundError:
                    continue

    def _make_folders(self, names: Collection[str]) -> None:
        """Make the folders of files; object stores have none, and a missing bucket is not ours to make."""
        if not self.system.fs.async_impl:
            for folder in {self.system._parent(name) for name in names}:
                self.system.makedirs(folder, exist_ok=True)


def write_remotely(url: str, write: Callable[[IO[bytes]], object]) -> None:
    """Write a remote file by way of a file of this machine. Raises `Unavailable`."""
    import tempfile

    folder, _, name = url.rpartition("/")
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache(), prefix=".part") as file:
        write(file)
        file.flush()
        RemoteFolder.open(folder).send({name: Path(file.name)})


# Files of this machine

STANDARD = "-"
"""Standard input or output."""

OUTPUTS = (STANDARD, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
"""The names of the standard output."""


LARGEST_TEXT = 64 << 20
"""Bytes of a program up to which it is read."""


CHUNK = 1 << 16


def read_bytes(path: str, most: int | None = None) -> bytes:
    """Return the content of a file, or of standard input, if it has at most so many bytes. Raises `UsageError`."""
    with raised_as(UsageError, f"cannot read {path}", OSError, ValueError):
        if path == STANDARD:
            content = _read(sys.stdin.buffer, most)
        else:
            _refuse_pipe(Path(path))
            with Path(path).open("rb") as file:
                content = _read(file, most)
    if most is not None and len(content) > most:
        raise UsageError(f"cannot read {path}: it has more than {most >> 20} MiB")
    return content


def readable_texts(files: Iterable[str]) -> dict[str, str]:
    """Return the texts of files by name; those that cannot be read are left out, such as code that was made at run time."""
    found: dict[str, str] = {}
    for file in dict.fromkeys(files):
        with suppress(OSError, UnicodeDecodeError):
            found[file] = Path(file).read_text("utf-8")
    return found


def _read(file: IO[bytes], most: int | None) -> bytes:
    """Return the content, or its first part if it is longer: a read of `most` bytes at once would take memory for all of them."""
    if most is None:
        return file.read()
    parts, length = [], 0
    while length <= most and (part := file.read(CHUNK)):
        parts.append(part)
        length += len(part)
    return b"".join(parts)


def _refuse_pipe(path: Path) -> None:
    """Raise `ValueError` for a named pipe, on which a reader may wait for ever. A shell's `<(command)` is in /dev."""
    if path.is_fifo() and path.parts[:2] not in (("/", "dev"), ("/", "proc")):
        raise ValueError("it is a pipe; write `-` and redirect the pipe to standard input")


def parsed_json(content: bytes | str) -> Any:
    """Return the content of a JSON file that nobody vouches for. Raises `ValueError`, and nothing else.

    JSON has no infinite numbers, which Python reads. Lists in thousands of lists are none of ours.
    """

    def refuse(word: str) -> None:
        raise ValueError(f"it has the number {word}")

    try:
        return json.loads(content, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_neighbour(path: str) -> str | None:
    """Return the text of a file that another file imports; None if it does not exist. Raises `UsageError` and `CompileError`."""
    from mtfc.frontend.syntax.lexer import decode

    return decode(read_bytes(path, LARGEST_TEXT), path) if Path(path).is_file() else None


def check_writable(*paths: str | None) -> None:
    """Raise `UsageError`, before work begins, if a result cannot be written, or if two results go to one file.

    Standard error says if a result will replace a file.
    """
    seen: dict[Path | str, str] = {}
    for path in (each for each in paths if each is not None):
        place = STANDARD if path in OUTPUTS else _remote_place(path) if is_remote(path) else _place(path)
        if place in seen and (place == STANDARD or not Path(place).is_char_device()):
            raise UsageError(f"{seen[place]} and {path} are the same file: each result needs one of its own")
        seen[place] = path
    for place, path in seen.items():
        if isinstance(place, Path) and place.is_file() and place.stat().st_size:
            say(f"{path} exists, and will be replaced")


def check_apart(results: Mapping[str, str | None], inputs: Mapping[str, str | None]) -> None:
    """Raise `UsageError` if a result would replace an input of the same run. Both are paths by option."""
    places = {option: place for option, path in inputs.items() if (place := _regular(path))}
    for result, path in results.items():
        place = _regular(path)
        taken = next((option for option, each in places.items() if place == each), None)
        if place is not None and taken is not None:
            raise UsageError(
                f"{result} {path} would overwrite the file that {taken} names: give the result a file of its own"
            )


def _regular(path: str | None) -> Path | None:
    """Return the resolved path of a regular file, or None; a remote file may exist."""
    if path is not None and is_remote(path):
        return Path(path)
    try:
        place = Path(path).resolve() if path and path != STANDARD else None
        return place if place is not None and place.is_file() else None
    except (OSError, RuntimeError, ValueError):  # other checks say what is wrong with the name
        return None


def _remote_place(url: str) -> str:
    """Return the URL of an output file. Raises `Unavailable` if its file system cannot be reached, or its package is missing."""
    folder, _, name = url.rpartition("/")
    if RemoteFolder.open(folder).has(name):
        say(f"{url} exists, and will be replaced")
    return url


def _place(path: str) -> Path:
    """Return the path of an output file. Raises `UsageError` if it cannot be written."""
    with raised_as(UsageError, f"cannot write {path}", OSError, RuntimeError):  # links in a circle, too
        target = _target(path)
        _check_place(target)
    return target


def _target(path: str) -> Path:
    """Return the resolved path of a regular or new file, else the given path: a pipe in /dev/fd resolves to nothing."""
    given = Path(path)
    return given if given.exists() and not given.is_file() else given.resolve()


def _check_place(target: Path) -> None:
    """Raise `OSError` with the path if a file cannot be written there."""
    in_place = target.exists() and not target.is_file()
    if target.is_dir():
        raise OSError(errno.EISDIR, "is a directory: name a file in it")
    if not target.parent.is_dir():
        if target.parent.exists():
            raise OSError(errno.ENOTDIR, "not a directory", str(target.parent))
        raise OSError(errno.ENOENT, "no such directory", str(target.parent))
    if not os.access(target if in_place else target.parent, os.W_OK):
        raise OSError(errno.EACCES, "permission denied", str(target))


def report_to(*paths: str | None) -> TextIO:
    """Return the stream for a report beside these files: standard error if one of the files is the standard output."""
    return sys.stderr if any(path in OUTPUTS for path in paths) else sys.stdout


def write_text(path: str, text: str) -> None:
    """Write a file, or to standard output. Raises `UsageError`."""
    if path in OUTPUTS:
        sys.stdout.write(text)
    else:
        write_atomically(path, lambda file: file.write(text.encode()))


def write_atomically(path: str, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file's content by the output of `write`, all at once: a reader never sees a part.

    A path that is no regular file, such as `/dev/null` or a pipe, is written in place, from memory: `write` may seek.
    Raises `UsageError`, and `Unavailable` for a remote file.
    """
    if is_remote(path):
        write_remotely(path, write)
        return
    target = _target(path)
    with raised_as(UsageError, f"cannot write {path}"):
        _check_place(target)
        if target.exists() and not target.is_file():
            write(content := BytesIO())
            with target.open("wb") as file:
                file.write(content.getbuffer())
        else:
            replace_file(target, write)


def replace_file(target: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace the content of a regular or new file, all at once. Raises `OSError`."""
    part = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    file = part.open("xb")
    try:
        with file:
            write(file)
        if target.exists():
            part.chmod(target.stat().st_mode & 0o7777)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def try_lock(file: IO[Any]) -> bool | None:
    """Lock a file until it is closed. Return False if another process has the lock, and None if there are no locks here.

    Raises `OSError` for another reason.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
