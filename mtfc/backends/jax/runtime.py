"""Running a generated JAX module, and the texts that JAX and XLA make of it."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from math import prod
from types import ModuleType
from typing import Any

from mtfc.backends.common.devices import devices, import_jax, jax
from mtfc.backends.common.emitter import FORMS, NAMES
from mtfc.backends.common.module import executed, kinds_of
from mtfc.backends.jax.backend import generate
from mtfc.compiler.ir.core import Program


def load(source: str) -> ModuleType:
    """Return the module that `source` defines, with its functions bound to its mesh over the present devices.

    A module of a placement or of several meshes gets its devices. Raises `Unavailable` if JAX is missing or has too few devices.
    """
    module, mesh = _execute(source)
    if mesh is None:
        return module
    for name in ("init", "init_state", "shard", *NAMES.values(), "value_and_grad"):
        if hasattr(module, name):
            setattr(module, name, _under(mesh, getattr(module, name), PREPARED.get(name)))
    return module


def stablehlo(program: Program, function: str | None = None) -> str:
    """Return the text that JAX hands to XLA for a function of the lowered program, by default the last one."""
    return str(lowered(program, function).as_text())


def hlo(program: Program, function: str | None = None) -> str:
    """Return the text that XLA compiles a function of the lowered program to, by default the last one.

    The text has one device's instructions.
    """
    return str(lowered(program, function).compile().as_text())


def lowered(program: Program, function: str | None = None, on: Sequence[Any] | None = None) -> Any:
    """Return a function of the program as a `jax.stages.Lowered`, without data.

    on: devices whose first ones are used; None takes the present ones. Raises `Unavailable`.
    """
    module, mesh = _execute(generate(program), on)
    name = function or program.functions[-1].name
    form, kinds = FORMS[name], kinds_of(program, program.function(name))
    with jax.set_mesh(mesh):
        given = [structs(module, kind) for kind in kinds]
        if form.counts:
            given.append(jax.ShapeDtypeStruct((), jax.numpy.int32, sharding=jax.sharding.PartitionSpec()))
        return getattr(module, NAMES[name]).lower(*given)


def _execute(source: str, on: Sequence[Any] | None = None) -> tuple[ModuleType, Any]:
    """Return the module with its functions bound to a mesh, and the mesh; None for the module of a placement or several meshes.

    A bound function runs under `jax.grad` and `jax.jit`, where `jax.set_mesh` is not allowed.
    """
    import_jax()
    module = executed(source)
    if hasattr(module, "MESHES"):
        count = sum(prod(axes.values()) for axes in module.MESHES.values())
        module.bind(devices(count, "the meshes have", "mesh"))
        return module, None
    if not hasattr(module, "MESH"):
        module.bind(devices(module.DEVICES, "the placement has", "placement"))
        return module, None
    count = prod(module.MESH.values())
    mesh = module.make_mesh(devices(count) if on is None else on[:count])
    bound = source
    for text, replacement in BINDING.items():
        bound = bound.replace(text, replacement)
    placed = partial(jax.sharding.NamedSharding, mesh)
    return executed(bound, bound_mesh=mesh, bound_sharding=placed), mesh


BINDING = {
    "@jax.shard_map(": "@jax.shard_map(mesh=bound_mesh, ",
    "out_shardings=PARAMETERS": "out_shardings={name: bound_sharding(spec) for name, spec in PARAMETERS.items()}",
    "out_shardings=STATE": "out_shardings={name: bound_sharding(spec) for name, spec in STATE.items()}",
    "jax.device_put(array, specs[name])": "jax.device_put(array, bound_sharding(specs[name]))",
}
"""Text of a module that takes the mesh from its context -> text that takes the bound mesh."""


Prepare = Callable[[Any], Any]
"""Checks or changes the positional and the keyword arguments of a function."""


def _under(mesh: Any, function: Callable[..., Any], prepare: Prepare | None = None) -> Callable[..., Any]:
    """Return the function with the mesh set, and with its results waited for on devices of the CPU."""
    waits = mesh.size > 1 and mesh.devices.flat[0].platform == "cpu"

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call the function with its arguments on the mesh, and wait for its results if the devices share the host's cores."""
        if prepare is not None:
            args, kwargs = _moved(prepare((args, kwargs)), mesh)
        with _set(mesh):
            results = function(*args, **kwargs)
        if waits:
            leaves = (each for each in jax.tree.leaves(results) if isinstance(each, jax.Array))
            jax.block_until_ready([each for each in leaves if not isinstance(each, jax.core.Tracer)])
        return results

    if hasattr(function, "lower"):
        call.lower = _under(mesh, function.lower)  # type: ignore[attr-defined]
    return call


