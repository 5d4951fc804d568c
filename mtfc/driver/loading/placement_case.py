"""A placement in the place of a layout: `mtfc run`, `train`, `eval`, `verify` and `compile` take either."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import attrs

from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.driver.errors import UsageError

if TYPE_CHECKING:
    from mtfc.placements.declarations import DeclaredPlacement


@attrs.frozen
class PlacementCase:
    """A placement on its devices. declared: the program of the file, whose operators the placement names."""

    placement: DeclaredPlacement
    declared: Program = attrs.field(eq=False)

    kind: ClassVar[str] = "a placement"

    @property
    def name(self) -> str:
        return self.placement.name

    @property
    def mesh(self) -> Mesh:
        """The devices as a mesh of one axis, for messages."""
        return Mesh("devices", (("all", self.placement.devices),))

    @property
    def layout(self) -> Layout:
        """A layout with the placement's name, for messages."""
        return Layout(self.name)

    @property
    def summary(self) -> str:
        """The placement and its devices, in a line."""
        devices = self.placement.devices
        return f"placement {self.name} on {devices} device{'s'[: devices - 1]}"

    def as_near(self) -> PlacementCase:
        return self

    def placed(self, program: Program) -> Program:
        """Return the global program, whose operators get their devices later."""
        return program

    def check(self) -> None:
        """Raise `CompileError` (E317, E319) for a placement that does not fit the operators of the model."""
        from mtfc.placements.running.placed_program import PlacedProgram

        PlacedProgram(self.declared, self.placement, self.declared).configurations()

    def source(self, program: Program, backend: str = "jax", of: str = "step") -> str:
        """Return the text of a variant of the program as a module. Raises `CompileError` and `UsageError`."""
        if backend != "jax":
            raise UsageError(
                f"`{self.name}` is a placement, which runs on JAX's devices: --backend jax"
                " (`mtfc verify` compares it on NumPy, too)"
            )
        from mtfc.placements.running.jax.module import generate
        from mtfc.placements.running.placed_program import PlacedProgram

        return generate(PlacedProgram(program, self.placement, self.declared, of))

    def numpy_source(self, program: Program) -> str:
        """Return the text of a NumPy module with outputs and gradients, for comparisons. Raises `CompileError` (E317, E319)."""
        from mtfc.placements.running.jax.module import generate_numpy
        from mtfc.placements.running.placed_program import PlacedProgram

        return generate_numpy(PlacedProgram(program, self.placement, self.declared, "gradients"))

    def forward_source(self, program: Program, backend: str = "jax") -> str:
        """Return the text of the forward pass alone as a module."""
        return self.source(program, backend, "forward")
