"""A layout and why it costs what it does: the rules that cause its collectives, its attention, and a memory limit's effect.

Commands explain the layouts of a file, and plans of functions of JAX explain themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.driver.loading.selection import LayoutOnMesh

if TYPE_CHECKING:
    from mtfc.compiler.analysis.provenance import SentArray
    from mtfc.compiler.cost.volumes import PlacedCost
    from mtfc.compiler.ir.core import Program
    from mtfc.compiler.passes.fuse_attention import Reason
    from mtfc.reports.provenance_report import NoKernel
    from mtfc.reports.recompute_report import Recomputation


@attrs.frozen
class ExplainedLayout:
    """The cost of a step, or of a forward pass, all arrays that a device sends, attention of separate ops, attention without
    kernels, and what a memory limit changes.
    """

    cost: PlacedCost
    sent: Sequence[SentArray]
    separate: Sequence[Reason]
    refused: Sequence[NoKernel]
    limit: Recomputation | None

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        from mtfc.reports.provenance_report import kernels_json, provenance_json, separate_json
        from mtfc.reports.recompute_report import recompute_json

        cost, limit = self.cost, self.limit
        return {
            "model": cost.model,
            "layout": cost.layout.name,
            "mesh": cost.mesh.sizes,
            "collectives": provenance_json(self.sent),
            "separate_attention": separate_json(self.separate),
            "attention_without_kernel": kernels_json(self.refused),
            **({} if limit is None else {"recomputation": recompute_json(limit)}),
        }

    def report(self, texts: Mapping[str, str]) -> str:
        """Return the collectives with their causes, by line and by rule. texts: each file's text by name."""
        from mtfc.reports.cost_report import heading
        from mtfc.reports.provenance_report import kernels_report, provenance_report, separate_report
        from mtfc.reports.recompute_report import recompute_report

        file, limit = self.cost.file, self.limit
        report = provenance_report(self.sent, file, texts)
        report += separate_report(self.separate, file) + kernels_report(self.refused, file)
        return "\n".join(
            [*heading(self.cost), "", report, *([recompute_report(limit, texts)] if limit else [])]
        )


def explained_layout(program: Program, case: LayoutOnMesh, lowered: Program) -> ExplainedLayout:
    """Explain a layout of a program. lowered: the program under the layout."""
    from mtfc.backends.jax.attention_kernels import refusals
    from mtfc.compiler.analysis.equation_names import names_by_place
    from mtfc.compiler.analysis.provenance import sent_arrays
    from mtfc.compiler.cost.volumes import layout_cost
    from mtfc.compiler.passes.fuse_attention import reasons
    from mtfc.driver.loading.layout_targets import prepared

    cost = layout_cost(lowered, device=case.device)
    names = names_by_place(prepared(program, case.mesh, case.layout))
    function = lowered.function("step" if cost.trains else "forward")
    sent = [*sent_arrays(function, case.mesh, case.layout, names)]
    refused, limit = [*refusals(function, case.mesh)], recomputation(program, case, lowered)
    return ExplainedLayout(cost, sent, reasons(program), refused, limit)


def recomputation(program: Program, case: LayoutOnMesh, lowered: Program) -> Recomputation | None:
    """Return the lowered program's step beside the step without the memory limit; None without a limit."""
    from mtfc.compiler.cost.volumes import layout_cost
    from mtfc.reports.recompute_report import Recomputation

    if case.limit is None:
        return None
    without = attrs.evolve(case, limit=None).lower(program)
    before, after = (layout_cost(each, device=case.device) for each in (without, lowered))
    machine = case.limit.hardware.name if case.limit.hardware else None
    return Recomputation(case.limit.memory, machine, before, after)
