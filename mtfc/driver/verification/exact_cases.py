"""The exact check of layouts, for `mtfc verify`, at the program's own sizes and for every size: see `backends/exact/check.py`.

For every size a program is checked at small sizes, and at its own its equations are the same but for numbers. The compiler runs
once, on the program whose sizes are twins (`ir/twins.py`): each number of the program knows the numbers that take its place in
smaller programs. Every decision of a pass is that of the program, by its sizes. So the smaller programs of one processor have the
program's own equations, operands, layouts and collectives, and their numbers come from the same arithmetic. The verifier of the
IR accepts them, and the exact check runs on them: two programs, with other sizes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import lcm
from typing import Any

import attrs

from mtfc.backends.common.emitter import all_values
from mtfc.backends.exact.check import ExactReference, ExactResult, computed_elements
from mtfc.backends.exact.residues import NotExact
from mtfc.compiler.activity import doing, each_of
from mtfc.compiler.analysis.small_sizes import Shrinking, SmallSizes, small_sizes
from mtfc.compiler.ir.builder import VerifyError
from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.opdef import OpError
from mtfc.compiler.ir.resizing import Renumbering, smaller_program
from mtfc.compiler.ir.twins import plain, smaller, twin
from mtfc.compiler.ir.types import Dim, Layout
from mtfc.compiler.ir.verifier import verify
from mtfc.compiler.passes.fuse_attention import FuseAttention
from mtfc.compiler.passes.pass_base import Pass
from mtfc.driver.data.inputs import draw_batch
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.cases import MultiMeshCase, PlacementCase
from mtfc.driver.loading.selection import LayoutOnMesh, Selection, say_left_out, select, select_models
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import VerifyOptions
from mtfc.driver.running.execution import without_warnings
from mtfc.driver.verification.results import ExactCase, SizeClaim, SizesCase, Verified
from mtfc.meshes.module import generate

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
            cut = each.program(program, of=BOTH)
            found = reference.compare(cut.differentiated, generate(cut, "numpy"))
            yield ExactCase(name, each.name, found)
        if placements:  # whose operators have attention as its parts
            reference = ExactReference(program, given, seed, attention=())
        for placed in each_of(placements, "exact check of placement"):
            yield ExactCase(name, placed.name, _placed(reference, placed))
    except NotExact as error:
        yield ExactCase(name, "gradients", skipped=without_meaning(error))


def _placed(reference: ExactReference, case: PlacementCase) -> ExactResult:
    """Return the exact comparison of outputs, and of gradients of parameters, of a program's operators under a placement."""
    function, _ = reference.functions["gradients"]
    text = case.source(reference.program, "numpy", "gradients")
    return reference.compare_text([function], text, are_all=False)


def attention_passes(cases: Sequence[LayoutOnMesh]) -> tuple[Pass, ...]:
    """Return the passes that make attention one op; all cases are lowered by the same passes."""
    passes = cases[0].passes if cases else None
    return tuple(each for each in passes or (FuseAttention(),) if isinstance(each, FuseAttention))


def exact_case(
    program: Program, layout: str, compare: Callable[[], ExactResult], hint: str = ""
) -> ExactCase:
    """Return an exact comparison of a function of JAX, if its size and its primitives allow one.

    hint: advice where none is possible.
    """
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


def selections_of(options: VerifyOptions, sources: Sources, **others: bool) -> Iterable[Selection]:
    """Return every model of the file with its layouts; one model if an option speaks of one.

    others: further arguments of `select`.
    """
    choice = options.choice
    if choice.source is not None or choice.model or choice.settings or options.data or options.params:
        return [select(options.file, choice, sources, every_layout=True, **others)]
    return select_models(options.file, choice, sources)


# Every size

BASES = (2, 3)
"""The least size of a dimension and of a mesh axis in each of the smaller programs."""

DRAWS, FEW_ELEMENTS = 4, 1 << 16
"""The draws for a small program, and the number of elements up to which it has them all."""

