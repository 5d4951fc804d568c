"""Test functions: the bindings of a call, its equations, and the names of its parts."""

import numpy as np
import pytest

from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Equation, Program
from mtfc.compiler.ir.verifier import verify
from mtfc.frontend.check import check
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.semantics.calls import function_calls
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.diagnostic_text import render
from tests.harness import generic_data, reference

DIMS = "dim batch = 4; dim length = 3; dim io = 6; dim hidden = 8; dim heads = 2; dim key = 5\n"


def program(source: str) -> Program:
    """Return the last model of a file without errors."""
    diagnostics = Diagnostics()
    module = elaborate(parse(DIMS + source, "file.mtf", diagnostics), diagnostics)
    assert not list(diagnostics), render(diagnostics, {"file.mtf": DIMS + source})
    found = module.programs[-1]
    verify(found, "global")
    return found


def outputs(source: str) -> dict[str, str]:
    """Return the types of the model's results."""
    return {each.name: str(each.value.type) for each in program(source).function("forward").outputs}


def codes(source: str) -> list[str]:
    return [each.code for each in check(DIMS + source, "file.mtf").errors]


INPUTS = "x: [batch, length, io], m: [io, hidden], s: [], n: i32[batch], h: bf16[heads, io], q: [io, batch]"


@pytest.mark.parametrize(
    ("signature", "call", "type"),
    [
        # by position at either end, with `...` between
        ("f[d](a: [..., d]) -> [..., d]", "f(x)", "f32[batch, length, io]"),
        ("f[d](a: [..., d]) -> [d, ...]", "f(x)", "f32[io, batch, length]"),
        ("f[d](a: [d, ...]) -> [..., d]", "f(x)", "f32[length, io, batch]"),
        ("f[c, d](a: [c, ..., d]) -> [d, c, ...]", "f(x)", "f32[io, batch, length]"),
        ("f[c, d](a: [..., c, d]) -> [d, ...]", "sum_last(x)", "f32[io, batch]"),
        ("f(a: [...]) -> [...]", "f(s)", "f32[]"),
        ("f[d](a: [..., d]) -> [..., d]", "f(transpose(m -> [hidden, io]))", "f32[hidden, io]"),
        # by name: given, declared, or bound by another argument
        ("f[d](a: [..., d]) -> [..., d]", "f[d = batch](x)", "f32[length, io, batch]"),
        ("f[d](a: [..., d], d) -> [..., d]", "f(x, length)", "f32[batch, io, length]"),
        ("f[d](a: [..., d], d) -> [..., d]", "f(x, d = length)", "f32[batch, io, length]"),
        ("f[d](a: [..., d], d) -> [..., d]", "f(x)", "f32[batch, length, io]"),
        ("f(a: [..., batch]) -> [..., batch]", "f(x)", "f32[length, io, batch]"),
        ("f[c, d](a: [..., c], b: [c, d]) -> [..., c]", "f(q, transpose(q -> [io, batch]))", "f32[batch, io]"),
        ("f[c](a: [..., c], b: [..., c]) -> [..., c]", "f(q, transpose(q -> [batch, io]))", "f32[io, batch]"),
        # dtypes
        ("f(a: any[...]) -> any[...]", "f(h)", "bf16[heads, io]"),
        ("f(a: any[...]) -> any[...]", "f(n)", "i32[batch]"),
        ("f(a: i32[...]) -> i32[...]", "f(n)", "i32[batch]"),
        ("f(a: any[]) -> any[]", "f(3)", "f32[]"),
        ("f(a: i32[]) -> i32[]", "f(3)", "i32[]"),
        ("f(a: []) -> []", "f(3)", "f32[]"),
        ("f(a) -> [...]", "f(3)", "f32[]"),
    ],
)  # fmt: skip
def test_arguments_determine_the_dimensions_of_results(signature: str, call: str, type: str) -> None:
    body = "return sum(a, over = c)" if "sum_last" in call else "return a"
    call = call.replace("sum_last", "f")
    source = f"fn {signature} {{ {body} }}\nmodel net({INPUTS}) {{ y = {call}; return y }}"
    assert outputs(source) == {"y": type}


