"""The Python API: the same options as the command, and errors as exceptions."""

import argparse
import os
import pickle
import re
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mtfc
from mtfc.backends.jax import backend as jax_backend
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.parser import read_program
from mtfc.driver.errors import in_python
from tests.cli.model import MODEL

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.mtf"
    path.write_text(MODEL)
    return path


def test_compile_a_file(model: Path) -> None:
    compiled = mtfc.compile(model, layout="both", dims={"batch": 8})
    assert compiled.program.layout is not None and compiled.program.layout.name == "both"
    assert compiled.program.dims["batch"].size == 8
    assert read_program(compiled.ir()).name == "small"


def test_options_are_those_of_the_command() -> None:
    compiled = mtfc.compile_text(MODEL, layout="batch:rows;io:cols", mesh="rows:2;cols:3")
    assert compiled.cost()["mesh"] == {"rows": 2, "cols": 3}
    assert compiled.cost()["step"]["collectives"]["all_reduce"]["count"] > 0


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_loaded_module_runs(backend: str) -> None:
    compiled = mtfc.compile_text(MODEL, layout="both")
    module = compiled.load(backend)
    x = np.ones((4, 6), np.float32)
    inputs = module.shard({"x": x, "labels": np.zeros(4, np.int32)}, module.INPUTS)
    params = module.init(seed=3)
    y = module.unshard(module.forward(params, inputs), module.OUTPUTS["forward"])["y"]
    w = module.unshard(params, module.PARAMETERS)["w"]
    np.testing.assert_allclose(y, x @ w, rtol=1e-5)
    assert getattr(compiled, backend)().startswith('"""small on mesh grid = [rows: 2, cols: 3]')


