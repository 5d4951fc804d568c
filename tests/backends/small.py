"""Small programs over dimensions of odd sizes, one for every op, and placements that are legal for all of them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Output, Program, Value
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, Rules, TensorType

SIZES = {"a": 6, "b": 12, "c": 3, "d": 6, "m": 4, "five": 5, "one": 1, "long": 18, "short": 3}
DIMS = {name: Dim(name, size) for name, size in SIZES.items()}
MESHES = (
    Mesh("line", (("rows", 3),)),
    Mesh("grid", (("rows", 2), ("cols", 3))),
    Mesh("thin", (("rows", 1), ("cols", 3))),
    Mesh("cube", (("rows", 2), ("cols", 1), ("planes", 3))),
    Mesh("twos", (("rows", 2), ("cols", 2), ("planes", 2))),
)


def type_of(text: str) -> TensorType:
    """Return a type: `f32 a b` is a tensor of dimensions `a` and `b`."""
    dtype, *names = text.split()
    return TensorType(dtype, tuple(DIMS[name] for name in names))


@attrs.frozen
class Case:
    """One program: the types of its inputs, and a function that builds its outputs from them."""

    inputs: Sequence[str]
    build: Callable[..., Value | Sequence[Value]]
    tolerance: float = 1e-5

    def program(self) -> Program:
        values = [Value(f"x{i}", type_of(text)) for i, text in enumerate(self.inputs)]
        builder = Builder(Names(value.name for value in values))
        built = self.build(builder, *values)
        results = [built] if isinstance(built, Value) else built
        outputs = tuple(Output(f"y{i}", value) for i, value in enumerate(results))
        arguments = tuple(Argument(value, "input") for value in values)
        return Program("small", DIMS, (), (Function("forward", arguments, tuple(builder.body), outputs),))


def data(program: Program, seed: int = 0) -> dict[str, Any]:
    """Draw inputs in [-2, 2), in quarters, so that ties occur; integers in [0, 4)."""
    random = np.random.default_rng(seed)

    def one(type: TensorType) -> Any:
        shape, dtype = tuple(dim.size for dim in type.dims), numpy_dtype(np, type.dtype)
        if type.dtype == "bool":
            return np.asarray(random.random(shape) < 0.5)
        numbers = (
            random.integers(0, 4, shape)
            if type.dtype in ("i32", "u32")
            else random.integers(-8, 8, shape) / 4
        )
        return np.asarray(numbers).astype(dtype)

    return {a.value.name: one(a.value.type) for a in program.function("forward").arguments}


@st.composite
def placements(draw: Any) -> tuple[Mesh, Layout]:
    """Draw a mesh, and give each of its axes to one dimension that it divides, or to none."""
    mesh = draw(st.sampled_from(MESHES))
    splits: dict[str, Axes] = {}
    for axis in draw(st.permutations(mesh.names)):
        ways = [n for n, size in SIZES.items() if size % mesh.size((*splits.get(n, ()), axis)) == 0]
        name = draw(st.sampled_from([None, *ways]))
        if name is not None:
            splits[name] = (*splits.get(name, ()), axis)
    return mesh, Layout("drawn", Rules(tuple(splits.items())))


@attrs.frozen
class Move:
    """One collective: the placement of its operand, its op and its attributes."""

    mesh: Mesh
    type: TensorType
    op: str
    attributes: Mapping[str, Any]


@st.composite
def moves(draw: Any) -> Move:
    """Draw a collective on a tensor of two dimensions, each of which can be split over all axes in any order."""
    mesh = draw(st.sampled_from(MESHES))
    dims = (Dim("p", 2 * mesh.devices), Dim("q", mesh.devices))
    groups: dict[str, list[str]] = {"p": [], "q": [], "pending": [], "unused": []}
    for axis in draw(st.permutations(mesh.names)):
        groups[draw(st.sampled_from(sorted(groups)))].append(axis)
    pending = mesh.ordered(groups["pending"])
    reduction = draw(st.sampled_from(("sum", "max", "min"))) if pending else "sum"
    type = TensorType("f32", dims, (tuple(groups["p"]), tuple(groups["q"])), pending, reduction)
    op, attributes = draw(st.sampled_from(list(_moves_of(type, groups)) or [("reshard", {})]))
    return Move(mesh, type, op, attributes)


def _moves_of(type: TensorType, groups: Mapping[str, list[str]]) -> Any:
    """Yield every collective that the placement allows."""
    for dim, other in zip(type.dims, reversed(type.dims), strict=True):
        axes = groups[dim.name]
        for n in range(len(axes)):
            yield "all_gather", {"axes": tuple(axes[n:]), "dim": dim}
            yield "all_to_all", {"axes": tuple(axes[n:]), "source": dim, "target": other}
        for order in permutations(axes):
            yield from [("permute", {"axes": order, "dim": dim})] * (len(axes) > 1)
        for order in _selections(groups["unused"]):
            yield "local_slice", {"axes": order, "dim": dim}
        for order in _selections(groups["pending"]):
            yield "all_reduce", {"axes": order}
            if type.reduction == "sum":
                yield "reduce_scatter", {"axes": order, "dim": dim}


def _selections(axes: Sequence[str]) -> Any:
    """Draw some of the axes, in any order."""
    for n in range(1, len(axes) + 1):
        yield from permutations(axes, n)
