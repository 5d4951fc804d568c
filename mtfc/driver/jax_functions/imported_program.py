"""A JAX function as a program: search a plan for it, or give it a layout, and check what comes out.

A function of JAX in the place of a .mtf file: `MODULE:FUNCTION` with `--args MODULE:EXAMPLE_ARGS`.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cached_property
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, Literal

import attrs

from mtfc.backends.common.devices import import_jax
from mtfc.compiler.activity import doing
from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics
from mtfc.compiler.garbage import few_collections
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.search.usual_layouts import without_idle_axes
from mtfc.driver.data.files import parsed_json, read_bytes, readable_texts
from mtfc.driver.errors import UsageError, diagnostic_in_python, public, raised_as, say
from mtfc.driver.jax_functions.plan import Plan, machine
from mtfc.driver.jax_functions.plan_file import argument_sizes, check_sizes, read_plan, structure
from mtfc.driver.jax_functions.xla_faults import met_faults
from mtfc.driver.loading.layout_targets import layout_targets
from mtfc.driver.loading.memory_limit import limit_of, written_limit
from mtfc.driver.loading.selection import ONE_DEVICE, LayoutOnMesh
from mtfc.driver.loading.sources import Sources, showing
from mtfc.driver.training.user_code import (
    FUNCTION,
    OWN,
    explained,
    imported_function,
    imported_value,
    kind_of_value,
)
from mtfc.driver.values import (
    LayoutOption,
    MemoryOption,
    MeshOption,
    layout_option,
    memory_option,
    mesh_option,
    one_of,
    seconds_option,
)
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.jaxpr.dimension_names import place
from mtfc.frontend.jaxpr.importing import Imported, Leaf, imported
from mtfc.frontend.jaxpr.tracing import argument_names, by_place
from mtfc.frontend.jaxpr.user_lines import definition
from mtfc.frontend.layout_options import parse_layout, parse_mesh
from mtfc.frontend.layouts.legality import check_layout
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.source_lines import aligned

if TYPE_CHECKING:
    from mtfc.compiler.cost.hardware import Hardware
    from mtfc.compiler.passes.recompute import Recompute
    from mtfc.compiler.search.found import Found
    from mtfc.driver.jax_functions.comparison import PlanVerification
    from mtfc.driver.loading.choice import BestLayout
    from mtfc.frontend.jaxpr.importing import Work


Objective = Literal["time", "serial", "memory"]


@attrs.frozen
class Coverage:
    """The primitives that every processor evaluates as a whole.

    share: their share of all FLOPs, and of all bytes read and written.
    """

    opaque: Mapping[str, int]
    lines: tuple[str, ...]
    share: Work

    def __str__(self) -> str:
        if not self.opaque:
            return "every primitive is known"
        names = ", ".join(f"{name} ({count})" for name, count in self.opaque.items())
        places = "".join(f"\n  {line}" for line in self.lines)
        return f"computed whole on every device: {names}; {self.share}{places}"


@attrs.frozen(eq=False, slots=False, repr=False)
class ImportedProgram:
    """A JAX function that `mtfc.from_jax` has imported."""

    imported: Imported
    function: Callable[..., Any]

    @property
    def program(self) -> Program:
        """The program of the IR: the function `forward`, and `step` if the function returns its model anew."""
        return self.imported.program

    def __repr__(self) -> str:
        dims = ", ".join(f"{name} {size}" for name, size in self.dims.items())
        return f"<ImportedProgram {self.program.name}: {dims}>"

    @cached_property
    def dims(self) -> Mapping[str, int]:
        """The dimensions of the arguments: name -> size."""
        found = {dim.name: dim.size for a in self.imported.main.arguments for dim in a.value.type.dims}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def arguments(self) -> str:
        """Return a table of the arguments: places, as `names` takes them, roles, dtypes, and the dimensions of each axis."""
        flat, rows = self.imported.flat, []
        for leaf in self.imported.inputs:
            axes = (" x ".join(f"{dim.name} {dim.size}" for dim in dims) or "1" for dims in leaf.dims)
            where = place(flat, leaf.path) if leaf.path else leaf.name
            rows.append((where, leaf.role, leaf.dtype, ", ".join(axes)))
        return "\n".join(aligned(rows, indent=""))

    def ir(self) -> str:
        """Return the program as IR text."""
        from mtfc.compiler.ir.printer import print_program

        return print_program(self.program)

    def coverage(self) -> Coverage:
        """Return which primitives are opaque, with their lines and their share."""
        calls = self.imported.calls
        counts = Counter(step.primitive for step in calls)
        place = definition(self.imported.flat.function)
        lines = dict.fromkeys(f"{step.primitive} at {step.span or place}" for step in calls)
        return Coverage(counts, tuple(lines), self.imported.opaque_share())

    # Plans

    @public
    def plan(
        self,
        layout: LayoutOption | None = None,
        mesh: MeshOption | None = None,
        *,
        memory: MemoryOption | None = None,
    ) -> Plan:
        """Return the plan of a layout that the user gives: `program.plan({"batch": "data"}, {"data": 8})`.

        Without any, nothing is split, on one device.

        memory: the memory of a device, such as "80GiB", or a machine; the backward pass of `plan.step` computes values again that
        would not fit. Raises `CompileError` for an illegal layout, and for dimensions that the program lacks.
        """
        case = self._case(layout_option(layout), mesh_option(mesh))
        given = memory_option(memory)
        limit = limit_of(given, {}, case.layout)
        found = Plan(self.imported, attrs.evolve(case, limit=limit), self.function)
        if given is not None:
            try:
                _ = found.program
            except CompileError as error:
                raise _in_python(error, {"<--memory>": given}) from None
        return found

    def _case(self, layout: str | None, mesh: str | None) -> LayoutOnMesh:
        """Return a layout on a mesh, both given as text. Raises `CompileError` if one of them is wrong."""
        sources, diagnostics = Sources(), Diagnostics()
        dims = "".join(f"dim {name} = {size}\n" for name, size in self.dims.items())
        sources.texts |= {"<--mesh>": mesh or "", "<dims>": dims}
        with showing(sources):
            module = elaborate(parse(dims, "<dims>", diagnostics), diagnostics)
            on = parse_mesh(mesh, module) if mesh else ONE_DEVICE
            sources.texts["<--layout>"] = layout = _of_parts(layout or "{}", self.imported.inputs, on)
            declared = parse_layout(layout, module, on if mesh or layout == "{}" else None)
            diagnostics.extend(check_layout(self.program, declared, layout_targets))
            diagnostics.raise_if_errors()
        return LayoutOnMesh(on, declared.layout)

    @public
    def search(
        self,
        devices: int | None = None,
        target: str = "h100",
        *,
        mesh: MeshOption | None = None,
        budget: float = 60.0,
        objective: Objective = "time",
        storage: bool = True,
        recompute: bool = True,
        memory: MemoryOption | None = None,
    ) -> Plan:
        """Return the best plan on a machine that a search of some seconds finds. `plan.found` has the bound.

        devices: how many, else all of the machine. mesh: its axes with their sizes, else all shapes of up to three axes are
        searched. storage: False to store the model and the optimizer's state as they are computed with, and not as FSDP and ZeRO
        do. recompute: False if `plan.step` may not compute values again in the backward pass, under layouts that would not fit.
        memory: that of a device, such as "40GiB", in place of the machine's.
        Raises `NothingFits` if no layout fits into the memory.
        """
        from mtfc.compiler.search.found import room_on
        from mtfc.compiler.search.pricer import LayoutPricer
        from mtfc.compiler.search.usual_layouts import starting_layouts
        from mtfc.driver.searching.layouts import LayoutFinder
        from mtfc.driver.searching.search import SPACES, with_memory
        from mtfc.reports.plan_figures import others

        seconds_option("budget", budget)
        until = process_time() + budget
        one_of("objective", objective, SPACES["plan"].objectives)
        hardware: Hardware = with_memory(machine(target), memory_option(memory))  # type: ignore[assignment]
        if devices is not None and (type(devices) is not int or devices < 1):
            raise UsageError(f"`devices` is a whole number from 1 on, and not {devices!r}")
        if mesh is not None:
            meshes: Sequence[Mesh] = (mesh_of(mesh_option(mesh) or ""),)
        else:
            meshes = _meshes(devices or hardware.devices, target)
        pricer = LayoutPricer.of(self.program, hardware, recompute)
        finder = LayoutFinder(self.program, pricer, objective, storage)
        known = starting_layouts(self.program.function("forward"), meshes, finder.trains)
        found = finder.without_faults(meshes, known, until, self.without_faults)
        plan, room = (found.mesh, found.layout), room_on(hardware, objective)
        nearest = others(self.program, finder.seen, plan, room)
        found = attrs.evolve(found, runner_up=next(((on, each) for on, each, _ in nearest), None))
        layout = attrs.evolve(found.layout, name="plan")
        layout = pricer.recomputed(found.mesh, layout, written_limit(hardware, {}))
        limit = limit_of(None, {}, layout)
        used = found.mesh if mesh is not None else without_idle_axes(found.mesh, layout)
        return Plan(self.imported, LayoutOnMesh(used, layout, limit=limit), self.function, found, hardware)

    def without_faults(self, best: BestLayout, known: Sequence[tuple[Mesh, Layout]], until: float) -> Found:
        """Return the best layout whose `plan.apply` meets no known fault of XLA, or the best of all if each meets one.

        best: a search until a time of `process_time`, with rules that its layout must have and layouts to start from. A layout
        that meets a fault has dimensions that cause it. The search runs again with these whole, for a quarter of its time or
        more.
        Raises `NothingFits`.
        """
        from mtfc.compiler.search.found import NothingFits

        def causes(mesh: Mesh, layout: Layout) -> set[str]:
            used = without_idle_axes(mesh, layout)
            return {dim for each in met_faults(self.imported, layout.rules.by_dim, used) for dim in each.dims}

        whole, share = self.unsplit(), (until - process_time()) / 4
        first = found = best(whole, known, until)
        while split := causes(found.mesh, found.layout):
            rules = (*whole.rules.axes, *((dim, ()) for dim in sorted(split)))
            whole, known = attrs.evolve(whole, rules=Rules(rules)), [x for x in known if not causes(*x)]
            try:
                found = best(whole, known, max(until, process_time() + share))
            except NothingFits:
                found = first
            if found.is_interrupted or split & causes(found.mesh, found.layout):
                found = first
                break
        split_rules = Rules(tuple((dim, axes) for dim, axes in found.layout.rules.axes if axes))
        return attrs.evolve(found, layout=attrs.evolve(found.layout, rules=split_rules))

    def unsplit(self) -> Layout:
        """Return rules that leave whole the words of random keys, and dimensions that no argument has: rules have made these."""
        keys = (x for step in self.imported.steps if step.has_keys for x in (*step.operands, *step.results))
        words = {dim.name for x in keys if x.key for dim in self.imported.dims_of(x)[-1]}
        others = [name for name in self.program.dims if name in words or name not in self.dims]
        return Layout("", Rules(tuple((name, ()) for name in others)))

    @public
    def load(self, path: str) -> Plan:
        """Return the plan that `Plan.save` wrote to a file. If it was for other sizes, a message says what was checked.

        Raises `ValueError` if the file is no plan, or the plan of a program with other arguments, or if it splits a dimension
        that does not divide evenly, and `OSError`.
        """
        return Plan(self.imported, self.loaded(path), self.function)

    def loaded(self, path: str) -> LayoutOnMesh:
        """Return the mesh and the layout of a plan's file. Raises `UsageError`."""
        case, program, sizes = read_plan(path)
        if program != structure(self.program):
            unknown = [name for name in case.layout.rules.by_dim if name not in self.dims]
            why = "with other arguments, or other names of dimensions, or is of another version of mtfc"
            if unknown:
                why = f"with the dimensions {', '.join(unknown)}, and this one has {', '.join(self.dims)}"
            raise UsageError(
                f"{path} is the plan of a program {why}: make it again by `program.plan` or `program.search`"
            )
        if sizes != argument_sizes(self.program):
            say(check_sizes(case, sizes, self.program, path))
        return case

    @public
    def verify(
        self, plan: Plan, *args: Any, seed: int = 0, budget: float | None = None, **kwargs: Any
    ) -> PlanVerification:
        """Compare the plain function, `plan.apply` and `plan.step` on random arguments, or on given ones.

        The program of `plan.step` is compared over a finite field, too, without rounding. Needs as many devices as the plan has;
        virtual ones do. Programs run in a process of their own; those beyond `budget` seconds are not compared.
        """
        from mtfc.driver.jax_functions.comparison import verified

        if not isinstance(plan, Plan) or plan.imported is not self.imported:
            raise UsageError(
                "`verify` takes a plan of this program: make it by `program.plan`, `search` or `load`"
            )
        return verified(plan, args, kwargs, seed, budget=budget)


