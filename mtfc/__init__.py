"""A compiler from tensor programs over named dimensions to SPMD programs for a mesh of processors.

    compiled = mtfc.compile("model.mtf", layout="hybrid")
    print(compiled.ir())                 # one processor's program, with its collectives
    open("model.py", "w").write(compiled.jax())
    print(compiled.simulate("h100")["step_seconds"])
    print(mtfc.search("model.mtf", target="h100", devices=8)["layout"])

Design after Mesh-TensorFlow (Shazeer et al., 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtfc.api import Compiled

__all__ = ["compile", "compile_text", "search"]


def compile(
    path: str | PathLike[str],
    *,
    model: str | None = None,
    layout: str | None = None,
    mesh: str | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
) -> Compiled:
    """Compile a .mtf file for one layout, by default its first.

    The options are those of the `mtfc` command: `layout` and `mesh` are names that the file declares, or rules and shapes such as
    `"batch:rows;hidden:cols"` and `"rows:2;cols:4"`; `dims` changes sizes, and `set` entries of the `train` block, such as
    `{"accumulate": 4, "optimizer.learning_rate": 1e-3}`. Raises `OSError`, and `CompileError` with the diagnostics of a file that
    has errors.
    """
    from mtfc.api import read

    return compile_text(read(path), model=model, layout=layout, mesh=mesh, dims=dims, set=set, file=str(path))


def compile_text(
    text: str,
    *,
    model: str | None = None,
    layout: str | None = None,
    mesh: str | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    file: str = "<text>",
) -> Compiled:
    """Compile the text of a .mtf file; `file` is what diagnostics call it, and what it imports is looked for beside it."""
    from mtfc.api import Choice, compile_case
    from mtfc.cli.selection import settings_of

    choice = Choice(model, layout, mesh, dict(dims or {}), settings_of(set or {}))
    return compile_case(text, file, choice)


def search(
    path: str | PathLike[str],
    *,
    target: str,
    devices: int | None = None,
    mesh: str | None = None,
    model: str | None = None,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, object] | None = None,
    axes_names: Sequence[str] | None = None,
    space: str = "rules",
    objective: str = "time",
    budget: float = 60.0,
    exhaustive: bool = False,
) -> dict[str, Any]:
    """The best layout, or in the space `"soap"` the best placement, of a .mtf file's model on a machine: what
    `mtfc search --format json` prints, with seconds and bytes of one device.

    The options are those of the command; `set` has entries of the `train` block as for `compile`, `axes_names` are names for the
    axes of searched meshes, and `budget` is in seconds. Raises `OSError`, `CompileError`, and
    `mtfc.compiler.search.found.NothingFits` where memory suffices for none.
    """
    from mtfc.api import found
    from mtfc.cli.selection import settings_of

    sizes, names = dict(dims or {}), None if axes_names is None else list(axes_names)
    return found(
        file=str(path), target=target, devices=devices, mesh=mesh, model=model, dims=sizes,
        settings=settings_of(set or {}), axes_names=names,
        space=space, objective=objective, budget=budget, exhaustive=exhaustive,
    )  # fmt: skip
