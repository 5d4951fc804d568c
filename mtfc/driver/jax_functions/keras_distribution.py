"""A plan as a distribution of Keras: a `ModelParallel` whose `LayoutMap` has the path of every variable.

Keras replicates a variable that no entry matches. A model that is built a second time has other paths, such as `dense_1/kernel`,
so this distribution refuses matrices that the plan does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtfc.compiler.ir.types import Axes, Mesh
from mtfc.driver.errors import UsageError, public
from mtfc.driver.jax_functions.shardings import entry_axes, spec_of
from mtfc.frontend.jaxpr.importing import Imported, Leaf

Stored = Mapping[str, Mapping[str, Axes]]
"""Name of an argument -> the axes that split its dimensions."""

UNSPLIT = "unsplit"
"""The mesh axis, of size 1, over which Keras splits the batch if the plan leaves it whole."""


def model_parallel(imported: Imported, on: Mesh, stored: Stored) -> Any:
    """Return the distribution. Raises `UsageError` if Keras cannot express the plan."""
    paths = imported.flat.variable_paths
    variables = {paths[leaf.path]: leaf for leaf in imported.inputs if leaf.path in paths}
    if not variables:
        raise UsageError(
            "no argument is a variable of Keras: import the function on `model.trainable_variables` themselves"
        )
    from keras import distribution

    batch = _batch_axis(imported, on, stored)
    sizes = {**({} if batch in on.sizes else {batch: 1}), **on.sizes}
    devices = distribution.list_devices()[: on.devices]
    mesh = distribution.DeviceMesh(tuple(sizes.values()), list(sizes), devices)
    layouts = distribution.LayoutMap(mesh)
    for path, leaf in variables.items():
        spec = spec_of(leaf.dims, stored.get(leaf.name, {}), on)
        layouts[path] = tuple(_one_axis(axes, path) for axes in spec)
    return _planned(distribution.ModelParallel, variables)(layout_map=layouts, batch_dim_name=batch)


def _planned(base: Any, variables: dict[str, Leaf]) -> Any:
    """Return a class of distributions that refuse unknown matrices and other shapes. Keras is imported by then."""

    class PlannedModelParallel(base):  # type: ignore[misc]
        @public
        def get_variable_layout(self, variable: Any) -> Any:
            if getattr(variable, "_layout", None) is None:
                _check(variable, variables)
            return super().get_variable_layout(variable)

    return PlannedModelParallel


def _check(variable: Any, variables: dict[str, Leaf]) -> None:
    """Raise `UsageError` for a matrix that the plan lacks, or has with another shape."""
    shape, leaf = tuple(variable.shape), variables.get(variable.path)
    if leaf is None and len(shape) > 1:
        names = ", ".join([*variables][:4])
        raise UsageError(
            f"the plan has no variable {variable.path}, and Keras would replicate it; it has {names}, ...: "
            f"call `keras.utils.clear_session()`, set the distribution, and build the model again, or give its layers names"
        )
    if leaf is not None and leaf.shape != shape:
        raise UsageError(f"{variable.path} has shape {shape}, and the plan is for {leaf.shape}")


def _batch_axis(imported: Imported, on: Mesh, stored: Stored) -> str:
    """Return the mesh axis that splits the first axis of the data."""
    paths, found = imported.flat.variable_paths, set[Axes]()
    for leaf in imported.inputs:
        if leaf.role == "input" and leaf.constant is None and leaf.path not in paths and leaf.dims:
            spec = spec_of(leaf.dims[:1], stored.get(leaf.name, {}), on)
            found.add(entry_axes(spec[0]))
    axes = next(iter(found), ()) if len(found) < 2 else None
    if axes is None or len(axes) > 1:
        raise UsageError(
            "Keras splits all data along their first axis, over one axis of the mesh; the plan does not"
        )
    return axes[0] if axes else UNSPLIT


def _one_axis(entry: Any, path: str) -> str | None:
    axes = entry_axes(entry)
    if len(axes) > 1:
        raise UsageError(
            f"Keras splits an axis over one axis of the mesh, and the plan splits one of {path} over {', '.join(axes)}"
        )
    return axes[0] if axes else None
