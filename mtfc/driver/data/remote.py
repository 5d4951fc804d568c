"""Files of other machines, such as `gs://bucket/tokens.bin`: copied once to this machine's cache, which is then read.

Data are memory-mapped and weights are read in parts, which an object store cannot do. The name of a copy depends on the size and
the version of the remote file, so that a changed file is copied again.

`RemoteFolder` writes: each file whole, because object stores cannot append, rename or lock.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mtfc.backends.common.devices import Unavailable
from mtfc.compiler.records import frozen
from mtfc.driver.data.packages import import_package
from mtfc.driver.errors import UsageError, say

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
        raise Unavailable(f"{url}: {error}: pip install 'mtfc[remote]'") from None
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
