"""Graphs built in Python: they are programs of the language, and errors name the line of Python."""

import gc
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import mtfc
from mtfc.compiler.ir.printer import print_program
from mtfc.graphs.graph import Graph
from tests.program_equality import same_program

HERE = Path(__file__).name


def two_layer() -> Graph:
    """Return the example of Mesh-TensorFlow's paper, section 8, with a loss and training."""
    with mtfc.graph("two_layer") as g:
        batch, io, hidden = g.dims(batch=8, io=4, hidden=16)
        x, target = g.input("x", batch, io), g.input("target", batch, io)
        w = g.param("w", io, hidden, init="normal(stddev = 0.5)")
        bias = g.param("bias", "hidden")
        v = g.param("v", hidden, io, init="normal(stddev = 0.25)")
        h = g.relu(g.einsum(x, w, dims=[batch, hidden]) + bias)
        y = h @ v
        loss = g.mean(g.square(y - target))
        g.output(y, loss)
        g.train(loss, optimizer="adam(learning_rate = 1e-3)", clip=1.0)
        g.mesh("grid", rows=2, cols=2)
        g.layout("data", {"batch": ("rows", "cols")}, on="grid")
        g.layout("both", "batch: rows, hidden: cols")
    return g


TWO_LAYER = """
dim batch = 8
dim io = 4
dim hidden = 16
mesh grid = [rows: 2, cols: 2]
layout both on grid = { batch: rows, hidden: cols }
model two_layer(x: [batch, io], target: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.5)
  param bias: [hidden] = zeros()
  param v: [hidden, io] = normal(stddev = 0.25)
  t = einsum(x, w -> [batch, hidden])
  t_2 = t + bias
  h = relu(t_2)
  y = einsum(h, v -> [batch, io])
  t_3 = y - target
  t_4 = square(t_3)
  loss = mean(t_4)
  return y, loss
}
train two_layer { minimize loss; optimizer = adam(learning_rate = 1e-3); clip = 1.0 }
"""


def test_a_graph_is_a_program_of_the_language() -> None:
    found = two_layer().compile(layout="both").program
    wanted = mtfc.compile_text(TWO_LAYER, layout="both").program
    assert same_program(found, wanted, locations=False), print_program(found)


def test_a_graph_goes_where_a_file_goes(tmp_path: Path) -> None:
    g = two_layer()
    assert not mtfc.check(g)
    assert mtfc.cost(g, layout="both")["layouts"][0]["layout"] == "both"
    assert mtfc.verify(g, backend="numpy", exact=False, layout="both")["ok"]
    assert mtfc.compile(g, dims={"batch": 16}).program.dims["batch"].size == 16
    copy = tmp_path / "copy.mtf"
    copy.write_text(g.source())
    assert same_program(mtfc.compile(copy).program, g.compile().program, locations=False)
    path = Path(os.fspath(g))
    assert path.exists()
    del g
    gc.collect()
    assert not path.parent.exists()


def test_calls_of_the_language_and_its_library() -> None:
    """Several results, mappings, generic dimensions, named calls, shared parameters, numbers and comparisons."""
    with mtfc.graph("calls") as g:
        batch, io, k, out = g.dims(batch=4, io=6, k=2, out=3)
        x = g.input("x", batch, io)
        n = g.input("n", batch, dtype="i32")
        best, places = g.top_k(x, {io: k})
        a = g.nn.dense(x, d_out=out, name="tower")
        b = g.nn.dense(-x, d_out=out, sharing="tower")
        noise = g.random.normal([batch, io], seed=3)
        mask = (x > 0) & ~(x >= np.float32(2)) | (x == 1.5)
        y = g.where(mask, 2.0 ** g.tanh(noise), 1 - x / 3)
        pooled = g.window(x, {io: [io, "k"]}, padding=(1, 0))
        first, second = g.unstack(g.stack([best, best * 2], g.dim("two", 2)), "two")
        slope = g.gradients(g.sum(y * x), x)
        chosen = g.gather(a, n, out)
        g.output(best, places, a, b, y, pooled, first, second, slope, chosen)
    assert (best.dtype, places.dtype, a.dims, slope.dims) == ("f32", "i32", (batch, out), (batch, io))
    assert [each.name for each in pooled.dims] == ["batch", "io", "k"]
    compiled = g.compile()
    assert [p.name for p in compiled.program.parameters] == ["tower.w", "tower.bias"]
    assert "first, second = unstack(" in g.source()
    assert mtfc.verify(g, backend="numpy", exact=False)["ok"]


