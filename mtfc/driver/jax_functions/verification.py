"""Comparison of the chosen layout of a function of JAX with the function itself, for `mtfc verify`."""

from collections.abc import Callable

import attrs

from mtfc.backends.common.devices import devices, import_jax, reserve
from mtfc.driver.errors import UsageError
from mtfc.driver.jax_functions.comparison import PlanVerification, verified
from mtfc.driver.jax_functions.imported_program import FunctionSource, mesh_of
from mtfc.driver.jax_functions.plan import Plan
from mtfc.driver.jax_functions.plan_file import read_plan
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import PLAN, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import VerifyOptions
from mtfc.driver.verification.results import ExactCase

MOST_DEVICES = 512
"""The most devices of a mesh that programs are compiled for."""


def verify_function(
    options: VerifyOptions, sources: Sources, show: Callable[[ExactCase | str], object] = lambda _: None
) -> PlanVerification:
    """Compare the function with `plan.apply`, `plan.step` and the exact check, under one layout.

    If nothing of an output is finite on drawn arguments, the example arguments take their place, unless they are mere shapes.
    show: receives the name of the function, and the exact checks as soon as they are known. Raises `CompileError`, `UsageError`
    and `Unavailable`.
    """
    for name in ("backend", "dtype", "data", "params", "step"):
        if getattr(options, name) not in (None, False):
            raise UsageError(f"--{name} is for .mtf files: a function of JAX is verified on drawn arguments")
    jax = import_jax()
    jax.config.update("jax_default_matmul_precision", "highest")
    plan = plan_on_devices(options.file, options.choice, sources)
    show(plan.program.name)
    found = verified(plan, (), {}, options.seed, options.exact, options.budget, show)
    if found.proves_nothing or found.without_numbers:
        source = options.choice.source
        assert isinstance(source, FunctionSource)
        args, kwargs = source.example(plan.function)
        if not any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves((args, kwargs))):
            again = verified(plan, args, kwargs, options.seed, False, options.budget)
            return attrs.evolve(again, exact=found.exact, imported=found.imported)
    return found


def plan_on_devices(file: str, choice: Choice, sources: Sources) -> Plan:
    """Return the plan of the chosen layout, with as many devices as it needs, virtual ones if there are fewer.

    Raises `CompileError`, `UsageError` and `Unavailable`.
    """
    source = choice.source
    assert isinstance(source, FunctionSource)
    sources.add_choice(choice)
    number = 1
    if choice.mesh is not None:
        number = mesh_of(choice.mesh).devices
    elif choice.layout is not None and choice.layout.endswith(PLAN):
        number = read_plan(choice.layout)[0].mesh.devices
    if number > MOST_DEVICES:
        raise UsageError(f"this takes a mesh of at most {MOST_DEVICES} devices, and not of {number}")
    reserve(number)  # before code of the user starts JAX
    (case,) = select(file, choice, sources).cases
    devices(case.mesh.devices)
    return source.plan(case)