def test_inside_of_a_function_an_argument_has_the_order_of_its_type() -> None:
    source = """
    fn merged[c, d, both](a: [..., c, d], b: [..., d]) -> ([..., both], [..., d]) { return reshape(a -> [..., both]), b }
    dim pairs = io * length
    model net(x: [io, batch, length], y: [batch, io]) {
      p, q = merged[c = length, d = io, both = pairs](x, y)
      r = reshape(transpose(x -> [batch, length, io]) -> [batch, pairs])
      return p, q, r
    }
    """
    assert outputs(source) == {"p": "f32[batch, pairs]", "q": "f32[batch, io]", "r": "f32[batch, pairs]"}
    data = generic_data(program(source).function("forward"), 0)
    found = reference(DIMS + source, "forward", data)
    assert np.array_equal(found["p"], found["r"])


INLINED = [
    (
        """
        fn dense[d_in, d_out](x: [..., d_in], scale = 2 * d_in) -> [..., d_out] {
          param w: [d_in, d_out] = normal(stddev = rsqrt(d_in))
          return scale * einsum(x, w -> [..., d_out])
        }
        fn block[d](x: [..., d], skip) -> [..., d] {
          h = relu(dense[d_out = hidden](x))
          return skip * x + dense[d_out = d](h, scale = 1 / sqrt(hidden))
        }
        model net(x: [batch, io], y: [batch]) {
          x = block(x, y)
          x = block(x, 3)
          loss = mean(square(x))
          return loss
        }
        """,
        """
        model net(x: [batch, io], y: [batch]) {
          param w1: [io, hidden] = normal(stddev = rsqrt(6))
          param w2: [hidden, io] = normal(stddev = rsqrt(8))
          param w3: [io, hidden] = normal(stddev = rsqrt(6))
          param w4: [hidden, io] = normal(stddev = rsqrt(8))
          h = relu(12 * einsum(x, w1 -> [batch, hidden]))
          x = y * x + rsqrt(8) * einsum(h, w2 -> [batch, io])
          h = relu(12 * einsum(x, w3 -> [batch, hidden]))
          x = 3 * x + rsqrt(8) * einsum(h, w4 -> [batch, io])
          loss = mean(square(x))
          return loss
        }
        """,
    ),
    (
        """
        fn halves[d](x: [..., d], first = true) -> ([...], [...]) {
          dim half = d // 2
          dim rest = d - half
          a = slice(x, d -> half)
          b = slice(x, d -> rest, start = half)
          return sum(where(first, a, 2 * a), over = half), max(b, over = rest)
        }
        model net(x: [batch, io]) {
          a, b = halves(x)
          c, d = halves(x, first = false)
          e, f = halves[d = batch](x)
          return a, b, c, d, e, f
        }
        """,
        """
        dim half = 3
        dim two = 2
        model net(x: [batch, io]) {
          a = sum(slice(x, io -> half), over = half)
          b = max(slice(x, io -> half, start = 3), over = half)
          c = 2 * a
          d = b
          e = sum(slice(x, batch -> two), over = two)
          f = max(slice(x, batch -> two, start = 2), over = two)
          return a, b, c, d, e, f
        }
        """,
    ),
]


