"""Decide which rules of a layout hold for a value or an equation. An axis of size 1 splits nothing and is left out.

A rule of storage for `*` splits one dimension of each parameter. The candidates are the dimensions that divide evenly; the
dimension with the largest local size wins, the first among equals. The rule uses its axes that split no other dimension of the
parameter. Dimensions of loops are left out: a slice along them would be on one processor alone. So are dimensions inside of an
axis of the caller's array: that array would be whole between steps, and gathered after each. A parameter stays as it is if
no dimension divides, or if the section has a rule for one of its dimensions. The optimizer state of a parameter is split along
the dimension chosen for the parameter, if the state has that dimension. The equations that update both are split alike.
"""

from collections.abc import Iterable, Iterator, Mapping

from mtfc.compiler.analysis.disjoint_sets import DisjointSets
from mtfc.compiler.analysis.equation_names import LayoutTarget
from mtfc.compiler.ir.core import Argument, Equation, Function, Value, walk
from mtfc.compiler.ir.loops import ROLES, pairs, region_of
from mtfc.compiler.ir.types import EVERY, Dim, Layout, Mesh, Rules, TensorType

Owners = Mapping[LayoutTarget, TensorType]
"""Maps an equation of the update, or a state, to the type of its parameter."""


def without_unit_axes(rules: Rules, mesh: Mesh) -> Rules:
    return Rules(tuple((dim, tuple(a for a in axes if mesh.sizes[a] > 1)) for dim, axes in rules.axes))


