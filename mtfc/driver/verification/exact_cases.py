"""The exact check of a model's layouts, for `mtfc verify`: see `backends/exact/check.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mtfc.backends.exact.check import ExactReference, ExactResult
from mtfc.backends.exact.residues import NotExact
from mtfc.compiler.activity import doing, each_of
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.fuse_attention import FuseAttention
from mtfc.compiler.passes.pass_base import Pass
from mtfc.driver.data.inputs import draw_batch
from mtfc.driver.loading.multi_mesh_case import MultiMeshCase
from mtfc.driver.loading.placement_case import PlacementCase
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.driver.verification.reference import run_placed
from mtfc.reports.exact_report import ExactCase

if TYPE_CHECKING:
    from mtfc.meshes.multi_mesh_program import MultiMeshProgram

BOTH = "step+gradients"
"""The functions that differentiation adds for the comparison."""

LARGEST = 1 << 28
"""Number of elements, over all values of a program, up to which it is checked: a minute or two."""


QUICK = 1 << 24
"""The same for a plan of a function of JAX: some seconds."""


def exact_cases(
    program: Program,
    cases: Sequence[LayoutOnMesh],
    seed: int,
    multi_mesh: Sequence[MultiMeshCase] = (),
    placements: Sequence[PlacementCase] = (),
) -> Iterator[ExactCase]:
    """Yield the exact comparison of the gradients of the undistributed program, of each layout and of each placement."""
    size = elements(program)
    if size > LARGEST:
        reason = f"its values have {size:.1e} elements: take --all-sizes, or smaller dimensions with --dim"
        yield ExactCase("gradients", program.name, skipped=reason)
        return
    given: Mapping[str, Any] = draw_batch(program.function("forward"), seed, 1)[0]
    reference = ExactReference(program, given, seed, attention=attention_passes(cases))
    try:
        with doing("exact check of the gradients"):
            wrong = reference.wrong_gradients()
        yield ExactCase("gradients", program.name, wrong_gradients=wrong)
        for case in each_of(cases, "exact check of layout"):
            found = reference.compare(case.lower(program, of=BOTH))
            yield _case(case.layout.name, program.name, found)
        for each in multi_mesh:
            yield _case(each.name, program.name, _compared(reference, each.program(program, of=BOTH)))
        if placements:  # whose operators have attention as its parts
            reference = ExactReference(program, given, seed, attention=())
        for placed in each_of(placements, "exact check of placement"):
            yield _case(placed.name, program.name, _placed(reference, placed))
    except NotExact as error:
        yield ExactCase("gradients", program.name, skipped=f"`{error}` has no meaning on residues")


def _compared(reference: ExactReference, multi_mesh: MultiMeshProgram) -> ExactResult:
    """Return the exact comparison of a program on several meshes."""
    from mtfc.meshes.module import generate

    text = generate(multi_mesh, "numpy")
    return reference.compare_text(multi_mesh.differentiated.functions, text)


def _placed(reference: ExactReference, case: PlacementCase) -> ExactResult:
    """Return the exact comparison of outputs, and of gradients of parameters, of a program's operators under a placement."""

    def compute(arguments: Mapping[str, Any], *arithmetic: Any) -> Mapping[str, Any]:
        outputs, gradients = run_placed(case, reference.program, arguments, *arithmetic)
        return {**outputs, **{f"d_{name}": array for name, array in gradients.items()}}

    return reference.compare_computed("gradients", compute)


def attention_passes(cases: Sequence[LayoutOnMesh]) -> tuple[Pass, ...]:
    """Return the passes that make attention one op; all cases are lowered by the same passes."""
    passes = cases[0].passes if cases else None
    return tuple(each for each in passes or (FuseAttention(),) if isinstance(each, FuseAttention))


def exact_lowered(program: Program, lowered: Program, given: Mapping[str, Any], seed: int) -> ExactCase:
    """Return the exact comparison of one processor's program with the program before any pass, functions as they are."""
    layout = lowered.layout.name if lowered.layout else ""
    size = elements(program)
    if size > QUICK:
        return ExactCase(
            layout, program.name, skipped=f"its values have {size:.1e} elements: take --all-sizes"
        )
    try:
        found = ExactReference(program, given, seed, derives=False).compare(lowered)
    except NotExact as error:
        return ExactCase(layout, program.name, skipped=f"`{error}` has no meaning on residues")
    return _case(layout, program.name, found)


def _case(layout: str, model: str, found: ExactResult) -> ExactCase:
    wrong = tuple(f"{each.output} of {each.function}" for each in found.wrong)
    return ExactCase(
        layout,
        model,
        wrong,
        elements=found.elements,
        not_judged=found.not_judged,
        unsure=dict(found.unsure),
        computed=found.computed,
        cut_loops=found.cut_loops,
        unjudged=found.unjudged,
    )


def elements(program: Program) -> int:
    """Return the number of elements of all values of `forward`, each iteration of a loop counted."""

    def total(body: Any, times: int) -> int:
        found = 0
        for eqn in body:
            found += times * sum(value.type.size for value in eqn.results)
            for region in eqn.regions:
                found += total(region.body, times * eqn.attrs["dim"].size)
        return found

    return total(program.function("forward").body, 1)