@pytest.mark.parametrize(("called", "written_out"), INLINED, ids=["parameters", "results"])
def test_a_call_means_what_its_body_means(called: str, written_out: str) -> None:
    forward = program(called).function("forward")
    assert [p.init for p in program(called).parameters] == [p.init for p in program(written_out).parameters]
    data = generic_data(forward, 3)
    names = [argument.value.name for argument in program(written_out).function("forward").arguments]
    renamed = dict(zip(names, data.values(), strict=True))
    found = reference(DIMS + called, "gradients", data)
    expected = reference(DIMS + written_out, "gradients", renamed)
    for one, other in zip(found.values(), expected.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


SCOPES = """
fn scaled[d](x: [..., d]) -> [..., d] {
  param scale: [d] = ones()
  y = x * scale
  return y
}
fn plain(x: [...]) -> [...] {
  z = relu(x)
  return z
}
fn twice[d](x: [..., d]) -> [..., d] {
  a = scaled(scaled(x))
  return scaled(plain(a)) as last
}
model net(x: [batch, io]) {
  a = plain(plain(twice(x)))
  b = scaled(a)
  c = twice(b) as other
  d = twice(c)
  e = scaled(d)
  return e
}
"""


def test_scopes_of_parameters() -> None:
    assert [parameter.name for parameter in program(SCOPES).parameters] == [
        *("twice.scaled.scale", "twice.scaled_2.scale", "twice.last.scale"),
        "scaled.scale",
        *("other.scaled.scale", "other.scaled_2.scale", "other.last.scale"),
        *("twice_2.scaled.scale", "twice_2.scaled_2.scale", "twice_2.last.scale"),
        "scaled_2.scale",
    ]


def test_values_are_named_by_their_scope_and_by_the_variable_that_they_are_bound_to() -> None:
    paths = [eqn.path for eqn in program(SCOPES).function("forward").body]
    assert [path for path in paths if path and path.startswith("other.")] == [
        *("other.scaled.y", "other.scaled_2.y", "other.a"),
        *("other.plain.z", "other.last.y"),
    ]
    assert [path for path in paths if path and "." not in path] == ["a", "b", "c", "d", "e"]


def test_functions_without_parameters_do_not_number_those_with() -> None:
    source = """
    import nn
    fn dropout(x: [...]) -> [...] { param w: [] = ones(); return x * w }
    model net(x: [batch]) { y = dropout(nn.dropout(x, 0.5)); return y }
    """
    assert [parameter.name for parameter in program(source).parameters] == ["dropout.w"]


def test_local_dims_are_named_by_their_function() -> None:
    source = """
    fn shorter[d](x: [..., d]) -> [...] {
      dim half = d // 2
      dim batch = half + 1
      return sum(slice(x, d -> half), over = half) + sum(slice(x, d -> batch), over = batch)
    }
    model net(x: [batch, io, hidden]) { y = shorter(shorter(x)) + shorter(sum(x, over = io)); return y }
    """
    dims = {name: dim.size for name, dim in program(source).dims.items() if "." in name}
    assert dims == {"shorter.half": 4, "shorter.batch": 5, "shorter.half_2": 3, "shorter.batch_2": 4}


def test_a_function_sees_what_its_file_declares_and_nothing_of_its_caller() -> None:
    assert codes("fn f(x) -> [...] { return x + y }\nmodel net(y: [io]) { z = f(y); return z }") == ["E101"]
    assert outputs("fn f() -> [io] { return zeros([io]) + io }\nmodel net(x: [io]) { y = x + f(); return y }")


def test_defaults_see_the_arguments_before_them_and_the_dimensions() -> None:
    source = """
    fn f[d](x: [..., d], a = d / 2, b = 2 * a, c: [d] = ones([d])) -> [..., d] { return (a + b) * x * c }
    model net(x: [batch, io]) { y = f(x); z = f(x, b = 1, c = zeros([io])); return y, z }
    """
    values = {eqn.attrs["value"] for eqn in program(source).function("forward").body if eqn.op == "constant"}
    assert values == {9.0, 4.0}


def test_every_call_draws_random_numbers_of_its_own() -> None:
    source = """
    fn noisy(x: [...]) -> [...] { n = random.normal([...]); return x + n + random.uniform([...]) }
    model net(x: [io]) { y = noisy(noisy(x)); y = y * cast(random.bernoulli([io], 0.5), f32); return y }
    """
    draws = [eqn for eqn in program(source).function("forward").body if "stream" in eqn.attrs]
    assert [eqn.attrs["stream"] for eqn in draws] == [
        *("noisy.n", "noisy.uniform", "noisy_2.n", "noisy_2.uniform", "bernoulli")
    ]


def test_equations_point_at_the_line_of_the_function() -> None:
    source = "fn f(x: [...]) -> [...] {\n  return relu(x)\n}\nmodel net(x: [io]) { y = f(x); return y }"
    (eqn,) = program(source).function("forward").body
    assert eqn.span is not None and eqn.span.line == 3
    assert eqn.path == "y"


def test_a_function_of_the_file_comes_before_a_built_in_one() -> None:
    source = "fn relu(x: [...]) -> [...] { return 2 * x }\nmodel net(x: [io]) { y = relu(x); return y }"
    assert [eqn.op for eqn in program(source).function("forward").body] == ["constant", "mul"]


def test_a_program_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_calls, "LARGEST", 500)
    calls = "\n".join(f"fn f{i}(x) -> [...] {{ return f{i + 1}(f{i + 1}(x)) }}" for i in range(30))
    source = f"{calls}\nfn f30(x) -> [...] {{ return x }}\nmodel net(x: []) {{ y = f0(x); return y }}"
    errors = check(DIMS + source, "file.mtf").errors
    assert {each.code for each in errors} == {"E122"}


