"""Named arrays in files, read and written one at a time: NPZ, safetensors, folders of shards, and checkpoints of training.

The arrays of a large model are never in memory together: a file is opened for its names, shapes and dtypes, and the numbers of an
array are read when they are needed. `stored_arrays` alone knows the kinds of files. Arrays of Python objects are refused, so
reading a file executes no code of the file.

The package safetensors checks a file. It reads only dtypes of NumPy itself and writes from memory only, so numbers are read and
written here: a safetensors file is the length of a header, the header as JSON, and the numbers of all arrays
(https://huggingface.co/docs/safetensors).

The folder of a run has a folder `checkpoints`, with a folder for each checkpoint that is named after its number of finished
steps. Orbax writes the arrays in the folder `state`. The record `about/about.json` says which arrays there are, and has a
checksum for each: a sum of the array's bits, which does not depend on how the array is split over devices. Orbax renames a folder
of this machine once it is whole. A remote folder has a file `unfinished` until it is whole.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo, is_zipfile
from zlib import crc32

import attrs

from mtfc.compiler.diagnostics import CompileError, Span, failure
from mtfc.compiler.ir.training import average_of
from mtfc.driver.data.files import OUTPUTS, RemoteFolder, is_remote, local_copy, parsed_json, write_atomically
from mtfc.driver.data.packages import import_package
from mtfc.driver.errors import UsageError, raised_as, reason_of

# Checkpoints

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
    this run from others. entries: the values in the `train` block, None in older checkpoints.
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
    entries: Mapping[str, str] | None = None

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
    """Return the steps of the whole checkpoints in a remote folder, in order. names: the files in the folder of the run."""
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


Array = Any
Arrays = Mapping[str, Array]

DTYPES = {f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
DTYPES |= {f"F{bits}": f"float{bits}" for bits in (16, 32, 64)}
DTYPES |= {"BF16": "bfloat16", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""The dtypes of safetensors files that NumPy and `ml_dtypes` have, by their names in the files."""

SAFETENSORS = ".safetensors"

PARSING = Lock()
"""Python 3.11 raises `SystemError` where two threads parse literals at a time, and headers of NumPy's files are literals."""


@attrs.frozen
class StoredArray:
    """An array whose numbers are read each time that `read` is called, which raises `CompileError` (E501).

    map: maps the numbers into memory instead, without a check that they are undamaged; None if they are compressed. dtype:
    NumPy's name of the dtype, or the file's name of a dtype that NumPy lacks. alias_of: the name of another array of the file,
    which this one is.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]
    alias_of: str | None = None
    map: Callable[[], Array] | None = None

    @classmethod
    def of(cls, array: Array) -> StoredArray:
        """Return an array that is in memory already."""
        import numpy as np

        held = np.asarray(array)
        return cls(held.shape, held.dtype.name, lambda: held)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def numpy_type(name: str) -> Any:
    """Return the NumPy dtype of a name, which may be one of `ml_dtypes`."""
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, name, name))


def unread(arrays: Mapping[str, StoredArray], read: Container[str]) -> list[str]:
    """Return the arrays of which neither the name nor an alias is read."""
    known = {array.alias_of or name for name, array in arrays.items() if name in read}
    return [name for name, array in arrays.items() if not array.alias_of and name not in known]


def whole(path: str) -> Span:
    """Return the place of a fault of a whole file."""
    return Span(path, 1, 1, 1, 1)


# Reading


def stored_arrays(path: str) -> dict[str, StoredArray]:
    """Return the arrays of a file or of a folder by name, without reading their numbers.

    Raises `CompileError` (E501) and `Unavailable`.
    """
    with readable(path):
        return _stored(Path(path))


def _stored(path: Path) -> dict[str, StoredArray]:
    """Return the arrays. Raises `OSError`, and `ValueError` with the fault of the file."""
    if path.is_dir():
        return _folder(path)
    return _safetensors(path) if path.suffix == SAFETENSORS else _npz(path)


def unreadable(path: str, reason: str) -> CompileError:
    """Return the error (E501) of a file that has no arrays to read."""
    return failure("E501", f"cannot read arrays: {reason}", whole(path))


def readable(path: str) -> AbstractContextManager[None]:
    """Return a context that raises the error (E501) of a file that cannot be read, or that has a fault."""
    return raised_as(
        lambda message: failure("E501", message, whole(path)), "cannot read arrays", OSError, ValueError
    )


def file_size(path: str) -> int:
    """Return the number of bytes of a file. Raises `CompileError` (E501) if it cannot be read."""
    with readable(path), Path(path).open("rb") as file:
        return file.seek(0, 2)


def files_of(path: str) -> list[str]:
    """Return the files that reading `path` may open: the file itself, or the files of a folder."""
    place = Path(path)
    return sorted(str(each) for each in place.iterdir()) if place.is_dir() else [path]


def _npz(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of an NPZ file. Raises `ValueError` with the reason if it is another kind of file."""
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        raise ValueError("it holds one array without a name; write it with numpy.savez")
    if not is_zipfile(path):
        raise ValueError("it is no NPZ file")
    archive = _undamaged(lambda: ZipFile(path))
    names = archive.namelist()
    if any(name.endswith("data.pkl") for name in names):
        raise ValueError(
            "it is a PyTorch file, which may hold code; write it with safetensors.torch.save_file"
        )
    if not all(name.endswith(".npy") for name in names):
        raise ValueError("it is no NPZ file")
    return {name.removesuffix(".npy"): _member(path, archive, name) for name in names}