# Options as Python values


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ({}, "{}"),
        ({"batch": "rows"}, "batch:rows"),
        ({"batch": "rows", "io": ["cols"]}, "batch:rows;io:cols"),
        ({"batch": ("rows", "cols")}, "{ batch: (rows, cols) }"),
        (
            {"batch": "rows", "params": {"io": "cols"}, "optimizer": {"io": ("cols", "rows")}},
            "{ batch: rows, params: { io: cols }, optimizer: { io: (cols, rows) } }",
        ),
        ({"batch": "rows", "value y": {"batch": "cols"}}, "{ batch: rows, value y: { batch: cols } }"),
    ],
)
def test_a_mapping_is_a_layout(layout: dict[str, Any], text: str) -> None:
    mesh, sizes = {"rows": np.int64(2), "cols": 3}, {"batch": 6}
    given = mtfc.compile_text(MODEL, layout=layout, mesh=mesh, dims=sizes)
    spelt = mtfc.compile_text(MODEL, layout=text, mesh="rows:2;cols:3", dims=sizes)
    assert given.ir() == spelt.ir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": 3}, "layout=3 is neither text nor a mapping"),
        ({"layout": {1: "rows"}}, "layout has the key 1, which is no name"),
        ({"layout": {"batch: rows, io": "cols"}}, "which is no name"),
        ({"layout": {"batch": 1}}, "layout splits 'batch' over 1"),
        (
            {"layout": {"batch": "rows; io"}},
            "layout has 'rows; io' where the name of a mesh axis is expected",
        ),
        ({"layout": {"batch": ("rows", 2)}}, "layout has 2 where the name of a mesh axis is expected"),
        ({"layout": {"params": {"io": {"io": "rows"}}}}, "layout has rules within rules for 'io'"),
        ({"mesh": 8}, "mesh=8 is neither text nor a mapping"),
        ({"mesh": {}}, r"mesh=\{\} has no axes"),
        ({"mesh": {"rows": 2.0}}, "axis 'rows' of the mesh is 2.0, which is no whole number"),
        ({"dims": {"batch": "8"}}, r"dims\['batch'\] is '8', which is no whole number"),
        ({"dims": [("batch", 8)]}, "is no mapping such as"),
        ({"dims": {"batch": True}}, r"dims\['batch'\] is True, which is no whole number"),
        ({"mesh": {"rows": True}}, "axis 'rows' of the mesh is True, which is no whole number"),
        ({"model": 3}, "model=3 is no text"),
        ({"set": "accumulate=4"}, "set='accumulate=4': entries of a train block are a mapping"),
        ({"set": {1: 2}}, "set has the key 1: entries of a train block are a mapping"),
        ({"set": {"precision": {"compute = f32": "bf16"}}}, "set has the key 'compute = f32'"),
        ({"file": 3}, "3 is no path of a .mtf file; a function of JAX goes to `mtfc.from_jax`"),
    ],
)
@pytest.mark.parametrize("function", [mtfc.compile_text, mtfc.check_text])
def test_values_that_cannot_be(
    function: Callable[..., object], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function(MODEL, **options)


def test_a_mapping_that_is_wrong_is_shown_as_text() -> None:
    with pytest.raises(CompileError) as error:
        mtfc.compile_text(MODEL, layout={"batch": "rows", "oi": "cols"}, mesh={"rows": 2, "cols": 3})
    assert (
        str(error.value)
        == """\
error[E303]: unknown dimension `oi`
 --> <--layout>:1:16
  |
1 | { batch: rows, oi: cols }
  |                ^^
  |
  = help: one of: batch, classes, io"""
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: mtfc.diff(path, "both"), "give both a and b, or neither"),
        (lambda path: mtfc.search(path, target="h100"), "say how many with `devices` N"),
        (lambda path: mtfc.search(path, target="h100", devices=2, space="all"), "space='all' is none of"),
        (lambda path: mtfc.search(path, target="h100", devices=2, objective="x"), "objective='x' is none"),
        (lambda path: mtfc.search(path, target="h100", devices=0), "devices=0 is not from 1 to 1,000,000"),
        (lambda path: mtfc.search(path, target="h100", devices="2"), "devices is '2', which is no whole"),
        (lambda path: mtfc.search(path, target="h100", devices=2, budget=0), "budget=0 is no number of sec"),
        (lambda path: mtfc.compile(None), "None is no path of a .mtf file"),
        (lambda path: mtfc.compile(3), "3 is no path of a .mtf file"),
        (lambda path: mtfc.check(b"a.mtf"), "b'a.mtf' is no path of a .mtf file"),
        (lambda path: mtfc.compile_text(None), "text=None is not the text of a .mtf file"),
        (lambda path: mtfc.check_text(b"dim a = 1"), "is not the text of a .mtf file"),
        (lambda path: mtfc.diff(path, target=3), "target=3 is no path"),
        (lambda path: mtfc.search(path, target=3), "target=3 is no path"),
        (lambda path: mtfc.search(path), "say how many with `devices` N"),
        (lambda path: mtfc.compile(path).simulate(3), "target=3 is no path"),
        (lambda path: mtfc.search(path, target="h100", axes_names=[1]), r"axes_names=\[1\] is no sequence"),
        (lambda path: mtfc.search(path, target="h100", axes_names="a,b"), "axes_names='a,b' is no sequence"),
        (lambda path: mtfc.search(path, target="h100", devices=True), "devices is True, which is no whole"),
        (lambda path: mtfc.search(path, target="h100", devices=2, budget=True), "budget=True is no number"),
        (lambda path: mtfc.search(path, target="h100", devices=2, space=["rules"]), "is none of"),
        (lambda path: mtfc.search(path, target="h100", devices=2, model=1), "model=1 is no text"),
        (lambda path: mtfc.verify(path, data={"x": 1}), "data={'x': 1} is no path"),
        (lambda path: mtfc.verify(path, params=3), "params=3 is no path"),
        (lambda path: mtfc.verify(path, seed=True), "seed is True, which is no whole number"),
        (lambda path: mtfc.verify(path, seed=-1), "seed=-1 is not from 0 to 4,294,967,295"),
        (lambda path: mtfc.verify(path, backend="torch"), "backend='torch' is none of: numpy, jax"),
        (lambda path: mtfc.verify(path, dtype="f16"), "dtype='f16' is none of: f32, f64"),
        (lambda path: mtfc.compile(path).load("torch"), "backend='torch' is none of: numpy, jax"),
    ],
)
def test_options_that_do_not_go_together(call: Callable[[Path], object], message: str, model: Path) -> None:
    with pytest.raises(ValueError, match=message) as error:
        call(model)
    assert frames_of_mtfc(error.value) == 1


