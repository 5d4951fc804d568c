"""Test that functions of the library have exactly the collectives that their comments state."""

from collections import Counter

import pytest

from tests.harness import communication
from tests.library.networks import Network

Sent = list[tuple[str, tuple[str, ...], int]]

SIZES = {"batch": 4, "length": 8, "memory": 8, "d": 16, "heads": 4, "d_k": 4, "ff": 64, "vocab": 32}
ROWS = {"x": "f32[batch, length, d]"}


def sent(network: Network, of: str = "forward") -> Sent:
    return communication(network.source, of)


def layer(body: str, layout: str, outputs: str = "batch, length, d", **more: int) -> Network:
    """Return a network with one output y; tests ignore the collective of the loss, whose size is 1."""
    modules = ["nn", "attention", "transformer", "conv", "rnn", "tensors"]
    used = [name for name in modules if f"{name}." in body]
    return Network(
        imports=used,
        dims={**SIZES, **more},
        layouts=[layout],
        inputs=ROWS,
        body=f"y = {body}",
        outputs={"y": outputs},
    )


def of_tensors(found: Sent) -> Sent:
    return [each for each in found if each[2] > 1]


ALL_REDUCE_B = ("all_reduce", ("b",), 2 * 8 * 16)


def test_transformer_layer() -> None:
    """Expect the collectives of the paper's two-dimensional layout (section 9).

    These are all-reduces of the results of attention and of the feed-forward layer, of the gradients of their inputs, and of
    all parameters' gradients together over the axis of `batch`.
    """
    network = layer(
        "transformer.decoder_layer[memory = memory, heads = heads, d_k = d_k, d_ff = ff](x)",
        "batch: a, heads: b, ff: b",
    )
    assert of_tensors(sent(network)) == [ALL_REDUCE_B] * 2
    both = of_tensors(sent(network, "gradients"))
    parameters = 4 * 16 * 4 * 4 // 2 + 2 * 16 * 64 // 2 + 4 * 16
    assert Counter(both) == Counter([*[ALL_REDUCE_B] * 4, ("all_reduce", ("a",), parameters + 1)])


def test_batch_normalization_by_running_averages_sends_in_training_alone() -> None:
    """The mean, then the variance with the deviations that its gradient needs, then what the backward pass sums."""
    network = Network(
        imports=["nn"],
        dims=SIZES,
        layouts=["batch: a"],
        inputs={**ROWS, "average": "f32[d]", "variance": "f32[d]"},
        body="y, mean, var = nn.running_batch_norm(x, average, variance)",
        outputs={"y": "batch, length, d"},
    )
    assert of_tensors(sent(network)) == []
    in_training = of_tensors(sent(network, "gradients"))
    assert in_training == [("all_reduce", ("a",), 16), ("all_reduce", ("a",), 32), ("all_reduce", ("a",), 33)]


