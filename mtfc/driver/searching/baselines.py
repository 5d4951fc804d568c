"""Layouts to compare a search's result with: data parallelism, model parallelism, and the layouts of the file."""

from __future__ import annotations

from time import monotonic

import attrs

from mtfc.compiler.activity import progress_to, silent
from mtfc.compiler.ir.loops import looped_dims
from mtfc.compiler.ir.types import Dim, Layout, Mesh, Rules
from mtfc.compiler.search.global_layouts.global_search import GlobalSpace
from mtfc.compiler.search.pricer import LayoutPricer
from mtfc.driver.loading.selection import Selection

Baselines = dict[str, tuple[Mesh, Layout]]

SECONDS, SHARE = 3.0, 0.1
"""Most seconds of the search for the best model-parallel layout, and most of the time that is left, as a share."""


def baselines(
    selection: Selection, pricer: LayoutPricer, devices: int, given: Mesh | None, until: float
) -> Baselines:
    """Return the layouts for this number of devices by name. Layouts that the file calls so replace the two standard ones.

    `data_parallel` splits, over all devices, the first dimension of the inputs that no loop runs along. `model_parallel` is the
    best layout that splits no dimension of the inputs, as far as a short search finds it. Both are on the `given` mesh, or on a
    mesh of a single axis. until: a time of `time.monotonic`.
    """
    declared = {
        case.name: (case.mesh, case.layout) for case in selection.cases if case.mesh.devices == devices
    }
    if devices == 1:
        return declared
    line = given or Mesh("line", (("all", devices),))
    forward = selection.program.function("forward")
    inputs = [a.value.type for a in forward.arguments if a.role == "input"]
    looped = looped_dims(forward)
    batch = next((dim for type in inputs for dim in type.dims if dim not in looped), None)
    known: Baselines = {}
    if batch is not None and batch.size % devices == 0:
        known["data_parallel"] = (line, Layout("data_parallel", Rules(((batch.name, line.names),))))
    if "model_parallel" not in declared:
        whole = {dim for type in inputs for dim in type.dims}
        known |= _model_parallel(selection, pricer, line, whole, until)
    return {**known, **declared}


def _model_parallel(
    selection: Selection, pricer: LayoutPricer, line: Mesh, whole: set[Dim], until: float
) -> Baselines:
    """Return the best layout that splits no dimension in `whole`, regardless of memory; empty if nothing else can be split.

    Raises `KeyboardInterrupt`.
    """
    now = monotonic()
    device = attrs.evolve(pricer.hardware.device, memory=float("inf"))
    space = GlobalSpace(
        pricer.undistributed(),
        selection.program.function("forward"),
        [line],
        attrs.evolve(pricer.hardware, device=device),
        fixed=Rules(tuple((dim.name, ()) for dim in whole)),
    )
    with progress_to(silent):
        found = space.best(pricer, now + min(SECONDS, SHARE * (until - now)), [(line, Layout("none"))])
    if found.is_interrupted:
        raise KeyboardInterrupt
    if not found.layout.rules.axes:
        return {}
    return {"model_parallel": (line, attrs.evolve(found.layout, name="model_parallel"))}