def _in_python(error: CompileError, texts: Mapping[str, str]) -> CompileError:
    """Return an error with the user's lines, and with options as arguments of a call. texts: those of options."""
    sources = Sources()
    sources.texts |= readable_texts(place.file for each in error.diagnostics for place in each.spans)
    sources.texts |= texts
    return CompileError(sources.shown(map(diagnostic_in_python, error.diagnostics)))


def _lists_of_numbers(function: Callable[..., Any], args: Sequence[Any]) -> str | None:
    """Return what to pass in place of the first argument that is a list of Python numbers; None if there is none."""
    for name, value in zip(argument_names(function, len(args)), args, strict=True):
        if isinstance(value, (list, tuple)) and value and all(isinstance(x, (int, float)) for x in value):
            return (
                f"argument {name} is {value!r}, a {type(value).__name__} of Python numbers: pass an array, such as "
                f"`jnp.asarray({value!r})`, or for an array of this shape `jax.ShapeDtypeStruct({value!r}, jnp.float32)`"
            )
    return None


def _of_parts(layout: str, inputs: Iterable[Leaf], mesh: Mesh) -> str:
    """Return a layout in which `rows: data` is a rule of `rows_a` or `rows_b`, where the function parts `rows` into these.

    A mesh axis splits the first part that it divides, so what it splits is as contiguous as can be.
    """
    axes = (dims for leaf in inputs for dims in leaf.dims if len(dims) > 1)
    parts = {dims[0].name[:-2]: dims for dims in axes if dims[0].name.endswith("_a")}

    def rules(match: re.Match[str]) -> str:
        """Return the rules of a dimension's parts that stand for its rule: each axis splits the first part that it divides."""
        left = {dim.name: dim.size for dim in parts[match[1]] if dim.name[:-2] == match[1]}
        split: dict[str, list[str]] = {name: [] for name in left}
        for axis in re.findall(r"\w+", match[2]):
            size = mesh.sizes.get(axis, 1)
            chosen = next((name for name in left if left[name] % size == 0), next(iter(left)))
            split[chosen].append(axis)
            left[chosen] //= size
        used = [name for name in split if split[name]] or [*split][:1]
        return ", ".join(f"{name}: ({', '.join(split[name])})" for name in used)

    known = {dim.name for leaf in inputs for dim in leaf.flat_dims}
    names = "|".join(map(re.escape, sorted(parts.keys() - known)))
    return re.sub(rf"\b({names})\s*:\s*(\([^)]*\)|\w+\b)", rules, layout) if names else layout


