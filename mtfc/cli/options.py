"""Options that several subcommands have, and their values for the driver."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

if TYPE_CHECKING:
    import attrs

    from mtfc.driver.loading.choice import Choice, ProgramSource
    from mtfc.driver.loading.sources import Reported, Sources

Record = TypeVar("Record", bound="attrs.AttrsInstance")

FORMAT = """
  --format text|json     text for people, JSON for programs (default: text)
"""

SOURCE = "\n  FILE  a .mtf file; - is standard input\n"

MEMORY = """
  --memory SIZE|HW|SIZE@HW    the memory of a device, such as 80GiB, or a machine: the backward pass computes values again that
                         would not fit; or what loops keep for it: full, minimal, selective or alternate
"""

PASSES = """
  --passes PIPELINE      passes in place of the default ones, such as "differentiation,mine,partitioning"
"""

LOWERING = MEMORY + PASSES + FORMAT
"""The options of commands that lower a program, and print text or JSON."""

WHOLE_DOCUMENTS = """
  --whole-documents      cut a document only if it is longer than a row, and leave the ends of rows empty
"""

OF_PARAMETERS = """
  --params FILE          initial values of parameters: .npz, .safetensors, a folder of shards, or a --dir of `mtfc train`
  --params-partial       draw the parameters that --params lacks from --seed, and leave out those of a run that the model lacks
"""

PARAMETERS = OF_PARAMETERS.replace("`mtfc train`", "`mtfc train` (default: drawn)")

HOSTS = """
several processes:
  --coordinator HOST:PORT    an address of process 0 that the others reach
  --processes N          number of processes
  --process-id I         number of this process, from 0
  --distributed          take these from SLURM, Open MPI, TPU pods or Kubernetes
  --join-seconds S       seconds in which all processes must have started (default: 50)
"""
"""The place of this process among others: the fields of `Hosts`."""

MODEL = """
choice of the program:
  --model NAME           the model to compile (default: the first)
  --dim NAME=SIZE        change a dimension's size; repeatable
  --set KEY=VALUE        change an entry of the `train` block: accumulate=4, optimizer.learning_rate=1e-3; repeatable
"""

OF_FUNCTIONS = """
functions of JAX:
  --args MODULE:VALUE    import FILE as MODULE:FUNCTION; the value is the tuple of its example arguments, or (args, kwargs), or a
                         function that returns them
  --names FILE.json|MODULE:VALUE    names of dimensions by argument: {"ids": "batch length", "**/up/kernel": "embed hidden"}
  --parameters N,N       the arguments that hold the model, from 0 (default: the first, and all that are returned anew)
  --no-merge             let copies of a layer have layouts of their own
"""


def selection(default_layout: str, or_placement: bool = False, several: bool = False) -> str:
    """Return the options that choose a model, its layouts and its mesh.

    or_placement: `--layout` may name a placement. several: `--layout` is repeatable.
    """
    return f"""{MODEL}
  --layout NAME|RULES    a declared layout{" or placement" * or_placement}, or rules (default: {
        default_layout
    }){"; repeatable" * several}
  --mesh NAME|SHAPE      a declared mesh, or a shape; `one` is a single device (default: the mesh of the layout)
"""


class Options(argparse.Namespace):
    """The options of a subcommand by name, and the texts that diagnostics may point into."""

    sources: Sources

    @property
    def choice(self) -> Choice:
        """The options of `MODEL` and of a selection as a record; `--layout` may be missing or a list. Raises `UsageError`."""
        from mtfc.driver.loading.choice import Choice

        layout = getattr(self, "layout", None)
        layout = layout if isinstance(layout, str) else None
        mesh, passes, memory = (getattr(self, name, None) for name in ("mesh", "passes", "memory"))
        given = self.model, layout, mesh, dict(self.dims), tuple(self.settings), passes
        return Choice(*given, self._source(), memory)

    def _source(self) -> ProgramSource | None:
        """Return the function of JAX that the options name, or None for a file. Raises `UsageError`."""
        if not hasattr(self, "args") or self.file is None:
            return None
        has_function_options = self.names or self.parameters or self.no_merge
        if self.args is None and ":" not in self.file and not has_function_options:
            return None
        from mtfc.driver.errors import UsageError
        from mtfc.driver.jax_functions.imported_program import FunctionSource, is_function

        if self.args is None and is_function(self.file):
            raise UsageError(
                f"{self.file}: a function of JAX takes --args MODULE:EXAMPLE_ARGS, and a graph is a value that `mtfc.graph` makes"
            )
        if self.args is None and has_function_options:
            raise UsageError("--names, --parameters and --no-merge go with --args, for a function of JAX")
        if self.args is None:
            return None
        if self.model or self.dims or self.settings:
            raise UsageError(
                f"{self.file} is one program at fixed sizes, those of --args: no --model, --dim or --set"
            )
        return FunctionSource(self.file, self.args, self.names, self.parameters, not self.no_merge)

    def record(self, record: type[Record], **others: Any) -> Record:
        """Return a record of the options that are fields of it; `others` are fields that no option names."""
        names = [field.name for field in record.__attrs_attrs__ if field.name not in others]
        return record(**{name: getattr(self, name) for name in names if hasattr(self, name)} | others)

    def check_outputs(self, *names: str) -> TextIO:
        """Return the stream for a report beside the files that options name. Raises `UsageError` unless these can be written."""
        from mtfc.driver.data.files import check_apart, check_writable, report_to

        paths = {name: getattr(self, "output" if name == "-o" else name.strip("-")) for name in names}
        check_apart(paths, self._inputs())
        check_writable(*paths.values())
        return report_to(*paths.values())

    def _inputs(self) -> dict[str, str | None]:
        """Return the files that a program and a machine are read from, by option: no result may replace them."""
        from mtfc.driver.loading.target import file_of

        fields = {"FILE": "file", "--args": "args", "--names": "names"}
        read = {option: _module_file(getattr(self, field, None)) for option, field in fields.items()}
        layout, target = (getattr(self, name, None) for name in ("layout", "target"))
        return {**read, "--layout": layout, "--target": file_of(target)}

    def show(self, found: Reported, to: TextIO | None = None) -> None:
        """Print a result with source lines in the form of `--format`."""
        self.print(found.record, lambda: found.report(self.sources.with_library()).removesuffix("\n"), to)

    def print(self, record: Callable[[], object], text: Callable[[], str], to: TextIO | None = None) -> None:
        """Print a record as JSON, or a text, as `--format` says."""
        print(json_text(record()) if self.format == "json" else text(), file=to)


def json_text(record: object) -> str:
    """Return a record as indented JSON."""
    import json

    return json.dumps(record, indent=2)


def _module_file(text: str | None) -> str | None:
    """Return a file, or the file of the module in `MODULE:NAME`."""
    module = re.fullmatch(r"([^\W\d][\w.]*):[^\W\d][\w.]*", text or "")
    return f"{module[1].replace('.', '/')}.py" if module else text


def program(instead: str = "", is_required: bool = True) -> str:
    """Return the arguments for a file or a function of JAX. instead: what else the file may be."""
    name = "FILE" if is_required else "[FILE]"
    about = f"a .mtf file{instead}, or MODULE:FUNCTION with --args; - is standard input"
    return f"\n  {name}  {about}\n{OF_FUNCTIONS}options:\n"
