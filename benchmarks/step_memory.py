"""Temporaries of `plan.step` on 8 virtual CPU devices, over those of `jax.jit` with the same shardings and donation.

Data parallelism splits the first axis of the inputs. ZeRO-1 also splits the optimizer's state, FSDP the parameters, too. Tensor
parallelism splits the axes that `step_models.py` names, or the last ones of large matrices.

    python -m benchmarks.step_memory [MODEL ...]     the table
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import attrs

import mtfc
from benchmarks.figures import Figure
from benchmarks.peer_shardings import for_small_arrays
from mtfc.compiler.cost.effects.memory import memory_on
from mtfc.compiler.cost.sizes import whole
from mtfc.compiler.passes.pipelines import default_pipeline
from mtfc.driver.compiled_step import XLA_FOR_CPUS
from mtfc.driver.jax_functions.plan import Plan

DEVICES = 8


def plans(name: str) -> Iterator[tuple[str, Plan]]:
    """Yield the plans of a step of `step_models.py` with their names. Their collectives are merged as those of large models."""
    for layout, plan in whole_plans(name):
        passes = tuple(map(for_small_arrays, default_pipeline("step")))
        yield layout, attrs.evolve(plan, case=attrs.evolve(plan.case, passes=passes))


def whole_plans(name: str) -> Iterator[tuple[str, Plan]]:
    from benchmarks.step_models import STEPS

    step = STEPS[name]()
    program = mtfc.from_jax(step.function, *step.args)
    leaves = [leaf for leaf in program.imported.inputs if leaf.constant is None]
    rules: dict[str, Any] = {
        leaf.dims[0][0].name: "data" for leaf in leaves if leaf.role == "input" and leaf.dims
    }
    everything: Any = {"*": "data"}
    mesh = {"data": DEVICES}
    yield "data", program.plan(rules, mesh)
    yield "ZeRO-1", program.plan({**rules, "optimizer": everything}, mesh)
    yield "FSDP", program.plan({**rules, "optimizer": everything, "params": everything}, mesh)
    split = {
        leaf.dims[axis][0].name: "model"
        for part, axis in step.tensor.items()
        for leaf in leaves
        if leaf.role == "parameter" and part in leaf.name and len(leaf.dims) > axis
    }
    if split:
        yield "tensor", program.plan({**rules, **split}, {"data": DEVICES // 2, "model": 2})


def compiled(plan: Any) -> tuple[Any, Any]:
    """Compile `plan.step`, and the function under `jax.jit` with the plan's shardings. Both are given the state."""
    import jax

    args, kwargs = plan.abstract_arguments
    with jax.sharding.set_mesh(plan.mesh):
        ours, theirs = (
            jax.jit(function, out_shardings=plan.out_shardings, donate_argnums=(0, 1)).lower(*args, **kwargs)
            for function in (plan.step, plan.function)
        )
        return ours.compile(), theirs.compile()


def temporaries(program: Any) -> int:
    return int(program.memory_analysis().temp_size_in_bytes)


def predicted(plan: Any) -> int:
    """Return the bytes of temporaries that the model of a CPU's memory expects."""
    step, mesh = plan.program.function("step"), plan.program.placed_on
    given = sum(argument.value.type.local_bytes(mesh) for argument in step.arguments)
    return int(whole(memory_on(step, mesh, XLA_FOR_CPUS).total) - given)


def figures(names: list[str] | None = None) -> Iterator[Figure]:
    from benchmarks.step_models import STEPS

    for name in names or STEPS:
        for layout, plan in plans(name):
            ours, theirs = map(temporaries, compiled(plan))
            note = f"{ours / 1e6:.2f} of {theirs / 1e6:.2f} MB, predicted {predicted(plan) / 1e6:.2f}"
            yield Figure(f"{name}, {layout}: {note}", ours / theirs, "x", 1.0)


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    for figure in figures(sys.argv[1:]):
        print(figure, flush=True)
