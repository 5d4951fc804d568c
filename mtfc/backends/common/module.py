"""The parts of a generated module beside its functions: a title, imports, tables of layouts, initial values."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import prod
from types import CodeType, ModuleType
from typing import Any

from mtfc.backends.common.emitter import FORMS, NAMES, WIDTH
from mtfc.compiler.ir.core import Function, Parameter, Program, walk
from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.ops.creation import literal
from mtfc.compiler.ir.printer import layout_summary
from mtfc.compiler.ir.types import ARRAY_DTYPES, TensorType

KINDS = {"params": "parameter", "state": "state", "inputs": "input"}
"""The dicts that functions take -> the role of the values in the dict."""

TABLES = {"params": "PARAMETERS", "state": "STATE", "inputs": "INPUTS", "batches": "BATCHES"}
"""Kind of arguments -> name of the table of their layouts."""


def title(program: Program) -> str:
    """Return the module's title: the model, the mesh and the layout."""
    mesh = program.placed_on
    layout = f" under layout {layout_summary(program.layout)}" if program.layout else ""
    return f"{program.name} on mesh {mesh.name} = [{mesh.axes_text}]{layout}."


def imports(table: Iterable[tuple[str, str]], body: str) -> str:
    """Return the imports of `table` that `body` needs. Each row is the start of a word to look for in the body, and an import."""
    rows = [row for row in table if row[0] in body]  # which patterns would find far more slowly
    needed = (line for start, line in rows if not start or re.search(rf"\b{re.escape(start)}", body))
    return "\n".join(needed) + "\n"


def executed(source: str, **names: Any) -> ModuleType:
    """Return the module that `source` defines, beside the given names.

    Functions are compiled one by one: many modules have the same functions of the prelude.
    """
    module = ModuleType("program")
    module.__dict__.update(names)
    for name, part in parts(source):
        exec(_compiled(part, name), module.__dict__)
    return module


