"""The network of choices priced in bytes that a device sends, SoyBean's measure (arXiv:1805.04170).

The bytes are those of section 4.2.1: the bytes that a device needs less the bytes that it has, for each use of a tensor by
itself. A compiled program sends fewer where uses share a copy. No two devices may compute the
same if some dimension could be split (section 4.5), since a step in which every device computes everything sends nothing.
"""

from collections.abc import Collection, Iterator
from itertools import chain, product
from math import inf

from mtfc.compiler.cost.tables.collective_tables import Conversions
from mtfc.compiler.ir.core import Equation, Function, Value
from mtfc.compiler.ir.opdef import ReshardStep
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import Mesh
from mtfc.compiler.search.per_equation.choice_network import ChoiceNetwork
from mtfc.compiler.search.per_equation.equation_strategies import Strategy, divides, iteration_space
from mtfc.compiler.search.per_equation.network_builder import NetworkBuilder


class DividedNetwork(NetworkBuilder):
    """A network in which no two devices compute the same where some dimension could be split (section 4.5)."""

    def strategies(self, eqn: Equation, pending: list[int]) -> Iterator[Strategy]:
        """Yield only the strategies that use as many axes as they can: no unused axis could split a further dimension."""
        rule = OPS[eqn.op].layout_rule(eqn)
        dims = [dim for dim in iteration_space(eqn, rule) if dim.name in self.splittable]
        for each in super().strategies(eqn, pending):
            used = {*chain.from_iterable(each.layout.values()), *each.passed}
            unused = [axis for axis, size in self.mesh.axes if size > 1 and axis not in used]
            room = product(dims, unused)
            more = ({**each.layout, dim.name: (*each.layout.get(dim.name, ()), axis)} for dim, axis in room)
            if not any(divides(eqn, rule, dims, layout, self.mesh) for layout in more):
                yield each


class PublishedNetwork(DividedNetwork):
    """The network of the paper: each sum is also completed by the equation that leaves it pending."""

    def sums(self, function: Function) -> set[Value]:
        """Return no values: sums do not stay pending."""
        return set()


def counted_network(
    function: Function,
    mesh: Mesh,
    splittable: Collection[str],
    kind: type[NetworkBuilder] = DividedNetwork,
    until: float = inf,
) -> ChoiceNetwork:
    """Return the choices of an undistributed function on a mesh, priced in bytes that one device sends.

    splittable: dimensions that a layout can name. Raises `TimeoutError` after `until`, a time of `time.monotonic`.
    """

    def bytes_sent(step: ReshardStep) -> float:
        return step.bytes_sent(mesh)

    builder = kind(
        mesh,
        Conversions(mesh, bytes_sent, until),
        splittable,
        work=lambda eqn, placed: [0.0] * len(placed),
        copying=lambda eqn, value, types: [0.0] * len(types),
        until=until,
    )
    return builder.network(function)
