"""The package's functions and the objects that they return; `mtfc/__init__.py` imports them on demand.

Every record comes from the driver function that the command calls for `--format json`, so both agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, wraps
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

import attrs

from mtfc.backends.registry import BACKENDS
from mtfc.compiler.cost.hardware import Machine
from mtfc.compiler.diagnostics import CompileError, Diagnostic
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.driver.errors import UsageError, diagnostic_in_python, public
from mtfc.driver.loading.cases import MultiMeshCase
from mtfc.driver.loading.choice import Choice, settings_of
from mtfc.driver.loading.selection import Case, LayoutOnMesh, choose
from mtfc.driver.loading.sources import Sources, showing
from mtfc.driver.options import SearchOptions, VerifyOptions
from mtfc.driver.running import execution
from mtfc.driver.values import (
    LayoutOption,
    MemoryOption,
    MeshOption,
    PassesOption,
    PathOption,
    file_option,
    layout_option,
    memory_option,
    mesh_option,
    names_option,
    number_option,
    one_of,
    passes_option,
    path_option,
    program_text,
    seconds_option,
    settings_option,
    sizes_option,
    target_option,
    text_option,
)
from mtfc.frontend.syntax.lexer import decode

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import Arrays, JaxProgram, TrainState
    from mtfc.driver.jax_functions.imported_program import ImportedProgram
    from mtfc.driver.records import Costs, Difference, Explanation, LayoutCost, Search, Step, Verification
    from mtfc.driver.report import Drawing, ReportPage
    from mtfc.reports.inspection import Inspection

P = ParamSpec("P")
R = TypeVar("R")


class ModelChoice(TypedDict, total=False):
    """The options that choose a model, its sizes and its mesh."""

    model: str | None
    mesh: MeshOption | None
    dims: Mapping[str, int] | None
    set: Mapping[str, object] | None


class ProgramOptions(ModelChoice, total=False):
    """The options that choose a model, and one of its layouts."""

    layout: LayoutOption | None


class LoweringOptions(ProgramOptions, total=False):
    """The options of functions that lower a program."""

    memory: MemoryOption | None


class CompilationOptions(LoweringOptions, total=False):
    """The options of functions that lower a program by passes of the user."""

    passes: PassesOption | None


@attrs.frozen(repr=False, eq=False)
class Compiled:
    """A model compiled for one layout: the program of one processor, in every form. machines: the machines of its file.

    The layout may have several meshes, or be a placement: then no single program stands for all processors, but the model runs
    the same way. `init`, `train_step`, `value_and_grad` and `forward` run on JAX's devices:

    >>> import jax, numpy, mtfc
    >>> p = mtfc.compile("examples/two_layer.mtf", layout="hybrid")
    >>> state = p.init(seed=0)
    >>> state
    <TrainState after step 0: 3 parameters, 0 arrays of the optimizer>
    >>> batch = {name: numpy.ones((64, 128), "float32") for name in ("x", "target")}
    >>> state, metrics = p.train_step(state, batch)
    >>> print(f"{metrics['loss']:.2f}", state.params["w"].sharding.spec)
    1.14 P(None, 'cols')

    Batches are whole arrays; with several processes also the part of a process. Two compiled models are equal only if they are
    the same object.
    """

    machines: Mapping[str, Machine]
    _placed: Program
    _case: Case

    @cached_property
    @public
    def program(self) -> Program:
        """The program of one processor: its forward pass, and its training step if the file trains the model.

        Raises `ValueError` for a placement and for a layout of several meshes.
        """
        if isinstance(self._case, LayoutOnMesh):
            return self._case.lower(self._placed)
        raise UsageError(
            f"`{self._case.name}` is {self._case.kind}, whose processors run different programs: `jax()` returns them all"
        )

    def __repr__(self) -> str:
        from mtfc.reports.notebook import line, summary_line

        if isinstance(self._case, LayoutOnMesh):
            return line(self.program)
        return summary_line(self._placed, self._case.summary)

    def _repr_html_(self) -> str:
        from mtfc.reports.notebook import html, preformatted

        return html(self.program) if isinstance(self._case, LayoutOnMesh) else preformatted(repr(self))

    @public
    def ir(self) -> str:
        """Return the program as IR text; of several meshes, the program of each segment."""
        if isinstance(self._case, MultiMeshCase):
            return "\n".join(self._case.segment_texts(self._placed))
        return print_program(self.program)

    @public
    def numpy(self) -> str:
        """Return the text of a NumPy module that simulates every processor. Raises `ValueError` for a placement."""
        return self._source("numpy")

    @public
    def jax(self) -> str:
        """Return the text of a JAX module that runs on the mesh, or on all meshes or devices."""
        return self._source("jax")

    def _source(self, backend: str) -> str:
        return self._case.source(self._placed, backend, "module")

    @public
    def load(self, backend: str = "numpy") -> ModuleType:
        """Load the module of a backend, `"numpy"` or `"jax"`, ready to run; `mtfc.backends.common.emitter` lists its contents.

        Raises `Unavailable` if JAX is missing or has too few devices, and `ValueError` for a placement on NumPy.
        """
        one_of("backend", backend, tuple(BACKENDS))
        return cast(ModuleType, execution.loaded(self._source(backend), backend))

    @cached_property
    def _on_devices(self) -> JaxProgram:
        """The program on JAX's devices. Raises `Unavailable`."""
        return execution.jax_program(self._source("jax"))

    @property
    def abstract_state(self) -> TrainState:
        """The training state as `jax.ShapeDtypeStruct`s with shardings, which a checkpoint can be restored into."""
        return self._on_devices.abstract_state

    @public
    def whole(self, state: TrainState) -> TrainState:
        """Return the state with whole arrays, as checkpoints have it. Only under a placement they are in pieces before.

        `train_step` and `forward` take whole arrays, too.
        """
        return self._on_devices.stored(state)

    @public
    def init(self, seed: int = 0) -> TrainState:
        """Return the state before the first step: a pytree of `jax.Array`s with a `NamedSharding` each.

        Every device draws only its own part, and every layout draws the same numbers. Raises `Unavailable` if JAX is missing or
        has too few devices.
        """
        number_option("seed", seed, 0, 2**32 - 1)
        return self._on_devices.init(seed)

    @public
    def train_step(self, state: TrainState, batch: Arrays) -> tuple[TrainState, dict[str, Any]]:
        """Return the state after one more training step, and by name the loss, the reported and the watched values.

        The given state is donated: use the returned one. batch: the inputs by name; with `accumulate = K` their first dimension
        is K. Works under `jax.jit`. Raises `ValueError` for a model without a `train` block, and for arrays that do not fit.
        """
        self._check_trained("train_step")
        return self._on_devices.train_step(state, batch)

    @public
    def averaged(self, state: TrainState) -> dict[str, Any]:
        """Return the parameters for `forward`, with the averages of those that are trained.

        Raises `ValueError` unless the `train` block has an entry `average`.
        """
        self._check_trained("averaged")
        training = self._placed.training
        if training is None or training.average is None:
            raise UsageError("`averaged` needs an entry `average = 0.999` in the `train` block")
        return self._on_devices.averaged(state)

    @public
    def value_and_grad(
        self, params: Arrays, batch: Arrays, step: Any = 0, **options: bool
    ) -> tuple[Any, dict[str, Any]]:
        """Return the loss of a training step, and its gradients by parameter, split like the parameters.

        So another library, such as optax, can update the parameters. step: the number of the step, from 0, for random draws and
        schedules. options: `accumulate=True` and `clip=True`, if the file has these entries; `with_state=True` if the model has
        state: then the first result is a pair of the loss and the parameters with the new state.
        """
        self._check_trained("value_and_grad")
        return self._on_devices.value_and_grad(params, batch, step, **options)

    @public
    def forward(self, params: Arrays, batch: Arrays) -> dict[str, Any]:
        """Return the outputs of the model by name, outside of training.

        `jax.jit`, `jax.grad` and `jax.vmap` work on this function. Under `jax.vmap` each device computes its part of every
        element, so a mapped dimension is not split.
        """
        return self._on_devices.forward(params, batch)

    @public
    def place(self, batch: Arrays, stacked: bool = False) -> dict[str, Any]:
        """Return a batch on the devices, split as `forward` takes it; `stacked`: as `train_step` takes it.

        The other functions place their batches by themselves. Placing the next batch ahead hides the copy to the devices.
        """
        program = self._on_devices
        return program.place(batch, program.step_inputs if stacked else "inputs")

    def _check_trained(self, name: str) -> None:
        """Raise `UsageError` if the model is not trained. name: the method that needs a training step."""
        if self._placed.training is None:
            model = self._placed.name
            raise UsageError(
                f"`{name}` needs a `train {model}` block, which the file of model `{model}` lacks"
            )

    @public
    def draw(self, *arrays: str) -> Drawing:
        """Draw which part of each array the devices hold, as `mtfc draw` does; a notebook shows the drawing.

        arrays: names, or nothing for the parameters and the values that the file names.
        """
        from mtfc.driver.report import case_drawing, program_drawing

        if isinstance(self._case, LayoutOnMesh):
            return program_drawing(self.program, arrays)
        return case_drawing(self._case, self._placed, arrays)

    @public
    def cost(self) -> LayoutCost:
        """Return the computation, communication and memory of one device, as in the output of `mtfc cost --format json`.

        Raises `ValueError` for a placement, whose bytes are in the record of `simulate`.
        """
        from mtfc.compiler.cost.volumes import layout_cost
        from mtfc.driver.simulate import case_cost
        from mtfc.reports.cost_report import layout_json

        if not isinstance(self._case, LayoutOnMesh):
            return cast("LayoutCost", case_cost(self._case, self._placed))
        return cast("LayoutCost", layout_json(layout_cost(self.program, device=self._case.device)))

    @public
    def simulate(self, target: str | PathLike[str]) -> Step:
        """Predict the time of a step on a machine: the record of `mtfc simulate --format json`.

        The keys are `step_seconds`, `exposed_communication_seconds`, `utilisation`, `memory_per_device` and more. target: a
        machine of the file or of the library, or the path of a .mtf file that declares one. Raises `CompileError` for an unknown
        machine, and for a machine with too few devices.
        """
        from mtfc.driver.loading.target import target_of
        from mtfc.driver.simulate import simulate_case, simulate_program

        target, sources = target_option(target), Sources()
        with showing(sources):
            if not isinstance(self._case, LayoutOnMesh):
                other = simulate_case(self._case, self._placed, self.machines, target, sources)
                return cast("Step", other.record())
            hardware = target_of(target, self.machines, sources)
            return cast("Step", simulate_program(self.program, hardware, target).record())


