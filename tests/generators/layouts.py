"""Layouts that are legal for a given program, by construction."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import EVERY, Axes, Dim, Mesh
from tests.generators.meshes import splits_of
from tests.generators.scope import Scope

Splits = dict[str, Axes]
Shape = tuple[Dim, ...]


@attrs.frozen
class LayoutText:
    """A layout as it will be written: its rules, and the rules of storage and of values."""

    name: str
    rules: Splits = attrs.field(factory=dict)
    params: Splits = attrs.field(factory=dict)
    optimizer: Splits = attrs.field(factory=dict)
    values: dict[str, Splits] = attrs.field(factory=dict)

    def __str__(self) -> str:
        entries = [_rule(dim, axes) for dim, axes in self.rules.items()]
        for title, section in (("params", self.params), ("optimizer", self.optimizer)):
            if section:
                entries.append(f"{title}: {_braces(section)}")
        entries += [f"value {name}: {_braces(section)}" for name, section in self.values.items()]
        return f"layout {self.name} on grid = {{\n" + "".join(f"  {entry}\n" for entry in entries) + "}"


def _rule(dim: str, axes: Axes) -> str:
    return f"{dim}: {axes[0]}" if len(axes) == 1 else f"{dim}: ({', '.join(axes)})"


def _braces(section: Splits) -> str:
    return "{ " + ", ".join(_rule(dim, axes) for dim, axes in section.items()) + " }" if section else "{}"


def injective(shape: Shape, splits: Splits) -> bool:
    """Return True if no axis splits two dims of a tensor of this shape."""
    used = [axis for dim in shape for axis in splits.get(dim.name, ())]
    return len(set(used)) == len(used)


@st.composite
def rules(
    draw: Any, mesh: Mesh, dims: Sequence[Dim], shapes: Iterable[Shape], base: Splits, keen: bool = False
) -> Splits:
    """Draw splits for some of the dims that, together with `base`, use an axis at most once for every shape.

    One axis is popular: dims that meet in no tensor often share it, and always if they are `keen` on it.
    """
    chosen: Splits = {}
    popular = (draw(st.sampled_from(mesh.names)),)
    for dim in dims:
        options = splits_of(dim.size, mesh)[1:]
        if not options or draw(st.integers(0, 5)) == 0:
            continue
        axes = (
            popular
            if popular in options and (keen or draw(st.booleans()))
            else draw(st.sampled_from(options))
        )
        if all(injective(shape, {**base, **chosen, dim.name: axes}) for shape in shapes if dim in shape):
            chosen[dim.name] = axes
    return chosen


@st.composite
def legal_layouts(
    draw: Any, name: str, scope: Scope, parameters: Sequence[Shape], values: dict[str, list[Shape]]
) -> LayoutText:
    """Draw a layout that is legal for every tensor of a program.

    `values` holds the shapes that each name has, `parameters` the shapes of parameters. Dims that are summed away mostly come
    first: a split of such a dim leaves a sum pending.
    """
    mesh, shapes = scope.mesh, tuple(scope.facts.shapes)
    used = dict.fromkeys(dim for shape in shapes for dim in shape)
    order = draw(st.permutations(tuple(dim for dim in used if dim in scope.dims)))
    if draw(st.integers(0, 3)) < 3:
        order = sorted(order, key=lambda dim: dim not in scope.facts.reduced)
    if scope.options.spatial:
        order = sorted(order, key=lambda dim: dim not in scope.slid)
    computed = draw(rules(mesh, order, shapes, {}, scope.options.spatial))
    params: Splits = {}
    optimizer: Splits = {}
    if parameters and (scope.options.accumulated or draw(st.booleans())):
        stored = tuple(dict.fromkeys(dim for shape in parameters for dim in shape if dim in scope.dims))
        params = draw(rules(mesh, stored, parameters, computed))
        optimizer = draw(rules(mesh, stored, parameters, {**computed, **params}))
        for section in (params, optimizer):
            if draw(st.integers(0, 3)) == 3:
                section[EVERY] = draw(st.sampled_from([(axis,) for axis in mesh.names] + [mesh.names]))
    return LayoutText(name, computed, params, optimizer, draw(value_rules(scope, values)))


@st.composite
def value_rules(draw: Any, scope: Scope, values: dict[str, list[Shape]]) -> dict[str, Splits]:
    """Draw rules of their own for up to two values, for dims that the file declares."""
    chosen: dict[str, Splits] = {}
    for _ in range(draw(st.sampled_from((0, 0, 1, 2))) if values else 0):
        name = draw(st.sampled_from(sorted(values)))
        common = set(scope.dims).intersection(*values[name])
        order = [dim for dim in values[name][0] if dim in common]
        chosen[name] = draw(rules(scope.mesh, order, values[name], {}))
    return chosen