CASES: dict[str, tuple[Network, Sent]] = {
    "attention over a split sequence: keys and values are gathered": (
        layer("attention.multi_head[memory = memory, heads = heads, d_k = d_k](x)", "length: a, heads: b"),
        [("all_gather", ("a",), 4 * 4 * 2 * 4)] * 2 + [("all_reduce", ("b",), 4 * 4 * 16)],
    ),
    "attention over split memory: maxima, then sums": (
        layer("attention.multi_head[memory = memory, heads = heads, d_k = d_k](x)", "memory: a, batch: b"),
        [("all_reduce", ("a",), 2 * 8 * 4), ("all_reduce", ("a",), 2 * 8 * 4 * (4 + 1))],
    ),
    "local attention: neighbours exchange keys and values": (
        layer(
            "attention.local[blocks = blocks, block = block, memory = memory, heads = heads, d_k = d_k](x)",
            "length: a, blocks: a, heads: b",
            blocks=4,
            block=2,
            memory=4,
        ),
        [("permute", ("a",), 4 * 2 * 2 * 4)] * 2 + [("all_reduce", ("b",), 4 * 4 * 16)],
    ),
    "feed-forward: one sum": (layer("nn.feed_forward[d_ff = ff](x)", "batch: a, ff: b"), [ALL_REDUCE_B]),
    "gated feed-forward: one sum": (layer("nn.swiglu[d_ff = ff](x)", "batch: a, ff: b"), [ALL_REDUCE_B]),
    "layer normalization along a split dimension: mean, then variance": (layer("nn.layer_norm(x)", "batch: a, d: b"),
     [("all_reduce", ("b",), 2 * 8)] * 2),
    "batch normalization: mean, then variance, of each channel": (layer("nn.batch_norm(x)", "batch: a, d: b"),
     [("all_reduce", ("a",), 8)] * 2),
    "softmax along a split dimension: maxima, then sums": (layer("nn.softmax(x)", "batch: a, d: b"),
     [("all_reduce", ("b",), 2 * 8)] * 2),
    "recurrent layer: the hidden state of the step before": (
        layer("rnn.lstm[hidden = heads](x)", "batch: a, heads: b", "batch, length, heads"),
        [("all_gather", ("b",), 2 * 2)],
    ),
    "compressed attention over a split sequence: a key and a value of several positions each": (
        layer(
            "attention.compressed[memory = short, kernel = two, heads = heads, d_k = d_k](x, stride = 2)",
            "short: a, heads: b",
            short=4,
            two=2,
        ),
        [
            ("all_reduce", ("a",), 4 * 8 * 2),
            ("all_reduce", ("a",), 4 * 8 * 2 * (4 + 1)),
            ("all_reduce", ("b",), 4 * 8 * 16),
        ],
    ),
    "relative positions of split heads: nothing": (
        layer(
            "attention.relative_bias[length = length, memory = memory, buckets = vocab, heads = heads]()",
            "heads: a, length: b",
            "heads, length, memory",
        ),
        [],
    ),
    "convolution of each channel by itself: nothing": (
        layer(
            "conv.depthwise_conv1d[out_length = length, k_length = width](x)",
            "batch: a, d: b",
            width=3,
        ),
        [],
    ),
    "transposed convolution of a split line: its borders": (
        layer(
            "conv.conv_transpose1d[out_length = long, k_length = width, filters = ff](x)",
            "length: a, long: a, ff: b",
            "batch, long, ff",
            long=16,
            width=4,
        ),
        [("permute", ("a",), 4 * 16)] * 2,
    ),
    "transposed convolution whose tiles do not overlap: nothing": (
        layer(
            "conv.conv_transpose1d[out_length = long, k_length = width, filters = ff](x)",
            "length: a, long: a, ff: b",
            "batch, long, ff",
            long=16,
            width=2,
        ),
        [],
    ),
    "one of the largest elements along a split dimension: the largest of each shard": (
        layer("tensors.nth_largest(x, n = 2)", "batch: b, d: a", "batch, length"),
        [("all_gather", ("a",), 2 * 8 * 3)],
    ),
    "convolution of a split image: its borders": (
        layer(
            "conv.conv1d[out_length = length, k_length = width, filters = ff](x)",
            "length: a, ff: b",
            "batch, length, ff",
            width=3,
        ),
        [("permute", ("a",), 4 * 16)] * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_forward(name: str) -> None:
    network, expected = CASES[name]
    assert of_tensors(sent(network)) == expected


@pytest.mark.parametrize(
    "loss",
    [
        "softmax_cross_entropy(logits, targets, smoothing = 0.1)",
        "softmax_cross_entropy(logits, targets) + losses.z_loss(logits)",
    ],
)
def test_losses_never_gather_logits(loss: str) -> None:
    """The backward pass of a loss over a split vocabulary sends nothing of its own."""
    network = Network(
        imports=["losses"],
        dims=SIZES,
        layouts=["batch: a, vocab: b"],
        inputs={"logits": "f32[batch, length, vocab]", "targets": "i32[batch, length]"},
        body=f"y = losses.{loss}",
        outputs={"y": ""},
    )
    expected = [("all_reduce", ("b",), 2 * 8), ("all_reduce", ("b",), 2 * 2 * 8)]
    assert of_tensors(sent(network)) == expected
    assert of_tensors(sent(network, "gradients")) == expected


def test_embedding_of_a_split_vocabulary() -> None:
    network = Network(
        imports=["nn"],
        dims=SIZES,
        layouts=["batch: a, vocab: b"],
        inputs={"ids": "i32[batch, length]"},
        body="y = nn.embedding[vocab = vocab, d_model = d](ids)",
        outputs={"y": "batch, length, d"},
    )
    assert of_tensors(sent(network)) == [ALL_REDUCE_B]
    gradient = ("all_reduce", ("a",), 32 * 16 // 2 + 1)  # and the loss
    assert of_tensors(sent(network, "gradients"))[1:] == [gradient]
