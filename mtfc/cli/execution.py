"""A lowered program on a backend: global arrays go in and come out, whatever the layout."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import attrs

from mtfc.cli.npz import Array, Arrays
from mtfc.compiler.ir.core import Program

BACKENDS = ("numpy", "jax")


def source(program: Program, backend: str) -> str:
    """The text of the program that a backend generates."""
    if backend == "numpy":
        from mtfc.backends.numpy_backend import generate as generate_numpy

        return generate_numpy(program)
    from mtfc.backends.jax_backend import generate as generate_jax

    return generate_jax(program)


def load(program: Program, backend: str) -> Any:
    """The module that a backend generates, ready to run. Raises `Unavailable`."""
    if backend == "numpy":
        from mtfc.backends.numpy_backend import load as load_numpy

        return load_numpy(source(program, backend))
    from mtfc.backends.jax_runtime import load as load_jax

    return load_jax(source(program, backend))


@attrs.define
class Session:
    """A module with its parameters and optimizer state, as they are between steps."""

    module: Any
    params: Mapping[str, Any]
    state: Mapping[str, Any]

    @classmethod
    def start(cls, module: Any, seed: int, given: Arrays) -> Session:
        """Parameters drawn from `seed`, but for those that are given."""
        drawn = {} if given.keys() == module.PARAMETERS.keys() else module.init(seed)
        params = {**drawn, **module.shard(dict(given), {name: module.PARAMETERS[name] for name in given})}
        return cls(module, params, module.init_state() if hasattr(module, "init_state") else {})

    def evaluate(self, function: str, inputs: Arrays) -> dict[str, Array]:
        """The outputs of `forward` or `gradients`."""
        placed = self.module.shard(dict(inputs), self.module.INPUTS)
        with _without_warnings():
            outputs = getattr(self.module, function)(self.params, placed)
        return self._unshard(outputs, self.module.OUTPUTS[function])

    def train(self, inputs: Arrays, step: int) -> dict[str, Array]:
        """One training step, number `step` from 0; its outputs. The inputs are micro-batches, stacked, if it takes several."""
        placed = self.module.shard(dict(inputs), getattr(self.module, "BATCHES", self.module.INPUTS))
        with _without_warnings():
            outputs, self.params, self.state = self.module.train_step(self.params, self.state, placed, step)
        return self._unshard(outputs, self.module.OUTPUTS["train_step"])

    def parameters(self) -> dict[str, Array]:
        return self._unshard(self.params, self.module.PARAMETERS)

    def _unshard(self, arrays: Mapping[str, Any], specs: Mapping[str, Any]) -> dict[str, Array]:
        return dict(self.module.unshard(arrays, specs))


def _without_warnings() -> AbstractContextManager[object]:
    """NumPy warns of numbers that are not finite, which the results show."""
    import numpy as np

    return np.errstate(all="ignore")
