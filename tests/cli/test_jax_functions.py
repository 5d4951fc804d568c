"""Functions of JAX in the place of a .mtf file: `MODULE:FUNCTION` with `--args`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Mtfc

MODULE = """
import jax
import jax.numpy as jnp

print("imported")


def loss(params, x, y):
    h = jnp.tanh(x @ params["up"])
    return jnp.mean((jax.scipy.special.erfinv(0.5 * jnp.tanh(h @ params["down"])) - y) ** 2)


def step(params, x, y):
    value, gradients = jax.value_and_grad(loss)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def array(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


example = {"up": array(16, 64), "down": array(64, 16)}, array(32, 16), array(32, 16)
names = {"params/up": "embed hidden"}


def named():
    return example[:1], {"x": example[1], "y": example[2]}


def failing():
    raise RuntimeError("no data")


def branching(params, x, y):
    if x.sum() > 0:
        return x
    return y


def with_trees(p, batch):
    return p[0] * batch["x"]


def unrolled(layers, x):
    for p in layers:
        x = x + jnp.tanh(x @ p["up"]) @ p["down"]
    return x.sum()


def counted(layers, x):
    for i, p in enumerate(layers):
        x = x + jnp.tanh(x @ p["up"]) @ p["down"] * (1 + i)
    return x.sum()


def one_for_all(layers, x):
    for p in layers:
        x = x + jnp.tanh(x @ layers[0]["up"]) @ layers[0]["down"]
    return x.sum()


twelve = [example[0]] * 12, array(8, 16)
five = [example[0]] * 5, array(8, 16)


def whole(x):
    y = jnp.linalg.cholesky(x @ x.T)
    return jnp.linalg.cholesky(y + 1) + x[::2].sum()


def root_from_two(x):
    return jnp.sqrt(x - 2)


three = (jnp.full(8, 3.0),)
some = (array(8),)
square = (array(8, 8),)
trees = (array(4),), {"x": array(4)}


def mismatched(params, x, y):
    return x @ params["down"]
"""

STEP = ("jax_user:step", "--args", "jax_user:example", "--names", "jax_user:names")
LAYOUT = ("--layout", "batch:data;hidden:model", "--mesh", "data:2;model:2")


@pytest.fixture(autouse=True)
def module(folder: Path) -> None:
    (folder / "jax_user.py").write_text(MODULE)


def test_a_function_is_checked_priced_explained_and_predicted_by_its_lines(mtfc: Mtfc) -> None:
    assert mtfc("check", *STEP, *LAYOUT).out == "jax_user:step: no errors\n"
    cost = mtfc("cost", *STEP, *LAYOUT, "--format", "json").json["layouts"][0]
    assert (cost["layout"], cost["mesh"]) == ("given", {"data": 2, "model": 2})
    assert 'h = jnp.tanh(x @ params["up"])' in mtfc("cost", *STEP, *LAYOUT).out
    sent = mtfc("explain", *STEP, *LAYOUT, "--format", "json").json["collectives"]
    assert {rule for each in sent for rule in re.findall("batch|hidden", json.dumps(each))} == {
        "batch",
        "hidden",
    }
    step = mtfc("simulate", *STEP, *LAYOUT, "--target", "h100", "--format", "json").json
    assert step["step_seconds"] > 0
    text = mtfc("compile", *STEP, *LAYOUT).out
    assert "f32[batch{data}, hidden{model}]" in text


def test_primitives_that_no_layout_splits_are_named_once(mtfc: Mtfc) -> None:
    found = mtfc("check", "jax_user:whole", "--args", "jax_user:square")
    assert (found.status, found.out) == (0, "jax_user:whole: 1 warning\n")
    assert found.err.count("warning[W801]: every processor computes `cholesky` whole") == 1
    assert "y = jnp.linalg.cholesky(x @ x.T)" in found.err
    assert "and here" in found.err
    (record,) = mtfc("check", "jax_user:whole", "--args", "jax_user:square", "--format", "json").json
    assert (record["code"], record["severity"]) == ("W801", "warning")


def test_unrolled_layers_that_differ_in_parameters_alone_are_named(mtfc: Mtfc) -> None:
    found = mtfc("check", "jax_user:unrolled", "--args", "jax_user:twelve")
    assert (found.status, found.out) == (0, "jax_user:unrolled: 1 warning\n")
    assert "warning[W802]: at least 12 copies of a layer in a row" in found.err
    assert 'x = x + jnp.tanh(x @ p["up"]) @ p["down"]' in found.err
    assert "`jax.lax.scan`" in found.err


@pytest.mark.parametrize(
    ("function", "arguments"), [("unrolled", "five"), ("counted", "twelve"), ("one_for_all", "twelve")]
)
def test_other_layers_are_not(mtfc: Mtfc, function: str, arguments: str) -> None:
    found = mtfc("check", f"jax_user:{function}", "--args", f"jax_user:{arguments}")
    assert (found.status, found.out) == (0, f"jax_user:{function}: no errors\n")


def test_a_search_writes_a_plan_that_the_other_commands_read(mtfc: Mtfc, folder: Path) -> None:
    options = "--target", "h100", "--mesh", "data:2;model:2", "--budget", "1", "--objective", "memory"
    found = mtfc("search", *STEP, *options, "-o", "plan.json", "--format", "json").json
    record = json.loads((folder / "plan.json").read_text())
    assert record["mesh"] == {"data": 2, "model": 2}
    assert record["layout"]["rules"]
    cost = mtfc("cost", *STEP, "--layout", "plan.json", "--format", "json").json["layouts"][0]
    whole = mtfc("cost", *STEP, "--format", "json").json["layouts"][0]
    assert (cost["layout"], cost["mesh"]) == ("plan", record["mesh"])
    assert cost["memory_per_device"]["total"] < whole["memory_per_device"]["total"]
    assert found["mesh"] == record["mesh"]
    compared = mtfc(
        "diff", *STEP, "--layout", "plan.json", "--layout", "batch:data", "--mesh", "data:2;model:2"
    )
    assert (compared.status, "from layout plan to layout given" in compared.out) == (0, True)
    other = mtfc("cost", *STEP[:3], "--layout", "plan.json")
    assert (other.status, "other names of dimensions" in other.err) == (2, True)
    (folder / "broken.json").write_text("{}")
    assert mtfc("cost", *STEP, "--layout", "broken.json").status == 2


def test_verify_takes_the_example_where_drawn_numbers_prove_nothing(mtfc: Mtfc) -> None:
    function = "verify", "jax_user:root_from_two", "--layout", "batch:data", "--mesh", "data:2", "--no-exact"
    assert mtfc(*function, "--args", "jax_user:three").status == 0
    found = mtfc(*function, "--args", "jax_user:some")
    assert found.status == 1
    assert "100% of the numbers prove nothing: they are NaN or infinite" in found.out


def test_verify_compares_all_roads(mtfc: Mtfc) -> None:
    found = mtfc("verify", *STEP, *LAYOUT)
    assert found.status == 0
    lines = found.out.splitlines()
    assert [line.split()[0] for line in lines] == ["step:", "import", "given", "plan.apply", "plan.step"]
    assert "elements are equal" in lines[2]
    record = mtfc("verify", *STEP, *LAYOUT, "--no-exact", "--format", "json").json
    assert record["ok"]
    assert {each["road"] for each in record["outputs"]} == {"plan.apply", "plan.step"}
    assert record["exact"] == []
    assert mtfc("verify", *STEP, *LAYOUT, "--backend", "numpy").status == 2


def test_a_plan_is_inspected_with_and_without_constraints(mtfc: Mtfc) -> None:
    found = mtfc("inspect", *STEP, *LAYOUT, "--target", "cpu:4", "--apply", "--format", "json").json
    assert found["collectives"] == found["predicted"]["collectives"]
    assert found["apply"]["collectives"]["all_reduce"]["bytes_per_device"] > 0
    assert found["memory_per_device"]["arguments"] == found["predicted"]["memory_per_device"]["arguments"]
    text = mtfc("inspect", *STEP, *LAYOUT, "--target", "cpu").out
    assert 'h = jnp.tanh(x @ params["up"])' in text
    assert "plan.apply" not in text
    refused = mtfc("inspect", "model.mtf", "--target", "cpu", "--apply")
    assert (refused.status, "--apply is for functions of JAX" in refused.err) == (2, True)


def test_arguments_may_have_names_and_come_from_a_function(mtfc: Mtfc, folder: Path) -> None:
    (folder / "names.json").write_text('{"params/up": "embed hidden"}')
    named = "jax_user:step", "--args", "jax_user:named", "--names", "names.json", "--parameters", "0"
    assert mtfc("check", *named, *LAYOUT).status == 0
    assert mtfc("check", *named, "--no-merge").status == 0
    assert mtfc("check", "jax_user:with_trees", "--args", "jax_user:trees").status == 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["jax_user:step"], 2, "a function of JAX takes --args MODULE:EXAMPLE_ARGS"),
        (["model.mtf", "--no-merge"], 2, "go with --args"),
        (["model.mtf", "--args", "jax_user:example"], 2, "model.mtf: expected MODULE:FUNCTION"),
        (["jax_user:step", "--args", "jax_user:nothing"], 2, "has no value nothing"),
        (["jax_user:step", "--args", "jax_user:names"], 2, "found a dict; expected a tuple"),
        (["jax_user:step", "--args", "jax_user:failing"], 2, 'in failing: raise RuntimeError("no data")'),
        (["jax_user:array", "--args", "jax_user:failing"], 2, "no data"),
        (["jax_user:loss", "--args", "jax_user:names"], 2, "found a dict"),
        (["jax_user:failing", "--args", "jax_user:example"], 2, "3 arguments do not fit failing()"),
        (["jax_user:example", "--args", "jax_user:example"], 2, "example is a tuple; expected a function of JAX"),
        (["no_such:step", "--args", "jax_user:example"], 2, "no module no_such"),
        ([*STEP, "--parameters", "3"], 2, "gets 3 arguments, numbered from 0"),
        ([*STEP, "--dim", "batch=4"], 2, "one program at fixed sizes"),
        ([*STEP[:3], "--names", "model.mtf"], 2, "--names model.mtf: expected JSON"),
        ([*STEP[:3], "--names", "jax_user:example"], 2, "expected texts by texts"),
        ([*STEP, "--layout", "heads:data", "--mesh", "data:2"], 1, "heads"),
        ([*STEP, "--layout", "batch:data", "--mesh", "data:3"], 1, "batch"),
        (["jax_user:branching", "--args", "jax_user:example"], 1, "if x.sum() > 0:"),
        (["jax_user:mismatched", "--args", "jax_user:example"], 2, 'in mismatched: return x @ params["down"]'),
    ],
)  # fmt: skip
def test_wrong_functions_are_named(mtfc: Mtfc, arguments: list[str], status: int, message: str) -> None:
    found = mtfc("check", *arguments)
    assert (found.status, "Traceback" in found.err) == (status, False)
    assert message in found.err


def test_no_result_replaces_what_is_read(mtfc: Mtfc, folder: Path) -> None:
    (folder / "names.json").write_text('{"params/up": "embed hidden"}')
    named = "jax_user:step", "--args", "jax_user:example", "--names", "names.json"
    for output in ("jax_user.py", "names.json"):
        found = mtfc("search", *named, "--target", "h100", "--devices", "2", "-o", output)
        assert (found.status, "would overwrite" in found.err) == (2, True)
    assert mtfc("compile", *named, "--layout", "plan.json", "-o", "plan.json").status == 2
    assert (folder / "jax_user.py").read_text() == MODULE


def test_files_need_no_jax(folder: Path) -> None:
    code = (
        "import sys; from mtfc.cli import main; main(['cost', 'model.mtf']); sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