def _member(path: Path, archive: ZipFile, name: str) -> StoredArray:
    """Return an array of an NPZ file, of which only the header is read now. An uncompressed array can be mapped into memory."""
    import numpy as np

    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

    def header() -> tuple[tuple[int, ...], bool, Any, int]:
        """Read shape, order, dtype and offset from the header of the array in the archive."""
        with archive.open(name) as file:
            shape, is_fortran, dtype = headers[np.lib.format.read_magic(file)](file)
            check_size(info, file.tell(), shape, dtype)
            return shape, is_fortran, dtype, file.tell()

    def content() -> Array:
        with archive.open(name) as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    def mapped() -> Array:
        """Map the array into memory where it lies in the archive."""
        with path.open("rb") as file:  # the header of the zip format, then an .npy file
            file.seek(info.header_offset + 26)
            lengths = (int.from_bytes(file.read(2), "little") for _ in range(2))
            start = info.header_offset + 30 + sum(lengths) + length
        order: Any = "F" if is_fortran else "C"
        return (
            np.memmap(path, dtype, "r", start, shape, order) if math.prod(shape) else np.empty(shape, dtype)
        )

    info = archive.getinfo(name)
    with PARSING:
        shape, is_fortran, dtype, length = _undamaged(header)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    map = partial(_read, path, mapped) if info.compress_type == ZIP_STORED else None
    return StoredArray(shape, dtype.name, partial(_read, path, content), map=map)


MOST_COMPRESSED = 1100
"""Bytes that one byte of a compressed file may stand for; deflate reaches 1032."""


