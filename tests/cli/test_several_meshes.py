"""Layouts of several meshes: where equations run, what travels, and what commands make of them."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import mtfc as api
from mtfc.backends.jax import runtime
from mtfc.driver.loading.cases import MultiMeshCase
from mtfc.meshes.module import generate
from mtfc.meshes.multi_mesh_cost import multi_mesh_cost
from mtfc.meshes.multi_mesh_program import MultiMeshProgram
from mtfc.meshes.segments import Segment
from tests.cli.conftest import Mtfc
from tests.harness import load

DIMS = "dim batch = 8\ndim vocab = 16\ndim model = 4\ndim hidden = 8\n"
MESHES = "mesh front = [all: 2]\nmesh back = [rows: 2, cols: 2]\n"
EMBED = """
fn embed[vocab, model](tokens: i32[...]) -> [..., model] {
  param table: [vocab, model] = normal(stddev = 0.5)
  return gather(table, tokens, vocab)
}
"""
TRAIN = "train net { minimize loss; optimizer = adam(learning_rate = 0.1) }\n"

BODY = """
model net(tokens: i32[batch], y: [batch, model]) {
  x = embed[vocab = vocab, model = model](tokens)
  param w: [model, hidden] = normal(stddev = 0.5)
  h = tanh(einsum(x, w -> [batch, hidden]))
  z = einsum(h, w -> [batch, model])
  loss = mean(square(z - y))
  return loss, z
}
"""
TWO = (
    "layout two on back = { batch: rows, hidden: cols, part embed on front: { batch: all, params: { vocab: all } } }\n"
    "layout one on back = { batch: rows, hidden: cols }\n"
)
SOURCE = DIMS + MESHES + TWO + EMBED + BODY + TRAIN

SHIFTED = """
mesh front = [all: 4]
mesh back = [rows: 2, cols: 2]
layout two on back = { batch: cols, vocab: rows, part moved on front: { vocab: all } }
fn moved[batch, vocab](x: [batch, vocab]) -> [batch, vocab] {
  return shift(x, vocab, by = 1)
}
model net(x: [batch, vocab]) {
  z = shift(moved[batch = batch, vocab = vocab](x), vocab, by = 1)
  return z
}
"""

TIED = """
model net(tokens: i32[batch]) {
  param table: [vocab, model] = normal(stddev = 0.5)
  x = gather(table, tokens, vocab)
  h = tanh(x)
  logits = einsum(h, table -> [batch, vocab])
  loss = mean(square(logits - one_hot(tokens, vocab)))
  return loss, h
}
"""


def multi_mesh(source: str, of: str = "step") -> MultiMeshProgram:
    module = load(source)
    return MultiMeshCase.of(module.multi_mesh[0]).program(module.programs[0], of)


def meshes_of(source: str, function: str) -> list[tuple[str, set[str]]]:
    """Return the mesh of each segment of a function, with the ops that run there."""
    program = multi_mesh(source)
    found = next(each for each in program.functions if each.name == function)
    return [(program.meshes[s.part].name, {e.op for e in s.function.body}) for s in found.segments]


def test_a_part_runs_on_its_mesh_forward_and_backward() -> None:
    forward, step = meshes_of(SOURCE, "forward"), meshes_of(SOURCE, "step")
    assert [mesh for mesh, _ in forward] == ["front", "back"]
    assert "gather" in forward[0][1] and "einsum" not in forward[0][1]
    assert {mesh for mesh, ops in step if "scatter_add" in ops} == {"front"}
    assert {mesh for mesh, ops in step if "einsum" in ops} == {"back"}
    assert step[-1][0] == "front" or step[-2][0] == "front"


def test_parameters_are_stored_where_they_are_declared() -> None:
    program = multi_mesh(SOURCE)
    homes = {name: program.meshes[place.part].name for name, place in program.places.items()}
    assert homes["embed.table"] == homes["embed.table.m"] == "front"
    assert homes["w"] == homes["w.v"] == homes["y"] == "back" and homes["tokens"] == "front"


def test_only_values_that_are_read_elsewhere_travel() -> None:
    program = multi_mesh(SOURCE)
    (forward,) = (each for each in program.functions if each.name == "forward")
    assert set(forward.segments[0].outputs) == {"x"}


LAYERS = """
model net(x: [batch, model], y: [batch, model]) {
  h = tanh(x)
  repeat layers {
    param w: [model, inner] = normal(stddev = 0.5)
    h = h + tanh(einsum(einsum(h, w -> [batch, inner]), w -> [batch, model]))
  }
  loss = mean(square(h - y))
  return loss, h
}
dim layers = 2
dim inner = 4
"""

CASES = {
    "tied parameters": (TIED, "part x on front: { batch: all }"),
    "two names": (TIED, "part (x, logits) on front: { vocab: all }"),
    "nothing on a mesh": (TIED.replace("return loss, h", "unused = 2.0 * h\n  return loss, h"),
                          "part unused on front: { batch: all }"),
    "everything on one": (TIED, "part (x, h, logits, loss) on front: { batch: all }"),
    "a loop": (LAYERS, "part layers on front: { inner: all }"),
    "a loop that ends on data": (
        """