WAYS = (
    Shrinking(),
    Shrinking(means=False),
    Shrinking(factor=2),
    Shrinking(factor=4),
    Shrinking(axes=False),
    Shrinking(axes=False, means=False),
    Shrinking(axes=False, dims=False),
)
"""The ways to make sizes small, in turn, until the check finds no difference. The last one keeps all sizes."""

NO_SIZES = (VerifyError, OpError, ArithmeticError, IndexError, ValueError)
"""The errors of equations, and of a module of NumPy, that have no meaning at the small sizes."""

MOST_PROCESSORS = 64
"""The number of processors up to which a mesh may keep its axes."""


@attrs.frozen
class SmallPrograms:
    """A program and its layout with twins for sizes, and the small programs of one processor.

    whole: the program of one processor, with twins. sizes, lowered: in order of `BASES`.
    """

    program: Program
    case: LayoutOnMesh
    whole: Program
    sizes: tuple[SmallSizes, ...]
    lowered: tuple[Program, ...]


def small_programs(
    program: Program, case: LayoutOnMesh, how: Shrinking = WAYS[0], of: str = BOTH
) -> SmallPrograms:
    """Compile a program once, and return it at small sizes. Raises an error of `NO_SIZES` if equations have no meaning there."""
    sizes = tuple(small_sizes(program, case.mesh, case.layout, base, how) for base in BASES)
    paired, on_twins = with_twins(program, case, sizes, how.means and how.dims)
    whole = on_twins.lower(paired, of=of)
    found = tuple(smaller_program(whole, i) for i in range(len(sizes)))
    for each in found:
        verify(each, "lowered")
    return SmallPrograms(paired, on_twins, whole, sizes, found)


def with_twins(
    program: Program, case: LayoutOnMesh, sizes: Sequence[SmallSizes], accumulates_less: bool
) -> tuple[Program, LayoutOnMesh]:
    """Return a program and its layout whose sizes are twins. accumulates_less: make accumulated micro-batches few, too."""
    dims = {
        name: Dim(name, twin(dim.size, tuple(each.dims[name] for each in sizes)))
        for name, dim in program.dims.items()
    }
    axes = tuple(
        (name, twin(size, tuple(each.axes[name] for each in sizes))) for name, size in case.mesh.axes
    )

    def attributes(eqn: Equation) -> Mapping[str, Any]:
        """Return the attributes of an equation, with twins for those that depend on sizes."""
        found = dict(eqn.attrs)
        for key, value in eqn.attrs.items():
            if (eqn, key) in sizes[0].numbers:
                found[key] = twin(value, tuple(each.numbers[eqn, key] for each in sizes))
        return found

    resized = Renumbering(lambda dim: dims[dim.name], lambda number: number, attributes)(program)
    training = resized.training
    if training is not None and accumulates_less:
        small = tuple(min(base, training.accumulate) for base in BASES)
        training = attrs.evolve(training, accumulate=twin(training.accumulate, small))
    mesh = attrs.evolve(case.mesh, axes=axes)
    case = attrs.evolve(case, mesh=mesh, layout=_layout(case.layout, sizes))
    return attrs.evolve(resized, training=training), case


def _layout(layout: Layout, sizes: Sequence[SmallSizes]) -> Layout:
    """Return a layout whose pipelines have the numbers of all sizes at once: see `twin`."""
    pipelines = []
    for each in layout.pipelines:
        small = [every.pipelines[each] for every in sizes]
        micro_batches = twin(each.micro_batches, tuple(one.micro_batches for one in small))
        chunks = twin(each.chunks, tuple(one.chunks for one in small))
        pipelines.append(attrs.evolve(each, micro_batches=micro_batches, chunks=chunks))
    return attrs.evolve(layout, pipelines=tuple(pipelines))