def mesh_of(text: str) -> Mesh:
    """Return the mesh that a text spells out. Raises `CompileError`."""
    return parse_mesh(text, elaborate(parse("", "<dims>", Diagnostics()), Diagnostics()))


def _meshes(devices: int | None, target: str) -> tuple[Mesh, ...]:
    """Return all shapes of a mesh. Raises `UsageError` if the number of devices is unknown."""
    from mtfc.driver.searching.space import MOST_AXES, meshes

    if devices is None:
        raise UsageError(f"{target} has room for any number of devices: say how many with `devices`")
    return tuple(meshes(devices, MOST_AXES))


def imported_program(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    names: Mapping[str, str] | None,
    parameters: Sequence[int] | None,
    merge: bool,
) -> ImportedProgram:
    """Import a function. Raises `CompileError`, `UsageError` for wrong options, and `Unavailable` if JAX is missing."""
    import_jax()
    if _lacks_variables(function, args):
        raise UsageError(
            "a Flax module takes its variables first: `variables = model.init(jax.random.key(0), x)`, and then "
            "`from_jax(model.apply, variables, x)`"
        )
    args, kwargs = by_place(function, args, kwargs)
    if not callable(function):
        raise UsageError(f"`from_jax` takes a function of JAX first, and found {function!r}")
    is_mapping = names is None or isinstance(names, Mapping)
    if not is_mapping or not all(isinstance(x, str) for item in (names or {}).items() for x in item):
        raise UsageError(
            "`names` are texts by texts, such as {'ids': 'batch length'}, with `_` for a dimension without a name; an argument "
            "of this name of the function's own is given by its place"
        )
    given = () if parameters is None else parameters
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(type(x) is int for x in given):
        raise UsageError(f"`parameters` are numbers of arguments, such as (0,), and not {parameters!r}")
    wrong = [x for x in given if not 0 <= x < len(args)]
    if wrong:
        raise UsageError(
            f"`parameters` has {wrong[0]}, and the function gets {len(args)} positional arguments, numbered from 0"
        )
    try:
        with few_collections():
            found = imported(function, args, kwargs, names or {}, parameters, merge)
    except (CompileError, TypeError, AttributeError) as error:
        if unlike := _lists_of_numbers(function, args):
            raise UsageError(f"{unlike} ({str(error).partition(chr(10))[0]})") from None
        if not isinstance(error, CompileError):
            raise
        raise _in_python(error, {}) from None
    return ImportedProgram(found, found.flat.function)


