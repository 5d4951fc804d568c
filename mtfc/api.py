"""Implementation of the package's functions and of the objects that they return: see `mtfc/__init__.py`.

Every record comes from the driver function that the command calls for `--format json`, so both agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast, overload

import attrs

from mtfc.backends.registry import BACKENDS
from mtfc.compiler.cost.device_graph import Machine
from mtfc.compiler.diagnostics import CompileError, Diagnostic
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.printer import print_program
from mtfc.driver.errors import UsageError, diagnostic_in_python, public
from mtfc.driver.loading.choice import Choice, settings_of
from mtfc.driver.loading.multi_mesh_case import MultiMeshCase
from mtfc.driver.loading.placement_case import PlacementCase
from mtfc.driver.loading.selection import Case, LayoutOnMesh, choose
from mtfc.driver.loading.sources import Sources
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
    from mtfc.driver.draw import Drawing
    from mtfc.driver.records import Costs, Difference, Explanation, LayoutCost, Search, Step, Verification
    from mtfc.driver.report import ReportPage

__all__ = [
    "Checked",
    "Compiled",
    "checked",
    "choice_of",
    "compared",
    "compile_case",
    "costs",
    "explained",
    "read",
    "reported",
    "searched",
    "verified",
]


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

    @cached_property
    def _module(self) -> Program:
        """The program with the functions that only modules need, such as `value_and_grad`."""
        assert isinstance(self._case, LayoutOnMesh), "other layouts have no single program"
        return self._case.lower(self._placed, "module")

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
        if isinstance(self._case, LayoutOnMesh):
            return execution.source(self._module, backend)
        if isinstance(self._case, PlacementCase) and backend != "jax":
            name = self._case.name
            raise UsageError(
                f"`{name}` is a placement, which only a JAX module runs; `mtfc.verify` compares it on NumPy, too"
            )
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
        return execution.jax_program(self._case, self._source("jax"))

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
        from mtfc.driver.draw import case_drawing, program_drawing

        if isinstance(self._case, LayoutOnMesh):
            return program_drawing(self.program, arrays)
        return case_drawing(self._case, self._placed, arrays)

    @public
    def cost(self) -> LayoutCost:
        """Return the computation, communication and memory of one device, as in the output of `mtfc cost --format json`.

        Raises `ValueError` for a placement, whose bytes are in the record of `simulate`.
        """
        from mtfc.compiler.cost.volumes import layout_cost
        from mtfc.driver.cost import case_cost
        from mtfc.reports.cost_json import costs_json

        if not isinstance(self._case, LayoutOnMesh):
            return cast("LayoutCost", case_cost(self._case, self._placed))
        (entry,) = costs_json([layout_cost(self.program, device=self._case.device)])["layouts"]
        return cast("LayoutCost", entry)

    @public
    def simulate(self, target: str | PathLike[str]) -> Step:
        """Predict the time of a step on a machine: the record of `mtfc simulate --format json`.

        The keys are `step_seconds`, `exposed_communication_seconds`, `utilisation`, `memory_per_device` and more. target: a
        machine of the file or of the library, or the path of a .mtf file that declares one. Raises `CompileError` for an unknown
        machine, and for a machine with too few devices.
        """
        from mtfc.driver.loading.target import check_room, target_of
        from mtfc.driver.simulate import simulate_case, simulate_layout

        target, sources = target_option(target), Sources()
        with _showing(sources):
            if not isinstance(self._case, LayoutOnMesh):
                other = simulate_case(self._case, self._placed, self.machines, target, sources)
                return cast("Step", other.record())
            hardware = target_of(target, self.machines, sources)
            check_room(hardware, self.program.placed_on, target)
        return cast("Step", simulate_layout(self.program, hardware).record())


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
        from mtfc.driver.check import verdict

        return f"{self.file}: {verdict(self.diagnostics)}"


def read(path: str | PathLike[str]) -> str:
    """Return a .mtf file's text. Raises `OSError`, and `CompileError` for a file that is not text."""
    with _showing(Sources()):
        return decode(Path(path).read_bytes(), str(path))


def choice_of(
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    passes: PassesOption | None = None,
    memory: MemoryOption | None = None,
) -> Choice:
    """Return the driver's options for those of the API. Raises `UsageError` for an illegal value."""
    return Choice(
        text_option("model", model),
        layout_option(layout),
        mesh_option(mesh),
        sizes_option(dims),
        settings_of(settings_option(set)),
        passes_option(passes),
        memory=memory_option(memory),
    )


def compile_case(text: str, file: PathOption, choice: Choice) -> Compiled:
    """Compile a file's text for the first chosen layout, or for a placement. Raises `CompileError`."""
    file, sources = file_option(file), Sources()
    sources.add_choice(choice)
    sources.texts[file] = program_text(text)
    with _showing(sources):
        selection = choose(
            text, file, choice, neighbour=sources.neighbour, or_placement=True, or_multi_mesh=True
        )
        case = selection.case
        if isinstance(case, PlacementCase):
            case.check()
        return Compiled(selection.hardware, case.placed(selection.program), case)


