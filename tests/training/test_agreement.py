"""The votes of all processes before each step, with those of others given: who has no batch, who fails, whose data differ."""

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from mtfc.driver.errors import UsageError
from mtfc.driver.training.hosts import Peers
from mtfc.driver.training.loop import END, OthersFailed, next_of_all
from mtfc.driver.training.signals import Stop, Stopped


@attrs.define(eq=False)
class PeersWithVote(Peers):
    """Process 0 of two; the other one gives the same vote each time."""

    other: list[Any] = attrs.field(factory=list)
    told: list[Any] = attrs.field(factory=list)

    def gather(self, value: Any) -> list[Any]:
        self.told = value
        return [value, self.other]


@attrs.define
class OneBatch:
    """A batch of each step, with the checksum of a function's items."""

    batches: Iterator[dict[str, Any]]

    def __next__(self) -> dict[str, Any]:
        return next(self.batches)

    def state(self) -> dict[str, Any]:
        return {}

    def checksum(self) -> int:
        return 7

    def close(self) -> None:
        pass


def step(*other: Any, batches: int = 1, failure: Exception | None = None) -> PeersWithVote:
    peers = PeersWithVote(0, 2, other=list(other))
    assert next_of_all(OneBatch(iter([{}] * batches)), Stop(peers=peers), failure) == {}
    return peers


def test_all_go_on_together() -> None:
    assert step(False, "", 7).told == [False, "", 7]


@pytest.mark.parametrize(
    ("vote", "error", "message"),
    [
        ((True, "", 7), Stopped, None),
        ((False, END, 7), StopIteration, None),
        ((False, "has failed: the disk is full", 7), OthersFailed, "process 1 of 2 has failed: the disk is full"),
        ((False, "", 8), UsageError, "other items on process 1 than on process 0"),
    ],
)  # fmt: skip
def test_the_word_of_another_process_ends_this_one(
    vote: tuple[Any, ...], error: type[Exception], message: str | None
) -> None:
    with pytest.raises(error, match=message):
        step(*vote)


def test_the_others_hear_of_a_failure() -> None:
    peers = PeersWithVote(0, 2, other=[False, "", 7])
    failure = OSError("the disk is full")
    with pytest.raises(OSError, match="the disk is full"):
        next_of_all(OneBatch(iter([{}])), Stop(peers=peers), failure)
    assert peers.told == [False, "has failed: the disk is full", 7]
