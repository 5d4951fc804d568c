"""The intermediate representation as a library: build a program, print, parse and verify it, run passes, interpret it, emit code.

    from mtfc import ir

    build = ir.ProgramBuilder("linear")
    batch, io = build.dim("batch", 8), build.dim("io", 4)
    x = build.input("x", "f32", (batch, io))
    w = build.parameter("w", "f32", (io,), "normal", stddev=0.5)
    build.output("y", build("einsum", x, w, dims=(batch,)))
    program = build.program()
    print(ir.print_program(ir.lower(program, {"rows": 2}, {"batch": "rows"})))

This is what a front end stands on. `docs/ir.md` describes the functions, and `mtfc/compiler/ir/core.py` the classes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from mtfc.backends.registry import BACKENDS, text_kinds
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.builder import Builder, Names, VerifyError
from mtfc.compiler.ir.core import (
    Argument,
    Attr,
    Equation,
    Function,
    Initializer,
    Output,
    Parameter,
    Program,
    Role,
    Training,
    Update,
    Value,
)
from mtfc.compiler.ir.initializers import DISTRIBUTIONS
from mtfc.compiler.ir.loops import LOOP, WHILE, make_loop, sliced_type
from mtfc.compiler.ir.opdef import OpError
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.parser import ReadError, read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.types import EVERY, Axes, Dim, Forms, Layout, Mesh, Rules, TensorType
from mtfc.compiler.ir.verifier import LEVELS, Level, verify
from mtfc.compiler.passes import pipelines
from mtfc.compiler.passes.pass_base import Pass, PipelineError

__all__ = [
    "LEVELS",
    "OPS",
    "Argument",
    "Builder",
    "Dim",
    "Equation",
    "Function",
    "Initializer",
    "Layout",
    "Mesh",
    "Names",
    "OpError",
    "Output",
    "Parameter",
    "Pass",
    "PipelineError",
    "Program",
    "ProgramBuilder",
    "ReadError",
    "Rules",
    "Span",
    "TensorType",
    "Training",
    "Update",
    "Value",
    "VerifyError",
    "emit",
    "interpret",
    "layout",
    "load",
    "loop",
    "lower",
    "mesh",
    "parse_program",
    "pipeline",
    "print_program",
    "run_passes",
    "verify",
]

MeshLike = Mesh | Mapping[str, int]
"""A mesh, or the sizes of its axes, the most major axis first."""

LayoutLike = Layout | Mapping[str, Any]
"""A layout, or its rules: `{"batch": "rows", "params": {"io": ("rows", "cols")}}`."""

SECTIONS = ("params", "optimizer")
"""The parts of a layout with rules of their own."""

LoopBody = Callable[..., tuple[Sequence[Value], Sequence[Value]]]


class ProgramBuilder:
    """Builds a program with the function `forward`.

    A call appends an equation: `build("add", x, y)`. `equations` is the `Builder` that does it; its `span` is the place in the
    user's file for the next equations and arguments.
    """

    def __init__(self, name: str) -> None:
        """Start an empty program."""
        self.name = name
        self.equations = Builder(Names())
        self._dims: dict[str, Dim] = {}
        self._arguments: list[Argument] = []
        self._parameters: list[Parameter] = []
        self._outputs: list[Output] = []

    def dim(self, name: str, size: int) -> Dim:
        """Declare a dimension. Raises `ValueError` if it has another size already."""
        dim = self._dims.setdefault(name, Dim(name, size))
        if dim.size != size:
            raise ValueError(f"dimension {name} has size {dim.size}, and not {size}")
        return dim

    def input(self, name: str, dtype: str, dims: Iterable[Dim] = ()) -> Value:
        """Add an input of `forward`."""
        return self._argument(name, TensorType(dtype, tuple(dims)), "input")

    def parameter(
        self, name: str, dtype: str, dims: Iterable[Dim] = (), init: str = "zeros", **numbers: float
    ) -> Value:
        """Declare a parameter. `init` names the distribution of its first elements, and `numbers` are the distribution's.

        Raises `ValueError` for an unknown distribution, or if its numbers are others.
        """
        distribution = DISTRIBUTIONS.get(init)
        if distribution is None:
            raise ValueError(f"unknown distribution {init}; there are {', '.join(DISTRIBUTIONS)}")
        required = {key for key, default in distribution.args.items() if default is None}
        if not required <= numbers.keys() <= distribution.args.keys():
            raise ValueError(f"the numbers of {init} are: {', '.join(distribution.args) or 'none'}")
        given = {key: numbers.get(key, default) for key, default in distribution.args.items()}
        value = self._argument(name, TensorType(dtype, tuple(dims)), "parameter")
        numbers_in_order = tuple((key, float(number)) for key, number in given.items() if number is not None)
        initializer = Initializer(init, numbers_in_order)
        self._parameters.append(Parameter(value.name, value.type, initializer, self.equations.span))
        return value

    def __call__(self, op: str, *operands: Value, name: str = "", **attributes: Attr) -> Value:
        """Append an equation and return its only result.

        Raises `OpError` if the op refuses the operands, `VerifyError` if the equation is malformed.
        """
        return self.equations(op, *operands, name=name, **attributes)

    def constant(self, value: float | int | bool, dtype: str) -> Value:
        """Return a scalar."""
        return self.equations.constant(value, dtype)

    def output(self, name: str, value: Value) -> None:
        """Return a value of `forward` under a name."""
        self._outputs.append(Output(name, value))

    def program(self, training: Training | None = None) -> Program:
        """Return the program. Raises `VerifyError`."""
        arguments = sorted(self._arguments, key=lambda argument: argument.role != "input")
        forward = Function("forward", tuple(arguments), tuple(self.equations.body), tuple(self._outputs))
        program = Program(self.name, dict(self._dims), tuple(self._parameters), (forward,), training)
        verify(program, "global")
        return program

    def _argument(self, name: str, type: TensorType, role: Role) -> Value:
        """Add an argument of the function, and return its value. Raises `ValueError` if its name is taken."""
        fresh = self.equations.names.fresh(name)
        if fresh != name:
            raise ValueError(f"two values are called {name}")
        value = Value(name, type)
        self._arguments.append(Argument(value, role, self.equations.span))
        return value


def loop(
    build: ProgramBuilder | Builder,
    dim: Dim,
    body: LoopBody,
    *,
    carried: Sequence[Value] = (),
    invariant: Sequence[Value] = (),
    sliced: Sequence[Value] = (),
    reverse: bool = False,
    checkpoint: bool = False,
    has_condition: bool = False,
) -> tuple[Value, ...]:
    """Append a loop along `dim`, and return the last carries, then the values that each iteration yields, stacked along `dim`.

    has_condition: the first carry is a truth value, and the loop ends when it is false.
    body: (builder of the body, *carries, *invariants, *slices) -> (new carries, values that the iteration yields). It sees only
    the values that it is given. Raises `ValueError` unless it returns as many carries as the loop has.
    """
    outer = build.equations if isinstance(build, ProgramBuilder) else build
    inner = Builder(Names(), outer.span, outer.stage)
    types: list[tuple[Value, TensorType, Role]] = [(v, v.type, "carried") for v in carried]
    types += [(v, v.type, "invariant") for v in invariant]
    types += [(v, sliced_type(v.type, dim), "sliced") for v in sliced]
    arguments = tuple(Argument(Value(inner.names.fresh(v.name), type), role) for v, type, role in types)
    new, yielded = body(inner, *(argument.value for argument in arguments))
    if len(new) != len(carried):
        raise ValueError(f"the loop has {len(carried)} carries, and its body returns {len(new)}")
    names = Names()
    outputs = [
        Output(names.fresh(a.value.name), v, a.value.name) for a, v in zip(arguments, new, strict=False)
    ]
    outputs += [Output(names.fresh(v.name), v) for v in yielded]
    region = Function(dim.name, arguments, tuple(inner.body), tuple(outputs))
    attributes: dict[str, Attr] = {"dim": dim, "reverse": reverse, "checkpoint": checkpoint}
    attributes |= {WHILE.name: True} if has_condition else {}
    like = Equation(LOOP, (), (), attributes, span=outer.span, stage=outer.stage)
    made = make_loop(outer.names, region, [value for value, _, _ in types], like)
    outer.append(made)
    return made.results


def mesh(sizes: MeshLike, name: str = "mesh") -> Mesh:
    """Return a mesh of processors from the sizes of its axes. Raises `ValueError` for a size below 1, or without axes."""
    made = sizes if isinstance(sizes, Mesh) else Mesh(name, tuple(sizes.items()))
    if not made.axes or any(size < 1 for _, size in made.axes):
        raise ValueError("a mesh has axes, and each axis has at least one processor")
    return made


def layout(rules: LayoutLike, name: str = "layout") -> Layout:
    """Return a layout from its rules: dimension -> mesh axes. `params` and `optimizer` have rules of their own.

    `forms` are entries such as `{"regions": "time"}`. Raises `ValueError` for a wrong one.
    """
    if isinstance(rules, Layout):
        return rules
    params, optimizer = (_rules(rules.get(section, {})) for section in SECTIONS)
    compute = _rules({dim: axes for dim, axes in rules.items() if dim not in (*SECTIONS, "forms")})
    return Layout(name, compute, params, optimizer, forms=Forms.of(rules.get("forms", {})))


def _rules(rules: Mapping[str, str | Sequence[str]]) -> Rules:
    return Rules(tuple((dim, _axes(axes)) for dim, axes in rules.items()))


def _axes(axes: str | Sequence[str]) -> Axes:
    return (axes,) if isinstance(axes, str) else tuple(axes)


def parse_program(text: str) -> Program:
    """Return the program that IR text describes. Raises `ReadError` with the line of the first mistake.

    The text is checked as far as operands and attributes of equations go; `verify` checks the rest.
    """
    return read_program(text)


def run_passes(program: Program, passes: str | Iterable[Pass], level: Level = "global") -> Program:
    """Run passes in order, such as `"simplify,cse,dce"`, and verify the program after each.

    level: the level of the program before the first pass, a key of `LEVELS`. Raises `PipelineError` for an unknown pass.
    """
    chosen = pipelines.parse_pipeline(passes) if isinstance(passes, str) else passes
    return pipelines.run(program, chosen, level=level)


def pipeline(text: str) -> tuple[Pass, ...]:
    """Return passes from text such as `"differentiation,simplify,partitioning"`: see `mtfc compile --passes list`.

    Raises `PipelineError`.
    """
    return pipelines.parse_pipeline(text)


def lower(program: Program, on: MeshLike, under: LayoutLike, of: str = "step") -> Program:
    """Return one processor's program on a mesh under a layout, with its collectives.

    of: `step` adds the training step, if the program trains; `gradients` adds the gradients of all float inputs and parameters.
    Raises `ValueError` if the layout has a dimension that the program lacks, or an axis that the mesh lacks. Raises `VerifyError`
    if a value cannot be split so.
    """
    chosen, rules = mesh(on), layout(under)
    for section in (rules.rules, rules.params, rules.optimizer, *rules.value_rules.values()):
        for dim, axes in section.axes:
            if dim not in program.dims and dim != EVERY:
                raise ValueError(f"the program has no dimension {dim}")
            if not set(axes) <= set(chosen.names):
                raise ValueError(
                    f"{dim} is split over {', '.join(axes)}; the mesh has {', '.join(chosen.names)}"
                )
    return pipelines.lower(program, chosen, rules, of)


def interpret(program: Program, arguments: Mapping[str, Any], function: str = "forward") -> dict[str, Any]:
    """Return the outputs of a function by name, from its arguments by name: whole NumPy arrays, at any level.

    Raises `ValueError` for missing or unknown arguments.
    """
    from mtfc.backends import interpreter

    chosen = program.function(function)
    names = {argument.value.name for argument in chosen.arguments}
    if names != arguments.keys():
        raise ValueError(f"the arguments of {function} are: {', '.join(sorted(names)) or 'none'}")
    return interpreter.interpret(chosen, program, arguments)


def emit(program: Program, kind: str) -> str:
    """Return a text of a lowered program: `numpy`, `jax`, `stablehlo` or `hlo`. Raises `ValueError` for another kind."""
    kinds = text_kinds()
    if kind not in kinds:
        raise ValueError(f"unknown kind of text {kind}; there are {', '.join(kinds)}")
    return kinds[kind].emit(program)


def load(program: Program, backend: str = "numpy") -> ModuleType:
    """Return the module that a backend generates from a lowered program, ready to run: see `docs/python.md`.

    Raises `ValueError` for an unknown backend, and `mtfc.Unavailable` if packages or devices are missing.
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend}; there are {', '.join(BACKENDS)}")
    return BACKENDS[backend].load(BACKENDS[backend].generate(program))
