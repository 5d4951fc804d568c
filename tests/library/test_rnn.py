"""Test recurrent cells and layers, step by step."""

from typing import Any

import jax
import jax.numpy as jnp

from tests.library.networks import Network, agrees

DIMS = {"batch": 4, "time": 5, "d": 6, "hidden": 8}


def lstm(x: Any, h: Any, c: Any, p: Any, name: str) -> tuple[Any, Any]:
    """`x` [batch, d]."""
    z = jnp.einsum("bd,dgh->bgh", x, p[f"{name}_w"])
    z = z + jnp.einsum("bp,pgh->bgh", h, p[f"{name}_lstm_step_u"]) + p[f"{name}_lstm_step_bias"]
    i, f, g, o = (z[:, k] for k in range(4))
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def gru(x: Any, h: Any, p: Any, name: str) -> Any:
    w, u = p[f"{name}_w"], p[f"{name}_gru_step_u"]
    outer = [x @ w[:, k] + p[f"{name}_gru_step_bias"][k] for k in range(3)]
    inner = [h @ u[:, k] + p[f"{name}_gru_step_inner_bias"][k] for k in range(3)]
    reset, update = (jax.nn.sigmoid(a + b) for a, b in zip(outer[:2], inner[:2], strict=True))
    return (1 - update) * jnp.tanh(outer[2] + reset * inner[2]) + update * h


def test_cells() -> None:
    network = Network(
        imports=["rnn"],
        dims=DIMS,
        layouts=["batch: a, hidden: b"],
        inputs={"x": "f32[batch, d]", "h": "f32[batch, hidden]", "c": "f32[batch, hidden]"},
        body="""
          a, b = rnn.lstm_cell(x, h, c)
          g = rnn.gru_cell(x, h)
        """,
        outputs=dict.fromkeys("abg", "batch, hidden"),
    )

    def expected(x: Any, h: Any, c: Any, **p: Any) -> dict[str, Any]:
        a, b = lstm(x, h, c, p, "lstm_cell")
        return {"a": a, "b": b, "g": gru(x, h, p, "gru_cell")}

    agrees(network, expected)


def test_layers() -> None:
    network = Network(
        imports=["rnn"],
        dims=DIMS,
        layouts=["batch: a, hidden: b"],
        inputs={"x": "f32[batch, time, d]"},
        body="""
          l = rnn.lstm[hidden = hidden](x)
          g = rnn.gru[hidden = hidden](x)
        """,
        outputs=dict.fromkeys("lg", "batch, time, hidden"),
    )

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        h = c = s = jnp.zeros((4, 8), jnp.float32)
        ls, gs = [], []
        for t in range(5):
            h, c = lstm(x[:, t], h, c, p, "lstm")
            s = gru(x[:, t], s, p, "gru")
            ls.append(h)
            gs.append(s)
        return {"l": jnp.stack(ls, 1), "g": jnp.stack(gs, 1)}

    agrees(network, expected)
