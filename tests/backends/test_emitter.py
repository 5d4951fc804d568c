"""The text of generated functions: names, numbers, comments and line breaks."""

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtfc.backends.common.emitter import WIDTH, Emitter, fold, layout_text
from mtfc.backends.numpy.backend import dialect, generate, load
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Equation, Function, Value
from mtfc.compiler.ir.types import Mesh, TensorType
from mtfc.compiler.passes.pipelines import lower
from tests.backends import models
from tests.backends.small import MESHES, Case, type_of

SINGLE = Mesh("single", ())


def lines(case: Case, mesh: Mesh = SINGLE) -> list[str]:
    """Return the statements of the case's function, before placement."""
    emitter = Emitter(dialect(mesh, False))
    return named(emitter, list(emitter.body(case.program().function("forward"))))


def named(emitter: Emitter, marked: list[str]) -> list[str]:
    """Return statements with the names of their values."""
    return list(map(emitter.named("\n".join(marked)), marked))


def test_numbers_stand_where_an_array_carries_the_dtype() -> None:
    """A choice between two numbers would be made in 64 bits. A constant is then an array, defined before its use."""
    carried = Case(["f32 a"], lambda b, x: b("mul", x, b.constant(0.5, "f32")))
    assert lines(carried) == ["mul = x0 * 0.5"]
    alone = Case(["bool a"], lambda b, c: b("where", c, b.constant(1.0, "f32"), b.constant(-1.0, "f32")))
    assert lines(alone) == [
        "c = np.full((), 1.0, np.float32)",
        "c_2 = np.full((), (-1.0), np.float32)",
        "where = np.where(x0, c, c_2)",
    ]
    returned = Case([], lambda b: b.constant(7, "i32"))
    assert lines(returned, MESHES[1]) == ["c = np.full((1, 1), 7, np.int32)"]


def test_bf16_is_not_widened_by_a_number() -> None:
    case = Case(["bf16 a"], lambda b, x: [b("mul", x, b.constant(n, "bf16")) for n in (2.0, 0.5)])
    assert lines(case) == ["mul = x0 * 2", "mul_2 = x0 * bfloat16(0.5)"]


@pytest.mark.parametrize(
    ("operand", "varies", "expected"),
    [
        ("f32 a b c", False, "x1"),
        ("f32 a b", False, "x1[..., None]"),
        ("f32 c", False, "x1"),
        ("f32 c", True, "x1[:, None, None]"),
        ("f32 a c", False, "x1[:, :, None]"),
        ("f32", False, "x1"),
        ("f32 c b a", False, "x1.transpose(0, 3, 2, 1)"),
        ("f32 c a", False, "x1.transpose(0, 2, 1)[:, :, None]"),
    ],
)
def test_operands_are_aligned_with_no_more_text_than_needed(
    operand: str, varies: bool, expected: str
) -> None:
    mesh = MESHES[0]
    types = [type_of("f32 a b c"), type_of(operand)]
    if varies:
        types[1] = types[1].split_by({types[1].names[-1]: ("rows",)})
    x, y = (Value(f"x{i}", type) for i, type in enumerate(types))
    eqn = Equation("add", (x, y), (Value("z", types[0]),))
    emitter = Emitter(dialect(mesh, False))
    assert named(emitter, list(emitter.equation(eqn))) == [f"z = x0 + {expected}"]


def test_names_are_python_names_and_stay_apart() -> None:
    emitter = Emitter(dialect(SINGLE, False))
    wanted = ["layers.ffn.wi", "layers_ffn_wi", "lambda", "np", "einsum", "einsum_1", "2nd", "x", "params"]
    found = [emitter.identifier(Value(name, TensorType("f32", ()))) for name in wanted]
    assert named(emitter, found) == [
        "layers_ffn_wi", "layers_ffn_wi_2", "lambda_1", "np_1", "einsum_1", "einsum_1_2", "_2nd", "x", "params_1"
    ]  # fmt: skip


def test_comments_name_the_line_and_the_stage_once() -> None:
    builder = Builder(Names(["x"]), Span("f.mtf", 3, 1, 3, 9))
    x = Value("x", type_of("f32 a"))
    y = builder("exp", builder("neg", x))
    builder.span, builder.stage = Span("f.mtf", 2, 1, 2, 9), "backward"
    builder("mul", y, y)
    function = Function("forward", (Argument(x, "input"),), tuple(builder.body), ())
    lines = Emitter(dialect(SINGLE, False)).function(function, "forward", "Computes nothing.").splitlines()
    comments = [line.strip() for line in lines if line.strip().startswith("#")]
    assert comments == ["# line 3", "# line 2, backward"]


def test_layouts_read_as_partition_specs_do() -> None:
    type = type_of("f32 a b c").split_by({"b": ("rows",), "c": ("cols", "planes")})
    assert layout_text(type) == '(None, "rows", ("cols", "planes"))'
    assert layout_text(type_of("f32 a")) == "(None,)"


WORDS = st.lists(
    st.sampled_from(["a", "bias_2", "np.exp(x)", "layers_0_ffn_wi", "0.5"]), min_size=1, max_size=60
)


@given(left=st.integers(1, 30), words=WORDS, shape=st.sampled_from(["{}", "f({})", "[{}]", "g(x)[0] + ({})"]))
def test_long_statements_fold_into_lines_of_the_same_meaning(left: int, words: list[str], shape: str) -> None:
    separator = " + " if shape == "{}" else ", "
    statement = f"{', '.join(f'target_{i}' for i in range(left))} = {shape.format(separator.join(words))}"
    folded = fold(statement)
    assert all(len(line) <= WIDTH - 4 for line in folded)
    assert ast.dump(ast.parse("\n".join(folded))) == ast.dump(ast.parse(statement))


def test_a_module_of_many_values_keeps_to_the_width() -> None:
    """Long statements, such as an all-reduce of 40 sums, are broken into lines."""
    case = Case(
        ["f32 a b c" for _ in range(40)], lambda b, *xs: [b("sum", x, over=x.type.dims[:1]) for x in xs]
    )
    local = lower(case.program(), MESHES[0], models.layout(a="rows"))
    source = generate(local)
    assert "terms += [" in source and "psum(tuple(terms)" in source
    assert max(map(len, source.splitlines())) <= WIDTH
    load(source)


def test_text_grows_with_the_program_and_not_with_the_mesh() -> None:
    program = models.two_layer("sgd(0.1)")
    texts = [
        generate(lower(program, Mesh("grid", (("rows", n), ("cols", 2))), models.layout(a="rows", h="cols")))
        for n in (2, 4, 8)
    ]
    assert len({re.sub(r"\d+", "", text) for text in texts}) == 1
