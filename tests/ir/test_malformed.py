"""Malformed equations: wrong operands, attributes or results. The verifier names the op, and the parser the line."""

from typing import Any

import pytest

from mtfc.compiler.ir.attributes import OVERFLOW, fitted, value_error
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value
from mtfc.compiler.ir.loops import LOOP
from mtfc.compiler.ir.opdef import OpError
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.parser import ReadError, read_program
from mtfc.compiler.ir.types import Dim, Mesh, TensorType
from mtfc.compiler.ir.verifier import Level, VerifyError, verify

A, B, C, TWO, KERNEL = Dim("a", 4), Dim("b", 6), Dim("c", 4), Dim("two", 2), Dim("kernel", 2)
MESH = Mesh("grid", (("rows", 2), ("cols", 2)))
NAN, INF = float("nan"), float("inf")

X = TensorType("f32", (A, B))
IDS = TensorType("i32", (B,))
PENDING = TensorType("f32", (A, B), pending=("rows",))
SPLIT = TensorType("f32", (A, B), (("rows",), ()))

WINDOW = {"source": A, "out": TWO, "kernel": KERNEL, "stride": 2, "before": 0, "after": 0, "dilation": 1}
PAD = {"source": TWO, "target": A, "before": 0, "stride": 1, "value": 0.0}
TYPE_OF_WINDOWS = TensorType("f32", (TWO, KERNEL, B))