def references(found: SmallPrograms, seed: int, derives: bool = True) -> Iterator[ExactReference]:
    """Yield the undistributed program at the sizes of each small program: with several draws, as few numbers may hide a fault."""
    for i in range(len(found.lowered)):
        small = smaller_program(found.program, i)
        resized = partial(smaller_program, which=i)
        attention = attention_passes([found.case]) if derives else ()
        draws = range(DRAWS) if elements(small) <= FEW_ELEMENTS else (i,)
        yield ExactReference(found.program, {}, seed, draws, derives, attention, resized)


def checked_sizes(program: Program, case: LayoutOnMesh, seed: int, derives: bool = True) -> SizesCase:
    """Return the exact check of a layout for every size. derives: see `ExactReference`.

    Each way of making sizes small makes a family of programs that has the program as a member. One family in which the small ones
    agree is enough.
    """
    found: list[SizesCase] = []
    for how in WAYS:
        if (how.axes or case.mesh.devices <= MOST_PROCESSORS) and (how.dims or elements(program) <= QUICK):
            found.append(_checked(program, case, how, seed, derives))
            if found[-1].ok:
                return found[-1]
    return next((each for each in found if each.wrong), found[0])


def _checked(program: Program, case: LayoutOnMesh, how: Shrinking, seed: int, derives: bool) -> SizesCase:
    """Return the exact check of a layout at small sizes, or why it is skipped.

    derives: check the gradients by themselves, too.
    """
    wrong, results = list[str](), list[ExactResult]()
    blank = SizesCase(program.name, case.name)
    try:
        found = small_programs(program, case, how, BOTH if derives else "step")
        if any(elements(smaller_program(found.program, i)) > LARGEST for i in range(len(BASES))):
            return attrs.evolve(blank, skipped="its small sizes are too large: reduce sizes with --dim")
        for reference, lowered in zip(references(found, seed, derives), found.lowered, strict=True):
            with doing(f"exact check at small sizes of layout {case.name}"):
                wrong += [f"gradient {name}" for name in (reference.wrong_gradients() if derives else ())]
                results.append(reference.compare(lowered))
    except NotExact as error:
        return attrs.evolve(blank, skipped=without_meaning(error))
    except NO_SIZES as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return attrs.evolve(blank, skipped=f"no small sizes fit its equations: {reason}")
    wrong += [name for each in results for name in each.wrong]
    counts = (sum(each.elements for each in results), sum(each.not_judged for each in results))
    return attrs.evolve(blank, found=ExactResult((*dict.fromkeys(wrong),), *counts), sizes=_claims(found))


def _claims(found: SmallPrograms) -> Mapping[str, SizeClaim]:
    """Return for each dimension and mesh axis the sizes that the check speaks for."""
    parts: dict[str, int] = {}
    for value in (value for each in found.whole.functions for value in all_values(each)):
        for dim, axes in zip(value.type.dims, value.type.splits, strict=True):
            parts[dim.name] = lcm(parts.get(dim.name, 1), plain(found.case.mesh.size(axes)))
    sizes = {name: (dim.size, parts[name]) for name, dim in found.program.dims.items() if name in parts}
    sizes |= {f"mesh axis {name}": (size, 1) for name, size in found.case.mesh.axes}
    count = range(len(found.lowered))
    return {
        name: SizeClaim(plain(size), multiple, tuple(smaller(size, i) for i in count))
        for name, (size, multiple) in sizes.items()
    }


def verify_all_sizes(
    options: VerifyOptions, sources: Sources, show: Callable[[SizesCase], object] = lambda _: None
) -> Verified:
    """Check all layouts of a file's models, or of a function of JAX, for every size. Raises `CompileError` and `UsageError`."""
    choice, cases = options.choice, list[SizesCase]()
    for name in ("data", "params", "dtype"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name} has no meaning with --all-sizes, which draws arrays of residues at small sizes"
            )
    with without_warnings():
        for selection in selections_of(options, sources, or_multi_mesh=choice.source is None):
            say_left_out(selection, "--all-sizes leaves out", "`mtfc verify` without it compares them")
            for case in each_of(selection.cases, "layout"):
                cases.append(checked_sizes(selection.program, case, options.seed, choice.source is None))
                show(cases[-1])
    return Verified(cases)
