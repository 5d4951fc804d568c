# mypy: allow-untyped-calls
"""A program under a layout of several meshes on JAX devices: its training state, and functions that take batches.

The module imports `jax_program`, and with it JAX, so it is imported only where JAX runs.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from mtfc.backends.common.devices import import_jax
from mtfc.backends.jax.jax_program import JaxProgram


@attrs.frozen(eq=False, slots=False)
class MultiMeshJaxProgram(JaxProgram):
    """A generated module for several meshes. Each array is on the devices of one mesh, so checkpoints take it as it is."""

    several: ClassVar[str | None] = "a layout of several meshes"

    @property
    def overlaps(self) -> bool:
        """True if functions return before their results are there; on devices of the CPU they wait."""
        devices = [device for mesh in self.module.BOUND.values() for device in mesh.devices.flat]
        return devices[0].platform != "cpu" or all(mesh.size == 1 for mesh in self.module.BOUND.values())

    @property
    def _replicated(self) -> Any:
        jax = import_jax()
        mesh = self.module.mesh_of(next(iter(self.module.MESHES)))
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def _sharding(self, layout: Any) -> Any:
        return self.module.sharding(layout)
