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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtfc.api import (
        check,
        check_text,
        compile,
        compile_text,
        cost,
        diff,
        explain,
        from_jax,
        inspect,
        report,
        search,
        verify,
    )
    from mtfc.backends.common.devices import Unavailable
    from mtfc.compiler.diagnostics import CompileError, Diagnostic
    from mtfc.compiler.search.found import NothingFits
    from mtfc.graphs.graph import graph

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
    "inspect",
    "report",
    "search",
    "verify",
]

_MODULES = {
    "CompileError": "mtfc.compiler.diagnostics",
    "Diagnostic": "mtfc.compiler.diagnostics",
    "NothingFits": "mtfc.compiler.search.found",
    "Unavailable": "mtfc.backends.common.devices",
    "graph": "mtfc.graphs.graph",
}
"""The modules of public names that `mtfc.api` lacks. All are imported on demand, so that the command starts fast."""


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%mtf` to a notebook: `%load_ext mtfc`."""
    from mtfc.notebook import add_magic

    add_magic(shell)


def __dir__() -> list[str]:
    """List the public names, with those that are imported on demand."""
    return sorted(__all__)


if not TYPE_CHECKING:  # type checkers accept any name of a module with `__getattr__`

    def __getattr__(name: str) -> Any:
        """Import a function or a class on demand."""
        if name in __all__:
            return getattr(import_module(_MODULES.get(name, "mtfc.api")), name)
        if name == "ir":
            return import_module("mtfc.ir")
        raise AttributeError(f"module `mtfc` has no attribute `{name}`")
