"""Going on with a changed program: `--warm-start` takes the arrays of a checkpoint as far as they fit.

An array fits if it has the same shape. An array that has grown, such as an embedding with a larger vocabulary, keeps its numbers
at the start of each dimension. Everything else is drawn, or begins as the optimizer begins. The number of steps is kept, so that
schedules go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.driver.data.checkpoint_files import (
    OPTIMIZER,
    PARAMETERS,
    About,
    local_parameters,
    newest_checkpoint,
    read_array,
)
from mtfc.driver.errors import FailedRequest, UsageError

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import JaxProgram, TrainState


def warm_start(
    folder: str, on_devices: JaxProgram, seed: int, tell: Callable[[str], None]
) -> tuple[TrainState, Any]:
    """Return the state to start from, and the position in the data. Raises `UsageError` and `FailedRequest`.

    tell: receives a sentence about each kind of arrays.
    """

    place = newest_checkpoint(Path(local_parameters(folder)))
    if place is None:
        raise UsageError(f"--warm-start {folder}: there is no checkpoint")
    try:
        about = About.read(place)
        state = on_devices.init(seed)
        whole = on_devices.stored(state)
        found = {
            "params": Taken.of(place, about, PARAMETERS, whole.params),
            "state": Taken.of(place, about, OPTIMIZER, whole.optimizer),
        }
    except (OSError, ValueError) as error:
        raise FailedRequest(f"{place} cannot be read: {error}") from None
    params = {**state.params, **on_devices.place(found["params"].arrays, "params")}
    optimizer = {**state.optimizer, **on_devices.place(found["state"].arrays, "state")}
    tell(f"warm start from step {about.step}, {place}")
    for kind, begins in (("params", "drawn"), ("state", "new")):
        for sentence in found[kind].sentences(
            "parameters" if kind == "params" else "states of the optimizer", begins
        ):
            tell(sentence)
    step = on_devices.place_step(about.step)
    return attrs.evolve(state, step=step, params=params, optimizer=optimizer), about.data


@attrs.frozen
class Taken:
    """The arrays of one kind that a checkpoint gives.

    grown: the names of arrays that are larger now. new: of arrays that it lacks. left: of its other arrays.
    """

    arrays: Mapping[str, Any]
    grown: tuple[str, ...]
    new: tuple[str, ...]
    left: tuple[str, ...]

    @classmethod
    def of(cls, place: Path, about: About, start: str, wanted: Mapping[str, Any]) -> Taken:
        """Read the arrays that fit. wanted: the arrays of the program as they begin. Raises `OSError` and `ValueError`."""
        stored = {
            name.removeprefix(start): shape
            for name, (_, shape) in about.arrays.items()
            if name.startswith(start)
        }
        same = [name for name, x in wanted.items() if stored.get(name) == x.shape]
        grown = [
            name for name, x in wanted.items() if name not in same and _has_grown(stored.get(name), x.shape)
        ]
        arrays = {name: read_array(place, about, start + name).astype(wanted[name].dtype) for name in same}
        for name in grown:
            arrays[name] = _filled(wanted[name], read_array(place, about, start + name))
        new = (name for name in wanted if name not in arrays)
        left = (name for name in stored if name not in arrays)
        return cls(arrays, tuple(grown), tuple(new), tuple(left))

    def sentences(self, kind: str, begins: str) -> list[str]:
        """Return what happened to each array, for people."""
        whole = len(self.arrays) - len(self.grown)
        found = [f"  taken: {whole} of {whole + len(self.grown) + len(self.new)} {kind}"]
        found += [
            f"  {kind} that have grown keep their numbers, and the rest is {begins}: {', '.join(self.grown)}"
        ] * bool(self.grown)
        found += [f"  {kind} that are {begins}: {', '.join(self.new)}"] * bool(self.new)
        return found + [f"  {kind} that are left out: {', '.join(self.left)}"] * bool(self.left)


def _has_grown(before: tuple[int, ...] | None, now: tuple[int, ...]) -> bool:
    return (
        before is not None
        and len(before) == len(now)
        and all(a <= b for a, b in zip(before, now, strict=True))
    )


def _filled(begun: Any, stored: Any) -> Any:
    """Return an array as it begins, with the stored numbers at the start of each dimension."""
    import numpy as np
    from jax.experimental.multihost_utils import process_allgather

    whole = np.array(begun if begun.is_fully_addressable else process_allgather(begun, tiled=True))
    whole[tuple(map(slice, stored.shape))] = stored
    return whole
