"""Checkpoints of training as folders: where they are, the record in each, and their arrays by name.

The folder of a run has a folder `checkpoints`, with a folder for each checkpoint that is named after its number of finished
steps. Orbax writes the arrays in the folder `state`. The record `about/about.json` says which arrays there are, and has a
checksum for each: a sum of the array's bits, which does not depend on how the array is split over devices.

Orbax renames a folder of this machine once it is whole. A remote folder has a file `unfinished` until it is whole.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs

from mtfc.driver.data.files import parsed_json
from mtfc.driver.data.packages import import_package
from mtfc.driver.data.remote import RemoteFolder, is_remote, local_copy
from mtfc.driver.errors import UsageError, reason_of

FORMAT = 2
"""The version of the folders' content."""

CHECKPOINTS, STATE, RECORD = "checkpoints", "state", "about/about.json"
"""Names in the folder of a run, and in the folder of a checkpoint."""

UNFINISHED = "unfinished"
"""The file in the remote folder of a checkpoint that is being written or removed."""

PARAMETERS, OPTIMIZER = "params/", "optimizer/"
"""The starts of the names of parameters, and of the states of the optimizer."""

REASON = 200
"""Maximum length of another library's message."""


@attrs.frozen
class About:
    """The record beside the arrays of a checkpoint.

    program: the name of the model. fingerprint: a hash of its undistributed IR. arrays: name, such as `params/w` -> dtype and
    shape. sums: name -> checksum. data: position in the data after the last step, or None without data. unevaluated: the figures
    of the step, if an evaluation followed the checkpoint. loss: that of the step, None if it was skipped; it tells the figures of
    this run from others.
    """

    program: str
    fingerprint: str
    step: int
    seed: int
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]
    sums: Mapping[str, int]
    data: Any = None
    unevaluated: Mapping[str, Any] | None = None
    loss: float | None = None

    def text(self) -> str:
        """Return the content of the JSON file, with a checksum of the rest."""
        record = {"format": FORMAT, **attrs.asdict(self)}
        return json.dumps({**record, "checksum": _checksum(record)})

    @classmethod
    def read(cls, place: Path) -> About:
        """Return the record of the checkpoint in a folder. Raises `OSError`, and `ValueError` with the fault of the record."""
        if not (place / RECORD).is_file():
            raise ValueError(f"it has no {RECORD}, so it is no checkpoint of mtfc, or a part of it is lost")
        try:
            record = parsed_json((place / RECORD).read_bytes())
            version = record["format"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{RECORD} is damaged") from None
        if version != FORMAT:
            raise ValueError(f"its format is {version}, and this version of mtfc reads format {FORMAT}")
        try:
            if record.pop("checksum") != _checksum(record):
                raise ValueError("the checksum is another")
            arrays = {name: (str(x), tuple(map(int, shape))) for name, (x, shape) in record["arrays"].items()}
            sums = {name: int(record["sums"][name]) for name in arrays}
            known = {name: record[name] for name in attrs.fields_dict(cls) if name in record}
            found = cls(**{**known, "arrays": arrays, "sums": sums})
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise ValueError(f"{RECORD} is damaged") from None
        if place.name.isdecimal() and int(place.name) != found.step:
            raise ValueError(f"{RECORD} is that of step {found.step}")
        return found


def _checksum(record: Mapping[str, Any]) -> int:
    """Return the CRC-32 of a record, in whatever order its entries are."""
    return crc32(json.dumps(record, sort_keys=True).encode())


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the whole checkpoints in a folder `checkpoints`, in order. Orbax renames a folder once it is whole."""
    if not folder.is_dir():
        return []
    return sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal() and each.is_dir())


def newest_checkpoint(path: Path) -> Path | None:
    """Return the newest checkpoint in a run's folder or in its folder `checkpoints`, or `path` if it is a checkpoint itself."""
    if (path / STATE).is_dir() or (path / RECORD).is_file():
        return path
    for folder in (path, path / CHECKPOINTS):
        steps = steps_in(folder)
        if steps and (folder.name == CHECKPOINTS or (folder / str(steps[-1]) / RECORD).is_file()):
            return folder / str(steps[-1])
    return None


def remote_steps(names: Collection[str], inside: str = f"{CHECKPOINTS}/") -> list[int]:
    """Return the steps of the whole checkpoints in a remote folder, in order. names: of the files in the folder of the run."""
    files = [name.removeprefix(inside) for name in names if name.startswith(inside)]
    folders = {file.partition("/")[0] for file in files if "/" in file}
    return sorted(int(each) for each in folders if each.isdecimal() and f"{each}/{UNFINISHED}" not in files)


def local_parameters(path: str) -> str:
    """Return the path of a file or folder with parameters, copied to this machine if it is remote.

    Of the folder of a run the newest checkpoint alone is copied. Raises `Unavailable` and `UsageError`.
    """
    if not is_remote(path):
        return path
    folder = RemoteFolder.open(path)
    names = folder.names()
    for inside in ("", f"{CHECKPOINTS}/"):
        steps = remote_steps(names, inside)
        if steps and f"{inside}{steps[-1]}/{RECORD}" in names:
            return str(local_copy(f"{folder.url}/{inside}{steps[-1]}"))
    if any(each.endswith(f"/{UNFINISHED}") for each in names):
        raise UsageError(f"{path} has no whole checkpoint yet")
    return str(local_copy(path))


def read_array(place: Path, about: About, array_name: str) -> Any:
    """Return an array of a checkpoint as a NumPy array, by its name in the record.

    Raises `Unavailable`, and `ValueError` with the fault.
    """
    import numpy as np

    ocp = orbax()
    kind, _, name = array_name.partition("/")
    wanted = {kind: {name: 0}}
    types = {kind: {name: ocp.RestoreArgs(restore_type=np.ndarray)}}
    arguments = ocp.args.PyTreeRestore(wanted, restore_args=types, partial_restore=True)
    with faults(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        array = reader.restore((place / STATE).resolve(), args=arguments)[kind][name]
    if sum_of_bits(array) != about.sums[array_name]:
        raise ValueError(changed([array_name]))
    return array


def sum_of_bits(array: Any) -> int:
    """Return the checksum of a NumPy array, modulo 2**32."""
    import numpy as np

    words = np.ascontiguousarray(array).reshape(-1).view(f"u{min(array.dtype.itemsize, 4)}")
    return int(np.sum(words, dtype=np.uint32))


def changed(names: list[str]) -> str:
    """Return the fault of arrays with a wrong checksum."""
    return f"the numbers of {', '.join(names)} have changed since they were written"


@lru_cache
def orbax() -> Any:
    """Return the package orbax, and silence it: its errors are reported here. Raises `Unavailable` if it is missing.

    After an error tensorstore still ends its other reads, and complains that nobody waits for them.
    """
    package = import_package("orbax.checkpoint", "orbax-checkpoint")
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    before = sys.unraisablehook

    def hook(error: Any) -> None:
        if str(error.exc_value) != "Event loop is closed":
            before(error)

    sys.unraisablehook = hook
    return package


@contextmanager
def faults() -> Iterator[None]:
    """Raise `ValueError` with a short reason for the errors of orbax and of tensorstore, which are of many kinds."""
    try:
        yield
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        raise ValueError(fault_of(error)) from None


DAMAGE = {"NOT_FOUND": "missing", "DATA_LOSS": "damaged", "OUT_OF_RANGE": "cut off"}
"""The states of a file by the words that errors of tensorstore begin with."""


def fault_of(error: Exception) -> str:
    """Return the reason of an error of orbax or tensorstore in the system's words, or shortened."""
    text = str(error)
    system = re.search(r"os_error_code='(\d+)'", text)
    if system and not text.startswith("NOT_FOUND"):
        return os.strerror(int(system[1])).lower()
    if isinstance(error, OSError) and error.strerror:
        return reason_of(error)
    if state := DAMAGE.get(text.partition(":")[0]):
        array = re.search(r'"([\w.]+)/', text)
        return f"a file of its arrays is {state}" + (f" (found at {array[1]})" if array else "")
    short = text.strip().partition("\n")[0][:REASON]
    return short if type(error) is ValueError else f"its files are damaged ({type(error).__name__} {short})"
