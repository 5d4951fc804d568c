"""Names, errors, copies of layers, and renames of imported functions."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mtfc
from mtfc.frontend.jaxpr.expansions import scan_counts
from tests.jax_functions.arguments import interpreted, program_arguments
from tests.jax_functions.models import MODELS, array


def code_of(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    with pytest.raises(mtfc.CompileError) as caught:
        mtfc.from_jax(function, *args, **options)
    (found,) = caught.value.diagnostics
    assert __file__ in str(found)
    return found.code


def branching(x: Any) -> Any:
    return x if x.sum() > 0 else -x


def test_errors_have_codes_and_the_users_line() -> None:
    x = array(4, 3)
    assert code_of(branching, x) == "E802"
    assert code_of(lambda n: jnp.arange(n), array(dtype="int32")) == "E802"
    assert code_of(lambda x: {0: x}[x.sum()], x) == "E802"
    assert code_of(lambda x: f"{x.sum():.2f}" and x, x) == "E802"
    assert code_of(lambda x, mode: x, x, "train") == "E801"
    assert code_of(lambda x: x, x, names={"y": "a b"}) == "E803"
    assert code_of(lambda x: x, x, names={"x": "a"}) == "E803"
    assert code_of(lambda x: x.reshape(2, 2, 3).sum(0), x, names={"x": "(a b c) d"}) == "E803"
    assert code_of(lambda x: x, array(0, 3)) == "E804"
    assert code_of(lambda x: x.astype("int4"), x) == "E804"
    assert code_of(lambda x: jax.new_ref(x)[...], x) == "E805"
    assert code_of(lambda x: jax.experimental.io_callback(lambda y: y, x, x), x) == "E805"
    assert code_of(lambda x: jax.experimental.io_callback(lambda y: None, None, x) or x, x) == "E805"


async def later(x: Any) -> Any:
    return x


def test_functions_whose_arguments_or_results_are_no_arrays() -> None:
    x = array(4, 3)
    static = jax.jit(lambda x, n: x * n, static_argnums=1)
    assert code_of(static, x, 2) == "E801"
    assert code_of(lambda x: x, np.array([1, "a"], object)) == "E801"
    assert code_of(lambda x: x, np.zeros(3, [("a", "f4")])) == "E801"
    assert code_of(lambda x: "text", x) == "E801"
    assert code_of(lambda x, y: x, x) == "E801"
    assert code_of(later, x) == "E801"
    assert mtfc.from_jax(partial(static, n=2), x).dims == {"batch": 4, "x_1": 3}


def test_an_error_points_at_the_expression() -> None:
    with pytest.raises(mtfc.CompileError, match="E802") as caught:
        mtfc.from_jax(branching, array(4))
    (found,) = caught.value.diagnostics
    text = Path(__file__).read_text("utf-8").splitlines()[found.line - 1]
    assert text[found.column - 1 :].startswith("x if x.sum()") or text[found.column - 1 :].startswith(
        "x.sum() > 0"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"names": ["x"]},
        {"names": {"x": ("a", "b")}},
        {"parameters": (2,)},
        {"parameters": (-1,)},
        {"parameters": "x"},
    ],
)
def test_options_of_the_wrong_kind(options: Any) -> None:
    with pytest.raises(ValueError, match=r"names|parameters"):
        mtfc.from_jax(lambda x: x, array(4, 3), **options)


def test_large_constants_are_reported() -> None:
    large, small = np.zeros((2048, 2048), "float32"), np.zeros(4, "float32")
    program = mtfc.from_jax(lambda x: x + small @ jnp.asarray(large)[:4, :4], array(4))
    (found,) = program.imported.warnings()
    assert (found.code, found.span.file) == ("W803", __file__)


def test_names_of_arguments_in_any_script() -> None:
    """Names in the language are ASCII."""
    program = mtfc.from_jax(lambda größe, x: größe["ü/b"] * x, {"ü/b": array(4, 3)}, array(4, 3))
    assert all(name.isascii() for name in program.dims)
    assert program.plan({"batch": "data"}, {"data": 2}).rules == {"batch": ("data",)}
    assert code_of(lambda x: x, array(4), names={"x": "größe"}) == "E803"


def test_one_name_is_one_dimension() -> None:
    """Axes that nothing in the function links are linked by the user's name."""
    args = array(4, 6), array(6, 3)
    apart = mtfc.from_jax(lambda x, y: (x * 2, y * 3), *args)
    linked = mtfc.from_jax(
        lambda x, y: (x * 2, y * 3), *args, names={"x": "rows shared", "y": "shared columns"}
    )
    assert len(apart.dims) == 4
    assert linked.dims == {"shared": 6, "rows": 4, "columns": 3}


