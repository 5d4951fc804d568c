"""Test the papers' convolutional and recurrent networks in `examples/`: their layouts send what the papers say.

`test_examples.py` counts their parameters and verifies them.
"""

from pathlib import Path
from typing import Any

import pytest

import mtfc

FOLDER = Path(__file__).parents[1] / "examples"


class Sent:
    """The collectives of one layout on each processor, by kind: their number, or the elements of their operands."""

    def __init__(self, file: str, layout: str) -> None:
        (found,) = mtfc.cost(FOLDER / f"{file}.mtf", layout=layout)["layouts"]
        self.devices: int = found["devices"]
        self.forward = self._kinds(found["forward"])
        self.step = self._kinds(found["step"])

    def _kinds(self, totals: Any) -> dict[str, dict[str, int]]:
        return {kind: sent for kind, sent in totals["collectives"].items() if sent["count"]}

    @property
    def bytes(self) -> int:
        """The collectives of a training step."""
        return sum(sent["bytes_per_device"] for sent in self.step.values())

    def elements(self, kind: str) -> int:
        """The collectives of the backward pass and the update."""
        whole, forward = self.step.get(kind, {}), self.forward.get(kind, {})
        return whole.get("elements_per_device", 0) - forward.get("elements_per_device", 0)


def test_soybean_section_2_2() -> None:
    """Count twice the elements on all processors: of gradients of weights, of activations and of their gradients."""
    data, hybrid = (Sent("soybean_mlp", layout) for layout in ("data", "hybrid"))
    assert data.step.keys() == {"all_reduce"}
    assert f"{megabytes(data, data.elements('all_reduce')):.1f}" == "57.6"
    activations = hybrid.step["reduce_scatter"]["elements_per_device"]
    assert f"{megabytes(hybrid, hybrid.elements('all_reduce')):.1f}" == "14.4"
    assert f"{megabytes(hybrid, activations):.1f}" == f"{4 * 4.8:.1f}"


def megabytes(sent: Sent, elements: int) -> float:
    """Return the number as the paper counts it."""
    return 2 * sent.devices * elements * 4 / 1e6


@pytest.mark.parametrize(
    ("file", "convolutions", "everything"),
    [("alexnet", 2_334_080, 60_965_224), ("vgg16", 14_714_688, 138_357_544)],
)
def test_one_weird_trick_exchanges_the_gradients_of_convolutions_alone(
    file: str, convolutions: int, everything: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Sent(file, "data").elements("all_reduce") == everything
    assert Sent(file, "mixed").elements("all_reduce") == convolutions


def test_towers_of_alexnet_meet_once_among_the_convolutions() -> None:
    """All-gathers are before the third convolution and before each dense layer.

    A GPU sends its 13 x 13 pixels of 128 channels, or half of the units.
    """
    gathered = Sent("alexnet", "model").forward["all_gather"]
    assert gathered["count"] == 4
    assert gathered["elements_per_device"] == 256 * (13 * 13 * 128 + 6 * 6 * 128 + 2048 + 2048)


@pytest.mark.parametrize(("file", "units", "words"), [("rnnlm", 2048, 10_000), ("nmt", 1024, 32_000)])
def test_last_layer_by_words_exchanges_a_quarter_of_its_gradient(
    file: str, units: int, words: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Source: FlexFlow, section 8.5, nodes of 4 GPUs. Clipping adds two numbers for the parts of the gradient's norm."""
    data, flexflow = (Sent(file, layout).elements("all_reduce") for layout in ("data", "flexflow"))
    assert data - flexflow == (units + 1) * words * 3 // 4 - 2


def test_translation_sends_less_than_half_of_what_data_parallelism_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Source: FlexFlow, section 8.2.1: data transfers fall to less than a half."""
    data, hybrid = (Sent("nmt", layout).bytes for layout in ("data", "hybrid"))
    assert data > 2 * hybrid


LEVELS = [(512, (1, 64)), (256, (64, 128)), (128, (128, 256)), (64, (256, 512)), (32, (512, 1024))]
UP = [(64, (1024, 512)), (128, (512, 256)), (256, (256, 128)), (512, (128, 64))]
"""Convolutions of 3 by 3 pixels of the U-Net: width of the images, channels of the input."""


def test_spatially_split_images_exchange_only_their_borders(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each convolution sends a row of pixels to both neighbours; so does its gradient, except for the image itself."""
    sent = Sent("unet", "stripes")
    assert sent.forward.keys() == {"permute", "all_reduce"}
    assert sent.forward["all_reduce"]["elements_per_device"] == 1
    inputs = [width * channels for width, pair in (*LEVELS, *UP) for channels in pair]
    rows = sum(inputs) + sum(inputs[1:])
    assert sent.step["permute"]["count"] == 2 * (2 * len(inputs) - 1)
    assert sent.step["permute"]["elements_per_device"] == 2 * 16 * rows
    assert sent.step.keys() == {"permute", "all_reduce"}
    assert sent.elements("all_reduce") == 31_030_658
