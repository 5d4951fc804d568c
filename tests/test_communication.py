"""The exact collectives of functions: those of the paper's section 6, and no others.

Each case states all collectives of a function: kind, mesh axes, and elements of one processor's operand.
"""

from collections.abc import Callable

import numpy as np
import pytest

import mtfc
from mtfc.backends.numpy import backend as numpy_backend
from tests.harness import communication, lowered

DIMS = """
dim a = 8; dim b = 16; dim c = 4; dim d = 8; dim e = 4; dim f = 16; dim k = 2
mesh grid = [rows: 2, cols: 4]
"""


def sent(layout: str, body: str, inputs: str, of: str = "forward") -> list[tuple[str, tuple[str, ...], int]]:
    return communication(f"{DIMS}layout main = {layout}\nmodel m({inputs}) {{\n{body}\n}}\n", of)


Sent = list[tuple[str, tuple[str, ...], int]]

DOT = "y = einsum(x, w -> [a, c]); return y"
RENAMED = "y = rename(x, a -> d); return y"
RESHAPED = "y = reshape(x -> [a, c, e]); return y"
CUMSUM = "y = cumsum(x, over = b); return y"
TOP_K = "values, indices = top_k(x, b -> k); return values, indices"
ARGMAX = "y = argmax(x, over = b); return y"
GATHER = "y = gather(table, ids, b); return y"
OF_DOTS = "q = einsum(x, w -> [a, c]); k = einsum(y, v -> [f, c]); p = tanh(sum(DOT, over = a)); return p"
OF_FACTORS = "s = sum(x); y = einsum(x, w -> [a, c]); t = sum(PRODUCT, over = [c]); return t"
X, XW, XZ, TABLE = "x: [a, b]", "x: [a, b], w: [b, c]", "x: [a, b], z: [a, b]", "table: [b, c], ids: i32[a]"
QK = "x: [a, b], y: [b, f], w: [b, c], v: [b, c]"

