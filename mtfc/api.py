"""What the Python API gives back: see `mtfc.compile`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import attrs

from mtfc.cli import execution
from mtfc.cli.selection import Choice, choose
from mtfc.compiler.hardware import Hardware
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.frontend.source import decode

__all__ = ["Choice", "Compiled", "compile_case", "found", "read"]


@attrs.frozen
class Compiled:
    """A model compiled for one layout: the program of one processor, in every form. `machines` are those of its file."""

    program: Program
    machines: Mapping[str, Hardware]

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

    def simulate(self, target: str) -> dict[str, Any]:
        """What a step is predicted to take on a machine, as in the output of `mtfc simulate --format json`: `step_seconds`,
        `exposed_communication_seconds`, `utilisation`, `memory_per_device` and more.

        `target` is a machine of the file or of the library, or a .mtf file that declares one. Raises `CompileError` where there
        is none, or it has too few devices.
        """
        from mtfc.cli.sources import Sources
        from mtfc.cli.target import check_room, target_of
        from mtfc.compiler.analysis.cost import layout_cost
        from mtfc.compiler.analysis.step_json import step_json
        from mtfc.compiler.analysis.step_time import step_time

        hardware, mesh = target_of(target, self.machines, Sources()), self.program.mesh
        assert mesh is not None
        check_room(hardware, mesh, target)
        cost = layout_cost(self.program)
        function = self.program.function("step" if cost.trains else "forward")
        return step_json(cost, step_time(function, mesh, hardware), hardware)


def read(path: str | PathLike[str]) -> str:
    """A .mtf file's text. Raises `OSError`, and `CompileError` where it is not text."""
    return decode(Path(path).read_bytes(), str(path))


def compile_case(text: str, file: str, choice: Choice) -> Compiled:
    """Compile a file's text for the first layout that is chosen. Raises `CompileError`."""
    selection = choose(text, file, choice)
    return Compiled(selection.cases[0].lower(selection.program, "module"), selection.hardware)


def found(**options: Any) -> dict[str, Any]:
    """What `mtfc search` finds with some options, and the defaults of the others."""
    from mtfc.cli import search, search_result, search_soap
    from mtfc.cli.sources import Sources
    from mtfc.compiler.search.found import silent

    parser = ArgumentParser()
    search.add_arguments(parser)
    defaults = vars(parser.parse_args([options["file"]]))
    result = search.find(Namespace(**{**defaults, **options}), Sources(), silent)
    return search_soap.record(result) if options["space"] == "soap" else search_result.record(result)