MALFORMED: list[tuple[str, list[TensorType], dict[str, Any], TensorType]] = [
    # operands
    ("add", [X], {}, X),
    ("add", [X, X, X], {}, X),
    ("exp", [], {}, X),
    ("where", [X, X], {}, X),
    ("einsum", [], {"dims": ()}, TensorType("f32", ())),
    ("concat", [], {"sources": (), "target": A}, X),
    ("constant", [X], {"value": 1.0, "dtype": "f32"}, TensorType("f32", ())),
    ("gather", [X], {"dim": A}, X),
    ("concat", [X, X], {"sources": (TWO,), "target": A}, X),
    # attributes that are missing or unknown
    ("exp", [X], {"over": (A,)}, X),
    ("sum", [X], {}, X),
    ("sum", [X], {"over": (A,), "foo": 1}, TensorType("f32", (B,))),
    ("cumsum", [X], {"dim": A, "reverse": False}, X),
    ("uniform", [], {"dims": (A,), "dtype": "f32"}, TensorType("f32", (A,))),
    ("pad", [TensorType("f32", (TWO,))], {k: v for k, v in PAD.items() if k != "value"}, TensorType("f32", (A,))),
    ("fold", [TYPE_OF_WINDOWS], {**WINDOW, "value": 0.0}, X),
    # wrong kinds
    ("sum", [X], {"over": [A]}, TensorType("f32", (B,))),
    ("sum", [X], {"over": A}, TensorType("f32", (B,))),
    ("sum", [X], {"over": ("a",)}, TensorType("f32", (B,))),
    ("sum", [X], {"over": (A, A)}, TensorType("f32", (B,))),
    ("argmax", [X], {"over": (A, B)}, TensorType("i32", ())),
    ("cumsum", [X], {"dim": "a", "exclusive": False, "reverse": False}, X),
    ("cumsum", [X], {"dim": A, "exclusive": "no", "reverse": 0}, X),
    ("cumsum", [X], {"dim": 4.0, "exclusive": False, "reverse": False}, X),
    ("shift", [X], {"dim": A, "by": 1.5, "wrap": False}, X),
    ("shift", [X], {"dim": A, "by": True, "wrap": False}, X),
    ("shift", [X], {"dim": A, "by": 2**31, "wrap": False}, X),
    ("shift", [X], {"dim": A, "by": 1, "wrap": None}, X),
    ("einsum", [X], {"dims": (A, A)}, TensorType("f32", (A,))),
    ("transpose", [X], {"dims": (A, B, A)}, X),
    ("broadcast", [X], {"dims": A}, X),
    ("rename", [X], {"mapping": ((A, C), (A, C))}, TensorType("f32", (C, B))),
    ("rename", [X], {"mapping": (A, C)}, TensorType("f32", (C, B))),
    ("rename", [X], {"mapping": {A: C}}, TensorType("f32", (C, B))),
    ("cast", [X], {"dtype": "f8"}, X),
    ("cast", [X], {"dtype": 32}, X),
    ("cast", [X], {"dtype": "f32", "sums": 1}, X),
    ("uniform", [], {"dims": (A,), "dtype": "f32", "stream": 7}, TensorType("f32", (A,))),
    ("uniform", [], {"dims": (A,), "dtype": "f32", "stream": 'a"b'}, TensorType("f32", (A,))),
    ("top_k", [X], {"dim": A, "k": 2}, X),
    # values out of their domain
    ("sum", [TensorType("f32", (B,))], {"over": (A,)}, TensorType("f32", (B,))),
    ("slice", [X], {"source": A, "target": TWO, "start": -1, "stride": 1}, TensorType("f32", (TWO, B))),
    ("slice", [X], {"source": A, "target": TWO, "start": 0, "stride": -1}, TensorType("f32", (TWO, B))),
    ("pad", [TensorType("f32", (TWO,))], {**PAD, "stride": 0}, TensorType("f32", (A,))),
    ("pad", [TensorType("f32", (TWO,))], {**PAD, "stride": -1}, TensorType("f32", (A,))),
    ("pad", [TensorType("i32", (TWO,))], {**PAD, "value": 0.5}, TensorType("i32", (A,))),
    ("pad", [TensorType("f16", (TWO,))], {**PAD, "value": 1e6}, TensorType("f16", (A,))),
    ("window", [X], {**WINDOW, "stride": 0, "value": 0.0}, TYPE_OF_WINDOWS),
    ("window", [X], {**WINDOW, "dilation": -1, "value": 0.0}, TYPE_OF_WINDOWS),
    ("window", [X], {**WINDOW, "before": -1, "after": 1, "value": 0.0}, TYPE_OF_WINDOWS),
    ("window", [X], {**WINDOW, "before": 1, "after": -1, "value": 0.0}, TYPE_OF_WINDOWS),
    ("window", [X], {**WINDOW, "value": True}, TYPE_OF_WINDOWS),
    ("bernoulli", [], {"dims": (A,), "p": NAN, "stream": "s"}, TensorType("bool", (A,))),
    ("bernoulli", [], {"dims": (A,), "p": 1.5, "stream": "s"}, TensorType("bool", (A,))),
    ("bernoulli", [], {"dims": (A,), "p": True, "stream": "s"}, TensorType("bool", (A,))),
    # constants
    ("constant", [], {"value": "a", "dtype": "f32"}, TensorType("f32", ())),
    ("constant", [], {"value": True, "dtype": "f32"}, TensorType("f32", ())),
    ("constant", [], {"value": 1, "dtype": "bool"}, TensorType("bool", ())),
    ("constant", [], {"value": 2**31, "dtype": "i32"}, TensorType("i32", ())),
    ("constant", [], {"value": -1, "dtype": "u32"}, TensorType("u32", ())),
    ("constant", [], {"value": 1.0, "dtype": "i32"}, TensorType("i32", ())),
    ("constant", [], {"value": NAN, "dtype": "i32"}, TensorType("i32", ())),
    ("constant", [], {"value": 1e39, "dtype": "f32"}, TensorType("f32", ())),
    ("constant", [], {"value": 2**40, "dtype": "f32"}, TensorType("f32", ())),
    ("constant", [], {"value": None, "dtype": "f32"}, TensorType("f32", ())),
    ("full", [], {"dims": (A,), "value": 65520.0, "dtype": "f16"}, TensorType("f16", (A,))),
    # no such op
    ("gelu", [X], {}, X),
]  # fmt: skip