@attrs.frozen(repr=False)
class Checked(Sequence[Diagnostic]):
    """The diagnostics of a file, in source order; `str` returns the text that `mtfc check` shows."""

    file: str
    diagnostics: tuple[Diagnostic, ...]

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(each for each in self.diagnostics if each.severity == "error")

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(each for each in self.diagnostics if each.severity == "warning")

    @property
    def ok(self) -> bool:
        """True if the file can be compiled; warnings do not count."""
        return not self.errors

    @overload
    def __getitem__(self, index: int) -> Diagnostic: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Diagnostic, ...]: ...
    def __getitem__(self, index: int | slice) -> Diagnostic | tuple[Diagnostic, ...]:
        return self.diagnostics[index]

    def __len__(self) -> int:
        return len(self.diagnostics)

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self.diagnostics), self._verdict()])

    def __repr__(self) -> str:
        return f"<Checked {self._verdict()}>"

    def _repr_html_(self) -> str:
        from mtfc.reports.notebook import preformatted

        return preformatted(str(self))

    def _verdict(self) -> str:
        """Return the file, and the number of its errors and warnings in words."""
        from mtfc.driver.check import verdict

        return f"{self.file}: {verdict(self.diagnostics)}"


def choice_of(**options: Unpack[CompilationOptions]) -> Choice:
    """Return the driver's options for those of the API. Raises `UsageError` for an illegal value."""
    return Choice(
        text_option("model", options.get("model")),
        layout_option(options.get("layout")),
        mesh_option(options.get("mesh")),
        sizes_option(options.get("dims")),
        settings_of(settings_option(options.get("set"))),
        passes_option(options.get("passes")),
        memory=memory_option(options.get("memory")),
    )