def parts(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name of a file that stands for each function in tracebacks, such as `<generated train_step>`, and its text."""
    for part in re.split(r"\n\n\n(?=def |@)", source):
        defined = re.search(r"^def (\w+)", part, re.MULTILINE)
        yield f"<generated {defined[1]}>" if defined else "<generated>", part


@lru_cache(maxsize=1000)
def _compiled(part: str, file: str) -> CodeType:
    return compile(part, file, "exec")


def arguments(program: Program, role: str) -> dict[str, TensorType]:
    """Return every argument of a role, of any function, with its type in the first function that has it."""
    found = (a.value for f in reversed(program.functions) for a in f.arguments if a.role == role)
    return {value.name: value.type for value in found}


STACKED = ("step", "step_gradients")
"""The functions that take several micro-batches, if a step has some."""


def stacked_inputs(program: Program) -> dict[str, TensorType]:
    """Return the stacked inputs of a step that takes several micro-batches; nothing if it takes the inputs of `forward`."""
    if program.training is None or program.training.accumulate == 1 or not program.has_function("step"):
        return {}
    step = program.function("step")
    return {a.value.name: a.value.type for a in step.arguments if a.role == "input"}


def is_wide(program: Program) -> bool:
    """Return True if the program computes in f64."""
    arguments = (a.value for f in program.functions for a in f.arguments)
    defined = (v for f in program.functions for eqn in walk(f.body) for v in eqn.results)
    return any(value.type.dtype == "f64" for value in (*arguments, *defined))


def summary(function: Function) -> str:
    """Return a function's docstring."""
    if function.name == "clip_gradients":
        return "Scale the gradients so that their joint norm is at most the limit that the file gives."
    if function.name == "averaged":
        return "Return the params with their averages, for `forward`."
    also = {"parameter": "params", "state": "state"}
    groups = FORMS[function.name].gives
    more = ", and the new params and state" if also.keys() == groups.keys() else ""
    more = ", and the gradients of params" if "gradients" in groups.values() else more
    return f"Compute {', '.join(output.name for output in function.handed_out)}{more}."


def value_and_grad(program: Program, zeros: str) -> list[str]:
    """Return the function that computes the loss and its gradients, as `jax.value_and_grad` of the loss would.

    The list is empty if the program has no functions of gradients. `accumulate` and `clip` are arguments if the file asks for
    them, and `with_state` if the model has state. `zeros` is a function that makes zeros like an array.
    """
    if not program.has_function("batch_gradients") or program.training is None:
        return []
    loss, states = program.training.minimize, [p.name for p in program.parameters if p.is_state]
    accumulates, clips = (program.has_function(name) for name in ("step_gradients", "clip_gradients"))
    options = {
        "accumulate": accumulates
        and "the inputs are BATCHES, as in `train_step`; the gradients are their mean.",
        "clip": clips and "scale the gradients as `train_step` does.",
        "step": "the number of the step, for random draws and schedules.",
        "with_state": states and "the first result is (loss, params), the params with the model's new state.",
    }
    texts = {name: text for name, text in options.items() if text}
    named = [f"{name}=False" for name in texts if name != "step"]
    chosen = "(step_gradients if accumulate else batch_gradients)" if accumulates else "batch_gradients"
    gradients = "clip_gradients(gradients) if clip else gradients" if clips else "gradients"
    lines = [
        f"def value_and_grad({', '.join(['params', 'inputs', 'step=0', *['*'][: len(named)], *named])}):",
        f'    """Compute {loss}, and the gradients of params, placed like the params.',
        "",
        *(f"    {name}: {text}" for name, text in texts.items()),
        '    """',
        f"    outputs, gradients = {chosen}(params, inputs, step)",
    ]
    lines += _new_state(loss, gradients, zeros) if states else [f'    return outputs["{loss}"], {gradients}']
    names = "".join(f'    "{name}",\n' for name in states)
    table = [f"MODEL_STATE = (\n{names})\n"] * bool(states)
    return [*table, "\n".join(lines) + "\n"]


def _new_state(loss: str, gradients: str, zeros: str) -> list[str]:
    """Return the statements that tell new states from gradients: a state has a gradient of zeros."""
    return [
        "    new = {name: gradients[name] for name in MODEL_STATE}",
        f"    gradients = {{**gradients, **{{name: {zeros}(params[name]) for name in MODEL_STATE}}}}",
        f'    loss = outputs["{loss}"]',
        f"    return (loss, {{**params, **new}}) if with_state else loss, {gradients}",
    ]


def tables(program: Program, layout: Callable[[TensorType], str]) -> str:
    """Return `MESH`, the tables of layouts, and `TYPES`. `layout` gives the text of one entry."""
    return "".join([*layout_tables(program, layout), "}\n\n", type_tables(program)])


def layout_tables(program: Program, layout: Callable[[TensorType], str]) -> list[str]:
    """Return `MESH` and the tables of layouts, without the brace at the end."""
    sizes = ", ".join(f'"{name}": {size}' for name, size in program.placed_on.axes)
    head = f"MESH = {{{sizes}}}\n\n# How arrays are split over the mesh, dimension by dimension.\n"
    entries = argument_tables(program, lambda _, __, type: f"{layout(type)},  # {_sizes(type)}")
    outputs = (
        (NAMES[function.name], [(each.name, layout(each.value.type)) for each in function.handed_out])
        for function in program.functions
    )
    return [head, *entries, outputs_table(outputs)]


def _types_by_kind(program: Program) -> dict[str, dict[str, TensorType]]:
    """Return the arguments of each kind with their types; `batches` if a step takes several micro-batches."""
    batches = stacked_inputs(program)
    kinds = {kind: arguments(program, role) for kind, role in KINDS.items()}
    return {**kinds, **({"batches": batches} if batches else {})}


def argument_tables(program: Program, entry: Callable[[str, str, TensorType], str]) -> Iterator[str]:
    """Yield the tables of arguments. `entry` gives the text of one entry from its table, its name and its type."""
    for kind, types in _types_by_kind(program).items():
        table = TABLES[kind]
        found = table_rows((name, entry(table, name, type)) for name, type in types.items())
        rows = "".join(f"    {row}\n" for row in found)
        yield f"{table} = {{\n{rows}}}\n" if rows else f"{table} = {{}}\n"


def outputs_table(functions: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> str:
    """Return the table of the outputs of functions, without the brace at the end."""
    rows = (f'    "{name}": {dict_text(entries, indent=4)},\n' for name, entries in functions)
    return "".join(["OUTPUTS = {\n", *rows])


def type_tables(program: Program) -> str:
    """Return the tables that arguments are checked against."""
    kinds = _types_by_kind(program)
    lines = ["# Dtype and sizes of whole arrays; every function checks its arguments.\n", "TYPES = {\n"]
    for kind, types in kinds.items():
        entries = ((name, _type_text(type)) for name, type in types.items())
        lines.append(f'    "{kind}": {dict_text(entries, indent=4)},\n')
    layouts = ((kind, TABLES[kind]) for kind in kinds)
    return "".join([*lines, "}\n", f"LAYOUTS = {dict_text(layouts, indent=0)}\n"])


def _type_text(type: TensorType) -> str:
    """Return the text of a type: `("float32", {"batch": 64, "io": 128})`."""
    sizes = ", ".join(f'"{dim.name}": {dim.size}' for dim in type.dims)
    return f'("{ARRAY_DTYPES[type.dtype]}", {{{sizes}}})'


def kinds_of(program: Program, function: Function) -> list[str]:
    """Return the kinds in `TYPES` of a function's arguments, in the order of its signature."""
    stacked = function.name in STACKED and stacked_inputs(program)
    kinds = {"parameter": "params", "state": "state", "input": "batches" if stacked else "inputs"}
    return [kinds[role] for role in FORMS[function.name].takes]


def _sizes(type: TensorType) -> str:
    return f"{type.dtype}[{', '.join(f'{dim.name}: {dim.size}' for dim in type.dims)}]"


def table_rows(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the rows of a dict: `"w": value`. Equal values whose keys differ only in numbers share a row if all numbers occur."""
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for key, value in items:
        parts = re.split(r"(?<!\d)(0|[1-9]\d*)(?!\d)", key)
        groups.setdefault((value, *parts[::2]), []).append(parts[1::2])
    for (value, *words), keys in groups.items():
        choices = [list(dict.fromkeys(each)) for each in zip(*keys, strict=True)]
        if len(keys) < 3 or prod(map(len, choices)) != len(keys):
            yield from (f'"{"".join(sum(zip(words, [*key, ""], strict=True), ()))}": {value}' for key in keys)
            continue
        names = dict(zip((i for i, each in enumerate(choices) if len(each) > 1), "ijklmn", strict=False))
        numbers = [f"{{{names[i]}}}" if i in names else each[0] for i, each in enumerate(choices)]
        key = "".join(sum(zip(words, [*numbers, ""], strict=True), ()))
        loops = " ".join(f"for {name} in {_numbers(choices[i])}" for i, name in names.items())
        text, rest = re.findall(r"(.*?)(,?(?:  #.*)?)$", value)[0]
        yield f'**{{f"{key}": {text} {loops}}}{rest}'


def _numbers(texts: Sequence[str]) -> str:
    """Return the numbers of copies as text: a range if they are consecutive, else a tuple."""
    first, count = int(texts[0]), len(texts)
    if [*map(int, texts)] != [*range(first, first + count)]:
        return f"({', '.join(texts)})"
    return f"range({first}, {first + count})" if first else f"range({count})"


def dict_text(items: Iterable[tuple[str, str]], indent: int) -> str:
    """Return `{"w": w, "bias": bias}`, for a line indented by `indent`.

    If the text is long, each entry gets a line.
    """
    entries = [*table_rows(items)]
    line = "{" + ", ".join(entries) + "}"
    if len(line) + indent + 24 <= WIDTH:
        return line
    space = " " * indent
    return "{\n" + "".join(f"{space}    {entry},\n" for entry in entries) + space + "}"


def shape_text(type: TensorType) -> str:
    """Return the whole tensor's shape."""
    return str(tuple(dim.size for dim in type.dims))


def initial_functions(
    program: Program,
    module: str,
    dtype: Callable[[str], str],
    maker: Callable[[str, str, str, list[tuple[str, str]]], str],
) -> list[str]:
    """Return the functions that make the parameters and state of the first step.

    maker: (signature, table of layouts, docstring, entries of the returned dict) -> the text of a function.
    """
    entries = [(p.name, initial_value(p, f"{module}.full", dtype(p.type.dtype))) for p in program.parameters]
    made = [maker("init(seed=0)", "PARAMETERS", "Return the initial parameters.", entries)]
    if states := initial_states(program, module, dtype):
        doc = "Return the optimizer's state before the first step."
        made.append(maker("init_state()", "STATE", doc, states))
    return made


def initial_states(program: Program, module: str, dtype: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return the text of each state before the first step, as a global array. `module` is `np` or `jnp`."""
    arguments = (a for f in program.functions for a in f.arguments if a.role == "state")
    states = {argument.value.name: argument for argument in arguments}.values()
    found = []
    for state in states:
        type, start = state.value.type, state.initial
        made = f"zeros({shape_text(type)}" if start == 0 else f"full({shape_text(type)}, {literal(start)}"
        found.append((state.value.name, f"{module}.{made}, {dtype(type.dtype)})"))
    return found


def initial_value(parameter: Parameter, full: str, dtype: str) -> str:
    """Return the text of a parameter's initial value, as a global array.

    `full` is the backend's function for an array of equal elements.
    """
    distribution, shape = DISTRIBUTIONS[parameter.init.name], shape_text(parameter.type)
    numbers = {**distribution.args, **dict(parameter.init.args)}
    literals = {name: literal(value) for name, value in numbers.items()}
    start, scale = (part.format(**literals) for part in (distribution.start, distribution.scale))
    if distribution.draw is None:
        return f"{full}({shape}, {start}, {dtype})"
    drawn = f'random_{distribution.draw}(random_key(seed, "{parameter.name}"), {shape})'
    text = f"{scale} * {drawn}" if start == "0.0" else f"{start} + times({drawn}, {scale})"
    return text if parameter.type.dtype == "f32" else f"({text}).astype({dtype})"
