"""Test the parser: the trees of texts, and that no text makes it fail."""

import ast as python
import json
import subprocess
import sys
import time
import zlib

import lark
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics
from mtfc.frontend.syntax import ast, ast_printer, tables
from mtfc.frontend.syntax.ast import children
from mtfc.frontend.syntax.lexer import decode
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.diagnostic_text import render
from tests import parser_tables
from tests.frontend.strategies import bodies, chains, disguised, files, junk
from tests.frontend.writing import source

MODEL = """\
dim batch = 64
mesh grid = [rows: 2, cols: 4]
layout hybrid on grid = { batch: rows, value h: { batch: (rows, cols) } }
model m(x: f32[batch]) {
  param w: f32[batch] = normal(stddev = 0.05)
  h = relu(x * w)
  repeat layers {
    h = dense[d_out = batch](h) as ffn
  }
  return h
}
train m { minimize h; optimizer = sgd(learning_rate = 0.1) }
"""


def parsed(text: str) -> tuple[ast.File, list[Diagnostic]]:
    diagnostics = Diagnostics()
    return parse(text, "t.mtf", diagnostics), list(diagnostics)


def valid(text: str) -> ast.File:
    tree, found = parsed(text)
    assert not found, render(found, {"t.mtf": text})
    return tree


def codes(text: str) -> list[str]:
    return [diagnostic.code for diagnostic in parsed(text)[1]]


def expression(text: str) -> ast.Expr:
    declaration = valid(f"dim a = {text}").declarations[0]
    assert isinstance(declaration, ast.DimDecl)
    return declaration.size


def nodes(tree: ast.Node) -> list[ast.Node]:
    found = [tree]
    for node in found:
        found.extend(children(node))
    return found


# Written text is read back as the same tree


@given(files())
def test_reads_every_tree(tree: ast.File) -> None:
    assert valid(source(tree)) == tree


@given(disguised())
def test_white_space_and_comments_mean_nothing(disguise: tuple[ast.File, str]) -> None:
    tree, text = disguise
    assert valid(text) == tree


@given(chains())
def test_precedence_is_that_of_python(text: str) -> None:
    try:
        theirs = _from_python(python.parse(text, mode="eval").body)
    except (SyntaxError, NotImplementedError):
        assume(False)
    assert _plain(expression(text)) == theirs


OPERATORS: dict[type, str] = {
    python.Add: "+", python.Sub: "-", python.Mult: "*", python.Div: "/", python.FloorDiv: "//", python.Pow: "**",
    python.Lt: "<", python.LtE: "<=", python.Gt: ">", python.GtE: ">=", python.Eq: "==", python.NotEq: "!=",
    python.And: "and", python.Or: "or", python.USub: "-", python.Not: "not",
}  # fmt: skip


def _from_python(node: python.expr) -> object:
    match node:
        case python.Name(id=name):
            return name
        case python.Constant(value=value):
            return value
        case python.UnaryOp(op=op, operand=operand):
            return (OPERATORS[type(op)], _from_python(operand))
        case (
            python.BinOp(op=op, left=left, right=right)
            | python.Compare(ops=[op], left=left, comparators=[right])
        ):
            return (OPERATORS[type(op)], _from_python(left), _from_python(right))
        case python.BoolOp(op=op, values=[first, *rest]):
            tree = _from_python(first)
            for part in rest:
                tree = (OPERATORS[type(op)], tree, _from_python(part))
            return tree
    raise NotImplementedError


def _plain(node: ast.Expr) -> object:
    match node:
        case ast.Name(text=text):
            return text
        case ast.Int(value=value):
            return value
        case ast.Unary(op=op, operand=operand):
            return (op, _plain(operand))
        case ast.Binary(op=op, left=left, right=right):
            return (op, _plain(left), _plain(right))
    raise NotImplementedError