def test_tuples_lists_of_one_and_dtypes_of_arrays() -> None:
    """A call takes `x.dims` as a list, a list gives a tuple of gradients, and dtypes are those of NumPy and JAX, too."""
    with mtfc.graph("lists") as g:
        x = g.input("x", batch=4, io=6)
        n = g.input("n", "batch", dtype=np.int32)
        w = g.param("w", *x.dims[1:], dtype=np.dtype("float32"))
        total = g.sum(x * w, over=x.dims)
        (slope,) = g.gradients(total, (w,))
        alone = g.gradients(total, w)
        one = g.dim("one", 1)
        (taken,) = g.unstack(g.stack((x,), one), "one")
        rows = g.window(x, {"io": ("io", g.dim("k", 3))}, padding=(one, 1))
        g.output(total, slope, alone, taken, rows, half=g.cast(n, jnp.bfloat16), flag=g.cast(n, bool))
    assert (n.dtype, w.dtype, slope.dims, taken.dims) == ("i32", "f32", w.dims, x.dims)
    source = g.source()
    assert "sum(t, over = [batch, io])" in source
    assert "slope = gradients(total, [w])" in source
    assert "padding = (one, 1)" in source
    assert "cast(n, bf16)" in source
    assert "cast(n, bool)" in source
    refused(lambda: mtfc.graph("m").input("x", dtype=np.int64, b=3), "E806", "a dtype is f32, bf16, .*int64")


def test_loops() -> None:
    with mtfc.graph("loops") as g:
        x = g.input("x", batch=4, io=3)
        total = g.zeros(["batch"])
        with g.repeat(g.dim("layers", 2)) as layers:
            w = g.param("w", "io", init="constant(2)")
            g.assign(x, x * w)
            all_x = layers.stack(x)
        with g.scan("io", x) as columns:
            (column,) = columns.slices
            g.assign(total, total + column)
        g.output(x, total, all_x)
    assert [dim.name for dim in all_x.dims] == ["layers", "batch", "io"]
    compiled = g.compile()
    (w_init,) = compiled.program.parameters
    assert [dim.name for dim in w_init.type.dims] == ["layers", "io"]
    module = compiled.load("numpy")
    given = np.arange(12, dtype=np.float32).reshape(4, 3)
    outputs = module.forward(module.init(0), module.shard({"x": given}, module.INPUTS))
    found = module.unshard(outputs, module.OUTPUTS["forward"])
    np.testing.assert_array_equal(found["x"], 4 * given)
    np.testing.assert_array_equal(found["total"], 4 * given.sum(1))
    np.testing.assert_array_equal(found["all_x"], np.stack([2 * given, 4 * given]))


def refused(call: Any, code: str, message: str) -> str:
    """Return the text of the error of a call, which names a line of this file."""
    with pytest.raises(mtfc.CompileError, match=message) as caught:
        call()
    (each, *_) = caught.value.diagnostics
    assert each.code == code
    assert Path(each.file).name == HERE
    return str(caught.value)


