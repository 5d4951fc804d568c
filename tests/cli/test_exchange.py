"""`mtfc export` and `mtfc import`: weights of a Llama from other libraries against an oracle, maps, and their errors."""

import itertools
import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.cli import gpt2_of_hugging_face as gpt2
from tests.cli import llama_of_hugging_face as hugging_face
from tests.cli.conftest import Mtfc
from tests.cli.model import Outcome

EXAMPLES = Path(__file__).parents[2] / "examples"
LLAMA = str(EXAMPLES / "llama.mtf")
MAP = str(EXAMPLES / "maps" / "llama_hf.toml")
META = str(EXAMPLES / "maps" / "llama_meta.toml")
SIZES = [word for name, size in hugging_face.DIMS.items() for word in ("--dim", f"{name}={size}")]
PREFIX = "decoder.layers.llama_layer."


def imported(mtfc: Mtfc, source: str, output: str, *options: str) -> Outcome:
    outcome = mtfc("import", LLAMA, "--from", source, "-o", output, *SIZES, *options)
    assert outcome.status == 0, outcome.err
    return outcome


def logits(mtfc: Mtfc, params: str, tokens: np.ndarray, *options: str) -> np.ndarray:
    np.savez("tokens.npz", tokens=tokens)
    files = ["--params", params, "--data", "tokens.npz", "--save", "outputs.npz"]
    outcome = mtfc("run", LLAMA, "--mesh", "one", *files, *SIZES, *options)
    assert outcome.status == 0, outcome.err
    with np.load("outputs.npz") as outputs:
        return np.asarray(outputs["logits"])


def drawn_tokens(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 61, (2, 16)).astype(np.int32)


def before(tokens: np.ndarray) -> np.ndarray:
    """Return the token before each position; token 0 stands before the first, as in examples/llama.mtf."""
    return np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)


# Llama


@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_llama_of_hugging_face_gives_equal_logits(mtfc: Mtfc, folder: Path, backend: str) -> None:
    weights = hugging_face.draw()
    hugging_face.write(folder / "llama", weights)
    imported(mtfc, "llama", "llama.npz", "--map", MAP)
    tokens = drawn_tokens()
    found = logits(mtfc, "llama.npz", tokens, "--set", "precision.compute=f32", "--backend", backend)
    np.testing.assert_allclose(found, hugging_face.logits(weights, before(tokens)), rtol=0, atol=1e-5)


