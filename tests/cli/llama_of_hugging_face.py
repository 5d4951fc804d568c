"""A Llama as Hugging Face's transformers stores and computes it, in NumPy: an oracle for weights from other libraries.

It is written from the definitions, with none of mtfc's code: RMSNorm, grouped-query attention, rotary positions by `rotate_half`,
and a gated feed-forward layer. Weights are those of `LlamaForCausalLM.state_dict()`, of shape [outputs, inputs].
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}

DIMS = {
    "vocab": 61, "d_model": 24, "d_ff": 40, "layers": 3, "kv_heads": 2, "sharers": 3, "d_k": 8, "length": 16, "batch": 2,
    "choices": 4,
}  # fmt: skip
"""The sizes of examples/llama.mtf for this configuration, and of a small batch."""

Weights = dict[str, np.ndarray]


def shapes(config: Mapping[str, object] = CONFIG) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors."""
    c = {name: value for name, value in config.items() if isinstance(value, int)}
    model, inner = c["hidden_size"], c["intermediate_size"]
    queries, keys = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    layer = {
        "input_layernorm.weight": (model,),
        "self_attn.q_proj.weight": (queries, model),
        "self_attn.k_proj.weight": (keys, model),
        "self_attn.v_proj.weight": (keys, model),
        "self_attn.o_proj.weight": (model, queries),
        "post_attention_layernorm.weight": (model,),
        "mlp.gate_proj.weight": (inner, model),
        "mlp.up_proj.weight": (inner, model),
        "mlp.down_proj.weight": (model, inner),
    }
    layers = range(c["num_hidden_layers"])
    return {
        "model.embed_tokens.weight": (c["vocab_size"], model),
        **{f"model.layers.{i}.{name}": shape for i in layers for name, shape in layer.items()},
        "model.norm.weight": (model,),
        "lm_head.weight": (c["vocab_size"], model),
    }


def draw(seed: int = 0) -> Weights:
    """Draw weights; those of the normalizations are near 1."""
    rng = np.random.default_rng(seed)
    drawn = {name: rng.standard_normal(shape) for name, shape in shapes().items()}
    return {
        name: (1 + 0.2 * x if x.ndim == 1 else x / np.sqrt(x.shape[1])).astype(np.float32)
        for name, x in drawn.items()
    }


def write(folder: Path, weights: Weights, shards: int = 3) -> Path:
    """Write a checkpoint folder: config.json, shards, and their index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    names = list(weights)
    places = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: np.ascontiguousarray(weights[name]) for name in names[i::shards]}
        save_file(part, folder / file, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    size = sum(x.nbytes for x in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder


def logits(weights: Weights, ids: np.ndarray) -> np.ndarray:
    """Return the logits [batch, length, vocab] of token ids [batch, length], computed in f64."""
    w = {name: x.astype(np.float64) for name, x in weights.items()}
    x = w["model.embed_tokens.weight"][ids]
    for i in range(int(CONFIG["num_hidden_layers"])):
        p = f"model.layers.{i}."
        x = x + _attention(_norm(x, w[p + "input_layernorm.weight"]), w, p + "self_attn.")
        h = _norm(x, w[p + "post_attention_layernorm.weight"])
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        up = h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    return _norm(x, w["model.norm.weight"]) @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG["rms_norm_eps"]) * weight


def _attention(x: np.ndarray, w: Weights, p: str) -> np.ndarray:
    batch, length, _ = x.shape
    heads, shared, size = (int(CONFIG[k]) for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))

    def split(name: str, number: int) -> np.ndarray:
        return (x @ w[p + name].T).reshape(batch, length, number, size).transpose(0, 2, 1, 3)

    q, k = _rotated(split("q_proj.weight", heads)), _rotated(split("k_proj.weight", shared))
    k, v = (np.repeat(y, heads // shared, axis=1) for y in (k, split("v_proj.weight", shared)))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(size)
    scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (e / e.sum(-1, keepdims=True)) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(batch, length, heads * size) @ w[p + "o_proj.weight"].T


def _rotated(x: np.ndarray) -> np.ndarray:
    """Rotate queries or keys [batch, heads, length, size]: x cos + rotate_half(x) sin."""
    length, size = x.shape[-2:]
    frequencies = CONFIG["rope_theta"] ** (-np.arange(0, size, 2) / size)
    angles = np.outer(np.arange(length), np.concatenate([frequencies, frequencies]))
    half = np.concatenate([-x[..., size // 2 :], x[..., : size // 2]], -1)
    return x * np.cos(angles) + half * np.sin(angles)
