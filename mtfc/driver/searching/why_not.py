"""The best layout with the rules of `mtfc search --why-not`, for comparison with the best layout of all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import process_time

import attrs

from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.search.found import Found, NothingFits, Plan
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.layout_targets import layout_targets
from mtfc.driver.searching.space import SearchTask
from mtfc.frontend.elaborate import Module
from mtfc.frontend.layout_options import parse_layout
from mtfc.frontend.layouts.layout_text import rules_text
from mtfc.frontend.layouts.legality import check_layouts
from mtfc.frontend.layouts.program_index import Tensor
from mtfc.reports.search_report import LayoutSearchResult
from mtfc.reports.why_not_report import WhyNot, layout_answer, unfit

ASKED = "<--why-not>"
"""The file name of the rules in diagnostics."""

OF_A_MESH = ("E302", "E304")
"""Errors that another mesh may not have: sizes that do not divide, and missing axes."""


@attrs.frozen(eq=False)
class AskedRules:
    """The rules of `--why-not` and the searched meshes; the rules are checked before the search begins."""

    text: str
    module: Module
    space: str
    meshes: tuple[Mesh, ...]
    known: Mapping[str, Tensor]

    def on(self, mesh: Mesh) -> Layout:
        """Return the rules on a mesh.

        Raises `CompileError` if no layout on the mesh can have the rules, and `UsageError` if no layout of the space can.
        """
        declared = parse_layout(self.text, self.module, mesh, ASKED)
        layout = attrs.evolve(declared.layout, name="")
        of_space = Layout("", values=layout.values) if self.space == "tiling" else Layout("", layout.rules)
        if layout != of_space:
            raise UsageError(f"in the space `{self.space}`, --why-not takes {EXAMPLES[self.space]}")
        found = check_layouts([self.module.programs[0]], [declared], lambda *_: self.known)
        errors = [each for each in found if each.severity == "error"]
        if errors:
            raise CompileError(errors)
        return layout

    def possible(self) -> Iterator[Mesh]:
        """Yield the meshes on which a layout can have the rules, those with the most axes first: an axis that they lack is on no
        mesh. Raises the errors of `on` if no mesh exists.
        """
        first: CompileError | None = None
        is_possible = False
        for mesh in sorted(self.meshes, key=lambda mesh: -len(mesh.axes)):
            try:
                self.on(mesh)
            except CompileError as error:
                first = first or error
                if not any(each.code in OF_A_MESH for each in error.diagnostics):
                    break
            else:
                is_possible = True
                yield mesh
        if first is not None and not is_possible:
            raise first


def asked_rules(task: SearchTask, rules: str, meshes: Sequence[Mesh]) -> AskedRules:
    """Read the rules for the chosen model and a search on the meshes. Raises the errors of `AskedRules.on`."""
    task.sources.texts[ASKED] = rules
    module, space = task.selection.module, task.options.space
    known = layout_targets(module.programs[0]) if space == "tiling" else {}
    asked = AskedRules(rules, module, space, tuple(meshes), known)
    next(asked.possible())
    return asked


EXAMPLES: Mapping[str, str] = {
    "plan": "rules for dimensions, such as `batch: rows`, without sections such as `params`",
    "rules": "rules for dimensions, such as `batch: rows`, without sections such as `params`",
    "tiling": "rules for single equations, such as `value forward.h: { batch: rows }`",
}
"""The rules that each space takes."""


Find = Callable[[Sequence[Mesh], float, Sequence[Plan], Layout], Found]
"""A search: meshes, deadline, layouts to start from, and the rules that a layout must have."""


def best_with_rules(
    asked: AskedRules, best: LayoutSearchResult, seconds: float, find: Find, find_least: Find | None
) -> WhyNot:
    """Search for the best layout with the rules, in `seconds`, and as long again if nothing fits on the mesh of `best`.

    find_least: a search for the least memory on all meshes, from which a second attempt starts; None makes no second attempt.
    """
    meshes = sorted(asked.possible(), key=lambda mesh: len(mesh.axes))
    own = [mesh for mesh in meshes if mesh == best.found.mesh] or meshes
    rules = asked.on(own[0])
    try:
        try:
            found = find(own, process_time() + seconds, (), rules)
        except NothingFits as error:
            if find_least is None:
                return unfit(rules, f"{error}.")
            least = find_least(meshes, process_time() + seconds / 2, (), rules)
            price = best.pricer(least.mesh, least.layout)
            room = best.pricer.hardware.device.memory
            if price.tiled > room:
                return unfit(rules, _too_much(least, price.tiled, int(room)), price.tiled)
            found = find(meshes, process_time() + seconds / 2, ((least.mesh, least.layout),), rules)
    except KeyboardInterrupt:
        return unfit(rules, "the search was interrupted before a layout with it was found.")
    layout = attrs.evolve(found.layout, name="forced")
    return layout_answer(rules, attrs.evolve(found, layout=layout), best)


def _too_much(found: Found, needed: int, room: int) -> str:
    """Return how much memory the layout with the rules needs that needs the least."""
    which = "the layout with it that needs the least"
    which += "" if found.is_optimal else " of those that were tried"
    return (
        f"it does not fit. A device has {bytes_text(room)}, and {which}, "
        f"{{ {rules_text(found.layout)} }} on mesh [{found.mesh.axes_text}], takes {bytes_text(needed)}."
    )