FORMS = """\
import nn
dim heads = (model + 7) // 8 - 1
mesh pod = [rows: 2, cols: 4, depth: heads]
layout zero on pod = {
  batch: (rows, cols), params: { model: rows, *: cols }
  optimizer: { model: rows }
  value layers.ffn.h: { hidden: cols }, allow W601
  pipeline layers checkpoint: { batch: 8 }
  part (embed, layers.head) on pod: { batch: rows, params: { *: cols } }, part h on pod: {}
  forms: { regions: time, flops_per_byte: 300 }
}
layout one for net, other on pod = { allow W602 }
layout two on pod for net = {}
placement found on 2 * 2 = { conv1: { batch: 2, rows: 2 } on [0, 1, 3, 2]
  layers.h[0, 3]: {} on [2] }
hardware box = {
  device: { flops: { bf16: 1e12 }, memory: 80e9, bandwidth: { 1e3: 1e9, 1e6: 2e12 } }
  link ici: { kind: torus, size: (4, 4), bandwidth: 450e9 / 2 }
}
hardware cell = {
  device gpu: { count: 4, flops: { f32: 1e12 }, memory: 8e9, bandwidth: 1e11 }
  link bus: { kind: bus, between: [gpu[0..1, 2], gpu[3]], bandwidth: 1e9, duplex: half }
}
fn dense[d_in, d_out](x: [..., d_in], gain = 1.0) -> [..., d_out] {
  param w: f32[d_in, d_out] = normal(stddev = 0.02)
  return einsum(x, w -> [..., d_out]) * gain
}
optimizer heavy(learning_rate = 0.1, momentum = 0.9) (p, g) {
  state m = zeros_like(p); m = momentum * m + g
  p = p - learning_rate * m
}
model net(x: f32[batch, length, model], ids: i32[batch], scale: [], flag: bool[]) {
  repeat layers checkpoint { x = nn.norm(x) + dense[d_out = model](x) as ffn }
  state seen: i32[] = 0; update seen = seen + 1
  state = zeros([batch])
  scan x_t = x along length {
    state = where(flag, sum(x_t, over = [model]), -state ** 2)
    yield states = state
  }
  values, indices = top_k(x, model -> k)
  w = window(x, height -> [out_h, k_h], stride = 2, padding = (1, 1), value = 0.0, dilation = 1)
  c = concat(a, b, left -> both, right -> both)
  s = shift(x, length, by = 1, wrap = false) == 0 or not flag and true
  r = random.bernoulli([batch], 0.5)
  watch r, s
  return values, state
}
train net {
  minimize loss
  optimizer = adam()
  optimizer for "*.bias", "scale" = sgd(0.1)
  frozen "embed.*"
  precision = { params: f32, compute: bf16 }
  accumulate = 4; clip = 1.0
}
"""


def test_every_form_of_the_language() -> None:
    kinds = {type(node) for node in nodes(valid(FORMS))}
    every = {kind for kind in vars(ast).values() if isinstance(kind, type) and issubclass(kind, ast.Node)}
    assert every - kinds == {ast.Node, ast.Broken}


def test_spans_cover_the_text_of_their_nodes() -> None:
    text = "dim a = 1\nmodel m() {\n  y = (b + -c) * f(\n    x) as g\n}"
    lines = text.split("\n")
    tree = valid(text)
    by_text = {}
    for node in nodes(tree):
        span = node.span
        rows = lines[span.line - 1 : span.end_line]
        rows[-1] = rows[-1][: span.end_column - 1]
        rows[0] = rows[0][span.column - 1 :]
        by_text["\n".join(rows)] = type(node)
    assert by_text["(b + -c)"] is ast.Binary
    assert by_text["-c"] is ast.Unary
    assert by_text["f(\n    x) as g"] is ast.Call
    assert by_text["(b + -c) * f(\n    x) as g"] is ast.Binary
    assert by_text[text] is ast.File


