"""The exact collectives of functions: those of the paper's section 6, and no others.

Each case states all collectives of a function: kind, mesh axes, and elements of one processor's operand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mtfc
from mtfc.backends.numpy import backend as numpy_backend
from tests.harness import communication, lowered

DIMS = """
dim a = 8; dim b = 16; dim c = 4; dim d = 8; dim e = 4; dim f = 16
mesh grid = [rows: 2, cols: 4]
"""


def sent(
    layout: str, body: str, inputs: str = "x: [a, b]", of: str = "forward"
) -> list[tuple[str, tuple[str, ...], int]]:
    return communication(f"{DIMS}layout main = {layout}\nmodel m({inputs}) {{\n{body}\n}}\n", of)


# Einsum and reductions: an all-reduce over exactly the axes of the dims that are summed away.


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("{}", []),
        ("{ a: rows, c: cols }", []),
        ("{ b: cols }", [("all_reduce", ("cols",), 32)]),
        ("{ a: rows, b: cols }", [("all_reduce", ("cols",), 16)]),
        ("{ a: rows, b: cols, c: rows }", None),
        ("{ b: (rows, cols) }", [("all_reduce", ("rows", "cols"), 32)]),
        ("{ b: (cols, rows) }", [("all_reduce", ("rows", "cols"), 32)]),
        ("{ b: rows, c: cols }", [("all_reduce", ("rows",), 8)]),
    ],
)
def test_contraction(layout: str, expected: list[tuple[str, tuple[str, ...], int]] | None) -> None:
    """[a, b] times [b, c]. None: the layout is illegal, because the result has two dims on one axis."""
    inputs, body = "x: [a, b], w: [b, c]", "y = einsum(x, w -> [a, c]); return y"
    if expected is None:
        with pytest.raises(Exception, match="E301"):
            sent(layout, body, inputs)
    else:
        assert sent(layout, body, inputs) == expected


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min"])
def test_reduction_over_a_split_dim(reduction: str) -> None:
    body = f"y = {reduction}(x, over = [b]); return y"
    assert sent("{ b: cols }", body) == [("all_reduce", ("cols",), 8)]
    assert sent("{ a: cols }", body) == []
    assert sent("{ a: rows, b: cols }", body) == [("all_reduce", ("cols",), 4)]


@pytest.mark.parametrize("quantifier", ["any", "all"])
def test_any_and_all_over_a_split_dim(quantifier: str) -> None:
    assert sent("{ b: cols }", f"y = {quantifier}(x > 0.0, over = [b]); return y") == [
        ("all_reduce", ("cols",), 8)
    ]


def test_reduction_to_a_scalar_over_all_axes() -> None:
    assert sent("{ a: rows, b: cols }", "y = sum(x); return y") == [("all_reduce", ("rows", "cols"), 1)]


def test_elementwise_ops_send_nothing() -> None:
    assert sent("{ a: rows, b: cols }", "y = tanh(x) * 2.0 + sum(z); return y", "x: [a, b], z: [c]") == []


# Section 6.1: rename and reshape.


def test_rename_from_split_to_unsplit_gathers() -> None:
    assert sent("{ a: cols }", "y = rename(x, a -> d); return y") == [("all_gather", ("cols",), 32)]


def test_rename_from_unsplit_to_split_sends_nothing() -> None:
    assert sent("{ d: cols }", "y = rename(x, a -> d); return y") == []


def test_rename_between_dims_split_alike_sends_nothing() -> None:
    assert sent("{ a: cols, d: cols }", "y = rename(x, a -> d); return y") == []


def test_rename_between_dims_on_different_axes() -> None:
    """Each processor slices its shard, which sends nothing; the slices are exchanged, and gathered over `rows` alone.

    That sends 2 x 16 elements; to gather whole stripes first would send 64.
    """
    found = sent("{ a: rows, d: cols }", "y = rename(x, a -> d); return y")
    assert found == [("permute", ("cols", "rows"), 16), ("all_gather", ("rows",), 16)]


ONE_ALL_TO_ALL = [("all_to_all", ("cols",), 32)]


@pytest.mark.parametrize(
    "body",
    [
        "y = rename(x, a -> d, b -> f); return y",
        "y = rename(rename(x, a -> d), b -> f); return y",
        "h = rename(x, a -> d); y = rename(h, b -> f); return y",
        "y = reshape(x -> [d, f]); return y",
        "y = rename(tanh(rename(x, a -> d)), b -> f); return y",
    ],
)
def test_one_dim_to_another_on_one_axis_is_one_all_to_all(body: str) -> None:
    """`a` is split before and `f` after, on the same axis."""
    assert sent("{ a: cols, f: cols }", body) == ONE_ALL_TO_ALL


def test_reshape_that_splits_a_dim_on_the_axis_of_its_major_part_sends_nothing() -> None:
    """A reshape of [b] to [c, e]: shards of b are shards of c."""
    assert sent("{ b: cols, c: cols }", "y = reshape(x -> [a, c, e]); return y") == []
    assert sent("{ b: cols }", "y = reshape(x -> [a, c, e]); return y") == [("all_gather", ("cols",), 32)]
    assert sent("{ c: cols }", "y = reshape(x -> [a, c, e]); return y") == []


# Pending sums.


def test_reduced_value_used_split_is_a_reduce_scatter() -> None:
    assert sent("{ b: cols, d: cols }", "y = rename(sum(x, over = [b]), a -> d); return y") == [
        ("reduce_scatter", ("cols",), 8)
    ]


def test_contraction_used_split_is_a_reduce_scatter() -> None:
    inputs, body = "x: [a, b], w: [b, c]", "y = rename(einsum(x, w -> [a, c]), a -> d); return y"
    assert sent("{ b: cols, d: cols }", body, inputs) == [("reduce_scatter", ("cols",), 32)]


@pytest.mark.parametrize(
    "body",
    [
        "y = sum(x, over = [b]) + sum(z, over = [b]); return y",
        "y = sum(x, over = [b]) - sum(z, over = [b]); return y",
        "y = 2.0 * sum(x, over = [b]) + sum(z, over = [b]) + sum(x * z, over = [b]); return y",
        "p = sum(x, over = [b]); q = p + sum(z, over = [b]); y = -q / 4.0; return y",
    ],
)
def test_several_pending_sums_are_added_before_one_all_reduce(body: str) -> None:
    assert sent("{ b: cols }", body, "x: [a, b], z: [a, b]") == [("all_reduce", ("cols",), 8)]


def test_pending_sums_pass_through_linear_ops_that_make_them_smaller() -> None:
    """8 x 4 elements are pending, and their sum over `c` is sent."""
    inputs, body = "x: [a, b], w: [b, c]", "y = sum(einsum(x, w -> [a, c]), over = [c]); return y"
    assert sent("{ b: cols }", body, inputs) == [("all_reduce", ("cols",), 8)]


def test_pending_sums_do_not_pass_through_ops_that_make_them_larger() -> None:
    body = "y = broadcast(sum(x, over = [b]) -> [a, c]); return y"
    assert sent("{ b: cols }", body) == [("all_reduce", ("cols",), 8)]


def test_sums_that_cannot_be_added_are_sent_together() -> None:
    body = "p = sum(x, over = [b]); q = sum(z, over = [b]); y = tanh(p) * tanh(q); return y"
    assert sent("{ b: cols }", body, "x: [a, b], z: [a, b]") == [("all_reduce", ("cols",), 16)]


@pytest.mark.parametrize("product", ["s * y", "y * s"])
def test_of_two_pending_factors_the_smaller_is_completed(product: str) -> None:
    """The scalar is completed before the product, whose sum over `c` is sent; not 8 x 4 elements of `y`."""
    body = f"s = sum(x); y = einsum(x, w -> [a, c]); t = sum({product}, over = [c]); return t"
    expected = [("all_reduce", ("cols",), 1), ("all_reduce", ("cols",), 8)]
    assert sorted(sent("{ b: cols }", body, "x: [a, b], w: [b, c]")) == expected


@pytest.mark.parametrize("dot", ["einsum(q, k -> [a, d])", "einsum(k, q -> [a, d])"])
def test_the_smaller_operand_of_a_dot_is_completed(dot: str) -> None:
    """`q` has 8 x 4 elements and is completed; `k` has 4 x 16, and the result has 8 x 16."""
    inputs = "x: [a, b], y: [b, f], w: [b, c], v: [b, c]"
    body = f"q = einsum(x, w -> [a, c]); k = einsum(y, v -> [f, c]); p = tanh(sum({dot}, over = a)); return p"
    sums = sent("{ b: cols }", body.replace("[a, d]", "[a, f]"), inputs)
    assert sorted(sums) == [("all_reduce", ("cols",), 16), ("all_reduce", ("cols",), 32)]


# Unused values.


def test_unused_value_sends_nothing() -> None:
    assert sent("{ b: cols }", "u = sum(x); y = tanh(x); return y") == []


TRAINED = """
dim batch = 16; dim io = 8; dim hidden = 4
mesh grid = [rows: 2, cols: 4]
layout main = LAYOUT
model m(x: [batch, io]) {
  param w: [io, hidden] = zeros()
  param v: [hidden, io] = zeros()
  param unused: [io, hidden] = zeros()
  y = einsum(tanh(einsum(x, w -> [batch, hidden])), v -> [batch, io])
  loss = mean(square(y - x))
  return y, loss
}
train m {
  minimize loss
  optimizer = sgd(learning_rate = 0.1)
}
"""


def step(layout: str) -> list[tuple[str, tuple[str, ...], int]]:
    return sorted(communication(TRAINED.replace("LAYOUT", layout), "step"))


def test_data_parallel_step_reduces_the_gradients_that_are_used() -> None:
    """w and v have 32 elements each; the loss is one more; neither x nor `unused` needs anything."""
    assert (
        sum(elements for kind, _, elements in step("{ batch: rows }") if kind == "all_reduce") == 32 + 32 + 1
    )
    assert {kind for kind, _, _ in step("{ batch: rows }")} == {"all_reduce"}


def test_model_parallel_step_reduces_activations_only() -> None:
    """The forward pass reduces y. The backward pass reduces nothing, as nothing uses the gradient of x."""
    assert step("{ hidden: cols }") == [("all_reduce", ("cols",), 16 * 8)]


def test_sharded_parameters_are_gathered_and_their_gradients_scattered() -> None:
    found = step("{ batch: rows, params: { io: rows } }")
    # w and v are stored as 4 x 4 and 4 x 4, and gathered together; gradients are reduced into the shards together
    assert found == [
        ("all_gather", ("rows",), 32),
        ("all_reduce", ("rows",), 1),
        ("reduce_scatter", ("rows",), 64),
    ]


# Products of matrices: the algorithms of the paper's section 10.

SHARDS: dict[str, Callable[[float, float, float], float]] = {
    "one_d": lambda a, b, c: 63 * b,
    "two_d": lambda a, b, c: 7 * a + 7 * b,
    "three_d": lambda a, b, c: 3 * a + 3 * b + 3 * c,
    "two_and_a_half_d": lambda a, b, c: 3 * a + 7 * b + c,
    "one_and_a_half_d": lambda a, b, c: 15 * a + 3 * c,
    "carma": lambda a, b, c: 3 * b + 15 * c,
}
"""The shards that a processor sends: one is a 64th of a, of b or of the product."""


@pytest.mark.parametrize(("sizes", "least"), [((512, 512, 512), "three_d"), ((256, 64, 1024), "carma")])
def test_products_of_matrices_send_what_their_algorithms_say(sizes: tuple[int, ...], least: str) -> None:
    m, n, k = sizes
    found = mtfc.cost("examples/matmul.mtf", dims={"m": m, "n": n, "k": k})
    words = {each["layout"]: each["forward"]["wire_bytes_per_device"] / 4 for each in found["layouts"]}
    assert words == {name: of(m * k / 64, k * n / 64, m * n / 64) for name, of in SHARDS.items()}
    assert min(words, key=words.__getitem__) == least


# Two dims of one iteration space on one axis.


def test_outer_product_summed_away_with_both_dims_on_one_axis() -> None:
    """No tensor has both `a` and `d`. Each operand is summed before one is resharded, so only the sums are sent."""
    found = sent("{ a: cols, d: cols }", "y = einsum(x, z -> []); return y", "x: [a], z: [d]")
    assert found == [("all_reduce", ("cols",), 2)]


def test_contraction_of_dims_on_one_axis_moves_one_operand() -> None:
    """[a, b] times [b, d] with a and b on one axis: the tensor [a, b] is illegal, but [b] and [a] alone are not."""
    found = sent("{ a: cols, b: cols }", "y = einsum(x, z, w -> [a]); return y", "x: [b], z: [b], w: [a]")
    assert found == [("all_reduce", ("cols",), 1)]


def test_micro_batches_in_bf16_are_reduced_once() -> None:
    """Two sums in bf16 have as many bytes as one sum in f32. Then one all-reduce is better than two."""
    source = f"""{DIMS}layout main = {{ a: cols }}
    model m(x: [a, b]) {{
      param w: [b, c] = ones()
      loss = mean(square(einsum(x, w -> [a, c])))
      return loss
    }}
    train m {{
      minimize loss
      optimizer = sgd(0.1)
      accumulate = 2
      precision = {{ params: f32, compute: bf16 }}
    }}
    """
    assert communication(source, "step") == [("all_reduce", ("cols",), 16 * 4 + 1)]


# Ops that work along a dim: of a split one the shards tell each other little.


def along(layout: str, body: str, inputs: str = "x: [a, b]", of: str = "forward") -> object:
    """Return the collectives of a program that may use one more dim, `k` of size 2."""
    source = f"{DIMS}dim k = 2\nlayout main = {layout}\nmodel m({inputs}) {{\n{body}\n}}\n"
    return communication(source, of)


def test_cumsum_gathers_one_total_of_each_shard() -> None:
    for options in ("", ", exclusive = true", ", reverse = true"):
        body = f"y = cumsum(x, over = b{options}); return y"
        assert along("{ b: cols }", body) == [("all_gather", ("cols",), 8)]
        assert along("{ a: rows, b: cols }", body) == [("all_gather", ("cols",), 4)]
        assert along("{ a: cols }", body) == []
    body = "y = cumsum(x, over = b); z = y * y; return z"
    assert along("{ b: cols }", body, of="gradients") == [("all_gather", ("cols",), 8)] * 2


def test_top_k_gathers_the_best_of_each_shard() -> None:
    """The values are reduced; of the indices only the winning ones are added up."""
    body = "values, indices = top_k(x, b -> k); return values, indices"
    assert along("{ b: cols }", body) == [("all_gather", ("cols",), 16), ("all_reduce", ("cols",), 16)]
    assert along("{ b: cols, a: rows }", body) == [("all_gather", ("cols",), 8), ("all_reduce", ("cols",), 8)]
    assert along("{ a: rows }", body) == []
    loss = "values, indices = top_k(x, b -> k); y = sum(values); return y"
    assert along("{ b: cols }", loss, of="gradients") == [
        ("all_gather", ("cols",), 16),
        ("all_reduce", ("cols",), 16),
    ]


def test_top_k_of_as_many_as_a_shard_holds_gathers_the_dim() -> None:
    body = "values, indices = top_k(x, b -> c); return values, indices"
    assert along("{ b: cols }", body) == [("all_gather", ("cols",), 32)]


def test_argmax_reduces_a_value_and_a_place() -> None:
    body = "y = argmax(x, over = b); return y"
    assert along("{ b: cols }", body) == [("all_reduce", ("cols",), 8)] * 2
    assert along("{ b: (rows, cols) }", body) == [("all_reduce", ("rows", "cols"), 8)] * 2


def test_prod_gathers_one_factor_of_each_shard() -> None:
    assert along("{ b: cols }", "y = prod(x, over = [b]); return y") == [("all_gather", ("cols",), 8)]
    both = along("{ a: rows, b: cols }", "y = prod(x); return y")
    assert both == [("all_gather", ("rows",), 1), ("all_gather", ("cols",), 2)]


TABLE = "table: [b, c], ids: i32[a]"


def test_gather_from_a_split_table_adds_up_what_was_found() -> None:
    body = "y = gather(table, ids, b); return y"
    assert along("{ b: cols }", body, TABLE) == [("all_reduce", ("cols",), 32)]
    assert along("{ a: rows, b: cols }", body, TABLE) == [("all_reduce", ("cols",), 16)]
    assert along("{ a: rows, c: cols }", body, TABLE) == []
    scattered = "y = rename(gather(table, ids, b), c -> e); return y"
    assert along("{ b: cols, e: cols }", scattered, TABLE) == [("reduce_scatter", ("cols",), 32)]


def test_a_split_table_is_given_its_gradient_without_communication() -> None:
    """Each shard adds the gradients of its own rows. If the indices are split, the table's gradient is reduced."""
    body = "y = gather(table, ids, b); return y"
    assert along("{ b: cols }", body, TABLE, "gradients") == [("all_reduce", ("cols",), 32)]
    assert along("{ a: rows }", body, TABLE, "gradients") == [("all_reduce", ("rows",), 64)]