@pytest.mark.parametrize("text", ["same same", "repeat rows", "params rows", "a-b rows"])
def test_names_that_cannot_be_given(text: str) -> None:
    """An array has no dimension twice, and the language's words and signs name nothing."""
    assert code_of(lambda x: x, array(4, 4), names={"x": text}) == "E803"


def test_one_name_of_two_sizes_is_refused() -> None:
    assert code_of(lambda x, y: (x, y), array(4), array(6), names={"x": "n", "y": "n"}) == "E803"


def test_two_names_of_one_dimension_are_refused() -> None:
    """A layout could not say the second one."""

    def product(w: Any, x: Any) -> Any:
        return x @ w

    args = array(4, 3), array(8, 4)
    assert code_of(product, *args, names={"w": "embed hidden", "x": "batch inner"}) == "E803"
    assert mtfc.from_jax(product, *args, names={"w": "_ hidden", "x": "batch inner"}).dims["inner"] == 4


def test_prints_are_left_out() -> None:
    def printing(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x + 1

    program = mtfc.from_jax(printing, array(4))
    assert [eqn.op for eqn in program.program.function("forward").body] == ["constant", "add"]


def test_users_names_come_first() -> None:
    names = {"ids": "batch length", "**/up": "embed hidden", "**/qkv": "embed (three heads head_dim)"}
    function, args = MODELS["fused_decoder"]()
    program = mtfc.from_jax(function, *args, names=names)
    sizes = {"batch": 8, "length": 16, "embed": 32, "hidden": 128, "three": 3, "heads": 4, "head_dim": 8}
    assert sizes.items() <= program.dims.items()
    rows = [line.split(None, 3) for line in program.arguments().splitlines()]
    assert [
        "params/layers/0/qkv",
        "parameter",
        "f32",
        "embed 32, three 3 x heads 4 x head_dim 8",
    ] in rows


def test_copies_of_a_layer_have_the_same_dimensions() -> None:
    function, args = MODELS["fused_decoder"]()
    merged, apart = (mtfc.from_jax(function, *args, merge=merge) for merge in (True, False))
    assert len(merged.dims) == 8
    assert len(apart.dims) > len(merged.dims)


def test_layers_of_a_perceptron_are_no_copies() -> None:
    """The output of a layer is the input of the next one, so their dimensions alternate."""

    def outputs(params: Any, x: Any) -> Any:
        for w, b in params:
            x = jnp.tanh(x @ w + b)
        return x

    program = mtfc.from_jax(outputs, [(array(8, 8), array(8))] * 3, array(4, 8))
    assert not program.imported.renames
    assert len(program.dims) == 5  # the batch, and four sides of the layers


def test_layers_of_one_matrix_that_add_to_their_input_are_copies() -> None:
    def outputs(params: Any, x: Any) -> Any:
        for w in params:
            x = x + jnp.tanh(x @ w)
        return x

    args = [array(8, 8)] * 8, array(4, 8)
    merged, apart = (mtfc.from_jax(outputs, *args, merge=merge) for merge in (True, False))
    assert len(merged.dims) == 3  # the batch, and both sides of a layer
    assert len(apart.dims) == 10
    assert [found.code for found in merged.imported.warnings()] == ["W802"]


def test_gradients_have_the_sides_of_their_matrices() -> None:
    """Each layer renames its input, and all but one the cotangent: the gradient of a square matrix is no other way round."""
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(1e-3)

    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = x + jnp.tanh(x @ w)
        return (x**2).sum()

    def step(params: Any, state: Any, x: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    params = [array(8, 8)] * 3
    program = mtfc.from_jax(step, params, jax.eval_shape(optimizer.init, params), array(4, 8))
    axes = [[dim.name for dim in leaf.flat_dims] for leaf in program.imported.inputs]
    weights = ["features", "hidden"]
    assert axes == [weights] * 3 + [[]] + [weights] * 6 + [["batch", "features"]]
    assert len(program.imported.renames) == 5


def test_matrices_of_one_layer_are_no_copies() -> None:
    """Matrices with equal shapes may be for two inputs: what meets in one array keeps two dimensions."""

    def products(params: Any, xs: Any) -> Any:
        a, b = (x @ w for x, w in zip(xs, params, strict=True))
        return a @ b.T

    args = [array(6, 5)] * 2, (array(8, 6), array(8, 6))
    merged, apart = (mtfc.from_jax(products, *args, merge=merge) for merge in (True, False))
    assert (
        len(apart.dims) - len(merged.dims) == 1
    )  # the sums' dimensions are united, and the two batches are not


def test_queries_and_keys_of_one_sequence_are_told_apart() -> None:
    def scores(x: Any) -> Any:
        return jnp.einsum("bld,bmd->blm", x, x)

    program = mtfc.from_jax(scores, array(4, 6, 8))
    (rename,) = program.imported.renames
    assert [dim.name for dim in rename.before] == ["x_1"]
    assert [dim.name for dim in rename.after] == ["x_1_other"]
    assert repr(rename) == f"<{rename.step.span}: dot_general of x_1 under x_1_other>"


def test_renames_of_all_layers_use_the_same_dimensions() -> None:
    function, args = MODELS["fused_decoder"]()
    program = mtfc.from_jax(function, *args, names={"ids": "batch length"})
    pairs = {(r.before[0].name, r.after[0].name) for r in program.imported.renames}
    assert pairs == {("length", "length_other"), ("length_other", "length")}


def test_gradients_of_keys_get_the_dimension_of_the_sequence_back() -> None:
    """So what comes before the attention is split like the sequence, in the backward pass, too."""

    def loss(x: Any, w: Any) -> Any:
        h = jnp.tanh(x)
        q, k = h @ w["q"], h @ w["k"]
        return jnp.sum(jnp.einsum("bld,bmd->blm", q, k) ** 2)

    args = array(4, 6, 8), {"q": array(8, 5), "k": array(8, 5)}
    program = mtfc.from_jax(jax.grad(loss), *args, names={"x": "batch length embed"})
    backward = [e for e in program.imported.main.body if e.stage == "backward"]
    makes = {e.op for e in backward if e.result.type.names == ("batch", "length_other", "embed")}
    assert makes <= {"einsum"}
    assert program.imported.main.outputs[0].value.type.names == ("batch", "length", "embed")


def test_state_that_is_returned_anew_counts_as_the_model() -> None:
    function, args = MODELS["fused_decoder"]()
    program = mtfc.from_jax(function, *args)
    roles = {leaf.name: leaf.role for leaf in program.imported.inputs}
    assert {name for name, role in roles.items() if role == "input"} == {"ids", "labels"}


def test_arrays_that_a_function_closes_over_are_inputs() -> None:
    table = jnp.arange(12.0).reshape(3, 4)
    program = mtfc.from_jax(lambda x: x @ table, array(2, 3))
    constant = program.imported.inputs[-1]
    assert constant.constant is not None
    assert constant.shape == (3, 4)


def test_functions_of_no_and_of_named_arguments() -> None:
    assert not mtfc.from_jax(lambda: jnp.ones(3)).dims
    program = mtfc.from_jax(lambda x, *, scale: x * scale, array(4), scale=array(4))
    assert [leaf.name for leaf in program.imported.inputs] == ["x", "scale"]


def test_every_equation_has_the_users_line() -> None:
    function, args = MODELS["perceptron"]()
    body = mtfc.from_jax(function, *args).program.function("forward").body
    assert all(eqn.span is not None for eqn in body)
    assert {eqn.stage for eqn in body} == {"forward", "backward"}


def test_names_come_from_logical_axes_of_linen() -> None:
    """Boxes of Flax keep the names; no mesh is needed, whether the function reads boxes or arrays."""
    import flax.linen as nn

    def kernel(*names: str | None) -> Any:
        return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            h = nn.relu(nn.Dense(16, kernel_init=kernel("embed", "mlp"))(x))
            return nn.Dense(8, kernel_init=kernel("mlp", None))(h)

    network, x = Network(), array(8, 4)
    variables = jax.eval_shape(network.init, jax.random.key(0), x)
    for unbox in (nn.unbox, lambda v: v):
        program = mtfc.from_jax(lambda v, x, unbox=unbox: network.apply(unbox(v), x).sum(), variables, x)
        assert {"batch", "embed", "mlp"} < {*program.dims}
        assert program.dims["mlp"] == 16
    program = mtfc.from_jax(network.apply, variables, x, names={"**/Dense_0/kernel/value": "inner mlp"})
    assert {"inner", "mlp"} < {*program.dims}
    assert "embed" not in program.dims


def test_axes_with_one_logical_name_are_one_dimension() -> None:
    """Nothing in the function links them. Other sizes, and axes of one array, stay apart."""
    import flax.linen as nn

    def boxed(names: tuple[str, ...], *shape: int) -> Any:
        return nn.LogicallyPartitioned(array(*shape), names)

    weights = {
        "a": boxed(("embed", "mlp"), 4, 8),
        "b": boxed(("embed", "heads"), 4, 2),
        "c": boxed(("mlp", "mlp"), 8, 8),
        "d": boxed(("embed",), 6),
    }
    program = mtfc.from_jax(lambda w, x: [x * y for y in jax.tree.leaves(nn.unbox(w))], weights, array())
    a, b, c, d = (leaf.flat_dims for leaf in program.imported.inputs[:4])
    assert a[0] == b[0]
    assert a[1] in c
    assert len({*a, *b, *c, *d}) == 5
    assert not d[0].name.startswith("embed")


def test_names_come_from_metadata_of_nnx() -> None:
    from flax import nnx

    def layer() -> Any:
        return nnx.Linear(4, 8, kernel_metadata={"out_sharding": ("embed", "mlp")}, rngs=nnx.Rngs(0))

    with nnx.use_eager_sharding(False):
        graph, params = nnx.split(nnx.eval_shape(layer))
    program = mtfc.from_jax(lambda p, x: nnx.merge(graph, p)(x), params, array(6, 4))
    assert program.dims == {"mlp": 8, "batch": 6, "embed": 4}


def test_mesh_axes_name_no_dimensions() -> None:
    """Shardings, and metadata of Flax that have mesh axes, say how arrays are split, and not what their axes are."""
    import flax.linen as nn
    from flax import nnx

    mesh = jax.make_mesh((2, 2, 2), ("dp", "tp", "value"), (jax.sharding.AxisType.Auto,) * 3)
    own = jax.make_mesh((8,), ("mine",), (jax.sharding.AxisType.Auto,))

    def product(weights: Any, x: Any) -> Any:
        a, b = nn.unbox(weights)
        return (x @ a[...]) @ b[...]

    def struct(shape: tuple[int, ...], *spec: Any) -> Any:
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    def linen() -> Any:
        return nn.Partitioned(array(8, 8), ("fsdp", "tp"))

    def of_nnx() -> Any:
        with nnx.use_eager_sharding(False):
            return nnx.Param(jnp.ones((8, 8)), out_sharding=(None, "mine"))

    shardings = struct((8, 8), None, "tp"), struct((8, 8), "dp", "tp")
    for weights, is_set in ((shardings, False), ((linen(), linen()), False), ((of_nnx(), of_nnx()), True)):
        with jax.sharding.set_mesh(own) if is_set else nullcontext():
            program = mtfc.from_jax(product, weights, array(16, 8))
        assert [*program.dims.values()] == [16, 8, 8, 8]
        assert not {"fsdp", "mine", "tp", "dp"} & {*program.dims}


def _gradients(weights: Any, x: Any) -> Any:
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w["a"]) @ w["b"]))(weights)


