"""Scopes: the names that are visible at one place, and the reports of errors.

An error is reported where it is found. The thing that failed becomes None, and its users pass None on without a report, so one
mistake gives one diagnostic. For the same reason, a name in text that did not parse counts as declared there. Where the type of
what failed is certain all the same, a placeholder of the type takes its place, so that the next mistake is found too: for a
misspelt name, an `einsum` that states its result, and a call of a function that declares its results.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from copy import copy
from difflib import SequenceMatcher
from functools import cached_property
from typing import Literal, TypeVar

from mtfc.compiler.diagnostics import Diagnostics, Label, Span, nearest
from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.training import TRAINING
from mtfc.compiler.ir.types import WRITTEN_BYTES, Dim, TensorType
from mtfc.compiler.records import define, frozen
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.semantics.names.unused_values import Unused, find_unused
from mtfc.frontend.syntax import ast, other_libraries

T = TypeVar("T")

MAX_DIMS = 32
"""Most dimensions of one tensor or one einsum: the limit of NumPy, and few enough for an einsum's letters."""

MAX_COMPARISONS = 20_000
"""Most comparisons, in one run, of unknown names with known ones: they take about a second."""

MOST_CALLS_SHOWN = 3

NO_DIMS = {
    TRAINING: "`training` is a truth value, known in the expressions of models and functions alone",
    **{each: f"rules of storage have braces: `{each}: {{ *: AXIS }}`" for each in ("params", "optimizer")},
}
"""Help about names that are no dimensions."""

ANY = "any"
"""In a signature, in place of a dtype: any dtype, the same one wherever the word appears."""


STEP = "step"
"""In an optimizer, the number of the training step."""


@frozen
class InlinedSize:
    """The part of a program's limit that a call takes: `own` without the calls in it, and `total` with all that it leads to.

    owns: True if the function, or a function that it calls, declares parameters.
    """

    own: int = 0
    total: int = 0
    owns: bool = False


@define
class FileSize:
    """The number of equations, parameters, watched values and inlined calls of all models and optimizers of a file so far."""

    size: int = 0


@frozen
class NamedSection:
    """A call, a variable or a loop of a model. is_looped: True inside of a loop."""

    place: Span
    is_looped: bool

    def is_in(self, model: Span) -> bool:
        """Return True if the place, or the outermost call that led to it, is in a model."""
        outer = self.place
        while outer.call is not None:
            outer = outer.call
        return outer.file == model.file and model.line <= outer.line <= model.end_line


class Reports:
    """The errors of one run, and the facts that all scopes of the run share.

    A function is elaborated once for each call; an error in the function is reported for the first call that shows the error.
    """

    def __init__(self, diagnostics: Diagnostics) -> None:
        """Start without errors.

        called: the functions that have been elaborated, by the place of their names. sizes: the sizes of calls of functions.
        grown: the size of the file's programs. dropped, dropped_dims: the full names of unused values, and the dimensions of
        their functions, which no program has. sections: the calls, variables and loops of models, by their full names.
        placeholders: the values that stand for expressions with an error.
        """
        self.diagnostics = diagnostics
        self._seen: set[tuple[str, str, Span]] = set()
        self.called: set[Span] = set()
        self.sizes: dict[tuple[str, str], InlinedSize] = {}
        self.grown = FileSize()
        self.dropped: set[str] = set()
        self.dropped_dims: dict[str, tuple[Dim, Span]] = {}
        self.sections: dict[str, list[NamedSection]] = {}
        self.placeholders: set[Value | None] = set()
        self._unused: dict[Span, Unused] = {}
        self._comparisons = MAX_COMPARISONS

    def add(self, code: str, message: str, span: Span, labels: Iterable[Label], help: str | None) -> None:
        """Add a diagnostic, unless there is one with the same message at the same place."""
        if (code, message, span) not in self._seen:
            self._seen.add((code, message, span))
            self.diagnostics.add(code, message, span, labels, help)

    def unused(self, decl: ast.ModelDecl | ast.FnDecl) -> Unused:
        """Return the unused statements of a model or a function, found once for all calls."""
        place = decl.name.span
        if place not in self._unused:
            self._unused[place] = find_unused(decl)
        return self._unused[place]

    @property
    def suggests(self) -> bool:
        """False once a run has made so many comparisons of names that it looks for no more similar ones."""
        return self._comparisons >= 0

    def nearest(self, name: str, known: Collection[str]) -> str | None:
        """Return the most similar known name, while the run still suggests names."""
        if not self.suggests:
            return None
        self._comparisons -= len(known)
        return nearest(name, known) if self.suggests else None


