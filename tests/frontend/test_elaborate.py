"""Test the elaboration of each form of the language."""

import pytest

from mtfc.compiler.diagnostics import Diagnostics, Span
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.ir.verifier import verify
from mtfc.frontend.elaborate import Module, elaborate
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.diagnostic_text import render
from tests.frontend.test_layouts import SOURCE

FILE = "file.mtf"


def load(source: str, **options: object) -> Module:
    """Elaborate a file that must have no errors."""
    diagnostics = Diagnostics()
    module = elaborate(parse(source, FILE, diagnostics), diagnostics, **options)  # type: ignore[arg-type]
    assert not diagnostics.errors, render(diagnostics, {FILE: source})
    return module


DIMS = """
dim batch = 4; dim io = 6; dim hidden = 8; dim left = 2; dim right = 3; dim both = 5; dim pairs = 3; dim of = 2
dim memory = batch; dim long = 3 * io; dim half = io // 2; dim classes = 7
"""


def body(statements: str, result: str = "y", arguments: str = "x: [batch, io]") -> tuple[Equation, ...]:
    """Return the equations of a model with these statements."""
    source = f"{DIMS}\nmodel m({arguments}) {{\n{statements}\nreturn {result} }}\n"
    (program,) = load(source).programs
    verify(program, "global")
    return program.function("forward").body


def result_type(expression: str, arguments: str) -> str:
    """Return the type of an expression."""
    last = body(f"y = {expression}", arguments=arguments)[-1]
    assert last.path == "y"
    return str(last.result.type)


FUNCTIONS = (
    *("relu", "exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "square"),
    *("abs", "sign", "erf", "sin", "cos", "floor", "stop_gradient"),
)

ARGUMENTS = """x: [batch, io], w: [io, hidden], n: i32[batch], u: u32[batch], c: bool[batch, io], s: [], b: [io], h: bf16[io],
    a: [batch, left], z: [right, batch]"""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x + b", "f32[batch, io]"),
        ("b - x", "f32[batch, io]"),
        ("x * 2 / s ** 2", "f32[batch, io]"),
        ("2.5 * h", "bf16[io]"),
        ("n * 2 - 1", "i32[batch]"),
        ("-x", "f32[batch, io]"),
        ("n < 3", "bool[batch]"),
        ("c and not c or true", "bool[batch, io]"),
        ("c == false", "bool[batch, io]"),
        ("1e9 - b", "f32[io]"),
        *((f"{op}(x)", "f32[batch, io]") for op in FUNCTIONS),
        *((f"{op}(h)", "bf16[io]") for op in FUNCTIONS),
        ("minimum(x, b)", "f32[batch, io]"),
        ("maximum(n, 3)", "i32[batch]"),
        ("where(c, x, 0)", "f32[batch, io]"),
        ("where(c, 1, 0)", "f32[batch, io]"),
        ("where(c, n, 0)", "i32[batch, io]"),
        ("cast(x, bf16)", "bf16[batch, io]"),
        ("cast(c, f32)", "f32[batch, io]"),
        ("einsum(x, w -> [batch, hidden])", "f32[batch, hidden]"),
        ("einsum(x -> [io])", "f32[io]"),
        ("einsum(x, w, b, s -> [hidden, batch])", "f32[hidden, batch]"),
        ("sum(x)", "f32[]"),
        ("sum(x, over = [batch])", "f32[io]"),
        ("sum(x, over = io)", "f32[batch]"),
        ("sum(x -> [io])", "f32[io]"),
        ("sum(x -> [io, batch])", "f32[io, batch]"),
        ("mean(einsum(x, w -> [batch, io, hidden]) -> [hidden, batch])", "f32[hidden, batch]"),
        ("max(n)", "i32[]"),
        ("min(x, over = [io, batch])", "f32[]"),
        ("prod(x -> [batch])", "f32[batch]"),
        ("any(c)", "bool[]"),
        ("all(c -> [io])", "bool[io]"),
        ("argmax(x, over = io)", "i32[batch]"),
        ("argmax(x -> [io])", "i32[io]"),
        ("broadcast(b -> [io, hidden])", "f32[io, hidden]"),
        ("broadcast(1.0 -> [io])", "f32[io]"),
        ("transpose(x -> [io, batch])", "f32[io, batch]"),
        ("zeros([batch])", "f32[batch]"),
        ("ones([batch], dtype = i32)", "i32[batch]"),
        ("full([], 3)", "f32[]"),
        ("full([io], true)", "bool[io]"),
        ("full([io], 2, dtype = u32)", "u32[io]"),
        ("rename(x, batch -> memory)", "f32[memory, io]"),
        ("rename(x, batch -> memory, io -> io)", "f32[memory, io]"),
        ("reshape(x -> [batch, pairs, of])", "f32[batch, pairs, of]"),
        ("slice(x, io -> half, stride = 2)", "f32[batch, half]"),
        ("slice(x, io -> half, start = io - half)", "f32[batch, half]"),
        ("pad(x, io -> hidden, before = 1, value = 0.5)", "f32[batch, hidden]"),
        ("pad(c, io -> hidden)", "bool[batch, hidden]"),
        ("concat(a, z, left -> both, right -> both)", "f32[batch, both]"),
        ("concat(b, b, b, io -> long)", "f32[long]"),
        ("concat(b, io -> io)", "f32[io]"),
        ("shift(x, io)", "f32[batch, io]"),
        ("shift(n, batch, by = -2, wrap = true)", "i32[batch]"),
        ("range(batch)", "i32[batch]"),
        ("one_hot(n, classes)", "f32[batch, classes]"),
        ("one_hot(u, classes, dtype = bf16)", "bf16[batch, classes]"),
    ],
)
def test_type_of_every_operation(expression: str, expected: str) -> None:
    assert result_type(expression, ARGUMENTS) == expected


