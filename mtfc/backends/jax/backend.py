"""From a lowered program to one JAX module that a person could have written, and that runs without mtfc.

What the IR calls one processor's program is the body of a `jax.shard_map`: arrays are shards, every
collective is written out, and JAX's own check of what is replicated stays on. The mesh is the one that the
caller sets with `jax.set_mesh`, so that importing a module needs no devices. Its public names are those that
`emitter.py` lists, and `make_mesh`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mtfc.backends.common.emitter import WIDTH, Dialect, Emitter
from mtfc.backends.common.forms import FORMS, NAMES
from mtfc.backends.common.loop_codegen import jax_loop
from mtfc.backends.common.module import (
    DTYPES,
    TABLES,
    dict_text,
    imports,
    initial_states,
    initial_value,
    is_wide,
    kinds_of,
    summary,
    tables,
    title,
    value_and_grad,
)
from mtfc.backends.common.prelude import definitions, prelude
from mtfc.backends.jax.convolution_fusion import fused
from mtfc.backends.jax.gradients import differentiable, differentiated
from mtfc.compiler.analysis.dot_operand_layout import is_turned, made
from mtfc.compiler.ir.core import Equation, Function, Program, Value, walk
from mtfc.compiler.ir.opdef import Code, Text
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.contraction import subscripts
from mtfc.compiler.ir.ops.creation import literal
from mtfc.compiler.ir.types import Axes, Mesh, TensorType

JAX = "0.10"
"""The oldest version of JAX that runs the modules; pyproject.toml requires it, too."""

HEADER = '''\
"""{title}

Written by mtfc. Every function runs on all devices of a mesh, which the caller sets:

    with jax.set_mesh(make_mesh()):
        params = init(seed=0)
        outputs = forward(params, shard(arrays, INPUTS))

Under `shard_map` an array is one device's shard and every collective is written out.
Needs JAX {jax} or later, and NumPy.
"""
'''

IMPORTS = (
    (r"\bmath\.", "import math"),
    (r"\bzlib\.", "import zlib"),
    (r"\bwraps\(", "from functools import partial, wraps"),
    (r"\bsignature\(", "from inspect import signature"),
    ("", ""),
    (r"\bjax\.", "import jax"),
    (r"\bjnp\.", "import jax.numpy as jnp"),
    (r"\bnp\.", "import numpy as np"),
    (r"\blax\.", "from jax import lax"),
    (r"\bAxisType\.", "from jax.sharding import AxisType"),
    (r"\bP\(", "from jax.sharding import PartitionSpec as P"),
)
"""What each import is needed for, in the order in which they stand."""

PLACING = '''\
def shard(arrays, specs):
    """Global arrays, each placed on the devices of the mesh as its spec says. Raises `ValueError`."""
    check_whole(arrays, specs)
    return {name: jax.device_put(array, specs[name]) for name, array in arrays.items()}


def unshard(arrays, specs):
    """The arrays that `specs` names, whole, as NumPy arrays."""
    return {name: np.asarray(arrays[name]) for name in specs}


def checked(*kinds):
    """Decorate a function to check its arguments, of these kinds, when it is traced. Raises `ValueError`."""

    def decorate(function):
        @wraps(function)
        def call(*arguments, **named):
            given = signature(function).bind(*arguments, **named).args
            for kind, arrays in zip(kinds, given):
                check(kind, {name: (x.dtype.name, x.shape) for name, x in entries(kind, arrays)})
            return function(*given)

        return call

    return decorate
'''

PRELUDE, RANDOM = ("common/checks.py", "jax/prelude.py"), ("common/random_numbers.py",)

DRAWING = "# From here on: random numbers, the same bits on any devices and on NumPy.\n"

RESERVED = frozenset({"jax", "jnp", "lax", "np", "P", *definitions(PRELUDE), *definitions(RANDOM)})
"""What a generated function uses of its module."""


def generate(program: Program) -> str:
    """The module's text. The program is lowered: it has a mesh, and its collectives are explicit."""
    mesh = program.placed_on
    sections = [tables(program, spec), _make_mesh(mesh), PLACING, *_initial(program)]
    sections += [_function(program, function) for function in program.functions]
    sections += value_and_grad(program)
    text = "\n".join(sections)
    sections += prelude(text, PRELUDE)
    drawn = [re.sub(r"\bnp\.", "jnp.", source) for source in prelude(text, RANDOM)]
    sections += [DRAWING, *drawn] if drawn else []
    if is_wide(program):
        sections.insert(0, 'jax.config.update("jax_enable_x64", True)\n')
    body = "\n\n".join(sections)
    return f"{HEADER.format(title=title(program), jax=JAX)}\n{imports(IMPORTS, body)}\n{body}"


def spec(type: TensorType) -> str:
    """The type's `PartitionSpec`: `P(None, "rows", ("cols", "planes"))`.

    Unsplit dimensions at the end are left out, as JAX does in its results: a step whose arguments are spelled
    otherwise would be compiled again for the results of the first.
    """
    last = max((i + 1 for i, axes in enumerate(type.splits) if axes), default=0)
    return f"P({', '.join(_axes_text(axes) for axes in type.splits[:last])})"


def _axes_text(axes: Axes) -> str:
    quoted = [f'"{axis}"' for axis in axes]
    return "None" if not axes else quoted[0] if len(axes) == 1 else f"({', '.join(quoted)})"


def _dtype(dtype: str) -> str:
    return "jnp.bool_" if dtype == "bool" else f"jnp.{DTYPES[dtype]}"


