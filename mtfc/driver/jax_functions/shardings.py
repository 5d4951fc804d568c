"""A plan's shardings of the user's arrays.

A `PartitionSpec` splits an axis into equal parts of consecutive elements, so it can say splits of leading factors only: of an
axis of 3 x heads x head_dim it can split the 3, or the 3 and the heads. `spec_of` says the most that it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import attrs

from mtfc.backends.common.devices import import_jax
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import ITEM_BYTES, Axes, Dim, Mesh
from mtfc.frontend.jaxpr.importing import Leaf

jax = import_jax()


@attrs.frozen
class Unsaid:
    """A split that no `PartitionSpec` of a leaf says: mesh axes, the axis of the array, and its factors.

    bytes: what a device stores of the array. ratio: how many times as much that is therefore.
    """

    leaf: Leaf
    axis: int
    dim: Dim
    axes: Axes
    bytes: int
    ratio: int

    @property
    def reshaped(self) -> tuple[int, ...]:
        """The shape of an array whose `PartitionSpec` can say the split: the dimension begins an axis."""
        dims = self.leaf.dims[self.axis]
        place = dims.index(self.dim)
        parts = (prod(dim.size for dim in part) for part in (dims[:place], dims[place:]))
        return (*self.leaf.shape[: self.axis], *parts, *self.leaf.shape[self.axis + 1 :])

    def __str__(self) -> str:
        factors = " x ".join(f"{dim.name} {dim.size}" for dim in self.leaf.dims[self.axis])
        return (
            f"{self.leaf.name}: axis {self.axis} is {factors}, and {', '.join(self.axes)} splits {self.dim.name}; "
            f"a device stores {bytes_text(self.bytes)} in place of {bytes_text(self.bytes // self.ratio)}: "
            f"reshape the array to {[*self.reshaped]}, or use `plan.step`"
        )


def axes_of(dims: Sequence[Dim], rules: Mapping[str, Axes], mesh: Mesh) -> tuple[Axes, list[Dim]]:
    """Return the mesh axes of a `PartitionSpec` for an axis with some factors, and the factors whose split it cannot say."""
    found: Axes = ()
    unsaid: list[Dim] = []
    is_open = True
    for dim in dims:
        axes = rules.get(dim.name, ())
        if axes and not is_open:
            unsaid.append(dim)
        elif axes:
            found += axes
        is_open = is_open and mesh.size(axes) == dim.size
    return found, unsaid


def one_use(dims: Iterable[Sequence[Dim]], rules: Mapping[str, Axes]) -> dict[str, Axes]:
    """Return the rules of an intermediate value: a mesh axis splits the first dimension that asks for it."""
    used: set[str] = set()
    found: dict[str, Axes] = {}
    for dim in (dim for each in dims for dim in each):
        axes = rules.get(dim.name, ())
        if used.isdisjoint(axes):
            found[dim.name] = axes
            used |= {*axes}
    return found


def spec_of(dims: Iterable[Sequence[Dim]], rules: Mapping[str, Axes], mesh: Mesh) -> Any:
    """Return the `PartitionSpec` of an array whose axes have some factors."""
    entries = [axes_of(each, rules, mesh)[0] for each in dims]
    return jax.sharding.PartitionSpec(
        *(axes if len(axes) > 1 else axes[0] if axes else None for axes in entries)
    )


def sharding_tree(tree: Any, shardings: Sequence[Any]) -> Any:
    """Return shardings as a pytree.

    A node whose class refuses leaves that are no arrays has one sharding for all its leaves, as `jax.jit` allows. Raises
    `ValueError` if its leaves have different ones.
    """
    try:
        return jax.tree.unflatten(tree, shardings)
    except Exception:  # the class of a node of the user may refuse them by any exception
        rest, children = list(shardings), tree.children()
        own = [sharding_tree(each, [rest.pop(0) for _ in range(each.num_leaves)]) for each in children]
        leaf = jax.tree.structure(0)
        definition = jax.tree_util.PyTreeDef.from_node_data_and_children(
            jax.tree_util.default_registry, tree.node_data(), [leaf] * len(children)
        )
        try:
            return jax.tree.unflatten(definition, own)
        except Exception as error:
            if len({*shardings}) == 1:
                return shardings[0]
            kind = tree.node_data()[0].__name__
            raise ValueError(
                f"`{kind}` takes no shardings in the place of its arrays ({type(error).__name__}: {error}), and its arrays "
                "have different ones: give the arrays to the function without it"
            ) from None


def entry_axes(entry: Any) -> Axes:
    """Return the mesh axes in an entry of a `PartitionSpec`."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def explicit_axes(mesh: Any) -> frozenset[str]:
    """Return the axes of a mesh of JAX that have the type Explicit."""
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(name for name, kind in pairs if kind == jax.sharding.AxisType.Explicit)


def only_axes(spec: Any, names: frozenset[str]) -> Any:
    """Return a `PartitionSpec` without all other axes."""
    entries = (tuple(axis for axis in entry_axes(each) if axis in names) for each in spec)
    return type(spec)(*(axes or None for axes in entries))


def unsaid(leaf: Leaf, rules: Mapping[str, Axes], mesh: Mesh) -> list[Unsaid]:
    """Return the splits of a leaf that its `PartitionSpec` cannot say."""
    said = prod(mesh.size(axes_of(dims, rules, mesh)[0]) for dims in leaf.dims)
    bytes = prod(leaf.shape) * ITEM_BYTES[leaf.dtype] // said
    found = []
    for j, dims in enumerate(leaf.dims):
        for dim in axes_of(dims, rules, mesh)[1]:
            axes = rules[dim.name]
            found.append(Unsaid(leaf, j, dim, axes, bytes, mesh.size(axes)))
    return found
