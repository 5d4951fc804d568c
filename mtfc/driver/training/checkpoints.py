"""Checkpoints of a training run: written by orbax while training goes on, whole or not at all, each process its own shards.

A checkpoint holds the arrays of a `TrainState`, whole arrays under every layout, and the record `About`. Orbax writes into a
temporary folder and renames it at the end. A process that is killed leaves a temporary folder, which the next run removes.

A save holds up the next step only while arrays are copied from a device to the host. On the CPU nothing is copied: orbax reads
the buffers, so the next step cannot reuse them and allocates others. Checksums, and a test that all numbers are finite, are
computed beside the next steps: by a thread on the CPU, else by the devices. XLA on the CPU would take memory of the state's size.

`--warm-start` goes on with a changed program, and takes the arrays of a checkpoint as far as they fit. An array fits if it has
the same shape. An array that has grown, such as an embedding with a larger vocabulary, keeps its numbers at the start of each
dimension. Everything else is drawn, or begins as the optimizer begins. The number of steps is kept, so that schedules go on.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from mtfc.backends.common.devices import Unavailable, jax
from mtfc.driver.data.array_files import (
    OPTIMIZER,
    PARAMETERS,
    RECORD,
    STATE,
    About,
    changed,
    fault_of,
    faults,
    local_parameters,
    newest_checkpoint,
    numpy_type,
    orbax,
    read_array,
    steps_in,
    sum_of_bits,
)
from mtfc.driver.errors import FailedRequest, UsageError, raised_as
from mtfc.driver.training.hosts import is_of_a_collective
from mtfc.driver.training.run_folder import Mirror, RunLock
from mtfc.reports.array_summary import finite
from mtfc.reports.training_report import TrainingStep

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import JaxProgram, TrainState

TEMPORARY = re.compile(r"\d+\.(orbax-checkpoint-tmp.*|removed)")
"""Names of folders that a killed process leaves: half written, and half removed."""

PARTS = {"state", "about", "_CHECKPOINT_METADATA", "commit_success"}
"""The names in a checkpoint's folder, up to a dot."""

READING = 2**26
"""Bytes that are read at a time, unless one array is larger: the memory that opening a checkpoint takes beside its arrays."""

SHOWN = 8
"""Maximum number of arrays that a message names."""


class NotFinite(Exception):
    """The loss of a step, or the parameters after it, are not finite. The message says which."""


