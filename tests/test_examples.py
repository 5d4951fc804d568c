"""The networks in `examples/`: they check at paper size, have the published numbers of parameters, and verify at a small size."""

import os
import re
from functools import cache
from math import prod
from pathlib import Path

import attrs
import numpy as np
import pytest

import mtfc
from mtfc.backends.common.devices import setting_kept
from mtfc.compiler.ir.core import Equation, Program, walk
from mtfc.compiler.ir.opdef import no_gradient
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.printer import print_program
from mtfc.compiler.passes.partition.combine_collectives import CombineCollectives
from mtfc.compiler.passes.pipelines import default_pipeline, run
from mtfc.driver.data.array_files import Arrays
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED, LayoutOnMesh, Selection, choose
from mtfc.driver.options import VerifyOptions
from mtfc.driver.running.execution import Session, load
from mtfc.driver.verification.exact_cases import exact_cases
from mtfc.driver.verification.results import CaseResult
from mtfc.driver.verification.verify import checks_of
from tests.sampling import EVERY_CASE

FOLDER = Path(__file__).parents[1] / "examples"


def lstm(inputs: int, units: int) -> int:
    """Return the parameters of a layer with a bias for each of its four gates."""
    return 4 * units * (inputs + units + 1)


def dense(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


@attrs.frozen
class Example:
    """A file, the number of parameters at the sizes in the file, and the options of its verification.

    small: sizes for `verify`, as on the command line. mesh: a mesh for all layouts; None leaves each on its own. in_floats:
    number of layouts that run in floats, on both backends.
    """

    file: str
    parameters: int
    small: str = ""
    mesh: str | None = None
    in_floats: int = 1

    @property
    def dims(self) -> dict[str, int]:
        pairs = (item.split("=") for item in self.small.split())
        return {name: int(size) for name, size in pairs}


EXAMPLES = (
    # Handwritten digits: 64 pixels, one hidden layer of 1024 units, no biases.
    Example("digits", 64 * 1024 + 1024 * 10, "batch=8 hidden=16"),
    # Convolutions of 3 x 3 pixels: from 1 to 16 channels, four of 16, one from 16 to 32, three of 32; a projection of 16 x 32;
    # a scale, a bias, a mean and a variance for each normalized channel; a dense layer.
    Example("digits_resnet", 9 * (16 + 4 * 16**2 + 16 * 32 + 3 * 32**2) + 16 * 32 + 4 * (5 * 16 + 5 * 32) + dense(32, 10),
     "batch=8 narrow=4 height=8 width=4", "all:2;nodes:2;parts:2", in_floats=0),
    # Mesh-TensorFlow paper, section 10: no parameters.
    Example("matmul", 0, "m=8 n=8 k=8", "p:2;x:2;y:2;z:1", in_floats=0),
    # The means of embeddings, and three dense layers.
    Example("recommender", 400_000_000 * 64 + dense(64, 4096) + dense(4096, 4096) + dense(4096, 2),
     "batch=8 seen=4 things=64 hidden1=16 hidden2=8"),
    # Mesh-TensorFlow paper, section 8.
    Example("two_layer", 128 * 512 + 512 + 512 * 128, "batch=8 io=8", in_floats=2),
    # SoyBean, section 2.2: 300 x 300 x 5 x 4 bytes = 1.8 MB; section 6.2, figure 8a.
    Example("soybean_mlp", 450_000, "batch=8 units=16", "groups:2;gpus:2", in_floats=0),
    Example("soybean_mlp_8k", 4 * 8192**2, "batch=8 units=16", "groups:2;gpus:2", in_floats=0),
    # Five layers of 3 x 3 pixels, from 2048 channels to as many.
    Example("soybean_cnn", 5 * 9 * 2048**2, "batch=4 channels=4 height=4 width=3", "groups:2;gpus:2", in_floats=0),
    # Krizhevsky et al. 2012, "60 million"; exactly that of bvlc_alexnet, which has its groups.
    Example("alexnet", 60_965_224, "batch=4 height=67 width=67 c1=2 c2=4 c3=4 c4=4 c5=2 units1=8 units2=8 classes=8",
     "groups:2;gpus:2", in_floats=0),
    # LeCun et al. 1998, with full connections: 156, 2416, 48,120, 10,164 and 850.
    Example("lenet", 61_706, "batch=4 height=16 width=16 c1=2 c2=4 units1=8 units2=8"),
    # Simonyan and Zisserman 2015, table 2, "138 million"; exactly that of torchvision's vgg16.
    Example("vgg16", 138_357_544, "batch=4 height=32 width=32 c1=2 units1=8 units2=8 classes=8", "groups:2;gpus:2",
     in_floats=0),
    # torchvision's inception_v3 without its auxiliary classifier: 27,161,264 with it.
    Example("inception_v3", 23_834_568, "batch=4 height=75 width=75 grain=2 classes=8 middle=1", "nodes:2;gpus:2", in_floats=0),
    # torchvision's resnet101.
    Example("resnet101", 44_549_160, "batch=8 height=32 width=32 stem=4 blocks2=1 blocks3=1 blocks4=2 blocks5=1 classes=8",
     "nodes:2;gpus:2", in_floats=0),
    # Kim 2014, table 1: a vocabulary of 18,765 words; two classes.
    Example("rnntc", 18_765 * 1024 + 4 * lstm(1024, 1024) + dense(1024, 2), "batch=4 length=5 vocab=11 units=8",
     "nodes:2;gpus:2", in_floats=0),
    # Zaremba et al. 2014: 10,000 words.
    Example("rnnlm", 10_000 * 2048 + 2 * lstm(2048, 2048) + dense(2048, 10_000), "batch=4 length=5 words=12 units=8",
     "nodes:2;gpus:2", in_floats=0),
    # Two tables, four layers, the attention's three matrices and two vectors, the dense layer.
    Example("nmt", 2 * 32_000 * 1024 + 4 * lstm(1024, 1024) + (4 * 1024**2 + 2 * 1024) + dense(1024, 32_000),
     "batch=4 source=5 target=4 read=12 units=8", "nodes:2;gpus:2"),
    # Mesh-TensorFlow paper, section 9: see `test_transformers.py`, which counts these from the paper's tables.
    Example("transformer_lm", 4_899_235_840,
     "batch=4 length=4 vocab=8 d_model=8 heads=4 d_k=2 d_ff=8 layers=2 choices=4 branches=2", "all:2;rows:2;cols:2",
     in_floats=0),
    Example("transformer_seq2seq", 2_885_484_544,
     "batch=4 positions=4 vocab=8 d_model=8 heads=4 d_k=2 d_ff=8 encoder_layers=2 decoder_layers=2 beam=2 branches=2",
     "all:2;rows:2;cols:2", in_floats=0),
    Example("transformer_shared", 209_780_736,
     "batch=4 positions=4 vocab=8 d_model=8 heads=4 d_k=2 d_ff=8 encoder_layers=2 decoder_layers=2", "all:2;rows:2;cols:2",
     in_floats=0),
    Example("moe_lm", 897_968_128,
     "batch=8 length=4 vocab=8 d_model=8 heads=2 d_k=4 d_ff=8 layers=2 experts=4 groups=4 capacity=6 choices=4",
     "all:2;rows:2;cols:2"),
    # Radford et al. 2019, the smallest model; exactly that of transformers' GPT2LMHeadModel.
    Example("gpt2", 124_439_808, "batch=4 length=4 vocab=8 d_model=8 heads=2 layers=2", "all:2", in_floats=0),
    # Llama 3 8B.
    Example("llama", 8_030_261_248, "batch=4 length=4 vocab=8 d_model=8 kv_heads=2 sharers=2 d_k=4 d_ff=8 layers=2 choices=4",
     "data:2;model:2"),
    # Two tables, positions, 16 layers of four matrices of attention, two of the feed-forward layer and two normalizations.
    Example("pipeline", 2 * 32_768 * 1024 + 512 * 1024 + 16 * (4 * 1024**2 + 2 * 4 * 1024**2 + 4 * 1024) + 2 * 1024,
     "batch=16 length=2 vocab=8 d_model=8 heads=2 d_k=4 d_ff=8 layers=2", "stages:2;data:2;model:2", in_floats=0),
    # The same with 6 layers of 512.
    Example("two_meshes", 2 * 32_768 * 512 + 512 * 512 + 6 * (4 * 512**2 + 2 * 4 * 512**2 + 4 * 512) + 2 * 512,
     "batch=4 length=2 vocab=8 d_model=8 heads=2 d_k=4 d_ff=8 layers=2", "rows:2;cols:2", in_floats=0),
    # Ronneberger et al. 2015, figure 1, with biases.
    Example("unet", 31_030_658, "batch=4 height=64 width=32 c1=2", "rows:2;cols:2", in_floats=0),
)  # fmt: skip


@pytest.fixture(params=EXAMPLES, ids=lambda example: example.file)
def example(request: pytest.FixtureRequest) -> Example:
    found = request.param
    assert isinstance(found, Example)
    return found


def path(example: Example) -> Path:
    return FOLDER / f"{example.file}.mtf"


def program(example: Example, dims: dict[str, int]) -> Program:
    file = path(example)
    return choose(file.read_text("utf-8"), str(file), Choice(None, None, None, dims)).program


@cache
def selection(example: Example) -> Selection:
    """Return the small program with all its layouts."""
    file, choice = path(example), Choice(None, None, example.mesh, example.dims)
    return choose(file.read_text("utf-8"), str(file), choice, every_layout=True)


def test_every_file_is_here() -> None:
    assert sorted(path(example) for example in EXAMPLES) == sorted(FOLDER.glob("*.mtf"))


def test_it_checks_at_the_size_of_the_paper(example: Example) -> None:
    assert not [each for each in mtfc.check(path(example)) if each.severity == "error"]


def test_parameters_are_as_many_as_published(example: Example) -> None:
    sizes = (prod(dim.size for dim in each.type.dims) for each in program(example, {}).parameters)
    assert sum(sizes) == example.parameters


def layouts(file: str) -> list[str]:
    """Return the layouts of one mesh that an example's file declares."""
    text = (FOLDER / f"{file}.mtf").read_text("utf-8")
    declared = re.findall(r"^layout +(\w+)((?:.|\n[ }])*)", text, re.MULTILINE)
    return [name for name, rules in declared if "\n  part " not in rules]


def test_parts_on_meshes_of_their_own_are_exact() -> None:
    """The example of several meshes, at small sizes."""
    (example,) = (each for each in EXAMPLES if each.file == "two_meshes")
    text, choice = path(example).read_text("utf-8"), Choice(layout="two", dims=example.dims)
    chosen = choose(text, str(path(example)), choice, or_multi_mesh=True)
    with np.errstate(all="ignore"):
        found = list(exact_cases(chosen.program, (), 0, chosen.multi_mesh))
    assert [each.layout for each in found] == ["gradients", "two"]
    assert all(each.ok and not each.skipped for each in found)


EVERY_LAYOUT = "EVERY_LAYOUT" in os.environ

LARGE = ("inception_v3", "resnet101")
"""The examples that are compiled and differentiated in many seconds."""

HAVE_NO_OP_OF_THEIR_OWN = (
    *LARGE,
    "vgg16",
    "transformer_shared",
    "transformer_seq2seq",
    "soybean_mlp_8k",
    "pipeline",
    "digits_resnet",
    "nmt",
)
"""The examples whose exact check takes seconds, and whose ops smaller examples have."""

CASES = [(example, layout) for example in EXAMPLES for layout in layouts(example.file)]


def test_every_layout_is_exact(example: Example) -> None:
    """The last layout, and the gradients of the undistributed program, over a finite field. `make examples`: all layouts."""
    if example.file in HAVE_NO_OP_OF_THEIR_OWN and not (EVERY_CASE or EVERY_LAYOUT):
        pytest.skip("takes seconds: `make examples` has it, and smaller examples have its ops")
    chosen = selection(example)
    cases = chosen.cases if EVERY_LAYOUT else chosen.cases[-1:]
    with np.errstate(all="ignore"):
        found = list(exact_cases(chosen.program, cases, seed=0))
    assert len(found) == 1 + len(cases)
    assert all(each.ok and not each.skipped for each in found)
    assert sum(each.found.not_judged for each in found) <= 0.01 * sum(each.found.elements for each in found)


FLOATS = [
    (example, layout)
    for example, layout in CASES
    if layout in [*layouts(example.file)[:1], *layouts(example.file)[-1:]][: example.in_floats]
    or EVERY_LAYOUT
]
"""The cases in floats: the first layout, and of some examples the last, which splits the most.

Examples whose differentiable ops others have are left out. `make examples` runs all layouts of all.
"""

SLOW_IN_FLOATS = () if EVERY_CASE or EVERY_LAYOUT else ("nmt", "moe_lm", "llama")
"""The examples that XLA compiles for seconds. Each of their ops runs in floats in `backends/test_interpreter.py`."""

RUN_IN_FLOATS = [case for case in FLOATS if case[0].file not in SLOW_IN_FLOATS]

DRAWN = {"two_layer"} | ({"llama", "transformer_lm", "moe_lm"} if EVERY_LAYOUT else set())
"""The examples whose parameters are drawn on each backend."""


@pytest.mark.parametrize(
    ("example", "layout"), RUN_IN_FLOATS, ids=[f"{each.file}-{layout}" for each, layout in RUN_IN_FLOATS]
)
def test_the_layout_gives_the_same_on_both_backends(example: Example, layout: str, tmp_path: Path) -> None:
    """The test runs in f64, because rounding grows through the deep networks and is coarse in bf16.

    Parameters are read from a file: XLA takes long to compile many draws. The first layouts of `DRAWN` draw them on each backend.
    With the first layout of two examples run the checks that no layout changes: of the training step, and of gradients in JAX.
    """
    is_first, params = layout == layouts(example.file)[0], None
    if not is_first or example.file not in DRAWN:
        np.savez(tmp_path / "params.npz", **drawn(example))
        params = str(tmp_path / "params.npz")
    choice = Choice(None, layout, example.mesh, example.dims)
    options = VerifyOptions(str(path(example)), choice, dtype="f64", params=params, exact=False)
    is_whole = is_first and (EVERY_LAYOUT or example.file in ("two_layer", "lenet"))
    known = [each for each in checks_of(options) if is_whole or isinstance(each.blank, CaseResult)]
    with (
        setting_kept("jax_enable_x64"),
        setting_kept("jax_default_matmul_precision"),
        np.errstate(all="ignore"),
    ):
        found = [result for check in known for result in check.run()]
    assert {each.backend for each in found if isinstance(each, CaseResult)} == {"jax", "numpy"}
    assert not [each.text(verbose=False) for each in found if not each.ok]


def ops(example: Example) -> set[str]:
    """Return the ops of the forward pass that have a gradient."""
    found = {eqn.op for eqn in walk(selection(example).program.function("forward").body)} & OPS.keys()
    return {op for op in found if OPS[op].gradient is not no_gradient}


def test_every_op_with_a_gradient_is_checked_exactly() -> None:
    checked = [each for each in EXAMPLES if each.file not in HAVE_NO_OP_OF_THEIR_OWN]
    assert set().union(*map(ops, EXAMPLES)) == set().union(*map(ops, checked))


def test_every_op_with_a_gradient_runs_in_floats() -> None:
    in_floats = set().union(
        *(ops(example) for example, layout in FLOATS if layout == layouts(example.file)[0])
    )
    assert {example.file: ops(example) - in_floats for example in EXAMPLES if ops(example) - in_floats} == {}


def drawn(example: Example) -> Arrays:
    """Return initial values of the parameters."""
    alone = LayoutOnMesh(ONE_DEVICE, UNDISTRIBUTED).lower(selection(example).program)
    return Session.start(load(alone, "numpy"), 0, {}).parameters()


def collectives(program: Program) -> list[Equation]:
    """Return the equations that send data."""
    bodies = (walk(function.body) for function in program.functions)
    return [eqn for body in bodies for eqn in body if has_trait(eqn, "sends")]


def sent(program: Program) -> list[tuple[str, str]]:
    """Return the collective and the name of every value that is sent."""
    return sorted((eqn.op, value.name) for eqn in collectives(program) for value in eqn.operands)


def test_combined_collectives_can_be_combined_again(example: Example) -> None:
    """The pass at the end of the default pipeline is a fixed point; with other sizes merged collectives are not taken apart.

    So IR text of a lowered program, read again, prints the same text. `make examples`: all layouts.
    """
    if example.file in HAVE_NO_OP_OF_THEIR_OWN and not (EVERY_CASE or EVERY_LAYOUT):
        pytest.skip("takes many seconds: `make examples` has it, and smaller examples have its collectives")
    chosen = selection(example)
    assert len(chosen.cases) == len(layouts(example.file))
    for case in chosen.cases if EVERY_LAYOUT else chosen.cases[-1:]:
        lowered = case.lower(chosen.program)
        text = print_program(lowered, locations=True)
        again = run(read_program(text), default_pipeline()[-3:], level="lowered")
        assert print_program(again, locations=True) == text
        for max_bytes in (0, 16):
            again = run(lowered, (CombineCollectives(max_bytes),), level="lowered")
            assert len(collectives(again)) <= len(collectives(lowered)), case
            assert sent(again) == sent(lowered), case
