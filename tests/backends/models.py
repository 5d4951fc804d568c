"""Small global programs for the tests of backends, built by hand, and their results computed independently."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import (
    Argument,
    Function,
    Initializer,
    Output,
    Parameter,
    Program,
    Training,
    Update,
    Value,
)
from mtfc.compiler.ir.types import Axes, Dim, Layout, Mesh, Rules, TensorType
from mtfc.frontend.semantics.names.modules import Loader, declarations_of, no_neighbour
from mtfc.frontend.semantics.names.scope import Reports
from mtfc.frontend.semantics.training.optimizers import elaborate_updates, find_optimizer
from mtfc.frontend.syntax.ast import TrainDecl
from mtfc.frontend.syntax.parser import parse
from tests import oracle

SIZES = {"a": 8, "b": 16, "c": 4, "d": 8, "e": 4, "f": 16, "g": 2, "h": 64, "i": 32}
DIMS = {name: Dim(name, size) for name, size in SIZES.items()}
GRID = Mesh("grid", (("rows", 2), ("cols", 4)))
CUBE = Mesh("cube", (("rows", 2), ("cols", 2), ("planes", 2)))
THIN = Mesh("thin", (("rows", 1), ("cols", 8), ("planes", 1)))

Build = Callable[..., dict[str, Value]]
"""(builder, inputs) -> the outputs."""


def dims(names: str) -> tuple[Dim, ...]:
    return tuple(DIMS[name] for name in names)


def argument(name: str, type: str) -> Value:
    """Return a type: `f32 ab` is a tensor of dimensions `a` and `b`."""
    dtype, _, names = type.partition(" ")
    return Value(name, TensorType(dtype, dims(names)))


def model(build: Build, inputs: Sequence[str]) -> Program:
    """Return a program with inputs `x0`, `x1` ... of the given types."""
    values = [argument(f"x{i}", type) for i, type in enumerate(inputs)]
    builder = Builder(Names(value.name for value in values))
    outputs = tuple(Output(name, value) for name, value in build(builder, *values).items())
    arguments = tuple(Argument(value, "input") for value in values)
    return Program("m", DIMS, (), (Function("forward", arguments, tuple(builder.body), outputs),))


def layout(**rules: str) -> Layout:
    """Return a layout: `layout(a="rows", b="cols planes")`."""
    axes: tuple[tuple[str, Axes], ...] = tuple((dim, tuple(text.split())) for dim, text in rules.items())
    return Layout("main", Rules(axes))


def two_layer(optimizer: str) -> Program:
    """Return the model of the paper's section 8 in small: x [a, b], w [b, h], bias [h], v [h, b], a mean of squares."""
    values = [
        argument(name, type)
        for name, type in (("x", "f32 ab"), ("net.w", "f32 bh"), ("bias", "f32 h"), ("v", "f32 hb"))
    ]
    x, w, bias, v = values
    b = Builder(Names(value.name for value in values))
    hidden = b("relu", b("add", b.einsum(x, w, dims=dims("ah")), bias), name="hidden")
    y = b("einsum", hidden, v, dims=dims("ab"), name="y")
    loss = b(
        "mul", b("sum", b("square", b("sub", y, x)), over=dims("ab")), b.constant(1 / 128, "f32"), name="loss"
    )
    roles = ("input", "parameter", "parameter", "parameter")
    arguments = tuple(Argument(value, role) for value, role in zip(values, roles, strict=True))
    forward = Function("forward", arguments, tuple(b.body), (Output("y", y), Output("loss", loss)))
    normal = Initializer("normal", (("stddev", 0.1),))
    parameters = tuple(Parameter(value.name, value.type, normal) for value in (w, bias, v))
    return Program(
        "two_layer", DIMS, parameters, (forward,), Training("loss", updates(optimizer, parameters))
    )


def updates(optimizer: str, parameters: Iterable[Parameter]) -> tuple[Update, ...]:
    """Return the updates of the parameters by an optimizer, called as in a `train` block."""
    loader = Loader(Reports(Diagnostics()), no_neighbour)
    text = f"train m {{ minimize x; optimizer = {optimizer} }}"
    file = parse(text, "train.mtf", loader.reports.diagnostics)
    scope, (block,) = loader.main(file, {}), declarations_of(file, TrainDecl)
    found = find_optimizer(block.optimizer, scope, loader.library("optimizers"))
    types = {parameter.name: parameter.type for parameter in parameters}
    return elaborate_updates(found, types, scope)


def data(program: Program, seed: int = 0) -> dict[str, Any]:
    """Draw inputs in [-2, 2), in quarters, so that ties occur; integers in [0, 4)."""
    random = np.random.default_rng(seed)

    def one(type: TensorType) -> Any:
        shape = tuple(dim.size for dim in type.dims)
        if type.dtype == "bool":
            return random.random(shape) < 0.5
        if type.dtype in ("i32", "u32"):
            return random.integers(0, 4, shape).astype(np.int32 if type.dtype == "i32" else np.uint32)
        return np.asarray(
            random.integers(-8, 8, shape) / 4, np.float64 if type.dtype == "f64" else np.float32
        )

    forward = program.function("forward")
    return {a.value.name: one(a.value.type) for a in forward.arguments if a.role == "input"}


def meaning(program: Program, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the results of the undistributed `forward`."""
    forward = program.function("forward")
    return oracle.evaluate(forward, [inputs[argument.value.name] for argument in forward.arguments])
