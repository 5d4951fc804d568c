"""Meshes of one to three axes, and dims whose sizes suit them."""

from itertools import permutations
from typing import Any

from hypothesis import strategies as st

from mtfc.compiler.ir.types import Axes, Dim, Mesh

SHAPES = (
    (2,), (1,), (3,), (4,), (8,), (5,), (7,),
    (2, 2), (2, 4), (4, 2), (1, 2), (2, 3), (8, 1), (3, 2),
    (2, 2, 2), (1, 2, 4), (2, 3, 1), (2, 1, 2),
)  # fmt: skip
AXIS_NAMES = ("rows", "cols", "deep")
DIM_NAMES = ("batch", "io", "hidden", "length", "heads", "k")


@st.composite
def meshes(draw: Any) -> Mesh:
    shape = draw(st.sampled_from(SHAPES))
    return Mesh("grid", tuple(zip(AXIS_NAMES, shape, strict=False)))


@st.composite
def dimensions(draw: Any, mesh: Mesh) -> list[Dim]:
    """Draw two to five dims. Most can be split over one or several axes of the mesh; some are odd, and some have size 1."""
    names = DIM_NAMES[: draw(st.integers(2, 5))]
    return [Dim(name, draw(sizes(mesh))) for name in names]


@st.composite
def sizes(draw: Any, mesh: Mesh) -> int:
    axes = draw(st.lists(st.sampled_from(mesh.names), unique=True, min_size=1))
    unit = mesh.size(axes)
    more = 2 * unit if unit < 8 else unit
    return draw(st.sampled_from((unit, more, unit, more, unit, 3 * unit if unit < 5 else unit, 1, 3, 5)))  # type: ignore[no-any-return]


def splits_of(size: int, mesh: Mesh) -> list[Axes]:
    """Return all ways to split a dim of this size over axes of the mesh; no split comes first."""
    ways = [axes for n in range(len(mesh.axes) + 1) for axes in permutations(mesh.names, n)]
    return [axes for axes in ways if size % mesh.size(axes) == 0]
