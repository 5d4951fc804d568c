"""Checkpoints of a training run: written by orbax while training goes on, whole or not at all, each process its own shards.

A checkpoint is a folder named after its number of finished steps. It holds the arrays of a `TrainState`, whole arrays under every
layout, and `About`: a record of the program, the position in the data and a checksum of each array. The checksum is a sum of the
array's bits, so it does not depend on how the array is split. Orbax writes into a temporary folder and renames it at the end; a
process that is killed leaves a temporary folder, which the next run removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from mtfc.backends.common.devices import Unavailable
from mtfc.driver.errors import FailedRequest, UsageError
from mtfc.driver.training.packages import import_package

FORMAT = 1
"""The version of the folders' content."""


@attrs.frozen
class About:
    """The record beside the arrays of a checkpoint.

    program: the name of the model. fingerprint: a hash of its undistributed IR. arrays: name, such as `params/w` -> dtype and
    shape. sums: name -> checksum. data: position in the data after the last step, or None without data.
    """

    program: str
    fingerprint: str
    step: int
    seed: int
    arrays: Mapping[str, tuple[str, tuple[int, ...]]]
    sums: Mapping[str, int]
    data: Any = None

    def record(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        return {"format": FORMAT, **attrs.asdict(self)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> About:
        """Return the record that a JSON file holds. Raises `KeyError`, `TypeError` and `ValueError` for another content."""
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']}, and this version of mtfc reads {FORMAT}")
        arrays = {name: (dtype, tuple(shape)) for name, (dtype, shape) in record["arrays"].items()}
        rest = {name: record[name] for name in ("program", "fingerprint", "step", "seed", "sums", "data")}
        return cls(arrays=arrays, **rest)


@attrs.define
class Checkpoints:
    """The checkpoints in a folder. Use as a context: the end waits for the last checkpoint to be written."""

    folder: Path
    manager: Any

    @classmethod
    @contextmanager
    def open(cls, folder: Path, keep: int | None = None, read_only: bool = False) -> Iterator[Checkpoints]:
        """Open the folder, which is made if it does not exist. keep: the number of newest checkpoints that stay; None keeps all.

        Raises `Unavailable` if the package orbax-checkpoint is missing or the folder cannot be written.
        """
        ocp = import_package("orbax.checkpoint", "orbax-checkpoint")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, cleanup_tmp_directories=not read_only, create=not read_only, read_only=read_only
        )
        with _named(folder):
            manager = ocp.CheckpointManager(folder.resolve(), options=options)
        checkpoints = cls(folder, manager)
        try:
            yield checkpoints
            checkpoints.wait()
        finally:
            manager.close()

    @property
    def steps(self) -> list[int]:
        """The steps of the whole checkpoints, in order."""
        return sorted(self.manager.all_steps())

    def save(self, state: Any, about: About) -> None:
        """Copy the state to the host, and write it while training goes on. Raises `Unavailable` if a write has failed."""
        ocp = import_package("orbax.checkpoint", "orbax-checkpoint")
        arguments = {"state": ocp.args.StandardSave(_own(state)), "about": ocp.args.JsonSave(about.record())}
        with _named(self.folder):
            self.manager.save(about.step, args=ocp.args.Composite(**arguments), force=True)

    def wait(self) -> None:
        """Wait until the last checkpoint is written. Raises `Unavailable` if it cannot be written."""
        with _named(self.folder):
            self.manager.wait_until_finished()

    def about(self, step: int) -> About:
        """Return the record of a checkpoint. Raises `FailedRequest` if it is damaged."""
        ocp = import_package("orbax.checkpoint", "orbax-checkpoint")
        with self._damage(step):
            found = self.manager.restore(step, args=ocp.args.Composite(about=ocp.args.JsonRestore()))
            return About.of(found.about)

    def restore(self, step: int, abstract: Any) -> Any:
        """Return the state of a checkpoint in the placements of an abstract state; each process reads its own part.

        Raises `FailedRequest` if the checkpoint is damaged, or has other arrays than the state.
        """
        ocp = import_package("orbax.checkpoint", "orbax-checkpoint")
        about = self.about(step)
        self._check_arrays(about, kinds(abstract))
        with self._damage(step):
            wanted = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
            state = self.manager.restore(step, args=wanted).state
            wrong = [name for name, found in checksums(state).items() if found != about.sums[name]]
            if wrong:
                raise ValueError(f"the numbers of {', '.join(wrong)} have changed since they were written")
        return state

    def _check_arrays(self, about: About, wanted: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Raise `FailedRequest` with every array that is missing, unknown or of another type."""
        missing = [f"lacks {_typed(name, type)}" for name, type in wanted.items() if name not in about.arrays]
        unknown = [
            f"has {_typed(name, type)}, which the model lacks"
            for name, type in about.arrays.items()
            if name not in wanted
        ]
        other = [
            f"has {_typed(name, about.arrays[name])}, and the model has {_typed(name, type)}"
            for name, type in wanted.items()
            if name in about.arrays and about.arrays[name] != type
        ]
        found = [*missing, *other, *unknown]
        if found:
            where = f"{self.folder / str(about.step)}, a checkpoint of model `{about.program}`"
            shown = "".join(f"\n  it {each}" for each in found[:SHOWN])
            more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            raise FailedRequest(f"{where}, does not fit the model:{shown}{more}")

    @contextmanager
    def _damage(self, step: int) -> Iterator[None]:
        """Report any error of reading a checkpoint with the checkpoint's name and a remedy."""
        try:
            yield
        except (FailedRequest, UsageError, Unavailable, KeyboardInterrupt):
            raise
        except Exception as error:  # orbax and tensorstore raise many kinds
            earlier = [each for each in self.steps if each < step]
            remedy = f"remove it to go on from step {earlier[-1]}" if earlier else "there is no earlier one"
            reason = str(error).strip().partition("\n")[0][:REASON] or type(error).__name__
            raise FailedRequest(f"{self.folder / str(step)} is damaged: {reason}; {remedy}") from None


SHOWN = 8
"""Maximum number of arrays that a message names."""

REASON = 200
"""Maximum length of another library's message."""


def kinds(state: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return name -> dtype and shape of the arrays of a state."""
    return {name: (array.dtype.name, tuple(array.shape)) for name, array in _named_arrays(state)}


def checksums(state: Any) -> dict[str, int]:
    """Return name -> sum of the array's bits, modulo 2**32. A sum does not depend on the layout."""
    import jax

    arrays = dict(_named_arrays(state))
    sums = jax.jit(lambda arrays: {name: _sum_of_bits(x) for name, x in arrays.items()})(arrays)
    return {name: int(x) for name, x in sums.items()}


def are_finite(state: Any) -> bool:
    """Return True if the state has no number that is not finite."""
    return bool(_finite_test()(dict(_named_arrays(state))))


@cache
def _finite_test() -> Any:
    """Return the compiled test, which JAX keeps for further calls."""
    import jax
    from jax import numpy as jnp

    def test(arrays: Mapping[str, Any]) -> Any:
        floats = [x for x in arrays.values() if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.all(jnp.stack([jnp.isfinite(x).all() for x in floats])) if floats else True

    return jax.jit(test)


def _sum_of_bits(x: Any) -> Any:
    from jax import lax
    from jax import numpy as jnp

    bits = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[x.dtype.itemsize]
    words = x.astype(jnp.uint8) if x.dtype == bool else lax.bitcast_convert_type(x, bits)
    return jnp.sum(words.astype(jnp.uint32), dtype=jnp.uint32)


def _named_arrays(state: Any) -> Iterator[tuple[str, Any]]:
    yield "step", state.step
    for kind in ("params", "optimizer"):
        yield from ((f"{kind}/{name}", array) for name, array in getattr(state, kind).items())


def _own(state: Any) -> Any:
    """Return the state to write. On the CPU orbax reads the buffers later, and the next step overwrites them: copy them."""
    import jax
    from jax import numpy as jnp

    on_cpu = next(iter(state.step.devices())).platform == "cpu"
    return jax.tree.map(jnp.copy, state) if on_cpu else state


def _typed(name: str, type: tuple[str, tuple[int, ...]]) -> str:
    dtype, shape = type
    return f"{name}: {dtype}[{', '.join(map(str, shape))}]"


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Report a folder that cannot be written as a lack of the environment."""
    try:
        yield
    except (Unavailable, KeyboardInterrupt):
        raise
    except Exception as error:  # the errors of tensorstore are ValueErrors
        reason = str(error).strip().partition("\n")[0][:REASON] or type(error).__name__
        raise Unavailable(
            f"cannot write checkpoints to {folder}: {reason}; the earlier ones are whole"
        ) from None
