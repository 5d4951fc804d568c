"""`mtfc search --why-not RULES`: the best layout that has these rules, and through which lines it costs more than the best."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

import attrs

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics, Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.passes.pipelines import lower
from mtfc.compiler.search.found import Found, NothingFits, value_of
from mtfc.driver.errors import UsageError
from mtfc.driver.layout_targets import placeable, prepared
from mtfc.driver.searching.search_result import Result, over
from mtfc.driver.selection import Choice
from mtfc.driver.sources import Sources
from mtfc.frontend.elaborate import Module, elaborate
from mtfc.frontend.layout_options import parse_layout
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout
from mtfc.frontend.layouts.layout_text import rules_text
from mtfc.frontend.layouts.legality import check_layouts
from mtfc.frontend.layouts.program_index import Tensor
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.difference import Priced, difference_json, difference_report
from mtfc.reports.step_report import seconds_text
from mtfc.reports.table import wrapped

ASKED = "<--why-not>"
"""The file that diagnostics about the rules are in."""

OF_A_MESH = ("E302", "E304")
"""Errors that another mesh may not have: sizes that do not divide, and missing axes."""


@attrs.frozen(eq=False)
class Asked:
    """The rules of `--why-not` and the searched meshes; the rules are checked before the search begins."""

    text: str
    module: Module
    space: str
    meshes: tuple[Mesh, ...]
    known: Mapping[str, Tensor]

    @property
    def program(self) -> Program:
        return self.module.programs[0]

    def on(self, mesh: Mesh) -> Layout:
        """Return the rules on a mesh. Raises `CompileError` if no layout on the mesh can have the rules."""
        declared = self._read(mesh)
        found = check_layouts([self.program], [declared], lambda *_: self.known)
        errors = [_asked(each) for each in found if each.severity == "error"]
        if errors:
            raise CompileError(errors)
        return attrs.evolve(declared.layout, name="")

    def _read(self, mesh: Mesh) -> DeclaredLayout:
        try:
            return parse_layout(self.text, self.module, mesh)
        except CompileError as error:
            raise CompileError(map(_asked, error.diagnostics)) from None

    def check(self) -> None:
        """Raise an error if no layout of the space can have the rules on any mesh.

        `CompileError`: the rules are wrong on every mesh. `UsageError`: the space has no rules of that kind.
        """
        mesh = next(self._possible(self._read))
        kind = KINDS[self.space]
        if not kind.fits(attrs.evolve(self._read(mesh).layout, name="")):
            raise UsageError(f"in the space `{self.space}`, --why-not takes {kind.example}")
        next(self.possible())

    def possible(self) -> Iterator[Mesh]:
        """Yield the meshes on which a layout can have the rules. Raises `CompileError` if no mesh exists."""
        return self._possible(self.on)

    def _possible(self, read: Callable[[Mesh], object]) -> Iterator[Mesh]:
        """Yield the meshes on which `read` succeeds, those with the most axes first: an axis that they lack is on no mesh."""
        first: CompileError | None = None
        is_possible = False
        for mesh in sorted(self.meshes, key=lambda mesh: -len(mesh.axes)):
            try:
                read(mesh)
            except CompileError as error:
                first = first or error
                if not any(each.code in OF_A_MESH for each in error.diagnostics):
                    break
            else:
                is_possible = True
                yield mesh
        if first is not None and not is_possible:
            raise first


def asked_of(
    text: str, file: str, choice: Choice, sources: Sources, space: str, meshes: Sequence[Mesh]
) -> Asked:
    """Read the rules for the chosen model and for a search of the space on the meshes. Raises what `Asked.check` raises."""
    sources.texts[ASKED] = text
    diagnostics = Diagnostics()
    tree = parse(sources.texts[file], file, diagnostics)
    module = elaborate(tree, diagnostics, choice.dims, choice.model, sources.neighbour, choice.settings)
    diagnostics.raise_if_errors()
    known = placeable(module.programs[0]) if space == "tiling" else {}
    asked = Asked(text, module, space, tuple(meshes), known)
    asked.check()
    return asked


@attrs.frozen
class Kind:
    """A kind of rules: a test for layouts with such rules, and an example."""

    fits: Callable[[Layout], bool]
    example: str


KINDS: Mapping[str, Kind] = {
    "rules": Kind(
        lambda layout: layout == Layout("", layout.rules),
        "rules for dimensions, such as `batch: rows`, without sections such as `params`",
    ),
    "tiling": Kind(
        lambda layout: layout == Layout("", values=layout.values),
        "rules for single equations, such as `value forward.h: { batch: rows }`",
    ),
}


@attrs.frozen
class Forced:
    """The rules of `--why-not`, and the best layout with these rules: on the mesh of the best layout if possible."""

    rules: Layout
    found: Found


@attrs.frozen
class Unfit:
    """The rules of `--why-not`, and the reason why no layout with them can be compared.

    least: bytes of memory of the layout with the rules that needs the least, where that is known.
    """

    rules: Layout
    reason: str
    least: int | None = None


def forced(asked: Asked, best: Result, seconds: float) -> Forced | Unfit:
    """Search for the best layout with the rules for so many seconds, and as long again where none fits on the found mesh."""
    meshes = sorted(asked.possible(), key=lambda mesh: len(mesh.axes))
    own = [mesh for mesh in meshes if mesh == best.found.mesh]
    layout = asked.on((own or meshes)[0])
    try:
        return _best_of(layout, best, own or meshes, meshes, seconds)
    except KeyboardInterrupt:
        return Unfit(layout, "the search was interrupted before a layout with it was found.")


def _best_of(
    rules: Layout, best: Result, own: Sequence[Mesh], meshes: Sequence[Mesh], seconds: float
) -> Forced | Unfit:
    """Search on the meshes `own`; if nothing fits, on all meshes for the least memory, and from there for the best."""
    try:
        found = WITH_RULES[best.space](rules, best, own, monotonic() + seconds)
    except NothingFits as error:
        if best.space != "rules":
            return Unfit(rules, f"{error}.")
        least = attrs.evolve(best, objective="memory")
        found = _with_rules(rules, least, meshes, monotonic() + seconds / 2)
        price = best.pricer.with_overlap(found.mesh, found.layout)
        room = best.pricer.hardware.device.memory
        if price.tiled > room:
            return Unfit(rules, _too_much(found, price.tiled, int(room)), price.tiled)
        known = ((found.mesh, found.layout),)
        found = _with_rules(rules, best, meshes, monotonic() + seconds / 2, known)
    return Forced(rules, attrs.evolve(found, layout=attrs.evolve(found.layout, name="forced")))


def _too_much(found: Found, needed: int, room: int) -> str:
    """Say how much memory a layout needs that needs the least of all with the rules."""
    axes = ", ".join(f"{axis}: {size}" for axis, size in found.mesh.axes)
    which = "the layout with it that needs the least"
    which += "" if found.is_optimal else " of those that were tried"
    return (
        f"it does not fit. A device has {bytes_text(room)}, and {which}, "
        f"{{ {rules_text(found.layout)} }} on mesh [{axes}], takes {bytes_text(needed)}."
    )


def _asked(error: Diagnostic) -> Diagnostic:
    """The error, whose place is in the option that was given: the rules were read as those of `--layout` are."""
    labels = (attrs.evolve(each, span=_in_option(each.span)) for each in error.labels)
    return attrs.evolve(error, span=_in_option(error.span), labels=tuple(labels))


def _in_option(span: Span) -> Span:
    return attrs.evolve(span, file=ASKED) if span.file == "<--layout>" else span


def _with_rules(
    asked: Layout,
    best: Result,
    meshes: Sequence[Mesh],
    until: float,
    known: Sequence[tuple[Mesh, Layout]] = (),
) -> Found:
    from mtfc.compiler.search.global_layouts.global_search import search

    pricer, program = best.pricer, best.program
    return search(
        pricer.undistributed(),
        program.function("forward"),
        meshes,
        pricer.hardware,
        best.pricing,
        until,
        best.objective,
        known,
        fixed=asked.rules,
        storage=best.storage,
    )


def _with_equations(asked: Layout, best: Result, meshes: Sequence[Mesh], until: float) -> Found:
    from mtfc.compiler.search.per_equation.per_equation_search import search

    program, pricer = best.program, best.pricer
    return search(
        prepared(program),
        set(program.dims),
        meshes,
        pricer.hardware,
        best.pricing,
        until,
        best.objective,
        fixed=asked.value_rules,
    )


WITH_RULES: Mapping[str, Callable[[Layout, Result, Sequence[Mesh], float], Found]] = {
    "rules": _with_rules,
    "tiling": _with_equations,
}
"""By space, how the best layout with some rules is found."""


def why_not_report(each: Forced | Unfit, best: Result, sources: Sources) -> str:
    """What the rules cost, and the lines that cost more or less with them than under the best layout."""
    if isinstance(each, Unfit):
        return "\n".join(wrapped(f"Why not {{ {rules_text(each.rules)} }}: {each.reason}".split(), 2)) + "\n"
    price = best.pricer.with_overlap(each.found.mesh, each.found.layout)
    more = over(value_of(price, best.objective), value_of(best.price, best.objective)) - 1
    known = "the best layout with it" if each.found.is_optimal else "the best layout with it that was found"
    if each.found.mesh != best.found.mesh:
        axes = ", ".join(f"{axis}: {size}" for axis, size in each.found.mesh.axes)
        known = f"{known}, on another mesh, [{axes}],"
    takes = f"{seconds_text(best.seconds_of(price))} and {bytes_text(price.memory)}"
    lines = [f"Why not {{ {rules_text(each.rules)} }}: {known} takes {takes}, which is {more:+.1%}.", ""]
    one, other = _priced(each, best)
    places = {charge.span.file for each in (one, other) for charge in each.cost.step if charge.span}
    return "\n".join(lines) + difference_report(one, other, sources.texts | standard_library.texts(places))


def why_not_json(each: Forced | Unfit, best: Result) -> dict[str, Any]:
    """The price of the best layout with the rules, and the difference as `mtfc diff` has it; or the reason why there is none."""
    if isinstance(each, Unfit):
        nothing = dict.fromkeys(("mesh", "layout", "optimal", "objective_seconds"))
        memory = {"memory_per_device": each.least, "difference": None}
        return {"rules": rules_text(each.rules), **nothing, **memory, "reason": each.reason}
    price = best.pricer.with_overlap(each.found.mesh, each.found.layout)
    return {
        "rules": rules_text(each.rules),
        "mesh": each.found.mesh.sizes,
        "layout": rules_text(each.found.layout),
        "optimal": each.found.is_optimal,
        "objective_seconds": best.seconds_of(price),
        "memory_per_device": price.memory,
        "difference": difference_json(*_priced(each, best)),
        "reason": None,
    }


def _priced(each: Forced, best: Result) -> list[Priced]:
    """The best layout, and the best with the rules, with what lines take as they were compared."""
    programs = (lower(best.program, found.mesh, found.layout) for found in (best.found, each.found))
    return [
        Priced.of(program, best.pricer.hardware, overlaps=best.objective == "overlap") for program in programs
    ]