def test_a_llama_with_tied_embeddings(mtfc: Mtfc, folder: Path) -> None:
    weights = hugging_face.draw()
    del weights["lm_head.weight"]
    hugging_face.write(folder / "llama", weights)
    imported(mtfc, "llama", "llama.npz", "--map", MAP)
    found = logits(mtfc, "llama.npz", drawn_tokens(), "--set", "precision.compute=f32")
    expected = hugging_face.logits(weights, before(drawn_tokens()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_weights_of_16_bits_stay_as_they_are(mtfc: Mtfc, folder: Path) -> None:
    """NPZ lacks bf16, and holds the same numbers in f32. All go back bit by bit."""
    weights = {name: x.astype(ml_dtypes.bfloat16) for name, x in hugging_face.draw().items()}
    hugging_face.write(folder / "llama", weights)
    outcome = imported(mtfc, "llama", "llama.safetensors", "--map", MAP)
    assert outcome.out == "llama.safetensors: 12 arrays, 20.95 k numbers in bfloat16\n"
    imported(mtfc, "llama", "llama.npz", "--map", MAP)
    kept, wide = load_file("llama.safetensors"), np.load("llama.npz")
    assert {x.dtype.name for x in kept.values()} == {"bfloat16"}
    assert all(np.array_equal(x.astype(np.float32), wide[name]) for name, x in kept.items())
    for params in ("llama.safetensors", "llama.npz"):
        exporting = ["export", LLAMA, "--params", params, "--map", MAP, "-o", "back.safetensors"]
        assert mtfc(*exporting, *SIZES).status == 0
        back = load_file("back.safetensors")
        assert back.keys() == weights.keys()
        assert all(
            np.array_equal(back[name].astype(np.float32), x.astype(np.float32)) for name, x in weights.items()
        )
        assert {x.dtype.name for x in back.values()} == {"bfloat16" if params != "llama.npz" else "float32"}


def test_an_export_says_where_it_comes_from(mtfc: Mtfc, folder: Path) -> None:
    hugging_face.write(folder / "llama", hugging_face.draw())
    imported(mtfc, "llama", "llama.safetensors", "--map", MAP)
    exporting = ["export", LLAMA, "--params", "llama.safetensors", "--map", MAP, "-o", "back.safetensors"]
    outcome = mtfc(*exporting, *SIZES, "--format", "json")
    assert outcome.json["file"] == "back.safetensors"
    assert outcome.json["arrays"]["lm_head.weight"] == {"shape": [61, 24], "dtype": "float32"}
    for path, more in (("llama.safetensors", {}), ("back.safetensors", {"format": "pt"})):
        with safe_open(path, "numpy") as file:
            metadata = dict(file.metadata())
        assert metadata.pop("mtfc")
        assert metadata == {"program": "llama", **more}


def of_meta(weights: hugging_face.Weights) -> hugging_face.Weights:
    """Rename the tensors as Meta does, and pair neighbours: the inverse of `permute` in transformers' conversion script."""
    names = {
        "embed_tokens": "tok_embeddings", "input_layernorm": "attention_norm", "self_attn.q_proj": "attention.wq",
        "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
        "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3", "lm_head": "output",
    }  # fmt: skip
    found = {}
    for name, x in weights.items():
        if "q_proj" in name or "k_proj" in name:
            x = x.reshape(-1, 2, 4, 24).swapaxes(1, 2).reshape(x.shape)
        stem = name.removeprefix("model.").removesuffix(".weight")
        number = stem.split(".")[1] if stem.startswith("layers.") else ""
        inner = stem.removeprefix(f"layers.{number}.")
        found[f"{f'layers.{number}.' if number else ''}{names.get(inner, inner)}.weight"] = x
    return found


def test_elements_of_rotary_pairs_change_places(mtfc: Mtfc, folder: Path) -> None:
    """Meta's release rotates neighbours, so queries and keys differ from Hugging Face's by a permutation."""
    weights = hugging_face.draw()
    save_file({**of_meta(weights), "rope.freqs": np.ones(4, np.float32)}, "consolidated.safetensors")
    hugging_face.write(folder / "llama", weights)
    imported(mtfc, "consolidated.safetensors", "meta.npz", "--map", META)
    imported(mtfc, "llama", "llama.npz", "--map", MAP)
    with np.load("meta.npz") as meta, np.load("llama.npz") as llama:
        assert all(np.array_equal(meta[name], llama[name]) for name in llama.files)
    exporting = ["export", LLAMA, "--params", "llama.npz", "--map", META, "-o", "back.safetensors"]
    assert mtfc(*exporting, *SIZES).status == 0
    back = load_file("back.safetensors")
    assert all(np.array_equal(back[name], x) for name, x in of_meta(weights).items())


# GPT-2


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_a_gpt2_of_hugging_face_gives_equal_logits(mtfc: Mtfc, prefix: str) -> None:
    """Queries, keys and values are one tensor. The checkpoint of OpenAI lacks the prefix, and has masks and a second table."""
    weights = gpt2.draw()
    stored = {name.replace("transformer.", prefix): x for name, x in weights.items()}
    masks = {f"{prefix}h.{i}.attn.bias": np.ones((1, 1, 16, 16), bool) for i in range(3)}
    save_file({**stored, **masks, "lm_head.weight": weights["transformer.wte.weight"]}, "gpt2.safetensors")
    sizes = [word for name, size in gpt2.DIMS.items() for word in ("--dim", f"{name}={size}")]
    mapped = [str(EXAMPLES / "gpt2.mtf"), "--map", str(EXAMPLES / "maps" / "gpt2_hf.toml"), *sizes]
    outcome = mtfc("import", *mapped, "--from", "gpt2.safetensors", "-o", "ours.safetensors")
    assert outcome.status == 0, outcome.err
    np.savez("tokens.npz", tokens=drawn_tokens())
    files = ["--params", "ours.safetensors", "--data", "tokens.npz", "--save", "outputs.npz"]
    assert mtfc("run", mapped[0], *files, *sizes, "--layout", "data_parallel", "--mesh", "all:2").status == 0
    with np.load("outputs.npz") as outputs:
        expected = gpt2.logits(weights, drawn_tokens())
        np.testing.assert_allclose(outputs["logits"], expected, rtol=0, atol=1e-5)
    assert mtfc("export", *mapped, "--params", "ours.safetensors", "-o", "back.safetensors").status == 0
    back = load_file("back.safetensors")
    assert back.keys() == weights.keys()
    assert all(np.array_equal(back[name], x) for name, x in weights.items())


# Without a map


def test_without_a_map_names_stay(mtfc: Mtfc) -> None:
    w = np.arange(18, dtype=np.float16).reshape(6, 3)
    np.savez("params.npz", w=w, bias=np.ones(3), loss=np.zeros(5))
    assert mtfc("export", "model.mtf", "--params", "params.npz", "-o", "out.safetensors").status == 0
    found = load_file("out.safetensors")
    assert {name: x.dtype.name for name, x in found.items()} == {"w": "float16", "bias": "float64"}
    assert mtfc("import", "model.mtf", "--from", "out.safetensors", "-o", "back.npz").status == 0
    with np.load("back.npz") as back:
        assert set(back.files) == {"w", "bias"}
        np.testing.assert_array_equal(back["w"], w)


def test_errors_without_a_map_are_those_of_params(mtfc: Mtfc) -> None:
    np.savez("params.npz", w=np.ones((3, 6)), biases=np.ones(3))
    for command in (["export", "model.mtf", "--params"], ["import", "model.mtf", "--from"]):
        outcome = mtfc(*command, "params.npz", "-o", "out.safetensors")
        assert outcome.status == 1
        assert "error[E502]: params.npz has no array for parameter `bias`" in outcome.err
        assert "did you mean its array `biases`?" in outcome.err
        assert "error[E503]: parameter `w` is f32[io: 6, classes: 3]" in outcome.err
        assert "error[E505]: params.npz has an array `biases`, which is no parameter" in outcome.err
        assert not Path("out.safetensors").exists()


def test_files_that_cannot_be_written(mtfc: Mtfc, folder: Path) -> None:
    np.savez("params.npz", w=np.ones((6, 3)), bias=np.ones(3))
    before = Path("params.npz").read_bytes()
    command = ["import", "model.mtf", "--from", "params.npz", "-o"]
    assert "the name of the file must end in .npz or .safetensors" in mtfc(*command, "out.bin").err
    assert mtfc(*command, "params.npz").err.startswith(
        "mtfc: -o params.npz would overwrite the file that --from"
    )
    assert "no such directory" in mtfc(*command, "none/out.npz").err
    hugging_face.write(folder / "llama", hugging_face.draw())
    shard = "llama/model-00001-of-00003.safetensors"
    outcome = mtfc("import", LLAMA, "--from", "llama", "--map", MAP, "-o", shard, *SIZES)
    assert (outcome.status, "would overwrite the file that --from names" in outcome.err) == (2, True)
    assert Path("params.npz").read_bytes() == before


# Maps

PROGRAM = """\
dim batch = 2
dim layers = 3
dim io = 4
dim heads = 2
dim d_k = 6
dim d_v = 5

model net(x: [batch, io]) {
  param q: [layers, io, heads, d_k] = zeros()
  param v: [layers, io, heads, d_v] = zeros()
  param bias: [io] = zeros()
  y = x + bias + sum(q) + sum(v)
  return y
}
"""

RULES = """\
ignore = ["*.freq"]

[split]
d_k = "half=2 pair"

[[rule]]
theirs = "h.{layers}.qv"
ours = ["q", "v"]
dims = ["(heads d_k) io 1", "(d_v heads) io 1"]
join = 0

[[rule]]
theirs = ["b", "beta"]
ours = "bias"
"""


def tensors() -> hugging_face.Weights:
    rng = np.random.default_rng(0)
    found = {f"h.{i}.qv": rng.standard_normal((22, 4, 1)).astype(np.float32) for i in range(3)}
    return {**found, "beta": rng.standard_normal(4).astype(np.float32), "h.0.freq": np.ones(1, np.float32)}


def write_map(text: str, weights: hugging_face.Weights | None = None) -> list[str]:
    """Write the program, a map and tensors, and return the command that imports them."""
    Path("net.mtf").write_text(PROGRAM)
    Path("map.toml").write_text(text)
    save_file(tensors() if weights is None else weights, "theirs.safetensors")
    return ["import", "net.mtf", "--from", "theirs.safetensors", "--map", "map.toml", "-o", "ours.npz"]


def test_parts_of_a_tensor(mtfc: Mtfc) -> None:
    outcome = mtfc(*write_map(RULES))
    assert outcome.status == 0, outcome.err
    theirs = tensors()
    with np.load("ours.npz") as ours:
        for i in range(3):
            q, v = np.split(theirs[f"h.{i}.qv"][:, :, 0], [12])
            np.testing.assert_array_equal(ours["q"][i], q.reshape(2, 6, 4).transpose(2, 0, 1))
            np.testing.assert_array_equal(ours["v"][i], v.reshape(5, 2, 4).transpose(2, 1, 0))
        np.testing.assert_array_equal(ours["bias"], theirs["beta"])
    assert (
        mtfc(
            "export", "net.mtf", "--params", "ours.npz", "--map", "map.toml", "-o", "back.safetensors"
        ).status
        == 0
    )
    back = load_file("back.safetensors")
    assert back.keys() == {"h.0.qv", "h.1.qv", "h.2.qv", "b"}
    assert all(np.array_equal(back[f"h.{i}.qv"], theirs[f"h.{i}.qv"]) for i in range(3))
    np.testing.assert_array_equal(back["b"], theirs["beta"])


@given(st.permutations(["layers", "a", "b", "c"]), st.lists(st.booleans(), min_size=4, max_size=4), st.data())
def test_random_axes(order: list[str], joined: list[bool], data: st.DataObject) -> None:
    """Element by element: each number of a tensor is that of our parameter at the same place of each dimension."""
    from mtfc.compiler.ir.core import Initializer, Parameter
    from mtfc.compiler.ir.types import Dim, TensorType
    from mtfc.driver.exchange.exchange import Part

    sizes = {"layers": 2, "a": 3, "b": 2, "c": 5}
    number = data.draw(st.sampled_from([None, *sizes]))
    ours = data.draw(st.permutations(list(sizes)))
    axes: list[list[str]] = []
    for name, join in zip([name for name in order if name != number], joined, strict=False):
        if join and axes:
            axes[-1].append(name)
        else:
            axes.append([name])
    type = TensorType("f32", tuple(Dim(name, sizes[name]) for name in ours))
    parameter = Parameter("p", type, Initializer("zeros"))
    index = tuple(1 if name == number else None for name in ours)
    dims = tuple(dim for dim in type.dims if dim.name != number)
    part = Part(parameter, index, dims, tuple(map(tuple, axes)))
    values = np.arange(60).reshape([sizes[name] for name in ours])
    tensor = part.taken(values)
    for place in itertools.product(*(range(sizes[name]) for name in ours)):
        at = dict(zip(ours, place, strict=True))
        if number is None or at[number] == 1:
            there = [np.ravel_multi_index([at[n] for n in axis], [sizes[n] for n in axis]) for axis in axes]
            assert tensor[tuple(there)] == values[place]
    back = np.zeros_like(values)
    part.put(back, tensor)
    chosen = tuple(slice(None) if i is None else i for i in index)
    np.testing.assert_array_equal(back[chosen], values[chosen])


def test_braces_of_both_names(mtfc: Mtfc) -> None:
    """Braces of `ours` stand for a text without a dot; one rule serves parameters of different shapes."""
    Path("deep.mtf").write_text(
        "import nn\ndim batch = 2\ndim io = 3\ndim h1 = 4\ndim h2 = 5\n"
        "model deep(x: [batch, io]) {\n  a = nn.dense[d_out = h1](x) as first\n"
        "  b = nn.dense[d_out = h2](a) as second\n  return b\n}\n"
    )
    Path("deep.toml").write_text(
        '[[rule]]\ntheirs = "net.{layer}.kernel"\nours = "{layer}.w"\n'
        '[[rule]]\ntheirs = "net.{layer}.bias"\nours = "{layer}.bias"\n'
    )
    rng = np.random.default_rng(0)
    shapes = {"first.kernel": (3, 4), "first.bias": (4,), "second.kernel": (4, 5), "second.bias": (5,)}
    theirs = {f"net.{name}": rng.standard_normal(shape) for name, shape in shapes.items()}
    save_file(theirs, "theirs.safetensors")
    mapped = ["deep.mtf", "--map", "deep.toml"]
    outcome = mtfc("import", *mapped, "--from", "theirs.safetensors", "-o", "ours.safetensors")
    assert outcome.status == 0, outcome.err
    ours = load_file("ours.safetensors")
    assert ours.keys() == {"first.w", "first.bias", "second.w", "second.bias"}
    assert all(np.array_equal(ours[name], theirs[f"net.{name.replace('w', 'kernel')}"]) for name in ours)


def replaced(old: str, new: str) -> str:
    assert old in RULES
    return RULES.replace(old, new)


WRONG = {
    "no TOML": (replaced('ours = "bias"', "ours = bias"), "this map is no TOML: invalid value", 14),
    "no rules": ("ignore = []\n", "a map has at least one rule, below a line `[[rule]]`", 1),
    "rules on a line": ("rule = [{theirs = 'a', ours = 'b'}]", "a map has at least one rule", 1),
    "an unknown key": (replaced("join = 0", "joint = 0"), "a map of weights has no `joint` here", 6),
    "an unknown table": (replaced("[split]", "[parts]"), "a map of weights has no `parts` here", 1),
    "no names": (replaced('theirs = "h.{layers}.qv"\n', ""), "this rule lacks `theirs`", 6),
    "names that are numbers": (replaced('ours = "bias"', "ours = 3"), "`ours` is a text, or a list of texts", 14),
    "no axis to join": (replaced("join = 0\n", ""), "several parameters in one tensor need `join`", 6),
    "an axis that is a text": (replaced("join = 0", "join = 'io'"), "`join` is the number of an axis", 10),
    "an axis that is not there": (replaced("join = 0", "join = 3"), "their tensor has 3 axes: there is no axis 3", 10),
    "axes of other sizes": (replaced("join = 0", "join = 1"), "cannot be joined along axis 1", 8),
    "too many axes": (replaced('dims = ["(', 'dims = ["io", "('), "`dims` has 3 entries, and `ours` 2", 9),
    "axes in axes": (replaced("(heads d_k) io", "(heads (d_k)) io"), "`dims` cannot be read: `(heads (d_k)) io 1`", 9),
    "an unknown dimension": (replaced("(heads d_k)", "(head d_k)"),
     "`head` is no dimension of a tensor of `q`, which is f32[layers: 3, io: 4, heads: 2, d_k: 6]", 9),
    "a missing dimension": (replaced("(heads d_k)", "d_k"), "`dims` lacks `heads`, a dimension of `q`", 9),
    "a dimension twice": (replaced("(heads d_k)", "(heads d_k io)"), "`dims` has `io` twice", 9),
    "a number of tensors as an axis": (replaced('io 1",', 'layers",'), "`layers` is no dimension of a tensor", 9),
    "a split that leaves a rest": (replaced("half=2 pair", "half=4 pair").replace("heads d_k", "heads pair half"),
     "`d_k` of 6 cannot be split into `half=4 pair`", 9),
    "a split without sizes": (replaced("half=2 pair", "half pair"), "`split` of `d_k` cannot be read", 3),
    "an unknown parameter": (replaced('ours = "bias"', 'ours = "base"'), "the model has no parameter `base`", 14),
    "unknown braces": (replaced("{layers}", "{layer}"), "`{layer}` is neither in `ours` nor a dimension of `q`", 7),
    "braces of ours alone": (replaced('"bias"', '"{what}"'), "`{what}` is not in `theirs`", 14),
    "different braces": (replaced('"beta"', '"b.{io}"'), "the names of `theirs` have different `{...}`", 13),
    "a parameter twice": (replaced('["q", "v"]', '["q", "q"]').replace("d_v", "d_k"), "`ours` has a parameter twice", 8),
    "two rules for a parameter": (RULES + '[[rule]]\ntheirs = "c"\nours = "bias"\n', "two rules give the parameter `bias`", 17),
    "two rules for a tensor": (
        RULES.replace('["b", "beta"]', '"b"').replace('["q", "v"]', '"q"').replace(', "(d_v heads) io 1"', "")
        + '[[rule]]\ntheirs = "b"\nours = "v"\ndims = "layers heads io d_v"\n',
        "two rules give the tensor `b`",
        16,
    ),
    "a prefix that is no text": ("prefix = 3\n" + RULES, "`prefix` is a text", 1),
    "metadata": ("[metadata]\na = 3\n" + RULES, "`metadata` is a table of texts", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_maps(mtfc: Mtfc, case: str) -> None:
    """The error names the line, before a file of weights is read."""
    text, message, line = WRONG[case]
    command = write_map(text)
    Path("theirs.safetensors").unlink()
    outcome = mtfc(*command)
    assert outcome.status == 1
    assert re.search(f"error\\[E507\\]: .*{re.escape(message)}", outcome.err)
    assert f"--> map.toml:{line}:" in outcome.err


def test_a_parameter_without_a_rule(mtfc: Mtfc) -> None:
    outcome = mtfc(*write_map(RULES[: RULES.rindex("[[rule]]")]))
    assert "error[E507]: map.toml has no rule for the parameter `bias`\n  --> net.mtf:11:9" in outcome.err


TENSORS = {
    "missing": (
        {"h.1.qv": None, "h.2.qv": None, "beta": None},
        (
            "E502",
            "theirs.safetensors has no tensor `h.1.qv` (and 1 more alike)",
            "map.toml:7:",
            "the file has 1 of `layers`, and the model 3: --dim layers=1",
        ),
        ("E502", "theirs.safetensors has no tensor `b`", "map.toml:13:", None),
    ),
    "unread": (
        {"h.3.qv": np.ones((22, 4, 1)), "extra.0": np.ones(1), "extra.1": np.ones(1)},
        (
            "E505",
            "theirs.safetensors has a tensor `h.3.qv`, and no rule reads it",
            "theirs.safetensors:1:1",
            "the file has 4 of `layers`, and the model 3: --dim layers=4",
        ),
        (
            "E505",
            "theirs.safetensors has a tensor `extra.0` (and 1 more alike), and no rule reads it",
            "theirs.safetensors:1:1",
            "`ignore` in map.toml leaves tensors out",
        ),
    ),
    "misshaped": (
        {"h.0.qv": np.ones((4, 22)), "beta": np.ones(7)},
        (
            "E503",
            "`h.0.qv` of theirs.safetensors has shape [4, 22], and this rule needs "
            "`(heads d_k) io 1` joined along axis 0 with `(d_v heads) io 1`, which is [22, 4, 1]",
            "map.toml:7:",
            "the sizes of dimensions are changed with --dim",
        ),
        (
            "E503",
            "`beta` of theirs.safetensors has shape [7], and this rule needs `io`, which is [4]",
            "map.toml:13:",
            "the sizes of the file are --dim io=7",
        ),
    ),
    "of another kind": (
        {"beta": np.ones(4, bool)},
        ("E504", "a parameter is f32, and `beta` of theirs.safetensors is bool", "map.toml:13:", None),
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_fit(mtfc: Mtfc, case: str) -> None:
    changes, *expected = TENSORS[case]
    weights = {**tensors(), **changes}
    command = write_map(RULES, {name: x for name, x in weights.items() if x is not None})
    outcome = mtfc(*command)
    assert outcome.status == 1
    assert outcome.err.count("error[") == len(expected)
    for code, message, place, help in expected:
        assert f"error[{code}]: {message}\n" in outcome.err
        assert f"--> {place}" in outcome.err
        assert help is None or f"= help: {help}\n" in outcome.err
    assert not Path("ours.npz").exists()


def test_errors_as_json(mtfc: Mtfc) -> None:
    command = write_map(replaced("join = 0", "joint = 0"))
    found = json.loads(mtfc(*command, "--format", "json").err)
    assert (found[0]["code"], found[0]["line"]) == ("E507", 6)


def test_missing_files(mtfc: Mtfc) -> None:
    command = write_map(RULES)
    Path("map.toml").unlink()
    assert "mtfc: cannot read map.toml: no such file or directory" in mtfc(*command).err
    Path("map.toml").write_text(RULES)
    Path("theirs.safetensors").unlink()
    assert "error[E501]: cannot read arrays: no such file or directory" in mtfc(*command).err


def test_memory_holds_one_parameter_and_one_tensor(mtfc: Mtfc) -> None:
    """The peak of memory is below three parameters, of 24."""
    import tracemalloc

    names = [f"p{i}" for i in range(24)]
    declared = "".join(f"  param {name}: [layers, io, io2] = zeros()\n" for name in names)
    total = " + ".join(f"sum({name})" for name in names)
    Path("many.mtf").write_text(
        "dim layers = 4\ndim io = 256\ndim io2 = io\n"
        f"model many(x: []) {{\n{declared}  y = x + {total}\n  return y\n}}\n"
    )
    rules = "".join(
        f'[[rule]]\ntheirs = "{name}.{{layers}}"\nours = "{name}"\ndims = "io2 io"\n' for name in names
    )
    Path("many.toml").write_text(rules)
    save_file(
        {f"{name}.{i}": np.ones((256, 256), np.float32) for name in names for i in range(4)},
        "many.safetensors",
    )
    size = 4 * 4 * 256 * 256
    for command in (
        ["import", "many.mtf", "--from", "many.safetensors", "-o", "ours.safetensors"],
        ["export", "many.mtf", "--params", "ours.safetensors", "-o", "back.safetensors"],
    ):
        tracemalloc.start()
        assert mtfc(*command, "--map", "many.toml").status == 0
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3 * size