def test_deep_nesting_of_calls_and_expressions_is_an_error() -> None:
    opened, closed = "relu(" * 60, ")" * 60
    calls = "\n".join(f"fn f{i}(x) -> [...] {{ return {opened}f{i + 1}(x){closed} }}" for i in range(35))
    source = "fn f35(x) -> [...] { return x }\nmodel net(x: []) { y = f0(x); return y }"
    assert codes(f"{calls}\n{source}") == ["E122"]


def equations(source: str, op: str) -> list[Equation]:
    return [eqn for eqn in program(source).function("forward").body if eqn.op == op]


def test_results_in_another_order_are_stored_as_declared() -> None:
    source = """
    fn f[c, d](x: [c, d]) -> [d, c] { return 2 * x }
    model net(x: [batch, io]) { y = f(x); return y }
    """
    assert outputs(source) == {"y": "f32[io, batch]"}
    (turned,) = equations(source, "transpose")
    assert turned.path == "y"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 / sqrt(key - 1)", 0.5),
        ("floor(hidden / key)", 1),
        ("minimum(io, heads) * maximum(1, 2.5)", 5.0),
        ("where(io < heads, 1, 2)", 2),
        ("hidden // heads - 1", 3),
        ("exp(0) + log(1) + abs(-2) + sign(-3) + square(3) + relu(-1)", 11),
        ("stop_gradient(tanh(0) + erf(0) + sin(0) + cos(0) + sigmoid(0) + rsqrt(4))", 2.0),
    ],
)
def test_functions_of_numbers_are_numbers(expression: str, value: float) -> None:
    source = f"model net(x: [io]) {{ y = x + ({expression}); return y }}"
    (constant,) = equations(source, "constant")
    assert constant.attrs["value"] == value


def test_numbers_without_a_value() -> None:
    for expression in ("log(0)", "sqrt(-1)", "rsqrt(0)", "exp(1e6)", "sqrt(true)", "7 // 0"):
        assert codes(f"model net(x: [io]) {{ y = x + {expression}; return y }}") == ["E209"], expression


@pytest.mark.parametrize(
    "body",
    [
        "return x + wrong",
        "y = rename(wrong, io -> hidden); return x",
        "repeat length while wrong { x = x * x }\n return x",
        "scan x_t = wrong along length { yield y = x_t }\n return x",
        "g = gradients(sum(x), [wrong]); return g",
    ],
)
def test_a_function_that_nothing_calls_has_known_names(body: str) -> None:
    found = check(f"{DIMS}fn f(x: [io]) -> [io] {{ {body} }}", "file.mtf").errors
    assert any("wrong" in each.message for each in found)
    assert not codes(f"fn f(x: [io], wrong: [io]) -> [io] {{ {body} }}")
