"""Test loops: their equations, and that a loop gives the same results as its iterations one after the other."""

import numpy as np
import pytest

from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import pairs, region_of
from mtfc.frontend.check import check
from tests.frontend.test_functions import DIMS
from tests.frontend.test_functions import codes as codes_of
from tests.frontend.test_functions import program as elaborated
from tests.harness import differentiated, generic_data, reference

LOOPS = """dim layers = 2; dim one = 1; dim time = length
fn dense[d_in, d_out](x: [..., d_in]) -> [..., d_out] {
  param w: [d_in, d_out] = normal()
  return einsum(x, w -> [..., d_out])
}
fn block[d](x: [..., d]) -> [..., d] { return tanh(dense[d_out = d](dense[d_out = hidden](x))) }
"""


def program(source: str) -> Program:
    return elaborated(LOOPS + source)


def codes(source: str) -> list[str]:
    return codes_of(LOOPS + source)


def loop(source: str) -> Equation:
    """Return the first loop of the model."""
    return loop_in(program(source).function("forward"))


def loop_in(function: Function) -> Equation:
    """Return the first loop in a model, or in a loop."""
    return next(eqn for eqn in function.body if eqn.regions)


def arguments(eqn: Equation) -> list[tuple[str, str]]:
    return [(a.role, str(a.value.type)) for a in region_of(eqn).arguments]


def results(source: str) -> list[np.ndarray]:
    """Return outputs and gradients for arguments that depend only on their order."""
    data = generic_data(program(source).function("forward"), 0)
    return list(reference(DIMS + LOOPS + source, "gradients", data).values())


def test_the_equation() -> None:
    eqn = loop("""
    model net(x: [batch, io], s: [], b: [io]) {
      y = x * s
      repeat layers checkpoint {
        param g: [io] = ones()
        h = relu(dense[d_out = hidden](x * g))
        x = x + dense[d_out = io](h) * s + y
        yield hs = h
      }
      return x, hs
    }
    """)
    assert (eqn.op, eqn.attrs["checkpoint"], eqn.attrs["reverse"]) == ("loop", True, False)
    assert [(a.role, str(v.type), str(a.value.type)) for v, a in pairs(eqn)] == [
        ("carried", "f32[batch, io]", "f32[batch, io]"),
        ("invariant", "f32[]", "f32[]"),
        ("invariant", "f32[batch, io]", "f32[batch, io]"),
        ("sliced", "f32[layers, io]", "f32[io]"),
        ("sliced", "f32[layers, io, hidden]", "f32[io, hidden]"),
        ("sliced", "f32[layers, hidden, io]", "f32[hidden, io]"),
    ]
    outputs = region_of(eqn).outputs
    assert [(o.name, o.updates) for o in outputs] == [("x", "x"), ("hs", None)]
    assert [str(value.type) for value in eqn.results] == ["f32[batch, io]", "f32[layers, batch, hidden]"]
    assert [each.path for each in region_of(eqn).body if each.path] == ["layers.h", "layers.x", "hs"]


def test_parameters_are_stacked_and_named_by_their_loops() -> None:
    source = """
    fn inner(x: [...]) -> [...] {
      repeat heads { x = block(x) }
      return x
    }
    model net(x: [time, io]) {
      repeat layers {
        param g: [] = ones()
        x = inner(inner(x * g))
        scan x_t = x along time { yield x = dense[d_out = hidden](x_t) }
        x = dense[d_out = io](x)
      }
      repeat layers { x = inner(x) as last }
      return x
    }
    """
    found = [(p.name, ", ".join(p.type.names)) for p in program(source).parameters]
    assert found == [
        ("layers.g", "layers"),
        ("layers.inner.heads.block.dense.w", "layers, heads, io, hidden"),
        ("layers.inner.heads.block.dense_2.w", "layers, heads, hidden, io"),
        ("layers.inner_2.heads.block.dense.w", "layers, heads, io, hidden"),
        ("layers.inner_2.heads.block.dense_2.w", "layers, heads, hidden, io"),
        ("layers.dense.w", "layers, io, hidden"),
        ("layers.dense_2.w", "layers, hidden, io"),
        ("layers_2.last.heads.block.dense.w", "layers, heads, io, hidden"),
        ("layers_2.last.heads.block.dense_2.w", "layers, heads, hidden, io"),
    ]


