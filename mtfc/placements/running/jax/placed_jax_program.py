# mypy: allow-untyped-calls
"""A program under a placement on JAX devices: its training state in pieces, and functions that take batches.

The module imports `jax_program`, and with it JAX, so it is imported only where JAX runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from mtfc.backends.common.devices import import_jax
from mtfc.backends.jax.jax_program import Arrays, JaxProgram, TrainState, check_batch


@attrs.frozen(eq=False, slots=False)
class PlacedJaxProgram(JaxProgram):
    """A generated module of a placement. Arrays are tuples of pieces, each on one device; checkpoints have whole arrays."""

    several: ClassVar[str | None] = "a placement"

    @property
    def overlaps(self) -> bool:
        """True: devices exchange data without collectives, so no two functions under way can block each other."""
        return True

    def place(self, batch: Arrays, kind: str = "inputs") -> dict[str, Any]:
        """Return the batch in pieces on their devices. Raises `ValueError` for arrays that do not fit."""
        table, is_dict = self.module.LAYOUTS[kind], isinstance(batch, Mapping)
        pieces = {name: x for name, x in batch.items() if isinstance(x, tuple)} if is_dict else {}
        check_batch({name: batch[name] for name in batch if name not in pieces} if is_dict else batch, table)
        self.check_not_traced(batch)
        if lacking := [name for name in table if name not in batch]:
            raise ValueError(f'{kind} lacks "{lacking[0]}": it takes {", ".join(table)}')
        if len(pieces) == len(batch):
            return pieces
        whole = self.module.unshard(pieces, {name: table[name] for name in pieces})
        return dict(self.module.shard({**batch, **whole}, table))

    def placed(self, params: Arrays) -> Arrays:
        """Return parameters in pieces; they may be whole."""
        return self.place(params, "params")

    def stored(self, state: TrainState) -> TrainState:
        """Return the state with whole arrays on the first device, as checkpoints have it under every layout."""
        optimizer = import_jax().device_put(self.on_host(state.optimizer, "state"), self._replicated)
        return TrainState(state.step, dict(self.whole_params(state.params)), optimizer)

    def restored(self, state: TrainState) -> TrainState:
        """Return a state with whole arrays in pieces."""
        return TrainState(
            state.step, self.place(state.params, "params"), self.place(state.optimizer, "state")
        )

    def whole_params(self, params: Arrays) -> Arrays:
        """Return parameters as whole arrays on the first device."""
        whole: Arrays = import_jax().device_put(self.on_host(params, "params"), self._replicated)
        return whole

    def on_host(self, arrays: Arrays, kind: str) -> dict[str, Any]:
        """Return whole arrays on the host."""
        return dict(self.module.unshard(dict(arrays), self.module.LAYOUTS[kind]))

    @property
    def _replicated(self) -> Any:
        return import_jax().sharding.SingleDeviceSharding(self.module.place(0))

    def _sharding(self, layout: Any) -> Any:
        return self._replicated
