"""Implementation of the package's functions and of the objects that they return: see `mtfc/__init__.py`.

Every figure comes from the function that the command calls for `--format json`, so both agree.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast, overload

import attrs

from mtfc.compiler.cost.hardware import Hardware
from mtfc.compiler.diagnostics import CompileError, Diagnostic
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.errors import UsageError, diagnostic_in_python, public
from mtfc.driver.options import SearchOptions
from mtfc.driver.running import execution
from mtfc.driver.selection import Choice, choose, settings_of
from mtfc.driver.sources import Sources
from mtfc.driver.values import (
    LayoutOption,
    MeshOption,
    PathOption,
    file_option,
    layout_option,
    mesh_option,
    names_option,
    number_option,
    one_of,
    path_option,
    program_text,
    seconds_option,
    settings_option,
    sizes_option,
    target_option,
    text_option,
)
from mtfc.frontend.syntax.lexer import decode

if TYPE_CHECKING:
    from mtfc.driver.records import Difference, LayoutCost, Step, Verification

__all__ = [
    "Checked",
    "Compiled",
    "checked",
    "compared",
    "compile_case",
    "found",
    "options_of",
    "read",
    "recorded",
    "verified",
]


@attrs.frozen(repr=False, eq=False)
class Compiled:
    """A model compiled for one layout: the program of one processor, in every form. `machines` are those of its file.

    Two compiled models are equal only if they are the same object.
    """

    program: Program
    machines: Mapping[str, Hardware]
    _placed: Program

    @cached_property
    def _module(self) -> Program:
        """The program with the functions that only modules have, such as `value_and_grad`."""
        return lower(self._placed, self._placed.mesh, self._placed.layout, "module")

    def __repr__(self) -> str:
        from mtfc.driver.notebook import line

        return line(self.program)

    def _repr_html_(self) -> str:
        from mtfc.driver.notebook import html

        return html(self.program)

    def ir(self) -> str:
        """The program as IR text."""
        return print_program(self.program)

    def numpy(self) -> str:
        """A NumPy module that simulates every processor of the mesh."""
        return execution.source(self._module, "numpy")

    def jax(self) -> str:
        """A JAX module that runs on the mesh."""
        return execution.source(self._module, "jax")

    @public
    def load(self, backend: str = "numpy") -> ModuleType:
        """Load the module of a backend, `"numpy"` or `"jax"`, ready to run; `mtfc.backends.common.emitter` lists its contents.

        Raises `Unavailable` where JAX is missing or has too few devices.
        """
        one_of("backend", backend, execution.BACKENDS)
        return cast(ModuleType, execution.load(self._module, backend))

    def cost(self) -> LayoutCost:
        """What one device computes, sends and stores, as in the output of `mtfc cost --format json`."""
        from mtfc.compiler.cost.volumes import layout_cost
        from mtfc.reports.cost_json import costs_json

        (entry,) = costs_json([layout_cost(self.program)])["layouts"]
        return cast("LayoutCost", entry)

    @public
    def simulate(self, target: str | PathLike[str]) -> Step:
        """What a step is predicted to take on a machine, as in the output of `mtfc simulate --format json`: `step_seconds`,
        `exposed_communication_seconds`, `utilisation`, `memory_per_device` and more.

        `target` is a machine of the file or of the library, or a .mtf file that declares one. Raises `CompileError` where there
        is none, or it has too few devices.
        """
        from mtfc.compiler.cost.step_time import step_time
        from mtfc.compiler.cost.volumes import layout_cost
        from mtfc.driver.target import check_room, target_of
        from mtfc.reports.step_json import step_json

        target, sources, mesh = target_option(target), Sources(), self.program.placed_on
        sources.add_options(Namespace(target=target))
        with _showing(sources):
            hardware = target_of(target, self.machines, sources)
            check_room(hardware, mesh, target)
        cost = layout_cost(self.program)
        function = self.program.function("step" if cost.trains else "forward")
        return cast("Step", step_json(cost, step_time(function, mesh, hardware), hardware))


@attrs.frozen(repr=False)
class Checked(Sequence[Diagnostic]):
    """The diagnostics of a file, in source order; `str` returns the text that `mtfc check` shows."""

    file: str
    diagnostics: tuple[Diagnostic, ...]

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(each for each in self.diagnostics if each.severity == "error")

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(each for each in self.diagnostics if each.severity == "warning")

    @property
    def ok(self) -> bool:
        """True if the file can be compiled; warnings do not count."""
        return not self.errors

    @overload
    def __getitem__(self, index: int) -> Diagnostic: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Diagnostic, ...]: ...
    def __getitem__(self, index: int | slice) -> Diagnostic | tuple[Diagnostic, ...]:
        return self.diagnostics[index]

    def __len__(self) -> int:
        return len(self.diagnostics)

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.diagnostics), self._verdict()])

    def __repr__(self) -> str:
        return f"<Checked {self._verdict()}>"

    def _verdict(self) -> str:
        from mtfc.cli.check import verdict

        return f"{self.file}: {verdict(self.diagnostics)}"


def read(path: str | PathLike[str]) -> str:
    """A .mtf file's text. Raises `OSError`, and `CompileError` where it is not text."""
    with _showing(Sources()):
        return decode(Path(path).read_bytes(), str(path))


