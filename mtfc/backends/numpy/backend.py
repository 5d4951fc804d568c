"""From a lowered program to one NumPy module that simulates every processor of its mesh, and runs without mtfc.

What such a module is made of besides the program's own functions stands in `prelude.py` and
`random_numbers.py`, as source that is checked and tested like any other: those functions that are used are copied.
The module's public names are those that `emitter.py` lists, and `SENT`, which counts what is communicated.
"""

from __future__ import annotations

from types import ModuleType

from mtfc.backends.common.emitter import Dialect, Emitter, layout_text
from mtfc.backends.common.forms import FORMS, NAMES
from mtfc.backends.common.loop_codegen import numpy_loop
from mtfc.backends.common.module import (
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
from mtfc.compiler.ir.core import Function, Program, Value
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.ops.creation import literal
from mtfc.compiler.ir.types import Axes, Mesh, TensorType

DTYPES = {
    "f32": "np.float32",
    "bf16": "bfloat16",
    "f16": "np.float16",
    "f64": "np.float64",
    "i32": "np.int32",
    "u32": "np.uint32",
    "bool": "np.bool_",
}

HEADER = '''\
"""{title}

Written by mtfc. Simulates every processor of the mesh:

    params = init(seed=0)
    outputs = forward(params, shard(arrays, INPUTS))
    results = unshard(outputs, OUTPUTS["forward"])

An array has one axis for each axis of the mesh, in front of its own: of length 1 where all processors along
it hold the same. `SENT` counts what one processor puts into collectives.
"""
'''

IMPORTS = (
    (r"\bmath\.", "import math"),
    (r"\bre\.", "import re"),
    (r"\bzlib\.", "import zlib"),
    ("", ""),
    (r"\bnp\.", "import numpy as np"),
    (r"\bbfloat16\b", "from ml_dtypes import bfloat16"),
)
"""What each import is needed for, in the order in which they stand."""

PRELUDE = ("common/checks.py", "numpy/prelude.py", "common/random_numbers.py")

PUBLIC = ("shard", "unshard")
"""What every module has of the prelude, used or not."""

SIMULATION = "# From here on: what all processors do, each at its place in the axes of the mesh.\n"


def generate(program: Program, checked: bool = False) -> str:
    """The module's text. The program is lowered: it has a mesh, and its collectives are explicit.

    A checked module computes everything on every processor, replicated or not, and raises `AssertionError`
    where processors that should hold the same do not.
    """
    layouts = f"{tables(program, layout_text)}\n{_narrowed(program)}\n{definitions(PRELUDE)['SENT']}"
    speech = dialect(program.placed_on, checked)
    functions = [
        Emitter(speech).function(f, NAMES[f.name], summary(f), _checks(program, f)) for f in program.functions
    ]
    sections = [layouts, *_initial(program), *functions, *value_and_grad(program)]
    sections += [SIMULATION, *prelude("\n".join(sections), PRELUDE, PUBLIC)]
    body = "\n\n".join(sections)
    return f"{HEADER.format(title=title(program))}\n{imports(IMPORTS, body)}\n{body}"


def _checks(program: Program, function: Function) -> list[str]:
    """Statements that check the arguments."""
    taken = zip(kinds_of(program, function), FORMS[function.name].takes.values(), strict=True)
    return [f'check("{kind}", whole("{kind}", {name}))' for kind, name in taken]


def load(source: str) -> ModuleType:
    """The module that `source` defines."""
    module = ModuleType("program")
    exec(compile(source, "<generated>", "exec"), module.__dict__)
    return module


def dialect(mesh: Mesh, checked: bool) -> Dialect:
    """`checked`: every array has the full length along every axis of the mesh, and is looked at once defined."""
    sizes = tuple(size for _, size in mesh.axes)

    def lead(type: TensorType) -> tuple[int, ...]:
        varying = type.varying(mesh)
        return sizes if checked else tuple(size if name in varying else 1 for name, size in mesh.axes)

    def look(value: Value, name: str) -> str:
        varying = value.type.varying(mesh)
        same = tuple(axis for axis in mesh.names if axis not in varying)
        return f'{name} = everywhere("{value.name}", {name}, {_axes_text(same)})' if checked else ""

    return Dialect(
        mesh=mesh,
        column=lambda eqn: OPS[eqn.op].numpy,
        lead=lead,
        index=lambda axes, rank: f"axis_index({_axes_text(axes)}, {rank})",
        dtype=lambda dtype: DTYPES[dtype],
        literal=literal_text,
        after=look,
        loop=lambda loop: numpy_loop(loop, len(sizes)),
        step=f"np.full({(1,) * len(sizes)}, step, np.int32)",
        reserved=frozenset({"np", "bfloat16", *definitions(PRELUDE)}),
    )


def literal_text(value: object, dtype: str) -> str:
    """A number that keeps the dtype of arrays: with a Python float NumPy would compute bf16 in f32."""
    if dtype == "bf16" and isinstance(value, float):
        return literal(int(value)) if value.is_integer() else f"bfloat16({literal(value)})"
    return literal(value)


def _axes_text(axes: Axes) -> str:
    return str(axes).replace("'", '"')


def _narrowed(program: Program) -> str:
    """What becomes of 64-bit numbers that come in; f64 stays where the program computes in it."""
    floats = "" if is_wide(program) else '"float64": np.float32, '
    return f'NARROWED = {{{floats}"int64": np.int32, "uint64": np.uint32}}\n'


def _initial(program: Program) -> list[str]:
    entries = [(p.name, initial_value(p, "np.full", DTYPES[p.type.dtype])) for p in program.parameters]
    made = [_maker("init(seed=0)", "PARAMETERS", "Initial parameters.", entries)]
    states = initial_states(program, "np", DTYPES.__getitem__)
    if states:
        made.append(_maker("init_state()", "STATE", "The optimizer's state before the first step.", states))
    return made


def _maker(signature: str, layouts: str, doc: str, entries: list[tuple[str, str]]) -> str:
    return f'def {signature}:\n    """{doc}"""\n    return shard({dict_text(entries, indent=4)}, {layouts})\n'