def _lacks_variables(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """True for a Flax linen module that is not bound, and for its `apply` with another first argument than variables."""
    module = getattr(function, "__self__", function)
    if not hasattr(module, "init_with_output"):
        return False
    if module is function:
        return getattr(module, "scope", None) is None
    return function.__name__ == "apply" and bool(args) and not isinstance(args[0], Mapping)


ARGS = "a tuple of example arguments, or (args, kwargs), or a function that returns them"

NAMES = "a dict such as {'ids': 'batch length'}, or a function that returns it"

LARGEST = 2**24
"""The most bytes of a file of names."""


@attrs.frozen(slots=False)
class FunctionSource:
    """A function of JAX and the options of `mtfc.from_jax`.

    function, args: `MODULE:NAME`. names: a JSON file, or `MODULE:NAME`. parameters: the numbers of the arguments that hold the
    model. merge: True to give all copies of a layer the same layout.
    """

    function: str
    args: str
    names: str | None = None
    parameters: Sequence[int] | None = None
    merge: bool = True

    def example(self, function: Callable[..., Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the example arguments of the function, positional and named. Raises `UsageError`."""
        return _arguments(self._value(self.args, "--args", ARGS), function, f"--args {self.args}")

    @cached_property
    def imported(self) -> ImportedProgram:
        """The imported function. Raises `CompileError` and `UsageError`."""
        from mtfc.backends.common.devices import import_jax
        from mtfc.frontend.jaxpr.tracing import by_place

        import_jax()
        with redirect_stdout(sys.stderr):  # standard output is for results alone
            function = imported_function(self.function, "", "a function of JAX")
            args, kwargs = self.example(function)
            names = self._names()
            self._check_parameters(len(by_place(function, args, kwargs)[0]))
            try:
                with doing(f"importing {self.function}"):
                    return imported_program(function, args, kwargs, names, self.parameters, self.merge)
            except (CompileError, UsageError):
                raise
            except Exception as error:
                if _is_ours(error):
                    raise
                with explained(f"tracing {self.function}"):
                    raise

    def _value(self, spec: str, option: str, expected: str) -> Any:
        """Import a value, and call it if it is a function."""
        value = imported_value(spec, option, expected, "VALUE")
        if not callable(value):
            return value
        with explained(f"{option} {spec}"):
            return value()

    def _names(self) -> Mapping[str, str]:
        """Return the names of dimensions. Raises `UsageError`."""
        if self.names is None:
            return {}
        if is_function(self.names):
            found = self._value(self.names, "--names", NAMES)
        else:
            with raised_as(UsageError, f"--names {self.names}: expected JSON", ValueError):
                found = parsed_json(read_bytes(self.names, LARGEST))
        if not isinstance(found, Mapping) or not all(
            isinstance(x, str) for item in found.items() for x in item
        ):
            example = '{"ids": "batch length"}'
            raise UsageError(f"--names {self.names}: expected texts by texts, such as {example}")
        return found

    def _check_parameters(self, number: int) -> None:
        """Raise `UsageError` if `--parameters` has the number of no argument. number: the number of all arguments."""
        wrong = [each for each in self.parameters or () if each >= number]
        if wrong:
            raise UsageError(
                f"--parameters {wrong[0]}: {self.function} gets {number} arguments, numbered from 0"
            )

    @property
    def program(self) -> Program:
        return self.imported.program

    @property
    def declarations(self) -> str:
        return "".join(f"dim {name} = {size}\n" for name, size in self.imported.dims.items())

    @property
    def warnings(self) -> Sequence[Diagnostic]:
        return self.imported.imported.warnings()

    def without_faults(self, best: BestLayout, known: Sequence[tuple[Mesh, Layout]], until: float) -> Found:
        """Search as `ImportedProgram.without_faults`, and name the known faults that the found layout still meets."""
        from mtfc.driver.jax_functions.xla_faults import met_faults

        found = self.imported.without_faults(best, known, until)
        for each in met_faults(self.imported.imported, found.layout.rules.by_dim, found.mesh):
            say(f"plan.apply has a known fault: {each}")
        return found

    @property
    def texts(self) -> Mapping[str, str]:
        """The texts of the Python files that equations and the errors of an import point into."""
        try:
            functions = self.program.functions
            spans = {eqn.span for f in functions for eqn in walk(f.body)}
            spans |= {a.span for f in functions for a in f.arguments}
        except CompileError as error:
            spans = {span for each in error.diagnostics for span in each.spans}
        except UsageError:
            return {}
        return readable_texts(span.file for span in spans if span is not None)

    def planned(self, path: str) -> tuple[Mesh, Layout, Recompute | None]:
        case = self.imported.loaded(path)
        return case.mesh, case.layout, case.limit

    def plan(self, case: LayoutOnMesh) -> Plan:
        """Return the plan of a layout."""
        from mtfc.driver.jax_functions.plan import Plan

        return Plan(self.imported.imported, case, self.imported.function)

    def plan_text(self, mesh: Mesh, layout: Layout) -> str:
        return self.plan(LayoutOnMesh(mesh, layout)).text()


def is_function(text: str) -> bool:
    """True for `MODULE:NAME`, if no file has this name."""
    return FUNCTION.fullmatch(text) is not None and not Path(text).exists()


def _arguments(
    value: Any, function: Callable[..., Any], name: str
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the positional and the named arguments.

    A tuple of a tuple and a dict is (args, kwargs) if the function takes arguments of these names. Raises `UsageError`.
    """
    if not isinstance(value, tuple):
        raise UsageError(f"{name}: found {kind_of_value(value)}; expected {ARGS}")
    given: tuple[tuple[Any, ...], Mapping[str, Any]] = (value, {})
    is_pair = len(value) == 2 and isinstance(value[0], tuple) and isinstance(value[1], dict)
    if is_pair and all(isinstance(key, str) for key in value[1]) and _takes(function, *value):
        given = value[0], value[1]
    if not _takes(function, *given):
        signature = f"{inspect.signature(function)}"
        raise UsageError(
            f"{name}: {_count(given)} do not fit {getattr(function, '__name__', 'the function')}{signature}"
        )
    return given


def _count(given: tuple[Sequence[Any], Mapping[str, Any]]) -> str:
    """Return positional and named arguments in words: `2 arguments, mask`."""
    number = len(given[0])
    named = "".join(f", {name}" for name in given[1])
    return f"{number} argument{'s' * (number != 1)}{named}"


def _is_ours(error: Exception) -> bool:
    """True if the innermost code outside of libraries is mtfc's own: the error is a bug of mtfc."""
    from mtfc.frontend.jaxpr.user_lines import is_library

    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    own = [file for file in files if file.startswith(OWN) or not is_library(file)]
    return bool(own) and own[-1].startswith(OWN)


def _takes(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return True if a function can be called with these arguments; True, too, if it does not tell its parameters."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a function without a signature
        return True
    return True