# Errors


def frames_of_mtfc(error: BaseException) -> int:
    """Return the number of frames of the package in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return sum(Path(frame.filename).is_relative_to(ROOT / "mtfc") for frame in frames)


def test_errors_carry_their_diagnostics() -> None:
    with pytest.raises(CompileError) as error:
        mtfc.compile_text("dim a = 0\ndim b = 0\nmodel m(x: f32[a]) { return x }", file="given.mtf")
    assert [diagnostic.code for diagnostic in error.value.diagnostics] == ["E207", "E207"]
    assert error.value.diagnostics[0].file == "given.mtf"


def test_entries_of_the_train_block_are_changed() -> None:
    changed = mtfc.compile_text(
        MODEL, layout="data", set={"accumulate": 2, "optimizer.learning_rate": 1e-3, "clip": "1 / 2"}
    )
    training = changed.program.training
    assert training is not None and (training.accumulate, training.clip) == (2, 0.5)
    assert "0.001" in changed.jax()
    reporting = mtfc.compile_text(MODEL, layout="data", set={"report": ["learning_rate", "grad_norm"]})
    assert reporting.program.training is not None
    assert reporting.program.training.report == ("learning_rate", "grad_norm")
    with pytest.raises(CompileError, match=r"E012.*\n --> <--set>:1:1\n"):
        mtfc.compile_text(MODEL, set={"acumulate": 2})


def test_parts_of_an_entry_may_be_a_mapping() -> None:
    nested = mtfc.compile_text(
        MODEL, set={"precision": {"compute": "bf16"}, "optimizer": {"learning_rate": 1}}
    )
    dotted = mtfc.compile_text(MODEL, set={"precision.compute": "bf16", "optimizer.learning_rate": 1})
    assert "bf16" in nested.ir() and nested.ir() == dotted.ir()


@pytest.mark.parametrize("allow", ["W601", ("W601", "W602")])
def test_a_mapping_allows_warnings(allow: str | tuple[str, ...]) -> None:
    mesh = {"rows": 2, "cols": 3}
    assert [each.code for each in mtfc.check_text(MODEL, layout={"batch": "rows"}, mesh=mesh)] == ["W601"]
    assert not mtfc.check_text(MODEL, layout={"batch": "rows", "allow": allow}, mesh=mesh)


def test_a_dimension_may_be_called_allow() -> None:
    text = MODEL.replace("batch", "allow_").replace("allow_", "allow")
    same = mtfc.compile_text(text, layout={"allow": "rows"}, mesh={"rows": 2})
    assert same.ir() == mtfc.compile_text(text, layout="allow: rows", mesh="rows:2").ir()


def test_compiled_models_are_told_apart_by_identity() -> None:
    one, other = mtfc.compile_text(MODEL), mtfc.compile_text(MODEL)
    assert len({one, other, one}) == 2 and one == one and one != other


def test_the_package_lists_its_public_names() -> None:
    assert dir(mtfc) == sorted(mtfc.__all__)
    assert {"Unavailable", "NothingFits", "compile"} <= {*dir(mtfc)}


def test_helps_name_arguments(model: Path) -> None:
    """Messages name arguments of Python, and not options of the command."""
    np.savez(model.parent / "some.npz", w=np.zeros((6, 3), np.float32))
    with pytest.raises(CompileError) as error:
        mtfc.verify(model, params=model.parent / "some.npz", backend="numpy")
    assert "help: `params_partial` draws what the file lacks from `seed`" in str(error.value)
    with pytest.raises(CompileError) as error:
        mtfc.compile_text(
            MODEL.replace("mesh ", "# mesh ").replace("layout ", "# layout "), layout="batch: all"
        )
    assert "`mesh='all:2'`" in str(error.value) and "--mesh" not in str(error.value)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("smaller dimensions with --dim NAME=SIZE", "smaller dimensions with `dims`"),
        ("`mtfc compile --emit ir` shows it", "`mtfc compile --emit ir` shows it"),
        ("give one with `--layout`, or --why-not", "give one with `layout`, or `why_not`"),
        ("choose `--model big`", "choose `model='big'`"),
    ],
)
def test_options_as_arguments(message: str, shown: str) -> None:
    assert in_python(message) == shown


def test_one_device() -> None:
    compiled = mtfc.compile_text(MODEL, mesh="one")
    assert compiled.program.mesh is not None and compiled.program.mesh.devices == 1
    assert compiled.cost()["layout"] == "undistributed"


def test_an_error_is_shown_as_the_command_shows_it(model: Path) -> None:
    model.write_text(MODEL.replace("f32[batch, io]", "f32[batch, oi]"))
    run = subprocess.run(
        [sys.executable, "-m", "mtfc", "compile", str(model)], capture_output=True, text=True, cwd=ROOT
    )
    with pytest.raises(mtfc.CompileError) as error:
        mtfc.compile(model)
    assert f"{error.value}\n" == run.stderr
    assert "^^" in run.stderr and "one of: batch, classes, io" in run.stderr


def test_errors_can_be_sent_to_another_process() -> None:
    with pytest.raises(CompileError) as error:
        mtfc.compile_text("dim a = 0")
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value) and again.diagnostics == error.value.diagnostics


def test_a_file_that_is_no_text(model: Path) -> None:
    model.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CompileError) as error:
        mtfc.compile(model)
    assert str(error.value).startswith("error[E") and frames_of_mtfc(error.value) == 1


def test_a_file_without_a_model() -> None:
    with pytest.raises(ValueError, match="<text> declares no model"):
        mtfc.compile_text("dim a = 4")


def test_a_machine_of_a_file(model: Path) -> None:
    machine = model.parent / "own.mtf"
    machine.write_text("hardware own = { device: { flops: { f32: 1e12 }, memory: 1e9, bandwidth: 1e11 } }")
    assert mtfc.compile(model, layout={}, mesh={"one": 1}).simulate(machine)["target"] == "own"
    machine.write_text("hardware own = { device: { flop: 1 } }")
    with pytest.raises(CompileError, match=r"own.mtf:1:\d+\n +\|\n1 \| hardware own = "):
        mtfc.compile(model).simulate(machine)


def test_an_error_shows_lines_of_imported_files_and_of_the_library(model: Path) -> None:
    (model.parent / "other.mtf").write_text("dim a = 0\n")
    model.write_text("import other\nmodel m(x: f32[other.a]) { return x }\n")
    with pytest.raises(CompileError, match=r"other.mtf:1:\d+\n +\|\n1 \| dim a = 0\n"):
        mtfc.compile(model)


def test_an_error_shows_no_frames_but_the_call() -> None:
    with pytest.raises(CompileError) as error:
        mtfc.compile_text("dim a = 0")
    assert frames_of_mtfc(error.value) == 1
    assert error.value.__cause__ is None and error.value.__suppress_context__
    with pytest.raises(CompileError) as error:
        mtfc.compile_text(MODEL).simulate("abacus")
    assert frames_of_mtfc(error.value) == 1
    assert "1 | abacus\n  | ^^^^^^" in str(error.value)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtfc.api.choose", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError) as error:
        mtfc.compile_text(MODEL)
    assert frames_of_mtfc(error.value) > 1


@pytest.mark.parametrize(
    "call",
    [
        lambda path: mtfc.compile(path),
        lambda path: mtfc.check(path),
        lambda path: mtfc.cost(path),
        lambda path: mtfc.search(path, target="h100", devices=2),
    ],
)
def test_a_missing_file(call: Callable[[str], object]) -> None:
    with pytest.raises(FileNotFoundError) as error:
        call("missing.mtf")
    assert frames_of_mtfc(error.value) == 1


def test_too_few_devices_name_the_line_of_configuration() -> None:
    code = """