@settings(max_examples=30)
@given(files())
def test_children_stand_inside_their_parents(tree: ast.File) -> None:
    for node in nodes(valid(source(tree))):
        for child in children(node):
            assert (node.span.line, node.span.column) <= (child.span.line, child.span.column)
            assert (child.span.end_line, child.span.end_column) <= (node.span.end_line, node.span.end_column)


@pytest.mark.parametrize(
    ("text", "value"),
    [("007", 7), ("9223372036854775807", 2**63 - 1), ("1e3", 1e3), (".5", 0.5), ("2.", 2.0)],
)
def test_numbers(text: str, value: float) -> None:
    node = expression(text)
    assert isinstance(node, ast.Int | ast.Float)
    assert (type(node.value), node.value) == (type(value), value)


def test_result_dims_of_a_call() -> None:
    call = expression("einsum(x, w -> [a, b])")
    assert isinstance(call, ast.Call)
    arguments, result = call.split_result()
    assert [type(argument) for argument in arguments] == [ast.Name, ast.Name]
    assert result is not None
    assert len(result.dims) == 2
    plain = expression("f(x, a -> b)")
    assert isinstance(plain, ast.Call)
    assert plain.split_result() == (plain.arguments, None)


# Errors


@given(junk())
def test_no_text_is_too_much(text: str) -> None:
    tree, found = parsed(text)
    if any(isinstance(node, ast.Broken) for node in nodes(tree)):
        assert found
    assert all(diagnostic.code.startswith("E0") for diagnostic in found)
    render(found, {"t.mtf": text}).encode()


@given(st.data(), junk())
def test_no_mutation_is_too_much(data: st.DataObject, text: str) -> None:
    start = data.draw(st.integers(0, len(MODEL)))
    end = data.draw(st.integers(start, min(len(MODEL), start + 10)))
    changed = MODEL[:start] + text + MODEL[end:]
    _, found = parsed(changed)
    render(found, {"t.mtf": changed}).encode()


@given(bodies(), st.data())
def test_a_bad_statement_costs_only_itself(body: tuple[ast.Statement, ...], data: st.DataObject) -> None:
    texts = [source(statement) for statement in body]
    bad = data.draw(
        st.sampled_from(("x y", "= 3", "f(x)", "param w", "a = b b", "return )", "z = f((x)", "yield 3"))
    )
    at = data.draw(st.integers(0, len(texts)))
    lines = "\n".join([*texts[:at], bad, *texts[at:]])
    tree, found = parsed(f"dim a = 1\nmodel m() {{\n{lines}\n}}\ndim b = 2\n")
    line = 3 + "\n".join([*texts[:at], ""]).count("\n")
    assert {diagnostic.span.line for diagnostic in found} == {line}
    assert len(found) == 1
    first, model, last = tree.declarations
    assert isinstance(model, ast.ModelDecl)
    assert isinstance(first, ast.DimDecl)
    assert isinstance(last, ast.DimDecl)
    assert (*model.body[:at], *model.body[at + 1 :]) == body


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(end: str) -> None:
    tree, found = parsed(MODEL.replace("\n", end) + "dim")
    assert tree.declarations[:-1] == valid(MODEL).declarations
    assert [(d.span.line, d.span.column) for d in found] == [(13, 4)]


def test_invisible_characters_are_named() -> None:
    (diagnostic,) = parsed("dim a = \0\x1b 4")[1]
    assert diagnostic.message == "unexpected characters U+0000, U+001B"


DEEP = 10_000


@pytest.mark.parametrize(
    "text",
    [
        "(" * DEEP + "1" + ")" * DEEP,
        "f(" * DEEP + "1" + ")" * DEEP,
        "- " * DEEP + "x",
        "not " * DEEP + "x",
        "1 + " * DEEP + "1",
        "2 ** " * DEEP + "2",
        "-(1 + -f(" * 40 + "1" + "))" * 40,
    ],
)
def test_nesting_has_a_limit(text: str) -> None:
    assert codes(f"dim a = {text}\ndim b =") == ["E007", "E001"]
    assert codes(f"model m() {{\n  a = {text}\n  b =\n}}") == ["E007", "E001"]