def _moved(arguments: Any, mesh: Any) -> Any:
    """Return arguments with the arrays of other devices moved to the mesh, whole on each of its devices."""
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def moved(x: Any) -> Any:
        if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer) or not x.committed:
            return x
        return x if x.sharding.device_set == whole.device_set else jax.device_put(x, whole)

    return jax.tree.map(moved, arguments)


def _not_donated(arguments: Any) -> Any:
    """Return arguments without donated arrays. Raises `ValueError`: their buffers hold other numbers by now."""
    arrays = (x for x in jax.tree.leaves(arguments) if isinstance(x, jax.Array))
    if any(_is_donated(x) for x in arrays if not isinstance(x, jax.core.Tracer)):
        raise ValueError(
            "this state or its parameters were given to `train_step` before, which donates them: go on with the state that the"
            " step returned, or keep a copy with jax.tree.map(jax.numpy.copy, state)"
        )
    return arguments


def _is_donated(x: Any) -> bool:
    """Return True if a step has taken an array, or a part of it.

    On a CPU, a step leaves parts that share memory with a NumPy array, and JAX then says that the array is not deleted.
    """
    if x.is_deleted() or next(iter(x.devices())).platform != "cpu":
        return bool(x.is_deleted())
    return any(part.data.is_deleted() for part in x.addressable_shards)


def _each_once(arguments: Any) -> Any:
    """Return arguments without donated arrays, and with a copy of each array that is there again: a step donates it once.

    Two arrays are the same if they share a buffer.
    """
    seen = set[int]()

    def once(x: Any) -> Any:
        """Return an array, or a copy of the array if an earlier argument has its buffer."""
        if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer):
            return x
        buffer = _buffer_of(x)
        is_known = buffer in seen
        seen.add(buffer)
        return jax.numpy.copy(x) if is_known else x

    return jax.tree.map(once, _not_donated(arguments))


def _buffer_of(x: Any) -> int:
    """Return the address of an array's first part on this process's devices, or a number of its own where there is no address."""
    try:
        address: int = x.addressable_data(0).unsafe_buffer_pointer()
    except (RuntimeError, ValueError, AttributeError):  # a device without addresses
        return id(x)
    return address


PREPARED: Mapping[str, Prepare] = {
    **dict.fromkeys((*NAMES.values(), "value_and_grad"), _not_donated),
    NAMES["step"]: _each_once,
}
"""Functions of a module -> the preparation of their arguments: on devices of the CPU, XLA would end the process."""


def _set(mesh: Any) -> Any:
    """Return a context that sets the mesh. Under `jax.grad` and `jax.jit` only its axes can be set."""
    try:
        return jax.set_mesh(mesh)
    except ValueError:
        return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def structs(
    module: ModuleType, kind: str, placed: Callable[[Any], Any] = lambda layout: layout
) -> dict[str, Any]:
    """Return the arrays of a kind without data: global shapes, dtypes and placements, by default on the mesh that is set."""
    layouts = module.LAYOUTS[kind]
    return {
        name: jax.ShapeDtypeStruct(
            tuple(sizes.values()), jax.numpy.dtype(dtype), sharding=placed(layouts[name])
        )
        for name, (dtype, sizes) in module.TYPES[kind].items()
    }
