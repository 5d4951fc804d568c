"""A plan: a layout of an imported function on a mesh, and what JAX takes from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from mtfc.backends.common.devices import Unavailable, jax
from mtfc.compiler.ir.core import Function, Program, walk
from mtfc.compiler.ir.printer import bytes_text
from mtfc.compiler.ir.types import ARRAY_DTYPES, Axes, TensorType
from mtfc.compiler.search.usual_layouts import idle_axes, idle_note
from mtfc.driver.data.files import readable_texts, write_text
from mtfc.driver.errors import UsageError, public, say
from mtfc.driver.jax_functions.plan_file import argument_sizes, check_sizes, plan_text, structure
from mtfc.driver.jax_functions.shardings import (
    PackedProgram,
    Unsaid,
    explicit_axes,
    model_parallel,
    of_any_functions,
    one_use,
    only_axes,
    sharding_tree,
    spec_of,
    unsaid,
)
from mtfc.driver.jax_functions.xla_faults import MetFault, met_faults, warn_of
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.driver.values import target_option
from mtfc.frontend.jaxpr.dimension_names import place
from mtfc.frontend.jaxpr.importing import Imported, Leaf
from mtfc.frontend.jaxpr.tracing import by_place, misfit, value_of
from mtfc.frontend.layouts.layout_text import rules_text

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware
    from mtfc.compiler.cost.volumes import PlacedCost
    from mtfc.compiler.search.found import Found
    from mtfc.driver.records import LayoutCost, Step
    from mtfc.driver.report import Drawing, ReportPage
    from mtfc.frontend.jaxpr.flat import AppliedPrimitive
    from mtfc.reports.inspection import Inspection


@attrs.frozen(eq=False, slots=False, repr=False)
class Plan:
    """A layout of an imported function on a mesh.

    found: what the search says of it; None for a layout of the user. hardware: the machine of the search; None for other plans.
    has_explicit_axes: True if the axes of `mesh` have the type Explicit, and False for Auto. devices: those of the mesh, by
    default JAX's own.

    >>> plan = program.search(devices=8, target="h100")             # doctest: +SKIP
    >>> step = jax.jit(plan.apply(f), in_shardings=plan.in_shardings, out_shardings=plan.out_shardings)  # doctest: +SKIP
    """

    imported: Imported
    case: LayoutOnMesh
    function: Callable[..., Any]
    found: Found | None = None
    hardware: Hardware | None = None
    has_explicit_axes: bool = False
    devices: tuple[Any, ...] = ()
    _of_shapes: dict[tuple[tuple[int, ...], ...], Plan] = attrs.field(factory=dict, init=False)
    """The plans that `for_sizes` has made, by the shapes of all arguments."""

    def with_explicit_axes(self) -> Plan:
        """Return the plan with a mesh for JAX's explicit sharding: arrays then have their shardings in their types."""
        return attrs.evolve(self, has_explicit_axes=True)

    @cached_property
    def _with_auto_axes(self) -> Plan:
        return attrs.evolve(self, has_explicit_axes=False) if self.has_explicit_axes else self

    @cached_property
    def program(self) -> Program:
        """One processor's program, with its collectives."""
        return self.case.lower(self.imported.program)

    @property
    def _main(self) -> Function:
        """The function that computes all outputs."""
        return self.program.function(self.imported.main.name)

    def __repr__(self) -> str:
        idle = f"; {' and '.join(self.idle_axes)} idle" if self.idle_axes else ""
        return f"<Plan {self.rules_text or 'nothing is split'} on {self.mesh_text}{idle}>"

    @property
    def rules(self) -> Mapping[str, Axes]:
        """Dimension -> the mesh axes that split it."""
        return self.case.layout.rules.by_dim

    @property
    def rules_text(self) -> str:
        return rules_text(self.case.layout)

    @property
    def mesh_text(self) -> str:
        return self.case.mesh.axes_text

    # Shardings

    @cached_property
    def mesh(self) -> Any:
        """The `jax.sharding.Mesh`, on the devices of this process. Raises `Unavailable`."""
        from jax.experimental import mesh_utils

        found = self.devices or jax.devices()
        needed, has = self.case.mesh.devices, len(found)
        if has < needed:
            raise Unavailable(
                f"the plan is for {needed} devices, and JAX has {has}: for virtual ones set "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={needed} before JAX starts"
            )
        shape, names = tuple(self.case.mesh.sizes.values()), self.case.mesh.names
        placed = mesh_utils.create_device_mesh(shape, list(found[:needed]), allow_split_physical_axes=True)
        kinds = jax.sharding.AxisType
        kind = kinds.Explicit if self.has_explicit_axes else kinds.Auto
        return jax.sharding.Mesh(placed, names, axis_types=(kind,) * len(names))

    @cached_property
    def stored(self) -> Mapping[str, Mapping[str, Axes]]:
        """Name of an argument of the program -> the axes that split its dimensions."""
        return {a.value.name: _splits(a.value.type) for a in self._main.arguments}

    @cached_property
    def returned(self) -> Mapping[str, Mapping[str, Axes]]:
        """Name of an output of the program -> the axes that split its dimensions."""
        return {output.name: _splits(output.value.type) for output in self._main.outputs}

    def _sharding(self, leaf: Leaf, rules: Mapping[str, Axes]) -> Any:
        dims = () if leaf.key is not None else leaf.dims  # arrays of random keys have no axis for their data
        return jax.sharding.NamedSharding(self.mesh, spec_of(dims, rules, self.case.mesh))

    @property
    def _arguments(self) -> Sequence[Leaf]:
        return [leaf for leaf in self.imported.inputs if leaf.constant is None]

    @cached_property
    def _in_leaves(self) -> Sequence[Any]:
        return [self._sharding(leaf, self.stored.get(leaf.name, {})) for leaf in self._arguments]

    @cached_property
    def _in_trees(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The shardings of all arguments, in their own form: positional and named."""
        tree = of_any_functions(self.imported.flat.in_tree)
        found: tuple[tuple[Any, ...], dict[str, Any]] = sharding_tree(tree, self._in_leaves)
        return found

    @property
    def in_shardings(self) -> tuple[Any, ...]:
        """The shardings of the positional arguments, as pytrees like these."""
        return self._in_trees[0]

    @cached_property
    def out_shardings(self) -> Any:
        """The shardings of the results, as a pytree like theirs."""
        leaves = [self._sharding(leaf, self.returned[leaf.name]) for leaf in self.imported.outputs]
        return sharding_tree(self.imported.flat.out_tree, leaves)

    @property
    def shardings(self) -> SimpleNamespace:
        """The shardings of each argument under its name: `plan.shardings.params`."""
        positional, named = self._in_trees
        by_name = dict(zip(self.imported.flat.argument_names, positional, strict=True))
        return SimpleNamespace(**by_name, **named)

    @property
    def abstract_state(self) -> tuple[Any, ...]:
        """The positional arguments as `jax.ShapeDtypeStruct`s with shardings, which a checkpoint can be restored into."""
        return self.abstract_arguments[0]

    @property
    def abstract_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments, positional and named, as `jax.ShapeDtypeStruct`s with shardings."""

        def struct(leaf: Leaf, sharding: Any) -> Any:
            """Return shape, dtype and sharding of an argument."""
            is_key = leaf.key is not None
            dtype = jax.random.key(0, impl=leaf.key).dtype if is_key else ARRAY_DTYPES[leaf.dtype]
            return jax.ShapeDtypeStruct(leaf.user_shape, dtype, sharding=sharding)

        leaves = [struct(leaf, each) for leaf, each in zip(self._arguments, self._in_leaves, strict=True)]
        found: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.unflatten(self.imported.flat.in_tree, leaves)
        return found

    @cached_property
    def unsaid(self) -> tuple[Unsaid, ...]:
        """The splits of arguments that no `PartitionSpec` says; only `step` has them."""
        return tuple(
            each
            for leaf in self._arguments
            for each in unsaid(leaf, self.stored.get(leaf.name, {}), self.case.mesh)
        )

    @public
    def keras_distribution(self) -> Any:
        """Return the `keras.distribution.ModelParallel` of the plan, for a function that was imported on variables of Keras.

        Raises `ValueError` for a plan that Keras cannot express, and `Unavailable`.
        """
        _ = self.mesh  # raises `Unavailable` if there are too few devices
        return model_parallel(self.imported, self.case.mesh, self.stored)

    # Functions

    @cached_property
    def known_faults(self) -> tuple[MetFault, ...]:
        """The faults of XLA that `apply` meets, with the user's lines. `step` has none of them."""
        return met_faults(self.imported, self.rules, self.case.mesh)

    @property
    def idle_axes(self) -> Axes:
        """The mesh axes that no rule uses: along them all devices compute the same."""
        return idle_axes(self.case.mesh, self.case.layout)

    @public
    def apply(
        self, function: Callable[..., Any] | None = None, *, keep_constraints: bool = True
    ) -> Callable[..., Any]:
        """Return the user's function with sharding constraints on its intermediate values, for `jax.jit`.

        function: the function that was imported, or None. It is evaluated as it was traced. keep_constraints: False to drop the
        constraints that it has itself. They are kept by the names of mesh axes, on the plan's mesh. Under a mesh with Explicit
        axes, the results have the plan's shardings in their types. Warns of `known_faults`, and raises `UsageError` for one that
        ends the process.
        """
        known = (None, self.function, getattr(self.function, "__wrapped__", None))
        if not any(function is each for each in known):
            raise UsageError("`apply` takes the function that was imported: import the other one, too")
        warn_of(self.known_faults)
        constrained = cache(lambda plan: plan._constrained(keep_constraints))

        @public
        def planned(*args: Any, **kwargs: Any) -> Any:
            """Compute the function with the layouts of the plan for these sizes."""
            plan = self.for_sizes(args, kwargs)
            results = plan._computed(constrained(plan), plan._leaves(args, kwargs))
            return jax.tree.unflatten(plan.imported.flat.out_tree, results)

        planned.__name__ = getattr(self.function, "__name__", "planned")
        return planned

    @public
    def jit(self, function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
        """Return `apply(function)` under `jax.jit` with the plan's mesh and shardings. Arguments are placed as the plan says.

        options: options of `jax.jit`, such as `donate_argnums`. Inside of another transformation, it is `apply`.
        """
        applied = self.apply(function)
        jitted = jax.jit(applied, out_shardings=self.out_shardings, **options)

        @public
        def planned(*args: Any, **kwargs: Any) -> Any:
            """Move the arguments to their devices, and call the compiled function; inside of other traces compute it in place."""
            args, kwargs = by_place(self.function, args, kwargs)
            leaves = self.for_sizes(args, kwargs)._leaves(args, kwargs)
            if any(isinstance(x, jax.core.Tracer) for x in leaves):
                return applied(*args, **kwargs)
            tree = jax.tree.structure((args, kwargs))
            with jax.sharding.set_mesh(self.mesh):
                args, kwargs = jax.device_put(jax.tree.unflatten(tree, leaves), self._in_trees)
                return jitted(*args, **kwargs)

        return planned

    def _computed(
        self, compute: Callable[[Sequence[Any]], Sequence[Any]], leaves: Sequence[Any]
    ) -> Sequence[Any]:
        """Compute the leaves of the results on Auto axes. Where the mesh has Explicit axes, results get the plan's shardings."""
        mesh = jax.sharding.get_abstract_mesh()
        explicit = explicit_axes(mesh)
        if not explicit:
            return compute(leaves)
        if dict(mesh.shape) != dict(self.case.mesh.sizes):
            axes = ", ".join(f"{name}: {size}" for name, size in mesh.shape.items())
            raise UsageError(f"the mesh is {axes}, and the plan is for {self.mesh_text}")
        results = tuple(only_axes(each.spec, explicit) for each in jax.tree.leaves(self.out_shardings))
        on_auto_axes = jax.sharding.auto_axes(lambda *xs: tuple(compute(xs)), out_sharding=results)
        found: Sequence[Any] = on_auto_axes(*map(jax.numpy.asarray, leaves))
        return found

    def _constrained(self, keep_constraints: bool) -> Callable[[Sequence[Any]], list[Any]]:
        """Return the function of the arguments' leaves with constraints on its values, for a mesh with Auto axes."""
        from mtfc.driver.jax_functions.shardings import Constrain, constrained, unconstrained

        bodies = [self.imported.flat.body, *(body for step in self.imported.steps for body in step.bodies)]
        free = {var for step in self.imported.calls for var in step.results}
        free.update(unconstrained(bodies, self._is_split_as_stored))

        def constraint(x: Any, spec: Any) -> Any:
            sharding = jax.sharding.NamedSharding(self._with_auto_axes.mesh, spec)
            return jax.lax.with_sharding_constraint(x, sharding)

        def planned(x: Any, var: Any) -> Any:
            """Return an array with a constraint to its layout in the plan, where it is fixed."""
            if var.key is not None or not var.shape or var in free:
                return x
            dims = self.imported.dims_of(var)
            return constraint(x, spec_of(dims, one_use(dims, self.rules), self.case.mesh))

        def own(x: Any, sharding: Any, step: Any) -> Any:
            return constraint(x, self._own_spec(sharding, step)) if keep_constraints else x

        arguments = frozenset(var for body in bodies for var in body.arguments)
        return constrained(self.imported.flat, Constrain(planned, own, arguments, self.imported.updates))

    def _is_split_as_stored(self, var: Any) -> bool:
        """Return True if an array is split by axes that split parameters only in storage."""
        kept = self.case.layout.params.axes
        stored = {axis for dim, axes in kept for axis in axes if axis not in self.rules.get(dim, ())}
        return any(stored & {*axes} for axes in one_use(self.imported.dims_of(var), self.rules).values())

    def _own_spec(self, sharding: Any, step: AppliedPrimitive) -> Any:
        """Return the spec of a constraint of the user. Raises `UsageError` if the plan's mesh cannot have it."""
        spec, sizes = getattr(sharding, "spec", None), self.case.mesh.sizes
        partitions = () if spec is None else tuple(getattr(spec, "partitions", spec))
        entries = [() if each is None else (each,) if isinstance(each, str) else each for each in partitions]
        fits = spec is not None and all(
            {*axes} <= {*sizes} and size % self.case.mesh.size(axes) == 0
            for axes, size in zip(entries, step.operands[0].shape, strict=False)
            if isinstance(axes, tuple)
        )
        if not fits:
            raise UsageError(
                f"the constraint {spec or sharding} at {step.span} does not fit the plan's mesh, {self.mesh_text}: "
                f"name the axes alike, or drop all constraints by `apply(f, keep_constraints=False)`"
            )
        return jax.sharding.PartitionSpec(*partitions)  # without the pending sums of explicit types

    def check_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the leaves of arguments. Raises `UsageError` if they are not as those that were imported."""
        if reason := misfit(self.function, args, kwargs):
            raise UsageError(f"the arguments {reason}")
        found = jax.tree_util.tree_flatten_with_path(by_place(self.function, args, kwargs))[0]
        given = [place(self.imported.flat, path) for path, _ in found]
        known = [place(self.imported.flat, path) for path in self.imported.flat.inputs]
        if given != known:
            other = next((place for place in given if place not in known), None)
            missing = next((place for place in known if place not in given), None)
            parts = ("an array at", other), ("no array at", missing)
            what = " and ".join(f"{said} {where}" for said, where in parts if where)
            raise UsageError(f"the arguments have {what}, and a structure other than that of the plan")
        leaves = [leaf for _, leaf in found]
        for leaf, x in zip(self._arguments, leaves, strict=True):
            if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.is_deleted():
                raise UsageError(
                    f"{leaf.name} was donated to an earlier call, and holds no numbers by now: pass what that call of "
                    f"`plan.step` or `plan.jit(f)` returned for it, or do not donate it"
                )
            shape, found_shape = leaf.user_shape, tuple(getattr(x, "shape", ()))
            if found_shape != shape:
                raise UsageError(f"{leaf.name} has shape {found_shape}, and the plan is for {shape}")
            if leaf.key is None and _dtype_of(x) != ARRAY_DTYPES[leaf.dtype]:
                wanted, hint = ARRAY_DTYPES[leaf.dtype], "convert it, or import the function on such arrays"
                if str(jax.dtypes.canonicalize_dtype(wanted)) != wanted:
                    hint = "the function was imported under `jax_enable_x64`, which is off now"
                raise UsageError(
                    f"{leaf.name} is an array of {_dtype_of(x)}, and the plan is for {wanted}: {hint}"
                )
        return leaves

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arrays of arguments. Raises `UsageError` if they are not as those that were imported."""
        return [*map(value_of, self.check_arguments(args, kwargs))]

    @cached_property
    def _packed(self) -> PackedProgram:
        """The program, on a mesh with Auto axes."""
        return PackedProgram(self.imported, self._main, self.jax(), self._with_auto_axes.mesh)

    def jax(self) -> str:
        """Return the text of our own SPMD program, a JAX module."""
        from mtfc.backends.jax.backend import generate_function

        return generate_function(self.program, self._main.name)

    def ir(self) -> str:
        """Return one processor's program as IR text."""
        from mtfc.compiler.ir.printer import print_program

        return print_program(self.program)

    @public
    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the function by our own SPMD program: explicit collectives inside `jax.shard_map`. Works under `jax.jit`."""
        plan = self.for_sizes(args, kwargs)
        packed, out_tree = plan._packed, plan.imported.flat.out_tree

        def compute(leaves: Sequence[Any]) -> Sequence[Any]:
            return packed.results(packed.run(packed.arguments(leaves)))

        return jax.tree.unflatten(out_tree, plan._computed(compute, plan._leaves(args, kwargs)))

    def for_sizes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Plan:
        """Return the plan of the same layout for the sizes of arguments, made once for each with a message.

        Return this plan for arguments that differ otherwise, too: `check_arguments` reports them. Raises `UsageError` where a
        dimension does not divide evenly.
        """
        by_name = by_place(self.function, args, kwargs)
        shapes = tuple(tuple(getattr(x, "shape", ())) for x in jax.tree.leaves(by_name))
        own = tuple(leaf.user_shape for leaf in self._arguments)
        if shapes == own or [*map(len, shapes)] != [*map(len, own)] or self.imported.again is None:
            return self
        if shapes not in self._of_shapes:
            try:
                other = self.imported.again(*jax.tree.map(_abstract, by_name))
            except Exception:  # of the user's function, which does not take such arrays together
                return self
            if structure(other.program) != structure(self.imported.program):
                return self
            note = check_sizes(self.case, argument_sizes(self.imported.program), other.program, "the plan")
            say(f"{note}; the step is compiled anew")
            self._of_shapes[shapes] = attrs.evolve(self, imported=other)
        return self._of_shapes[shapes]

    @public
    def pack(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Place the arguments on the devices as `packed_step` takes them: with an axis for each factor, split as planned."""
        return self._packed.placed(self._packed.arguments(self._leaves(args, kwargs)))

    @public
    def packed_step(self, packed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Compute the function on packed arguments. Works under `jax.jit`, with the first argument donated.

        Return the packed arguments, with new arrays for those that the function returns anew, and all outputs by name.
        """
        if explicit_axes(jax.sharding.get_abstract_mesh()):
            raise UsageError(
                "`packed_step` needs a mesh whose axes have the type Auto; `step` takes both types"
            )
        outputs = self._packed.run(packed)
        replaced = {old: outputs[name] for name, old in self.imported.replaced.items() if old in packed}
        return {**packed, **replaced}, outputs

    @public
    def unpack(self, outputs: Mapping[str, Any]) -> Any:
        """Return the outputs of `packed_step` as the function's own results."""
        return jax.tree.unflatten(self.imported.flat.out_tree, self._packed.results(outputs))

    @property
    def abstract_packed(self) -> dict[str, Any]:
        """The packed arguments as `jax.ShapeDtypeStruct`s with shardings."""
        return self._packed.abstract()

    # Costs

    @public
    def cost(self) -> LayoutCost:
        """Return the computation, communication and memory of one device, as `mtfc cost --format json` does."""
        from mtfc.reports.cost_report import layout_json

        return layout_json(self._cost)  # type: ignore[return-value]

    def report(self) -> str:
        """Return the cost by line of the user's Python."""
        from mtfc.reports.cost_report import layout_report

        return layout_report(self._cost, _texts(charge.span for charge in self._cost.step))

    @property
    def _cost(self) -> PlacedCost:
        """The cost on the device of the memory limit or of the search, whose memory counts."""
        from mtfc.compiler.cost.volumes import layout_cost

        device = self.case.device or (self.hardware.device if self.hardware else None)
        return layout_cost(self.program, device=device)

    @public
    def inspect(self, target: str = "cpu", apply: bool = False) -> Inspection:
        """Compile the plan for a target, and return its memory, FLOPs and collectives beside the predicted ones.

        target: as `mtfc inspect --target` takes it. apply: compile `plan.apply` and the function with shardings alone, too, for
        devices of this process. Print the result for tables. Nothing is computed. Raises `Unavailable`, and `ValueError` for an
        unknown target.
        """
        from mtfc.driver.compiled_step import CompileTarget, inspect_plan

        return inspect_plan(self.program, CompileTarget.of(target), self.lowered if apply else None)

    def lowered(self, devices: Sequence[Any]) -> list[Any]:
        """Return `apply()`, and the function with the shardings of arguments and results alone, lowered for devices."""
        plan = attrs.evolve(self, has_explicit_axes=False, devices=tuple(devices))
        args, kwargs = plan.abstract_arguments
        with jax.sharding.set_mesh(plan.mesh):
            jitted = (jax.jit(f, out_shardings=plan.out_shardings) for f in (plan.apply(), plan.function))
            return [each.lower(*args, **kwargs) for each in jitted]

    @property
    def memory(self) -> int:
        """The bytes that one device needs, as predicted: on the machine of the memory limit or of the search, if there is one."""
        return int(self.cost()["memory_per_device"]["total"])

    @public
    def explain(self) -> str:
        """Return what is sent, by line of the user's Python, with the rules that cause it.

        For a plan that a search has found, also the next best plan of the search, with its price and the lines that differ.
        """
        from mtfc.driver.simulate import explained_layout

        found = explained_layout(self.imported.program, self.case, self.program)
        parts = [
            found.report(
                _texts([*(each.span for each in found.sent), *(each.span for each in found.cost.step)])
            ),
            *(f"{each}\n" for each in (*self.unsaid, *idle_note(self.idle_axes), *self.known_faults)),
            self._runner_up(),
        ]
        return "\n".join(part for part in parts if part)

    def _runner_up(self) -> str:
        """Return the price of the search's next best plan, and its difference by line."""
        from mtfc.reports.difference import ComparedLayout, difference_of
        from mtfc.reports.step_report import seconds_text

        if self.found is None or self.found.runner_up is None or self.hardware is None:
            return ""
        mesh, layout = self.found.runner_up
        case = attrs.evolve(self.case, mesh=mesh, layout=attrs.evolve(layout, name="next"))
        one, other = (
            ComparedLayout.of(program, self.hardware)
            for program in (self.program, case.lower(self.imported.program))
        )
        files = [charge.span.file for each in (one, other) for charge in each.charges if charge.span]
        seconds, memory = other.figures["time"], other.figures["memory"]
        rules = rules_text(layout) or "nothing is split"
        title = (
            f"The next best plan of the search: {rules} on {mesh.axes_text}. It takes {seconds_text(seconds)} and "
            f"{bytes_text(round(memory))}.\n"
        )
        return title + difference_of(one, other).report(readable_texts(files))

    @public
    def simulate(self, target: str) -> Step:
        """Predict the time of a step on a machine, as `mtfc simulate --format json` does."""
        return self._simulated(machine(target), target)

    @property
    @public
    def predicted_step(self) -> float:
        """The predicted seconds of a step on the machine of the search, as `simulate` says.

        Raises `ValueError` for a plan that no search of this process has found.
        """
        if self.hardware is None:
            raise UsageError("the plan has no machine: `plan.simulate(target)` predicts a step on one")
        return self._simulated(self.hardware, self.hardware.name)["step_seconds"]

    def _simulated(self, hardware: Hardware, target: str) -> Step:
        """Return the record of a simulated step."""
        from mtfc.driver.simulate import simulate_program

        return simulate_program(self.program, hardware, target).record()  # type: ignore[return-value]

    @public
    def draw(self, *arrays: str) -> Drawing:
        """Draw which part of each array the devices hold; a notebook shows the drawing. arrays: names, or nothing for all."""
        from mtfc.driver.report import program_drawing

        return program_drawing(self.program, arrays)

    def _repr_html_(self) -> str:
        from mtfc.reports.notebook import html

        return html(self.program)

    @public
    def page(self, target: str = "h100") -> ReportPage:
        """Return a page about the plan, as `mtfc report` writes it, with the times of a machine.

        `page.save(path)` writes it; a notebook shows it. Raises `CompileError` if the mesh does not fit on the machine.
        """
        from mtfc.driver.loading.target import check_room
        from mtfc.driver.report import plan_page

        hardware = machine(target)
        check_room(hardware, self.case.mesh, target)
        spans = [eqn.span for function in self.program.functions for eqn in walk(function.body)]
        spans += [argument.span for argument in self._main.arguments]
        return plan_page(self.imported.program, self.case, hardware, _texts(spans))

    # Files

    @public
    def save(self, path: str) -> None:
        """Write the mesh and the layout to a JSON file, whole or not at all."""
        write_text(path, self.text())

    def text(self) -> str:
        """Return the text of the file that `save` writes."""
        return plan_text(self.case, self.imported.program)


def _abstract(x: Any) -> Any:
    """Return the shape and the dtype of an array; other leaves as they are."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, (jax.Array, np.ndarray)) else x


def _dtype_of(x: Any) -> str:
    """Return the name of the dtype that JAX gives a value; other types than arrays have their own names."""
    try:
        return str(
            jax.dtypes.canonicalize_dtype(x.dtype) if hasattr(x, "dtype") else jax.numpy.result_type(x)
        )
    except (TypeError, ValueError):
        return str(getattr(x, "dtype", type(x).__name__))


def machine(target: str) -> Hardware:
    """Return the machine of the library that a target names, or the one in a file. Raises `CompileError`."""
    from mtfc.driver.loading.sources import Sources, showing
    from mtfc.driver.loading.target import target_of

    with showing(sources := Sources()):
        return target_of(target_option(target), {}, sources)


def _splits(type: TensorType) -> dict[str, Axes]:
    """Return dimension -> the axes that split it."""
    return dict(zip(type.names, type.splits, strict=True))


def _texts(spans: Any) -> dict[str, str]:
    """Return the user's files that spans point into, by name."""
    return readable_texts(span.file for span in spans if span is not None)
