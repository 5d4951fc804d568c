"""Layouts of several meshes and placements in the place of a layout, for the commands that take either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

import attrs

from mtfc.backends.registry import BACKENDS
from mtfc.compiler.diagnostics import Diagnostic, did_you_mean
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.driver.errors import UsageError
from mtfc.frontend.layouts.legality import check_layout
from mtfc.frontend.layouts.program_index import ProgramIndex

if TYPE_CHECKING:
    from mtfc.frontend.layouts.declared_layouts import MultiMeshLayout
    from mtfc.meshes.mesh_labels import MeshPart
    from mtfc.meshes.multi_mesh_program import MultiMeshProgram
    from mtfc.placements.declarations import DeclaredPlacement
    from mtfc.placements.running.placed_program import PlacedProgram


class CaseOnDevices:
    """A case without one mesh: it has a name and a number of devices, and passes do not lower the whole program for it.

    kind, content: the kind of case, and what its modules hold, in messages. unlowered: the subject of "not lowered by passes".
    emits: the texts that `mtfc compile` writes.
    """

    kind: ClassVar[str]
    content: ClassVar[str] = ""
    unlowered: ClassVar[str]
    emits: ClassVar[tuple[str, ...]]

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def devices(self) -> int:
        raise NotImplementedError

    @property
    def mesh(self) -> Mesh:
        """All devices as a mesh of one axis, for messages."""
        return Mesh("devices", (("all", self.devices),))

    @property
    def layout(self) -> Layout:
        """A layout with the same name, for messages."""
        return Layout(self.name)

    def refuse(self, options: Mapping[str, object], why: str = "") -> None:
        """Raise `UsageError` for the first option that is given: this kind of case takes none of them. why: the reason."""
        given = next((option for option, value in options.items() if value not in (None, False)), None)
        if given is not None:
            raise UsageError(f"`{self.name}` is {self.kind}{why}: no {given}")

    def as_near(self) -> Self:
        return self

    def placed(self, program: Program) -> Program:
        """Return the global program, whose parts get their devices later. Raises `CompileError` if the case does not fit it."""
        return program

    def lowered(self, program: Program) -> tuple[Program, ...]:
        """Return the programs that passes lower for one processor each: none."""
        return ()

    def text(self, program: Program, emit: str, locations: bool = False) -> str:
        """Return a text of `emits`. locations: IR has source places. Raises `CompileError` and `UsageError`."""
        return self.source(program, emit)

    def source(self, program: Program, backend: str = "jax", of: str = "step") -> str:
        """Return the text of a variant of the program as a module. Raises `CompileError` and `UsageError`."""
        raise NotImplementedError

    def forward_source(self, program: Program, backend: str = "jax") -> str:
        """Return the text of the forward pass alone as a module."""
        return self.source(program, backend, "forward")


@attrs.frozen
class MultiMeshCase(CaseOnDevices):
    """A layout of several meshes. rules: the rules of each part, in the order of `declared.parts`."""

    declared: MultiMeshLayout
    rules: tuple[Layout, ...]

    kind: ClassVar[str] = "a layout of several meshes"
    unlowered: ClassVar[str] = "whose segments are"
    emits: ClassVar[tuple[str, ...]] = ("spmd", *BACKENDS)

    @classmethod
    def of(cls, declared: MultiMeshLayout) -> MultiMeshCase:
        return cls(declared, tuple(part.rules.layout for part in declared.parts))

    @property
    def name(self) -> str:
        return self.declared.name

    @property
    def devices(self) -> int:
        return sum(part.mesh.devices for part in self.declared.parts)

    @property
    def parts(self) -> tuple[MeshPart, ...]:
        """The parts of a program."""
        from mtfc.meshes.mesh_labels import MeshPart

        declared = self.declared
        pairs = zip(declared.parts, self.rules, strict=True)
        return tuple(MeshPart(part.mesh, each, part.places, part is declared.rest) for part, each in pairs)

    @property
    def summary(self) -> str:
        """The layout and its meshes, in a line."""
        meshes = ", ".join(f"{part.mesh.name} = [{part.mesh.axes_text}]" for part in self.declared.parts)
        return f"layout {self.name} on meshes {meshes}"

    def program(self, program: Program, of: str = "step") -> MultiMeshProgram:
        """Return a variant of the program in segments on the meshes."""
        from mtfc.meshes.multi_mesh_program import MultiMeshProgram

        return MultiMeshProgram(program, self.parts, self.name, of)

    def lowered(self, program: Program) -> tuple[Program, ...]:
        """Return the programs of all segments, each for one processor of its mesh."""
        functions = self.program(program).functions
        return tuple(each.program for function in functions for each in function.segments)

    def segment_texts(self, program: Program, locations: bool = False) -> Iterator[str]:
        """Yield the program of each segment as IR text, after a line that names its function and its mesh."""
        multi_mesh = self.program(program)
        for function in multi_mesh.functions:
            for number, segment in enumerate(function.segments):
                title = f"// {function.name}, segment {number} on mesh {multi_mesh.meshes[segment.part].name}"
                yield f"{title}\n{print_program(segment.program, locations)}"

    def text(self, program: Program, emit: str, locations: bool = False) -> str:
        """Return the IR of all segments, or a module."""
        is_ir = emit == "spmd"
        return "\n".join(self.segment_texts(program, locations)) if is_ir else self.source(program, emit)

    def source(self, program: Program, backend: str = "jax", of: str = "step") -> str:
        """Return the text of a variant of the program as a module."""
        from mtfc.meshes.module import generate

        return generate(self.program(program, of), backend)


@attrs.frozen
class PlacementCase(CaseOnDevices):
    """A placement on its devices. declared: the program of the file, whose operators the placement names."""

    placement: DeclaredPlacement
    declared: Program = attrs.field(eq=False)

    kind: ClassVar[str] = "a placement"
    content: ClassVar[str] = ", whose operators are a JAX module"
    unlowered: ClassVar[str] = "which is"
    emits: ClassVar[tuple[str, ...]] = ("jax",)

    @property
    def name(self) -> str:
        return self.placement.name

    @property
    def devices(self) -> int:
        return self.placement.devices

    @property
    def summary(self) -> str:
        """The placement and its devices, in a line."""
        return f"placement {self.name} on {self.devices} device{'s'[: self.devices - 1]}"

    def placed(self, program: Program) -> Program:
        """Return the global program. Raises `CompileError` (E317, E319) if the placement does not fit the model's operators."""
        self._program(self.declared).configurations()
        return program

    def source(self, program: Program, backend: str = "jax", of: str = "step") -> str:
        """Return the text of a variant of the program as a module. On NumPy `gradients` is the only variant.

        Raises `CompileError` (E317, E319) and `UsageError`.
        """
        from mtfc.placements.running.jax.module import generate, generate_numpy

        if backend == "jax":
            return generate(self._program(program, of))
        if of == "gradients":
            return generate_numpy(self._program(program, of))
        raise UsageError(
            f"`{self.name}` is a placement, which runs on JAX's devices: `--backend jax`"
            " (`mtfc verify` compares it on NumPy, too)"
        )

    def _program(self, program: Program, of: str = "step") -> PlacedProgram:
        """Return the program placed part by part on devices. of: the function."""
        from mtfc.placements.running.placed_program import PlacedProgram

        return PlacedProgram(program, self.placement, self.declared, of)