class LayoutRules:
    """The rules of one layout.

    `names` are the names of a function's equations and arguments (`equation_names.py`), once they have names; `looped` are the
    dimensions of loops. `function` is the one of the rules, if there is one.
    """

    def __init__(
        self,
        mesh: Mesh,
        layout: Layout,
        names: Mapping[LayoutTarget, str] = {},
        looped: frozenset[Dim] = frozenset(),
        function: Function | None = None,
    ) -> None:
        """Read the rules of a layout, without mesh axes of size 1.

        inner: dimensions of an argument -> those of them that storage leaves whole. states: the rules found for states, by type.
        """
        self.mesh, self.looped = mesh, looped
        self.owners = owners(function, layout) if function else {}
        arguments = function.arguments if function else ()
        self.inner = {frozenset(a.value.type.dims) - looped: a.inner for a in arguments if a.inner}
        self.compute = without_unit_axes(layout.compute, mesh)
        self.of_parameters = without_unit_axes(layout.params, mesh)
        self.of_state = without_unit_axes(layout.optimizer, mesh)
        self.values = {path: without_unit_axes(rules, mesh) for path, rules in layout.values}
        self.names = names
        self.states: dict[TensorType, Rules] = {}

    def own(self, thing: LayoutTarget) -> Rules | None:
        """Return the `value` rule that names an equation, an argument, or a loop's output; it covers all dimensions."""
        return self.values.get(self.names.get(thing, ""))

    def stored(self, argument: Argument) -> Rules:
        """Return the rules under which an argument is stored; a loop's arguments are placed as they are computed."""
        own = self.own(argument)
        if own is not None:
            return own
        if argument.role in ROLES:
            return self.compute
        return self.values.get(argument.value.name) or self._by_role(argument)

    def _by_role(self, argument: Argument) -> Rules:
        """Return the rules by which an argument is stored."""
        type = argument.value.type
        if argument.role == "parameter":
            return self.parameter(type)
        return self.state(self.owners.get(argument, type)) if argument.role == "state" else self.compute

    def parameter(self, type: TensorType) -> Rules:
        """Return the rules under which a parameter is stored."""
        return self._with_one_of(type, self.compute.override(self.of_parameters), self.of_parameters)

    def state(self, parameter: TensorType) -> Rules:
        """Return the rules under which the state of a parameter is stored, and under which both are updated."""
        if parameter not in self.states:
            self.states[parameter] = self._state(parameter)
        return self.states[parameter]

    def _state(self, parameter: TensorType) -> Rules:
        """Return the rules of a parameter's states: the parameter's, but for dimensions that the layout's `optimizer` section
        names.
        """
        if _names_one(self.of_state, parameter):
            return self.compute.override(self.of_parameters).override(self.of_state)
        rules = self.parameter(parameter).override(self.of_state)
        return self._with_one_of(parameter, rules, self.of_state)

    def _with_one_of(self, type: TensorType, rules: Rules, section: Rules) -> Rules:
        """Return `rules`, and the axes that the section has for `*` on one dimension."""
        used = {axis for name in type.names for axis in rules.get(name)}
        axes = tuple(axis for axis in section.get(EVERY) if axis not in used)
        if not axes or _names_one(section, type):
            return rules
        whole = self.looped | self.inner.get(frozenset(type.dims) - self.looped, frozenset())
        candidates = (dim for dim in type.dims if dim not in whole)
        split = {dim: (*rules.get(dim.name), *axes) for dim in candidates}
        parts = {dim: dim.size // self.mesh.size(rules.get(dim.name)) for dim in split}
        fitting = [dim for dim in split if dim.size % self.mesh.size(split[dim]) == 0]
        if not fitting:
            return rules
        largest = max(fitting, key=lambda dim: parts[dim])
        return rules.override(Rules(((largest.name, split[largest]),)))

    def reduced(self, eqn: Equation) -> Rules:
        """Return the rules for dimensions that an equation reduces."""
        own = self.own(eqn)
        if own is not None:
            return own
        return self.state(self.owners.get(eqn, SCALAR)) if eqn.stage == "update" else self.compute

    def defined(self, eqn: Equation) -> Rules:
        """Return the rules for the dimensions of an equation's results."""
        own = self.own(eqn)
        return own if own is not None else self.values.get(eqn.path or "", self.reduced(eqn))


SCALAR = TensorType("f32", ())


def _names_one(section: Rules, type: TensorType) -> bool:
    return not section.by_dim.keys().isdisjoint(type.names)


def owners(function: Function, layout: Layout) -> Owners:
    """Return the owners in a function, if the layout has a rule for `*`; other layouts need no owners.

    A parameter and the equations that update it are connected by tensors. Only scalars, a norm of all gradients for example,
    connect the updates of several parameters. If tensors connect several parameters, the first parameter with all the
    dimensions is the owner. In a loop, the state of a model is one slice.
    """
    if not (layout.params.get(EVERY) or layout.optimizer.get(EVERY)):
        return {}
    groups, types = DisjointSets[Value](), dict[Value, list[TensorType]]()
    updates = (eqn for eqn in walk(function.body) if eqn.stage == "update")
    things: list[tuple[LayoutTarget, list[Value]]] = [(eqn, list(_tensors(eqn))) for eqn in updates]
    for _, tensors in things:
        for value in tensors:
            groups.join(value, tensors[0])
    parameters = [argument.value for argument in function.arguments if argument.role == "parameter"]
    for value in (*parameters, *_slices(set(parameters), function.body)):
        types.setdefault(groups.first(value), []).append(value.type)
    things += [(argument, [argument.value]) for argument in function.arguments if argument.role == "state"]
    found: dict[LayoutTarget, TensorType] = {}
    for thing, tensors in things:
        names = {name for value in tensors for name in value.type.names}
        known = types.get(groups.first(tensors[0]), ()) if tensors else ()
        owner = next((type for type in known if names <= set(type.names)), None)
        found |= {thing: owner} if owner is not None else {}
    return found


def _slices(parameters: set[Value], body: Iterable[Equation]) -> Iterator[Value]:
    """Yield the arguments of loops that stand for parameters."""
    for eqn in body:
        if eqn.regions:
            inside = {argument.value for value, argument in pairs(eqn) if value in parameters}
            yield from (argument.value for _, argument in pairs(eqn) if argument.value in inside)
            yield from _slices(inside, region_of(eqn).body)


def _tensors(eqn: Equation) -> Iterator[Value]:
    return (value for value in (*eqn.operands, *eqn.results) if value.type.dims)
