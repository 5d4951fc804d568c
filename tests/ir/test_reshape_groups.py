"""Reshapes in independent parts: the finer the groups, the fewer dimensions a layout must keep whole."""

from collections.abc import Sequence

import pytest

from mtfc.compiler.ir.ops.structure import reshape_groups
from mtfc.compiler.ir.types import Dim

CASES = [
    ([2, 2, 2], [4, 2], [([2, 2], [4]), ([2], [2])]),
    ([4, 2], [2, 2, 2], [([4], [2, 2]), ([2], [2])]),
    ([2, 3, 5], [2, 15], [([2], [2]), ([3, 5], [15])]),
    ([6, 1, 4], [2, 3, 4, 1], [([6], [2, 3]), ([4], [4])]),
    ([4, 6], [6, 4], [([4, 6], [6, 4])]),
]


@pytest.mark.parametrize(("sources", "targets", "groups"), CASES)
def test_groups_are_the_finest(
    sources: Sequence[int], targets: Sequence[int], groups: Sequence[tuple[list[int], list[int]]]
) -> None:
    found = reshape_groups(_dims("s", sources), _dims("t", targets))
    assert [([d.size for d in each.sources], [d.size for d in each.targets]) for each in found] == groups


def _dims(name: str, sizes: Sequence[int]) -> list[Dim]:
    return [Dim(f"{name}{i}", size) for i, size in enumerate(sizes)]
