"""The language model of `examples/pylib_lm`: it learns real text, and layouts take the same steps."""

import os
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.commands import EXAMPLES, figures, imported, mtfc

EXAMPLE = EXAMPLES / "pylib_lm" / "pylib_lm.mtf"
LAYOUTS = ("data_parallel", "model_parallel", "fsdp", "hybrid")
IS_LONG = "EVERY_LAYOUT" in os.environ
"""The documented run has 800 steps and takes a minute: `make examples`. A shorter one shows that the model learns."""
STEPS, COMPARED = (800, 30) if IS_LONG else (40, 6)
HELD_OUT = () if IS_LONG else ("--eval-batches", "5")


@pytest.fixture(scope="module")
def prepare() -> Any:
    """The example's script that writes the text."""
    return imported(EXAMPLE.with_name("prepare.py"))


@pytest.fixture(scope="module")
def data(prepare: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pylib")
    prepare.prepare(folder, Path(sysconfig.get_paths()["stdlib"]))
    return folder


def train(data: Path, layout: str, steps: int, *options: str) -> list[dict[str, Any]]:
    """Return the figures of each step."""
    log = data / f"{layout}.jsonl"
    source = ("--data", f"{data / 'train.bin'}:uint8", "--layout", layout, "--log", str(log))
    mtfc("train", str(EXAMPLE), *source, "--steps", str(steps), *options)
    return figures(log)


@pytest.fixture(scope="module")
def learned(data: Path) -> list[dict[str, Any]]:
    """The figures of the run that `data / "run"` keeps."""
    held_out = ("--eval", f"{data / 'held_out.bin'}:uint8", "--eval-every", str(STEPS), *HELD_OUT)
    return train(data, "data_parallel", STEPS, *held_out, "--dir", str(data / "run"))


def lines(texts: Iterable[bytes]) -> set[bytes]:
    """Return the lines of some length."""
    return {line.strip() for text in texts for line in text.split(b"\n") if len(line.strip()) > 60}


def test_held_out_files_are_not_trained_on(prepare: Any, data: Path) -> None:
    """Files are split by name alone, each is in one of the two parts, and few of their long lines are alike."""
    train, held_out = (
        (data / f"{part}.bin").read_bytes().split(b"\0")[:-1] for part in ("train", "held_out")
    )
    files = prepare.source_files(Path(sysconfig.get_paths()["stdlib"]))
    assert len(files) == len(train) + len(held_out) > 300
    assert {text for name, text in files if prepare.is_held_out(name)} == set(held_out)
    assert not set(train) & set(held_out)
    assert 0.02 < sum(map(len, held_out)) / sum(map(len, train)) < 0.15
    assert len(lines(held_out) & lines(train)) < 0.02 * len(lines(held_out))


def entropy(text: bytes) -> float:
    """Return the bits per byte of a model that knows how frequent each byte is, and nothing else."""
    frequencies = np.bincount(np.frombuffer(text, np.uint8)) / len(text)
    return float(
        -np.sum(frequencies * np.log2(frequencies, where=frequencies > 0, out=np.zeros(len(frequencies))))
    )


def test_it_learns_and_writes(data: Path, learned: list[dict[str, Any]]) -> None:
    """A run learns more than frequencies of bytes; the most probable end of `se` is the same on one device and on eight.

    The text is another one in each version of Python: 60 steps reach 0.76 of its entropy with 3.11, and 0.80 with 3.13.
    """
    assert len(learned) == STEPS
    assert learned[0]["bits_per_byte"] > 8
    bits = entropy((data / "held_out.bin").read_bytes())
    assert learned[-1]["eval/bits_per_byte"] < (0.58 if IS_LONG else 0.85) * bits
    written = set[str]()
    for layout in ("alone", "model_parallel"):
        model = ("--model", "generate", "--params", str(data / "run"), "--layout", layout, "--backend", "jax")
        prompt = ("--prompt", "    def __init__(se", "--temperature", "0", "--tokens", "2")
        written.add(mtfc("run", str(EXAMPLE), *model, *prompt))
    assert written == {"    def __init__(self\n"} if IS_LONG else len(written) == 1


def test_layouts_take_the_same_steps(data: Path, learned: list[dict[str, Any]]) -> None:
    """The layout that splits the most; `make examples` trains under all."""
    expected = [step["loss"] for step in learned[:COMPARED]]
    assert expected[-1] < (0.6 if IS_LONG else 0.95) * expected[0]
    for layout in LAYOUTS[1:] if IS_LONG else LAYOUTS[-1:]:
        found = [step["loss"] for step in train(data, layout, COMPARED)]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4, err_msg=layout)


def test_the_test_covers_every_layout_of_the_file() -> None:
    declared = re.findall(r"^layout (\w+)", EXAMPLE.read_text("utf-8"), re.MULTILINE)
    assert ("alone", *LAYOUTS) == tuple(declared)


def test_larger_models_have_more_heads_and_hidden_units() -> None:
    """The four sizes of `python -m benchmarks quality`, and their layouts, check; parameters as its figure shows them."""
    from benchmarks import quality

    assert [quality.parameters(heads) for heads in quality.HEADS] == [107_136, 172_672, 303_744, 565_888]
    assert "no errors" in mtfc("check", str(EXAMPLE.with_name("sizes.mtf")), "--dim", "heads=32")
