"""The exact check of a model's layouts, for `mtfc verify`: see `backends/exact/check.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mtfc.backends.exact.check import ExactReference, ExactResult, computed_elements
from mtfc.backends.exact.residues import NotExact
from mtfc.compiler.activity import doing, each_of
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.fuse_attention import FuseAttention
from mtfc.compiler.passes.pass_base import Pass
from mtfc.driver.data.inputs import draw_batch
from mtfc.driver.loading.multi_mesh_case import MultiMeshCase
from mtfc.driver.loading.placement_case import PlacementCase
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.driver.running.execution import without_warnings
from mtfc.driver.verification.reference import run_placed
from mtfc.driver.verification.results import ExactCase

if TYPE_CHECKING:
    from mtfc.meshes.multi_mesh_program import MultiMeshProgram

BOTH = "step+gradients"
"""The functions that differentiation adds for the comparison."""

LARGEST = 1 << 28
"""Number of elements, over all values of a program, up to which it is checked: a minute or two."""


SMALLER = "take --all-sizes, or smaller dimensions with --dim"

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
    name, size = program.name, elements(program)
    if size > LARGEST:
        yield ExactCase(name, "gradients", skipped=f"its values have {size:.1e} elements: {SMALLER}")
        return
    given: Mapping[str, Any] = draw_batch(program.function("forward"), seed, 1)[0]
    reference = ExactReference(program, given, seed, attention=attention_passes(cases))
    try:
        with doing("exact check of the gradients"):
            yield ExactCase(name, "gradients", wrong_gradients=reference.wrong_gradients())
        for case in each_of(cases, "exact check of layout"):
            yield ExactCase(name, case.layout.name, reference.compare(case.lower(program, of=BOTH)))
        for each in multi_mesh:
            yield ExactCase(name, each.name, _compared(reference, each.program(program, of=BOTH)))
        if placements:  # whose operators have attention as its parts
            reference = ExactReference(program, given, seed, attention=())
        for placed in each_of(placements, "exact check of placement"):
            yield ExactCase(name, placed.name, _placed(reference, placed))
    except NotExact as error:
        yield ExactCase(name, "gradients", skipped=without_meaning(error))


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


def exact_case(
    program: Program, layout: str, compare: Callable[[], ExactResult], hint: str = ""
) -> ExactCase:
    """Return an exact comparison of a function of JAX, if its size and its primitives allow one. hint: what to do otherwise."""
    size = elements(program)
    if size > QUICK:
        return ExactCase(program.name, layout, skipped=f"its values have {size:.1e} elements{hint}")
    try:
        with doing(f"exact check of {layout}"), without_warnings():
            return ExactCase(program.name, layout, compare())
    except NotExact as error:
        return ExactCase(program.name, layout, skipped=without_meaning(error))


def without_meaning(error: NotExact) -> str:
    """Return why a program is not compared."""
    return f"`{error}` has no meaning on residues"


def exact_lowered(program: Program, lowered: Program, given: Mapping[str, Any], seed: int) -> ExactCase:
    """Return the exact comparison of one processor's program with the program before any pass, functions as they are."""
    reference = ExactReference(program, given, seed, derives=False)
    layout = lowered.layout.name if lowered.layout else ""
    return exact_case(program, layout, lambda: reference.compare(lowered), ": take --all-sizes")


def elements(program: Program) -> int:
    """Return the number of elements of all values of `forward`, each iteration of a loop counted."""
    return computed_elements(program.function("forward").body)