dim steps = 8
model net(x: [batch, model]) {
  param w: [model] = normal(stddev = 0.5)
  h = x * w
  s = stop_gradient(h)
  repeat steps while any(s > 0.1) { s = s * 0.5 }
  loss = mean(square(h)) + mean(s)
  return loss, h
}
""",
        "part steps on front: { batch: all }",
    ),
    "a scan": (
        """
dim length = 4
model net(x: [batch, length, model]) {
  param w: [model] = normal(stddev = 0.5)
  h = zeros([batch, model])
  scan x_t = x along length {
    h = tanh(h * w + x_t)
    yield hs = 2.0 * h
  }
  loss = mean(square(hs))
  return loss, h
}
""",
        "part length on front: { model: all }",
    ),
    "values with rules of their own": (TIED, "value logits: { vocab: cols }, part x on front: { value x: { model: all } }"),
    "a pipeline in a part": (LAYERS, "part layers on front: { layers: all, pipeline layers: { batch: 4 } }"),
    "an interleaved pipeline beside a part": (
        LAYERS.replace("dim layers = 2", "dim layers = 4"),
        "layers: cols, pipeline layers checkpoint: { batch: 2, layers: 2 }, part h on front: { batch: all }",
    ),
    "outputs that are inputs": (
        """
model net(x: [batch, model]) {
  param w: [model] = normal(stddev = 0.5)
  h = x * w
  one = 1.0 + 0.0 * cast(sum(range(batch)), f32)
  loss = mean(h)
  return loss, x, one
}
""",
        "part h on front: { batch: all }",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_case_agrees_with_the_undistributed_program(mtfc: Mtfc, name: str) -> None:
    model, part = CASES[name]
    text = f"{DIMS}{MESHES}layout two on back = {{ batch: rows, {part} }}\n{model}{TRAIN}"
    Path("net.mtf").write_text(text)
    found = mtfc("verify", "net.mtf", "--backend", "numpy", "--layout", "two")
    assert found.status == 0 and "two                  numpy  ok" in found.out, found


def test_rules_of_values_and_pipelines_hold_on_their_mesh(mtfc: Mtfc) -> None:
    """A value is split as its rule says, and `cost` shows the stages of the mesh that has the pipeline."""
    model, part = CASES["values with rules of their own"]
    layout = f"layout two on back = {{ batch: rows, {part} }}"
    Path("net.mtf").write_text(f"{DIMS}{MESHES}{layout}\n{model}{TRAIN}")
    text = mtfc("compile", "net.mtf", "--layout", "two").out
    assert "%x: f32[batch, model{all}]" in text and "%logits: f32[batch, vocab{cols}]" in text
    model, part = CASES["a pipeline in a part"]
    layout = f"layout two on back = {{ batch: rows, {part} }}"
    Path("net.mtf").write_text(f"{DIMS}{MESHES}{layout}\n{model}{TRAIN}")
    front, back = mtfc("cost", "net.mtf", "--layout", "two").out.split("on mesh back")
    assert "layers: 2 stages, 4 micro-batches, idle in 1 of 5 ticks" in front and "stages" not in back


def test_decisions_between_scalars_agree_on_every_mesh(mtfc: Mtfc) -> None:
    """The exact check decides whether gradients are finite in both ways: a scalar has as many axes as the mesh it is on."""
    scaled = "minimize loss; precision = { loss_scale: dynamic };"
    Path("net.mtf").write_text(SOURCE.replace("minimize loss;", scaled))
    assert mtfc("verify", "net.mtf", "--backend", "numpy", "--layout", "two").status == 0


def test_micro_batches_take_turns_on_the_meshes() -> None:
    """The front computes the second micro-batch before the backward pass of the first."""
    accumulated = SOURCE.replace("minimize loss;", "minimize loss; accumulate = 2;")
    program = multi_mesh(accumulated)
    (step,) = (each for each in program.functions if each.name == "step")
    gathers = [i for i, s in enumerate(step.segments) if _has(s, "gather")]
    scatters = [i for i, s in enumerate(step.segments) if _has(s, "scatter_add")]
    assert len(gathers) == len(scatters) == 2 and max(gathers) < min(scatters)


def _has(segment: Segment, op: str) -> bool:
    return any(eqn.op == op for eqn in segment.function.body)


def test_jax_trains_and_checkpoints_move_between_layouts(mtfc: Mtfc) -> None:
    """Training begins under several meshes and goes on under one, with the numbers of a run under one alone."""
    Path("net.mtf").write_text(SOURCE)
    random = np.random.default_rng(0)
    data = {"tokens": random.integers(0, 16, 32), "y": random.normal(size=(32, 4)).astype(np.float32)}
    np.savez("data.npz", tokens=data["tokens"].astype(np.int32), y=data["y"])
    losses = {}
    for run, parts in {"moved": [("two", 2), ("one", 3), ("two", 4)], "alone": [("one", 4)]}.items():
        for layout, steps in parts:
            options = ["--data", "data.npz", "--steps", str(steps), "--layout", layout]
            assert mtfc("train", "net.mtf", *options, "--dir", run).status == 0
        lines = (Path(run) / "metrics.jsonl").read_text("utf-8").splitlines()
        losses[run] = [json.loads(line)["loss"] for line in lines if '"loss"' in line]
    assert len(losses["alone"]) == 4
    np.testing.assert_allclose(losses["moved"], losses["alone"], rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--layout", "two", "--mesh", "front"], "is a layout of several meshes: no --mesh"),
        (["run", "--layout", "two", "--memory", "1GiB"], "is a layout of several meshes: no --memory"),
        (["compile", "--layout", "two", "--emit", "hlo"], "--emit spmd, numpy or jax"),
        (["compile", "--layout", "two", "--passes", "default"], "not lowered by passes as a whole: no --passes"),
        (["report", "--layout", "two", "--search", "1", "-o", "x.html"], "--space meshes` finds those of several meshes"),
        (["draw", "--layout", "two", "-o", "x.svg", "--array", "ww"], "no array `ww`: did you mean `w`?"),
        (["run", "--layout", "{ part x on front: {} }"], "only a layout that a .mtf file declares has parts"),
        (["run", "--layout", "tw"], "did you mean `two`?"),
    ],
)  # fmt: skip
def test_other_options_are_refused(mtfc: Mtfc, arguments: list[str], message: str) -> None:
    Path("net.mtf").write_text(SOURCE)
    command, *options = arguments
    found = mtfc(command, "net.mtf", *options)
    assert found.status != 0 and message in found.err


def test_a_part_must_be_legal_for_its_own_equations(mtfc: Mtfc) -> None:
    Path("net.mtf").write_text(SOURCE.replace("batch: all", "batch: all, model: all"))
    found = mtfc("check", "net.mtf")
    assert found.status == 1 and "E301" in found.err


def test_a_rule_of_a_value_stands_where_its_mesh_does(mtfc: Mtfc) -> None:
    """A value may arrive on the mesh of the rule; others are errors, and so are syntax errors of parts, which show a part."""
    rules = "value x: { batch: rows }, part embed on front: { value z: { batch: all }, value embd.table: {},"
    Path("net.mtf").write_text(SOURCE.replace("part embed on front: {", rules, 1))
    text = mtfc("check", "net.mtf").err
    assert text.count("error[") == 2
    assert "error[E305]: value `z` is on mesh `back`, and this rule on `front`" in text
    assert "error[E305]: no model has a value `embd.table`" in text and "mean `embed.table`?" in text
    Path("net.mtf").write_text(SOURCE.replace("part embed on front:", "part embed front:"))
    found = mtfc("check", "net.mtf")
    assert found.status == 1 and "a part is `part embed on front: { batch: all }`" in found.err


def test_compile_prints_the_segments(mtfc: Mtfc) -> None:
    Path("net.mtf").write_text(SOURCE)
    assert "// step, segment 0 on mesh front" in mtfc("compile", "net.mtf", "--layout", "two").out


HALVES = """
dim batch = 64
dim model = 512
dim early = 4
dim late = 4
mesh first = [all: 4]
mesh second = [rows: 2, cols: 2]
layout halves on second = { batch: (rows, cols), part early on first: { batch: all } }