def test_errors_name_the_line_of_python() -> None:
    g = mtfc.graph("wrong")
    batch, io, hidden = g.dims(batch=4, io=3, hidden=5)
    x, y = g.input("x", batch, io), g.input("y", batch, hidden)
    text = refused(lambda: x + y, "E201", "broadcast")
    assert "lambda: x + y" in text
    assert "^^^^^" in text
    assert "`y` is f32[batch, hidden]" in text
    refused(lambda: x @ x, "E806", "found batch, io")
    refused(lambda: g.einsum(x, y), "E215", "needs the dimensions of its result")
    refused(lambda: g.nn.dens(x), "E104", "dens")
    refused(lambda: g.net.dense(x), "E119", "net")
    refused(lambda: g.relo(x), "E104", "relo")
    refused(lambda: g.param("w", io, init="norml()"), "E117", "norml")
    refused(lambda: g.param("w", io, dtype="i32"), "E216", "floating-point")
    refused(lambda: g.sum(x, over=hidden), "E205", "hidden")
    refused(lambda: g.layout("a", "batch rows"), "E001", "expected")
    refused(lambda: g.layout("a", "batch: rows }; mesh m = [a: 2]; layout b = {"), "E806", "one declaration")
    refused(lambda: g.param("w", io, init="ones(); x = 2"), "E806", "an expression")
    assert not mtfc.check_text("dim batch = 4\nmodel m(x: [batch]) { return x }")
    assert g.relu(x).dims == x.dims


def test_dimensions_values_and_numbers_that_do_not_belong() -> None:
    g, other = mtfc.graph("g"), mtfc.graph("other")
    x = g.input("x", batch=4, io=3)
    far = other.input("x", batch=4, io=5)
    refused(lambda: g.dim("io", 4), "E806", "`io` has size 3, and not 4")
    refused(lambda: g.input("z", io=4), "E806", "`io` has size 3, and not 4")
    refused(lambda: g.input("x", "batch"), "E806", "another value is called `x`")
    assert f"{HERE}:" in refused(lambda: x + far, "E806", "value of another graph, `other`")
    refused(lambda: g.sum(x, over=far.dims[1]), "E806", "no dimension io of size 5")
    refused(lambda: g.sum(x, over="hidden"), "E103", "hidden")
    refused(lambda: x + np.ones(4), "E806", "an array of ndarray")
    refused(lambda: np.ones(4) * x, "E806", "an array of ndarray")
    refused(lambda: x + "two words", "E806", "'two words'")
    refused(lambda: x + None, "E806", "None")
    refused(lambda: x * [1, 2], "E806", "found \\[1, 2\\]")
    refused(lambda: x * float("nan"), "E806", "nan")
    refused(lambda: g.dim("if x", 3), "E806", "cannot name a dimension")
    refused(lambda: g.dim("return", 3), "E806", "cannot name a dimension")
    for size in (0, -1, 2**63, 1.5, True, "3"):
        refused(lambda size=size: g.dim("d", size), "E806", "whole number from 1")  # type: ignore[misc]
    for number in (np.float32(0.5), np.int64(3), np.array(2.0), 3, -2, 1e-30, np.float64(-1.5)):
        assert (x * number).dims == x.dims
    for wrong in (bool, iter, np.asarray, len):
        with pytest.raises(TypeError):
            wrong(x)


def test_values_of_a_loop_and_calls_after_the_block() -> None:
    with mtfc.graph("g") as g:
        x = g.input("x", batch=4, io=3)
        with g.repeat(g.dim("layers", 2)) as loop:
            h = x * 2
            stacked = loop.stack(h)
            refused(lambda: stacked + 1, "E806", "known after the loop")
            refused(lambda: g.assign(x, g.sum(h, over="io")), "E806", "would become f32\\[batch\\]")
            g.assign(x, h)
        refused(lambda: h + 1, "E806", "inside of its loop only")
        refused(lambda: loop.stack(x), "E806", "while its statements are written")
        refused(g.source, "E806", "no output")
        g.output(x, stacked)
    refused(lambda: x + 1, "E806", "its block has ended")
    refused(lambda: g.output(x), "E806", "its block has ended")
    refused(lambda: g.dim("more", 1), "E806", "its block has ended")
    assert not [each for each in mtfc.check(g) if each.severity == "error"]


