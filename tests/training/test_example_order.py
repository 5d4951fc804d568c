"""The order of examples: each example once an epoch, in orders that are alike only by chance, and fast for whole arrays."""

from typing import Any

import numpy as np
import pytest

from mtfc.driver.training.data_interface import ExampleOrder, MixedOrder


def epochs(count: int, number: int, seed: int = 1) -> Any:
    return np.array([ExampleOrder(count, seed).numbers(i * count + np.arange(count)) for i in range(number)])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 255, 256, 257, 1000, 70_001])
def test_each_example_comes_once_an_epoch(count: int) -> None:
    for order in epochs(count, 3):
        np.testing.assert_array_equal(np.sort(order), np.arange(count))


@pytest.mark.parametrize("count", [4, 8, 30])
def test_each_place_has_each_example_equally_often(count: int) -> None:
    """The chi-square statistic of (example, place), and of the distance of neighbours, stays within five deviations."""
    orders = epochs(count, 600)
    distances = np.diff(orders, axis=1) % count
    for numbers, kinds in (*((column, count) for column in orders.T), (distances[:, 0] - 1, count - 1)):
        expected = len(numbers) / kinds
        statistic = ((np.bincount(numbers, minlength=kinds) - expected) ** 2 / expected).sum()
        assert statistic < kinds - 1 + 5 * np.sqrt(2 * (kinds - 1)), statistic


def test_any_part_of_an_epoch_is_that_of_the_whole() -> None:
    whole = epochs(1000, 1)[0]
    order, places = ExampleOrder(1000, 1), np.array([999, 0, 5, 5, 500])
    np.testing.assert_array_equal(order.numbers(places), whole[places])
    assert order.numbers(places[:0]).shape == (0,)


def test_the_order_is_that_of_earlier_versions() -> None:
    """A checkpoint of another version, or of another machine, goes on with the same examples."""
    assert ExampleOrder(10, 3).numbers(np.arange(20, 30)).tolist() == FIRST
    large = ExampleOrder(10**12, 3).numbers(np.arange(3))
    assert large.tolist() == LARGE


FIRST = [9, 3, 8, 0, 4, 2, 7, 5, 1, 6]
LARGE = [777708666042, 719379130715, 393870464193]


def test_a_mixture_has_its_proportions_and_each_example_once_an_epoch_of_its_source() -> None:
    order = MixedOrder.of([10, 40], [1, 3], seed=5)
    found = order.numbers(np.arange(400))
    assert np.bincount(found // 10 > 0).tolist() == [100, 300]
    window = np.lib.stride_tricks.sliding_window_view(found < 10, 4).sum(axis=1)
    assert set(window) == {1}, "the sources are interleaved evenly"
    for part, count in ((found[found < 10], 10), (found[found >= 10] - 10, 40)):
        whole = part[: len(part) // count * count].reshape(-1, count)
        np.testing.assert_array_equal(np.sort(whole), np.tile(np.arange(count), (len(whole), 1)))
        assert len(set(map(tuple, whole))) == len(whole)


def test_any_part_of_a_mixture_is_that_of_the_whole() -> None:
    whole = MixedOrder.of([7, 5, 9], [0.5, 0.2, 0.3], seed=2).numbers(np.arange(300))
    places = np.array([299, 3, 150])
    part = MixedOrder.of([7, 5, 9], [0.5, 0.2, 0.3], seed=2).numbers(places)
    np.testing.assert_array_equal(part, whole[places])
