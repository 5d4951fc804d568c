"""Parameter groups: an optimizer for some parameters, and frozen ones, against optax step by step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mtfc.compiler.cost.volumes import layout_cost
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.ir.training import updated
from mtfc.compiler.ir.verifier import VerifyError, verify
from mtfc.compiler.passes.pipelines import run, simplification
from mtfc.driver.loading.sources import Sources
from mtfc.driver.loading.target import target_of
from mtfc.placements.placement_search import placement_space
from mtfc.placements.simulator.evaluation import EvaluatedStrategy
from tests.harness import (
    Arrays,
    communication,
    diagnose,
    differentiated,
    jax_module,
    load,
    lowered,
    numpy_module,
)
from tests.placements.placement_programs import DENSE
from tests.program_equality import same_program

STEPS = 4
MICRO = 2

SOURCE = """
dim batch = 4
dim vocab = 8
dim io = 4
dim hidden = 8
dim layers = 3
mesh grid = [rows: 2, cols: 2]
layout alone    on grid = {}
layout data     on grid = { batch: (rows, cols) }
layout both     on grid = { batch: rows, hidden: cols }
layout sharded  on grid = { batch: rows, params: { io: rows }, optimizer: { io: rows, hidden: cols } }

model net(tokens: i32[batch]) {
  param embed: [vocab, io] = normal(stddev = 1.0)
  h = einsum(one_hot(tokens, vocab), embed -> [batch, io])
  repeat layers {
    param up: [io, hidden] = normal(stddev = 0.5)
    param bias: [hidden] = normal(stddev = 0.1)
    param down: [hidden, io] = normal(stddev = 0.5)
    param scale: [io] = ones()
    h = h + scale * einsum(tanh(einsum(h, up -> [batch, hidden]) + bias), down -> [batch, io])
  }
  param bias_out: [io] = zeros()
  loss = mean(square(h + bias_out - 1.0))
  return loss
}