class Scope:
    """The declarations of one file, or the names that the body of a function in the file sees.

    In a function: rest: the dimensions that `...` stands for. any: the dtype that `any` stands for. calls: the calls that led
    to the function, the innermost first.
    """

    def __init__(
        self, reports: Reports | Diagnostics, doubtful: Iterable[str] = (), module: str = ""
    ) -> None:
        """Start without declarations.

        dims: dimensions by name, None for a declaration with an error. places: the place of each dimension's declaration.
        functions, optimizers: the declarations of the file. machines: the names of its hardware. modules: the files that it
        imports. local_dims: dimensions that functions declare in their bodies. doubtful: names in text that did not parse.
        module: the name of the file as a module, empty for the main file; its dimensions are called `module.dim`. file: the
        scope of the whole file.
        """
        self.reports = reports if isinstance(reports, Reports) else Reports(reports)
        self.doubtful = frozenset(doubtful)
        self.module = module
        self.file = self
        self.dims: MutableMapping[str, Dim | None] = {}
        self.places: MutableMapping[str, Span] = {}
        self.models: set[str] = set()
        self.machines: Collection[str] = ()
        self.functions: Mapping[str, ast.FnDecl] = {}
        self.optimizers: Mapping[str, tuple[ast.OptimizerDecl, ...]] = {}
        self.modules: dict[str, Scope | None] = {}
        self.local_dims: dict[str, Dim] = {}
        self.rest: tuple[Dim, ...] | None = None
        self.any: str | None = None
        self.calls: tuple[Label, ...] = ()

    @cached_property
    def known_dims(self) -> dict[str, Dim]:
        """The dimensions of the file that are declared without an error, once all are declared; the models share them."""
        return {name: dim for name, dim in self.dims.items() if dim is not None}

    @cached_property
    def dims_by_size(self) -> Mapping[int, str]:
        """The first of the known dimensions of each size."""
        return {dim.size: name for name, dim in reversed(self.known_dims.items())}

    @property
    def diagnostics(self) -> Diagnostics:
        return self.reports.diagnostics

    def inside(self, calls: tuple[Label, ...]) -> Scope:
        """Return the scope of a function of this file that `calls` led to."""
        inner = copy(self)
        inner.dims, inner.places = ChainMap({}, self.dims), ChainMap({}, self.places)  # a file may have many
        inner.calls = calls
        return inner

    def for_text(self) -> Scope:
        """Return a scope with the same names and its own diagnostics, for text of the command line."""
        scope = copy(self)
        scope.reports = Reports(Diagnostics())
        return scope

    def error(
        self, code: str, message: str, span: Span, labels: Iterable[Label] = (), help: str | None = None
    ) -> Literal[False]:
        """Report an error, in a function with labels at the calls that led there: the innermost ones, and the user's own.

        Return False, so that a test can end with its error.
        """
        calls = self.calls
        if len(calls) > MOST_CALLS_SHOWN:
            calls = (*calls[: MOST_CALLS_SHOWN - 1], calls[-1])
        self.reports.add(code, message, span, (*labels, *calls), help)
        return False

    def refuse(
        self, code: str, message: str, span: Span, labels: Iterable[Label] = (), help: str | None = None
    ) -> T | None:
        """Report an error, and return None, which stands for what failed."""
        self.error(code, message, span, labels, help)
        return None

    def unknown(
        self,
        code: str,
        message: str,
        name: ast.DimName | ast.Every,
        known: Collection[str],
        help: str | None = None,
        meant: str | None = None,
    ) -> Literal[False]:
        """Report that `name` is not among the known names, and suggest the most similar one; else give `help`. Return False.

        meant: help that says what is meant, before any similar name.
        """
        if name.text in self.doubtful:
            return False
        near = None if meant else self.reports.nearest(name.text, known)
        advice = meant or (f"did you mean `{near}`?" if near else help)
        if advice is None and self.reports.suggests:
            advice = listing(known)
        return self.error(code, message, name.span, help=advice)

    def meant(self, name: str, known: Collection[str]) -> str | None:
        """Return the known name that a misspelt one means, for a check that goes on; None if another may be meant."""
        near = self.reports.nearest(name, known) if name not in self.doubtful else None
        return near if near is not None and is_slip(name, near) else None

    def declare(self, what: str, name: ast.Name, places: MutableMapping[str, Span]) -> bool:
        """Note the place of a declaration; return False, and report an error, if the name is declared already."""
        message = f"{what} `{name.text}` is declared twice"
        return self.is_first(name, places, "E102", message, "first declared here")

    def is_first(
        self,
        name: ast.DimName | ast.Every,
        places: MutableMapping[str, Span],
        code: str,
        message: str,
        label: str,
        help: str | None = None,
    ) -> bool:
        """Note the place of a name; return False, and report an error with a label there, if the name has a place already."""
        if name.text not in places:
            places[name.text] = name.span
            return True
        return self.error(code, message, name.span, [Label(places[name.text], label)], help)

    def dim(self, name: ast.DimName, code: str = "E103") -> Dim | None:
        """Return a dimension by its name; None, with a diagnostic, if it is unknown.

        A near name is taken if it is surely meant.
        """
        found = self.find_dim(name)
        if found is None and not self._has_failed(name):
            known = self._known_dims()
            help = NO_DIMS.get(name.text)
            self.unknown(code, f"unknown dimension `{name.text}`", name, known, meant=help)
            return self.dims.get(self.meant(name.text, known) or "") if code == "E103" else None
        return found

    def _known_dims(self) -> list[str]:
        """Return the names of all dimensions that are visible here, while the run still suggests names."""
        return [*self.dims, *self.dims_of_modules(), *self.local_dims] if self.reports.suggests else []

    def find_dim(self, name: ast.DimName) -> Dim | None:
        """Return a dimension: of this scope, of a module as `common.batch`, or of any function as `ffn.inner`."""
        if isinstance(name, ast.Name):
            return self.dims.get(name.text)
        return self.dims_of_modules().get(name.text) or self.local_dims.get(name.text)

    def place(self, name: ast.DimName) -> Span:
        """Return the place of the declaration of a dimension, which must exist."""
        module = self.modules.get(name.parts[0]) if isinstance(name, ast.Path) else None
        if isinstance(name, ast.Path) and module is not None and name.parts[1] in module.places:
            return module.places[name.parts[1]]
        return self.places[name.text]

    def dims_of_modules(self) -> dict[str, Dim | None]:
        """Return the dimensions of imported files, by their names in this file."""
        return {
            f"{module}.{name}": dim
            for module, scope in self.modules.items()
            for name, dim in (scope.dims.items() if scope else ())
        }

    def _has_failed(self, name: ast.DimName) -> bool:
        """Return True if an error was reported for the declaration of a dimension, or for its module."""
        if isinstance(name, ast.Name) or name.parts[0] not in self.modules:
            return name.text in self.dims
        module = self.modules[name.parts[0]]
        return module is None or name.parts[1] in module.dims or name.parts[1] in module.doubtful

    def dim_list(self, names: Iterable[ast.DimName | ast.Ellipsis], span: Span) -> tuple[Dim, ...] | None:
        """Return the dimensions of one tensor; None, and an error, if one is unknown or occurs twice."""
        names = tuple(names)
        dims: list[Dim | None] = []
        for name in names:
            dims += self._rest(name) if isinstance(name, ast.Ellipsis) else (self.dim(name),)
        found = tuple(dim for dim in dims if dim is not None)
        if self._repeats(names) or len(found) < len(dims) or self._overlaps(found, span):
            return None
        return found if self.few_enough(found, span) else None

    def _rest(self, ellipsis: ast.Ellipsis) -> tuple[Dim | None, ...]:
        """Return the dimensions that `...` stands for."""
        if self.rest is not None:
            return self.rest
        message = (
            "`...` stands for the further dimensions of a function's arguments, and this is not in a function"
        )
        self.error("E204", message, ellipsis.span)
        return (None,)

    def _overlaps(self, dims: Collection[Dim], span: Span) -> bool:
        """Return True, and report an error, if two names stand for one dimension, as in a function they may."""
        twice = [dim for dim, count in Counter(dims).items() if count > 1]
        if twice:
            message = f"dimension `{twice[0].name}` stands twice in one tensor, by different names"
            help = "let one argument have a dimension of another name: see `rename`"
            self.error("E210", message, span, help=help)
        return bool(twice)

    def few_enough(self, dims: Collection[Dim], span: Span) -> bool:
        message = f"{len(dims)} dimensions, and at most {MAX_DIMS} are possible"
        return len(dims) <= MAX_DIMS or self.error("E212", message, span)

    def _repeats(self, names: Collection[ast.DimName | ast.Ellipsis]) -> bool:
        """Return True, and report it (E210), if a list of dimensions has one twice."""
        places: dict[str, list[Span]] = {}
        for name in names:
            places.setdefault("..." if isinstance(name, ast.Ellipsis) else name.text, []).append(name.span)
        repeated = {text: spans for text, spans in places.items() if len(spans) > 1}
        for text, (first, second, *_) in repeated.items():
            label = Label(first, "it is already here")
            help = "a tensor has each dimension once; give one a name of its own with `dim` and `rename`"
            self.error("E210", f"dimension `{text}` stands twice in one tensor", second, [label], help)
        return bool(repeated)

    def dtype(self, name: ast.Name) -> str | None:
        """Return the dtype of a name; None, with a diagnostic (E211), for an unknown one.

        `any` stands for the dtype that a call of the function chooses.
        """
        if name.text == ANY and self.any is not None:
            return self.any
        if name.text in WRITTEN_BYTES:
            return name.text
        meant = other_libraries.DTYPES.get(name.text)
        self.unknown("E211", f"unknown dtype `{name.text}`", name, WRITTEN_BYTES, meant=meant)
        return None

    def type(self, type: ast.Type) -> TensorType | None:
        """Return the type that is written, f32 if no dtype is."""
        dtype = self.dtype(type.dtype) if type.dtype else "f32"
        dims = self.dim_list(type.dims, type.span)
        return None if dtype is None or dims is None else TensorType(dtype, dims)


