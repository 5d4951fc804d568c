"""Models of several libraries on 8 virtual devices: the bytes and the memory of plans beside shardings by hand.

XLA compiles each function under the shardings of plans that a search finds, under data parallelism, and under FSDP, as one
writes them by hand: each array of the model and of the optimizer's state is split along its largest axis. Beside FSDP stands
the best plan that needs no more memory. google-parallax chooses shardings of its own, where it is installed and takes the model.
The machine of the search is as slow as the models are small, so that they are worth splitting.

Bytes are those that leave a device. XLA for CPUs makes no reduce-scatters: an all-reduce of a gradient stands in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from math import gcd
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

import mtfc
from benchmarks.figures import Figure
from benchmarks.keras_models import keras_models
from mtfc.backends.hlo import wire_bytes
from mtfc.compiler.ir.types import EVERY, Layout, Mesh, Rules
from mtfc.compiler.passes.partition.combine_collectives import CombineCollectives
from mtfc.compiler.passes.partition.place_reductions import PlaceReductions
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipelines import default_pipeline
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.jax_functions.plan import Plan
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.frontend.jaxpr.importing import Imported, Leaf, returned_arguments

MACHINE = """
hardware small = {{
  device: {{
    flops: {{ f32: 10e9 }}
    memory: {memory}
    bandwidth: 10e9
  }}
  link wires: {{ kind: switch, bandwidth: 1e9, latency: 0 }}
}}
"""

DEVICES = 8

SECONDS = 10
"""The seconds of a search."""

BUCKET = 1 << 10
"""The bytes of collectives that `plan.step` combines: as few as the models have. Combined arrays are in memory together.