def _sgd(weights: Any, gradients: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def _with_momentum(weights: Any, momenta: Any, x: Any) -> tuple[Any, Any]:
    momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, _gradients(weights, x))
    return _sgd(weights, momenta), momenta


WEIGHTS = {"a": array(16, 32), "b": array(32, 8)}


@pytest.mark.parametrize(
    ("step", "args"),
    [
        (lambda w, x: _sgd(w, _gradients(w, x)), (WEIGHTS, array(8, 16))),
        (_with_momentum, (WEIGHTS, WEIGHTS, array(8, 16))),
        (
            lambda w, m, x: {"state": {"new": _with_momentum(w, m, x)}, "mean": x.mean()},
            (WEIGHTS, WEIGHTS, array(8, 16)),
        ),
    ],
    ids=["weights alone", "weights and state", "nested"],
)
def test_steps_return_their_model_alone_or_inside_of_other_results(step: Any, args: Any) -> None:
    program = mtfc.from_jax(step, *args)
    forward, training = program.program.functions
    assert (forward.name, training.name) == ("forward", "step")
    roles = [argument.role for argument in training.arguments]
    assert roles == ["input", "parameter", "parameter", *["state"] * (2 * len(args) - 4)]
    assert "state" not in {argument.role for argument in forward.arguments}
    assert len(program.imported.replaced) == len(roles) - 1


