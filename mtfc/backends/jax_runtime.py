"""Runs a generated JAX module, and shows what JAX and XLA make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from types import ModuleType
from typing import Any

from mtfc.backends.devices import devices, import_jax
from mtfc.backends.emitter import NAMES
from mtfc.backends.jax_backend import DTYPES, generate
from mtfc.compiler.ir.core import Program


def load(source: str) -> ModuleType:
    """The module that `source` defines, with its functions bound to its mesh over the devices that are there.

    Raises `Unavailable` where JAX is missing or has too few devices.
    """
    module, mesh = _execute(source)
    for name in ("init", "init_state", "shard", *NAMES.values()):
        if hasattr(module, name):
            setattr(module, name, _under(mesh, getattr(module, name)))
    return module


def stablehlo(program: Program, function: str | None = None) -> str:
    """What JAX hands to XLA for a function of the lowered program: the last one, unless told otherwise."""
    return str(lowered(program, function).as_text())


def hlo(program: Program, function: str | None = None) -> str:
    """What XLA compiles a function of the lowered program to: one device's instructions."""
    return str(lowered(program, function).compile().as_text())


def lowered(program: Program, function: str | None = None, on: Sequence[Any] | None = None) -> Any:
    """A function of the program as a `jax.stages.Lowered`, without data, on the first of the given devices or on those that are
    there. Raises `Unavailable`.
    """
    module, mesh = _execute(generate(program), on)
    name = function or program.functions[-1].name
    roles = ("parameter", "state", "input") if name == "step" else ("parameter", "input")
    jax = import_jax()
    with jax.set_mesh(mesh):
        structs = [_structs(module, program, role, name) for role in roles]
        if name == "step":
            structs.append(_struct("i32", (), jax.sharding.PartitionSpec()))
        return getattr(module, NAMES[name]).lower(*structs)


def _execute(source: str, on: Sequence[Any] | None = None) -> tuple[ModuleType, Any]:
    """The module as it stands, and its mesh."""
    import_jax()
    module = ModuleType("program")
    exec(compile(source, "<generated>", "exec"), module.__dict__)
    count = prod(module.MESH.values())
    return module, module.make_mesh(devices(count) if on is None else on[:count])


def _under(mesh: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    jax = import_jax()

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with jax.set_mesh(mesh):
            return function(*args, **kwargs)

    return call


def _structs(module: ModuleType, program: Program, role: str, function: str) -> dict[str, Any]:
    types = {a.value.name: a.value.type for a in program.function(function).arguments if a.role == role}
    inputs = getattr(module, "BATCHES", module.INPUTS) if function == "step" else module.INPUTS
    specs = {"parameter": module.PARAMETERS, "state": module.STATE, "input": inputs}[role]
    shapes = {name: tuple(dim.size for dim in type.dims) for name, type in types.items()}
    return {name: _struct(type.dtype, shapes[name], specs[name]) for name, type in types.items()}


def _struct(dtype: str, shape: tuple[int, ...], spec: Any) -> Any:
    """A global array's shape, dtype and placement on the mesh that is set."""
    jax = import_jax()
    return jax.ShapeDtypeStruct(shape, getattr(jax.numpy, DTYPES[dtype]), sharding=spec)
