"""Layouts that anybody would try, and mesh axes that a layout leaves idle.

Mesh axes that no rule of a layout uses: devices along them compute the same.

Layouts that anybody would try: nothing split, data parallelism, ZeRO-1, FSDP, model parallelism, and products of these.

A search prices these layouts first, so its result is never worse. Data parallelism splits every dimension that is the batch: the
first dimension of the inputs, and the dimensions that renames and reshapes make of it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.core import Function, walk
from mtfc.compiler.ir.loops import looped_dims
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.structure import reshape_groups
from mtfc.compiler.ir.types import EVERY, Axes, Dim, Layout, Mesh, Rules
from mtfc.compiler.search.found import Plan
from mtfc.compiler.search.global_layouts.layout_space import values_of


def all_rules(layout: Layout) -> tuple[Rules, ...]:
    """Return the rules of all sections of a layout."""
    return (layout.rules, layout.params, layout.optimizer, *(rules for _, rules in layout.values))


def idle_axes(mesh: Mesh, layout: Layout) -> Axes:
    """Return the mesh axes that no rule of a layout uses."""
    used = {axis for rules in all_rules(layout) for _, axes in rules.axes for axis in axes}
    return tuple(name for name, size in mesh.axes if size > 1 and name not in used)


def without_axes(mesh: Mesh, gone: Collection[str]) -> Mesh:
    return attrs.evolve(mesh, axes=tuple(each for each in mesh.axes if each[0] not in gone))


def without_idle_axes(mesh: Mesh, layout: Layout) -> Mesh:
    """Return a mesh without the axes that no rule of a layout uses; the same mesh if no rule uses any."""
    used = without_axes(mesh, idle_axes(mesh, layout))
    return used if used.axes else mesh


def idle_note(axes: Axes) -> list[str]:
    """Return a sentence about mesh axes that no rule uses, if there are any."""
    if not axes:
        return []
    return [
        f"no rule uses {', '.join(axes)}: devices along it compute the same, and a mesh without it needs fewer devices"
    ]


MODEL_PARTS = (2, 4, 8)
"""The numbers of parts of the model in products of data and model parallelism."""


def batch_dims(forward: Function) -> tuple[Dim, ...]:
    """Return the dimensions that are the batch; no tensor has two of them. Empty if no input has a dimension."""
    looped, tensors = looped_dims(forward), _tensors(forward)
    inputs = [a.value.type.dims for a in forward.arguments if a.role == "input"]
    firsts = [
        next(dim for dim in dims if dim not in looped) for dims in inputs if not looped.issuperset(dims)
    ]
    found = firsts[:1]
    links = [pair for eqn in walk(forward.body) for pair in _same(eqn)]
    links += [(firsts[0], dim) for dim in firsts[1:] if dim.size == firsts[0].size]
    is_growing = True
    while is_growing:
        is_growing = False
        for one, other in (*links, *((b, a) for a, b in links)):
            apart = all(other not in each or each.isdisjoint(found) for each in tensors)
            if one in found and other not in found and other not in looped and apart:
                found.append(other)
                is_growing = True
    return tuple(found)


def _tensors(forward: Function) -> set[frozenset[Dim]]:
    return {frozenset(value.type.dims) for value in values_of(forward)}


def _same(eqn: Any) -> Iterator[tuple[Dim, Dim]]:
    """Yield the dimensions that run along the same parts of an operand and the result: renamed ones, and the most major."""
    if has_trait(eqn, "rename"):
        yield from eqn.attrs["mapping"]
    elif has_trait(eqn, "reshape"):
        groups = reshape_groups(eqn.operands[0].type.dims, eqn.result.type.dims)
        yield from ((group.sources[0], group.targets[0]) for group in groups)


def model_dims(forward: Function, parts: int) -> list[tuple[Dim, ...]]:
    """Return two sets of dimensions of parameters that model parallelism may split, those of the most elements first.

    The second set lacks the first dimension of the first set: it splits the other dimension of most matrices. parts: a divisor of
    the sizes.
    """
    inputs = {dim for a in forward.arguments if a.role == "input" for dim in a.value.type.dims}
    whole = looped_dims(forward).union(inputs, batch_dims(forward))
    elements: Counter[Dim] = Counter()
    for argument in forward.arguments:
        if argument.role == "parameter" and argument.value.type.dtype != "u32":  # words of random keys
            elements.update(dict.fromkeys(argument.value.type.dims, argument.value.type.size))
    dims = [dim for dim, _ in elements.most_common() if dim not in whole and dim.size % parts == 0]
    tensors = _tensors(forward)
    first = _apart(dims, tensors)
    second = _apart([dim for dim in dims if dim not in first[:1]], tensors)
    return [each for each in (first, second) if each]


def _apart(dims: Iterable[Dim], tensors: Iterable[frozenset[Dim]]) -> tuple[Dim, ...]:
    """Return dimensions of which no tensor has two: each dimension that shares no tensor with the dimensions before it."""
    found: list[Dim] = []
    for dim in dims:
        if not any(dim in each and not each.isdisjoint(found) for each in tensors):
            found.append(dim)
    return tuple(found)


def usual_layouts(forward: Function, line: Mesh, trains: bool) -> dict[str, Layout]:
    """Return the layouts on a mesh by name; its axes together are one. Layouts that the sizes do not allow are left out.

    `model_parallel_2` is there if model parallelism has two sets of dimensions.
    """
    every = line.names
    data = _split(batch_dims(forward), every, line.devices)
    stored = Rules(((EVERY, every),))
    found = {"nothing_split": Layout("nothing_split")}
    if data:
        found["data_parallel"] = Layout("data_parallel", Rules(data))
    if data and trains:
        found["zero1"] = Layout("zero1", Rules(data), optimizer=stored)
        found["fsdp"] = Layout("fsdp", Rules(data), params=stored)
    for i, dims in enumerate(model_dims(forward, line.devices)):
        name = "model_parallel" if i == 0 else f"model_parallel_{i + 1}"
        found[name] = Layout(name, Rules(_split(dims, every, line.devices)))
    return found


def starting_layouts(forward: Function, meshes: Sequence[Mesh], trains: bool) -> list[Plan]:
    """Return the usual layouts on meshes of one axis, or else on the first mesh, and `products` on meshes of two axes."""
    lines = [mesh for mesh in meshes if len(mesh.axes) == 1] or meshes[:1]
    usual = [(line, each) for line in lines for each in usual_layouts(forward, line, trains).values()]
    return [*usual, *products(forward, meshes, trains)]


def products(forward: Function, meshes: Sequence[Mesh], trains: bool) -> Iterator[Plan]:
    """Yield products of data and model parallelism on meshes of two axes, also with parameters stored over the data axis."""
    batch = batch_dims(forward)
    for mesh in meshes:
        if len(mesh.axes) != 2 or mesh.axes[1][1] not in MODEL_PARTS:
            continue
        (outer, rows), (inner, parts) = mesh.axes
        data = _split(batch, (outer,), rows)
        for dims in model_dims(forward, parts) if data else ():
            rules = Rules((*data, *_split(dims, (inner,), parts)))
            yield mesh, Layout("data_and_model", rules)
            if trains:
                yield mesh, Layout("data_and_model", rules, params=Rules(((EVERY, (outer,)),)))


def _split(dims: Iterable[Dim], axes: Axes, parts: int) -> tuple[tuple[str, Axes], ...]:
    return tuple((dim.name, axes) for dim in dims if dim.size % parts == 0)


def joined(rules: Rules, others: Rules) -> Rules:
    """Return rules, with others for dimensions that they do not name."""
    return Rules((*rules.axes, *(each for each in others.axes if each[0] not in rules.by_dim)))
