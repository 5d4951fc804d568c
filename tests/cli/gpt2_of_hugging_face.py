"""A GPT-2 as Hugging Face's transformers stores and computes it, in NumPy: an oracle like `llama_of_hugging_face`.

Weights are those of `GPT2LMHeadModel.state_dict()` in safetensors: of shape [inputs, outputs], and without `lm_head.weight`.
"""

import numpy as np

VOCAB, LENGTH, MODEL, LAYERS, HEADS = 61, 16, 24, 3, 4
DIMS = {"vocab": VOCAB, "length": LENGTH, "d_model": MODEL, "layers": LAYERS, "heads": HEADS, "batch": 2}
"""The sizes of examples/gpt2.mtf for this model."""

Weights = dict[str, np.ndarray]


def draw(seed: int = 0) -> Weights:
    layer = {
        **dict.fromkeys(("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"), (MODEL,)),
        "attn.c_attn.weight": (MODEL, 3 * MODEL),
        "attn.c_attn.bias": (3 * MODEL,),
        "attn.c_proj.weight": (MODEL, MODEL),
        "attn.c_proj.bias": (MODEL,),
        "mlp.c_fc.weight": (MODEL, 4 * MODEL),
        "mlp.c_fc.bias": (4 * MODEL,),
        "mlp.c_proj.weight": (4 * MODEL, MODEL),
        "mlp.c_proj.bias": (MODEL,),
    }
    shapes = {
        "transformer.wte.weight": (VOCAB, MODEL),
        "transformer.wpe.weight": (LENGTH, MODEL),
        **{f"transformer.h.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()},
        "transformer.ln_f.weight": (MODEL,),
        "transformer.ln_f.bias": (MODEL,),
    }
    rng = np.random.default_rng(seed)
    return {name: (0.3 * rng.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def logits(weights: Weights, ids: np.ndarray) -> np.ndarray:
    """Return the logits [batch, length, vocab] of token ids [batch, length], computed in f64."""
    w = {name.removeprefix("transformer."): x.astype(np.float64) for name, x in weights.items()}

    def affine(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(x: np.ndarray, name: str) -> np.ndarray:
        joined = affine(x, f"{name}.c_attn").reshape(*ids.shape, 3, HEADS, MODEL // HEADS)
        q, k, v = joined.transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(MODEL // HEADS)
        e = np.exp(scores) * np.tril(np.ones(scores.shape[-2:]))
        mixed = (e / e.sum(-1, keepdims=True)) @ v
        return affine(mixed.transpose(0, 2, 1, 3).reshape(x.shape), f"{name}.c_proj")

    x = w["wte.weight"][ids] + w["wpe.weight"][: ids.shape[1]]
    for i in range(LAYERS):
        x = x + attention(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn")
        h = affine(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + affine(h, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T
