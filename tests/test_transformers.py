"""Test the Transformers in `examples/`: their published sizes, and the collectives of their layouts.

`test_examples.py` checks them at full size, and verifies their training at a small size.
"""

import re
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path

import attrs
import pytest

import mtfc
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.ops.collectives import KIND_OF, axes_of
from mtfc.compiler.passes.pipelines import parse_pipeline
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import choose
from tests import collectives
from tests.sampling import EVERY_CASE, some
from tests.test_examples import EXAMPLES, layouts, path

FOLDER = Path(__file__).parents[1] / "examples"


def program(file: str, model: str | None = None, **dims: int) -> Program:
    """Return the undistributed program of one model, by default the first of the file."""
    path = FOLDER / f"{file}.mtf"
    return choose(path.read_text("utf-8"), str(path), Choice(model, None, None, dims)).program


@cache
def lowered(
    file: str, layout: str, model: str | None = None, passes: str | None = None, **dims: int
) -> Program:
    """Return one processor's program of one model under a declared layout."""
    path = FOLDER / f"{file}.mtf"
    selection = choose(path.read_text("utf-8"), str(path), Choice(model, layout, None, dims))
    case = selection.cases[0]
    if passes is not None:
        case = attrs.evolve(case, passes=parse_pipeline(passes))
    return case.lower(selection.program)


# Length of the generated programs

NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


@pytest.mark.parametrize(
    ("file", "dims"),
    [
        ("transformer_lm", ("layers",)),
        ("transformer_seq2seq", ("encoder_layers", "decoder_layers")),
        ("llama", ("layers",)),
    ],
)
@pytest.mark.parametrize("generate", [numpy_backend.generate, jax_backend.generate], ids=["numpy", "jax"])
def test_six_layers_and_ninety_six_differ_in_numbers(
    file: str, dims: tuple[str, ...], generate: Callable[[Program], str]
) -> None:
    """The generated programs for different numbers of layers have the same lines, except for sizes and means over sizes.

    Sums are combined whatever their size, as those of 96 layers are not small.
    """
    passes = "default{combine-collectives.max_bytes=1000000000000}"
    few, many = (
        generate(lowered(file, layouts(file)[-1], passes=passes, **dict.fromkeys(dims, n))) for n in (6, 96)
    )
    assert few != many
    assert NUMBER.sub("", few) == NUMBER.sub("", many)


# Sizes


def billions(file: str, **dims: int) -> str:
    """Return a number of parameters as the paper prints it."""
    sizes = (prod(dim.size for dim in each.type.dims) for each in program(file, **dims).parameters)
    return f"{sum(sizes) / 1e9:.2f}"


@pytest.mark.parametrize(
    ("d_ff", "heads", "printed"),
    [
        (4096, 4, "0.14"),
        (8192, 8, "0.22"),
        (16384, 16, "0.37"),
        (32768, 32, "0.67"),
        (65536, 64, "1.28"),
        (131072, 128, "2.48"),
        (262144, 256, "4.90"),
    ],
)
def test_language_models_have_the_parameters_of_table_2(d_ff: int, heads: int, printed: str) -> None:
    """The table prints 65516 for 65536, which is half of the row below and twice the row above."""
    assert program("transformer_lm", heads=heads).dims["d_ff"].size == d_ff
    assert billions("transformer_lm", heads=heads) == printed


TABLE_3 = [
    (2048, 4, "0.15"),
    (4096, 8, "0.24"),
    (8192, 16, "0.42"),
    (16384, 32, "0.77"),
    (32768, 64, "1.48"),
    (65536, 128, "2.89"),
]
"""d_ff, heads, and parameters in billions, without the last row: it is a model of other authors."""


@pytest.mark.parametrize(("d_ff", "heads", "printed"), TABLE_3)
def test_translation_models_have_the_parameters_of_table_3(d_ff: int, heads: int, printed: str) -> None:
    assert program("transformer_seq2seq", heads=heads).dims["d_ff"].size == d_ff
    assert billions("transformer_seq2seq", heads=heads) == printed


def test_the_last_row_of_table_3_has_one_table_of_words() -> None:
    """Vaswani et al., 2017, use the table of words for predictions, too; `transformer_seq2seq` has a second one."""
    assert billions("transformer_shared") == "0.21"
    names = {each.name for each in program("transformer_shared").parameters}
    assert not any("dense" in name for name in names) and "table" in names


@pytest.mark.parametrize(
    ("vocab", "all_rows"), [(32275, False), (32276, True), (32515, True), (32516, False)]
)
def test_table_3_determines_the_vocabulary(vocab: int, all_rows: bool) -> None:
    """The sizes are the limits that the file's comment names."""
    found = [billions("transformer_seq2seq", heads=heads, vocab=vocab) for _, heads, _ in TABLE_3]
    assert (found == [printed for _, _, printed in TABLE_3]) is all_rows


