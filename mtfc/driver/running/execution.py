"""Execution of a lowered program on a backend; arguments and results are global arrays under every layout."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.backends.common.devices import import_jax
from mtfc.backends.registry import BACKENDS
from mtfc.compiler.activity import doing
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.training import average_of
from mtfc.compiler.ir.types import Dim
from mtfc.driver.data.array_files import Array, Arrays

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import JaxProgram


def source(program: Program, backend: str) -> str:
    """Return the text of the module that a backend generates."""
    with doing("generating code"):
        return BACKENDS[backend].generate(program)


def load(program: Program, backend: str) -> Any:
    """Return the module that a backend generates, ready to run. Raises `Unavailable`."""
    return loaded(source(program, backend), backend)


def loaded(text: str, backend: str) -> Any:
    """Return the module of a text that a backend has generated, ready to run. Raises `Unavailable`."""
    with doing("loading the module"):
        return BACKENDS[backend].load(text)


def jax_program(text: str) -> JaxProgram:
    """Return the program of a module's text on JAX's devices. Raises `Unavailable`."""
    import_jax()
    from mtfc.backends.jax.jax_program import JaxProgram

    return JaxProgram.of(text)


@attrs.define
class Session:
    """A module with its parameters and optimizer state between steps.

    smaller: modules of the same program with another size of one dimension.
    """

    module: Any
    params: Mapping[str, Any]
    state: Mapping[str, Any]
    smaller: Mapping[Dim, Any] = attrs.field(factory=dict)

    @classmethod
    def start(cls, module: Any, seed: int, given: Arrays) -> Session:
        """Start a session. Parameters that are not given are drawn from `seed`; the given ones are placed one at a time."""
        params = {} if given.keys() == module.PARAMETERS.keys() else dict(module.init(seed))
        for name in given:
            params |= module.shard({name: given[name]}, {name: module.PARAMETERS[name]})
        return cls(module, params, module.init_state() if hasattr(module, "init_state") else {})

    def evaluate(self, function: str, inputs: Arrays, smaller: Dim | None = None) -> dict[str, Array]:
        """Return the outputs of `forward` or `gradients`. smaller: the first dimension of the inputs, if it is smaller."""
        module = self.module if smaller is None else self.smaller[smaller]
        params = _moved(self.params, self.module, module, "PARAMETERS")
        placed = module.shard(dict(inputs), module.INPUTS)
        with without_warnings():
            outputs = getattr(module, function)(params, placed)
        return dict(module.unshard(outputs, module.OUTPUTS[function]))

    def train(self, inputs: Arrays, step: int, smaller: Dim | None = None) -> dict[str, Array]:
        """Run training step `step`, counted from 0, and return its outputs. Several micro-batches of a step are stacked."""
        module = self.module if smaller is None else self.smaller[smaller]
        placed = module.shard(dict(inputs), getattr(module, "BATCHES", module.INPUTS))
        params = _moved(self.params, self.module, module, "PARAMETERS")
        state = _moved(self.state, self.module, module, "STATE")
        with without_warnings():
            outputs, params, state = module.train_step(params, state, placed, step)
        self.params = _moved(params, module, self.module, "PARAMETERS")
        self.state = _moved(state, module, self.module, "STATE")
        return dict(module.unshard(outputs, module.OUTPUTS["train_step"]))

    def parameters(self) -> dict[str, Array]:
        return dict(self.module.unshard(self.params, self.module.PARAMETERS))

    def optimizer_state(self) -> dict[str, Array]:
        return dict(self.module.unshard(self.state, self.module.STATE))

    def averages(self) -> dict[str, Array]:
        """Return the average of each trained parameter as `NAME.average`, if the file asks for averages."""
        module = self.module
        if not hasattr(module, "averaged"):
            return {}
        found = module.unshard(module.averaged(self.params, self.state), module.PARAMETERS)
        names = {name: average_of(name) for name in module.PARAMETERS if average_of(name) in module.STATE}
        return {average: found[name] for name, average in names.items()}

    def restore(self, parameters: Arrays, state: Arrays) -> None:
        """Continue from global arrays, as `parameters` and `optimizer_state` return them."""
        self.params = self.module.shard(dict(parameters), self.module.PARAMETERS)
        self.state = self.module.shard(dict(state), self.module.STATE)


def _moved(arrays: Mapping[str, Any], source: Any, target: Any, table: str) -> Mapping[str, Any]:
    """Move arrays from the layouts of one module to the layouts of another. table: names the layouts, which mostly agree."""
    before, after = getattr(source, table), getattr(target, table)
    return arrays if before == after else target.shard(source.unshard(arrays, before), after)


def without_warnings() -> AbstractContextManager[object]:
    """Turn off NumPy's warnings about numbers that are not finite: the results show these numbers."""
    import numpy as np

    return np.errstate(all="ignore")
