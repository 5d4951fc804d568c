"""`jax.grad` of an emitted `forward`, in the way a user of a module calls it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import FLOATS
from tests.harness import Arrays, jax_module


def minimized(program: Program) -> list[str]:
    """Return the outputs whose sum is differentiated: the loss, or without training all floating-point outputs."""
    if program.training is not None:
        return [program.training.minimize]
    return [o.name for o in program.function("forward").outputs if o.value.type.dtype in FLOATS]


def gradients_by_jax(placed: Program, arrays: Arrays) -> Arrays:
    """Return gradients of float inputs and parameters, as `d_<name>`, by compiled `jax.grad` of the module's `forward`.

    `placed` is a lowered program, and `arrays` are global.
    """
    module, forward = jax_module(placed), placed.function("forward")
    names = {a.value.name for a in forward.arguments if a.value.type.dtype in FLOATS}
    params = module.shard({name: arrays[name] for name in module.PARAMETERS}, module.PARAMETERS)
    inputs = module.shard({name: arrays[name] for name in module.INPUTS}, module.INPUTS)

    def objective(varying: dict[str, Any]) -> Any:
        given = [{**part, **{k: v for k, v in varying.items() if k in part}} for part in (params, inputs)]
        outputs = module.forward(*given)
        return sum((outputs[name].sum() for name in minimized(placed)), jnp.zeros(()))

    found = jax.jit(jax.grad(objective))(
        {name: x for name, x in {**params, **inputs}.items() if name in names}
    )
    return {f"d_{name}": np.asarray(x) for name, x in found.items()}
