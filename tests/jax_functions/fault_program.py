"""Run the program of a known fault of XLA, under the rules that show the fault or under innocent ones: `python FILE NAME WHICH`.

Print "right", "wrong", or the class of an error. The tests run this in a child process, which some faults end.
"""

from __future__ import annotations

import sys
from typing import Any


def namespace() -> dict[str, Any]:
    """Return the names that the programs of faults use."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    def normal(*shape: int) -> Any:
        return jnp.asarray(np.random.default_rng(len(shape)).standard_normal(shape), "float32")

    return {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "normal": normal}


def plan_of(fault: Any, rules: Any) -> tuple[Any, Any]:
    """Return the plan of a fault's program under some rules, and its arguments."""
    import mtfc

    names = namespace()
    exec(fault.program, names)  # a program of our own table
    program = mtfc.from_jax(names["f"], *names["args"])
    return program.plan(dict(rules), dict(fault.mesh)), names["args"]


def outcome(fault: Any, rules: Any) -> str:
    """Return what `plan.apply` gives on the devices."""
    import jax
    import numpy as np

    plan, args = plan_of(fault, rules)
    plan.__dict__["known_faults"] = ()  # `apply` refuses what ends the process
    function = plan.function
    expected = jax.jit(function)(*args)
    with jax.sharding.set_mesh(plan.mesh):
        applied = jax.jit(plan.apply(), in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)
        try:
            found = jax.block_until_ready(applied(*args))
        except jax.errors.JaxRuntimeError:
            return "error"
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    same = all(np.allclose(x, y, rtol=1e-3, atol=1e-4, equal_nan=True) for x, y in pairs)
    return "right" if same else "wrong"


def main() -> None:
    from mtfc.driver.jax_functions.xla_faults import FAULTS

    name, which = sys.argv[1:]
    (fault,) = (each for each in FAULTS if each.name == name)
    print(outcome(fault, getattr(fault, which)))


if __name__ == "__main__":
    main()
