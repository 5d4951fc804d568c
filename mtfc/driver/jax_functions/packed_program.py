"""The SPMD program of a plan, on packed arrays: these have one axis for each dimension of the program.

An axis of the user's array may be a product of dimensions. A `PartitionSpec` splits the leading ones only, and a packed array can
be split along each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from mtfc.backends.common.devices import import_jax, setting_kept
from mtfc.backends.common.module import KINDS
from mtfc.backends.registry import BACKENDS
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.types import ARRAY_DTYPES
from mtfc.frontend.jaxpr.importing import Imported

jax = import_jax()

TABLES = {role: table for table, role in KINDS.items()}
"""Role of an argument -> the name of its table in a module."""


@attrs.frozen(eq=False, slots=False)
class PackedProgram:
    """A module that computes an imported function. main: the function of one processor. mesh: JAX's mesh of the plan."""

    imported: Imported
    main: Function
    text: str
    mesh: Any

    @cached_property
    def module(self) -> Any:
        with setting_kept("jax_enable_x64"):  # the caller decides, as for the function
            return BACKENDS["jax"].load(self.text)

    @cached_property
    def roles(self) -> Mapping[str, str]:
        return {argument.value.name: argument.role for argument in self.main.arguments}

    def arguments(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return packed arguments by name, from the leaves of the user's arguments."""
        given, rest = {}, iter(leaves)
        for leaf in self.imported.inputs:
            x = leaf.constant if leaf.constant is not None else next(rest)
            data = jax.random.key_data(x) if leaf.key is not None else jax.numpy.asarray(x)
            given[leaf.name] = data.reshape([dim.size for dim in leaf.flat_dims])
        return given

    def placed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of packed arguments on the devices."""
        return {
            name: jax.device_put(jax.numpy.array(x), self._sharding(name))
            for name, x in given.items()
            if name in self.roles
        }

    def abstract(self) -> dict[str, Any]:
        """Return packed arguments as `jax.ShapeDtypeStruct`s with shardings."""
        return {
            leaf.name: jax.ShapeDtypeStruct(
                tuple(dim.size for dim in leaf.flat_dims),
                jax.numpy.dtype(ARRAY_DTYPES[leaf.dtype]),
                sharding=self._sharding(leaf.name),
            )
            for leaf in self.imported.inputs
            if leaf.name in self.roles
        }

    def _sharding(self, name: str) -> Any:
        return jax.sharding.NamedSharding(self.mesh, self.module.LAYOUTS[TABLES[self.roles[name]]][name])

    def run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Run the module on packed arguments, and return all packed outputs by name."""
        params, inputs, state = (
            {name: given[name] for name, role in self.roles.items() if role == wanted}
            for wanted in ("parameter", "input", "state")
        )
        if self.main.name == "forward":
            outputs: dict[str, Any] = self.module.forward(params, inputs)
            return outputs
        found, params, state = self._train_step(params, state, inputs, 0)
        new = {**params, **state}
        return {**found, **{name: new[old] for name, old in self.imported.replaced.items()}}

    @cached_property
    def _train_step(self) -> Any:
        """The module's step without donation: the caller says what to donate."""
        return jax.jit(self.module.train_step.__wrapped__)

    def results(self, outputs: Mapping[str, Any]) -> list[Any]:
        """Return packed outputs as the leaves of the function's own results."""
        found = []
        for leaf in self.imported.outputs:
            x = outputs[leaf.name].reshape(leaf.shape)
            if leaf.key is not None:  # JAX splits no words of a key
                whole = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
                x = jax.lax.with_sharding_constraint(x, whole)
                x = jax.random.wrap_key_data(x, impl=leaf.key)
            found.append(x)
        return found
