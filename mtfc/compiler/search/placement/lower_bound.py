"""What no strategy is below, for graphs of any size: paths and work as in `strategy_bounds.py`, where nothing is sent.

All parts of an operator together take no less than the whole of it does in one: what is split is read and computed by some part,
what is not by all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import numpy as np

from mtfc.compiler.search.placement.graph.strategy_tasks import Tasks
from mtfc.compiler.search.placement.operators.strategy_space import Choices
from mtfc.compiler.search.placement.parts.part_costs import ONE
from mtfc.compiler.search.placement.strategy_bounds import Bounds
from mtfc.compiler.search.placement.transfer_times import Waits


def lower_bound(tasks: Tasks, choices: Sequence[Choices]) -> float:
    """Seconds that a step takes under each strategy at least."""
    if not choices:
        return 0.0
    waits = _least(tasks, choices)
    return float(Bounds(waits).of(waits.parts > 0).max())


def _least(tasks: Tasks, choices: Sequence[Choices]) -> Waits:
    """All operators as if they had one configuration that is best for everything, on a device as fast as all."""
    graph, count = tasks.graph, tasks.links.count
    steps = graph.steps
    uses = [name.of for name in tasks.names if name.kind == "taken"]
    has_gradient = [use.value in tasks.flow.gradients[use.user] for use in uses]
    work, seconds = np.zeros((3, len(graph.operators), 1, 1)), np.zeros((2, len(steps), 1))
    for i, step in enumerate(steps):
        operator = tasks.number[step]
        form, known = tasks.forms.number(step, ()), tasks.forms.known
        whole = known.seconds[form] * (1.0, bool(tasks.flow.gradients[step]))
        seconds[:, i, 0] = whole / max(prod(n for _, n in each) for each in choices[operator].degrees)
        work[:2, operator, 0, 0] += whole / count
    sizes = [
        value.type.local_bytes(ONE) for n in tasks.names if n.kind == "updated" for value in n.of.parameters
    ]
    none, number = np.zeros(0, np.int64), {step: i for i, step in enumerate(steps)}
    return Waits(
        operator=np.array([tasks.number[step] for step in steps]),
        loss=number[graph.makers[graph.loss]] if graph.loss in graph.makers else -1,
        parts=np.ones((len(graph.operators), 1), np.int64),
        forward=seconds[0],
        backward=seconds[1],
        makers=np.array([number[use.maker] for use in uses], np.int64),
        users=np.array([number[use.user] for use in uses], np.int64),
        taken=np.zeros((len(uses), 1, 1, 1, 1)),
        returned=np.where(has_gradient, 0.0, -inf).reshape(-1, 1, 1, 1, 1),
        updated=np.full((len(steps), 1, 1), -inf),
        sharers=none,
        others=none,
        shared=np.zeros((0, 1, 1, 1)),
        work=work,
        common=(tasks.update_seconds(sum(sizes)) + tasks.norm_seconds(sum(sizes))) / count,
    )
