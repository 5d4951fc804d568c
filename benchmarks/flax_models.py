# mypy: allow-untyped-calls
"""The digits network and the Transformer language model of `examples/`, as a user of Flax NNX writes them.

The modules are those of Flax. `assign` copies the parameters of a generated module into them.

    python -m benchmarks.flax_models TOKENS.npz DIMS     train one step of the language model; DIMS are JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

Arrays = Mapping[str, Any]


def mean_cross_entropy(logits: Any, targets: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def set_values(param: Any, values: Any) -> None:
    param[...] = values


class Digits(nnx.Module):
    """Two dense layers without biases: `digits.mtf`."""

    def __init__(self, pixels: int, hidden: int, classes: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(pixels, hidden, use_bias=False, rngs=rngs)
        self.second = nnx.Linear(hidden, classes, use_bias=False, rngs=rngs)

    def __call__(self, images: Any) -> Any:
        return self.second(nnx.relu(self.first(images.reshape(len(images), -1))))

    def loss(self, batch: Arrays) -> Any:
        return mean_cross_entropy(self(batch["images"]), batch["labels"])

    def assign(self, params: Arrays) -> None:
        """Copy the parameters of a generated module."""
        set_values(self.first.kernel, params["w1"].reshape(self.first.kernel.shape))
        set_values(self.second.kernel, params["w2"])


class Block(nnx.Module):
    """Causal self-attention and a feed-forward layer, both after a normalization."""

    def __init__(self, d_model: int, heads: int, d_k: int, d_ff: int, rngs: nnx.Rngs) -> None:
        self.attention_norm = nnx.LayerNorm(d_model, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            heads, d_model, heads * d_k, use_bias=False, decode=False, rngs=rngs
        )
        self.norm = nnx.LayerNorm(d_model, rngs=rngs)
        self.wide = nnx.Linear(d_model, d_ff, use_bias=False, rngs=rngs)
        self.narrow = nnx.Linear(d_ff, d_model, use_bias=False, rngs=rngs)

    def __call__(self, x: Any, mask: Any) -> Any:
        h = x + self.attention(self.attention_norm(x), mask=mask)
        return h + self.narrow(nnx.relu(self.wide(self.norm(h))))

    def assign(self, layer: Arrays) -> None:
        set_values(self.attention_norm.scale, layer["layer_norm.scale"])
        set_values(self.attention_norm.bias, layer["layer_norm.bias"])
        for projection, name in (("query", "wq"), ("key", "wk"), ("value", "wv")):
            kernel = layer[f"multi_head.{name}"].transpose(1, 0, 2)  # Flax has d_model first
            set_values(getattr(self.attention, projection).kernel, kernel)
        set_values(self.attention.out.kernel, layer["multi_head.wo"])
        set_values(self.norm.scale, layer["layer_norm_2.scale"])
        set_values(self.norm.bias, layer["layer_norm_2.bias"])
        set_values(self.wide.kernel, layer["feed_forward.wi"])
        set_values(self.narrow.kernel, layer["feed_forward.wo"])


class LanguageModel(nnx.Module):
    """`transformer_lm.mtf` without dropout, by the names of its dimensions."""

    def __init__(self, dims: Mapping[str, int], rngs: nnx.Rngs) -> None:
        vocab, d_model = dims["vocab"], dims["d_model"]
        sizes = (d_model, dims["heads"], dims["d_k"], dims["d_ff"])
        self.embed = nnx.Embed(vocab, d_model, rngs=rngs)
        self.positions = nnx.Param(0.02 * rngs.params.normal((dims["length"], d_model)))
        self.blocks = nnx.List([Block(*sizes, rngs) for _ in range(dims["layers"])])
        self.norm = nnx.LayerNorm(d_model, rngs=rngs)
        self.head = nnx.Linear(d_model, vocab, use_bias=False, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        before = jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
        x = self.embed(before) + self.positions[...]
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))

    def loss(self, batch: Arrays) -> Any:
        return mean_cross_entropy(self(batch["tokens"]), batch["tokens"])

    def assign(self, params: Arrays) -> None:
        """Copy the parameters of a generated module."""
        own = {name.removeprefix("decoder."): x for name, x in params.items()}
        set_values(self.embed.embedding, own["embedding.table"])
        set_values(self.positions, own["learned_positions.positions"])
        prefix = "layers.decoder_layer."
        stacked = {name.removeprefix(prefix): x for name, x in own.items() if name.startswith(prefix)}
        for i, block in enumerate(self.blocks):
            block.assign({name: x[i] for name, x in stacked.items()})
        set_values(self.norm.scale, own["layer_norm.scale"])
        set_values(self.norm.bias, own["layer_norm.bias"])
        set_values(self.head.kernel, own["dense_no_bias.w"])


@nnx.jit
def train_step(model: Any, optimizer: nnx.Optimizer[Any], batch: Arrays) -> Any:
    """Change the model by one step of the optimizer, and return the loss before it."""
    loss, gradients = nnx.value_and_grad(lambda model: model.loss(batch))(model)
    optimizer.update(model, gradients)
    return loss


def first_step(tokens: str, dims: Mapping[str, int]) -> float:
    """Return the loss of the first step on the first tokens of a file."""
    batch = {"tokens": np.load(tokens)["tokens"][: dims["batch"]]}
    model = LanguageModel(dims, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3, weight_decay=0.01), wrt=nnx.Param)
    return float(train_step(model, optimizer, batch))


if __name__ == "__main__":
    print(first_step(sys.argv[1], json.loads(sys.argv[2])))