def is_slip(name: str, near: str) -> bool:
    """Return True if a name differs from another by about a letter. Names that differ in a number are different things."""
    numbers = [re.sub(r"\D", "", each) for each in (name, near)]
    differs = SequenceMatcher(None, name, near).ratio() < 0.8 and sorted(name) != sorted(near)
    return numbers[0] == numbers[1] and not differs


def listing(names: Collection[str], most: int = 8) -> str | None:
    """Return `one of: a, b, c`; None if there are more names than a user would read."""
    return f"one of: {', '.join(sorted(names))}" if 0 < len(names) <= most else None


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# Unknown functions and values, with help that guesses the intended one


def unknown_function(
    scope: Scope, function: ast.Name | ast.Path, values: Collection[str], builtins: Mapping[str, str]
) -> None:
    """Report an unknown function; `values` are the variables, `builtins` examples of calls of built-in functions."""
    if isinstance(function, ast.Path):
        _in_module(scope, function, values, builtins)
        return
    name = function.text
    help = "a model is an entry point, and cannot be called" if name in scope.models else None
    help = "it is a value, and cannot be called" if name in values else help or _habit(scope, name, {})
    known = (*builtins, *scope.functions)
    scope.unknown("E104", f"unknown function `{name}`", function, known, meant=help)


