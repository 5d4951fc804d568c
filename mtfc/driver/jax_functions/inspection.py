"""The verdict of XLA on a plan: its own program, and the user's function with the plan's constraints, by the user's lines.

XLA's partitioner chooses the collectives of a jitted function. The text of the compiled program names the call stack of each
collective, so the report can say which line sends more than predicted, and whether the constraints of `plan.apply` mend that.
"""

from __future__ import annotations

import os
from itertools import takewhile
from typing import Any

import attrs

from mtfc.backends.hlo import Frames
from mtfc.compiler.activity import doing
from mtfc.compiler.diagnostics import Span
from mtfc.driver.data.files import readable_texts
from mtfc.driver.inspecting import CompileTarget, checked, compiled, figures, inspected
from mtfc.driver.jax_functions.function_source import FunctionSource
from mtfc.driver.jax_functions.plan import Plan
from mtfc.driver.jax_functions.verification import plan_on_devices
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.training.user_code import OWN
from mtfc.frontend.jaxpr.user_lines import is_library
from mtfc.reports.inspection import Inspection


def inspect_function(
    file: str, target: CompileTarget, choice: Choice, sources: Sources, applied: bool
) -> Inspection:
    """Compile the chosen plan of a function of JAX. Raises `CompileError`, `UsageError`, `Unavailable` and `FailedRequest`."""
    source = choice.source
    assert isinstance(source, FunctionSource)
    if target.platform != "gpu":  # JAX need not look for other devices, unless it has been imported before
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if applied and target.platform == "cpu":
        return inspect_plan(plan_on_devices(file, choice, sources), target, applied)
    (case,) = select(file, choice, sources).cases
    return inspect_plan(source.plan(case), target, applied)


def inspect_plan(plan: Plan, target: CompileTarget, applied: bool) -> Inspection:
    """Compile `plan.step`, and if `applied` also `plan.apply` and the function with shardings alone.

    Raises `UsageError`, `Unavailable` and `FailedRequest`.
    """
    found = inspected(plan.program, target)
    places = [span for span, _ in (*found.predicted.flops, *found.compiled.flops) if span is not None]
    found = attrs.evolve(found, texts=readable_texts(span.file for span in places))
    if not applied:
        return found
    import jax

    on = attrs.evolve(plan, has_explicit_axes=False, devices=tuple(target.devices(plan.case.mesh.devices)))
    args, kwargs = on.abstract_arguments
    roads: dict[str, Any] = {}
    for road, function in (("applied", on.apply()), ("shardings", on.function)):
        with doing(f"compiling {road} for {found.target}"), jax.sharding.set_mesh(on.mesh):
            lowered = jax.jit(function, out_shardings=on.out_shardings).lower(*args, **kwargs)
            roads[road] = figures(checked(compiled(lowered, target.platform), target), user_place)
    return attrs.evolve(found, **roads)


def user_place(frames: Frames) -> Span | None:
    """Return the innermost line of the imported function outside of libraries, or else the innermost one."""
    known = [*takewhile(lambda frame: not frame[0].startswith(OWN), frames)]
    own = (frame for frame in known if not is_library(frame[0]))
    place = next(own, known[0] if known else None)
    return place and Span(place[0], place[1], 1, place[1], 2)