CASES: dict[str, list[tuple[str, str, str, Sent]]] = {
    "a contraction ends with an all-reduce over exactly the axes of the dims that it sums": [
        (DOT, XW, "{}", []),
        (DOT, XW, "{ a: rows, c: cols }", []),
        (DOT, XW, "{ b: cols }", [("all_reduce", ("cols",), 32)]),
        (DOT, XW, "{ a: rows, b: cols }", [("all_reduce", ("cols",), 16)]),
        (DOT, XW, "{ b: (rows, cols) }", [("all_reduce", ("rows", "cols"), 32)]),
        (DOT, XW, "{ b: (cols, rows) }", [("all_reduce", ("rows", "cols"), 32)]),
        (DOT, XW, "{ b: rows, c: cols }", [("all_reduce", ("rows",), 8)]),
    ],
    "so does a reduction": [
        case
        for name in ("sum", "mean", "max", "min")
        for case in (
            (f"y = {name}(x, over = [b]); return y", X, "{ b: cols }", [("all_reduce", ("cols",), 8)]),
            (f"y = {name}(x, over = [b]); return y", X, "{ a: cols }", []),
            (f"y = {name}(x, over = [b]); return y", X, "{ a: rows, b: cols }", [("all_reduce", ("cols",), 4)]),
        )
    ],
    "and a quantifier": [
        (f"y = {name}(x > 0.0, over = [b]); return y", X, "{ b: cols }", [("all_reduce", ("cols",), 8)])
        for name in ("any", "all")
    ],
    "a scalar is reduced over all axes": [
        ("y = sum(x); return y", X, "{ a: rows, b: cols }", [("all_reduce", ("rows", "cols"), 1)])
    ],
    "elementwise ops send nothing": [
        ("y = tanh(x) * 2.0 + sum(z); return y", "x: [a, b], z: [c]", "{ a: rows, b: cols }", [])
    ],
    "a value that nothing uses sends nothing": [("u = sum(x); y = tanh(x); return y", X, "{ b: cols }", [])],
    # section 6.1: rename and reshape
    "a rename gathers from split to unsplit alone": [
        (RENAMED, X, "{ a: cols }", [("all_gather", ("cols",), 32)]),
        (RENAMED, X, "{ d: cols }", []),
        (RENAMED, X, "{ a: cols, d: cols }", []),
    ],
    # gathering whole stripes first would send 64 elements
    "a rename to a dim on another axis exchanges slices, and gathers over `rows` alone": [
        (RENAMED, X, "{ a: rows, d: cols }", [("permute", ("cols", "rows"), 16), ("all_gather", ("rows",), 16)])
    ],
    "one dim to another on one axis is one all-to-all": [
        (body, X, "{ a: cols, f: cols }", [("all_to_all", ("cols",), 32)])
        for body in (
            "y = rename(x, a -> d, b -> f); return y",
            "y = rename(rename(x, a -> d), b -> f); return y",
            "h = rename(x, a -> d); y = rename(h, b -> f); return y",
            "y = reshape(x -> [d, f]); return y",
            "y = rename(tanh(rename(x, a -> d)), b -> f); return y",
        )
    ],
    "a reshape of [b] to [c, e] sends nothing where shards of b are shards of c": [
        (RESHAPED, X, "{ b: cols, c: cols }", []),
        (RESHAPED, X, "{ b: cols }", [("all_gather", ("cols",), 32)]),
        (RESHAPED, X, "{ c: cols }", []),
    ],
    # pending sums
    "a sum that is used split is a reduce-scatter": [
        ("y = rename(sum(x, over = [b]), a -> d); return y", X, "{ b: cols, d: cols }", [("reduce_scatter", ("cols",), 8)]),
        ("y = rename(einsum(x, w -> [a, c]), a -> d); return y", XW, "{ b: cols, d: cols }",
         [("reduce_scatter", ("cols",), 32)]),
    ],
    "several pending sums are added before one all-reduce": [
        (body, XZ, "{ b: cols }", [("all_reduce", ("cols",), 8)])
        for body in (
            "y = sum(x, over = [b]) + sum(z, over = [b]); return y",
            "y = sum(x, over = [b]) - sum(z, over = [b]); return y",
            "y = 2.0 * sum(x, over = [b]) + sum(z, over = [b]) + sum(x * z, over = [b]); return y",
            "p = sum(x, over = [b]); q = p + sum(z, over = [b]); y = -q / 4.0; return y",
        )
    ],
    "pending sums pass through linear ops that make them smaller, and not larger": [
        ("y = sum(einsum(x, w -> [a, c]), over = [c]); return y", XW, "{ b: cols }", [("all_reduce", ("cols",), 8)]),
        ("y = broadcast(sum(x, over = [b]) -> [a, c]); return y", X, "{ b: cols }", [("all_reduce", ("cols",), 8)]),
    ],
    "sums that cannot be added are sent together": [
        ("p = sum(x, over = [b]); q = sum(z, over = [b]); y = tanh(p) * tanh(q); return y", XZ, "{ b: cols }",
         [("all_reduce", ("cols",), 16)])
    ],
    # and not 8 x 4 elements of `y`
    "of two pending factors the scalar is completed before the product, whose sum is sent": [
        (OF_FACTORS.replace("PRODUCT", product), XW, "{ b: cols }", [("all_reduce", ("cols",), n) for n in (1, 8)])
        for product in ("s * y", "y * s")
    ],
    # `q` has 8 x 4 elements, `k` has 4 x 16, and the result has 8 x 16
    "the smaller operand of a dot is completed": [
        (OF_DOTS.replace("DOT", dot), QK, "{ b: cols }", [("all_reduce", ("cols",), n) for n in (16, 32)])
        for dot in ("einsum(q, k -> [a, f])", "einsum(k, q -> [a, f])")
    ],
    # two dims of one iteration space on one axis
    "each operand of an outer product is summed before one is resharded": [
        ("y = einsum(x, z -> []); return y", "x: [a], z: [d]", "{ a: cols, d: cols }", [("all_reduce", ("cols",), 2)])
    ],
    "a contraction of dims on one axis moves one operand: the tensor [a, b] is illegal, [b] and [a] are not": [
        ("y = einsum(x, z, w -> [a]); return y", "x: [b], z: [b], w: [a]", "{ a: cols, b: cols }",
         [("all_reduce", ("cols",), 1)])
    ],
    # ops that work along a dim: of a split one the shards tell each other little
    "cumsum gathers one total of each shard": [
        case
        for options in ("", ", exclusive = true", ", reverse = true")
        for case in (
            (CUMSUM.replace("= b", f"= b{options}"), X, "{ b: cols }", [("all_gather", ("cols",), 8)]),
            (CUMSUM.replace("= b", f"= b{options}"), X, "{ a: rows, b: cols }", [("all_gather", ("cols",), 4)]),
            (CUMSUM.replace("= b", f"= b{options}"), X, "{ a: cols }", []),
        )
    ],
    "top_k gathers the best of each shard: values are reduced, and of indices only the winning ones are added up": [
        (TOP_K, X, "{ b: cols }", [("all_gather", ("cols",), 16), ("all_reduce", ("cols",), 16)]),
        (TOP_K, X, "{ b: cols, a: rows }", [("all_gather", ("cols",), 8), ("all_reduce", ("cols",), 8)]),
        (TOP_K, X, "{ a: rows }", []),
    ],
    "top_k of as many as a shard holds gathers the dim": [
        (TOP_K.replace("k)", "c)"), X, "{ b: cols }", [("all_gather", ("cols",), 32)])
    ],
    "argmax reduces a value and a place": [
        (ARGMAX, X, "{ b: cols }", [("all_reduce", ("cols",), 8)] * 2),
        (ARGMAX, X, "{ b: (rows, cols) }", [("all_reduce", ("rows", "cols"), 8)] * 2),
    ],
    "prod gathers one factor of each shard": [
        ("y = prod(x, over = [b]); return y", X, "{ b: cols }", [("all_gather", ("cols",), 8)]),
        ("y = prod(x); return y", X, "{ a: rows, b: cols }", [("all_gather", ("cols",), 2), ("all_gather", ("rows",), 1)]),
    ],
    "a gather from a split table adds up what was found": [
        (GATHER, TABLE, "{ b: cols }", [("all_reduce", ("cols",), 32)]),
        (GATHER, TABLE, "{ a: rows, b: cols }", [("all_reduce", ("cols",), 16)]),
        (GATHER, TABLE, "{ a: rows, c: cols }", []),
        ("y = rename(gather(table, ids, b), c -> e); return y", TABLE, "{ b: cols, e: cols }",
         [("reduce_scatter", ("cols",), 32)]),
    ],
    "random numbers and positions are made where they are used": [
        ("y = x * random.normal([a, b]) * cast(range(b), f32) * one_hot(range(a), b); return y", X, "{ a: cols, b: rows }", []),
        ("y = x * random.normal([a, b]) * one_hot(argmax(x, over = b), b); return y", X, "{ a: (rows, cols) }", []),
    ],
}  # fmt: skip
"""Rule -> bodies, inputs, layouts, and all collectives of `forward`, sorted unless one follows the other."""


