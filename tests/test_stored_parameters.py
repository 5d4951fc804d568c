"""`params: { *: axes }`: each parameter is stored split along a dimension that divides; this is FSDP."""

from collections import Counter
from itertools import product
from pathlib import Path

import attrs
import pytest

import mtfc
from mtfc.backends.hlo import collectives
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.compiler.analysis.provenance import sent_arrays
from mtfc.compiler.ir.core import Function, Program, walk
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.passes.partition.combine_collectives import CombineCollectives
from mtfc.compiler.passes.pipelines import default_pipeline, run
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from mtfc.frontend.syntax.format import format_source
from tests.harness import (
    KIND_OF,
    SINGLE,
    call,
    communication,
    exact_data,
    jax_module,
    load,
    lowered,
    reference,
    simulate,
    tolerance,
)
from tests.properties.test_jax import AS_WRITTEN
from tests.properties.test_numpy import predicted
from tests.sampling import some

HEAD = """
dim batch = 8; dim d = 8; dim hidden = 16; dim vocab = 12; dim odd = 5; dim layers = 32
mesh grid = [rows: 2, cols: 2]
"""
MODEL = """
model m(x: i32[batch]) {
  param table: [vocab, d] = normal(stddev = 0.5)
  param shift: [odd] = ones()
  x = gather(table, x, vocab) * mean(shift)
  repeat layers {
    param scale: [d] = ones()
    param w: [d, hidden] = normal(stddev = 0.05)
    param v: [hidden, d] = normal(stddev = 0.05)
    x = x + einsum(tanh(einsum(x * scale, w -> [batch, hidden])), v -> [batch, d])
  }
  loss = mean(square(x))
  return loss
}
train m { minimize loss; optimizer = OPTIMIZER }
"""


def source(layout: str, optimizer: str = "momentum(learning_rate = 0.5)", more: str = "") -> str:
    text = f"{HEAD}layout main on grid = {layout}\n{MODEL}".replace("OPTIMIZER", optimizer)
    return text.replace("minimize loss;", f"minimize loss; {more}")


def stored(layout: str, optimizer: str = "momentum(learning_rate = 0.5)") -> dict[str, str]:
    """Return the placement of each parameter and state in the step."""
    step = lowered(source(layout, optimizer)).function("step")
    return placements(step)


def placements(function: Function) -> dict[str, str]:
    roles = ("parameter", "state")
    return {
        a.value.name: str(a.value.type).removeprefix("f32") for a in function.arguments if a.role in roles
    }


def test_the_largest_dimension_that_divides_is_split() -> None:
    """The largest dimension is split, not the larger dimension of a loop; the first of equals; none if none divides."""
    found = stored("{ batch: rows, params: { *: (rows, cols) } }")
    assert found["table"] == "[vocab{rows, cols}, d]"
    assert found["shift"] == "[odd]"
    assert found["layers.scale"] == "[layers, d{rows, cols}]"
    assert found["layers.w"] == "[layers, d, hidden{rows, cols}]"
    assert found["layers.v"] == "[layers, hidden{rows, cols}, d]"


def test_the_size_on_a_processor_counts() -> None:
    """With `hidden` split to 8 elements, `d` has as many and comes first in `w`; a used axis is left out."""
    found = stored("{ batch: rows, hidden: cols, params: { *: (rows, cols) } }")
    assert found["layers.w"] == "[layers, d{rows}, hidden{cols}]"
    assert found["layers.v"] == "[layers, hidden{cols, rows}, d]"
    assert found["layers.scale"] == "[layers, d{rows, cols}]"


def test_a_rule_for_a_dimension_wins() -> None:
    """A rule that splits nothing wins, too: then the parameter stays as it is used."""
    found = stored("{ batch: rows, params: { *: rows, hidden: cols, vocab: () } }")
    assert found["table"] == "[vocab, d]"
    assert found["layers.w"] == "[layers, d, hidden{cols}]"
    assert found["layers.scale"] == "[layers, d{rows}]"