def _make_mesh(mesh: Mesh) -> str:
    return f'''\
def make_mesh(devices=None):
    """The mesh `{mesh.name}` over the given devices, or over JAX's first {mesh.devices}."""
    auto = (AxisType.Auto,) * len(MESH)
    return jax.make_mesh(tuple(MESH.values()), tuple(MESH), auto, devices=devices)
'''


def _initial(program: Program) -> list[str]:
    """Functions that make what a step updates, each device only its part of it."""
    entries = [(p.name, initial_value(p, "jnp.full", _dtype(p.type.dtype))) for p in program.parameters]
    made = [_maker("init(seed=0)", "PARAMETERS", "Initial parameters.", entries)]
    states = initial_states(program, "jnp", _dtype)
    if states:
        made.append(_maker("init_state()", "STATE", "The optimizer's state before the first step.", states))
    return made


def _maker(signature: str, specs: str, doc: str, entries: list[tuple[str, str]]) -> str:
    return f'''\
@partial(jax.jit, out_shardings={specs})
def {signature}:
    """{doc}"""
    return {dict_text(entries, indent=4)}
'''


class ReplicationTracker:
    """Makes JAX's account of the axes along which each value varies agree with the types.

    JAX derives it from operands and from `lax.axis_index`. That a tensor is held in parts although nothing that
    it is made of is (ones, say, or something broadcast) it cannot know, and is told.
    """

    def __init__(self, mesh: Mesh, function: Function) -> None:
        self.mesh = mesh
        self.equations = {value: eqn for eqn in walk(function.body) for value in eqn.results}
        self.indexed: set[str] = set()

    def index(self, axes: Axes, rank: int) -> str:
        """This device's number along the axes; the value that it is used for varies along them."""
        self.indexed.update(axes)
        return f"lax.axis_index({_axes_text(axes)})"

    def after(self, value: Value, name: str) -> str:
        """What tells JAX of the axes that it does not know of, if there are any."""
        eqn = self.equations.get(value)
        if eqn is None or "axes" in eqn.attrs:  # of arguments and what collectives give JAX knows
            return ""
        known = {axis for operand in eqn.operands for axis in operand.type.varying(self.mesh)} | self.indexed
        self.indexed.clear()
        missing = tuple(axis for axis in value.type.varying(self.mesh) if axis not in known)
        return f'{name} = lax.pcast({name}, {_axes_text(missing)}, to="varying")' if missing else ""


def dialect(mesh: Mesh, function: Function, texts: Mapping[Value, Text]) -> Dialect:
    """`texts`: those of equations, by result, that are not written as their op is."""
    tracker = ReplicationTracker(mesh, function)
    return Dialect(
        mesh=mesh,
        column=lambda eqn: texts.get(eqn.results[0]) or _product(eqn, mesh) or OPS[eqn.op].jax,
        lead=lambda type: (),
        index=tracker.index,
        dtype=_dtype,
        literal=lambda value, dtype: literal(value),
        after=tracker.after,
        loop=jax_loop,
        step="jnp.int32(step)",
        reserved=RESERVED,
    )


def _product(eqn: Equation, mesh: Mesh) -> Text | None:
    """How a product is written that is made in another order than its result's: see `analysis/dot_operand_layout.py`."""
    if is_turned(eqn, mesh):
        return lambda code: f"turned({_ordered(code, eqn.result.type.names[::-1])})"
    order = made(eqn, mesh)
    if order is None:
        return None
    places = tuple(order.index(name) for name in eqn.result.type.names)
    return lambda code: f"{_ordered(code, order)}.transpose{places}"


def _ordered(code: Code, order: tuple[str, ...]) -> str:
    """A product with its dimensions in another order."""
    factors, result = subscripts(code.eqn).split("->")
    letters = dict(zip(code.eqn.result.type.names, result, strict=True))
    return f'jnp.einsum("{factors}->{"".join(letters[name] for name in order)}", {", ".join(code.args)})'


def _function(program: Program, function: Function) -> str:
    """The definition; it runs as one program on every device of the mesh."""
    head = _decorators(program, function)
    function, texts = _texts(function, program.placed_on)
    emitter = Emitter(dialect(program.placed_on, function, texts))
    return head + emitter.function(function, NAMES[function.name], summary(function))


def _decorators(program: Program, function: Function) -> str:
    form, kinds = FORMS[function.name], kinds_of(program, function)
    taken = [*(TABLES[kind] for kind in kinds), *(["P()"] if form.counts else [])]
    given = [f'OUTPUTS["{form.name}"]'] * form.outputs
    given += ["STATE" if role == "state" else "PARAMETERS" for role in form.gives]
    specs = f"in_specs={_tuple(taken)}, out_specs={given[0] if len(given) == 1 else _tuple(given)}"
    line = f"@jax.shard_map({specs})"
    mapped = line if len(line) <= WIDTH else f"@jax.shard_map(\n    {specs}\n)"
    donated = '@partial(jax.jit, donate_argnames=("params", "state"))'
    checks = ", ".join(f'"{kind}"' for kind in kinds)
    return f"{donated if function.name == 'step' else '@jax.jit'}\n@checked({checks})\n{mapped}\n"


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def _texts(function: Function, mesh: Mesh) -> tuple[Function, Mapping[Value, Text]]:
    """Return the function to write, and the texts of equations that differ from the text of their op."""
    if function.name != "forward":
        return fused(function, mesh)
    passed = differentiated(function)  # users may differentiate `forward`, and no other function
    function, texts = fused(function, mesh, passed)
    return function, {**differentiable(function, passed), **texts}