@pytest.mark.parametrize("rule", CASES)
def test_collectives_of_forward(rule: str) -> None:
    for body, inputs, layout, expected in CASES[rule]:
        found = sent(layout, body, inputs)
        assert found == expected or sorted(found) == expected, (layout, body)


def test_two_dims_on_one_axis_are_illegal() -> None:
    with pytest.raises(Exception, match="E301"):
        sent("{ a: rows, b: cols, c: rows }", DOT, XW)


LARGEST = "values, indices = top_k(x, b -> k); y = sum(values); return y"
CONVOLVED = "y = einsum(window(rename(x, b -> f), a -> [a, k], padding = (1, 0)), w -> [a, d]); return y"


@pytest.mark.parametrize(
    ("body", "inputs", "layout", "expected"),
    [
        ("y = cumsum(x, over = b); z = y * y; return z", X, "{ b: cols }", [("all_gather", ("cols",), 8)] * 2),
        (LARGEST, X, "{ b: cols }", [("all_gather", ("cols",), 16), ("all_reduce", ("cols",), 16)]),
        # each shard adds the gradients of its own rows; if the indices are split, the table's gradient is reduced
        (GATHER, TABLE, "{ b: cols }", [("all_reduce", ("cols",), 32)]),
        (GATHER, TABLE, "{ a: rows }", [("all_reduce", ("rows",), 64)]),
        # channels are gathered for a convolution, and the gradient is scattered at the size of x, not of its windows
        (CONVOLVED, "x: [a, b], w: [k, f, d]", "{ b: cols, d: cols }",
         [("all_gather", ("cols",), 32), ("reduce_scatter", ("cols",), 128)]),
    ],
)  # fmt: skip
def test_collectives_of_gradients(body: str, inputs: str, layout: str, expected: Sent) -> None:
    assert sent(layout, body, inputs, "gradients") == expected


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
