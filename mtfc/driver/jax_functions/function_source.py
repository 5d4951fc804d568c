"""A function of JAX in the place of a .mtf file: `MODULE:FUNCTION` with `--args MODULE:EXAMPLE_ARGS`."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.compiler.activity import doing
from mtfc.compiler.diagnostics import CompileError, Diagnostic
from mtfc.compiler.ir.core import Program, walk
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.driver.data.files import parsed_json, read_bytes, readable_texts
from mtfc.driver.errors import UsageError, raised_as, say
from mtfc.driver.loading.selection import LayoutOnMesh
from mtfc.driver.training.user_code import (
    FUNCTION,
    OWN,
    explained,
    imported_function,
    imported_value,
    kind_of_value,
)

if TYPE_CHECKING:
    from mtfc.compiler.passes.recompute import Recompute
    from mtfc.compiler.search.found import Found
    from mtfc.driver.jax_functions.imported_program import ImportedProgram
    from mtfc.driver.jax_functions.plan import Plan
    from mtfc.driver.loading.choice import BestLayout

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
        from mtfc.driver.jax_functions.imported_program import imported_program
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
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a function without a signature
        return True
    return True
