"""Files of other machines, such as `gs://bucket/tokens.bin`: copied once to this machine's cache, which is then read.

Data are memory-mapped and weights are read in parts, which an object store cannot do. The name of a copy depends on the size and
the version of the remote file, so that a changed file is copied again.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from mtfc.backends.common.devices import Unavailable
from mtfc.driver.data.packages import import_package
from mtfc.driver.errors import UsageError, say

URL = re.compile(r"[a-z][a-z0-9]+://[^\s,=:@]+")
"""A remote path, also within a specification of data."""

VERSIONS = ("etag", "ETag", "md5Hash", "mtime", "updated", "LastModified", "created")
"""The names that file systems of fsspec give to the version of a file."""


def is_remote(path: str) -> bool:
    return URL.match(path) is not None


def with_local_copies(spec: str) -> str:
    """Return a text with the paths of local copies in place of remote ones. Raises `Unavailable` and `UsageError`."""
    return URL.sub(lambda match: str(_local_copy(match[0])), spec)


def _local_copy(url: str) -> Path:
    """Copy a file or a folder to the cache, whole or not at all, unless the cache has this version."""
    fsspec = import_package("fsspec", "fsspec", url, "remote")
    try:
        system, path = fsspec.core.url_to_fs(url)
        found = system.find(path, detail=True)
        if not found:
            raise UsageError(f"{url}: no such file or directory")
        place = _cache() / _identity(url, found) / Path(path.rstrip("/")).name
        if not place.exists():
            say(f"copying {url} to {place}")
            _copy(system, path, place)
    except ImportError as error:
        raise Unavailable(f"{url}: {error}: pip install 'mtfc[remote]'") from None
    except (UsageError, Unavailable):
        raise
    except Exception as error:  # of many kinds, by the file systems of fsspec
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise Unavailable(f"cannot read {url}: {reason}") from None
    return place


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
    lines = [
        f"{name} {info.get('size')} {[str(info.get(each)) for each in VERSIONS]}"
        for name, info in sorted(found.items())
    ]
    return sha256("\n".join([url, *lines]).encode()).hexdigest()[:16]


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "mtfc" / "remote"