@attrs.define
class Checkpoints:
    """The checkpoints in a folder. Use as a context: the end waits for the last checkpoint to be written.

    keep: the number of newest ones that stay. best: the step of another one that stays. lock: the right of the process that leads
    to write to the folder. mirror: sends finished ones to a remote folder. writer: orbax's, from the first save on. under_way:
    the end of the last save; the result is None, or an error.
    """

    folder: Path
    keep: int
    threads: ThreadPoolExecutor
    lock: RunLock | None = None
    mirror: Mirror | None = None
    writer: Any = None
    under_way: Future[None] | None = None
    best: int | None = None

    @classmethod
    @contextmanager
    def open(
        cls, folder: Path, keep: int, lock: RunLock | None = None, mirror: Mirror | None = None
    ) -> Iterator[Checkpoints]:
        """Open the folder, which is made if it does not exist, and remove what a killed process has left there.

        All processes must call this. With a mirror each has a folder of its own, else all have the same. Raises `UsageError` if
        the folder cannot be written, and `Unavailable` if orbax is missing.
        """
        orbax()
        _make(folder, is_shared=mirror is None)
        with ExitStack() as stack:
            if jax.process_count() == 1:
                stack.callback(_clean, folder)  # after a save that has failed
            threads = stack.enter_context(ThreadPoolExecutor(1, "checkpoints"))
            checkpoints = cls(folder, keep, threads, lock, mirror)
            stack.callback(checkpoints.close)
            yield checkpoints
            checkpoints.wait()

    @property
    def steps(self) -> list[int]:
        """The steps of the whole checkpoints, in order."""
        return steps_in(self.folder) if self.mirror is None else self.mirror.steps

    def place(self, step: int) -> Path:
        """Return the folder of a checkpoint on this machine."""
        return self.folder / str(step)

    def name(self, step: int) -> str:
        """Return the place of a checkpoint as messages name it."""
        return f"{self._name}/{step}"

    @property
    def _name(self) -> str:
        return str(self.folder if self.mirror is None else f"{self.mirror.remote.url}/{self.folder.name}")

    def save(self, state: Any, about: About) -> None:
        """Write a checkpoint while training goes on; `about` gets its checksums. The state may be donated afterwards.

        Waits for the save before, and raises what `wait` raises.
        """
        self.wait()
        if self.lock is not None:
            self.lock.check()
        ocp = orbax()
        checks = _checks(dict(_named_arrays(state)))
        arguments = {
            "state": ocp.args.PyTreeSave(attrs.asdict(state, recurse=False)),
            "about": _record_handler()[1](lambda: self._checked(about, checks())),
        }
        if self.writer is None:  # after all reading: orbax lets the last reader or writer set who leads
            self.writer = _writer(is_shared=self.mirror is None)
        with self._named():
            self.writer.save(self.place(about.step).resolve(), args=ocp.args.Composite(**arguments))
        self.under_way = self.threads.submit(self._finish, about.step)

    def close(self) -> None:
        """Close orbax's writer. `wait` has shown its errors, unless another one came first."""
        with suppress(Exception):
            self.writer.close()

    def poll(self) -> None:
        """Raise what `wait` raises, without waiting, if the last save has failed."""
        if self.under_way is not None and self.under_way.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last save has ended. Raises `Unavailable` if it cannot be written, and `NotFinite`."""
        ended, self.under_way = self.under_way, None
        if ended is not None:
            with self._named():
                ended.result()

    def _checked(self, about: About, checks: Checks) -> About:
        """Return the record with its checksums, before orbax makes the checkpoint final. Raises `NotFinite` and `Unavailable`."""
        if not checks.finite:
            raise NotFinite(f"the parameters after step {about.step} are not finite")
        if self.lock is not None:
            self.lock.check()
        return attrs.evolve(about, sums=checks.sums)

    def _finish(self, step: int) -> None:
        """Wait for orbax, send the checkpoint to a remote folder, then remove the oldest checkpoints."""
        self.writer.wait_until_finished()
        if self.mirror is not None:
            self.mirror.send(step)
        old = self.steps[: -self.keep] if jax.process_index() == 0 else ()
        for each in (each for each in old if each != self.best):
            self._remove(each)

    def _remove(self, step: int) -> None:
        """Delete a checkpoint. It is renamed first, so that an interrupted deletion leaves no half of a checkpoint."""
        if self.mirror is not None:
            self.mirror.remove(step)
            return
        removed = self.folder / f"{step}.removed"
        self.place(step).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def restore(self, step: int, abstract: Any) -> tuple[Any, About]:
        """Return the state of a checkpoint in the placements of an abstract state, and the record.

        Each process reads its own part. Raises `FailedRequest` if the checkpoint is damaged, or has other arrays than the state.
        """
        ocp = orbax()
        with self._damage(step):
            about = About.read(self.place(step))
        self._check_arrays(about, kinds(abstract))
        tree = attrs.asdict(abstract, recurse=False)
        types = ocp.checkpoint_utils.construct_restore_args(tree)
        wanted = ocp.args.PyTreeRestore(tree, restore_args=types)
        largest = max(math.prod(shape) * numpy_type(dtype).itemsize for dtype, shape in about.arrays.values())
        handler = ocp.PyTreeCheckpointHandler(restore_concurrent_gb=(max(largest, READING) + 1) / 10**9)
        with self._damage(step):
            with faults(), ocp.Checkpointer(handler) as reader:
                found = reader.restore((self.place(step) / STATE).resolve(), args=wanted)
            state = type(abstract)(**found)
            sums = _checks(dict(_named_arrays(state)))().sums
            wrong = [name for name, sum in about.sums.items() if sums[name] != sum]
            if wrong:
                raise ValueError(changed(wrong))
        return state, about

    def fits(self, step: int, abstract: Any) -> bool:
        """Return True if a checkpoint has the arrays of a state. Raises `FailedRequest` if it is damaged."""
        with self._damage(step):
            return dict(About.read(self.place(step)).arrays) == kinds(abstract)

    def _check_arrays(self, about: About, wanted: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Raise `FailedRequest` with every array that is missing, unknown or of another type."""
        found = []
        for name in {**wanted, **about.arrays}:
            has, needed = (_typed(name, table.get(name)) for table in (about.arrays, wanted))
            if has is None:
                found.append(f"lacks {needed}")
            elif has != needed:
                takes = f"and the model has {needed}" if needed else "which the model lacks"
                found.append(f"has {has}, {takes}")
        if found:
            where = f"{self.name(about.step)}, a checkpoint of model `{about.program}`"
            shown = "".join(f"\n  it {each}" for each in found[:SHOWN])
            more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise FailedRequest(
                f"{where}, does not fit the model:{shown}{more}\n"
                f"--warm-start {self._name.rpartition('/')[0]} takes what fits; or give another --dir, or start over with --fresh"
            )

    @contextmanager
    def _damage(self, step: int) -> Iterator[None]:
        """Report a checkpoint that cannot be read with its name and a remedy."""
        try:
            yield
        except (OSError, ValueError) as error:
            earlier = [each for each in self.steps if each < step]
            remedy = f"remove it to go on from step {earlier[-1]}" if earlier else "start over with --fresh"
            raise FailedRequest(f"{self.name(step)} cannot be read: {fault_of(error)}; {remedy}") from None

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Report a folder that cannot be written as a lack of the environment."""
        try:
            yield
        except (NotFinite, Unavailable, KeyboardInterrupt):
            raise
        except Exception as error:  # orbax and tensorstore raise many kinds
            if jax.process_count() > 1 and is_of_a_collective(error):
                raise  # `hosts.py` names the process that has ended
            last = f"the last one is {self.name(self.steps[-1])}" if self.steps else "there is none yet"
            raise Unavailable(
                f"cannot write a checkpoint to {self._name}: {fault_of(error)}; {last}"
            ) from None


@attrs.define
class Saving:
    """Decides when a checkpoint is due, and writes it. Without a folder none is.

    about: the record of the last checkpoint, or of the start. every: steps between two checkpoints; None if `minutes`
    decides. next: the step of the next one, which all processes agree on. since: the time of the last one, or of the start.
    """

    checkpoints: Checkpoints | None
    about: About
    every: int | None
    minutes: float | None
    next: int | None = attrs.field(init=False)
    since: float = attrs.field(factory=monotonic)

    @next.default
    def _first(self) -> int | None:
        """By minutes the first checkpoint comes after the first step.

        Then the time of a step is known, and so is that the folder can be written.
        """
        return None if self.checkpoints is None else self.about.step + (self.every or 1)

    @property
    def last(self) -> str | None:
        """The newest whole checkpoint."""
        steps = self.checkpoints.steps if self.checkpoints is not None else []
        return self.checkpoints.name(steps[-1]) if self.checkpoints is not None and steps else None

    @property
    def best(self) -> str | None:
        """The checkpoint of the best evaluation."""
        if self.checkpoints is None or self.checkpoints.best not in self.checkpoints.steps:
            return None
        return self.checkpoints.name(self.checkpoints.best)

    def is_due(self, step: int) -> bool:
        return step == self.next

    def save(self, step: int, state: Any, position: Any, last: TrainingStep | None, evaluates: bool) -> None:
        """Write a checkpoint while training goes on, and set the step of the next one. Raises what `Checkpoints.wait` raises.

        position: the position in the data after the step. last: the last figures. evaluates: an evaluation of the state follows.
        """
        assert self.checkpoints is not None
        before, now = self.about.step, monotonic()
        self.about = self._about(step, position, last, evaluates)
        self.checkpoints.save(state, self.about)
        self.next = step + (self.every or self._steps_of_minutes((now - self.since) / (step - before)))
        self.since = now

    def _about(self, step: int, position: Any, last: TrainingStep | None, evaluates: bool) -> About:
        """Return the record of a checkpoint. evaluates: the run that goes on from it evaluates first, and needs the figures."""
        figures = attrs.asdict(attrs.evolve(last, evaluation={})) if last is not None and evaluates else None
        loss = finite(last.loss) if last is not None and last.number == step else None
        return attrs.evolve(self.about, step=step, data=position, unevaluated=figures, loss=loss)

    def save_best(self, step: int, state: Any, position: Any, last: TrainingStep) -> None:
        """Write a checkpoint of the best evaluation, unless the step has one; the next one is due as before."""
        assert self.checkpoints is not None
        if self.about.step != step:
            self.about = self._about(step, position, last, evaluates=True)  # its figures are not shown yet
            self.since = monotonic()
            self.checkpoints.save(state, self.about)
        self.checkpoints.best = step

    def check(self) -> None:
        """Raise the error of a save that has failed. One of several processes must not end at another step than the others."""
        if self.checkpoints is not None and jax.process_count() == 1:
            self.checkpoints.poll()

    def at_end(self, state: Any, position: Any, last: TrainingStep | None, evaluates: bool) -> None:
        """Write the last checkpoint, unless it has been, and wait for it. Raises what `Checkpoints.wait` raises."""
        if self.checkpoints is not None:
            if self.about.step != int(state.step):
                self.save(int(state.step), state, position, last, evaluates)
            self.checkpoints.wait()

    def standing(self) -> str:
        """Return a sentence about the last whole checkpoint, without waiting."""
        return f"the last checkpoint is {self.last}" if self.last else "there is no checkpoint"

    def where(self) -> str:
        """Return a sentence about the last checkpoint, which is waited for. Raises `Unavailable` if it cannot be written."""
        if self.checkpoints is None:
            return "nothing is saved; --dir FOLDER keeps checkpoints"
        with suppress(NotFinite):
            self.checkpoints.wait()
        return f"the last checkpoint is {self.last}" if self.last else "there is no checkpoint yet"

    def _steps_of_minutes(self, seconds: float) -> int:
        """Return the number of steps until the next checkpoint. seconds: the time of a step, as process 0 measures it."""
        from jax.experimental import multihost_utils

        assert self.minutes is not None
        steps = np.int32(max(1, min(MOST_STEPS, round(60 * self.minutes / seconds))))
        return int(multihost_utils.broadcast_one_to_all(steps))


MOST_STEPS = 2**30
"""Maximum number of steps between two checkpoints."""


def _writer(is_shared: bool) -> Any:
    """Return orbax's writer. In folders that processes do not share each writes alone, and the files of all are a checkpoint.

    OCDBT puts many arrays into one file, but its index has to be merged where the files of all processes are.
    """
    ocp = orbax()
    options = ocp.options.MultiprocessingOptions()
    alone = jax.process_count() > 1 and not is_shared
    if alone:
        index = jax.process_index()
        options = ocp.options.MultiprocessingOptions(
            primary_host=None, active_processes={index}, barrier_sync_key_prefix=f"process_{index}"
        )
    # orbax takes the signal that another process has made its folder for that of this process
    waiting = ocp.options.AsyncOptions(create_directories_asynchronously=not alone)
    handler = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=options, async_options=waiting),
        state=ocp.PyTreeCheckpointHandler(
            use_ocdbt=not alone, use_compression=False, multiprocessing_options=options
        ),
        about=_record_handler()[0],
    )
    return ocp.AsyncCheckpointer(handler, multiprocessing_options=options, async_options=waiting)


def _make(folder: Path, is_shared: bool) -> None:
    """Make the folder, and remove what a killed process has left."""
    if jax.process_index() == 0 or not is_shared:
        with raised_as(UsageError, f"cannot write checkpoints to {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            _clean(folder)
            Path(mkdtemp(dir=folder)).rmdir()
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("mtfc: checkpoints")


def _clean(folder: Path) -> None:
    """Remove half written and half removed checkpoints of mtfc, not those of another program that uses orbax."""
    is_own = any((folder / str(step) / RECORD).is_file() for step in steps_in(folder))
    for each in folder.glob("*"):
        if TEMPORARY.fullmatch(each.name) and each.is_dir():
            names = {part.name.partition(".")[0] for part in each.glob("*")}
            if names <= PARTS and (is_own or "about" in names):
                shutil.rmtree(each, ignore_errors=True)


def are_finite(state: Any) -> bool:
    """Return True if the state has no number that is not finite."""
    return _checks(dict(_named_arrays(state)))().finite


@lru_cache
def _record_handler() -> tuple[Any, Any]:
    """Return orbax's handler of the record, and its arguments' class: they have a function that returns the record.

    Orbax calls the function in a thread. An error keeps the checkpoint from being renamed.
    """
    ocp = orbax()

    class RecordHandler(ocp.JsonCheckpointHandler):  # type: ignore[misc, name-defined]
        async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> list[Any]:
            async def write() -> None:
                text = args.item().text()
                if jax.process_index() == 0:
                    (directory / Path(RECORD).name).write_text(text)

            return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="about")]

    @ocp.args.register_with_handler(RecordHandler, for_save=True, for_restore=True)
    class RecordArguments(ocp.args.JsonSave):  # type: ignore[misc, name-defined]
        """The function, as `item`."""

    return RecordHandler(), RecordArguments


@attrs.frozen
class Checks:
    """The checksums of arrays by name, and True if all their numbers are finite."""

    finite: bool
    sums: Mapping[str, int]


def _checks(arrays: Mapping[str, Any]) -> Callable[[], Checks]:
    """Start to check arrays, which may be donated afterwards; return a function that waits for the result."""
    devices = next(iter(arrays.values())).devices()
    on_cpu = next(iter(devices)).platform == "cpu"
    if on_cpu and jax.process_count() == 1:
        parts = {
            name: [np.asarray(shard.data) for shard in x.addressable_shards if shard.replica_id == 0]
            for name, x in arrays.items()
        }
        return lambda: _checks_on_host(parts)
    finite, sums = _device_checks()(arrays)
    if on_cpu:  # two functions with collectives under way can block each other
        jax.block_until_ready(sums)
    return lambda: Checks(bool(finite), {name: int(x) for name, x in sums.items()})


def _checks_on_host(parts: Mapping[str, Sequence[Any]]) -> Checks:
    """Check the buffers of arrays: each array is split into parts."""
    finite, sums = True, {}
    for name, each in parts.items():
        sums[name] = sum(map(sum_of_bits, each)) % 2**32
        finite = finite and all(map(_is_finite, each))
    return Checks(finite, sums)


def _is_finite(part: Any) -> bool:
    """Return True if all numbers of an array are finite. It is read in chunks, so that no copy takes its memory."""
    flat = part.reshape(-1)
    if np.issubdtype(part.dtype, np.integer) or part.dtype == bool:
        return True
    return all(np.isfinite(flat[i : i + CHUNK]).all() for i in range(0, flat.size, CHUNK))


CHUNK = 2**20
"""Number of elements that are tested at a time."""


@lru_cache
def _device_checks() -> Any:
    """Return a compiled function from arrays by name to a test that all numbers are finite, and their checksums."""
    jnp = jax.numpy

    def run(arrays: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return True if all arrays are finite, and the checksum of each."""
        floats = [x for x in arrays.values() if jnp.issubdtype(x.dtype, jnp.floating)]
        finite = jnp.all(jnp.stack([jnp.isfinite(x).all() for x in floats])) if floats else True
        return finite, {name: _sum_of_bits(x) for name, x in arrays.items()}

    return jax.jit(run)