# Names and paths


def test_equations_are_named_by_variables_and_ops() -> None:
    body_ = body(
        "h = relu(einsum(x, ones([io, hidden]) -> [batch, hidden]) + 1)\n mul = x * x; y = mul * mul * mul",
        "h, y",
    )
    assert [(eqn.result.name, eqn.path) for eqn in body_] == [
        ("full", None),
        ("einsum", None),
        ("c", None),
        ("add", None),
        ("h", "h"),
        ("mul", "mul"),
        ("mul_2", None),
        ("y", "y"),
    ]


def test_a_variable_that_is_rebound_keeps_its_path() -> None:
    equations = body("h = relu(x); h_2 = square(h); h = h + h_2; y = h; x = x * y", "x, h")
    assert [(eqn.result.name, eqn.path) for eqn in equations] == [
        ("h", "h"),
        ("h_2", "h_2"),
        ("h_3", "h"),
        ("y", "y"),
        ("x_2", "x"),
    ]


def test_outputs_have_the_names_of_variables() -> None:
    source = DIMS + "model m(x: [io]) { y = x; y = relu(y); n = 2; yes = true; return x, n, y, yes }"
    (program,) = load(source).programs
    found = {output.name: str(output.value.type) for output in program.function("forward").outputs}
    assert found == {"x": "f32[io]", "n": "f32[]", "y": "f32[io]", "yes": "bool[]"}


def test_every_equation_stands_where_it_is_written() -> None:
    source = DIMS + "model m(x: [io]) {\n  y = relu(x + 1) * mean(x)\n  return y\n}\n"
    line = source.splitlines().index("  y = relu(x + 1) * mean(x)")
    (program,) = load(source).programs
    texts = {
        eqn.op: source.splitlines()[line][eqn.span.column - 1 : eqn.span.end_column - 1]
        for eqn in program.function("forward").body
        if eqn.span
    }
    assert texts["relu"] == "relu(x + 1)"
    assert texts["add"] == "x + 1"
    assert texts["sum"] == "mean(x)"
    assert texts["mul"] == "relu(x + 1) * mean(x)"


