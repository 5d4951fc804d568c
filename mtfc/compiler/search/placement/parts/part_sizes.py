"""What is known of a step in so many parts, wherever they are: flat arrays for the compiled loops of `task_graph_builder.py`.

A *form* is a step in some degrees; steps that differ in names alone have forms in common, as in FlexFlow (section 5.1). Of each
value that a step makes or uses a form has a *table*: the different pieces of it that parts have or need, and which of these each
part does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import prod

import numpy as np

from mtfc.compiler.cost.hardware import Device
from mtfc.compiler.search.placement.operators.cotangent_flow import Flow
from mtfc.compiler.search.placement.operators.operator_graph import Step
from mtfc.compiler.search.placement.operators.strategy import Parts
from mtfc.compiler.search.placement.operators.strategy_space import Choices, Degrees
from mtfc.compiler.search.placement.parts.block_arrays import Array
from mtfc.compiler.search.placement.parts.flat_encoding import Known
from mtfc.compiler.search.placement.parts.part_costs import cost
from mtfc.compiler.search.placement.parts.size_evaluator import pieces, taken
from mtfc.compiler.search.placement.parts.size_formulas import Formulas


class Forms:
    """The forms of the steps of a graph on a device, each made when it is asked for first, of formulas that are made before."""

    def __init__(self, flow: Flow, device: Device, choices: Sequence[Choices]) -> None:
        self.flow, self.device = flow, device
        self._forms, self._seconds = _Rows(3, np.int64), _Rows(2, np.float64)
        self._tables, self._pool = _Rows(4, np.int64), _Rows(1, np.int64)
        self._numbers: dict[tuple[int, Degrees], int] = {}
        self.formulas = {
            (flow.signatures[step], each.operator.dims): Formulas(flow, device, each, step)
            for each in dict.fromkeys(choices)
            for step in each.operator.steps
        }
        self.known = self._arrays()
        self._compile()

    def number(self, step: Step, degrees: Degrees) -> int:
        """The form of a step in some legal degrees."""
        key = (self.flow.signatures[step], degrees)
        if key not in self._numbers:
            self._numbers[key] = self._add(step, degrees)
            self.known = self._arrays()
        return self._numbers[key]

    def _compile(self) -> None:
        """Loops are compiled when they first run, so that no search has to wait for it."""
        for each in islice(self.formulas.values(), 1):
            pieces(each.shape, each.degrees(()), 0)
            template = each.template(())
            if template is not None:
                taken(template, each.degrees(()))

    def _arrays(self) -> Known:
        pool = self._pool.array.ravel()
        return Known(self._forms.array, self._seconds.array, self._tables.array, pool)

    def _add(self, step: Step, degrees: Degrees) -> int:
        operator = self.flow.graph.operator_of[step]
        formulas = self.formulas[self.flow.signatures[step], operator.dims]
        sizes, template = formulas.degrees(degrees), formulas.template(degrees)
        if template is not None:
            forward, backward, kept = taken(template, sizes)
        else:
            own = cost(self.flow, self.device, step, Parts(operator, degrees))
            forward, backward, kept = own.forward, own.backward, own.kept
        tables, numbers = pieces(formulas.shape, sizes, self._pool.count)
        self._pool.extend(numbers.reshape(-1, 1))
        self._seconds.extend([[forward, backward]])
        parts = prod(degree for _, degree in degrees)
        return self._forms.extend([[parts, kept, self._tables.extend(tables)]])


class _Rows:
    """An array that grows: the first `count` rows are in use."""

    def __init__(self, columns: int, dtype: type) -> None:
        self.array: Array = np.zeros((64, columns), dtype)
        self.count = 0

    def extend(self, rows: Sequence[Sequence[float]] | Array) -> int:
        """Append some; where they begin."""
        begin, end = self.count, self.count + len(rows)
        if end > len(self.array):
            self.array = np.concatenate([self.array, np.zeros((end, self.array.shape[1]), self.array.dtype)])
        self.array[begin:end] = rows
        self.count = end
        return begin
