"""What the Python API gives back: see `mtfc.compile`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import attrs

from mtfc.cli import execution
from mtfc.cli.selection import Choice, choose
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.frontend.source import decode

__all__ = ["Choice", "Compiled", "compile_case", "read"]


@attrs.frozen
class Compiled:
    """A model compiled for one layout: the program of one processor, in every form."""

    program: Program

    def ir(self) -> str:
        """The program as IR text."""
        return print_program(self.program)

    def numpy(self) -> str:
        """A NumPy module that simulates every processor of the mesh."""
        return execution.source(self.program, "numpy")

    def jax(self) -> str:
        """A JAX module that runs on the mesh."""
        return execution.source(self.program, "jax")

    def load(self, backend: str = "numpy") -> ModuleType:
        """The module of a backend, ready to run; see `mtfc.backends.emitter` for what it holds. Raises `Unavailable`."""
        return cast(ModuleType, execution.load(self.program, backend))

    def cost(self) -> dict[str, Any]:
        """What one device computes, sends and stores, as in the output of `mtfc cost --format json`."""
        from mtfc.compiler.analysis.cost import layout_cost
        from mtfc.compiler.analysis.cost_json import costs_json

        (entry,) = costs_json([layout_cost(self.program)])["layouts"]
        return cast(dict[str, Any], entry)


def read(path: str | PathLike[str]) -> str:
    """A .mtf file's text. Raises `OSError`, and `CompileError` where it is not text."""
    return decode(Path(path).read_bytes(), str(path))


def compile_case(text: str, file: str, choice: Choice) -> Compiled:
    """Compile a file's text for the first layout that is chosen. Raises `CompileError`."""
    selection = choose(text, file, choice)
    return Compiled(selection.cases[0].lower(selection.program))