UNROLLED = {
    "repeat": (
        """
        model net(x: [batch, io], s: [batch]) {
          repeat layers {
            param g: [io] = ones()
            x = s * tanh(x * g)
            yield every = sum(x, over = io)
          }
          return x, every
        }
        """,
        """
        model net(x: [batch, io], s: [batch]) {
          param g: [layers, io] = ones()
          x = s * tanh(x * reshape(slice(g, layers -> one, start = 0) -> [io]))
          a = broadcast(sum(x, over = io) -> [one, batch])
          x = s * tanh(x * reshape(slice(g, layers -> one, start = 1) -> [io]))
          every = concat(a, broadcast(sum(x, over = io) -> [one, batch]), one -> layers)
          return x, every
        }
        """,
    ),
    "scan": (
        """
        model net(x: [batch, time], y: [time, io]) {
          h = 1
          last = zeros([batch, io])
          scan x_t = x, y_t = y, i = range(time) along time {
            h = h * 0.5 + sum(x_t)
            last = einsum(h, x_t, y_t -> [io, batch]) * cast(i, f32)
          }
          return h, last
        }
        """,
        """
        fn at(x: [..., time], i) -> [...] { return reshape(slice(x, time -> one, start = i) -> [...]) }
        model net(x: [batch, time], y: [time, io]) {
          h = 0.5 + sum(at(x, 0))
          h = h * 0.5 + sum(at(x, 1))
          h = h * 0.5 + sum(at(x, 2))
          last = 2 * einsum(h, at(x, 2), at(y, 2) -> [batch, io])
          return h, last
        }
        """,
    ),
    "nested": (
        """
        model net(x: [batch, time], k: [layers, io], c: [io]) {
          repeat layers with k_l = k {
            param g: [] = ones()
            h = sum(x -> [batch])
            scan x_t = x along time {
              h = tanh(h * g) + x_t * sum(k_l * c)
              yield x = h
            }
            x = transpose(x -> [batch, time])
          }
          return x
        }
        """,
        """
        fn pick(x: [..., layers], i) -> [...] { return reshape(slice(x, layers -> one, start = i) -> [...]) }
        fn at(x: [..., time], i) -> [...] { return reshape(slice(x, time -> one, start = i) -> [...]) }
        fn layer(x: [batch, time], k: [io], c: [io], g: []) -> [batch, time] {
          h0 = tanh(sum(x -> [batch]) * g) + at(x, 0) * sum(k * c)
          h1 = tanh(h0 * g) + at(x, 1) * sum(k * c)
          h2 = tanh(h1 * g) + at(x, 2) * sum(k * c)
          dim two = 2
          a = broadcast(h0 -> [batch, one])
          b = concat(a, broadcast(h1 -> [batch, one]), one -> two)
          return concat(b, broadcast(h2 -> [batch, one]), two -> time, one -> time)
        }
        model net(x: [batch, time], k: [layers, io], c: [io]) {
          param g: [layers] = ones()
          x = layer(x, pick(k, 0), c, pick(g, 0))
          x = layer(x, pick(k, 1), c, pick(g, 1))
          return x
        }
        """,
    ),
}