def test_functions_without_gradients_and_losses_are_no_steps() -> None:
    def averages(weights: Any, kept: Any) -> Any:
        return jax.tree.map(lambda w, k: 0.9 * k + 0.1 * w, weights, kept)

    program = mtfc.from_jax(averages, WEIGHTS, WEIGHTS)
    assert [function.name for function in program.program.functions] == ["forward"]


def test_scans_are_counted_in_both_forms_of_jax() -> None:
    """JAX 0.12 states a scan's operands as a tree of constants, carries and slices."""
    constants, carries, slices = (SimpleNamespace(vals=(None,) * count) for count in (1, 2, 3))
    tree = SimpleNamespace(unpack=lambda: (constants, carries, slices))
    assert scan_counts({"ft_in": tree}) == scan_counts({"num_consts": 1, "num_carry": 2}) == (1, 2)


def test_the_words_of_a_key_are_no_batch() -> None:
    """A key of the old kind is an array of two integers."""

    def loss(w: Any, key: Any, x: Any) -> Any:
        return jnp.sum(x @ w * jax.random.bernoulli(jax.random.split(key)[0], 0.9, (8, 3)))

    program = mtfc.from_jax(loss, array(4, 3), array(2, dtype="uint32"), array(8, 4))
    assert program.dims["batch"] == 8
    keys = mtfc.from_jax(
        lambda w, keys: jax.vmap(jax.random.normal)(keys) + w, array(), array(8, 2, dtype="uint32")
    )
    assert keys.dims["batch"] == 8