import jax, mtfc, tests.cli.model
jax.config.update("jax_num_cpu_devices", 2)
jax.devices()
try:
    mtfc.compile_text(tests.cli.model.MODEL, layout="both").load("jax")
except mtfc.Unavailable as error:
    print(error)
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert '`jax.config.update("jax_num_cpu_devices", 6)` before the first use of JAX' in run.stdout, run
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=6" in run.stdout


# Diagnostics as data


def test_check_gives_diagnostics_as_data(model: Path) -> None:
    text = MODEL.replace("f32[batch, io]", "f32[batch, oi]", 1)
    model.write_text(text)
    found = mtfc.check(model)
    first = found[0]
    assert (first.code, first.severity, first.file) == ("E103", "error", str(model))
    assert text.splitlines()[first.line - 1][first.column - 1 :].startswith("oi")
    assert first.help == "one of: batch, classes, io" and "oi" in first.message
    assert not found.ok and found.errors == tuple(found) and found.warnings == ()
    assert str(first).splitlines()[0] == f"error[E103]: {first.message}"
    assert f"{first.line} | {text.splitlines()[first.line - 1]}" in str(first)
    assert repr(found).startswith(f"<Checked {model}: ")


def test_check_says_what_the_command_says(model: Path) -> None:
    model.write_text(MODEL + "\nlayout again on nowhere = { batch: rows }\ndim io = 3\n")
    run = subprocess.run(
        [sys.executable, "-m", "mtfc", "check", str(model)], capture_output=True, text=True, cwd=ROOT
    )
    found = mtfc.check(model)
    assert len(found) == 2 and str(found) == f"{run.stderr}\n{run.stdout}".rstrip("\n")
    texts = [str(each).replace(str(model), "m") for each in found]
    again = mtfc.check_text(model.read_text(), file="m")
    assert [str(each) for each in again] == texts


