"""Test `mtfc.ir`: build, print, parse, verify, run passes, interpret, lower and emit programs."""

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

import mtfc
from mtfc import ir


def linear() -> ir.Program:
    """Return y = x w, and a loss."""
    build = ir.ProgramBuilder("linear")
    batch, io = build.dim("batch", 8), build.dim("io", 4)
    x = build.input("x", "f32", (batch, io))
    w = build.parameter("w", "f32", (io,), "normal", stddev=0.5)
    y = build("einsum", x, w, dims=(batch,), name="y")
    build.output("y", y)
    build.output("loss", build("sum", build("square", y), over=(batch,), name="loss"))
    return build.program(ir.Training("loss"))


X, W = np.arange(32, dtype=np.float32).reshape(8, 4), np.array([1, -1, 2, 0.5], np.float32)


def test_text_reads_back() -> None:
    text = ir.print_program(linear())
    assert ir.print_program(ir.parse_program(text)) == text


def test_the_text_of_a_wrong_program_is_refused_with_its_line() -> None:
    text = ir.print_program(linear()).replace("sum %square", "sum %square, %y")
    with pytest.raises(ir.ReadError, match=r"line 12: sum: the number of operands is 2, and must be 1"):
        ir.parse_program(text)


def test_verify_names_what_is_wrong() -> None:
    build = ir.ProgramBuilder("p")
    x = build.input("x", "f32", (build.dim("a", 4),))
    with pytest.raises(ir.VerifyError, match="add: the number of operands is 1, and must be 2"):
        build("add", x)
    with pytest.raises(ir.OpError, match="cannot reduce over `b`"):
        build("sum", x, over=(build.dim("b", 2),))
    build.output("y", ir.Value("y", x.type))
    with pytest.raises(ir.VerifyError, match="%y is not defined"):
        build.program()


def test_passes_run_by_name() -> None:
    build = ir.ProgramBuilder("p")
    x = build.input("x", "f32", (build.dim("a", 4),))
    again = [build("exp", build("mul", x, build.constant(1.0, "f32"))) for _ in range(2)]
    build.output("y", build("add", *again))
    simpler = ir.run_passes(build.program(), "simplify,cse,dce")
    assert [eqn.op for eqn in simpler.function("forward").body] == ["exp", "add"]
    with pytest.raises(ir.PipelineError, match="unknown pass `fuse`"):
        ir.run_passes(simpler, "fuse")


@pytest.mark.parametrize(
    "rules", [{}, {"batch": "rows"}, {"batch": "rows", "io": ["cols"], "params": {"io": "rows"}}]
)
def test_a_lowered_program_means_the_same(rules: dict[str, object]) -> None:
    program = linear()
    lowered = ir.lower(program, {"rows": 2, "cols": 2}, rules, of="gradients")
    found = ir.interpret(lowered, {"x": X, "w": W}, "gradients")
    np.testing.assert_allclose(found["y"], X @ W)
    np.testing.assert_allclose(found["d_w"], 2 * X.T @ (X @ W))
    np.testing.assert_allclose(ir.interpret(program, {"x": X, "w": W})["loss"], np.square(X @ W).sum())


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_generated_modules_run(backend: str) -> None:
    lowered = ir.lower(linear(), {"rows": 2, "cols": 2}, {"batch": "rows", "io": "cols"})
    assert "def forward(" in ir.emit(lowered, backend)
    module = ir.load(lowered, backend)
    params, inputs = module.init(seed=0), {"x": X}
    if backend == "numpy":
        outputs = module.forward(params, module.shard(inputs, module.INPUTS))
        w = module.unshard(params, module.PARAMETERS)["w"]
        y = module.unshard(outputs, module.OUTPUTS["forward"])["y"]
    else:
        y, w = module.forward(params, inputs)["y"], params["w"]
    np.testing.assert_allclose(np.asarray(y), X @ np.asarray(w), rtol=1e-5)


