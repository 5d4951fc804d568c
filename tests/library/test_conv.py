"""Test convolutions and pooling against XLA's own."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.library.networks import Network, agrees

IMAGE = {"batch": 2, "height": 8, "width": 8, "c": 4, "f": 6, "k3": 3, "k5": 5, "tall": 4, "wide": 4}
VOLUME = {"batch": 2, "depth": 3, "height": 4, "width": 6, "shallow": 2, "wide": 4} | {
    "k1": 1, "k2": 2, "k3": 3, "c": 2, "f": 4,
}  # fmt: skip
SPATIAL = "height: a, tall: a, width: b, wide: b"


def convolution(x: Any, filter: Any, stride: int, padding: list[tuple[int, int]], dilation: int = 1) -> Any:
    spatial = "DHW"[3 - len(padding) :]
    return lax.conv_general_dilated(
        x,
        filter,
        (stride,) * len(padding),
        padding,
        rhs_dilation=(dilation,) * len(padding),
        dimension_numbers=(f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"),
        precision="highest",
    )


def test_conv2d() -> None:
    network = Network(
        imports=["conv"],
        dims=IMAGE,
        layouts=["batch: a, f: b", SPATIAL],
        inputs={"x": "f32[batch, height, width, c]"},
        body="""
          same = conv.conv2d[
            out_height = height, out_width = width, k_height = k3, k_width = k5, filters = f
          ](x)
          half = conv.conv2d_no_bias[
            out_height = tall, out_width = wide, k_height = k3, k_width = k5, filters = f
          ](x, stride = 2)
          far = conv.conv2d_no_bias[
            out_height = height, out_width = width, k_height = k3, k_width = k5, filters = f
          ](x, dilation = 2) as far
        """,
        outputs={
            "same": "batch, height, width, f",
            "half": "batch, tall, wide, f",
            "far": "batch, height, width, f",
        },
    )

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        return {
            "same": convolution(x, p["conv2d_filter"], 1, [(1, 1), (2, 2)]) + p["conv2d_bias"],
            "half": convolution(x, p["conv2d_no_bias_filter"], 2, [(1, 1), (2, 2)]),
            "far": convolution(x, p["far_filter"], 1, [(2, 2), (4, 4)], dilation=2),
        }

    agrees(network, expected)


def test_same_and_valid_padding() -> None:
    """`same = true` pads as SAME of XLA: for even kernels, strides, and a stride beyond the size."""
    network = Network(
        imports=["conv"],
        dims=IMAGE | {"k2": 2, "low": 3, "narrow": 2, "one": 1, "once": 1},
        layouts=["batch: a, f: b", "height: a, tall: a, width: b, wide: b"],
        inputs={"x": "f32[batch, height, width, c]"},
        body="""
          even = conv.conv2d_no_bias[
            out_height = height, out_width = width, k_height = k2, k_width = k5, filters = f
          ](x, same = true) as even
          half = conv.conv2d_no_bias[
            out_height = tall, out_width = wide, k_height = k3, k_width = k2, filters = f
          ](x, stride = 2, same = true) as half
          far = conv.conv2d_no_bias[
            out_height = one, out_width = once, k_height = k3, k_width = k2, filters = f
          ](x, stride = 11, same = true) as far
          valid = conv.conv2d_no_bias[
            out_height = low, out_width = narrow, k_height = k3, k_width = k5, filters = f
          ](x, stride = 2, same = true) as valid
          most = conv.max_pool2d[out_height = tall, out_width = wide, k_height = k3, k_width = k2](x, same = true)
          means = conv.avg_pool2d[out_height = tall, out_width = wide, k_height = k3, k_width = k2](x, same = true)
        """,
        outputs={
            "even": "batch, height, width, f", "half": "batch, tall, wide, f", "far": "batch, one, once, f",
            "valid": "batch, low, narrow, f", "most": "batch, tall, wide, c", "means": "batch, tall, wide, c",
        },
    )  # fmt: skip

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        def convolved(name: str, stride: int, padding: str) -> Any:
            numbers = ("NHWC", "HWIO", "NHWC")
            return lax.conv_general_dilated(
                x, p[f"{name}_filter"], (stride,) * 2, padding, dimension_numbers=numbers, precision="highest"
            )

        def pooled(operand: Any, start: float, reduce: Any) -> Any:
            return lax.reduce_window(operand, start, reduce, (1, 3, 2, 1), (1, 2, 2, 1), "SAME")

        return {
            "even": convolved("even", 1, "SAME"),
            "half": convolved("half", 2, "SAME"),
            "far": convolved("far", 11, "SAME"),
            "valid": convolved("valid", 2, "VALID"),
            "most": pooled(x, -jnp.inf, lax.max),
            "means": pooled(x, 0.0, lax.add) / pooled(jnp.ones_like(x), 0.0, lax.add),
        }

    agrees(network, expected)


def test_conv1d_and_conv3d() -> None:
    network = Network(
        imports=["conv"],
        dims=VOLUME,
        layouts=["height: a, width: b"],
        inputs={"x": "f32[batch, depth, height, width, c]", "y": "f32[batch, width, c]"},
        body="""
          line = conv.conv1d[out_length = wide, k_length = k3, filters = f](y)
          volume = conv.conv3d[
            out_depth = shallow, out_height = height, out_width = width,
            k_depth = k2, k_height = k3, k_width = k1, filters = f
          ](x)
        """,
        outputs={"line": "batch, wide, f", "volume": "batch, shallow, height, width, f"},
    )

    def expected(x: Any, y: Any, **p: Any) -> dict[str, Any]:
        volume = convolution(x, p["conv3d_filter"], 1, [(0, 0), (1, 1), (0, 0)])
        return {
            "line": convolution(y, p["conv1d_filter"], 1, [(0, 0)]) + p["conv1d_bias"],
            "volume": volume + p["conv3d_bias"],
        }

    agrees(network, expected)


def test_separable() -> None:
    network = Network(
        imports=["conv"],
        dims=IMAGE,
        layouts=["batch: a, c: b", SPATIAL],
        inputs={"x": "f32[batch, height, width, c]", "y": "f32[batch, height, c]"},
        body="""
          half = conv.separable_conv2d[
            out_height = tall, out_width = wide, k_height = k3, k_width = k5, filters = f
          ](x, stride = 2)
          line = conv.separable_conv1d[out_length = height, k_length = k3, filters = f](y, dilation = 2)
        """,
        outputs={"half": "batch, tall, wide, f", "line": "batch, height, f"},
    )

    def depthwise(x: Any, filter: Any, stride: int, padding: list[tuple[int, int]], dilation: int) -> Any:
        """Compute the convolution with XLA, with one filter for each of 4 groups of channels."""
        spatial, axes = "HW"[2 - len(padding) :], len(padding)
        numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
        return lax.conv_general_dilated(
            x,
            jnp.expand_dims(filter, axes),
            (stride,) * axes,
            padding,
            rhs_dilation=(dilation,) * axes,
            dimension_numbers=numbers,
            feature_group_count=4,
            precision="highest",
        )

    def expected(x: Any, y: Any, **p: Any) -> dict[str, Any]:
        half = depthwise(x, p["separable_conv2d_depthwise_conv2d_filter"], 2, [(1, 1), (2, 2)], 1)
        line = depthwise(y, p["separable_conv1d_depthwise_conv1d_filter"], 1, [(2, 2)], 2)
        return {
            "half": half @ p["separable_conv2d_w"] + p["separable_conv2d_bias"],
            "line": line @ p["separable_conv1d_w"] + p["separable_conv1d_bias"],
        }

    agrees(network, expected)


def transposed(x: Any, filter: Any, strides: tuple[int, ...]) -> Any:
    """Compute the transposed convolution with JAX's transposition of a convolution whose larger half of padding is in front."""
    sizes = [size * stride for size, stride in zip(x.shape[1:], strides, strict=False)]
    need = [kernel - stride for kernel, stride in zip(filter.shape, strides, strict=False)]
    padding = [((n + 1) // 2, n // 2) for n in need]
    spatial = "DHW"[3 - len(strides) :]
    numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")

    def forward(y: Any) -> Any:
        return lax.conv_general_dilated(
            y, filter, strides, padding, dimension_numbers=numbers, precision="highest"
        )

    output = jnp.zeros((x.shape[0], *sizes, filter.shape[-2]))
    return jax.vjp(forward, output)[1](x)[0]


def test_transposed() -> None:
    network = Network(
        imports=["conv"],
        dims={**IMAGE, "depth": 2, "deep": 4, "k2": 2, "k4": 4, "long": 12},
        layouts=[SPATIAL, "batch: a, c: b"],
        inputs={
            "x": "f32[batch, tall, wide, c]",
            "y": "f32[batch, tall, c]",
            "z": "f32[batch, depth, tall, wide, c]",
        },
        body="""
          up = conv.conv_transpose2d[
            out_height = height, out_width = width, k_height = k3, k_width = k4, filters = f
          ](x)
          even = conv.conv_transpose1d[out_length = height, k_length = k4, filters = f](y) as even
          far = conv.conv_transpose1d[out_length = long, k_length = k5, filters = f](y) as far
          tiles = conv.conv_transpose1d[out_length = height, k_length = k2, filters = f](y) as tiles
          same = conv.conv_transpose1d[out_length = tall, k_length = k3, filters = f](y) as same
          volume = conv.conv_transpose3d[
            out_depth = deep, out_height = height, out_width = wide,
            k_depth = k2, k_height = k5, k_width = k3, filters = f
          ](z)
        """,
        outputs={
            "up": "batch, height, width, f", "even": "batch, height, f", "far": "batch, long, f", "tiles": "batch, height, f",
            "same": "batch, tall, f", "volume": "batch, deep, height, wide, f",
        },
    )  # fmt: skip

    def expected(x: Any, y: Any, z: Any, **p: Any) -> dict[str, Any]:
        strides = {"even": 2, "far": 3, "tiles": 2, "same": 1}
        lines = {
            name: transposed(y, p[f"{name}_filter"], (stride,)) + p[f"{name}_bias"]
            for name, stride in strides.items()
        }
        up = transposed(x, p["conv_transpose2d_filter"], (2, 2)) + p["conv_transpose2d_bias"]
        volume = transposed(z, p["conv_transpose3d_filter"], (2, 2, 1)) + p["conv_transpose3d_bias"]
        return {**lines, "up": up, "volume": volume}

    agrees(network, expected)


def pooled(
    x: Any, start: float, function: Any, size: int, stride: int, padding: list[tuple[int, int]]
) -> Any:
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, start, function, window, strides, [(0, 0), *padding, (0, 0)])


def test_pooling() -> None:
    network = Network(
        imports=["conv"],
        dims={**IMAGE, "k2": 2, "k_2": 2, "k_3": 3},
        layouts=["batch: a, c: b", SPATIAL],
        inputs={"x": "f32[batch, height, width, c]", "y": "f32[batch, height, c]"},
        body="""
          line = conv.max_pool1d[out_length = tall, k_length = k2](y)
          largest = conv.max_pool2d[out_height = tall, out_width = wide, k_height = k3, k_width = k_3](x)
          average = conv.avg_pool2d[out_height = height, out_width = width, k_height = k3, k_width = k_3](
            x, stride = 1
          )
          tiles = conv.avg_pool2d[out_height = tall, out_width = wide, k_height = k2, k_width = k_2](x)
          mean = conv.global_avg_pool2d(x)
          most = conv.global_max_pool2d(x)
        """,
        outputs={
            "line": "batch, tall, c", "largest": "batch, tall, wide, c", "average": "batch, height, width, c",
            "tiles": "batch, tall, wide, c", "mean": "batch, c", "most": "batch, c",
        },
    )  # fmt: skip

    def expected(x: Any, y: Any) -> dict[str, Any]:
        around = [(1, 1), (1, 1)]
        inside = pooled(jnp.ones_like(x), 0.0, lax.add, 3, 1, around)
        return {
            "line": y.reshape(2, 4, 2, 4).max(2),
            "largest": pooled(x, -np.inf, lax.max, 3, 2, around),
            "average": pooled(x, 0.0, lax.add, 3, 1, around) / inside,
            "tiles": x.reshape(2, 4, 2, 4, 2, 4).mean((2, 4)),
            "mean": x.mean((1, 2)),
            "most": x.max((1, 2)),
        }

    agrees(network, expected)


def test_up_convolution_and_local_response() -> None:
    network = Network(
        imports=["conv"],
        dims={**IMAGE, "k2": 2, "k_2": 2},
        layouts=[SPATIAL, "batch: a, c: b"],
        inputs={"x": "f32[batch, tall, wide, c]"},
        body="""
          up = conv.up_conv2d[
            k_height = k2, k_width = k_2, out_height = height, out_width = width, filters = k5
          ](x) as up
          near = conv.local_response_norm[near = k3](x, alpha = 0.5)
        """,
        outputs={"up": "batch, height, width, k5", "near": "batch, tall, wide, c"},
    )

    def expected(x: Any, **p: Any) -> dict[str, Any]:
        filter = jnp.flip(jnp.moveaxis(p["up_filter"], 0, 2), (0, 1))
        up = lax.conv_transpose(x, filter, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        squares = jnp.pad(jax.numpy.square(x), ((0, 0), (0, 0), (0, 0), (1, 1)))
        total = squares[..., :-2] + squares[..., 1:-1] + squares[..., 2:]
        return {"up": up + p["up_bias"], "near": x / (2.0 + 0.5 * total) ** 0.75}

    agrees(network, expected)


def test_pooling_of_lines_and_volumes() -> None:
    network = Network(
        imports=["conv"],
        dims={**VOLUME, "k_3": 3, "low": 2, "d3": 3},
        layouts=["height: a, low: a", "batch: a, c: b"],
        inputs={"x": "f32[batch, depth, height, width, c]", "y": "f32[batch, width, c]"},
        body="""
          line = conv.avg_pool1d[out_length = d3, k_length = k3](y)
          largest = conv.max_pool3d[
            out_depth = shallow, out_height = low, out_width = d3, k_depth = k1, k_height = k3, k_width = k_3
          ](x)
          average = conv.avg_pool3d[
            out_depth = depth, out_height = height, out_width = width, k_depth = k1, k_height = k2, k_width = k3
          ](x, stride = 1)
        """,
        outputs={
            "line": "batch, d3, c",
            "largest": "batch, shallow, low, d3, c",
            "average": "batch, depth, height, width, c",
        },
    )

    def pool(x: Any, start: float, function: Any, window: Any, stride: int, padding: Any) -> Any:
        strides = (1, *[stride] * len(padding), 1)
        return lax.reduce_window(x, start, function, (1, *window, 1), strides, [(0, 0), *padding, (0, 0)])

    def mean(x: Any, window: Any, stride: int, padding: Any) -> Any:
        total, count = (pool(v, 0.0, lax.add, window, stride, padding) for v in (x, jnp.ones_like(x)))
        return total / count

    def expected(x: Any, y: Any) -> dict[str, Any]:
        return {
            "line": mean(y, (3,), 2, [(1, 0)]),
            "largest": pool(x, -np.inf, lax.max, (1, 3, 3), 2, [(0, 0), (1, 0), (1, 0)]),
            "average": mean(x, (1, 2, 3), 1, [(0, 0), (1, 0), (1, 1)]),
        }

    agrees(network, expected)
