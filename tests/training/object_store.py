"""A stand-in for an object store, as a file system of fsspec over a folder: `shop://bucket/name`.

As in an object store, each object is written whole, and nothing can be appended, renamed or locked. A store can be told to be
gone after some changes, as it is for a process that was killed.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec

ROOT = "SHOP_ROOT"
"""The variable of the environment that names the folder."""

PART = ".part-of-an-object"


class ObjectStore(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """left: the number of changes before the store is gone; None for ever. changes: those so far. delay: seconds of a change."""

    protocol = "shop"
    cachable = False
    left: int | None = None
    changes = 0
    delay = 0.0

    def _place(self, path: str) -> Path:
        return Path(os.environ[ROOT]) / self._strip_protocol(path)

    def _change(self) -> None:
        self._check()
        time.sleep(ObjectStore.delay)
        if ObjectStore.left is not None:
            ObjectStore.left -= 1
        ObjectStore.changes += 1

    def _check(self) -> None:
        if ObjectStore.left == 0:
            raise OSError("the network is gone")

    def find(self, path: str, detail: bool = False, **_: Any) -> Any:
        self._check()
        root, place = Path(os.environ[ROOT]), self._place(path)
        files = [place] if place.is_file() else [each for each in place.rglob("*") if each.is_file()]
        found = {each.relative_to(root).as_posix(): each for each in files if not each.name.endswith(PART)}
        infos = {
            name: {"name": name, "size": each.stat().st_size, "mtime": each.stat().st_mtime_ns}
            for name, each in sorted(found.items())
        }
        return infos if detail else list(infos)

    def exists(self, path: str, **_: Any) -> bool:
        self._check()
        return self._place(path).is_file()

    def isdir(self, path: str) -> bool:
        return self._place(path).is_dir()

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: there are no folders."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self._check()
        return self._place(path).read_bytes()[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._change()
        with self._whole(path) as part:
            part.write_bytes(value)

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self._change()
        with self._whole(rpath) as part:
            shutil.copyfile(lpath, part)

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        self._check()
        Path(lpath).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._place(rpath), lpath)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        self.pipe_file(path2, self.cat_file(path1))

    def rm_file(self, path: str) -> None:
        self._change()
        self._place(path).unlink()

    @contextmanager
    def _whole(self, path: str) -> Iterator[Path]:
        place = self._place(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(uuid4().hex + PART)
        yield part
        part.replace(place)


def install() -> None:
    """Let fsspec know the protocol."""
    fsspec.register_implementation("shop", ObjectStore, clobber=True)
