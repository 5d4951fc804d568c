"""Memory as rows: the few times at which a limit on memory can be exceeded, and who holds something then."""

from __future__ import annotations

import attrs
import numpy as np

from mtfc.compiler.search.solver.assignment_problem import Integers


@attrs.frozen(eq=False)
class Item:
    """Bytes that a node holds, `usage[s]` under its strategy s, in the rows from `start` up to but not including `end`."""

    start: int
    end: int
    usage: Integers


def rows_of(intervals: Integers) -> Integers:
    """The half-open intervals in rows in place of times. [nodes, 2]

    A row is a time at which something begins to be held, and after which something ends to be before anything else begins: at any
    other time no more is held than at one of those.
    """
    empty = intervals[:, 0] >= intervals[:, 1]
    starts, ends = intervals[~empty, 0], intervals[~empty, 1]
    times = np.unique(starts)
    ended = np.searchsorted(np.sort(ends), times, side="right")
    keep = np.append(np.diff(ended) > 0, True)[: len(times)]
    times = times[keep]
    rows = np.searchsorted(times, intervals, side="left")
    rows[empty] = 0
    return rows


def profile(starts: Integers, ends: Integers, held: Integers, rows: int) -> Integers:
    """What is held in each row, in bytes. [rows]"""
    change = np.zeros(rows + 1, np.int64)
    np.add.at(change, starts, held)
    np.add.at(change, ends, -held)
    return change.cumsum()[:rows]