def whole_updates(x: jax.Array) -> tuple[jax.Array, ...]:
    changed = (
        x.at[:].set(2 * x),
        x.at[...].add(x),
        x.at[0::1].min(2.0),
        x.at[:].multiply(3.0),
        x.at[:0].set(1.0),
    )
    gradient = jax.grad(lambda x: (x.at[0::1].min(0.1) ** 3).sum())(x)
    return (*changed, gradient, jax.lax.fori_loop(0, 0, lambda i, c: c * i, x))


def test_updates_of_whole_arrays_are_arithmetic() -> None:
    """`x.at[:]` scatters with indices that have no elements, and a loop may have no iterations."""
    x = jnp.arange(12.0).reshape(3, 4) - 5
    program = mtfc.from_jax(whole_updates, x, parameters=())
    found = interpreted(program, program_arguments(program, (x,)))
    for left, right in zip(found, whole_updates(x), strict=True):
        np.testing.assert_allclose(left, np.asarray(right), rtol=1e-6)


def test_a_model_of_one_array_is_trained() -> None:
    """A step returns it anew. A gradient is no new model, and a result of its shape is none without a backward pass."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean((x @ w) ** 2)

    args = jnp.ones((6, 4)), jnp.ones((2, 6))
    functions = (lambda w, x: w - jax.grad(loss)(w, x)), jax.grad(loss), (lambda w, x: w * x.mean())
    names = [mtfc.from_jax(each, *args).program.functions[-1].name for each in functions]
    assert names == ["step", "forward", "forward"]