def program_of(op: str, types: list[TensorType], attributes: dict[str, Any], *results: TensorType) -> Program:
    operands = tuple(Value(f"x{i}", type) for i, type in enumerate(types))
    eqn = Equation(op, operands, tuple(Value(f"y{i}", t) for i, t in enumerate(results)), attributes)
    outputs = tuple(Output(value.name, value) for value in eqn.results)
    forward = Function("forward", tuple(Argument(x, "input") for x in operands), (eqn,), outputs)
    return Program("p", {dim.name: dim for dim in (A, B, C, TWO, KERNEL)}, (), (forward,))


def cases(items: list[Any]) -> list[Any]:
    return [pytest.param(*item, id=f"{i}-{item[0]}") for i, item in enumerate(items)]


@pytest.mark.parametrize(("op", "types", "attributes", "result"), cases(MALFORMED))
def test_a_malformed_equation_is_refused(
    op: str, types: list[TensorType], attributes: dict[str, Any], result: TensorType
) -> None:
    with pytest.raises(VerifyError) as error:
        verify(program_of(op, types, attributes, result), "global")
    assert op in error.value.reason


@pytest.mark.parametrize(("op", "types", "attributes", "result"), cases(MALFORMED))
def test_the_builder_makes_no_malformed_equation(
    op: str, types: list[TensorType], attributes: dict[str, Any], result: TensorType
) -> None:
    builder = Builder(Names())
    with pytest.raises((VerifyError, OpError)):
        builder(op, *(Value(f"x{i}", type) for i, type in enumerate(types)), **attributes)
    assert builder.body == []


@pytest.mark.parametrize("results", [(), (X, X)])
def test_the_number_of_results_is_checked(results: tuple[TensorType, ...]) -> None:
    with pytest.raises(VerifyError, match="exp"):
        verify(program_of("exp", [X], {}, *results), "global")


def test_an_equation_like_a_sound_one_is_checked() -> None:
    """1 == True == 1.0 in Python: the verifier remembers sound equations, and must not take these for them."""
    sound = program_of("constant", [], {"value": 1.0, "dtype": "f32"}, TensorType("f32", ()))
    (first,) = sound.functions[0].body
    wrong = Equation("constant", (), (Value("y", TensorType("f32", ())),), {"value": True, "dtype": "f32"})
    both = sound.map_functions(lambda f: Function(f.name, f.arguments, (first, wrong), f.outputs))
    with pytest.raises(VerifyError, match="True is not a value of f32"):
        verify(both, "global")


COLLECTIVES: list[tuple[str, TensorType, dict[str, Any]]] = [
    ("all_reduce", PENDING, {"axes": ("planes",)}),
    ("all_reduce", PENDING, {"axes": ("rows", "rows")}),
    ("all_reduce", PENDING, {"axes": ()}),
    ("all_reduce", PENDING, {"axes": "rows"}),
    ("all_reduce", PENDING, {}),
    ("all_reduce", PENDING, {"axes": ("rows",), "dim": A}),
    ("all_gather", SPLIT, {"axes": ("rows",)}),
    ("all_gather", SPLIT, {"axes": ("rows",), "dim": A, "dims": (A,)}),
    ("all_gather", SPLIT, {"axes": ("rows",), "dims": (A, B)}),
    ("all_gather", SPLIT, {"axes": ("rows",), "dim": C}),
    ("reduce_scatter", PENDING, {"axes": ("rows",), "dim": C}),
    ("all_to_all", SPLIT, {"axes": ("rows",), "source": A, "target": A}),
    ("all_to_all", SPLIT, {"axes": ("rows",), "source": A, "target": C}),
    ("permute", SPLIT, {"axes": ("cols",), "dim": A}),
    ("shift_shards", SPLIT, {"axes": ("rows",), "dim": A, "by": 1.0, "wrap": False}),
    ("local_slice", SPLIT, {"axes": ("cols",), "dim": C}),
    ("unreduce", SPLIT, {"axes": ("cols",), "dim": A}),
]


