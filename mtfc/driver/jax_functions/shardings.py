"""A plan's shardings of the user's arrays, and its SPMD program on packed arrays.

A `PartitionSpec` splits an axis into equal parts of consecutive elements, so it can say splits of leading factors only: of an
axis of 3 x heads x head_dim it can split the 3, or the 3 and the heads. `spec_of` says the most that it can. Packed arrays have
one axis for each dimension of the program, and can be split along each of them.

Keras replicates a variable that no entry of a `LayoutMap` matches. A model that is built a second time has other paths, such as
`dense_1/kernel`, so the plan's distribution of Keras refuses matrices that the plan does not have.

The user's function with sharding constraints on its intermediate values, for `jax.jit`.

The function is evaluated as its jaxpr says, so custom derivatives, recomputation and the lines of the user's file stay as
they are. Results of equations get constraints, but for those of opaque primitives: XLA may have a better rule for these than to
compute the whole everywhere. Arguments get theirs at each use, because they may be stored otherwise, and the update of a model
computes on them as they are stored.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import compress
from math import prod
from typing import Any

import attrs

from mtfc.backends.common.devices import jax, setting_kept
from mtfc.backends.common.module import KINDS
from mtfc.backends.common.module import TABLES as OF_KINDS
from mtfc.backends.registry import BACKENDS
from mtfc.compiler.ir.core import Function
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import ARRAY_DTYPES, ITEM_BYTES, Axes, Dim, Mesh
from mtfc.driver.errors import UsageError, public
from mtfc.frontend.jaxpr.expansions import (
    INLINED,
    RECOMPUTING,
    bound,
    evaluated,
    has_elements,
    kept_apart,
    makes_step,
    scan_counts,
)
from mtfc.frontend.jaxpr.flat import AppliedPrimitive, Body, Flat, Operand, Var, chooses, data_of
from mtfc.frontend.jaxpr.importing import Imported, Leaf


@attrs.frozen
class Unsaid:
    """A split that no `PartitionSpec` of a leaf says: mesh axes, the axis of the array, and its factors.

    bytes: what a device stores of the array. ratio: how many times as much that is therefore.
    """

    leaf: Leaf
    axis: int
    dim: Dim
    axes: Axes
    bytes: int
    ratio: int

    @property
    def reshaped(self) -> tuple[int, ...]:
        """The shape of an array whose `PartitionSpec` can say the split: the dimension begins an axis."""
        dims = self.leaf.dims[self.axis]
        place = dims.index(self.dim)
        parts = (prod(dim.size for dim in part) for part in (dims[:place], dims[place:]))
        return (*self.leaf.shape[: self.axis], *parts, *self.leaf.shape[self.axis + 1 :])

    def __str__(self) -> str:
        """Return the split in words, with the bytes that it costs and the remedies."""
        factors = " x ".join(f"{dim.name} {dim.size}" for dim in self.leaf.dims[self.axis])
        return (
            f"{self.leaf.name}: axis {self.axis} is {factors}, and {', '.join(self.axes)} splits {self.dim.name}; "
            f"a device stores {bytes_text(self.bytes)} in place of {bytes_text(self.bytes // self.ratio)}: "
            f"reshape the array to {[*self.reshaped]}, or use `plan.packed_step`"
        )


def axes_of(dims: Sequence[Dim], rules: Mapping[str, Axes], mesh: Mesh) -> tuple[Axes, list[Dim]]:
    """Return the mesh axes of a `PartitionSpec` for an axis with some factors, and the factors whose split it cannot say."""
    found: Axes = ()
    unsaid: list[Dim] = []
    is_open = True
    for dim in dims:
        axes = rules.get(dim.name, ())
        if axes and not is_open:
            unsaid.append(dim)
        elif axes:
            found += axes
        is_open = is_open and mesh.size(axes) == dim.size
    return found, unsaid


def one_use(dims: Iterable[Sequence[Dim]], rules: Mapping[str, Axes]) -> dict[str, Axes]:
    """Return the rules of an intermediate value: a mesh axis splits the first dimension that asks for it."""
    used: set[str] = set()
    found: dict[str, Axes] = {}
    for dim in (dim for each in dims for dim in each):
        axes = rules.get(dim.name, ())
        if used.isdisjoint(axes):
            found[dim.name] = axes
            used |= {*axes}
    return found


def spec_of(dims: Iterable[Sequence[Dim]], rules: Mapping[str, Axes], mesh: Mesh) -> Any:
    """Return the `PartitionSpec` of an array whose axes have some factors."""
    entries = [axes_of(each, rules, mesh)[0] for each in dims]
    return jax.sharding.PartitionSpec(
        *(axes if len(axes) > 1 else axes[0] if axes else None for axes in entries)
    )


def sharding_tree(tree: Any, shardings: Sequence[Any]) -> Any:
    """Return shardings as a pytree.

    A node whose class refuses leaves that are no arrays has one sharding for all its leaves, as `jax.jit` allows. Raises
    `ValueError` if its leaves have different ones.
    """
    try:
        return jax.tree.unflatten(tree, shardings)
    except Exception:  # the class of a node of the user may refuse them by any exception
        rest, children = list(shardings), tree.children()
        own = [sharding_tree(each, [rest.pop(0) for _ in range(each.num_leaves)]) for each in children]
        leaf = jax.tree.structure(0)
        definition = jax.tree_util.PyTreeDef.from_node_data_and_children(
            jax.tree_util.default_registry, tree.node_data(), [leaf] * len(children)
        )
        try:
            return jax.tree.unflatten(definition, own)
        except Exception as error:
            if len({*shardings}) == 1:
                return shardings[0]
            kind = tree.node_data()[0].__name__
            raise ValueError(
                f"`{kind}` takes no shardings in the place of its arrays ({type(error).__name__}: {error}), and its arrays "
                "have different ones: give the arrays to the function without it"
            ) from None


class AnyFunction:
    """Equal to every function, and to every named tuple of functions."""

    def __eq__(self, other: object) -> bool:
        return _is_function(other)

    def __hash__(self) -> int:
        return 0


def _is_function(x: object) -> bool:
    """Return True for a function in a tree of arguments, or a record of functions alone."""
    if isinstance(x, tuple):
        return type(x) is not tuple and all(callable(each) for each in x)
    return isinstance(x, AnyFunction) or (callable(x) and not isinstance(x, type))


def of_any_functions(tree: Any) -> Any:
    """Return the structure of pytrees that differ from a given one in the functions of their nodes alone.

    A module or an optimizer that is built twice has functions of its own each time, such as those of `optax.adam`.
    """

    def free(static: Any) -> Any:
        """Return a static argument with a wildcard in the place of each function."""
        if type(static) is tuple:
            return tuple([free(each) for each in static])
        return AnyFunction() if _is_function(static) else static

    if tree.node_data() is None:
        return tree
    (kind, static), children = tree.node_data(), [of_any_functions(each) for each in tree.children()]
    make = jax.tree_util.PyTreeDef.from_node_data_and_children
    return make(jax.tree_util.default_registry, (kind, free(static)), children)


def entry_axes(entry: Any) -> Axes:
    """Return the mesh axes in an entry of a `PartitionSpec`."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def explicit_axes(mesh: Any) -> frozenset[str]:
    """Return the axes of a mesh of JAX that have the type Explicit."""
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(name for name, kind in pairs if kind == jax.sharding.AxisType.Explicit)