def scanned(reverse: bool) -> ir.Program:
    """Return a running total of the rows of x, each multiplied by s; and its last value."""
    build = ir.ProgramBuilder("scan")
    steps, io = build.dim("steps", 3), build.dim("io", 2)
    x, s = build.input("x", "f32", (steps, io)), build.input("s", "f32")
    zeros = build("full", dims=(io,), value=0.0, dtype="f32")

    def body(
        b: ir.Builder, total: ir.Value, s: ir.Value, row: ir.Value
    ) -> tuple[Sequence[ir.Value], Sequence[ir.Value]]:
        total = b("add", total, b("mul", row, s))
        return [total], [total]

    last, totals = ir.loop(build, steps, body, carried=[zeros], invariant=[s], sliced=[x], reverse=reverse)
    build.output("last", last)
    build.output("totals", totals)
    return build.program()


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop(reverse: bool) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    program = scanned(reverse)
    assert ir.print_program(ir.parse_program(ir.print_program(program))) == ir.print_program(program)
    found = ir.interpret(program, {"x": x, "s": np.float32(2)})
    totals = 2 * (x[::-1].cumsum(0)[::-1] if reverse else x.cumsum(0))
    np.testing.assert_array_equal(found["totals"], totals)
    np.testing.assert_array_equal(found["last"], 2 * x.sum(0))
    gradients = ir.lower(program, {"all": 2}, {"io": "all"}, of="gradients")
    slopes = ir.interpret(gradients, {"x": x, "s": np.float32(2)}, "gradients")
    count = np.arange(1, 4) if reverse else np.arange(3, 0, -1)
    np.testing.assert_array_equal(slopes["d_x"], 2 * (count[:, None] + 1) * np.ones(2))


def test_a_loop_returns_its_carries() -> None:
    build = ir.ProgramBuilder("p")
    dim = build.dim("a", 2)
    x = build.input("x", "f32")
    with pytest.raises(ValueError, match="the loop has 1 carries, and its body returns 0"):
        ir.loop(build, dim, lambda b, x: ([], [x]), carried=[x])


def test_wrong_arguments_are_refused() -> None:
    build, program = ir.ProgramBuilder("p"), linear()
    build.dim("a", 4)
    build.input("x", "f32")
    cases = [
        ("dimension a has size 4, and not 5", lambda: build.dim("a", 5)),
        ("two values are called x", lambda: build.input("x", "f32")),
        ("unknown distribution gauss", lambda: build.parameter("w", "f32", init="gauss")),
        ("the numbers of normal are: mean, stddev", lambda: build.parameter("w", "f32", init="normal", low=1.0)),
        ("the numbers of constant are: value", lambda: build.parameter("w", "f32", init="constant")),
        ("the program has no dimension heads", lambda: ir.lower(program, {"rows": 2}, {"heads": "rows"})),
        ("batch is split over cols; the mesh has rows", lambda: ir.lower(program, {"rows": 2}, {"batch": "cols"})),
        ("each axis has at least one processor", lambda: ir.lower(program, {"rows": 0}, {})),
        ("the arguments of forward are: w, x", lambda: ir.interpret(program, {"x": X})),
        ("unknown kind of text c", lambda: ir.emit(program, "c")),
        ("unknown backend torch", lambda: ir.load(program, "torch")),
    ]  # fmt: skip
    for message, call in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_layout_that_splits_unevenly_is_refused() -> None:
    with pytest.raises(ir.VerifyError, match="does not divide its dimension evenly"):
        ir.lower(linear(), {"rows": 3}, {"batch": "rows"})


def test_every_public_name_is_there() -> None:
    assert [name for name in ir.__all__ if not hasattr(ir, name)] == []
    assert mtfc.ir is ir


def test_import_loads_nothing_heavy() -> None:
    code = "import mtfc, sys; assert 'mtfc.ir' not in sys.modules; mtfc.ir; print({'numpy', 'jax'} & {*sys.modules})"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "set()\n"
    )