def test_errors_of_layouts_show_the_line() -> None:
    g = two_layer()
    with pytest.raises(mtfc.CompileError) as caught:
        g.compile(layout={"batch": "rows", "io": "rows"}, mesh="grid")
    assert "E301" in str(caught.value)
    with mtfc.graph("odd") as g:
        x = g.input("x", batch=5)
        g.mesh("line", all=2)
        g.layout("split", {"batch": "all"})
        g.output(x)
    assert f"# {HERE}:" in str(mtfc.check(g))


def test_functions_have_scopes_and_share_parameters() -> None:
    """A function is written once for calls that agree, reads tensors around it, and shares by name."""
    with mtfc.graph("towers") as g:
        batch, io, hidden = g.dims(batch=4, io=3, hidden=2)
        x, scale = g.input("x", batch, io), g.input("scale")

        @g.function
        def dense(x: Any, out: Any, bias: bool = True) -> Any:
            w = g.param("w", x.dims[-1], out, init="normal(stddev = 0.5)")
            y = x @ w
            return y + g.param("b", out) if bias else y

        @g.function
        def relu(xs: Any, **more: Any) -> Any:
            h = g.relu(dense(xs[0], hidden) * scale + more["add"])
            return h, g.mean(h)

        a, mean = relu([x], add=x.dims[0].size)
        b, _ = relu([-x], add=4, sharing="relu_2")
        c = dense(a, io, bias=False, name="back")
        d = dense(x, hidden, name="last")
        g.output(a, b, c, d, mean)
    source = g.source()
    assert [line.split("(")[0] for line in source.splitlines() if line.startswith("fn ")] == [
        "fn dense", "fn relu_2", "fn dense_2",
    ]  # fmt: skip
    names = [each.name for each in g.compile().program.parameters]
    assert names == ["relu_2.dense.w", "relu_2.dense.b", "back.w", "last.w", "last.b"]
    assert mtfc.verify(g, backend="numpy", exact=False)["ok"]
    module = g.compile().load("numpy")
    given = {"x": np.ones((4, 3), np.float32), "scale": np.float32(0)}
    outputs = module.forward(module.init(0), module.shard(given, module.INPUTS))
    np.testing.assert_array_equal(
        module.unshard(outputs, module.OUTPUTS["forward"])["a"], np.full((4, 2), 4.0)
    )


