"""The options that choose the parts of a file, as a Python value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs

from mtfc.compiler.records import frozen
from mtfc.driver.errors import UsageError

if TYPE_CHECKING:
    from mtfc.compiler.diagnostics import Diagnostic
    from mtfc.compiler.ir.core import Program
    from mtfc.compiler.ir.types import Layout, Mesh
    from mtfc.compiler.passes.pass_base import Pass
    from mtfc.compiler.passes.recompute import Recompute
    from mtfc.compiler.search.found import Found


BestLayout = Callable[["Layout", Sequence[tuple["Mesh", "Layout"]], float], "Found"]
"""Searches with rules that the layout must have, and layouts to start from, until a time of `process_time`."""


class ProgramSource(Protocol):
    """A program that is not read from a .mtf file: see `driver/jax_functions/imported_program.py`."""

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

    def without_faults(self, best: BestLayout, known: Sequence[tuple[Mesh, Layout]], until: float) -> Found:
        """Return the best layout that meets no known fault of XLA, if there is one. Raises `NothingFits`."""
        ...

    @property
    def texts(self) -> Mapping[str, str]:
        """The texts of the files that spans point into, by name."""
        ...

    def planned(self, path: str) -> tuple[Mesh, Layout, Recompute | None]:
        """Return the mesh, the layout and the memory limit that a file of a plan has. Raises `UsageError`."""
        ...

    def plan_text(self, mesh: Mesh, layout: Layout) -> str:
        """Return the text of such a file."""
        ...


@frozen
class Choice:
    """The chosen parts of a file, and the layouts; None leaves the choice to the file.

    layout: a name, or rules as text. mesh: a name, or a shape as text. settings: entries of the model's `train` block, each
    `KEY=VALUE`. passes: the passes that lower a program, as text or as passes, in place of the default ones.
    source: the function of JAX or the graph that makes the program; None for a .mtf file. memory: see `memory_limit.py`.
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


def settings_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return entries of a `train` block, given as Python values, in the form of `Choice.settings`."""
    return tuple(f"{key}={_text_of(value)}" for key, value in values.items())


def _text_of(value: object) -> str:
    """Return a setting of Python as the language writes it."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_text_of, value))
    return str(value).lower() if isinstance(value, bool) else " ".join(str(value).splitlines())
