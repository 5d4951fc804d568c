"""The rows of processes, against the shardings of JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mtfc.backends.common.shares import Share

SPECS = [
    ("rows", None),
    (None, "cols"),
    (("rows", "cols"), None),
    (("cols", "rows"), None),
    ("cols", "rows"),
    (None, None),
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("owner", [lambda i: i // 4, lambda i: i % 2, lambda i: int(i in (1, 6))])
def test_processes_hold_the_rows_of_their_devices(spec: Any, owner: Callable[[int], int]) -> None:
    """Each of two processes holds some devices of a mesh of 2 x 4; together they make the global array."""
    jax = pytest.importorskip("jax")
    mesh = jax.make_mesh(
        (2, 4), ("rows", "cols"), (jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:8]
    )
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    whole = np.arange(16 * 8).reshape(16, 8)
    slices = sharding.devices_indices_map(whole.shape)
    for process in (0, 1):
        own = {device: index for i, (device, index) in enumerate(slices.items()) if owner(i) == process}
        share = Share.of_slices({"x": [rows for rows, _ in own.values()]}, {"x": 16})
        needed = sorted({row for rows, _ in own.values() for row in range(16)[rows]})
        assert share.rows("x", 16).tolist() == needed
        local = whole[share.rows("x", 16)]
        for rows, columns in own.values():
            np.testing.assert_array_equal(local[share.local("x", rows, 16), columns], whole[rows, columns])


def test_rows_of_another_process_are_refused() -> None:
    with pytest.raises(IndexError, match="rows 2 to 6 of x belong to another process"):
        Share({"x": ((0, 4),)}).local("x", slice(2, 6), 8)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ({}, (0, 1)),
        ({"x": ((4, 8),), "y": ((8, 16),)}, (1, 2)),
        ({"x": ((4, 8),), "y": ((0, 8),)}, None),
        ({"x": ((0, 2), (4, 6)), "y": ((0, 16),)}, None),
        ({"x": ((1, 3),), "y": ((2, 6),)}, None),
        ({"x": ((3, 6),), "y": ((6, 12),)}, None),
    ],
)
def test_equal_consecutive_parts_are_counted(ranges: Any, expected: tuple[int, int] | None) -> None:
    assert Share(ranges).shard({"x": 8, "y": 16}) == expected
