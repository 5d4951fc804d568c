"""Run the program of a known fault of XLA, under the rules that show the fault or under innocent ones.

The tests run this in a child process, which some faults end.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs


@attrs.frozen
class Shown:
    """The text of a Python module with a function `f` and a tuple `args` that show a fault.

    They show the fault under `rules` on `mesh`, and not under the rules of `innocent`.
    """

    program: str
    rules: Mapping[str, str]
    innocent: Mapping[str, str]
    mesh: Mapping[str, int] = attrs.field(factory=lambda: {"a": 4})


CONVOLUTION = """
numbers = "NHWC", "HWIO", "NHWC"
def loss(w, x):
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count={groups})
    return jnp.sum(y**2)
f = jax.grad(loss)
args = normal(3, 3, {inner}, 8), normal(4, 4, 4, 8)
"""

SHOWN: Mapping[str, Shown] = {
    "start of a slice": Shown(
        "f = lambda x, y, i: lax.dynamic_slice_in_dim(x, i, 8, 1) + y\nargs = normal(4, 16), normal(4, 8), np.int32(12)",
        {"y_1": "a"},
        {"batch": "a"},
    ),
    "start of an update": Shown(
        "f = lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 1)\nargs = normal(4, 8), normal(4, 1), np.int32(8)",
        {"x_1": "a"},
        {"batch": "a"},
    ),
    "NaN in a maximum": Shown("f = lambda x: jnp.max(x, 1)\nargs = (normal(4, 8).at[1, 2].set(jnp.nan),)", {"x_1": "a"},
     {"batch": "a"}),
    "NaN in the maximum of updates": Shown(
        "f = lambda x: jax.ops.segment_max(x, np.arange(8) % 2, 2)\nargs = (normal(8, 8).at[1, 2].set(jnp.nan),)",
        {"batch": "a"},
        {"x_1": "a"},
    ),
    "row of a whole array": Shown("f = lambda x, u: x.at[:-1].set(x[1:]).at[-1].set(u)\nargs = normal(16, 8), normal(8)",
     {"x_0": "a"}, {"batch": "a"}),
    "FFT over small parts": Shown("f = lambda x: jnp.fft.fft(x) + x\nargs = (normal(4, 4, 8).astype('complex64'),)",
     {"x_2": "a"}, {"batch": "a"}),
    "FFT of a gathered axis": Shown("f = lambda x: jnp.fft.fft2(x)\nargs = (normal(8, 8).astype('complex64'),)", {"x_1": "a"},
     {"batch": "a"}),
    "windows over pairs": Shown(
        "def larger(a, b):\n"
        "    return tuple(jnp.where(a[0] >= b[0], p, q) for p, q in zip(a, b))\n"
        "def f(x):\n"
        "    return lax.reduce_window((x, 2 * x), (-jnp.inf, 0.0), larger, (1, 2), (1, 2), 'VALID')\n"
        "args = (normal(4, 8),)",
        {"x_1": "a"},
        {"batch": "a"},
    ),
    "gradient of grouped filters": Shown(CONVOLUTION.format(groups=8, inner=1), {"batch": "a"}, {"channels": "a"},
     {"a": 4, "b": 2}),
    "split groups of batches": Shown(CONVOLUTION.format(groups=2, inner=4), {"channels_b": "a"}, {"batch": "a"}),
}  # fmt: skip
"""Name of a fault -> the program that shows it."""


def namespace() -> dict[str, Any]:
    """Return the names that the programs of faults use."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    def normal(*shape: int) -> Any:
        return jnp.asarray(np.random.default_rng(len(shape)).standard_normal(shape), "float32")

    return {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "normal": normal}


def plan_of(name: str, which: str) -> tuple[Any, Any]:
    """Return the plan of a fault's program under its rules or the innocent ones, and its arguments."""
    program, args = _imported(name)
    return program.plan(dict(getattr(SHOWN[name], which)), dict(SHOWN[name].mesh)), args


@cache
def _imported(name: str) -> tuple[Any, Any]:
    import mtfc

    names = namespace()
    exec(SHOWN[name].program, names)  # a program of our own table
    return mtfc.from_jax(names["f"], *names["args"]), names["args"]


def outcome(name: str, which: str) -> str:
    """Return what `plan.apply` gives on the devices."""
    import jax
    import numpy as np

    plan, args = plan_of(name, which)
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