def test_random_numbers_and_positions_are_made_where_they_are_used() -> None:
    body = "y = x * random.normal([a, b]) * cast(range(b), f32) * one_hot(argmax(x, over = b), b); return y"
    assert along("{ a: cols, b: rows }", body.replace("argmax(x, over = b)", "range(a)")) == []
    assert along("{ a: (rows, cols) }", body) == []


def test_the_coordinate_of_a_processor_is_its_element_of_a_range() -> None:
    """The size of a dimension is that of its axis, and each processor has its own number, without communication."""
    axes = f"{DIMS.replace('cols: 4', 'cols: parts')} dim parts = 4\n"
    body = "own = range(parts); y = broadcast(x -> [parts, a]) * cast(own, f32) / parts; return own, y"
    source = f"{axes}layout main = {{ parts: cols, a: rows }}\nmodel m(x: [a]) {{ {body} }}\n"
    assert communication(source, "forward") == []
    module = numpy_backend.load(numpy_backend.generate(lowered(source, "forward")))
    outputs = module.forward({}, module.shard({"x": np.ones(8, np.float32)}, module.INPUTS))
    assert outputs["own"].reshape(-1).tolist() == [0, 1, 2, 3]
    assert (outputs["y"][:, :, 0] == np.arange(4)[None, :, None] / 4).all()