def _sum_of_bits(x: Any) -> Any:
    """Return `array_files.sum_of_bits` of an array on devices."""
    jnp, lax = jax.numpy, jax.lax
    bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[x.dtype.itemsize]
    words = x.astype(jnp.uint8) if x.dtype == bool else lax.bitcast_convert_type(x, bits)
    return jnp.sum(words.astype(jnp.uint32), dtype=jnp.uint32)


def kinds(state: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return name -> dtype and shape of the arrays of a state."""
    return {name: (array.dtype.name, tuple(array.shape)) for name, array in _named_arrays(state)}


def _named_arrays(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a state with their names in a checkpoint."""
    yield "step", state.step
    for kind in ("params", "optimizer"):
        yield from ((f"{kind}/{name}", array) for name, array in getattr(state, kind).items())


def _typed(name: str, type: tuple[str, tuple[int, ...]] | None) -> str | None:
    return f"{name}: {type[0]}[{', '.join(map(str, type[1]))}]" if type is not None else None


# Warm starts


def warm_start(
    folder: str, on_devices: JaxProgram, seed: int, tell: Callable[[str], None]
) -> tuple[TrainState, Any]:
    """Return the state to start from, and the position in the data. Raises `UsageError` and `FailedRequest`.

    tell: receives a sentence about each kind of arrays.
    """
    from mtfc.backends.jax.jax_program import TrainState

    place = newest_checkpoint(Path(local_parameters(folder)))
    if place is None:
        raise UsageError(f"--warm-start {folder}: there is no checkpoint")
    try:
        about = About.read(place)
        state = on_devices.init(seed)
        whole = on_devices.stored(state)
        params, told = _taken(place, about, PARAMETERS, whole.params, ("parameters", "drawn"))
        words = ("states of the optimizer", "new")
        optimizer, also_told = _taken(place, about, OPTIMIZER, whole.optimizer, words)
    except (OSError, ValueError) as error:
        raise FailedRequest(f"{place} cannot be read: {error}") from None
    for sentence in (f"warm start from step {about.step}, {place}", *told, *also_told):
        tell(sentence)
    params = on_devices.place({**state.params, **params}, "params")
    optimizer = on_devices.place({**state.optimizer, **optimizer}, "state")
    return TrainState(on_devices.place_step(about.step), params, optimizer), about.data


def _taken(
    place: Path, about: About, start: str, wanted: Mapping[str, Any], words: tuple[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Read the arrays of one kind that fit, and say what happened to each. Raises `OSError` and `ValueError`.

    start: of their names in the record. wanted: the arrays of the program as they begin. words: for the kind, and for how its
    arrays begin.
    """
    kind, begins = words
    stored = {
        name.removeprefix(start): shape for name, (_, shape) in about.arrays.items() if name.startswith(start)
    }
    grown = [name for name, x in wanted.items() if name in stored and _has_grown(stored[name], x.shape)]
    arrays = {}
    for name, x in wanted.items():
        if name in grown or stored.get(name) == x.shape:
            array = read_array(place, about, start + name)
            arrays[name] = _filled(x, array) if name in grown else array.astype(x.dtype)
    lists = {
        f"{kind} that have grown keep their numbers, and the rest is {begins}": grown,
        f"{kind} that are {begins}": [name for name in wanted if name not in arrays],
        f"{kind} that are left out": [name for name in stored if name not in arrays],
    }
    taken = f"  taken: {len(arrays) - len(grown)} of {len(wanted)} {kind}"
    return arrays, [taken, *(f"  {what}: {', '.join(names)}" for what, names in lists.items() if names)]


def _has_grown(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    is_larger = before != now and len(before) == len(now)
    return is_larger and all(a <= b for a, b in zip(before, now, strict=True))


def _filled(begun: Any, stored: Any) -> Any:
    """Return an array as it begins, with the stored numbers at the start of each dimension."""
    from jax.experimental.multihost_utils import process_allgather

    whole = np.array(begun if begun.is_fully_addressable else process_allgather(begun, tiled=True))
    whole[tuple(map(slice, stored.shape))] = stored
    return whole