def check_size(info: ZipInfo, start: int, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise `ValueError` unless a member's size is that of its array, from byte `start` on, and its compression possible."""
    size = math.prod(shape) * dtype.itemsize
    fits = min(shape, default=0) >= 0 and (dtype.hasobject or info.file_size == start + size)
    if not fits or info.file_size > MOST_COMPRESSED * (info.compress_size + 64):
        raise ValueError("the header and the size differ")


def _undamaged(read: Callable[[], Any]) -> Any:
    """Return the result of `read`; a damaged file fails in many ways: in zip, zlib, struct, or NumPy's own header."""
    try:
        return read()
    except MemoryError:
        raise
    except Exception:
        raise ValueError("it is damaged") from None


def _read(path: Path, content: Callable[[], Array]) -> Array:
    with readable(str(path)):
        return _undamaged(content)


def _safetensors(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of a safetensors file, of which only the header is read now."""
    safetensors = import_package("safetensors", "safetensors", f"reading {path}")
    path.open("rb").close()  # a fault of the file system, in its own words
    try:
        file: Any = safetensors.safe_open(str(path), framework="numpy")
    except safetensors.SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise ValueError(f"it is no safetensors file, or damaged ({reason})") from None

    with path.open("rb") as start:
        size = int.from_bytes(start.read(8), "little")
        headers = json.loads(start.read(size))

    def stored(name: str, alias_of: str | None = None) -> StoredArray:
        """Return an array of the file, which is read later. alias_of: the name under which its numbers lie."""
        header = headers[alias_of or name]
        shape, dtype = tuple(header["shape"]), DTYPES.get(header["dtype"], header["dtype"])
        place = 8 + size + header["data_offsets"][0]
        return StoredArray(
            shape, dtype, lambda: _read(path, lambda: _numbers(path, place, shape, dtype)), alias_of
        )

    names = file.keys()
    # `safetensors.torch.save_model` stores a tensor with several names once, and writes the other names as metadata.
    tied = (file.metadata() or {}).items()
    aliases = {name: stored(name, kept) for name, kept in tied if kept in names and name not in names}
    return {**{name: stored(name) for name in names}, **aliases}


def _numbers(path: Path, place: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Read an array from a byte of a file on."""
    import numpy as np

    kind = numpy_type(dtype).newbyteorder("<")
    with path.open("rb") as file:
        file.seek(place)
        return np.fromfile(file, kind, math.prod(shape)).reshape(shape)


def _folder(path: Path) -> dict[str, StoredArray]:
    """Return the parameters of a checkpoint, or the arrays of the shards that an index names, or of the only safetensors file."""
    if checkpoint := newest_checkpoint(path):
        return _checkpoint(checkpoint)
    indices = sorted(path.glob(f"*{SAFETENSORS}.index.json"))
    if len(indices) == 1:
        return _sharded(indices[0])
    files = sorted(path.glob(f"*{SAFETENSORS}"))
    if len(files) == 1 and not indices:
        return _safetensors(files[0])
    found = ", ".join(each.name for each in (*indices, *files))
    raise ValueError(f"it is a folder with {found or 'no safetensors files'}; expected one file, or an index")


def _checkpoint(path: Path) -> dict[str, StoredArray]:
    """Return the parameters of a checkpoint, and the averages of parameters."""
    about = About.read(path)

    def stored(name: str) -> StoredArray:
        """Return an array of the checkpoint, which is read later."""
        dtype, shape = about.arrays[name]

        def read() -> Array:
            with readable(str(path)):
                return read_array(path, about, name)

        return StoredArray(shape, dtype, read)

    names = [name.removeprefix(PARAMETERS) for name in about.arrays if name.startswith(PARAMETERS)]
    averages = {average_of(name): f"{OPTIMIZER}{average_of(name)}" for name in names}
    found = {name: stored(place) for name, place in averages.items() if place in about.arrays}
    return {**found, **{name: stored(PARAMETERS + name) for name in names}}


def _sharded(index: Path) -> dict[str, StoredArray]:
    """Return the arrays of all safetensors files that an index names."""
    places = _weight_map(index)
    shards = {}
    for name in sorted(set(places.values())):
        if not (index.parent / name).is_file():
            raise ValueError(f"{index.name} names the shard {name}, which is missing")
        try:
            shards[name] = _safetensors(index.parent / name)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    lost = [name for name, shard in places.items() if name not in shards[shard]]
    if lost:
        raise ValueError(
            f"{index.name} says that {places[lost[0]]} has the array `{lost[0]}`, and it has not"
        )
    return {name: array for shard in shards.values() for name, array in shard.items()}


def _weight_map(index: Path) -> dict[str, str]:
    """Return the file of each array."""
    try:
        places = parsed_json(index.read_bytes())["weight_map"]
        fits = all(isinstance(each, str) and Path(each).name == each for each in places.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        fits = False
    if not fits:
        raise ValueError(f"{index.name} is damaged: expected `weight_map`, the file of each array")
    return dict(places)


# Writing


def save_arrays(path: str, arrays: Arrays) -> None:
    """Write arrays that are in memory: see `write_arrays`."""
    write_arrays(path, {name: StoredArray.of(array) for name, array in arrays.items()})


def write_arrays(
    path: str, arrays: Mapping[str, StoredArray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays under their names to a file or to standard output, one after the other.

    The name's end decides the kind: safetensors for `.safetensors`, else NPZ. NPZ has no metadata, and f32 for bf16 and f8.
    Raises `UsageError`, and the errors of reading the arrays.
    """

    def write(file: IO[bytes]) -> None:
        if path.endswith(SAFETENSORS):
            _write_safetensors(file, arrays, metadata or {})
        else:
            _save_arrays(file, arrays)

    if path in OUTPUTS:
        write(written := BytesIO())
        sys.stdout.buffer.write(written.getvalue())
    else:
        write_atomically(path, write)


def _save_arrays(file: IO[bytes], arrays: Mapping[str, StoredArray]) -> None:
    """Write arrays as an NPZ file without compression, one after the other: each is read when it is written."""
    import numpy as np

    with ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, storable(array.read()), allow_pickle=False)


def storable(array: Array) -> Array:
    """Return the array in a dtype that NPZ has."""
    import numpy as np

    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.isbuiltin == OF_ANOTHER_PACKAGE else array


OF_ANOTHER_PACKAGE = 2
"""The value of `isbuiltin` of NumPy for dtypes of another package, such as `ml_dtypes`."""


def _write_safetensors(
    file: IO[bytes], arrays: Mapping[str, StoredArray], metadata: Mapping[str, str]
) -> None:
    """Write wide numbers first: readers need each array at a multiple of its element's size."""
    words = {dtype: word for word, dtype in DTYPES.items()}
    for name, array in arrays.items():
        if array.dtype not in words:
            raise UsageError(f"safetensors has no dtype {array.dtype}, which `{name}` has: write an NPZ file")
    ordered = sorted(arrays, key=lambda name: -numpy_type(arrays[name].dtype).itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in ordered:
        start, end = end, end + arrays[name].size * numpy_type(arrays[name].dtype).itemsize
        header[name] = {
            "dtype": words[arrays[name].dtype],
            "shape": list(arrays[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in ordered:
        file.write(_bytes(arrays[name].read()))


def _bytes(array: Array) -> Any:
    """Return the numbers of an array in C order, little-endian."""
    import numpy as np

    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
