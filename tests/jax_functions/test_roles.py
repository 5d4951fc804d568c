# mypy: allow-untyped-calls
"""Names of dimensions by role, by module, and of parts."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import mtfc
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from tests.jax_functions.models import MODELS, array


def axes(program: ImportedProgram) -> dict[str, str]:
    """Return place of an argument -> its axes, as the table has them, without sizes."""
    rows = (line.split(None, 3) for line in program.arguments().splitlines())
    return {place: re.sub(r" \d+", "", "".join(of_axes)) for place, _, _, *of_axes in rows}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fused_decoder", {"vocab", "embed", "batch", "length", "qkv", "heads", "head_dim", "hidden"}),
        ("linen_transformer", {
            "vocab", "Dense_0_vocab", "embed", "batch", "length", "heads", "head_dim", "value_dim", "hidden", "layers",
        }),
        ("cached_decoding", {"batch", "length", "embed", "head_dim", "value_dim"}),
        ("haiku_lstm", {"length", "batch", "hidden", "linear", "lstm_linear", "linear_in", "x_2"}),
        ("experts", {"batch", "features", "hidden", "experts", "gate"}),
        ("ragged_experts", {"batch", "features", "experts", "gate", "up"}),
    ],
)  # fmt: skip
def test_roles_of_models(name: str, expected: set[str]) -> None:
    function, args = MODELS[name]()
    assert {*mtfc.from_jax(function, *args).dims} == expected


def test_roles_of_images() -> None:
    function, args = MODELS["residual_network"]()
    program = mtfc.from_jax(function, *args)
    found = axes(program)
    assert found["x"] == "batch, height, width, channels"
    assert found["variables/params/Dense_0/kernel"].endswith(", classes")
    assert found["variables/params/Conv_0/kernel"] == (
        "Conv_0_kernel_height, Conv_0_kernel_width, channels, Conv_0"
    )


def perceptron(params: Any, x: Any, y: Any) -> Any:
    for name in ("fc1", "fc2", "fc3"):
        x = jnp.tanh(x @ params[name]["kernel"] + params[name]["bias"])
    return optax.softmax_cross_entropy_with_integer_labels(x, y).mean()


def layer(inner: int, outer: int) -> dict[str, Any]:
    return {"kernel": array(inner, outer), "bias": array(outer)}


LAYERS = {"fc1": layer(12, 24), "fc2": layer(24, 16), "fc3": layer(16, 10)}


def test_pooled_images_and_middle_axes_of_inputs_have_names() -> None:
    """A dense layer after pooling sums the positions of the pooled image. Time that comes first is no batch."""
    from flax import linen

    def outputs(p: Any, x: Any) -> Any:
        image = linen.max_pool(linen.Conv(4, (3, 3)).apply(p["conv"], x), (2, 2), (2, 2))
        return image.reshape(x.shape[0], -1) @ p["head"]["kernel"]

    conv = jax.eval_shape(linen.Conv(4, (3, 3)).init, jax.random.key(0), array(2, 6, 10, 3))
    found = mtfc.from_jax(outputs, {"conv": conv, "head": {"kernel": array(60, 7)}}, array(2, 6, 10, 3))
    assert axes(found)["p/head/kernel"].startswith("out_height x out_width x ")
    stacked = mtfc.from_jax(lambda w, x: jnp.tanh(x @ w), array(5, 7), array(2, 3, 5))
    assert axes(stacked)["x"] == "batch, length, features"
    by_time = mtfc.from_jax(
        lambda w, x: jax.lax.scan(lambda h, s: (h + s @ w, None), jnp.zeros((2, 7)), x)[0],
        array(5, 7),
        array(3, 2, 5),
    )
    assert axes(by_time)["x"] == "length, batch, features"


def test_modules_name_what_has_no_role() -> None:
    program = mtfc.from_jax(jax.grad(perceptron), LAYERS, array(8, 12), array(8, dtype="int32"))
    assert program.dims == {"fc1": 24, "fc2": 16, "features": 12, "classes": 10, "batch": 8}


def test_the_batch_is_what_most_inputs_share() -> None:
    def loss(w: Any, table: Any, x: Any, y: Any) -> Any:
        return jnp.sum((x @ w + table[None] - y) ** 2)

    program = mtfc.from_jax(loss, array(4, 3), array(3), array(8, 4), array(8, 3))
    assert [leaf.flat_dims[0].name for leaf in program.imported.inputs[2:]] == ["batch", "batch"]
    assert program.dims["batch"] == 8


def test_a_loop_of_steps_is_no_batch() -> None:
    def steps(w: Any, xs: Any) -> Any:
        def step(w: Any, x: Any) -> Any:
            return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w), None

        return jax.lax.scan(step, w, xs)[0]

    assert axes(mtfc.from_jax(steps, array(4, 3), array(5, 8, 4)))["xs"] == "steps, batch, features"


def test_dense_experts_read_sequences() -> None:
    def mixture(p: Any, x: Any) -> Any:
        gates = jax.nn.softmax(x @ p["router"])
        hidden = jax.nn.relu(jnp.einsum("bld,edf->blef", x, p["up"]))
        return jnp.einsum("blef,efd,ble->bld", hidden, p["down"], gates)

    params = {"router": array(16, 4), "up": array(4, 16, 64), "down": array(4, 64, 16)}
    found = axes(mtfc.from_jax(mixture, params, array(3, 10, 16)))
    assert found["x"] == "batch, length, features"
    assert found["p/up"] == "experts, features, hidden"


def attention(p: Any, x: Any, y: Any) -> Any:
    q, k, v = (jnp.einsum("ble,ehd->blhd", each, p[name]) for name, each in (("q", x), ("k", y), ("v", y)))
    weights = jax.nn.softmax(jnp.einsum("blhd,bmhd->bhlm", q, k))
    return jnp.einsum("blhd,hde->ble", jnp.einsum("bhlm,bmhd->blhd", weights, v), p["o"])


def weights(heads: int) -> dict[str, Any]:
    return {**{name: array(16, heads, 8) for name in "qkv"}, "o": array(heads, 8, 16)}


def test_several_dimensions_of_one_role_are_told_apart_and_never_united() -> None:
    """Encoder and decoder have heads of equal numbers, which nothing links; two vocabularies and lengths, too."""

    def loss(p: Any, source: Any, target: Any) -> Any:
        x, y = p["source"]["embedding"][source], p["target"]["embedding"][target]
        x = x + attention(p["encoder"]["attention"], x, x)
        return (attention(p["decoder"]["cross"], y, x) ** 2).sum()

    params = {
        "source": {"embedding": array(100, 16)},
        "target": {"embedding": array(100, 16)},
        "encoder": {"attention": weights(4)},
        "decoder": {"cross": weights(4)},
    }
    ids = array(2, 10, dtype="int32")
    found = axes(mtfc.from_jax(jax.grad(loss), params, ids, ids))
    assert found["source"].split(", ")[1] == "source_length"
    assert found["target"].split(", ")[1] == "target_length"
    assert found["p/source/embedding"].startswith("source_vocab, ")
    assert found["p/target/embedding"].startswith("target_vocab, ")
    assert "attention_heads, attention_head_dim" in found["p/encoder/attention/q"]
    assert "cross_heads, cross_head_dim" in found["p/decoder/cross/q"]


def test_tables_and_masks_of_positions_have_the_length() -> None:
    """Three of four inputs begin with the length, and it is no batch."""

    def outputs(p: Any, x: Any, cos: Any, sin: Any, mask: Any) -> Any:
        q, k, v = (jnp.einsum("ble,ehd->bhld", x, p[name]) for name in "qkv")
        scores = jnp.einsum("bhld,bhmd->bhlm", q * cos + sin, k) + mask
        return jnp.einsum("bhlm,bhmd->bhld", jax.nn.softmax(scores), v)

    params = {name: array(16, 4, 8) for name in "qkv"}
    program = mtfc.from_jax(outputs, params, array(2, 6, 16), array(6, 8), array(6, 8), array(6, 6))
    found = axes(program)
    assert [*found.values()][3:] == [
        "batch, length, embed",
        "length, head_dim",
        "length, head_dim",
        "length, length_other",
    ]


def test_attention_of_inputs_has_roles() -> None:
    program = mtfc.from_jax(
        jax.nn.dot_product_attention, array(2, 6, 4, 8), array(2, 10, 4, 8), array(2, 10, 4, 8), parameters=()
    )
    expected = {"key_length": 10, "head_dim": 8, "value_dim": 8, "length": 6, "heads": 4, "batch": 2}
    assert program.dims == expected


def test_grouped_queries_have_heads_and_groups() -> None:
    def loss(p: Any, x: Any) -> Any:
        q = jnp.einsum("ble,ekgd->blkgd", x, p["q"])
        k, v = (jnp.einsum("ble,ekd->blkd", x, p[name]) for name in "kv")
        weights = jax.nn.softmax(jnp.einsum("blkgd,bmkd->bkglm", q, k))
        return (jnp.einsum("bkglm,bmkd->blkgd", weights, v) ** 2).sum()

    params = {"q": array(16, 2, 3, 8), "k": array(16, 2, 8), "v": array(16, 2, 8)}
    found = axes(mtfc.from_jax(jax.grad(loss), params, array(2, 6, 16)))
    assert found == {
        "p/q": "embed, kv_heads, groups, head_dim",
        "p/k": "embed, kv_heads, head_dim",
        "p/v": "embed, kv_heads, value_dim",
        "x": "batch, length, embed",
    }


def test_a_name_of_the_user_comes_before_a_role_of_another_dimension() -> None:
    def outputs(p: Any, x: Any) -> Any:
        return jnp.tanh(x @ p["first"]) @ p["second"]

    args = {"first": array(4, 5), "second": array(5, 6)}, array(2, 4)
    program = mtfc.from_jax(outputs, *args, names={"x": "hidden batch"})
    assert program.dims == {"second": 6, "first": 5, "batch": 4, "hidden": 2}
    program = mtfc.from_jax(outputs, *args, names={"**/second": "_ hidden"})
    assert program.dims == {"hidden": 6, "first": 5, "features": 4, "batch": 2}


@pytest.mark.parametrize("scanned", [array(), jax.eval_shape(lambda: jax.random.key(0))])
def test_arguments_without_axes_have_no_roles(scanned: Any) -> None:
    def loop(w: Any, x: Any) -> Any:
        xs = jnp.broadcast_to(x, (5,)) if x.dtype == w.dtype else jax.random.split(x, 5)
        return jax.lax.scan(lambda c, x: (c * w, None), w, xs)[0]

    assert mtfc.from_jax(loop, array(3), scanned).dims["w_0"] == 3


def test_names_are_the_same_every_time_and_unique() -> None:
    for name in ("nnx_transformer", "vision_transformer", "equinox_mixer", "u_net"):
        function, args = MODELS[name]()
        first, second = (mtfc.from_jax(function, *args).program.dims for _ in range(2))
        assert [*first.items()] == [*second.items()]


@pytest.mark.parametrize("cell", ["LSTMCell", "OptimizedLSTMCell", "GRUCell"])
def test_recurrent_cells_have_hidden_dimensions(cell: str) -> None:
    """The state has two names, because its matrix has both. Optimized cells join their matrices."""
    from flax import linen

    network = linen.RNN(getattr(linen, cell)(6))
    x = array(2, 5, 3)
    params = jax.eval_shape(network.init, jax.random.key(0), x)
    found = axes(mtfc.from_jax(lambda p, x: network.apply(p, x), params, x))
    assert {*found.values()} == {
        "hidden",
        "hidden_other, hidden",
        "features, hidden",
        "batch, length, features",
    }


def test_routers_and_tables_of_positions_have_names() -> None:
    """Each expert runs here, so nothing is chosen; the table has more positions than the ids."""

    def outputs(p: Any, ids: Any) -> Any:
        x = p["wte"][ids] + p["wpe"][: ids.shape[1]] + p["more"][jnp.arange(ids.shape[1])]
        gates = jax.nn.softmax(x @ p["router"])
        inner = jax.nn.relu(jnp.einsum("bld,edf->eblf", x, p["up"]))
        return jnp.einsum("ble,eblf,efd->bld", gates, inner, p["down"])

    sizes = {
        "wte": (50, 8),
        "wpe": (12, 8),
        "more": (9, 8),
        "router": (8, 4),
        "up": (4, 8, 16),
        "down": (4, 16, 8),
    }
    params = {name: array(*shape) for name, shape in sizes.items()}
    found = axes(mtfc.from_jax(outputs, params, array(2, 6, dtype="int32")))
    assert found == {
        "p/down": "experts, hidden, down",
        "p/more": "more, embed",
        "p/router": "embed, experts",
        "p/up": "experts, embed, hidden",
        "p/wpe": "wpe x length, embed",
        "p/wte": "vocab, embed",
        "ids": "batch, length",
    }


def rows(x: Any) -> Any:
    return (x[:8] * 2).sum(1) + x.sum()


def test_the_name_of_a_parted_axis_means_all_of_its_parts() -> None:
    """A mesh axis splits the first part that it divides. Sections of storage know the name, too."""
    program = mtfc.from_jax(rows, array(16, 4), names={"x": "rows columns"})
    assert axes(program) == {"x": "rows_a x rows_b, columns"}
    for layout, mesh, rules, spec in (
        ({"rows": "a"}, {"a": 2}, {"rows_a": ("a",)}, "a"),
        ("rows:a", {"a": 4}, {"rows_b": ("a",)}, None),
        ({"rows": ("a", "b")}, {"a": 2, "b": 4}, {"rows_a": ("a",), "rows_b": ("b",)}, ("a", "b")),
    ):
        plan = program.plan(layout, mesh)
        assert (plan.rules, plan.in_shardings[0].spec) == (rules, P(spec, None))
        x = np.arange(64, dtype="float32").reshape(16, 4)
        np.testing.assert_allclose(plan.step(x), rows(x))
    assert program.plan({"params": {"rows": "a"}}, {"a": 2}).case.layout.params.by_dim == {"rows_a": ("a",)}
    with pytest.raises(mtfc.CompileError, match="E304"):
        program.plan({"rows": "b"}, {"a": 2})


def test_only_parts_of_one_axis_have_its_name() -> None:
    program = mtfc.from_jax(
        lambda x, y: x.sum() + y.sum(), array(4), array(4), names={"x": "n_a", "y": "n_b"}
    )
    with pytest.raises(mtfc.CompileError, match="unknown dimension `n`"):
        program.plan({"n": "a"}, {"a": 2})


@pytest.mark.parametrize(
    "pattern", ["model/*/kernel", "model/*/kernel/value", "**/fc1/kernel", "**/kernel/value"]
)
def test_patterns_need_no_value(pattern: str) -> None:
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.fc1 = nnx.Linear(4, 8, rngs=rngs)

    model = nnx.eval_shape(lambda: Network(nnx.Rngs(0)))
    program = mtfc.from_jax(lambda model, x: model.fc1(x), model, array(6, 4), names={pattern: "inner outer"})
    assert program.dims == {"outer": 8, "batch": 6, "inner": 4}


def test_a_plan_of_other_names_says_which(tmp_path: Any) -> None:
    """A plan of a version that named dimensions otherwise tells the old names and the new ones."""
    file = str(tmp_path / "plan.json")
    args = array(8, 4), array(4, 3)
    old = mtfc.from_jax(lambda x, w: x @ w, *args, names={"w": "w_0 w_1"}, parameters=(1,))
    old.plan({"w_0": "a"}, {"a": 2}).save(file)
    new = mtfc.from_jax(lambda x, w: x @ w, *args, parameters=(1,))
    with pytest.raises(
        ValueError, match="the dimensions w_0, and this one has batch, features, out_features"
    ):
        new.load(file)


def test_weights_in_lists_and_kernels_alone_have_names() -> None:
    """Layers of a list have their numbers, `qkv_w` is `qkv`, and a kernel without a module has output channels."""

    def mlp(p: Any, x: Any) -> Any:
        for w, b in p["ws"]:
            x = jnp.tanh(x @ w + b)
        return x @ p["qkv_w"]

    pairs = [(jnp.ones((6, 4)), jnp.ones(4)), (jnp.ones((4, 5)), jnp.ones(5))]
    shown = str(mtfc.from_jax(mlp, {"ws": pairs, "qkv_w": jnp.ones((5, 7))}, jnp.ones((2, 6))).arguments())
    assert "ws_0 4, ws_1 5" in shown and "ws_1 5, qkv 7" in shown
    assert [*axes(mtfc.from_jax(lambda w, x: x @ w, jnp.ones((4, 3)), jnp.ones((6, 4)))).values()] == [
        "features, out_features",
        "batch, features",
    ]
    kernel, image = jnp.ones((8, 3, 5, 5)), jnp.ones((2, 3, 16, 16))
    convolution = lambda k, x: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME")  # noqa: E731
    assert "out_channels 8, channels 3" in str(mtfc.from_jax(convolution, kernel, image).arguments())
