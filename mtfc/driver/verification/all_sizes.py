"""The exact check for every size: a program is checked at small sizes, and at its own its equations are the same but for numbers.

The compiler runs once, on the program whose sizes are twins (`ir/twins.py`): each number of the program knows the numbers that
take its place in smaller programs. Every decision of a pass is that of the program, by its sizes. So the smaller programs of one
processor have the program's own equations, operands, layouts and collectives, and their numbers come from the same arithmetic. The
verifier of the IR accepts them, and the exact check runs on them: two programs, with other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from mtfc.backends.exact.check import ExactReference, ExactResult
from mtfc.backends.exact.residues import NotExact
from mtfc.compiler.activity import doing, each_of
from mtfc.compiler.analysis.small_sizes import SmallSizes, small_sizes
from mtfc.compiler.ir.builder import VerifyError
from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.opdef import OpError
from mtfc.compiler.ir.resizing import Resizing, smaller_program
from mtfc.compiler.ir.twins import twin
from mtfc.compiler.ir.types import Dim, Layout
from mtfc.compiler.ir.verifier import verify
from mtfc.driver.data.inputs import draw_batch
from mtfc.driver.loading.selection import LayoutOnMesh

BASES = (2, 3)
"""The least size of a dimension and of a mesh axis in each of the smaller programs."""

FACTORS = (1, 2, 4)
"""Factors of the sizes of split dimensions, in turn, until all equations have a meaning."""

BOTH = "step+gradients"


@attrs.frozen
class SmallPrograms:
    """A program and its layout with twins for sizes, and the small programs of one processor.

    sizes, lowered: in order of `BASES`.
    """

    program: Program
    case: LayoutOnMesh
    sizes: tuple[SmallSizes, ...]
    lowered: tuple[Program, ...]


def small_programs(
    program: Program, case: LayoutOnMesh, lower: Callable[[LayoutOnMesh, Program], Program]
) -> SmallPrograms:
    """Compile a program once, and return it at small sizes. Raises `VerifyError` if no small sizes are found."""
    for factor in FACTORS:
        sizes = tuple(small_sizes(program, case.mesh, case.layout, base, factor) for base in BASES)
        paired, on_twins = with_twins(program, case, sizes)
        whole = lower(on_twins, paired)
        try:
            found = tuple(smaller_program(whole, i) for i in range(len(sizes)))
            for each in found:
                verify(each, "lowered")
        except (VerifyError, OpError, ArithmeticError):
            if factor == FACTORS[-1]:
                raise
            continue
        return SmallPrograms(paired, on_twins, sizes, found)
    raise AssertionError("one of the factors is the last")


def with_twins(
    program: Program, case: LayoutOnMesh, sizes: Sequence[SmallSizes]
) -> tuple[Program, LayoutOnMesh]:
    """Return a program and its layout whose sizes are twins."""
    dims = {
        name: Dim(name, twin(dim.size, tuple(each.dims[name] for each in sizes)))
        for name, dim in program.dims.items()
    }
    axes = tuple((name, twin(size, tuple(each.axes[name] for each in sizes))) for name, size in case.mesh.axes)

    def attributes(eqn: Equation) -> Mapping[str, Any]:
        found = dict(eqn.attrs)
        for key, value in eqn.attrs.items():
            if (eqn, key) in sizes[0].numbers:
                found[key] = twin(value, tuple(each.numbers[eqn, key] for each in sizes))
        return found

    resized = Resizing(lambda dim: dims[dim.name], lambda number: number, attributes)(program)
    training = resized.training
    if training is not None:
        small = tuple(min(base, training.accumulate) for base in BASES)
        training = attrs.evolve(training, accumulate=twin(training.accumulate, small))
    mesh = attrs.evolve(case.mesh, axes=axes)
    case = attrs.evolve(case, mesh=mesh, layout=_layout(case.layout, sizes))
    return attrs.evolve(resized, training=training), case


def _layout(layout: Layout, sizes: Sequence[SmallSizes]) -> Layout:
    pipelines = []
    for each in layout.pipelines:
        small = [every.pipelines[each] for every in sizes]
        micro_batches = twin(each.micro_batches, tuple(one.micro_batches for one in small))
        chunks = twin(each.chunks, tuple(one.chunks for one in small))
        pipelines.append(attrs.evolve(each, micro_batches=micro_batches, chunks=chunks))
    return attrs.evolve(layout, pipelines=tuple(pipelines))


def references(found: SmallPrograms, seed: int, draws: Sequence[int]) -> Iterator[ExactReference]:
    """Yield the undistributed program at the sizes of each small program, with one draw for each."""
    for i, draw in zip(range(len(found.lowered)), draws, strict=True):
        small = smaller_program(found.program, i)
        given = draw_batch(small.function("forward"), seed, 1)[0]
        yield ExactReference(
            found.program, given, seed, (draw,), resized=partial(smaller_program, which=i)
        )
