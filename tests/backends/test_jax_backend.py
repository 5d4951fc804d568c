"""The generated JAX module: its results, its communication, and its use."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np
import pytest

from mtfc.backends.common.random_numbers import random_key, random_normal
from mtfc.backends.hlo import collectives
from mtfc.backends.jax.backend import generate
from mtfc.backends.jax.runtime import hlo, load, lowered, stablehlo
from mtfc.compiler.cost.sizes import Numbers
from mtfc.compiler.cost.volumes import charges, total
from mtfc.compiler.diagnostics import Diagnostics
from mtfc.compiler.ir.core import Program, Value
from mtfc.compiler.ir.types import ARRAY_DTYPES, Layout, Mesh
from mtfc.compiler.passes.pipelines import lower
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.syntax.parser import parse
from tests import harness
from tests.backends.cases import POSITIVE, UNARY
from tests.backends.models import CUBE, DIMS, GRID, THIN, Build, data, dims, layout, meaning, model, two_layer
from tests.sampling import some

LAYOUTS = [
    (GRID, layout()),
    (GRID, layout(a="rows", b="cols")),
    (GRID, layout(a="cols", c="rows")),
    (GRID, layout(b="cols rows")),
    (CUBE, layout(b="planes rows", a="cols")),
    (THIN, layout(a="rows", b="cols planes")),
]


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if found.dtype in (np.bool_, np.int32, np.uint32):
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(np.float64(found), np.float64(expected), tolerance, tolerance)


def check(program: Program, mesh: Mesh, layout: Layout, tolerance: float = 1e-5) -> Program:
    """The program computes the same under the layout, and XLA has the collectives of the IR.

    Gives the lowered program.
    """
    local, inputs = lower(program, mesh, layout), data(program)
    compiled, module = lowered(local, "forward").compile(), load(generate(local))
    outputs = compiled({}, module.shard(inputs, module.INPUTS))
    for output in local.function("forward").outputs:
        assert outputs[output.name].dtype == np.dtype(ARRAY_DTYPES[output.value.type.dtype])
    for name, expected in meaning(program, inputs).items():
        close(module.unshard(outputs, module.OUTPUTS["forward"])[name], expected, tolerance)
    assert elements(collectives(compiled.as_text())) == sent(local, "forward")
    return local


def sent(program: Program, function: str) -> dict[str, int]:
    """Return kind of collective -> elements per device. A group of one processor sends nothing."""
    assert program.mesh is not None
    found = [
        c for c in charges(program.function(function), Numbers(program.mesh)) if program.mesh.size(c.axes) > 1
    ]
    return {kind: sent.elements for kind, sent in total(found).collectives.items()}


def elements(found: dict[str, dict[str, int]]) -> dict[str, int]:
    return {kind: figures["elements_per_device"] for kind, figures in found.items()}


# Every op, under every layout


def unary(b: Any, x: Value) -> dict[str, Value]:
    positive = b("add", b("square", x), b.like(0.5, x))
    found = {op: b(op, x) for op in UNARY} | {op: b(op, positive) for op in POSITIVE}
    return found | {
        "f16": b("cast", x, dtype="f16"),
        "i32": b("cast", x, dtype="i32"),
        "bool": b("cast", x, dtype="bool"),
    }


def binary(b: Any, x: Value, other: Value) -> dict[str, Value]:
    """Combine a tensor with an operand that lacks a dimension, one in another order, and numbers."""
    ops = ["add", "sub", "mul", "minimum", "maximum", "lt", "le", "gt", "ge", "eq", "ne"]
    found = {op: b(op, x, other) for op in ops} | {
        f"{op}_turned": b(op, b.ordered(x, dims("ba")), x) for op in ops
    }
    found |= {f"{op}_number": b(op, x, b.like(0.5, x)) for op in ops}
    positive = b("add", b("abs", x), b.like(1, x))
    yes, no = b("gt", x, b.like(0, x)), b("not", b("lt", other, b.like(1, x)))
    found |= {"div": b("div", x, positive), "pow": b("pow", positive, other)}
    found |= {"and": b("and", yes, no), "or": b("or", no, yes)}
    return found | {
        "where": b("where", no, x, b.like(3, x)),
        "numbers": b("where", yes, b.like(1, x), b.like(2, x)),
    }


def reductions(b: Any, x: Value) -> dict[str, Value]:
    holds = b("gt", x, b.like(1, x))
    found = {}
    for over in ("a", "b", "ab"):
        found |= {f"{op}_{over}": b(op, x, over=dims(over)) for op in ("sum", "max", "min", "prod")}
        found |= {f"{op}_{over}": b(op, holds, over=dims(over)) for op in ("any", "all")}
    return found | {"argmax_a": b("argmax", x, over=dims("a")), "argmax_b": b("argmax", x, over=dims("b"))}


def contractions(b: Any, x: Value, w: Value) -> dict[str, Value]:
    """Return a program of x [a, b] and w [c, b]."""
    found = {result: b.einsum(x, w, dims=dims(result)) for result in ("ac", "ca", "abc", "cb", "c", "")}
    return found | {
        "three": b.einsum(x, w, b("sin", x), dims=dims("cb")),
        "one": b.einsum(x, dims=dims("ba")),
    }


def structure(b: Any, x: Value, y: Value) -> dict[str, Value]:
    """Return a program of x [a, b] and y [b]."""
    d = DIMS
    cut = b("reshape", x, dims=dims("ace"))
    whole = b("cast", y, dtype="i32")
    return {
        "broadcast": b("broadcast", x, dims=dims("bca")),
        "transpose": b("transpose", x, dims=dims("ba")),
        "rename": b("rename", x, mapping=((d["a"], d["d"]), (d["b"], d["f"]))),
        "split": cut,
        "merge": b("reshape", cut, dims=dims("ab")),
        "flat": b("reshape", x, dims=(d["a"], d["g"], d["d"])),
        "slice": b("slice", x, source=d["b"], target=d["c"], start=3, stride=3),
        "slice_major": b("slice", x, source=d["a"], target=d["g"], start=1, stride=6),
        "pad": b("pad", y, source=d["b"], target=d["h"], before=2, stride=3, value=-1.5),
        "pad_integer": b("pad", whole, source=d["b"], target=d["i"], before=2, stride=1, value=7),
        "concat": b("concat", y, b("exp", y), sources=dims("bb"), target=d["i"]),
        **{f"shift_{by}": b("shift", x, dim=d["b"], by=by, wrap=False) for by in (1, -3, 20, -20)},
        **{f"roll_{by}": b("shift", x, dim=d["b"], by=by, wrap=True) for by in (1, -3, 20)},
        "range": b("add", b("range", dim=d["b"]), whole),
        "one_hot": b("one_hot", whole, dim=d["c"], dtype="f32"),
        "full": b("add", b("full", dims=dims("ab"), value=float("-inf"), dtype="f32"), x),
    }


def indexing(b: Any, x: Value, ids: Value, table: Value) -> dict[str, Value]:
    """Return a program of x [a, b], indices [d, c] into a dimension of size 4, and a table [e, a, c]."""
    d = DIMS
    rows = b("gather", table, ids, dim=d["e"])
    found = {"rows": rows, "back": b("scatter_add", rows, ids, dim=d["e"], dims=dims("ace"))}
    outside = b("sub", b("mul", ids, b.like(3, ids)), b.like(2, ids))
    found["outside"] = b("gather", table, outside, dim=d["e"])
    for name, k, dim in (("major", "c", "a"), ("minor", "e", "b")):
        values, indices = b.several("top_k", x, names=("values", "indices"), dim=d[dim], k=d[k])
        found |= {f"values_{name}": values, f"indices_{name}": indices}
    for exclusive in (False, True):
        for reverse in (False, True):
            attributes = {"exclusive": exclusive, "reverse": reverse}
            found[f"sums_{exclusive}_{reverse}"] = b("cumsum", x, dim=d["b"], **attributes)
    return found


def drawing(b: Any, number: Value) -> dict[str, Value]:
    """Draw uniform, normal and truth values, with tensors and numbers as arguments."""
    attributes = {"dims": dims("cab"), "stream": "net.noise"}
    return {
        "uniform": b("uniform", **attributes, dtype="f32"),
        "bernoulli": b("bernoulli", b("step_number"), number, **attributes, p=0.7),
        "normal": b("normal", number, **attributes, dtype="f32"),
        "one": b("normal", dims=(), stream="one", dtype="f32"),
    }


OPS: list[tuple[Build, tuple[str, ...]]] = [
    (unary, ("f32 ab",)),
    (binary, ("f32 ab", "f32 b")),
    (reductions, ("f32 ab",)),
    (contractions, ("f32 ab", "f32 cb")),
    (structure, ("f32 ab", "f32 b")),
    (indexing, ("f32 ab", "i32 dc", "f32 eac")),
    (drawing, ("i32",)),
]


@pytest.mark.parametrize(
    ("mesh", "layout"), some(LAYOUTS, 3), ids=lambda x: x.name if isinstance(x, Mesh) else ""
)
@pytest.mark.parametrize(("build", "inputs"), OPS, ids=lambda x: x.__name__ if callable(x) else "")
def test_ops(build: Build, inputs: tuple[str, ...], mesh: Mesh, layout: Layout) -> None:
    check(model(build, inputs), mesh, layout)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32"])
def test_dtypes(dtype: str) -> None:
    """Literals, sums and gathers keep the dtype of the tensors."""

    def build(b: Any, x: Value, w: Value) -> dict[str, Value]:
        x, w = b.cast(x, dtype), b.cast(w, dtype)
        scaled = b("add", b("mul", x, b.like(2, x)), b.like(1, x))
        moved = b("rename", scaled, mapping=((DIMS["a"], DIMS["d"]),))
        return {
            "sum": b("sum", scaled, over=dims("ab")),
            "moved": moved,
            "product": b.einsum(x, w, dims=dims("ac")),
        }

    real = "f64" if dtype == "f64" else "f32"
    tolerance = {"f64": 1e-12, "i32": 0}.get(dtype, 2e-2)
    check(model(build, (f"{real} ab", f"{real} cb")), GRID, layout(a="rows", b="cols"), tolerance)


# Every collective


def renamed(*pairs: str) -> Build:
    mapping = tuple((DIMS[old], DIMS[new]) for old, new in pairs)
    return lambda b, x: {"y": b("rename", x, mapping=mapping)}


def reduced(op: str, over: str) -> Build:
    return lambda b, x: {"y": b(op, x, over=dims(over))}


def several(b: Any, x: Value) -> dict[str, Value]:
    return {
        "max": b("max", x, over=dims("ab")),
        "sum": b("sum", x, over=dims("b")),
        "all": b("sum", x, over=dims("ab")),
    }


def scattered(*pairs: str) -> Build:
    mapping = tuple((DIMS[old], DIMS[new]) for old, new in pairs)
    return lambda b, x: {"y": b("rename", b("sum", x, over=dims("b")), mapping=mapping)}


COLLECTIVES = [
    ("all_reduce", reduced("sum", "b"), layout(b="cols")),
    ("all_reduce", reduced("sum", "ab"), layout(b="cols rows")),
    ("all_reduce", reduced("max", "b"), layout(a="rows", b="cols planes")),
    ("all_reduce", reduced("min", "a"), layout(a="rows", b="cols")),
    ("all_reduce", several, layout(a="rows", b="cols")),
    ("all_gather", renamed("ad"), layout(a="cols")),
    ("all_gather", renamed("ad"), layout(a="cols rows")),
    ("all_gather", renamed("ad", "bf"), layout(b="rows cols planes", f="rows")),
    ("reduce_scatter", scattered("ad"), layout(b="cols", d="cols")),
    ("reduce_scatter", scattered("ad"), layout(b="rows cols", d="cols rows")),
    ("all_to_all", renamed("ad", "bf"), layout(a="cols", f="cols")),
    ("all_to_all", renamed("ad", "bf"), layout(b="planes rows", d="planes rows")),
    ("all_to_all", renamed("ad", "bf"), layout(a="rows cols", d="rows", f="cols")),
    ("permute", renamed("ad"), layout(a="rows cols", d="cols rows")),
    ("permute", renamed("bf"), layout(b="rows cols planes", f="planes rows cols")),
    ("local_slice", renamed("ad"), layout(d="cols")),
    ("local_slice", renamed("ad", "bf"), layout(d="rows", f="planes cols")),
]


SUMS = ("all_reduce", "reduce_scatter")
"""Collectives that are tested on numbers only: truth values are reduced by the ops `any` and `all`."""


@pytest.mark.parametrize("dtype", ["f32", "i32", "bool"])
@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in COLLECTIVES}))
def test_collectives(kind: str, dtype: str) -> None:
    for expected, build, rules in COLLECTIVES:
        if expected == kind and not (kind in SUMS and dtype == "bool"):
            local = check(model(build, (f"{dtype} ab",)), CUBE, rules)
            assert kind in {eqn.op for eqn in local.function("forward").body}


# JAX's account of what varies


def made_in_parts(b: Any, x: Value) -> dict[str, Value]:
    """Return tensors that are split over no axis, one and both, although their operands are not split."""
    ones = b("full", dims=dims("ab"), value=0.5, dtype="f32")
    wide = b("broadcast", b("sum", x, over=dims("b")), dims=dims("ab"))
    hot = b("one_hot", b("range", dim=DIMS["b"]), dim=DIMS["a"], dtype="f32")
    found = {"ones": ones, "wide": wide, "hot": hot}
    return found | {f"{name}_sum": b("sum", value, over=dims("ab")) for name, value in found.items()}


@pytest.mark.parametrize("rules", [layout(a="rows"), layout(b="cols planes"), layout(a="rows", b="cols")])
def test_jax_knows_what_varies(rules: Layout) -> None:
    """JAX refuses to sum over axes if it takes the operand to vary along only some of them."""
    local = lower(model(made_in_parts, ("f32 ab",)), CUBE, rules)
    module, inputs = load(generate(local)), data(local)
    outputs = module.unshard(
        module.forward({}, module.shard(inputs, module.INPUTS)), module.OUTPUTS["forward"]
    )
    for name, expected in meaning(model(made_in_parts, ("f32 ab",)), inputs).items():
        close(outputs[name], expected)


# Training


SGD = "sgd(0.5)"
MOMENTUM = "momentum(0.5)"
STORED = attrs.evolve(layout(a="rows", h="cols"), params=layout(b="rows").rules)


def trained(mesh: Mesh, layout: Layout, optimizer: str, steps: int = 3) -> tuple[list[float], dict[str, Any]]:
    """Return the losses, and the final parameters."""
    program = two_layer(optimizer)
    module = load(generate(lower(program, mesh, layout)))
    params, state = module.init(seed=3), module.init_state() if module.STATE else {}
    inputs, losses = module.shard(data(program), module.INPUTS), []
    for step in range(steps):
        outputs, params, state = module.train_step(params, state, inputs, step)
        losses.append(float(outputs["loss"]))
    return losses, module.unshard(params, module.PARAMETERS)


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM])
def test_training_is_the_same_under_every_layout(optimizer: str) -> None:
    alone = Mesh("alone", (("all", 1),))
    losses, params = trained(alone, layout(a="all"), optimizer)
    assert losses[-1] < losses[0]
    for mesh, rules in (
        (GRID, layout(a="rows", h="cols")),
        (CUBE, layout(a="rows planes", b="cols")),
        (GRID, STORED),
    ):
        found, final = trained(mesh, rules, optimizer)
        close(found, losses)
        for name, expected in params.items():
            close(final[name], expected)


@pytest.mark.parametrize("rules", [layout(), layout(a="rows cols"), layout(a="rows", h="cols"), STORED])
def test_the_step_communicates_what_the_ir_says(rules: Layout) -> None:
    for of in ("step", "gradients"):
        local = lower(two_layer(MOMENTUM), GRID, rules, of=of)
        assert elements(collectives(hlo(local, of))) == sent(local, of)


def test_gradients() -> None:
    program = two_layer(SGD)
    module = load(generate(lower(program, GRID, layout(a="rows", h="cols"), of="gradients")))
    params = module.init(seed=1)
    x = data(program)["x"]

    def loss(params: dict[str, Any]) -> Any:
        hidden = jax.nn.relu(x @ params["net.w"] + params["bias"])
        return ((hidden @ params["v"] - x) ** 2).mean()

    expected = jax.grad(loss)(module.unshard(params, module.PARAMETERS))
    found = module.gradients(params, module.shard({"x": x}, module.INPUTS))
    for name, gradient in expected.items():
        close(found[f"d_{name}"], gradient)


def test_initial_values_do_not_depend_on_the_layout() -> None:
    for mesh, rules in (
        (Mesh("alone", (("all", 1),)), layout()),
        (GRID, layout(b="rows", h="cols")),
        (CUBE, STORED),
    ):
        module = load(generate(lower(two_layer(SGD), mesh, rules)))
        found = module.unshard(module.init(seed=7), module.PARAMETERS)
        for name, value in found.items():
            close(value, np.float32(0.1) * random_normal(random_key(7, name), value.shape), 1e-6)


# How the module is made


def test_the_text_of_a_module(update_golden: bool) -> None:
    """`two_layer_jax.test` holds a source, a line `---`, and the module."""
    case = Path(__file__).with_name("two_layer_jax.test")
    source, expected = case.read_text("utf-8").split("---\n", 1)
    diagnostics = Diagnostics()
    found = elaborate(parse(source, "two_layer.mtf", diagnostics), diagnostics)
    (program,), (declared,) = found.programs, found.layouts
    actual = generate(lower(program, declared.mesh, declared.layout))
    if update_golden:
        case.write_text(f"{source}---\n{actual}", "utf-8")
        return
    assert actual == expected


def step_module() -> str:
    return generate(lower(two_layer(MOMENTUM), GRID, layout(a="rows", h="cols")))


def test_parameters_and_state_are_donated_and_nothing_is_compiled_twice() -> None:
    module = load(step_module())
    params, state = module.init(), module.init_state()
    inputs = module.shard(data(two_layer(MOMENTUM)), module.INPUTS)
    first, old = params["net.w"], state["net.w.velocity"]
    _, params, state = module.train_step(params, state, inputs, 0)
    assert first.is_deleted() and old.is_deleted() and not inputs["x"].is_deleted()
    module.train_step(params, state, inputs, 1)
    assert module.train_step.__wrapped__._cache_size() == 1


def test_jax_checks_what_is_replicated() -> None:
    """Without one of its collectives the module is refused."""
    source = step_module()
    broken = source.replace('lax.psum(sum, "rows")', "sum")
    assert broken != source and "check_vma" not in source
    module = load(broken)
    with pytest.raises(ValueError, match="replicated"):
        module.forward(module.init(), module.shard(data(two_layer(MOMENTUM)), module.INPUTS))


def test_every_device_holds_only_its_part() -> None:
    module = load(step_module())
    assert {shard.data.shape for shard in module.init()["net.w"].addressable_shards} == {(16, 16)}


def run_alone(code: str, **environment: str) -> None:
    """Run a program that cannot import mtfc."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "XLA_FLAGS")}
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_importing_a_module_needs_no_devices() -> None:
    run_alone(step_module(), JAX_PLATFORMS="none_such")


