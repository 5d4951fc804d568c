"""A compiler from tensor programs over named dimensions to SPMD programs for a mesh of processors.

    compiled = mtfc.compile("model.mtf", layout={"batch": "rows"})
    print(compiled.ir())                 # one processor's program, with its collectives
    open("model.py", "w").write(compiled.jax())
    print(compiled.simulate("h100")["step_seconds"])
    print(mtfc.search("model.mtf", target="h100", devices=8)["layout"])

The options are those of the `mtfc` command. A layout is a name that the file declares, text such as
`"batch:rows;hidden:cols"`, or a mapping: `{"batch": ("rows", "cols"), "params": {"hidden": "rows"}}`. A mesh is a name, text
such as `"rows:2;cols:4"`, or a mapping: `{"rows": 2, "cols": 4}`. `dims` changes sizes of dimensions, and `set` changes entries
of the `train` block: `{"accumulate": 4, "optimizer.learning_rate": 1e-3}`.

Every function raises `OSError` for a file that cannot be read, `ValueError` for an illegal option, and `CompileError` with the
diagnostics of a file that has errors.

`mtfc.ir` is the compiler's intermediate representation, for front ends that build programs themselves.

Design after Mesh-TensorFlow (Shazeer et al., 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from mtfc.driver.errors import public

if TYPE_CHECKING:
    from mtfc.api import Checked, Compiled
    from mtfc.backends.common.devices import Unavailable
    from mtfc.compiler.diagnostics import CompileError, Diagnostic
    from mtfc.compiler.search.found import NothingFits
    from mtfc.driver.jax_functions.imported_program import ImportedProgram
    from mtfc.driver.records import Costs, Difference, Explanation, Search, Verification
    from mtfc.driver.report import ReportPage
    from mtfc.driver.values import LayoutOption, MemoryOption, MeshOption, PassesOption
    from mtfc.graphs.graph import Graph

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "Diagnostic",
    "NothingFits",
    "Unavailable",
    "__version__",
    "check",
    "check_text",
    "compile",
    "compile_text",
    "cost",
    "diff",
    "explain",
    "from_jax",
    "graph",
    "report",
    "search",
    "verify",
]

_Path = str | PathLike[str]

_MODULES = {
    "CompileError": "mtfc.compiler.diagnostics",
    "Diagnostic": "mtfc.compiler.diagnostics",
    "NothingFits": "mtfc.compiler.search.found",
    "Unavailable": "mtfc.backends.common.devices",
}
"""Classes that are imported on demand, because only some programs need them and the command must start fast."""


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


def graph(name: str) -> Graph:
    """Return an empty graph, a model to build in Python: `with mtfc.graph("net") as g:`."""
    from mtfc.graphs.graph import Graph

    return Graph(name)


@public
def check(
    path: _Path,
    *,
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
) -> Checked:
    """Return all diagnostics of a .mtf file, under every declared layout or under one.

    Each has `code`, `severity`, `message`, `file`, `line`, `column`, `help` and `labels`. `str` of one diagnostic, or of all,
    is the text that `mtfc check` shows.
    """
    from mtfc.api import Checked, checked, choice_of, read
    from mtfc.compiler.diagnostics import CompileError
    from mtfc.driver.values import file_option

    choice, file = choice_of(model, layout, mesh, dims, set), file_option(path)
    try:
        text = read(path)
    except CompileError as error:  # the file is not text
        return Checked(file, error.diagnostics)
    return checked(text, file, choice)


@public
def check_text(
    text: str,
    *,
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    file: str = "<text>",
) -> Checked:
    """Return all diagnostics of the text of a .mtf file. `file` is the name in messages; imports are read from its folder."""
    from mtfc.api import checked, choice_of

    return checked(text, file, choice_of(model, layout, mesh, dims, set))


@public
def compile(
    path: _Path,
    *,
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    passes: PassesOption | None = None,
    memory: MemoryOption | None = None,
) -> Compiled:
    """Compile a .mtf file for one layout, by default its first.

    passes: those that lower the program, in place of the default ones, as text or as `mtfc.ir.Pass`es. memory: the most memory of
    a device, such as `"80GiB"` or a number of bytes; the backward pass computes values again that would not fit.
    """
    from mtfc.api import choice_of, compile_case, read
    from mtfc.driver.values import file_option

    choice, file = choice_of(model, layout, mesh, dims, set, passes, memory), file_option(path)
    return compile_case(read(file), file, choice)


@public
def compile_text(
    text: str,
    *,
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    passes: PassesOption | None = None,
    memory: MemoryOption | None = None,
    file: str = "<text>",
) -> Compiled:
    """Compile the text of a .mtf file. `file` is the name in messages; imports are read from its folder."""
    from mtfc.api import choice_of, compile_case

    return compile_case(text, file, choice_of(model, layout, mesh, dims, set, passes, memory))


@public
def verify(
    path: _Path,
    *,
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    passes: PassesOption | None = None,
    memory: MemoryOption | None = None,
    backend: str | None = None,
    dtype: str | None = None,
    data: _Path | None = None,
    params: _Path | None = None,
    params_partial: bool = False,
    seed: int = 0,
    exact: bool = True,
    budget: float | None = None,
    step: bool = False,
    all_sizes: bool = False,
) -> Verification:
    """Compare every layout, or one, on every backend with the undistributed program: the record of `mtfc verify --format json`.

    Inputs and parameters are drawn from `seed`, unless `data` and `params` name files with them. With `params_partial`,
    parameters that the file lacks are drawn. `exact` compares over a finite field first. `step` compares the training step with
    its declaration, and nothing else; `all_sizes` runs the exact check alone, at small sizes that speak for every size. `dtype`,
    `"f32"` or `"f64"`, is the dtype of the whole computation, if given. Checks run in a process of their own; those beyond
    `budget` seconds are skipped.
    Raises `Unavailable` if JAX is missing or has too few devices.
    """
    from mtfc.api import choice_of, verified

    return verified(
        path,
        choice_of(model, layout, mesh, dims, set, passes, memory),
        data=data,
        params=params,
        backend=backend,
        dtype=dtype,
        params_partial=params_partial,
        seed=seed,
        exact=exact,
        budget=budget,
        step=step,
        all_sizes=all_sizes,
    )


@public
def explain(
    path: _Path,
    *,
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    memory: MemoryOption | None = None,
) -> Explanation:
    """Explain which rule of a layout causes which collective, through which lines: the record of `mtfc explain --format json`."""
    from mtfc.api import choice_of, explained

    return explained(path, choice_of(model, layout, mesh, dims, set, memory=memory))


@public
def diff(
    path: _Path,
    a: LayoutOption | None = None,
    b: LayoutOption | None = None,
    *,
    model: str | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    memory: MemoryOption | None = None,
    target: _Path | None = None,
) -> Difference:
    """Compare computation, communication and memory of two layouts, by line: the record of `mtfc diff --format json`.

    The layouts are by default the file's first two. With a machine as `target` the record has seconds, too.
    """
    from mtfc.api import choice_of, compared

    return compared(path, choice_of(model, None, mesh, dims, set, memory=memory), a, b, target)


@public
def cost(
    path: _Path,
    *,
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    memory: MemoryOption | None = None,
    symbolic: bool = False,
) -> Costs:
    """Return computation, communication and memory of one device under every layout, or one: the record of `mtfc cost --format
    json`.

    With `symbolic` each layout has its formulas, too.
    """
    from mtfc.api import choice_of, costs

    return costs(path, choice_of(model, layout, mesh, dims, set, memory=memory), symbolic)


@public
def report(
    path: _Path,
    *,
    model: str | None = None,
    layout: LayoutOption | None = None,
    mesh: MeshOption | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    target: _Path | None = None,
    search: float | None = None,
) -> ReportPage:
    """Return the page of `mtfc report`: a model under every layout, or one, or the training run of a folder.

    `report.save("report.html")` writes the page, and a notebook shows it. target: the machine of predicted times. search: seconds
    to search for the best layout, which is then shown, too.
    """
    from mtfc.api import choice_of, reported

    return reported(path, choice_of(model, layout, mesh, dims, set), target, search)


@public
def search(
    path: _Path,
    *,
    target: _Path | None = None,
    devices: int | None = None,
    mesh: MeshOption | None = None,
    layout: LayoutOption | None = None,
    model: str | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    axes_names: Sequence[str] | None = None,
    space: str = "rules",
    objective: str | None = None,
    budget: float = 60.0,
    exhaustive: bool = False,
) -> Search:
    """Search for the best layout, or in the space `"soap"` for the best placement, of a .mtf file's model on a machine.

    The record is that of `mtfc search --format json`, with seconds and bytes of one device. Without a `target`, the machine is
    the first that the file declares, else `"h100"`. `layout` is for the space `"forms"`, which keeps its rules. `axes_names` are
    names for the axes of searched meshes, and `budget` is in seconds. Raises `NothingFits` if no layout fits into memory.
    """
    from mtfc.api import choice_of, searched

    return searched(
        path, choice_of(model, layout, mesh, dims, set), target=target, axes_names=axes_names,
        devices=devices, space=space, objective=objective, budget=budget, exhaustive=exhaustive,
    )  # fmt: skip


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%mtf` to a notebook: `%load_ext mtfc`."""
    from mtfc.notebook import add_magic

    add_magic(shell)


def __dir__() -> list[str]:
    """List the public names, with those that are imported on demand."""
    return sorted(__all__)


if not TYPE_CHECKING:  # type checkers accept any name of a module with `__getattr__`

    def __getattr__(name: str) -> Any:
        """Import a class on demand."""
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        if name == "ir":
            return import_module("mtfc.ir")
        raise AttributeError(f"module `mtfc` has no attribute `{name}`")
