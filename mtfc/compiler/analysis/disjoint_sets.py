"""Disjoint sets of values that are joined one by one (union-find). Each set has a first value, which stands for the set."""

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """Sets of values. A value that was never joined is alone in a set."""

    def __init__(self) -> None:
        self._above: dict[T, T] = {}

    def first(self, value: T) -> T:
        """Return the first value of the set of a value."""
        while (above := self._above.get(value, value)) != value:
            self._above[value] = self._above.get(above, above)
            value = above
        return value

    def join(self, value: T, other: T) -> None:
        """Join the sets of two values. The first value of the set of `other` stands for both."""
        self._above[self.first(value)] = self.first(other)