GENERATING = [
    ("transformer_lm", "generate"),
    ("transformer_lm", "beam_search"),
    ("transformer_seq2seq", "translate"),
    ("moe_lm", "generate"),
    ("llama", "generate"),
]


@pytest.mark.parametrize(("file", "model"), some(GENERATING, 2))
def test_every_layout_generates_the_same(file: str, model: str) -> None:
    """`verify` passes on NumPy, in `make test` for the last layout; `test_generation.py` runs both backends."""
    example = next(each for each in EXAMPLES if each.file == file)
    layout = None if EVERY_CASE else layouts(file)[-1]
    of_example = {"mesh": example.mesh, "dims": example.dims, "layout": layout}
    found = mtfc.verify(path(example), model=model, backend="numpy", **of_example)
    assert found["ok"], found


@pytest.mark.parametrize(("file", "model"), GENERATING)
def test_generation_has_the_parameters_of_training(file: str, model: str) -> None:
    """Dimensions inside of a function of the library may have other names."""

    def shapes(program: Program) -> set[tuple[str, str, tuple[int, ...]]]:
        return {(e.name, e.type.dtype, tuple(dim.size for dim in e.type.dims)) for e in program.parameters}

    assert shapes(program(file, model)) == shapes(program(file))


# Communication


def test_a_layer_of_the_two_dimensional_layout_sends_four_sums() -> None:
    """A layer has two all-reduces forward and two backward of a processor's [batch, length, d_model]: the least possible."""
    sizes = {name: dim.size for name, dim in collectives.program().dims.items()}
    size = sizes["batch"] // 16 * sizes["length"] * sizes["d_model"]
    of_layer = [c for c in collectives.collectives() if c.where == "layer" and not c.is_gradient]
    found = [(c.stage, c.kind, c.axes, c.elements) for c in of_layer]
    assert found == [
        (stage, "all_reduce", ("cols",), size) for stage in ("forward", "forward", "backward", "backward")
    ]


def test_each_gradient_is_reduced_once() -> None:
    """As many elements are reduced as a processor has of parameters. All-reduces in the loop run once for each layer."""
    program = collectives.program()
    times = {"layer": program.dims["layers"].size, "once": 1}
    held = [a.value.type for a in program.function("step").arguments if a.role == "parameter"]
    reduced = sum(times[c.where] * c.elements for c in collectives.collectives() if c.is_gradient)
    assert reduced == sum(type.local_size(program.placed_on) for type in held)


def kinds_by_dim(program: Program, function: str, dim: str) -> set[str]:
    """Return the kinds of collectives that send tensors with this dimension, without the update of parameters."""
    return {
        KIND_OF[eqn.op]
        for eqn in walk(program.function(function).body)
        if eqn.op in KIND_OF and eqn.stage != "update"
        if any(dim in value.type.names for value in eqn.operands)
    }


@pytest.mark.parametrize("layout", ["expert_parallel", "hybrid"])
def test_tokens_reach_their_experts_by_all_to_all_alone(layout: str) -> None:
    """Tokens at experts are sent by all-to-all; experts' parameters are not sent, or gathered in parts."""
    program = lowered("moe_lm", layout)
    assert kinds_by_dim(program, "step", "capacity") == {"all_to_all"}
    experts = kinds_by_dim(program, "step", "experts")
    assert experts - {"all_to_all"} <= ({"all_gather", "reduce_scatter"} if layout == "hybrid" else set())


def test_all_that_experts_send_is_counted() -> None:
    """Six layers send groups x experts x capacity x d_model on 8 processors: to the experts and back, forward and backward."""
    program = lowered("moe_lm", "expert_parallel")
    mesh = program.placed_on
    sizes = {name: dim.size for name, dim in program.dims.items()}
    sent = [
        sum(value.type.local_size(mesh) for value in eqn.operands)
        for eqn in walk(program.function("step").body)
        if eqn.op == "all_to_all"
    ]
    each = sizes["groups"] * sizes["experts"] * sizes["capacity"] * sizes["d_model"] // 8
    assert sent == [each] * 4


def test_fully_sharded_parameters_are_gathered_and_their_gradients_scattered() -> None:
    """All-reduces over `data` are of single numbers only."""
    program = lowered("llama", "fsdp")
    over_data = [e for e in walk(program.function("step").body) if e.op in KIND_OF and "data" in axes_of(e)]
    assert {KIND_OF[e.op] for e in over_data} == {"all_gather", "reduce_scatter", "all_reduce"}
    reduced = [value for e in over_data if e.op == "all_reduce" for value in e.operands]
    assert all(not value.type.dims for value in reduced)


@pytest.mark.parametrize(("file", "model"), GENERATING)
def test_caches_are_never_sent(file: str, model: str) -> None:
    """No collective has the dimension of cached positions, so no key or value is sent."""
    layout = "fsdp" if file == "llama" else "hybrid"
    memory = "target_memory" if file == "transformer_seq2seq" else "memory"
    assert kinds_by_dim(lowered(file, layout, model), "forward", memory) == set()