def test_state_follows_its_parameter() -> None:
    found = stored("{ batch: rows, params: { *: rows } }")
    assert {name: found[f"{name}.velocity"] for name in found if not name.endswith("velocity")} == {
        name: type for name, type in found.items() if not name.endswith("velocity")
    }


def test_state_of_fewer_dimensions_is_split_as_its_parameter_is() -> None:
    """`w` is split along `hidden`: the means over `hidden` stay whole, those over `d` are split."""
    found = stored("{ batch: rows, params: { *: rows } }", "adafactor(learning_rate = 0.25)")
    shapes = {found[name] for name in found if name.startswith("layers.w.")}
    assert shapes == {"[layers, d]", "[layers, hidden{rows}]"}


def test_state_alone_is_split() -> None:
    """This is the first stage of ZeRO; a rule for a dimension wins over a choice made for the parameter there, too."""
    found = stored("{ batch: rows, optimizer: { *: rows } }")
    assert found["table"] == "[vocab, d]" and found["table.velocity"] == "[vocab{rows}, d]"
    both = stored("{ batch: rows, params: { *: rows }, optimizer: { d: rows, hidden: cols } }")
    assert both["layers.w"] == "[layers, d, hidden{rows}]"
    assert both["layers.w.velocity"] == "[layers, d{rows}, hidden{cols}]"
    assert both["table.velocity"] == "[vocab, d{rows}]"


def test_state_is_split_further() -> None:
    found = stored("{ batch: rows, params: { *: rows }, optimizer: { *: cols } }")
    assert found["layers.w"] == "[layers, d, hidden{rows}]"
    assert found["layers.w.velocity"] in (
        "[layers, d{cols}, hidden{rows}]",
        "[layers, d, hidden{rows, cols}]",
    )


LAYOUTS = [
    "{ batch: rows, params: { *: rows } }",
    "{ batch: (rows, cols), params: { *: (rows, cols) } }",
    "{ batch: rows, hidden: cols, params: { *: rows }, optimizer: { *: cols } }",
    "{ batch: rows, optimizer: { *: (cols, rows) } }",
]
OPTIMIZERS = ["momentum(learning_rate = 0.5)", "adafactor(learning_rate = 0.25)"]


@pytest.mark.parametrize(
    ("layout", "optimizer", "backend"),
    [*product(LAYOUTS, OPTIMIZERS, ["numpy"]), *product(some(LAYOUTS, 2), OPTIMIZERS, ["jax"])],
)
def test_numbers_stay_the_same(layout: str, optimizer: str, backend: str) -> None:
    text = source(layout, optimizer, "clip = 0.5;").replace("dim layers = 32", "dim layers = 2")
    program = lowered(text)
    step = program.function("step")
    given = exact_data(step, seed=9)
    expected = reference(text, "step", given)
    actual = simulate(text, "step", given) if backend == "numpy" else call(jax_module(program), step, given)
    SINGLE.check(actual, expected, f"{layout} on {backend}")


LLAMA = Path(__file__).parents[1] / "examples" / "llama.mtf"
FSDP = "params: { d_model: data }\n  optimizer: { d_model: data }"
CHOSEN = "params: { *: data }\n  optimizer: { *: data }"


def llama(rules: str) -> Program:
    text = LLAMA.read_text("utf-8")
    assert FSDP in text
    selection = choose(text.replace(FSDP, rules), str(LLAMA), Choice("llama", "fsdp", None, {}))
    return selection.cases[0].lower(selection.program)


def test_llama_needs_no_name_of_a_dimension() -> None:
    """`*` chooses the dimension that the layout of the example names."""
    named, chosen = llama(FSDP), llama(CHOSEN)
    assert functions(named) == functions(chosen)


def functions(program: Program) -> str:
    text = print_program(program)
    return text[text.index("function forward") :]