def test_check_of_a_file_without_errors(model: Path) -> None:
    found = mtfc.check(model, layout={"batch": "rows"}, mesh={"rows": 2})
    assert found.ok and len(found) == 0 and str(found) == f"{model}: no errors"


def test_check_of_a_file_that_is_no_text(model: Path) -> None:
    model.write_bytes(b"\xff\xfe\x00")
    found = mtfc.check(model)
    assert not found.ok and len(found) == 1


def test_labels_have_places() -> None:
    (found,) = mtfc.check_text("dim a = 2\ndim a = 3\nmodel m(x: f32[a]) { return x }")
    assert [(label.file, label.line, label.column) for label in found.labels] == [("<text>", 1, 5)]


# Short and long forms of a compiled model


def test_a_compiled_model_has_a_short_text() -> None:
    compiled = mtfc.compile_text(MODEL, layout="both")
    assert re.fullmatch(
        r"<Compiled small: mesh grid = \[rows: 2, cols: 3\], layout both \{batch: rows, io: cols\}, "
        r"2 parameters of 21 numbers, \d+ B per device>",
        repr(compiled),
    )


class Table(HTMLParser):
    """A parser that checks that elements nest, and collects the cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag in ("td", "th", "caption"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert self.open[-1] in ("td", "th", "caption")
        self.cells[-1] += data


def test_a_compiled_model_is_a_table_in_notebooks() -> None:
    compiled = mtfc.compile_text(MODEL, layout="both")
    cost, cells = compiled.cost(), Table(compiled._repr_html_()).cells
    rows = dict(zip(cells[1::2], cells[2::2], strict=True))
    assert cells[0] == "small" and rows["mesh"] == "grid = [rows: 2, cols: 3]"
    assert rows["layout"].startswith("both {") and rows["parameters"].startswith("2 parameters of ")
    assert rows["training step, per device"].startswith(f"{cost['step']['flops_per_device']} FLOP, ")
    assert rows["memory per device"].startswith(f"{cost['memory_per_device']['total']} B: parameters ")


def test_html_is_escaped() -> None:
    """Names in files lack these characters, but names in programs from elsewhere may have them."""
    compiled = mtfc.compile_text(MODEL, layout="both")
    renamed = attrs.evolve(compiled, placed=attrs.evolve(compiled._placed, name="<b>&"))
    assert Table(renamed._repr_html_()).cells[0] == "<b>&"


def test_a_forward_pass_alone_is_shown() -> None:
    compiled = mtfc.compile_text("dim a = 4\nmodel m(x: f32[a]) { return x }")
    assert "training step, per device" not in Table(compiled._repr_html_()).cells
    assert "0 parameters of 0 numbers" in repr(compiled)


# Parts of the API


def test_the_version_is_the_packages() -> None:
    assert mtfc.__version__ == PYPROJECT["version"]


def test_modules_name_the_jax_that_is_required() -> None:
    assert f"jax>={jax_backend.JAX}" in PYPROJECT["optional-dependencies"]["jax"]
    docstring = mtfc.compile_text(MODEL).jax().split('"""')[1]
    assert f"Needs JAX {jax_backend.JAX} or later" in docstring