def check_multi_mesh(programs: Sequence[Program], layouts: Sequence[MultiMeshLayout]) -> Iterator[Diagnostic]:
    """Yield the errors and warnings of layouts of several meshes: each part must be legal for its equations."""
    from mtfc.meshes.segments import part_programs

    for declared in layouts:
        chosen = [each for each in programs if declared.is_for(each.name)]
        own = [part_programs(program, MultiMeshCase.of(declared).parts) for program in chosen]
        if own:
            yield from _elsewhere(declared, own)
        for each in own:
            for part, program in zip(declared.parts, each, strict=True):
                yield from check_layout(program, part.rules)


def _elsewhere(declared: MultiMeshLayout, programs: Sequence[Sequence[Program]]) -> Iterator[Diagnostic]:
    """Yield E305 for `value` rules of a part for values that are not on its mesh.

    programs: the programs of each part, by model.
    """
    columns = zip(*programs, strict=True)
    known = [{name for each in column for name in ProgramIndex(each).by_path} for column in columns]
    for part, own in zip(declared.parts, known, strict=True):
        for path, name in part.rules.paths.items():
            if path in own or path in declared.unused:
                continue
            there = [
                other.mesh.name for other, names in zip(declared.parts, known, strict=True) if path in names
            ]
            if there:
                message = f"value `{path}` is on mesh `{there[0]}`, and this rule on `{part.mesh.name}`"
                help = f"write the rule where the rules of mesh `{there[0]}` stand"
                yield Diagnostic("E305", message, name.span, help=help)
                continue
            meant = did_you_mean(path, set().union(*known))
            yield Diagnostic("E305", f"no model has a value `{path}`", name.span, help=meant)