def test_gradients_are_scattered_and_parameters_gathered() -> None:
    """A layer gathers its parameters twice, in one message, and scatters its gradients in one. Two numbers are reduced."""
    found = communication(source("{ batch: (rows, cols), params: { *: (rows, cols) } }"), "step")
    gathered = sorted(size for kind, _, size in found if kind == "all_gather")
    scattered = sorted(size for kind, _, size in found if kind == "reduce_scatter")
    layer = 2 * (8 * 16 // 4) + 8 // 4
    assert gathered == [12 * 8 // 4, layer, layer]
    assert scattered == [12 * 8, 8 + 2 * 8 * 16]
    assert sum(size for kind, _, size in found if kind == "all_reduce") == 2


def test_canonical_form() -> None:
    text = "layout a on grid = { batch: rows, params: { * : data, d:rows }, optimizer: {*:( rows,cols)} }\n"
    assert format_source(text) == (
        "layout a on grid = { batch: rows, params: { *: data, d: rows }, optimizer: { *: (rows, cols) } }\n"
    )


def test_elsewhere_it_is_an_operator() -> None:
    assert load("dim a = 2 * 3\nmodel m(x: [a]) { y = x * x; return y }").programs


# Small all-gathers travel together

SMALL = """
dim batch = 8; dim d = 8; dim hidden = 16; dim layers = 2
mesh grid = [rows: 2, cols: 2]
layout main on grid = LAYOUT
model m(x: [batch, d]) {
  repeat layers {
    param scale: [d] = ones()
    param w: [hidden, d] = normal(stddev = 0.5)
    param b: [hidden] = zeros()
    param v: [d, hidden] = normal(stddev = 0.5)
    param c: [d] = zeros()
    x = x + c + einsum(tanh(b + einsum(x * scale, w -> [batch, hidden])), v -> [batch, d])
  }
  loss = mean(square(x))
  return loss
}
train m { minimize loss; optimizer = momentum(learning_rate = 0.5); accumulate = 2; MORE }
"""
TOGETHER = [
    "{ batch: rows, params: { *: rows } }",
    "{ batch: (rows, cols), params: { *: (rows, cols) } }",
    "{ batch: rows, params: { *: (cols, rows) } }",
    "{ batch: rows, hidden: cols, params: { *: rows } }",
    "{ batch: rows, optimizer: { *: rows } }",
]
PRECISION = "precision = { params: f32, compute: bf16 }"


def small(layout: str, more: str = "") -> str:
    return SMALL.replace("LAYOUT", layout).replace("MORE", more)


@pytest.mark.parametrize("layout", some(TOGETHER, 2))
@pytest.mark.parametrize("more", ["clip = 0.5", PRECISION])
def test_gathers_that_travel_together_give_the_same(layout: str, more: str) -> None:
    text = small(layout, more)
    program = lowered(text)
    step = program.function("step")
    assert any(eqn.op == "all_gather" and len(eqn.operands) > 1 for eqn in walk(step.body))
    given = exact_data(step, seed=9)
    expected = reference(text, "step", given)
    tolerance(program).check(simulate(text, "step", given), expected, f"{layout} on NumPy")
    tolerance(program).check(call(jax_module(program), step, given), expected, f"{layout} on JAX")


@pytest.mark.parametrize("layout", some(TOGETHER, 2))
def test_xla_sends_them_together(layout: str) -> None:
    """XLA sends as many collectives, and as many bytes, as `cost` says."""
    program = lowered(small(layout))
    compiled = jax_runtime.lowered(program, "step").compile(compiler_options=AS_WRITTEN)
    found, wanted = collectives(compiled.as_text())["all_gather"], predicted(program, "step")["all_gather"]
    assert found == wanted


def gathers(text: str, max_bytes: int) -> list[int]:
    """Return the number of operands of each all-gather of the step."""
    (program,), layout = load(text).programs, load(text).layouts[0]
    placed = attrs.evolve(program, mesh=layout.mesh, layout=layout.layout)
    others = (each for each in default_pipeline() if not isinstance(each, CombineCollectives))
    passes = (*others, CombineCollectives(max_bytes))
    step = run(placed, passes).function("step")
    return [len(eqn.operands) for eqn in walk(step.body) if eqn.op == "all_gather"]


def test_as_many_travel_together_as_there_is_room_for() -> None:
    """The forward pass gathers `c`, `b`, `scale`, `w` and `v`: 32, 64, 32, 512 and 512 bytes; the backward pass three of them."""
    text = small("{ batch: rows, params: { *: rows } }")
    assert gathers(text, 0) == [1] * 8
    assert gathers(text, 128) == [2, 1, 1, 1, 1, 1, 1]
    assert gathers(text, 300) == [3, 1, 1, 1, 1, 1]
    assert gathers(text, 4 << 20) == [5, 3]


def test_arrays_that_vary_along_other_axes_travel_apart() -> None:
    """`w`, `v` and `b` are split over `cols`, too; `scale` and `c` are the same along `cols`."""
    program = lowered(small("{ batch: rows, hidden: cols, params: { *: rows } }"))
    mesh = program.placed_on
    found = [eqn.operands for eqn in walk(program.function("step").body) if eqn.op == "all_gather"]
    assert {len({value.type.varying(mesh) for value in operands}) for operands in found} == {1}
    assert max(len(operands) for operands in found) == 3


def test_explain_names_each_array() -> None:
    text = small("{ batch: rows, params: { *: rows } }")
    program = lowered(text)
    assert program.layout is not None
    sent = sent_arrays(program.function("step"), program.placed_on, program.layout)
    stored = {cause.what for each in sent if each.kind == "all_gather" for cause in each.causes}
    assert stored == {"stores d in parts", "stores hidden in parts"}


def test_gradients_alone_send_what_a_step_sends() -> None:
    """`value_and_grad` scatters the gradients of a loop layer by layer in bf16, as the training step does."""
    file = Path(__file__).parents[1] / "examples" / "llama.mtf"
    selection = choose(file.read_text("utf-8"), str(file), Choice(None, "fsdp"))
    program = selection.cases[0].lower(selection.program, "module")

    def sent(name: str) -> Counter[tuple[str, str]]:
        """Return the types of sent arrays, without the norms that only the update needs."""
        body = (eqn for eqn in walk(program.function(name).body) if eqn.stage != "update")
        return Counter((eqn.op, str(v.type)) for eqn in body if eqn.op in KIND_OF for v in eqn.operands)

    alone, step = sent("batch_gradients"), sent("step")
    assert alone == step
    assert not any(kind == "all_reduce" and "layers" in type for kind, type in alone)


SCATTERED = """
dim batch  = 8
dim io     = 8
dim hidden = 16
mesh grid = [a: 2, b: 2]
layout zero on grid = { batch: (a, b), optimizer: { io: (a, b) } }
layout both on grid = { batch: a, hidden: b, optimizer: { io: a } }
model net(x: [batch, io]) {
  param w: [io, hidden] = normal(stddev = 0.3)
  param v: [hidden, io] = normal(stddev = 0.3)
  param c: [io] = zeros()
  y = einsum(relu(einsum(x, w -> [batch, hidden])), v -> [batch, io]) + c
  loss = mean(square(y - x))
  return loss
}
train net { minimize loss; optimizer = adam(learning_rate = 0.01) }
"""


def test_gradients_scattered_together_are_those_of_one_device(tmp_path: Path) -> None:
    """The first axis of w is scattered, and the last one of v; c varies along other axes than these where `hidden` is split."""
    file = tmp_path / "net.mtf"
    file.write_text(SCATTERED)
    for layout, number in (("zero", 3), ("both", 2)):
        program = lowered(SCATTERED, layout=layout)
        most = [eqn for eqn in program.function("step").body if has_trait(eqn, "reduce_scatter")]
        assert max(len(eqn.operands) for eqn in most) == number
    for backend in ("numpy", "jax"):
        assert mtfc.verify(file, backend=backend, dtype="f64", exact=backend == "numpy")["ok"]