model net(x: [batch, model], y: [batch, model]) {
  h = x
  repeat early { h = layer[inner = inner](h) }
  repeat late { h = layer[inner = inner](h) }
  loss = mean(square(h - y))
  return loss
}
fn layer[inner, model](x: [..., model]) -> [..., model] {
  param w: [model, inner] = normal(stddev = 0.1)
  return x + einsum(tanh(einsum(x, w -> [..., inner])), w -> [..., model])
}
dim inner = 2048
train net { minimize loss; optimizer = sgd(learning_rate = 0.1); accumulate = 8 }
"""


def test_predicted_meshes_overlap(mtfc: Mtfc) -> None:
    """Two halves of a model are a pipeline of two stages: each mesh works most of the step, not half of it."""
    Path("net.mtf").write_text(HALVES)
    options = ["--target", "p100_cluster", "--format", "json", "--trace", "trace.json"]
    found = mtfc("simulate", "net.mtf", *options).json
    busy = [each["seconds"] for each in found["by_mesh"]]
    assert [each["name"] for each in found["by_mesh"]] == ["first", "second"]
    assert max(busy) <= found["step_seconds"] < 0.75 * sum(busy)
    assert {each["link"] for each in found["travels"]} == {"first -> second", "second -> first"}
    names = {
        event["args"].get("name")
        for event in json.loads(Path("trace.json").read_text("utf-8"))["traceEvents"]
    }
    assert {"first: processor 0", "second: processor 0", "first -> second"} <= names


def test_cost_says_what_is_stored_computed_and_sent(mtfc: Mtfc) -> None:
    Path("net.mtf").write_text(SOURCE)
    (layout,) = mtfc("cost", "net.mtf", "--layout", "two", "--format", "json").json["layouts"]
    front, back = layout["meshes"]
    assert front["memory_per_device"]["parameters"] == 16 * 4 * 4 // 2
    assert back["memory_per_device"]["parameters"] == 4 * 8 * 4 // 2
    assert back["step"]["flops_per_device"] > front["step"]["flops_per_device"]
    # x is [batch{rows}, model] on four devices, its gradient [batch{all}, model] on two.
    there = {(each["from"], each["to"]): each["bytes"] for each in layout["travels"]}
    assert there == {("front", "back"): 4 * 4 * 4 * 4, ("back", "front"): 8 * 4 * 4}
    assert layout["bytes_between_meshes"] == sum(there.values()) and len(layout["travels"]) == 2
    assert "travel between the meshes" in mtfc("cost", "net.mtf", "--layout", "two").out
    assert "on mesh front:" in mtfc("explain", "net.mtf", "--layout", "two").out


def test_jax_sends_the_bytes_that_cost_predicts() -> None:
    """Count the bytes of all pieces that arrive on devices of another mesh."""
    program = multi_mesh(SOURCE)
    module, arrived = runtime.load(generate(program, "jax")), list[int]()
    piece_on = module.piece_on

    def counted(*arguments: Any) -> Any:
        piece = piece_on(*arguments)
        arrived.append(piece.nbytes)
        return piece

    module.piece_on = counted
    random = np.random.default_rng(0)
    inputs = {"tokens": random.integers(0, 16, 8).astype(np.int32), "y": np.ones((8, 4), np.float32)}
    params, state = module.init(seed=0), module.init_state()
    arrived.clear()
    module.train_step(params, state, module.shard(inputs, module.INPUTS), 0)
    assert sum(arrived) == multi_mesh_cost(program).between_meshes


def test_meshes_of_other_sizes_exchange_shards_with_no_table_that_calls_change() -> None:
    """Both segments shift shards. A JAX module reads the mesh from its context, so no call leaves a mesh behind."""
    source = DIMS + SHIFTED
    program = multi_mesh(source)
    text = generate(program, "jax")
    module = runtime.load(text)
    before = {name: dict(x) for name, x in vars(module).items() if name.isupper() and isinstance(x, dict)}
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    found = module.unshard(
        module.forward({}, module.shard({"x": x}, module.INPUTS)), module.OUTPUTS["forward"]
    )
    np.testing.assert_array_equal(found["z"], np.pad(x, ((0, 0), (2, 0)))[:, :16])
    assert text.count("shift_shards(") > 2
    assert {name: dict(vars(module)[name]) for name in before} == before


def test_what_inputs_alone_decide_runs_on_one_mesh() -> None:
    """Only constants and the number of the step are computed on each mesh that needs them; a micro-batch is cut out there."""
    accumulated = SOURCE.replace("minimize loss;", "minimize loss; accumulate = 2;")
    changed = accumulated.replace("mean(square(z - y))", "mean(square(z - exp(y)))")
    step = multi_mesh(changed).function("step")
    assert sum(eqn.op == "exp" for each in step.segments for eqn in each.function.body) == 2


ONLY = SOURCE.replace("layout one on back = { batch: rows, hidden: cols }\n", "")


def batch_of(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {"tokens": random.integers(0, 16, 8).astype(np.int32), "y": random.normal(size=(8, 4))}


def test_python_runs_the_meshes_as_it_runs_one() -> None:
    """Numbers, gradients and checkpoints agree with those of a layout of one mesh."""
    text = SOURCE.replace("0.1) }", "0.1); clip = 0.01; average = 0.9 }")
    several, one = (api.compile_text(text, layout=name) for name in ("two", "one"))
    found = []
    for each in (several, one):
        state, metrics = each.train_step(each.init(seed=1), batch_of())
        _, gradients = each.value_and_grad(state.params, batch_of(1), 1, clip=True)
        outputs = each.forward(each.averaged(state), batch_of(2))
        found.append({**metrics, **gradients, "z": outputs["z"], "params": state.params["w"]})
    for name, wanted in found[1].items():
        np.testing.assert_allclose(found[0][name], wanted, rtol=2e-5, atol=1e-7, err_msg=name)
    assert several.abstract_state.params["w"].sharding == several.init().params["w"].sharding
    assert several.place(batch_of())["tokens"].sharding.mesh.axis_names == ("all",)
    assert repr(several).startswith(
        "<Compiled net: layout two on meshes front = [all: 2], back = [rows: 2, cols: 2]"
    )


def test_python_says_what_a_layout_of_several_meshes_lacks() -> None:
    compiled = api.compile_text(ONLY)
    with pytest.raises(
        ValueError, match="`two` is a layout of several meshes, whose processors run different"
    ):
        _ = compiled.program
    with pytest.raises(ValueError, match="several programs, which JAX cannot trace as one"):
        jax.jit(compiled.forward)(compiled.init().params, batch_of())
    with pytest.raises(ValueError, match="several programs, which JAX cannot trace as one"):
        jax.grad(lambda params: compiled.forward(params, batch_of())["loss"])(compiled.init().params)
    assert "// step, segment 0 on mesh front" in compiled.ir()
    assert [each["name"] for each in compiled.simulate("h100")["by_mesh"]] == ["front", "back"]
    assert len(compiled.cost()["meshes"]) == 2
    assert compiled.load("numpy").init(seed=0).keys() == {"embed.table", "w"}


def test_draw_has_the_arrays_of_each_mesh(mtfc: Mtfc) -> None:
    """Each array is drawn once, with the parts of the mesh that stores or computes it."""
    Path("net.mtf").write_text(ONLY)
    assert mtfc("draw", "net.mtf", "-o", "net.svg").status == 0
    text = Path("net.svg").read_text("utf-8")
    titles = re.findall(r'class="t"[^>]*>([^<]*)<', text)
    front, back = titles.index("mesh front"), titles.index("mesh back")
    assert {"tokens", "embed.table", "x"} <= set(titles[front:back])
    assert {"w", "h", "z", "y"} <= set(titles[back:]) and len(titles) == len(set(titles))
    assert "f32[vocab{all}, model]" in text and "f32[model, hidden{cols}]" in text
    assert api.compile_text(ONLY).draw("w").svg.count("mesh ") == text.count("mesh ")


def test_commands_for_one_mesh_leave_none_out_silently(mtfc: Mtfc) -> None:
    Path("net.mtf").write_text(ONLY)
    found = mtfc("cost", "net.mtf", "--symbolic")
    assert found.status == 2
    assert "has only layouts of several meshes, `two`, and this takes a layout of one" in found.err
    Path("net.mtf").write_text(SOURCE)
    found = mtfc("search", "net.mtf", "--devices", "4", "--target", "h100", "--budget", "0.5")
    assert found.status == 0 and "the result is not compared with `two`, of several meshes" in found.err


def test_search_moves_loops_to_the_mesh_that_waits(mtfc: Mtfc) -> None:
    """The first mesh has one of four equal layers. The meshes are a pipeline, so each should have two. The found layout is
    written, and as fast as it is said to be.
    """
    middle = "  repeat middle { h = layer[inner = inner](h) }\n  repeat late"
    text = HALVES.replace("dim early = 4", "dim early = 1\ndim middle = 1").replace(
        "dim late = 4", "dim late = 2"
    )
    text = text.replace("  repeat late", middle).replace("second = [rows: 2, cols: 2]", "second = [rows: 4]")
    Path("net.mtf").write_text(
        text.replace("(rows, cols)", "rows").replace("accumulate = 8", "accumulate = 2")
    )
    asked = ["search", "net.mtf", "--space", "meshes", "--target", "p100_cluster", "--budget", "600"]
    found = mtfc(*asked, "--format", "json", "-o", "best.mtf").json
    assert found["layout"] == "found" and found["declared"] == "halves" and found["ending"] == "complete"
    assert all(each["rules"] for each in found["by_mesh"])
    assert [each["part"] for each in found["by_mesh"]] == [["early", "middle"], []]
    first, second = (each["seconds"] for each in found["by_mesh"])
    assert first == pytest.approx(second, rel=0.2) and found["step_seconds"] < found["declared_seconds"]
    simulated = {}
    for path, layout in (("net.mtf", "halves"), ("best.mtf", "found")):
        options = ["--layout", layout, "--target", "p100_cluster", "--format", "json"]
        simulated[layout] = mtfc("simulate", path, *options).json["step_seconds"]
    assert simulated["found"] == pytest.approx(found["step_seconds"])
    assert simulated["halves"] == pytest.approx(found["declared_seconds"])
    assert mtfc("check", "best.mtf", "--layout", "found").status == 0


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (SOURCE, ["--devices", "4"], "takes the meshes of a declared layout: no --devices"),
        (SOURCE, ["--why-not", "batch: rows"], "takes the meshes of a declared layout: no --why-not"),
        (SOURCE, ["--objective", "memory"], "the space `meshes` has no --objective but time"),
        (SOURCE.replace(TWO, ""), [], "takes a file with a layout of several meshes"),
        (SOURCE, ["--target", "tiny"], "the meshes have 6 processors, and `tiny` has 4 devices"),
    ],
)
def test_the_search_of_parts_refuses_other_options(
    mtfc: Mtfc, source: str, options: list[str], message: str
) -> None:
    link = "link bus: { kind: switch, size: 4, bandwidth: 1e9 }"
    tiny = f"hardware tiny = {{ device: {{ flops: {{ f32: 1e9 }}, memory: 1e9, bandwidth: 1e9 }}; {link} }}\n"
    Path("net.mtf").write_text(source + tiny)
    found = mtfc("search", "net.mtf", "--space", "meshes", "--target", "h100", *options)
    assert found.status != 0 and message in found.err


def test_diff_takes_several_meshes(mtfc: Mtfc) -> None:
    """Figures are means of all devices, and lines add up to them; the time that a mesh waits for another has no line."""
    Path("net.mtf").write_text(SOURCE)
    options = ["--layout", "one", "--layout", "two", "--target", "p100_cluster"]
    found = mtfc("diff", "net.mtf", *options, "--format", "json").json
    assert found["layouts"] == ["one", "two"]
    step = mtfc("simulate", "net.mtf", "--layout", "two", *options[-2:], "--format", "json").json
    (cost,) = mtfc("cost", "net.mtf", "--layout", "two", "--format", "json").json["layouts"]
    devices = [2, 4]
    assert found["bytes_between_meshes"] == [0, step["bytes_between_meshes"]]
    assert found["seconds"][1] == pytest.approx(step["step_seconds"])
    memory = [each["memory_per_device"]["total"] for each in cost["meshes"]]
    assert found["memory_per_device"][1] == pytest.approx(np.average(memory, weights=devices))
    flops = [each["step"]["flops_per_device"] for each in cost["meshes"]]
    assert found["flops_per_device"][1] == pytest.approx(np.average(flops, weights=devices))
    for figure in ("seconds", "flops_per_device", "bytes_per_device", "memory_per_device"):
        sums = [sum(line[figure][which] for line in found["lines"]) for which in (0, 1)]
        assert sums == pytest.approx(found[figure], rel=1e-12), figure
    text = mtfc("diff", "net.mtf").out
    assert "one training step in the mean of all devices: from layout one to layout two" in text
    assert "two: x from front to back 256 B" in text and "  between meshes " in text


def test_a_report_shows_each_mesh(mtfc: Mtfc) -> None:
    """A page has the figures of `mtfc simulate` and `mtfc cost`, and where each array is; other layouts leave it out by name."""
    Path("net.mtf").write_text(SOURCE, "utf-8")
    page = api.report("net.mtf", layout="two", target="p100_cluster")
    data = page.data
    assert page.title == "net: layout two" and data["kind"] == "meshes"
    of_two = ("net.mtf", "--layout", "two", "--format", "json")
    assert data["steps"] == [mtfc("simulate", *of_two, "--target", "p100_cluster").json]
    assert data["costs"] == mtfc("cost", *of_two).json["layouts"]
    (layout,) = data["layouts"]
    homes = {
        data["texts"][array[0]]: (mesh["name"], array[7])
        for mesh in layout["meshes"]
        for array in mesh["arrays"]
    }
    assert homes["embed.table"] == ("front", [["all"], []]) and homes["w"] == ("back", [[], ["cols"]])
    assert homes["x"] == ("front", [["all"], []]) and homes["z"] == ("back", [["rows"], []])
    between = {line["line"]: line["between"] for line in layout["lines"] if line["between"]}
    assert sum(between.values()) == data["steps"][0]["bytes_between_meshes"] and len(between) == 2
    ends = [start + seconds for _, _, start, seconds, *_ in layout["events"]]
    assert max(ends) == pytest.approx(data["steps"][0]["step_seconds"])
    assert {layout["lanes"][lane] for lane in layout["between"]} == {"front -> back", "back -> front"}
    found = mtfc("report", "net.mtf", "-o", "x.html")
    assert found.status == 0 and "the page lacks `two`, of several meshes" in found.err
    Path("net.mtf").write_text(SOURCE.replace(TWO.splitlines()[1], ""), "utf-8")
    assert not mtfc("report", "net.mtf", "-o", "y.html").err
    assert "several meshes" in Path("y.html").read_text("utf-8")