def checked(text: str, file: PathOption, choice: Choice) -> Checked:
    """Return all diagnostics of a file's text."""
    from mtfc.driver.check import check_source

    file, sources = file_option(file), Sources()
    sources.texts[file] = program_text(text)
    found = map(diagnostic_in_python, check_source(file, choice, sources))
    return Checked(file, tuple(sources.shown(found)))


def costs(file: PathOption, choice: Choice, symbolic: bool) -> Costs:
    """Return the record of `mtfc cost`. Raises `CompileError` and `UsageError`."""
    from mtfc.driver.cost import cost_record

    with _showing(sources := Sources()):
        return cast("Costs", cost_record(file_option(file), choice, sources, symbolic))


def explained(file: PathOption, choice: Choice) -> Explanation:
    """Return the record of `mtfc explain`. Raises `CompileError` and `UsageError`."""
    from mtfc.driver.explain import explain_record

    with _showing(sources := Sources()):
        return cast("Explanation", explain_record(file_option(file), choice, sources))


def compared(
    file: PathOption,
    choice: Choice,
    a: LayoutOption | None,
    b: LayoutOption | None,
    target: PathOption | None,
) -> Difference:
    """Return the record of `mtfc diff`. Raises `CompileError` and `UsageError`."""
    from mtfc.driver.diff import diff_record

    if (a is None) != (b is None):
        raise UsageError(
            "diff compares two layouts, or the first two of the file: give both a and b, or neither"
        )
    path, machine = file_option(file), path_option("target", target)
    layouts = [text for text in map(layout_option, (a, b)) if text is not None]
    with _showing(sources := Sources()):
        return cast("Difference", diff_record(path, choice, layouts, machine, sources))


def reported(path: PathOption, choice: Choice, target: PathOption | None, search: float | None) -> ReportPage:
    """Return the page of `mtfc report`. Raises `CompileError`, `UsageError` and `NothingFits`."""
    from mtfc.driver.report import is_run, layouts_page, run_page

    file, machine = file_option(path), path_option("target", target)
    if search is not None:
        seconds_option("search", search)
    if is_run(file):
        return run_page(file)
    with _showing(sources := Sources()):
        return layouts_page(file, choice, sources, machine, search)


def verified(
    file: PathOption, choice: Choice, *, data: PathOption | None, params: PathOption | None, **others: Any
) -> Verification:
    """Return the record of `mtfc verify`. Raises `CompileError`, `UsageError` and `Unavailable`."""
    from mtfc.backends.common.devices import setting_kept
    from mtfc.driver.verification.verify import verify

    paths: dict[str, Any] = {"data": path_option("data", data), "params": path_option("params", params)}
    options = VerifyOptions(file_option(file), choice, **paths, **others)
    if options.budget is not None:
        seconds_option("budget", options.budget)
    one_of("backend", options.backend or "numpy", tuple(BACKENDS))
    one_of("dtype", options.dtype or "f32", ("f32", "f64"))
    number_option("seed", options.seed, 0, 2**32 - 1)
    # `verify` raises the precision of JAX's dots for the whole process
    without_jax = options.backend == "numpy" or options.all_sizes
    kept = nullcontext() if without_jax else setting_kept("jax_default_matmul_precision")
    with kept, _showing(sources := Sources()):
        return cast("Verification", verify(options, sources).record())


def searched(
    file: PathOption,
    choice: Choice,
    *,
    target: PathOption | None,
    axes_names: Sequence[str] | None,
    **others: Any,
) -> Search:
    """Return the record of `mtfc search`. Raises `CompileError`, `UsageError` and `NothingFits`."""
    from mtfc.compiler.search.found import VALUES
    from mtfc.driver.searching.meshes import MOST_DEVICES
    from mtfc.driver.searching.search import SPACES, search
    from mtfc.reports.notebook import ShownRecord

    one_of("space", others["space"], SPACES)
    if others["objective"] is not None:
        one_of("objective", others["objective"], VALUES)
    number_option("devices", others["devices"], 1, MOST_DEVICES)
    seconds_option("budget", others["budget"])
    options = SearchOptions(
        file_option(file),
        choice,
        None if target is None else target_option(target),
        axes_names=names_option("axes_names", axes_names),
        **others,
    )
    with _showing(sources := Sources()):
        found = search(options, sources)
    return cast("Search", ShownRecord(found.record(), found.report))


@contextmanager
def _showing(sources: Sources) -> Iterator[None]:
    """Attach to raised diagnostics the paragraphs that the command shows, with options written as arguments in Python."""
    try:
        yield
    except CompileError as error:
        raise CompileError(sources.shown(map(diagnostic_in_python, error.diagnostics))) from None