@pytest.mark.parametrize(("op", "type", "attributes"), cases(COLLECTIVES))
def test_a_malformed_collective_is_refused(op: str, type: TensorType, attributes: dict[str, Any]) -> None:
    level: Level = "lowered"
    x, y = Value("x", type), Value("y", type.unsplit())
    eqn = Equation(op, (x,), (y,), attributes, layout={})
    forward = Function(
        "forward", (Argument(x, "carried", layout={"a": ("rows",)} if type == SPLIT else {}),), (eqn,),
        (Output("y", y, layout={}),),
    )  # fmt: skip
    program = Program("p", {dim.name: dim for dim in (A, B, C, TWO, KERNEL)}, (), (forward,), mesh=MESH)
    with pytest.raises(VerifyError) as error:
        verify(program, level)
    assert op in error.value.reason


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"dim": A, "reverse": False},
        {"dim": A, "reverse": 0, "checkpoint": False},
        {"dim": "a", "reverse": False, "checkpoint": False},
        {"dim": A, "reverse": False, "checkpoint": False, "times": 3},
    ],
)
def test_the_attributes_of_a_loop_are_checked(attributes: dict[str, Any]) -> None:
    x, inside = Value("x", X), Value("x", X)
    region = Function("a", (Argument(inside, "carried"),), (), (Output("x", inside, "x"),))
    loop = Equation(LOOP, (x,), (Value("y", X),), attributes, (region,))
    forward = Function("forward", (Argument(x, "input"),), (loop,), (Output("y", loop.result),))
    with pytest.raises(VerifyError, match=r"^loop: "):
        verify(Program("p", {"a": A, "b": B}, (), (forward,)), "global")


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("gelu %x", "unknown op gelu"),
        ("exp %x, %x", "exp: the number of operands is 2, and must be 1"),
        ("sum %x", "sum: attribute over is missing: a set of dimensions, as a tuple"),
        ("sum %x over=[a] foo=1", "sum: unknown attribute foo; the attributes are: over"),
        ("sum %x over=[a, a]", "sum: attribute over is (Dim(name='a', size=4), Dim(name='a', size=4)), and must be"),
        ('constant value="a" dtype="f32"', "constant: attribute value is 'a', and must be a number or a truth value"),
        ('constant value=4294967296 dtype="i32"', "constant: 4294967296 is not a value of i32"),
        ("loop %x dim=a", "loop: attribute reverse is missing: true or false"),
    ],
)  # fmt: skip
def test_the_parser_names_the_line_of_a_malformed_equation(equation: str, message: str) -> None:
    text = f"program p\ndim a = 4\n\nfunction forward {{\n  input %x: f32[a]\n  %y: f32[a] = {equation}\n}}\n"
    with pytest.raises(ReadError) as error:
        read_program(text)
    assert str(error.value).startswith(f"line 6: {message}")
    assert error.value.line == 6


def test_every_op_states_its_operands_and_attributes() -> None:
    for op in OPS.values():
        assert op.arity[0] >= 0
        names = [attribute.name for attribute in op.attributes]
        assert len(set(names)) == len(names), op.name


@pytest.mark.parametrize("dtype", OVERFLOW)
def test_the_smallest_number_that_overflows_is_exact(dtype: str) -> None:
    """Round the number and the one below as the dtype does."""
    np = pytest.importorskip("numpy")
    from mtfc.compiler.ir.ops.elementwise import numpy_dtype

    large = float(OVERFLOW[dtype]) if dtype != "f64" else INF
    narrow = np.float32 if dtype == "bf16" else np.float64  # NumPy rounds to bf16 through f32
    below = float(np.nextafter(narrow(large), narrow(0)))
    with np.errstate(over="ignore"):
        assert np.isinf(np.float64(large).astype(numpy_dtype(np, dtype)))
        assert np.isfinite(np.float64(below).astype(numpy_dtype(np, dtype)))
    assert value_error(below, dtype) is None
    assert value_error(INF, dtype) is None
    assert value_error(NAN, dtype) is None
    assert fitted(OVERFLOW[dtype], dtype) == INF
    assert fitted(-OVERFLOW[dtype], dtype) == -INF
    assert value_error(OVERFLOW[dtype], dtype) is not None