def unknown_value(scope: Scope, node: ast.Name | ast.Path, values: Mapping[str, object]) -> None:
    """Report an unknown value, unless the text asks for a part of a value with an error."""
    head, _, attribute = node.text.partition(".")
    if attribute and head in values and values[head] is None:
        return
    value, help = values.get(head), other_libraries.VALUES.get(node.text)
    if attribute and isinstance(value, Value):
        help = other_libraries.attribute(attribute, value.type.names)
    elif attribute in ("size", "length", "shape") and head in scope.dims:
        help = f"the size of a dimension is its name: `{head}`"
    message = f"`{head}` has no `{attribute}`" if attribute and help else f"unknown value `{node.text}`"
    scope.unknown("E101", message, node, values, meant=help)


def product_help(node: ast.Binary, left: tuple[Dim, ...], right: tuple[Dim, ...]) -> str:
    """Return help that writes `x @ w` as an einsum: the result has the dimensions that only one operand has."""
    dims = ", ".join(dim.name for dim in (*left, *right) if (dim in left) != (dim in right))
    pairs = ((node.left, "a"), (node.right, "b"))
    names = [each.text if isinstance(each, ast.Name) else new for each, new in pairs]
    call = f"write `einsum({', '.join(names)} -> [{dims}])`, with the dimensions of the result"
    unnamed = " and ".join(f"`{new} = ...`" for each, new in pairs if not isinstance(each, ast.Name))
    return f"give the operand a name first, {unnamed}, and {call}" if unnamed else call