train net {
  minimize loss
ENTRIES
}
"""
LAYOUTS = ("alone", "data", "both", "sharded")
EMBED, UP, BIAS, DOWN, SCALE, OUT = (
    "embed", "layers.up", "layers.bias", "layers.down", "layers.scale", "bias_out",
)  # fmt: skip


def source(*entries: str) -> str:
    return SOURCE.replace("ENTRIES", "\n".join(f"  {each}" for each in entries))


def tokens(step: int, accumulate: int) -> Any:
    """Return the inputs of a step: one batch, or several."""
    drawn = np.random.default_rng(step).integers(0, 8, (accumulate, 4)).astype(np.int32)
    return drawn if accumulate > 1 else drawn[0]


def loss(params: Arrays, batch: Any) -> Any:
    """Return the loss of the model, computed with JAX alone."""
    h = params[EMBED][batch]
    for layer in range(3):
        up, bias, down, scale = (params[name][layer] for name in (UP, BIAS, DOWN, SCALE))
        h = h + scale * (jnp.tanh(h @ up + bias) @ down)
    return jnp.mean((h + params[OUT] - 1.0) ** 2)


def trained(module: Any, accumulate: int) -> list[Arrays]:
    """Return the parameters before the first step and after each step."""
    params, state = module.init(seed=1), module.init_state() if module.STATE else {}
    found = [dict(module.unshard(params, module.PARAMETERS))]
    for step in range(STEPS):
        batches = module.BATCHES if accumulate > 1 else module.INPUTS
        inputs = module.shard({"tokens": tokens(step, accumulate)}, batches)
        _, params, state = module.train_step(params, state, inputs, step)
        found.append({name: np.array(x) for name, x in module.unshard(params, module.PARAMETERS).items()})
    return found


def by_optax(optimizer: optax.GradientTransformation, start: Arrays, accumulate: int) -> list[Arrays]:
    params = {name: jnp.asarray(x) for name, x in start.items()}
    state, found = optimizer.init(params), [params]

    def mean(params: Arrays, batches: Any) -> Any:
        return sum(loss(params, batch) for batch in batches) / accumulate

    @jax.jit
    def updated(params: Arrays, state: Any, batches: Any) -> Any:
        updates, state = optimizer.update(jax.grad(mean)(params, batches), state, params)
        return optax.apply_updates(params, updates), state

    for step in range(STEPS):
        params, state = updated(params, state, tokens(step, accumulate).reshape(accumulate, 4))
        found.append(params)
    return found


def grouped(
    of: Callable[[str], str], optimizers: dict[str, optax.GradientTransformation], clip: float | None
) -> optax.GradientTransformation:
    """Return an optax transformation for each group; the norm leaves out the gradients of frozen parameters."""
    names = (EMBED, UP, BIAS, DOWN, SCALE, OUT)
    labels = {name: of(name) for name in names}
    first = {name: optax.set_to_zero() if name == "frozen" else optax.identity() for name in optimizers}
    clipping = [optax.clip_by_global_norm(clip)] if clip else []
    return optax.chain(
        optax.multi_transform(first, labels), *clipping, optax.multi_transform(optimizers, labels)
    )


def biases(name: str) -> str:
    return "small" if "bias" in name or name == SCALE else "rest"


def frozen(name: str) -> str:
    return "frozen" if name in (EMBED, UP) else biases(name)


def last(name: str) -> str:
    return "small" if name in (SCALE, DOWN) else "frozen"


ADAM, SGD, MOMENTUM = "adam(0.05)", "sgd(0.1)", "momentum(0.1)"
TRANSFORMATIONS = {
    "frozen": optax.set_to_zero(), ADAM: optax.adam(0.05), SGD: optax.sgd(0.1), MOMENTUM: optax.sgd(0.1, momentum=0.9),
}  # fmt: skip
CASES: dict[str, tuple[tuple[str, ...], Callable[[str], str], dict[str, str]]] = {
    "two optimizers": ((f"optimizer = {ADAM}", f'optimizer for "*bias*", "layers.scale" = {MOMENTUM}'), biases,
     {"rest": ADAM, "small": MOMENTUM}),
    "frozen": ((f"optimizer = {ADAM}", f'optimizer for "*bias*", "*.scale" = {SGD}', 'frozen "embed", "*.up"'), frozen,
     {"rest": ADAM, "small": SGD, "frozen": "frozen"}),
    "the last entry decides": (('frozen "*"', f'optimizer for "*.[sd]*" = {ADAM}'), last, {"small": ADAM, "frozen": "frozen"}),
}  # fmt: skip


@pytest.mark.parametrize(("clip", "accumulate"), [(None, 1), (0.05, MICRO)])
@pytest.mark.parametrize("case", CASES)
def test_groups_make_the_steps_of_optax(case: str, clip: float | None, accumulate: int) -> None:
    """Every step under every layout on NumPy, and on JAX under the layout that splits all that can be split."""
    entries, of, names = CASES[case]
    more = ([f"clip = {clip}"] if clip else []) + ([f"accumulate = {accumulate}"] if accumulate > 1 else [])
    text = source(*entries, *more)
    programs = {layout: lowered(text, layout=layout) for layout in LAYOUTS}
    modules = {f"numpy, {layout}": numpy_module(program) for layout, program in programs.items()}
    modules["jax, sharded"] = jax_module(programs["sharded"])
    actual = {name: trained(module, accumulate) for name, module in modules.items()}
    transformation = grouped(of, {group: TRANSFORMATIONS[name] for group, name in names.items()}, clip)
    wanted = by_optax(transformation, actual["numpy, alone"][0], accumulate)
    for name, found in actual.items():
        for step, (params, right) in enumerate(zip(found, wanted, strict=True)):
            for key, x in params.items():
                what = f"{key} after {step} steps: {name}"
                np.testing.assert_allclose(x, right[key], rtol=3e-5, atol=3e-6, err_msg=what)
                if of(key) == "frozen":
                    np.testing.assert_array_equal(x, found[0][key], err_msg=what)


FROZEN = source(f"optimizer = {ADAM}", 'frozen "embed", "*.up"', "clip = 1.0")
WHOLE = source(f"optimizer = {ADAM}", "clip = 1.0")


def test_state_is_kept_for_what_is_trained_alone() -> None:
    for module in (numpy_module(lowered(FROZEN, layout="both")), jax_module(lowered(FROZEN, layout="both"))):
        trains = {DOWN, BIAS, SCALE, OUT}
        assert set(module.STATE) == {f"{name}.{state}" for name in trains for state in ("m", "v")}
        assert set(module.PARAMETERS) == {*trains, EMBED, UP}


def test_gradients_of_frozen_parameters_are_not_computed() -> None:
    """Frozen parameters cause no communication of gradients, and need no memory beside their own."""

    def sent(text: str) -> int:
        return sum(size for _, _, size in communication(text, "step", "data"))

    elements = 8 * 4 + 3 * 4 * 8
    assert sent(WHOLE) - sent(FROZEN) == elements
    whole, less = (layout_cost(lowered(text, layout="data")).memory for text in (WHOLE, FROZEN))
    assert whole.parameters == less.parameters
    assert int(str(whole.optimizer - less.optimizer)) == 2 * 4 * elements
    assert int(str(whole.gradients - less.gradients)) >= 4 * 8 * 4


@pytest.mark.parametrize("text", [FROZEN, *(source(*entries) for entries, _, _ in CASES.values())])
def test_groups_go_through_ir_text(text: str) -> None:
    (program,) = load(text).programs
    again = read_program(print_program(program))
    assert same_program(again, program, locations=False)
    assert same_program(read_program(print_program(program, locations=True)), program)
    assert again.training is not None and program.training is not None
    assert updated(again.training) == updated(program.training)
    both = (read_program(print_program(each, locations=True)) for each in (program, again))
    assert same_program(*(differentiated(each, "step") for each in both), locations=False)


def test_an_update_of_what_is_no_parameter_is_refused() -> None:
    (program,) = load(FROZEN).programs
    text = print_program(program)
    for wrong in ("update nothing, ", f"update {DOWN}, "):
        with pytest.raises(VerifyError, match="at most one update"):
            verify(read_program(text.replace("update ", wrong, 1)), "global")


def codes(*entries: str) -> list[str]:
    return [each.code for each in diagnose(source(*entries)) if each.severity == "error"]


def test_wrong_groups_are_reported() -> None:
    default = f"optimizer = {ADAM}"
    assert codes(default) == codes('frozen "embed"', f'optimizer for "[!e]*" = {ADAM}') == []
    assert codes('frozen "embed"') == ["E409"]
    assert codes(default, 'frozen "embd"', 'optimizer for "*.sale", "*.scale" = sgd(0.1)') == ["E418", "E418"]
    assert codes(default, 'frozen "*"') == ["E419"]
    assert codes(default, 'frozen "*.bias"', 'optimizer for "*.bias" = sdg(0.1)') == ["E404"]
    assert codes(default, 'optimizer for "*.bias" = sgd(0.1, rate = 3)') == ["E405"]


def test_each_model_with_names_of_its_own_has_help() -> None:
    found = diagnose(source(f"optimizer = {ADAM}", 'frozen "layer.*"', 'frozen "*.sale"'))
    assert [each.help for each in found if each.code == "E418"] == [
        'did you mean `"layers.*"`?',
        'did you mean `"*.scale"`?',
    ]


def test_precision_and_groups() -> None:
    """Frozen parameters are stored in the same dtype as all parameters."""
    text = source(f"optimizer = {ADAM}", 'frozen "embed"', "precision = { params: bf16, compute: f32 }")
    program: Program = lowered(text, layout="both")
    assert {parameter.type.dtype for parameter in program.parameters} == {"bf16"}


def test_a_placement_sends_no_gradients_of_frozen_parameters() -> None:
    """Two devices that hold copies of a parameter send its gradient once each, and keep it and the state."""
    hardware = target_of("p100_cluster", {}, Sources())

    def data_parallel(entry: str) -> EvaluatedStrategy:
        text = f"import losses\n{DENSE.replace('train dense {', f'train dense {{ {entry}')}"
        (program,) = load(text).programs
        return placement_space(run(program, simplification()), hardware, 2).data_parallel()

    whole = data_parallel("")
    for name, size in (("w", 4 * 12 * 16), ("v", 4 * 16 * 4)):
        less = data_parallel(f'frozen "{name}";')
        assert whole.sent - less.sent == 2 * size
        assert list(whole.memory - less.memory) == [2 * size, 2 * size]
        assert less.seconds < whole.seconds
