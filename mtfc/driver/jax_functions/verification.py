"""Comparison of the chosen layout of a function of JAX with the function itself, for `mtfc verify`."""

from __future__ import annotations

from typing import Any

import attrs

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.types import Mesh
from mtfc.driver.errors import UsageError
from mtfc.driver.jax_functions.comparison import PlanVerification, verified
from mtfc.driver.jax_functions.function_source import FunctionSource
from mtfc.driver.jax_functions.plan import Plan, read_plan
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import PLAN, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import VerifyOptions
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.layout_options import parse_mesh
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.exact_report import exact_json

MOST_DEVICES = 512
"""The most devices of a mesh that programs are compiled for."""


@attrs.frozen
class VerifiedPlan:
    """The comparison of one layout of a function of JAX."""

    model: str
    layout: str
    mesh: Mesh
    found: PlanVerification

    @property
    def ok(self) -> bool:
        """True if no result is wrong."""
        return self.found.ok

    def record(self) -> dict[str, Any]:
        """Return the JSON record; see `docs/command.md`."""
        return {
            "ok": self.ok,
            "model": self.model,
            "layout": self.layout,
            "mesh": self.mesh.sizes,
            "outputs": [attrs.asdict(each) | {"ok": each.ok} for each in self.found.outputs],
            "ended": list(self.found.ended),
            "exact": exact_json(self.found.exact_cases),
        }

    def verdict(self) -> str:
        """Return a line for each road."""
        return str(self.found)


def verify_function(options: VerifyOptions, sources: Sources) -> VerifiedPlan:
    """Compare the function with `plan.apply`, `plan.step` and the exact check, under one layout.

    If nothing of an output is finite on drawn arguments, the example arguments take their place, unless they are mere shapes.
    Raises `CompileError`, `UsageError` and `Unavailable`.
    """
    from mtfc.backends.common.devices import import_jax

    given = {
        "--backend": options.backend,
        "--dtype": options.dtype,
        "--data": options.data,
        "--params": options.params,
        "--step": options.step or None,
    }
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} is for .mtf files: a function of JAX is verified on drawn arguments")
    jax = import_jax()
    jax.config.update("jax_default_matmul_precision", "highest")
    plan = plan_on_devices(options.file, options.choice, sources)
    found = verified(plan, (), {}, options.seed, options.exact, options.budget)
    if found.proves_nothing or found.without_numbers:
        source = options.choice.source
        assert isinstance(source, FunctionSource)
        args, kwargs = source.example(plan.function)
        if not any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves((args, kwargs))):
            found = verified(plan, args, kwargs, options.seed, options.exact, options.budget)
    return VerifiedPlan(plan.program.name, plan.case.name, plan.case.mesh, found)


def plan_on_devices(file: str, choice: Choice, sources: Sources) -> Plan:
    """Return the plan of the chosen layout, with as many devices as it needs, virtual ones if there are fewer.

    Raises `CompileError`, `UsageError` and `Unavailable`.
    """
    from mtfc.backends.common.devices import devices, reserve

    source = choice.source
    assert isinstance(source, FunctionSource)
    number = _devices(choice, sources)
    if number > MOST_DEVICES:
        raise UsageError(f"this takes a mesh of at most {MOST_DEVICES} devices, and not of {number}")
    reserve(number)  # before code of the user starts JAX
    (case,) = select(file, choice, sources).cases
    devices(case.mesh.devices)
    return source.plan(case)


def _devices(choice: Choice, sources: Sources) -> int:
    """Return the number of devices of the chosen mesh. Raises `CompileError` and `UsageError`."""
    sources.add_choice(choice)
    if choice.mesh is not None:
        return parse_mesh(choice.mesh, elaborate(parse("", "", Diagnostics()), Diagnostics())).devices
    if choice.layout is not None and choice.layout.endswith(PLAN):
        return read_plan(choice.layout)[0].mesh.devices
    return 1
