"""The verdict of the real compiler on the chosen layout of a program, for `mtfc inspect` and `mtfc.inspect`."""

from __future__ import annotations

import os

from mtfc.driver.compiled_step import CompileTarget, inspected
from mtfc.driver.errors import UsageError
from mtfc.driver.jax_functions.function_source import FunctionSource
from mtfc.driver.jax_functions.inspection import inspect_plan
from mtfc.driver.jax_functions.verification import plan_on_devices
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import select
from mtfc.driver.loading.sources import Sources
from mtfc.reports.inspection import Inspection


def inspect(file: str, target: str, choice: Choice, sources: Sources, applied: bool = False) -> Inspection:
    """Compile the step of the chosen layout for a target. applied: compile `plan.apply` of a function of JAX, too.

    Raises `CompileError`, `UsageError`, `Unavailable` and `FailedRequest`.
    """
    wanted, source = CompileTarget.of(target), choice.source
    if applied and source is None:
        raise UsageError("--apply is for functions of JAX: a .mtf file has one program")
    if source is not None and (
        wanted.generation or wanted.machine == "cpu"
    ):  # JAX need not look for devices, if it is not imported yet
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if applied and wanted.machine == "cpu":
        plan = plan_on_devices(file, choice, sources)
        return inspect_plan(plan.program, wanted, plan.lowered)
    selection = select(file, choice, sources)
    if isinstance(source, FunctionSource):
        plan = source.plan(selection.cases[0])
        return inspect_plan(plan.program, wanted, plan.lowered if applied else None)
    return inspected(selection.cases[0].lower(selection.program), wanted)