def test_states_watched_values_and_loops_that_end_on_data() -> None:
    """The graph is the program of this text."""
    with mtfc.graph("net") as g:
        batch, steps, layers = g.dims(batch=4, steps=9, layers=2)
        x, limit = g.input("x", batch), g.input("limit")
        mean = g.state("mean", batch, init=0.5)
        g.update(mean, 0.5 * mean + x)
        with g.repeat(layers):
            w = g.param("w", batch, init="ones()")
            count = g.state("count", dtype="i32")
            g.update(count, count + 1)
            h = x * w
            g.watch(h)
            g.assign(x, h)
        z = g.stop_gradient(x)
        with g.repeat(steps, while_=lambda: g.any(z > limit)) as loop:
            half = z / 2
            g.assign(z, half)
            zs = loop.stack(z)
        with g.scan(steps, zs, while_=lambda: g.any(z < limit)) as rows:
            g.assign(z, z + rows.slices[0])
        loss = g.mean(g.square(x - mean))
        g.output(loss, z, zs)
        g.train(loss, optimizer="sgd(0.1)")
    text = """
dim batch = 4
dim steps = 9
dim layers = 2
fn goes_on(z: f32[batch], limit: f32[]) -> bool[] { t = z > limit; t_2 = any(t); return t_2 }
fn goes_on_2(z: f32[batch], limit: f32[]) -> bool[] { t = z < limit; t_2 = any(t); return t_2 }
model net(x: [batch], limit: []) {
  state mean: [batch] = 0.5
  t = 0.5 * mean
  t_2 = t + x
  update mean = t_2
  repeat layers {
    param w: [batch] = ones()
    state count: i32[] = 0
    t_3 = count + 1
    update count = t_3
    h = x * w
    watch h
    x = h
  }
  z = stop_gradient(x)
  repeat steps while goes_on(z, limit) { half = z / 2; z = half; yield zs = z }
  scan zs_t = zs along steps while goes_on_2(z, limit) { t_4 = z + zs_t; z = t_4 }
  t_5 = x - mean
  t_6 = square(t_5)
  loss = mean(t_6)
  return loss, z, zs
}
train net { minimize loss; optimizer = sgd(0.1) }
"""
    wanted, found = mtfc.compile_text(text), g.compile()
    assert same_program(found.program, wanted.program, locations=False)
    batch_of = {"x": np.arange(4, dtype=np.float32), "limit": np.float32(0.3)}
    results = []
    for each in (found, wanted):
        module = each.load("numpy")
        inputs = module.shard(batch_of, module.INPUTS)
        outputs, params, _ = module.train_step(module.init(0), {}, inputs, 0)
        results.append([*outputs.values(), *params.values()])
    assert len(results[0]) == len(results[1]) > 4
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_states_functions_and_conditions_are_checked_at_their_line() -> None:
    g = mtfc.graph("wrong")
    batch, steps = g.dims(batch=4, steps=3)
    x, kept = g.input("x", batch), g.input("kept", steps)
    s = g.state("s", batch)
    refused(lambda: g.state("t", batch, init=x), "E413", "equal elements")
    refused(lambda: g.state("t", batch, dtype="f33"), "E211", "f33")
    refused(lambda: g.update(x, s), "E806", "`x` is no state")
    refused(lambda: g.update(s, g.sum(x)), "E415", "would become")
    refused(lambda: g.assign(s, x), "E423", "cannot be assigned")
    g.update(s, s + x)
    refused(lambda: g.update(s, x), "E422", "updated twice")
    g.watch(x)
    refused(lambda: g.watch(x), "E112", "x")
    refused(lambda: g.watch("x"), "E806", "is a tensor of the graph")
    with g.repeat(steps, while_=lambda: g.any(x > 1)):
        refused(lambda: g.state("u", batch), "E424", "loop with `while`")
        refused(lambda: g.update(s, x), "E421", "outside of this loop")
        refused(lambda: g.watch(kept), "E210", "steps")
        g.assign(x, x / 2)
    with g.scan(steps, kept):
        refused(lambda: g.state("u", batch), "E424", "`scan`")
    for condition, code, message in (
        (lambda: x > 1, "E223", "one truth value"),
        (lambda: g.sum(x), "E223", "one truth value"),
        (lambda: (g.any(x > 1), g.any(x > 2)), "E806", "`while_` returns one truth value, found .<t"),
        (lambda: True, "E806", "`while_` returns one truth value, found True"),
        (lambda: None, "E806", "`while_` returns one truth value, found None"),
    ):
        with pytest.raises(mtfc.CompileError, match=message) as caught, g.repeat(steps, while_=condition):
            pass
        assert caught.value.diagnostics[0].code == code
    inner: list[Any] = []

    @g.function
    def double(x: Any) -> Any:
        inner.append(x * 2)
        refused(lambda: g.input("y", batch), "E806", "has no inputs")
        refused(lambda: g.output(x), "E806", "return the values of a function")
        refused(lambda: g.assign(kept, kept + 1), "E806", "which cannot change it")
        refused(lambda: double(x), "E806", "calls itself")
        refused(lambda: g.update(s, x), "E806", "which cannot change it")
        return inner[-1]

    assert double(x).dims == (batch,)
    refused(lambda: inner[0] + 1, "E806", "inside of its function only")
    refused(lambda: g.function(3), "E806", "takes a function of Python")  # type: ignore[arg-type]

    @g.function
    def broken() -> Any:
        g.relu(x)
        raise KeyError

    with pytest.raises(KeyError):
        broken()
    g.output(double(x + 1))
    assert not [each for each in mtfc.check(g) if each.severity == "error"]
    assert g.source().count("fn double") == 1 and "broken" not in g.source()