USE = """
with jax.set_mesh(make_mesh()):
    params, state = init(seed=0), init_state()
    inputs = shard({"x": np.ones((8, 16), np.float32)}, INPUTS)
    before = unshard(forward(params, inputs), OUTPUTS["forward"])["loss"]
    for step in range(3):
        outputs, params, state = train_step(params, state, inputs, step)
    after = unshard(forward(params, inputs), OUTPUTS["forward"])["loss"]
    assert after < before and "mtfc" not in __import__("sys").modules
"""


def test_a_module_runs_without_mtfc() -> None:
    flags = "--xla_force_host_platform_device_count=8"
    run_alone(step_module() + USE, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")


def test_jax_hands_each_all_reduce_of_the_program_to_xla() -> None:
    """JAX writes one all-reduce for each operand; XLA joins them again, and may join more."""
    local = lower(two_layer(MOMENTUM), GRID, layout(a="rows", h="cols"))
    reduced = [len(eqn.operands) for eqn in local.function("step").body if eqn.op == "all_reduce"]
    assert stablehlo(local).count("stablehlo.all_reduce") == sum(reduced)
    assert collectives(hlo(local))["all_reduce"]["count"] <= len(reduced)


def test_the_module_is_clean_python() -> None:
    """No import or variable is unused, and no line is too long."""
    command = [
        sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=110", "--select=E,F,I,W", "-",
    ]  # fmt: skip
    checked = subprocess.run(command, input=step_module(), text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", ["jax", "lax", "params", "step", "sum", "lambda", "_x", "shard"])
def test_any_name_may_be_a_users(name: str) -> None:
    def build(b: Any, x: Value) -> dict[str, Value]:
        return {name: b("sum", b("relu", x, name=name), over=dims("a"))}

    check(model(build, ("f32 ab",)), GRID, layout(a="rows"))


def test_gradients_that_several_dots_read_are_arrays_of_their_own() -> None:
    """Each of `up` and `gate` has a gradient that one dot passes on to x, and another to the weight."""
    text = """
dim batch = 4; dim io = 6; dim hidden = 8; dim layers = 2
mesh two = [a: 2]
layout split on two = { batch: a }
model net(x: [batch, io]) {
  repeat layers {
    param gate: [io, hidden] = normal(stddev = 1.0)
    param up: [io, hidden] = normal(stddev = 1.0)
    param down: [hidden, io] = normal(stddev = 1.0)
    h = relu(einsum(x, gate -> [batch, hidden])) * einsum(x, up -> [batch, hidden])
    x = einsum(h, down -> [batch, io])
  }
  loss = mean(x)
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""
    held = re.findall(r"lax\.optimization_barrier\((.*)\)", generate(harness.lowered(text, "step")))
    assert len(held) == 2
    assert held[1].startswith("jnp.where(")
