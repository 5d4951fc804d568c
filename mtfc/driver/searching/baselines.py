"""What `mtfc search` compares its result with: the two layouts that everyone knows, and every one that the file declares."""

from __future__ import annotations

from time import monotonic

import attrs

from mtfc.compiler.ir.loops import looped_dims
from mtfc.compiler.ir.types import Dim, Layout, Mesh, Rules
from mtfc.compiler.search.global_layouts.global_search import search
from mtfc.compiler.search.pricer import Pricer
from mtfc.driver.selection import Selection

Baselines = dict[str, tuple[Mesh, Layout]]

SECONDS, SHARE = 3.0, 0.1
"""For how long at most the best of the model-parallel layouts is looked for, and for which part of the time that there is."""


def baselines(
    selection: Selection, pricer: Pricer, devices: int, given: Mesh | None, until: float
) -> Baselines:
    """Layouts for so many devices by name; where the file has one called `data_parallel` or `model_parallel`, that is it.

    Data-parallel: the first dimension of the inputs that no loop runs along, over all devices. Model-parallel: the best that
    leaves the dimensions of the inputs whole, as far as it is found long before `until`, a time of `time.monotonic`. Both are
    on the `given` mesh, or on one of a single axis.
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
    selection: Selection, pricer: Pricer, line: Mesh, whole: set[Dim], until: float
) -> Baselines:
    """The best that is found, whatever memory it takes; none where nothing else can be split. Raises `KeyboardInterrupt`."""
    now = monotonic()
    device = attrs.evolve(pricer.hardware.device, memory=float("inf"))
    found = search(
        pricer.undistributed(),
        selection.program.function("forward"),
        [line],
        attrs.evolve(pricer.hardware, device=device),
        pricer,
        now + min(SECONDS, SHARE * (until - now)),
        known=[(line, Layout("none"))],
        fixed=Rules(tuple((dim.name, ()) for dim in whole)),
    )
    if found.is_interrupted:
        raise KeyboardInterrupt
    if not found.layout.rules.axes:
        return {}
    return {"model_parallel": (line, attrs.evolve(found.layout, name="model_parallel"))}