def _habit(scope: Scope, name: str, builtins: Mapping[str, str]) -> str | None:
    """Return help for a function of another library."""
    if name in builtins:
        return f"write `{builtins[name]}`"
    if name in WRITTEN_BYTES:
        return f"write `cast(x, {name})`"
    return _in_library(scope, name) or other_libraries.FUNCTIONS.get(name) or other_libraries.LAYERS.get(name)


def _in_module(
    scope: Scope, function: ast.Path, values: Collection[str], builtins: Mapping[str, str]
) -> None:
    """Report a call of a function with a dotted name: of an unknown module, of a module that lacks it, or of a value."""
    head, *rest = function.parts
    if head == "random" and head not in scope.modules:
        known = [name for name in builtins if name.startswith("random.")]
        scope.unknown("E104", f"unknown function `{function.text}`", function, known)
    elif head in scope.modules:
        _missing(scope, function, builtins)
    elif head in values:
        help = _habit(scope, rest[-1], builtins) or f"functions take the value: `f({head})`"
        message = f"`{head}` is a value, and has no function `{'.'.join(rest)}`"
        scope.error("E104", message, function.span, help=help)
    else:
        message = f"no module `{head}` is imported"
        scope.error("E113", message, function.span, help=_import(scope, function, builtins))


def _missing(scope: Scope, function: ast.Path, builtins: Mapping[str, str]) -> None:
    """Report a function that an imported module lacks, unless an error in the module may be the reason."""
    head, *rest = function.parts
    module, last = scope.modules[head], rest[-1]
    if module is None or not module.doubtful.isdisjoint(rest):
        return
    message = f"module `{head}` has no function `{'.'.join(rest)}`"
    usage = f"write `{builtins[last]}`" if last in builtins else None
    known = [f"{head}.{name}" for name in module.functions]
    scope.unknown("E104", message, function, known, meant=other_libraries.LAYERS.get(last) or usage)


def _import(scope: Scope, function: ast.Path, builtins: Mapping[str, str]) -> str | None:
    """Return help for a module that is not imported."""
    head, *_, name = function.parts
    if head == "self":
        return f"there are no objects: declare `fn {name}(x: [...]) -> [...] {{ ... }}`, and call `{name}(x)`"
    if head in other_libraries.MODULES:
        return _habit(scope, name, builtins) or "modules of Python cannot be used here"
    return f"add `import {head}`" if standard_library.text(head) is not None else None


def _in_library(scope: Scope, name: str) -> str | None:
    """Return help that names a function of the library."""
    modules = standard_library.with_function(name)
    if not modules:
        return None
    imported = [module for module in modules if module in scope.modules]
    if imported:
        return f"write `{imported[0]}.{name}`"
    return f"the library has `{modules[0]}.{name}`: add `import {modules[0]}`"