PATHS = ("data", "params", "target")
"""The options that name files."""


def options_of(
    file: PathOption,
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    **others: Any,
) -> Namespace:
    """Return the command's options for a call of the API. Raises `UsageError` for an illegal value."""
    return Namespace(
        file=file_option(file),
        model=text_option("model", model),
        layout=layout_option(layout),
        mesh=mesh_option(mesh),
        dims=sizes_option(dims),
        settings=settings_of(settings_option(set)),
        format="json",
        **{name: path_option(name, other) if name in PATHS else other for name, other in others.items()},
    )


def compile_case(text: str, options: Namespace) -> Compiled:
    """Compile a file's text for the first layout that is chosen. Raises `CompileError`."""
    sources = _sources(options)
    sources.texts[options.file] = program_text(text)
    choice = Choice(options.model, options.layout, options.mesh, options.dims, options.settings)
    with _showing(sources):
        selection = choose(text, options.file, choice, neighbour=sources.neighbour)
        case = selection.cases[0]
        return Compiled(case.lower(selection.program), selection.hardware, case.placed(selection.program))


def checked(text: str, options: Namespace) -> Checked:
    """Return all diagnostics of a file's text."""
    from mtfc.cli.check import found_in

    sources = _sources(options)
    sources.texts[options.file] = program_text(text)
    found = sources.shown(found_in(options.file, options, sources))
    return Checked(options.file, tuple(map(diagnostic_in_python, found)))


def recorded(record: Callable[[Namespace, Sources], dict[str, Any]], options: Namespace) -> dict[str, Any]:
    """Return the record of a command. Raises `CompileError` and `UsageError`."""
    sources = _sources(options)
    with _showing(sources):
        return record(options, sources)


def verified(options: Namespace, **given: Any) -> Verification:
    """Return the record of `mtfc verify`. Raises `CompileError`, `UsageError` and `Unavailable`."""
    from mtfc.backends.common.devices import setting_kept
    from mtfc.cli.verify import record

    options = Namespace(**{**vars(options), **given})
    one_of("backend", options.backend or "numpy", execution.BACKENDS)
    one_of("dtype", options.dtype or "f32", ("f32", "f64"))
    number_option("seed", options.seed, 0, 2**32 - 1)
    # `verify` raises the precision of JAX's dots for the whole process
    with nullcontext() if options.backend == "numpy" else setting_kept("jax_default_matmul_precision"):
        return cast("Verification", recorded(record, options))


def compared(
    file: PathOption,
    a: LayoutOption | None,
    b: LayoutOption | None,
    target: PathOption | None,
    **selected: Any,
) -> Difference:
    """Return the record of `mtfc diff`. Raises `CompileError` and `UsageError`."""
    from mtfc.cli.diff import record

    if (a is None) != (b is None):
        raise UsageError(
            "diff compares two layouts, or the first two of the file: give both a and b, or neither"
        )
    options = options_of(file, **selected, target=target)
    options.layout = [text for text in map(layout_option, (a, b)) if text is not None]
    return cast("Difference", recorded(record, options))


def found(
    file: PathOption,
    *,
    mesh: MeshOption | None,
    dims: Mapping[str, int] | None,
    set: Mapping[str, object] | None,
    space: str,
    objective: str,
    **others: Any,
) -> dict[str, Any]:
    """Return the record of `mtfc search`. Raises `CompileError`, `UsageError` and `NothingFits`."""
    from mtfc.cli import search
    from mtfc.compiler.search.found import VALUES, silent
    from mtfc.driver.searching import search_result, search_soap
    from mtfc.driver.searching.meshes import MOST_DEVICES

    one_of("space", space, (*search.SPACES, "soap"))
    one_of("objective", objective, VALUES)
    text_option("model", others["model"])
    number_option("devices", others["devices"], 1, MOST_DEVICES)
    seconds_option("budget", others["budget"])
    given = SearchOptions(
        file_option(file),
        mesh=mesh_option(mesh),
        dims=sizes_option(dims),
        settings=settings_of(settings_option(set)),
        space=space,
        objective=objective,
        **{
            **others,
            "target": target_option(others["target"]),
            "axes_names": names_option("axes_names", others["axes_names"]),
        },
    )
    options = Namespace(**attrs.asdict(given))
    sources = _sources(options)
    with _showing(sources):
        result = search.find(options, sources, silent)
    return search_soap.record(result) if space == "soap" else search_result.record(result)


def _sources(options: Namespace) -> Sources:
    sources = Sources()
    sources.add_options(options)
    return sources


@contextmanager
def _showing(sources: Sources) -> Iterator[None]:
    """Attach to raised errors the texts that the errors point into."""
    try:
        yield
    except CompileError as error:
        raise CompileError(sources.shown(error.diagnostics)) from None