def _taking(options: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function of the API that takes the keywords of a `TypedDict` as `**options`, and refuses others by its own name."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        declared = signature(function)
        *first, last = declared.parameters.values()
        keywords = [
            Parameter(name, last.KEYWORD_ONLY, default=None, annotation=hint.__forward_arg__)
            for name, hint in options.__annotations__.items()
        ]
        parameters = sorted([*first, *keywords], key=lambda each: each.kind)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in allowed:
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
            return function(*args, **kwargs)

        allowed = {each.name for each in parameters}
        call.__signature__ = declared.replace(parameters=parameters)  # type: ignore[attr-defined]
        return public(call)

    return decorated


@public
def from_jax(
    function: Callable[..., Any],
    *args: Any,
    names: Mapping[str, str] | None = None,
    parameters: Sequence[int] | None = None,
    merge: bool = True,
    **kwargs: Any,
) -> ImportedProgram:
    """Import a JAX function: a forward pass, a loss, its gradient, or a whole training step. Nothing is computed.

    args, kwargs: example arguments, arrays or `jax.ShapeDtypeStruct`s in any pytrees. names: names for dimensions, by the place
    of an argument's array: `{"ids": "batch length", "**/up/kernel": "embed hidden"}`. parameters: the numbers of the arguments
    that hold the model, by default the first of several and all that the function returns anew. merge: True to give all copies
    of a layer the same layout.

    Raises `CompileError`.
    """
    from mtfc.driver.jax_functions.imported_program import imported_program

    return imported_program(function, args, kwargs, names, parameters, merge)


def _read(path: PathOption) -> str:
    """Return a .mtf file's text. Raises `OSError`, and `CompileError` for a file that is not text."""
    with showing(Sources()):
        return decode(Path(path).read_bytes(), str(path))


@_taking(ProgramOptions)
def check(path: PathOption, **options: Unpack[ProgramOptions]) -> Checked:
    """Return all diagnostics of a .mtf file, under every declared layout or under one.

    Each has `code`, `severity`, `message`, `file`, `line`, `column`, `help` and `labels`. `str` of one diagnostic, or of all,
    is the text that `mtfc check` shows.
    """
    choice, file = choice_of(**options), file_option(path)
    try:
        text = _read(path)
    except CompileError as error:  # the file is not text
        return Checked(file, error.diagnostics)
    return _checked(text, file, choice)


@_taking(ProgramOptions)
def check_text(text: str, *, file: str = "<text>", **options: Unpack[ProgramOptions]) -> Checked:
    """Return all diagnostics of the text of a .mtf file. `file` is the name in messages; imports are read from its folder."""
    return _checked(text, file, choice_of(**options))


def _checked(text: str, file: PathOption, choice: Choice) -> Checked:
    """Return the result of a check of some text. file: its name, beside which modules are looked for."""
    from mtfc.driver.check import check_source

    file, sources = file_option(file), Sources()
    sources.texts[file] = program_text(text)
    found = map(diagnostic_in_python, check_source(file, choice, sources))
    return Checked(file, tuple(sources.shown(found)))


@_taking(CompilationOptions)
def compile(path: PathOption, **options: Unpack[CompilationOptions]) -> Compiled:
    """Compile a .mtf file for one layout, by default its first.

    passes: the passes that lower the program, in place of the default ones, as text or as `mtfc.ir.Pass`es. memory: the most
    memory of a device, such as `"80GiB"` or a number of bytes; the backward pass computes values again that would not fit.
    """
    choice, file = choice_of(**options), file_option(path)
    return _compiled(_read(file), file, choice)


@_taking(CompilationOptions)
def compile_text(text: str, *, file: str = "<text>", **options: Unpack[CompilationOptions]) -> Compiled:
    """Compile the text of a .mtf file. `file` is the name in messages; imports are read from its folder."""
    return _compiled(text, file, choice_of(**options))


def _compiled(text: str, file: PathOption, choice: Choice) -> Compiled:
    """Compile a file's text for the first chosen layout, or for a placement."""
    file, sources = file_option(file), Sources()
    sources.add_choice(choice)
    sources.texts[file] = program_text(text)
    with showing(sources):
        selection = choose(
            text, file, choice, neighbour=sources.neighbour, or_placement=True, or_multi_mesh=True
        )
        case = selection.case
        return Compiled(selection.hardware, case.placed(selection.program), case)


@_taking(CompilationOptions)
def verify(
    path: PathOption,
    *,
    backend: str | None = None,
    dtype: str | None = None,
    data: PathOption | None = None,
    params: PathOption | None = None,
    params_partial: bool = False,
    seed: int = 0,
    exact: bool = True,
    budget: float | None = None,
    step: bool = False,
    all_sizes: bool = False,
    **options: Unpack[CompilationOptions],
) -> Verification:
    """Compare every layout, or one, on every backend with the undistributed program: the record of `mtfc verify --format json`.

    Inputs and parameters are drawn from `seed`, unless `data` and `params` name files with them. With `params_partial`,
    parameters that the file lacks are drawn. `exact` compares over a finite field first. `step` compares the training step with
    its declaration, and nothing else; `all_sizes` runs the exact check alone, at small sizes that speak for every size. `dtype`,
    `"f32"` or `"f64"`, is the dtype of the whole computation, if given. Checks run in a process of their own; those beyond
    `budget` seconds are skipped.
    Raises `Unavailable` if JAX is missing or has too few devices.
    """
    from mtfc.backends.common.devices import setting_kept
    from mtfc.driver.verification.verify import verify as verified

    choice, files = choice_of(**options), (path_option("data", data), path_option("params", params))
    arrays = (*files, params_partial, seed)
    asked = VerifyOptions(file_option(path), choice, *arrays, backend, dtype, exact, budget, step, all_sizes)
    if budget is not None:
        seconds_option("budget", budget)
    one_of("backend", backend or "numpy", tuple(BACKENDS))
    one_of("dtype", dtype or "f32", ("f32", "f64"))
    number_option("seed", seed, 0, 2**32 - 1)
    # `verify` raises the precision of JAX's dots for the whole process
    kept = nullcontext() if all_sizes or backend == "numpy" else setting_kept("jax_default_matmul_precision")
    with kept, showing(sources := Sources()):
        return cast("Verification", verified(asked, sources).record())


@_taking(LoweringOptions)
def explain(path: PathOption, **options: Unpack[LoweringOptions]) -> Explanation:
    """Explain which rule of a layout causes which collective, through which lines: the record of `mtfc explain --format json`."""
    from mtfc.driver.simulate import explain as explained

    choice = choice_of(**options)
    with showing(sources := Sources()):
        return cast("Explanation", explained(file_option(path), choice, sources).record())


@_taking(ModelChoice)
def diff(
    path: PathOption,
    a: LayoutOption | None = None,
    b: LayoutOption | None = None,
    *,
    memory: MemoryOption | None = None,
    target: PathOption | None = None,
    **options: Unpack[ModelChoice],
) -> Difference:
    """Compare computation, communication and memory of two layouts, by line: the record of `mtfc diff --format json`.

    The layouts are by default the file's first two. With a machine as `target` the record has seconds, too.
    """
    from mtfc.driver.simulate import diff as compared

    choice = choice_of(**options, memory=memory)
    if (a is None) != (b is None):
        raise UsageError(
            "diff compares two layouts, or the first two of the file: give both a and b, or neither"
        )
    file, machine = file_option(path), path_option("target", target)
    layouts = [text for text in map(layout_option, (a, b)) if text is not None]
    with showing(sources := Sources()):
        return cast("Difference", compared(file, choice, layouts, machine, sources).record())


@_taking(LoweringOptions)
def cost(path: PathOption, *, symbolic: bool = False, **options: Unpack[LoweringOptions]) -> Costs:
    """Return computation, communication and memory of one device under every layout, or one: the record of `mtfc cost --format
    json`.

    With `symbolic` each layout has its formulas, too.
    """
    from mtfc.driver.simulate import model_costs

    choice = choice_of(**options)
    with showing(sources := Sources()):
        return cast("Costs", model_costs(file_option(path), choice, sources, symbolic).record())


@_taking(CompilationOptions)
def inspect(path: PathOption, target: str = "cpu", **options: Unpack[CompilationOptions]) -> Inspection:
    """Compile the step of a .mtf file under a layout for a target, and return its memory, FLOPs and collectives.

    target: `"cpu:8"`, `"tpu_v5e"`, a topology of TPUs such as `"v5p:4x4x4"`, or `"gpu"`. Print the result for tables beside the
    prediction; `record()` is that of `mtfc inspect --format json`. Raises `Unavailable` where the target cannot be compiled for,
    and `ValueError` for an unknown one.
    """
    from mtfc.driver.inspect import inspect as inspected

    choice = choice_of(**options)
    with showing(sources := Sources()):
        found = inspected(file_option(path), target_option(target), choice, sources)
        return attrs.evolve(found, texts=sources.with_library())


@_taking(ProgramOptions)
def report(
    path: PathOption,
    *,
    target: PathOption | None = None,
    search: float | None = None,
    **options: Unpack[ProgramOptions],
) -> ReportPage:
    """Return the page of `mtfc report`: a model under every layout, or one, or the training run of a folder.

    `report.save("report.html")` writes the page, and a notebook shows it. target: the machine of predicted times. search: seconds
    to search for the best layout, which is then shown, too.
    """
    from mtfc.driver.report import is_run, layouts_page, run_page

    choice, file, machine = choice_of(**options), file_option(path), path_option("target", target)
    if search is not None:
        seconds_option("search", search)
    if is_run(file):
        return run_page(file)
    with showing(sources := Sources()):
        return layouts_page(file, choice, sources, machine, search)


@_taking(LoweringOptions)
def search(
    path: PathOption,
    *,
    target: PathOption | None = None,
    devices: int | None = None,
    axes_names: Sequence[str] | None = None,
    space: str = "plan",
    objective: str | None = None,
    budget: float = 60.0,
    exhaustive: bool = False,
    **options: Unpack[LoweringOptions],
) -> Search:
    """Search for the best layout, or in the space `"soap"` for the best placement, of a .mtf file's model on a machine.

    The record is that of `mtfc search --format json`, with seconds and bytes of one device. Without a `target`, the machine is
    the first that the file declares, else `"h100"`. `layout` is for the space `"forms"`, which keeps its rules. `axes_names` are
    names for the axes of searched meshes, `budget` is in seconds, and `memory` is that of a device, in place of the machine's.
    Raises `NothingFits` if no layout fits into memory.
    """
    from mtfc.compiler.search.found import VALUES
    from mtfc.driver.searching.search import SPACES
    from mtfc.driver.searching.search import search as searched
    from mtfc.driver.searching.space import MOST_DEVICES
    from mtfc.reports.notebook import ShownRecord

    choice = choice_of(**options)
    one_of("space", space, SPACES)
    if objective is not None:
        one_of("objective", objective, VALUES)
    number_option("devices", devices, 1, MOST_DEVICES)
    seconds_option("budget", budget)
    asked = SearchOptions(
        file_option(path),
        choice,
        None if target is None else target_option(target),
        devices,
        axes_names=names_option("axes_names", axes_names),
        space=space,
        objective=objective,
        budget=budget,
        exhaustive=exhaustive,
    )
    with showing(sources := Sources()):
        found = searched(asked, sources)
    return cast("Search", ShownRecord(found.result.record(), found.result.report))