# Numbers


def test_a_number_takes_the_dtype_that_it_meets() -> None:
    equations = body("e = 1e-3; y = h + e; z = x + e", "y, z", "x: [io], h: bf16[io]")
    constants = [(eqn.attrs["value"], eqn.attrs["dtype"]) for eqn in equations if eqn.op == "constant"]
    assert constants == [(1e-3, "bf16"), (1e-3, "f32")]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("-2 ** 2", -4),
        ("1 / 4", 0.25),
        ("2 ** -1", 0.5),
        ("2 ** 0.5", 2**0.5),
        ("7 - 7", 0),
    ],
)
def test_numbers_are_computed_when_compiling(expression: str, value: float) -> None:
    constant, _ = body(f"y = x + ({expression})")
    assert constant.attrs["value"] == value


def test_truth_values_are_computed_when_compiling() -> None:
    constant, _ = body("y = c or (1 < 2 and not (3 >= 4))", arguments="c: bool[io]")
    assert constant.attrs["value"] is True


# Declarations


def test_dims_come_in_any_order_and_follow_overrides() -> None:
    source = "dim a = 2 * b + c\ndim b = c // 2\ndim c = 10\nmesh m = [rows: b, cols: 2]\n"
    assert {name: dim.size for name, dim in load(source).dims.items()} == {"a": 20, "b": 5, "c": 10}
    changed = load(source, dims={"c": 6})
    assert {name: dim.size for name, dim in changed.dims.items()} == {"a": 12, "b": 3, "c": 6}
    assert changed.meshes["m"] == Mesh("m", (("rows", 3), ("cols", 2)))


def test_an_option_that_is_wrong_is_reported() -> None:
    diagnostics = Diagnostics()
    tree = parse("dim hidden = 2; dim other = 1\nmodel net(x: [hidden]) { return x }", FILE, diagnostics)
    elaborate(tree, diagnostics, {"hiden": 2, "hidden": 0, "other": 2**64}, "nte")
    assert [(d.code, d.span, d.help) for d in diagnostics] == [
        ("E103", Span("<--dim>", 1, 1, 1, 6), "did you mean `hidden`?"),
        ("E207", Span("<--dim>", 2, 1, 2, 7), None),
        ("E207", Span("<--dim>", 3, 1, 3, 6), None),
        ("E106", Span("<--model>", 1, 1, 1, 4), "did you mean `net`?"),
    ]


def test_a_model_is_chosen() -> None:
    source = "dim a = 2\nmodel one(x: [a]) { return x }\nmodel two(x: [a]) { return x }"
    assert [program.name for program in load(source).programs] == ["one", "two"]
    assert [program.name for program in load(source, model="two").programs] == ["two"]


TRAINED = SOURCE.replace("1e-3)\n", "1e-3)\n  precision = { compute: bf16 }\n  clip = 1\n  accumulate = 4\n")


def test_training_is_complete() -> None:
    (program,) = load(TRAINED).programs
    training = program.training
    assert training is not None
    assert training.minimize == "loss"
    assert [(update.parameters, update.function.name) for update in training.updates] == [
        (("w", "b"), "momentum")
    ]
    numbers = {eqn.attrs["value"] for eqn in training.updates[0].function.body if eqn.op == "constant"}
    assert numbers == {0.002, 0.9}
    assert (training.precision, training.clip, training.accumulate) == (("f32", "bf16"), 1, 4)
    initial = {
        parameter.name: (parameter.init.name, dict(parameter.init.args)) for parameter in program.parameters
    }
    assert initial == {"w": ("uniform", {"low": -0.5, "high": 0.5}), "b": ("constant", {"value": 0.25})}
    roles = [(argument.value.name, argument.role) for argument in program.function("forward").arguments]
    assert roles == [("x", "input"), ("w", "parameter"), ("b", "parameter")]