def only_axes(spec: Any, names: frozenset[str]) -> Any:
    """Return a `PartitionSpec` without all other axes."""
    entries = (tuple(axis for axis in entry_axes(each) if axis in names) for each in spec)
    return type(spec)(*(axes or None for axes in entries))


def unsaid(leaf: Leaf, rules: Mapping[str, Axes], mesh: Mesh) -> list[Unsaid]:
    """Return the splits of a leaf that its `PartitionSpec` cannot say."""
    said = prod(mesh.size(axes_of(dims, rules, mesh)[0]) for dims in leaf.dims)
    bytes = prod(leaf.shape) * ITEM_BYTES[leaf.dtype] // said
    found = []
    for j, dims in enumerate(leaf.dims):
        for dim in axes_of(dims, rules, mesh)[1]:
            axes = rules[dim.name]
            found.append(Unsaid(leaf, j, dim, axes, bytes, mesh.size(axes)))
    return found


# Packed arrays

TABLES = {role: OF_KINDS[kind] for kind, role in KINDS.items()}
"""Role of an argument -> the name of its table in a module."""


@attrs.frozen(eq=False, slots=False)
class PackedProgram:
    """A module that computes an imported function. main: the function of one processor. mesh: JAX's mesh of the plan."""

    imported: Imported
    main: Function
    text: str
    mesh: Any

    @cached_property
    def module(self) -> Any:
        with setting_kept("jax_enable_x64"):  # the caller decides, as for the function
            return BACKENDS["jax"].load(self.text)

    @cached_property
    def roles(self) -> Mapping[str, str]:
        return {argument.value.name: argument.role for argument in self.main.arguments}

    def arguments(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return packed arguments by name, from the leaves of the user's arguments."""
        given, rest = {}, iter(leaves)
        for leaf in self.imported.inputs:
            x = leaf.constant if leaf.constant is not None else next(rest)
            data = jax.random.key_data(x) if leaf.key is not None else jax.numpy.asarray(x)
            given[leaf.name] = data.reshape([dim.size for dim in leaf.flat_dims])
        return given

    def placed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of packed arguments on the devices."""
        return {
            name: jax.device_put(jax.numpy.array(x), self._sharding(name))
            for name, x in given.items()
            if name in self.roles
        }

    def abstract(self) -> dict[str, Any]:
        """Return packed arguments as `jax.ShapeDtypeStruct`s with shardings."""
        return {
            leaf.name: jax.ShapeDtypeStruct(
                tuple(dim.size for dim in leaf.flat_dims),
                jax.numpy.dtype(ARRAY_DTYPES[leaf.dtype]),
                sharding=self._sharding(leaf.name),
            )
            for leaf in self.imported.inputs
            if leaf.name in self.roles
        }

    def _sharding(self, name: str) -> Any:
        return jax.sharding.NamedSharding(self.mesh, getattr(self.module, TABLES[self.roles[name]])[name])

    def run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Run the module on packed arguments, and return all packed outputs by name."""
        params, inputs, state = (
            {name: given[name] for name, role in self.roles.items() if role == wanted}
            for wanted in ("parameter", "input", "state")
        )
        if self.main.name == "forward":
            outputs: dict[str, Any] = self.module.forward(params, inputs)
            return outputs
        found, params, state = self._train_step(params, state, inputs, 0)
        new = {**params, **state}
        return {**found, **{name: new[old] for name, old in self.imported.replaced.items()}}

    @cached_property
    def _train_step(self) -> Any:
        """The module's step without donation: the caller says what to donate."""
        return jax.jit(self.module.train_step.__wrapped__)

    def results(self, outputs: Mapping[str, Any]) -> list[Any]:
        """Return packed outputs as the leaves of the function's own results."""
        found = []
        for leaf in self.imported.outputs:
            x = outputs[leaf.name].reshape(leaf.shape)
            if leaf.key is not None:  # JAX splits no words of a key
                whole = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
                x = jax.lax.with_sharding_constraint(x, whole)
                x = jax.random.wrap_key_data(x, impl=leaf.key)
            found.append(x)
        return found


# A distribution of Keras

Stored = Mapping[str, Mapping[str, Axes]]
"""Name of an argument -> the axes that split its dimensions."""

UNSPLIT = "unsplit"
"""The mesh axis, of size 1, over which Keras splits the batch if the plan leaves it whole."""


def model_parallel(imported: Imported, on: Mesh, stored: Stored) -> Any:
    """Return a `ModelParallel` whose `LayoutMap` has the path of every variable.

    Raises `UsageError` if Keras cannot express the plan.
    """
    paths = imported.flat.variable_paths
    variables = {paths[leaf.path]: leaf for leaf in imported.inputs if leaf.path in paths}
    if not variables:
        raise UsageError(
            "no argument is a variable of Keras: import the function on `model.trainable_variables` themselves"
        )
    from keras import distribution

    batch = _batch_axis(imported, on, stored)
    sizes = {**({} if batch in on.sizes else {batch: 1}), **on.sizes}
    devices = distribution.list_devices()[: on.devices]
    mesh = distribution.DeviceMesh(tuple(sizes.values()), list(sizes), devices)
    layouts = distribution.LayoutMap(mesh)
    for path, leaf in variables.items():
        spec = spec_of(leaf.dims, stored.get(leaf.name, {}), on)
        layouts[path] = tuple(_one_axis(axes, path) for axes in spec)
    return _planned(distribution.ModelParallel, variables)(layout_map=layouts, batch_dim_name=batch)


def _planned(base: Any, variables: dict[str, Leaf]) -> Any:
    """Return a class of distributions that refuse unknown matrices and other shapes. Keras is imported by then."""

    class PlannedModelParallel(base):  # type: ignore[misc]
        @public
        def get_variable_layout(self, variable: Any) -> Any:
            if getattr(variable, "_layout", None) is None:
                _check(variable, variables)
            return super().get_variable_layout(variable)

    return PlannedModelParallel


def _check(variable: Any, variables: dict[str, Leaf]) -> None:
    """Raise `UsageError` for a matrix that the plan lacks, or has with another shape."""
    shape, leaf = tuple(variable.shape), variables.get(variable.path)
    if leaf is None and len(shape) > 1:
        names = ", ".join([*variables][:4])
        raise UsageError(
            f"the plan has no variable {variable.path}, and Keras would replicate it; it has {names}, ...: "
            f"call `keras.utils.clear_session()`, set the distribution, and build the model again, or give its layers names"
        )
    if leaf is not None and leaf.shape != shape:
        raise UsageError(f"{variable.path} has shape {shape}, and the plan is for {leaf.shape}")


def _batch_axis(imported: Imported, on: Mesh, stored: Stored) -> str:
    """Return the mesh axis that splits the first axis of the data."""
    paths, found = imported.flat.variable_paths, set[Axes]()
    for leaf in imported.inputs:
        if leaf.role == "input" and leaf.constant is None and leaf.path not in paths and leaf.dims:
            spec = spec_of(leaf.dims[:1], stored.get(leaf.name, {}), on)
            found.add(entry_axes(spec[0]))
    axes = next(iter(found), ()) if len(found) < 2 else None
    if axes is None or len(axes) > 1:
        raise UsageError(
            "Keras splits all data along their first axis, over one axis of the mesh; the plan does not"
        )
    return axes[0] if axes else UNSPLIT


def _one_axis(entry: Any, path: str) -> str | None:
    """Return the mesh axis of an entry of a `PartitionSpec`, None for none. Raises `UsageError` for several: Keras takes one."""
    axes = entry_axes(entry)
    if len(axes) > 1:
        raise UsageError(
            f"Keras splits an axis over one axis of the mesh, and the plan splits one of {path} over {', '.join(axes)}"
        )
    return axes[0] if axes else None


FREE = frozenset({"slice"})
"""Primitives whose results get no constraint: two slices of an array that is split would gather it twice."""

DOTS, SUMS = {"dot_general", "conv_general_dilated"}, {"add", "add_any"}

CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"})

OWN = {"sharding_constraint": "sharding", "reshard": "dst_sharding", "mesh_cast": "dst_sharding"}
"""Primitive of a constraint of the user -> the parameter that has the sharding."""


@attrs.frozen
class Constrain:
    """Functions that apply constraints. planned: (array, its variable) -> the array with the plan's constraint.

    own: (array, the user's sharding, the step) -> the array with the user's constraint, or without. arguments: those of the
    function and of the bodies of its loops. updates: arrays that only update the model; they get no constraints.
    """

    planned: Callable[[Any, Var], Any]
    own: Callable[[Any, Any, AppliedPrimitive], Any]
    arguments: frozenset[Var]
    updates: frozenset[Var]

    def used(self, operands: Sequence[Any], step: AppliedPrimitive) -> list[Any]:
        """Return the operands of a step, with constraints on those that are arguments."""
        if len(operands) != len(step.operands):  # some arrays have no elements
            return [*operands]
        pairs = zip(operands, step.operands, strict=True)
        return [self.planned(x, v) if isinstance(v, Var) and v in self.arguments else x for x, v in pairs]


def unconstrained(bodies: Sequence[Body], is_split: Callable[[Operand], bool]) -> Iterator[Var]:
    """Yield arrays where a constraint would send more than it saves. bodies: the function's own, then those of its loops.

    is_split: True for an array that is split by the axes over which FSDP stores the weights.
    """
    for body in bodies:
        if _gathers_more(body, is_split):
            yield from (*body.arguments, *(var for step in body.steps for var in step.results))
    yield from (var for body in bodies[1:] for var in _sums(body))


def _gathers_more(body: Body, is_split: Callable[[Operand], bool]) -> bool:
    """Return True if the dots of a body have larger weights than activations.

    If dots run on parts of the batch, weights are gathered, and gradients are summed. Else the activations move.
    """
    dots = [step for step in body.steps if step.primitive in DOTS]
    weights = [v for step in dots for v in (*step.operands, *step.results * 2) if not is_split(v)]
    activations = [v for step in dots for v in step.results if is_split(v)]
    return 0 < sum(map(data_of, activations)) < sum(map(data_of, weights))


def _sums(body: Body) -> Iterator[Var]:
    """Yield carries that only add up, such as gradients of micro-batches, and their new values.

    The update may split a sum otherwise, and a constraint would move the sum in each iteration.
    """
    uses, outputs = Counter(v for step in body.steps for v in step.operands), {*body.outputs}
    once = {v for v in body.arguments if uses[v] == 1}
    for step in body.steps:
        carries = [v for v in step.operands if v in once]
        if step.primitive in SUMS and carries and not outputs.isdisjoint(step.results):
            yield from (*carries, *step.results)


def constrained(flat: Flat, constrain: Constrain) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function of the arguments' leaves that computes the outputs' leaves."""

    def function(leaves: Sequence[Any]) -> list[Any]:
        return _evaluated(flat.closed, leaves, iter(flat.body.steps), constrain)

    return function


def _evaluated(
    closed: Any, values: Sequence[Any], steps: Iterator[AppliedPrimitive], constrain: Constrain
) -> list[Any]:
    return evaluated(closed, values, partial(_applied, steps=steps, constrain=constrain))


def _applied(
    eqn: Any, operands: list[Any], steps: Iterator[AppliedPrimitive], constrain: Constrain
) -> Sequence[Any]:
    """Return the results of an equation, with constraints on its operands and results where its steps have a planned layout.

    steps: the steps of the flat program from this equation on; the equation takes its own.
    """
    name = eqn.primitive.name
    inner = eqn.params.get(INLINED[name]) if name in INLINED else None
    if inner is not None and name in RECOMPUTING:
        if any(is_apart := kept_apart(eqn)):
            next(steps)
            operands = _kept_apart(operands, is_apart)

        def body(*xs: Any) -> list[Any]:
            return _evaluated(inner, xs, steps, constrain)

        options = {key: eqn.params[key] for key in ("prevent_cse", "policy") if key in eqn.params}
        return list(jax.checkpoint(body, **options)(*operands))
    if inner is not None and name not in CUSTOM:
        jaxpr = getattr(inner, "jaxpr", inner)
        return _evaluated(inner, operands[len(operands) - len(jaxpr.invars) :], steps, constrain)
    if inner is not None:
        _skip(inner, steps)
        return _bound(eqn, operands)
    if not makes_step(eqn):
        return _bound(eqn, operands)
    step = _last(eqn, steps)
    if step.is_expansion or (chooses(eqn) and not step.bodies):
        return _bound(eqn, operands)
    if step.bodies and name != "scan":
        made = iter(step.results[-sum(map(has_elements, eqn.outvars)) :])
        pairs = zip(_bound(eqn, operands), eqn.outvars, strict=True)
        return [constrain.planned(x, next(made)) if has_elements(v) else x for x, v in pairs]
    if step.bodies:
        return _scanned(eqn, operands, step.bodies[0], constrain)
    if name in OWN:
        return [constrain.own(operands[0], eqn.params[OWN[name]], step)]
    if not constrain.updates.isdisjoint(step.results):
        return _bound(eqn, operands)
    found = _bound(eqn, constrain.used(operands, step))
    if name in FREE:
        return found
    results = iter(step.results)  # arrays without elements are no results of steps
    return [
        constrain.planned(x, next(results)) if has_elements(v) else x
        for x, v in zip(found, eqn.outvars, strict=True)
    ]


def _kept_apart(operands: Sequence[Any], is_apart: Sequence[bool]) -> list[Any]:
    """Return the operands of a computation, those that are kept apart behind one barrier, as JAX itself has it."""
    behind = iter(jax.lax.optimization_barrier([*compress(operands, is_apart)]))
    return [next(behind) if is_own else x for x, is_own in zip(operands, is_apart, strict=True)]


def _skip(closed: Any, steps: Iterator[AppliedPrimitive]) -> None:
    """Go past the steps of a jaxpr that is bound as a whole."""
    for eqn in getattr(closed, "jaxpr", closed).eqns:
        name = eqn.primitive.name
        inner = eqn.params.get(INLINED[name]) if name in INLINED else None
        if inner is not None:
            if any(kept_apart(eqn)):
                next(steps)
            _skip(inner, steps)
        elif makes_step(eqn):
            _last(eqn, steps)


def _last(eqn: Any, steps: Iterator[AppliedPrimitive]) -> AppliedPrimitive:
    """Return the last step of an equation. Conditionals and loops have several, which JAX evaluates itself."""
    return next(step for step in steps if step.ends is eqn)


def _bound(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    return bound(eqn.primitive, operands, eqn.params)


def _scanned(eqn: Any, operands: Sequence[Any], body: Body, constrain: Constrain) -> list[Any]:
    """Return the results of a `scan` whose body has constraints, too."""
    params: Mapping[str, Any] = eqn.params
    consts, carries = scan_counts(params)

    def iteration(carry: Any, xs: Any) -> tuple[list[Any], list[Any]]:
        """Compute one iteration with constraints; return what it carries on, and its slices of results."""
        given = [*operands[:consts], *carry, *xs]
        found = _evaluated(params["jaxpr"], given, iter(body.steps), constrain)
        return found[:carries], found[carries:]

    carry, stacked = jax.lax.scan(
        iteration,
        list(operands[consts : consts + carries]),
        list(operands[consts + carries :]),
        length=params["length"],
        reverse=params["reverse"],
        unroll=params["unroll"],
    )
    return [*carry, *stacked]
