"""The verdict of XLA on a plan: its own program, and the user's function with the plan's constraints, by the user's lines.

XLA's partitioner chooses the collectives of a jitted function. The text of the compiled program names the call stack of each
collective, so the report can say which line sends more than predicted, and whether the constraints of `plan.apply` mend that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import attrs

from mtfc.backends.hlo import Frames
from mtfc.compiler.activity import doing
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Program
from mtfc.driver.compiled_step import CompileTarget, checked, compiled, figures, inspected
from mtfc.driver.data.files import readable_texts
from mtfc.driver.training.user_code import OWN
from mtfc.frontend.jaxpr.user_lines import is_library
from mtfc.reports.inspection import Inspection

Lower = Callable[[Sequence[Any]], Sequence[Any]]
"""Returns `plan.apply`, and the function with shardings alone, as `jax.stages.Lowered` for devices."""


def inspect_plan(program: Program, target: CompileTarget, lower: Lower | None) -> Inspection:
    """Compile `plan.step`; and `plan.apply` and the function with shardings alone if `lower` makes these for devices.

    Raises `UsageError`, `Unavailable` and `FailedRequest`.
    """
    found = inspected(program, target)
    places = [each.span for road in found.roads.values() for each in road.charges if each.span is not None]
    found = attrs.evolve(found, texts=readable_texts(span.file for span in places))
    if lower is None:
        return found
    with doing(f"compiling plan.apply for {found.target}"):
        done = [compiled(each, target) for each in lower(target.devices(found.cost.mesh.devices))]
        more = [figures(checked(each, target), user_place) for each in done]
    return attrs.evolve(found, roads={**found.roads, **dict(zip(("apply", "shardings"), more, strict=True))})


def user_place(frames: Frames) -> Span | None:
    """Return the innermost line of the imported function outside of libraries, or else the innermost one."""
    known = [*takewhile(lambda frame: not frame[0].startswith(OWN), frames)]
    own = (frame for frame in known if not is_library(frame[0]))
    place = next(own, known[0] if known else None)
    return place and Span(place[0], place[1], 1, place[1], 2)