def test_blocks_nest_no_deeper_than_expressions() -> None:
    assert codes("model m() {\n" + "repeat d {\n" * DEEP + "}\n" * DEEP + "}") == ["E007"]
    assert codes("model m() {\n" + "repeat d {\n" * 50 + "}\n" * 50 + "}") == []


def test_a_tree_within_the_limit_can_be_walked() -> None:
    tree = expression("1 + (" * 49 + "1" + ")" * 49)
    assert hash(tree) == hash(expression("1 + (" * 49 + "1" + ")" * 49))
    assert ast_printer.to_text(tree).count("Binary") == 49


def test_bytes_that_are_no_text() -> None:
    assert decode(b"\xef\xbb\xbfdim a = 1", "t.mtf") == "dim a = 1"
    with pytest.raises(CompileError) as raised:
        decode("é = 1\r\né".encode() + b"\xff", "t.mtf")
    (diagnostic,) = raised.value.diagnostics
    assert (diagnostic.code, str(diagnostic.span)) == ("E013", "t.mtf:2:2")


# The rest of the front


def test_tables_are_those_of_the_grammar() -> None:
    grammar = parser_tables.GRAMMAR.read_text("utf-8")
    written = tables.TABLES.read_text("utf-8")
    assert json.loads(written)["grammar"] == zlib.crc32(grammar.encode()), "run `make tables`"
    if json.loads(written)["lark"] == lark.__version__:
        assert written == parser_tables.encode(grammar)
        assert tables.load() == parser_tables.build(grammar)


def test_parsing_imports_no_parser_generator() -> None:
    program = "import sys, mtfc.frontend.syntax.parser; sys.exit('lark' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_thousands_of_statements_are_parsed_in_a_moment() -> None:
    layer = "  param w: f32[a, b] = normal(stddev = 0.05)\n  param v: f32[b] = zeros()\n"
    layer += "  h = einsum(x, w -> [batch, b]) + v\n  x = relu(h)\n"
    start = time.process_time()
    tree = valid("model m(x: f32[batch, a]) {\n" + layer * 2000 + "}\n")
    assert isinstance(tree.declarations[0], ast.ModelDecl)
    assert len(tree.declarations[0].body) == 8000
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "part",
    ["for ", "y = [ for ", "mesh m = [ , ", "scan x_t = x over ", "repeat x in a ", "y + + ", "for a b ( "],
)
def test_a_wrong_statement_of_many_tokens_is_recognized_in_a_moment(part: str) -> None:
    start = time.process_time()
    assert parsed(f"model m(x: f32[batch]) {{\n  {part * 20_000}\n}}\n")[1]
    assert time.process_time() - start < 5


def test_dump() -> None:
    tree = valid("dim a = 2 * b\nlayout l = { a: (rows, cols) }\n")
    assert ast_printer.to_text(tree) == (
        "File 1:1\n"
        "  declarations: DimDecl 1:1\n"
        "    name: Name 1:5 text='a'\n"
        "    size: Binary 1:9 op='*'\n"
        "      left: Int 1:9 value=2\n"
        "      right: Name 1:13 text='b'\n"
        "  declarations: LayoutDecl 2:1\n"
        "    name: Name 2:8 text='l'\n"
        "    rules: SplitRule 2:14\n"
        "      dim: Name 2:14 text='a'\n"
        "      axes: Name 2:18 text='rows'\n"
        "      axes: Name 2:24 text='cols'\n"
    )


@settings(max_examples=30)
@given(files())
def test_json_has_every_node(tree: ast.File) -> None:
    text = json.dumps(ast_printer.to_json(tree))
    assert text.count('"node": ') == len(nodes(tree))