@pytest.mark.parametrize("name", UNROLLED)
def test_a_loop_means_what_its_iterations_mean(name: str) -> None:
    looped, unrolled = UNROLLED[name]
    for one, other in zip(results(looped), results(unrolled), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_names_in_a_loop_and_after_it() -> None:
    source = """
    model net(x: [time, batch], k: [batch]) {
      h = zeros([batch])
      y = x
      scan k = x along time {
        x_t = k
        h = h + x_t * sum(y)
        yield y = x_t
      }
      z = h * k * sum(y)
      return z
    }
    """
    (forward,) = program(source).functions
    eqn = loop_in(forward)
    assert arguments(eqn) == [
        ("carried", "f32[batch]"),
        ("invariant", "f32[time, batch]"),
        ("sliced", "f32[batch]"),
    ]
    after = forward.body[forward.body.index(eqn) + 1 :]
    used = {value for each in after for value in each.operands}
    assert forward.arguments[1].value in used, "after the loop, `k` is the input again"
    assert set(eqn.results) <= used


def test_a_carried_number_becomes_a_scalar() -> None:
    source = """
    model net(x: [time]) {
      n = 0
      ok = true
      scan x_t = x along time { n = n + x_t; ok = ok and n < 3 }
      return n, ok
    }
    """
    assert arguments(loop(source)) == [("carried", "f32[]"), ("carried", "bool[]"), ("sliced", "f32[]")]


def test_values_used_in_a_loop_pass_through_all_enclosing_loops() -> None:
    eqn = loop("""
    model net(x: [io], w: [io]) {
      repeat layers { repeat heads { scan i = range(time) along time { x = x + w } } }
      return x
    }
    """)
    nest = [eqn, loop_in(region_of(eqn)), loop_in(region_of(loop_in(region_of(eqn))))]
    for each in nest:
        assert [role for role, type in arguments(each) if type == "f32[io]"] == ["carried", "invariant"]


def test_random_numbers_depend_on_the_step_and_on_all_iterations_around() -> None:
    forward = program("""
    model net(x: [io]) {
      repeat layers { scan t = range(time) along time { x = x + random.normal([io]) } }
      return x
    }
    """).function("forward")
    outer = loop_in(forward)
    inner = loop_in(region_of(outer))
    (draw,) = (eqn for eqn in region_of(inner).body if eqn.op == "normal")
    assert draw.attrs["stream"] == "layers.normal"
    step, layer, time = (_argument(inner, value) for value in draw.operands)
    assert [role for role, _ in (step, layer, time)] == ["invariant", "invariant", "sliced"]
    made = {value: (eqn.op, eqn.attrs.get("dim")) for eqn in forward.body for value in eqn.results}
    found = [(role, *made[value]) for role, value in (_argument(outer, step[1]), _argument(outer, layer[1]))]
    assert all(eqn.span for eqn in forward.body), "what a draw depends on stands at its line"
    layers = outer.attrs["dim"]
    assert found == [("invariant", "step_number", None), ("sliced", "range", layers)]


def test_windows_are_made_again_for_the_gradient() -> None:
    """A loop keeps the input of a convolution for the backward pass, and not its windows, which are larger."""
    forward = differentiated(
        program("""
    dim taps = 3
    model net(x: [batch, length, io]) {
      repeat layers {
        param f: [taps, io, made] = normal()
        w = window(x, length -> [length, taps], padding = (1, 1))
        x = tanh(rename(einsum(w, f -> [batch, length, made]), made -> io))
      }
      loss = mean(square(x))
      return loss
    }
    dim made = io
    train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
    """),
        "step",
    ).function("step")
    first, second = (eqn for eqn in forward.body if eqn.regions)
    kept = [value.type.names for value in first.results]
    assert any("length" in names for names in kept)
    assert not any("taps" in names for names in kept)
    assert "window" in {eqn.op for eqn in region_of(second).body}


def _argument(eqn: Equation, value: Value) -> tuple[str, Value]:
    """Return the role of a region's argument, and the operand that the argument is for."""
    return next((a.role, operand) for operand, a in pairs(eqn) if a.value is value)


# What is checked


MESH = "mesh line = [all: 2]\nmesh grid = [rows: 2, cols: 2]\n"
NET = """
model net(x: [batch, io]) {
  repeat layers {
    param g: [batch] = ones()
    h = dense[d_out = hidden](x * g)
    x = dense[d_out = io](relu(h))
    yield hs = h
  }
  loss = mean(square(x)) + mean(hs)
  return loss
}
"""


def found(layouts: str) -> list[tuple[str, str]]:
    """Return the errors and warnings of layouts: their codes and subjects."""
    source = DIMS + LOOPS + MESH + layouts + NET
    return [(each.code, each.message) for each in check(source, "file.mtf")]


def test_layouts_are_checked_inside_of_loops() -> None:
    assert found("layout ok on line = { batch: all, value layers.h: { hidden: all } }") == []
    (error,) = found("layout clash on line = { batch: all, hidden: all }")
    assert error == ("E301", "layout `clash` splits two dimensions of `layers.h` over mesh axis `all`")
    (error,) = found("layout clash on line = { hidden: all, value hs: { hidden: all, batch: all } }")
    assert error == ("E301", "layout `clash` splits two dimensions of `hs` over mesh axis `all`")
    (error,) = found("layout stored on line = { batch: all, params: { layers: all } }")
    where = "over mesh axis `all` where parameters are stored"
    assert error == ("E301", f"layout `stored` splits two dimensions of `layers.g` {where}")
    (error,) = found("layout who on line = { batch: all, value h: { hidden: all } }")
    assert error == ("E305", "no model has a value `h`")


def test_the_dimension_of_a_loop_must_divide_where_parameters_are_stored() -> None:
    source = (
        DIMS
        + LOOPS.replace("layers = 2", "layers = 3")
        + MESH
        + "layout l on line = { io: all, layers: all }"
        + NET
    )
    codes = [each.code for each in check(source, "file.mtf").errors]
    assert codes == ["E301", "E302"]


def test_work_in_a_loop_counts_once_for_each_iteration() -> None:
    """There is no warning for an einsum that is executed once beside one that a loop executes a thousand times."""
    source = """
    dim many = {many}
    mesh line = [all: 2]
    layout l = {{ hidden: all }}
    model net(x: [batch, io], y: [key, heads]) {{
      repeat many {{ x = block(x) }}
      z = einsum(y, y -> [])
      return x, z
    }}
    """
    counted = {}
    for many in (1, 1000):
        diagnostics = check(DIMS + LOOPS + source.format(many=many), "file.mtf")
        counted[many] = [each.code for each in diagnostics]
    assert counted == {1: ["W601"], 1000: []}


TRAINED = """
model net(x: [batch, io]) {{
  y = x
  loss = 0
  repeat layers {{
    x = {statement}
    loss = loss + {loss}
  }}
  return loss
}}
train net {{ minimize loss; optimizer = sgd(learning_rate = 0.1) }}
"""


@pytest.mark.parametrize(
    ("statement", "loss", "expected"),
    [
        ("block(x)", "sum(x)", []),
        ("block(y)", "sum(x)", []),
        ("relu(x)", "sum(x)", ["E406"]),
        ("block(x)", "sum(y)", ["E406"]),
        ("stop_gradient(block(x))", "sum(x)", ["E407"]),
        ("floor(block(x))", "sum(x)", ["E407"]),
    ],
)
def test_a_loss_may_depend_on_parameters_through_loops(
    statement: str, loss: str, expected: list[str]
) -> None:
    assert codes(TRAINED.format(statement=statement, loss=loss)) == expected