def test_the_api_makes_no_parser_of_arguments(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("an ArgumentParser is made")

    monkeypatch.setattr(argparse.ArgumentParser, "__init__", refused)
    assert mtfc.search(model, target="p100_cluster", devices=2, budget=1.0)["devices"] == 2
    assert mtfc.check(model).ok and mtfc.verify(model, backend="numpy")["ok"]


def test_only_what_runs_imports_jax(model: Path) -> None:
    code = f"""
import sys, mtfc
assert not {{"numpy", "jax", "lark"}} & {{*sys.modules}}, "importing mtfc"
compiled = mtfc.compile({str(model)!r}, layout="both")
repr(compiled), compiled._repr_html_(), compiled.simulate("h100"), mtfc.check({str(model)!r})
mtfc.cost({str(model)!r}), mtfc.explain({str(model)!r}), mtfc.diff({str(model)!r}), compiled.jax()
assert "jax" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr


def test_verify_leaves_the_precision_of_jax_alone(model: Path) -> None:
    import jax

    before = jax.config.jax_default_matmul_precision
    assert mtfc.verify(model, layout={"batch": "rows"}, mesh={"rows": 2}, backend="jax")["ok"]
    assert jax.config.jax_default_matmul_precision == before


def test_all_names_of_the_package_exist() -> None:
    assert all(getattr(mtfc, name) is not None for name in mtfc.__all__)
    with pytest.raises(AttributeError, match="no attribute `compil`"):
        mtfc.compil  # noqa: B018


def test_every_function_takes_entries_of_the_train_block(model: Path) -> None:
    clipped = {"clip": 1.0}
    assert mtfc.check(model, set=clipped).ok and not mtfc.check(model, set={"clap": 1.0}).ok
    plain, changed = mtfc.cost(model), mtfc.cost(model, set=clipped)
    assert changed["layouts"][0]["step"]["flops_per_device"] > plain["layouts"][0]["step"]["flops_per_device"]
    assert mtfc.diff(model, set=clipped)["flops_per_device"] != mtfc.diff(model)["flops_per_device"]
    assert len(mtfc.explain(model, layout="both", set=clipped)["collectives"]) > 0
    assert mtfc.verify(model, layout="both", backend="numpy", set=clipped)["ok"]


def test_axes_of_a_search_have_names(model: Path) -> None:
    found = mtfc.search(model, target="p100_cluster", devices=4, axes_names=("data", "model"))
    assert {*found["mesh"]} <= {"data", "model"}
    with pytest.raises(ValueError, match="`axes_names` data,data: `data` occurs twice"):
        mtfc.search(model, target="p100_cluster", devices=4, axes_names=("data", "data"))


def test_constraints_have_a_version_of_every_requirement() -> None:
    """`make LOCKED=1 setup` installs versions that `pyproject.toml` allows; `make lock` writes them."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    versions = {
        canonicalize_name(name): version for name, _, version in (each.partition("==") for each in lines)
    }
    extras = PYPROJECT["optional-dependencies"]
    for text in (*PYPROJECT["dependencies"], *extras["dev"], *extras["jax"], *extras["train"]):
        wanted = Requirement(text)
        assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), text