For the same reason all sums of loops are completed inside, as those of large models are.
"""

BATCH = {"haiku_lstm": 1}
"""Model -> the axis of its inputs that is the batch, if it is not the first one."""


@attrs.frozen
class Compiled:
    """A compiled function: the bytes that leave a device, all bytes that XLA reserves there, and those of temporary arrays."""

    sent: float
    memory: int
    temporaries: int


def figures() -> Iterator[Figure]:
    from tests.jax_functions.models import MODELS

    taken = 0
    models = {**MODELS, **(keras_models() if find_spec("keras") else {})}
    for name, model in models.items():
        function, args = model()
        program = mtfc.from_jax(function, *args)
        batch = BATCH.get(name, 0)
        best = _searched(program, 2**30, program.imported.main.name == "step")
        by_hand = _by_hand(program, batch, split=False)
        yield from _beside(name, best, "data parallelism", by_hand)
        if (lean := _lean(program, batch)) is not None:
            yield from _beside(name, lean, "FSDP", _by_hand(program, batch, split=True))
        if find_spec("parallax") and (other := _parallax(program, args)) is not None:
            taken += 1
            yield from _beside(name, best, "google-parallax", other)
    if find_spec("parallax"):
        yield Figure("models that google-parallax takes", taken, f"of {len(models)}")


def _beside(name: str, plan: Plan, other: str, by_hand: Compiled) -> Iterator[Figure]:
    """Yield what a plan sends, over what shardings by hand send: at most 1 for equal memory."""
    applied, step = _applied(plan), _step(plan)
    note = " (has splits that no PartitionSpec says)" if plan.unsaid else ""
    yield Figure(f"{name} beside {other}: bytes that plan.apply sends{note}", applied.sent, "B")
    for road, found in (("plan.apply", applied), ("plan.step", step)):
        ratio = found.memory / by_hand.memory
        limit = 1.0 if ratio > 0.99 else None
        value = found.sent / by_hand.sent if by_hand.sent else 1.0 + found.sent
        yield Figure(f"    {road} over {other}, with {ratio:.2f} of the memory", value, "x", limit)
    if applied.sent:
        yield Figure("    plan.step over plan.apply, bytes", step.sent / applied.sent, "x", 1.0)
    yield Figure(
        "    plan.step over plan.apply, temporaries", step.temporaries / applied.temporaries, "x", 1.0
    )


def _searched(program: ImportedProgram, memory: int, storage: bool) -> Plan:
    with TemporaryDirectory() as folder:
        path = Path(folder, "small.mtf")
        path.write_text(MACHINE.format(memory=memory))
        plan = program.search(DEVICES, str(path), budget=SECONDS, storage=storage)
    passes = tuple(map(for_small_arrays, default_pipeline("step")))
    return attrs.evolve(plan, case=attrs.evolve(plan.case, passes=passes))


def for_small_arrays(each: Pass) -> Pass:
    """Return a pass of a pipeline with limits as small as the models are."""
    if isinstance(each, CombineCollectives):
        return attrs.evolve(each, max_bytes=BUCKET)
    return attrs.evolve(each, in_loops=1) if isinstance(each, PlaceReductions) else each


def _lean(program: ImportedProgram, batch: int) -> Plan | None:
    """Return the best plan that needs no more memory than FSDP, if a search finds one."""
    from mtfc.compiler.search.found import NothingFits

    axes = ("data",)
    dims = {leaf.dims[batch][0].name: axes for leaf in _inputs(program) if _is_split(leaf, batch, DEVICES)}
    stored = Rules(((EVERY, axes),))
    layout = Layout("fsdp", Rules(tuple(dims.items())), params=stored, optimizer=stored)
    fsdp = Plan(program.imported, LayoutOnMesh(Mesh("mesh", (("data", DEVICES),)), layout), program.function)
    try:
        return _searched(program, fsdp.memory, storage=True)
    except NothingFits:
        return None


def _inputs(program: ImportedProgram) -> list[Leaf]:
    return [leaf for leaf in _arguments(program) if leaf.role == "input"]


def _arguments(program: ImportedProgram) -> list[Leaf]:
    return [leaf for leaf in program.imported.inputs if leaf.constant is None]


def _is_split(leaf: Leaf, batch: int, devices: int) -> bool:
    return len(leaf.user_shape) > batch and leaf.user_shape[batch] % devices == 0 and bool(leaf.dims[batch])


def _by_hand(program: ImportedProgram, batch: int, split: bool) -> Compiled:
    """Compile a function with a split batch, on as many devices as divide it. split: split the model, too, over all devices."""
    import jax
    from jax.sharding import NamedSharding

    spec_of: Any = jax.sharding.PartitionSpec
    sizes = [leaf.user_shape[batch] for leaf in _inputs(program) if len(leaf.user_shape) > batch]
    parts = gcd(DEVICES, *sizes)
    automatic = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((parts, DEVICES // parts), ("data", "rest"), automatic)

    def spec(leaf: Leaf) -> Any:
        if leaf.role == "input":
            return spec_of(*[None] * batch, "data") if _is_split(leaf, batch, parts) else spec_of()
        fitting = [i for i, size in enumerate(leaf.user_shape) if size % DEVICES == 0]
        if not split or not fitting:
            return spec_of()
        return spec_of(*[None] * max(fitting, key=lambda i: leaf.user_shape[i]), ("data", "rest"))

    return _jitted(program, mesh, [NamedSharding(mesh, spec(leaf)) for leaf in _arguments(program)])


def _jitted(program: ImportedProgram, mesh: Any, shardings: Sequence[Any]) -> Compiled:
    """Compile a function of arguments with some shardings. Results with the tree of an argument are placed as it is."""
    import jax

    flat = program.imported.flat
    whole = jax.tree.leaves(program.plan({}, {"one": 1}).abstract_arguments)
    make: Any = jax.ShapeDtypeStruct
    leaves = [make(x.shape, x.dtype, sharding=each) for x, each in zip(whole, shardings, strict=True)]
    args, kwargs = jax.tree.unflatten(flat.in_tree, leaves)
    trees = {
        jax.tree.structure(a): jax.tree.map(lambda x: x.sharding, a)
        for a in reversed(args)
        if len(jax.tree.leaves(a)) > 1
    }

    def placed(results: Any) -> Any:
        if (tree := jax.tree.structure(results)) in trees:
            return trees[tree]
        return tuple(map(placed, results)) if type(results) is tuple else None

    results = jax.eval_shape(program.function, *args, **kwargs)
    with jax.sharding.set_mesh(mesh):
        jitted = jax.jit(
            program.function, out_shardings=placed(results), donate_argnums=_replaced(program.imported)
        )
        return _compiled(jitted.lower(*args, **kwargs))


def _replaced(imported: Imported) -> tuple[int, ...]:
    """Return the arguments that a training step returns anew, which callers donate."""
    returned = returned_arguments(imported.flat) if imported.main.name == "step" else {}
    return tuple(argument for argument in returned if isinstance(argument, int))


def _parallax(program: ImportedProgram, args: Sequence[Any]) -> Compiled | None:
    """Compile a function under the shardings of google-parallax; None if that cannot take the function."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    get_shardings = import_module("parallax.sharding.auto_shard").get_shardings
    mesh = jax.make_mesh((DEVICES // 2, 2), ("data", "model"), (jax.sharding.AxisType.Auto,) * 2)
    function: Callable[..., Any] = getattr(program.function, "__wrapped__", program.function)
    try:
        with jax.sharding.set_mesh(mesh):
            found = jax.tree.leaves(
                get_shardings(function, *args)[0], is_leaf=lambda x: isinstance(x, PartitionSpec)
            )
        return _jitted(program, mesh, [NamedSharding(mesh, spec) for spec in found])
    except Exception:  # it fails by whatever its code runs into
        return None


def _applied(plan: Plan) -> Compiled:
    import jax

    args, kwargs = plan.abstract_arguments
    with jax.sharding.set_mesh(plan.mesh):
        jitted = jax.jit(
            plan.apply(), out_shardings=plan.out_shardings, donate_argnums=_replaced(plan.imported)
        )
        return _compiled(jitted.lower(*args, **kwargs))


def _step(plan: Plan) -> Compiled:
    import jax

    with jax.sharding.set_mesh(plan.mesh):
        return _compiled(jax.jit(plan.packed_step, donate_argnums=0).lower(plan.abstract_packed))


def _compiled(lowered: Any) -> Compiled:
    program = lowered.compile()
    sizes = program.memory_analysis()
    kept = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    temporaries = sizes.temp_size_in_bytes
    return Compiled(wire_bytes(program.as_text()), kept + temporaries, temporaries)
