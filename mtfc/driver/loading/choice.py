"""The options that choose the parts of a file, as a Python value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.records import frozen
from mtfc.driver.errors import UsageError

if TYPE_CHECKING:
    from mtfc.compiler.cost.device_graph import Machine
    from mtfc.compiler.diagnostics import Diagnostic
    from mtfc.compiler.ir.core import Program
    from mtfc.compiler.ir.types import Layout, Mesh
    from mtfc.compiler.passes.pass_base import Pass
    from mtfc.compiler.passes.recompute import Recompute


class ProgramSource(Protocol):
    """A program that is not read from a .mtf file: see `driver/jax_functions/function_source.py`."""

    @property
    def program(self) -> Program:
        """The program. Raises `CompileError` and `UsageError`."""
        ...

    @property
    def declarations(self) -> str:
        """The program's dimensions, as declarations of the language."""
        ...

    @property
    def warnings(self) -> Sequence[Diagnostic]:
        """Warnings about the program, under every layout."""
        ...

    def unsplit(self) -> Layout:
        """Return rules that leave dimensions whole which a search does not split."""
        ...

    def baselines(self, meshes: Sequence[Mesh]) -> Sequence[tuple[Mesh, Layout]]:
        """Return layouts from which a search starts."""
        ...

    @property
    def texts(self) -> Mapping[str, str]:
        """The texts of the files that spans point into, by name."""
        ...

    def planned(self, path: str) -> tuple[Mesh, Layout, Recompute | None]:
        """Return the mesh, the layout and the memory limit that a file of a plan has. Raises `UsageError`."""
        ...

    def plan_text(self, mesh: Mesh, layout: Layout, limit: Recompute | None) -> str:
        """Return the text of such a file."""
        ...


@frozen
class Choice:
    """The chosen parts of a file, and the layouts; None leaves the choice to the file.

    layout: a name, or rules as text. mesh: a name, or a shape as text. settings: entries of the model's `train` block, each
    `KEY=VALUE`. passes: the passes that lower a program, as text or as passes, in place of the default ones.
    source: what makes the program; None for a .mtf file. memory: the most memory of a device, such as `80GiB`, or a machine.
    """

    model: str | None = None
    layout: str | None = None
    mesh: str | None = None
    dims: Mapping[str, int] = attrs.field(factory=dict)
    settings: tuple[str, ...] = ()
    passes: str | tuple[Pass, ...] | None = None
    source: ProgramSource | None = None
    memory: str | None = None

    def pipeline(self) -> tuple[Pass, ...] | None:
        """Return the chosen passes. Raises `UsageError` if they cannot lower a program."""
        if self.passes is None:
            return None
        from mtfc.compiler.passes.pass_base import PipelineError
        from mtfc.compiler.passes.pipelines import check_order, parse_pipeline

        try:
            passes = parse_pipeline(self.passes) if isinstance(self.passes, str) else self.passes
            check_order(passes)
        except PipelineError as error:
            raise UsageError(f"--passes: {error}") from None
        return passes

    def limit(self, declared: Mapping[str, Machine]) -> Recompute | None:
        """Return the pass that keeps to the memory limit; a machine also gives it its rates. Raises `UsageError`.

        declared: the machines of the file; those of the library are known, too.
        """
        if self.memory is None:
            return None
        from mtfc.compiler.passes.recompute import Recompute, limit_on
        from mtfc.frontend.hardware_targets import find_hardware, library_machines, split_target

        name, _ = split_target(self.memory)
        if name in declared or name in library_machines():
            try:
                return limit_on(find_hardware(self.memory, declared))
            except CompileError as error:
                (wrong,) = error.diagnostics
                raise UsageError(f"--memory: {wrong.message}; {wrong.help}") from None
        try:
            return Recompute(bytes_in(self.memory))
        except ValueError as error:
            raise UsageError(f"--memory: {error}, or a machine such as h100") from None


UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**i for i, p in enumerate("kMGT", 1)}}
UNITS |= {f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}


def bytes_in(text: str) -> int:
    """Return the bytes of a size such as `80GiB`, `95 GB` or `1.5e9`. Raises `ValueError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d{1,2})?)\s*([A-Za-z]*)\s*", text)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    size = int(float(match[1]) * units.get(match[2].lower(), 0)) if match and len(match[1]) < 30 else 0
    if not 0 < size < 2**63:
        raise ValueError(f"expected a size such as 80GiB, 95GB or 500MiB, not `{text}`")
    return size


def settings_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return entries of a `train` block, given as Python values, in the form of `Choice.settings`."""
    return tuple(f"{key}={_text_of(value)}" for key, value in values.items())


def _text_of(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text_of, value))
    return str(value).lower() if isinstance(value, bool) else " ".join(str(value).splitlines())
