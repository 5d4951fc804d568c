"""The verdict of the real compiler on the chosen layout of a program, for `mtfc inspect` and `mtfc.inspect`."""

import os

from mtfc.driver.compiled_step import CompileTarget, inspect_plan, inspected
from mtfc.driver.errors import UsageError
from mtfc.driver.jax_functions.imported_program import FunctionSource
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
    if source is None and applied:
        raise UsageError("--apply is for functions of JAX: a .mtf file has one program")
    if source is None:
        selection = select(file, choice, sources)
        return inspected(selection.cases[0].lower(selection.program), wanted)
    if not wanted.is_gpu:  # JAX need not look for devices, if it is not imported yet
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    assert isinstance(source, FunctionSource)
    is_cpu = wanted.machine == "cpu"
    plan = (
        plan_on_devices(file, choice, sources)
        if is_cpu
        else source.plan(select(file, choice, sources).cases[0])
    )
    return inspect_plan(plan.program, wanted, plan.lowered if applied else None)