def test_gradients_of_windows_are_added_up_before_they_are_reduced() -> None:
    """Channels are gathered for a convolution, and the gradient is scattered at the size of x, not of its windows."""
    body = "y = einsum(window(rename(x, b -> f), a -> [a, k], padding = (1, 0)), w -> [a, d]); return y"
    found = along("{ b: cols, d: cols }", body, "x: [a, b], w: [k, f, d]", "gradients")
    assert found == [("all_gather", ("cols",), 32), ("reduce_scatter", ("cols",), 128)]


def test_a_reshape_follows_its_operand_only_where_its_sizes_divide() -> None:
    """The rows of an image, 5, run along its features, which are split by 2."""
    source = """
dim batch = 8; dim samples = batch; dim rows = 5; dim cols = 4; dim features = rows * cols; dim kept = features; dim out = 4
mesh grid = [x: 2, y: 2]
layout main = { batch: (x, y), features: x }
model m(images: [batch, rows, cols]) {
  param w: [rows, cols, out] = normal(stddev = 1.0)
  param v: [features, kept] = normal(stddev = 1.0)
  flat = reshape(rename(images, batch -> samples) -> [samples, features])
  dense = rename(tanh(einsum(flat, v -> [samples, kept])), kept -> features)
  back = reshape(dense -> [samples, rows, cols])
  loss = mean(square(einsum(back, w -> [samples, out])))
  return loss
}
train m { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""
    assert communication(source, "step")
