"""Sites of a generated NumPy module: the places at which a fault can be planted.

The module's text is changed once: every call of a collective, every slice with constant bounds and every gather becomes a call of
`__site__` with its number. So all mutants of a program share one compiled module, and choosing a mutant costs nothing.
"""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from mtfc.backends.common.emitter import FORMS
from mtfc.backends.exact.residues import ExactArray
from mtfc.backends.numpy import backend
from mtfc.compiler.ir.core import Program

COLLECTIVES = frozenset(
    [
        "psum", "pmax", "pmin", "all_gather", "reduce_scatter", "all_to_all", "permute", "shift_shards", "flip_shards",
        "interleave_shards", "local_slice", "unreduce",
    ]
)  # fmt: skip
CALLS = COLLECTIVES | {"axis_index", "gather"}
FUNCTIONS = frozenset(form.name for form in FORMS.values())
SITE, SLICE = "__site__", "__slice__"


@attrs.frozen
class Site:
    """A place in the text of a module.

    kind: the called function, or `slice`. line: of the module's text. axes: the mesh axes of a collective.
    """

    number: int
    function: str
    kind: str
    line: int
    axes: tuple[str, ...] = ()


def generate(program: Program) -> str:
    """Return the text of a program's NumPy module, with all functions that faults need."""
    with patch.object(backend, "PUBLIC", (*backend.PUBLIC, *sorted(CALLS), "numbers")):
        return backend.generate(program)


@attrs.frozen
class Instrumented:
    """The text of a module whose sites call `__site__`, and its sites."""

    text: str
    sites: tuple[Site, ...]


def instrumented(text: str) -> Instrumented:
    """Replace the sites in the module's functions that compute: helpers keep their text."""
    tree = ast.parse(text)
    found: list[Site] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS:
            _Replacer(node.name, found).visit(node)
    return Instrumented(ast.unparse(ast.fix_missing_locations(tree)), tuple(found))


class _Replacer(ast.NodeTransformer):
    """Replaces sites of one function, inner ones before outer ones."""

    def __init__(self, function: str, found: list[Site]) -> None:
        self.function, self.found = function, found

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id not in CALLS:
            return node
        return self._site(node.func.id, node.lineno, [*node.args], node.keywords)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        bounds = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not isinstance(node.ctx, ast.Load) or not any(_is_cut(each) for each in bounds):
            return node
        index = ast.parse(f"({', '.join(map(_index_text, bounds))},)", mode="eval").body
        return self._site("slice", node.lineno, [node.value, index], [])

    def _site(self, kind: str, line: int, args: list[ast.expr], keywords: list[ast.keyword]) -> ast.Call:
        site = Site(len(self.found), self.function, kind, line, _axes(args) if kind in COLLECTIVES else ())
        self.found.append(site)
        given = [ast.Constant(site.number), ast.Constant(kind), *args]
        return ast.Call(ast.Name(SITE, ast.Load()), given, keywords)


def _axes(args: list[ast.expr]) -> tuple[str, ...]:
    """Return the mesh axes that a collective is called with, as its second argument."""
    axes = ast.literal_eval(args[1])
    return (axes,) if isinstance(axes, str) else tuple(axes)


def _is_cut(node: ast.expr) -> bool:
    """Return True for a slice that leaves something out at its start or end."""
    return isinstance(node, ast.Slice) and (node.lower is not None or node.upper is not None)


def _index_text(node: ast.expr) -> str:
    if not isinstance(node, ast.Slice):
        return ast.unparse(node)
    parts = (node.lower, node.upper, node.step)
    return f"{SLICE}({', '.join('None' if each is None else ast.unparse(each) for each in parts)})"


Fault = Callable[..., Any]


@attrs.frozen
class Visit:
    """One execution of a faulty site: the right and the wrong value."""

    right: Any
    wrong: Any

    @property
    def is_changed(self) -> bool:
        return not same(self.right, self.wrong)


@attrs.define
class Bench:
    """An instrumented module in which at most one fault is active.

    active: the faulty site, and the fault. visits: the executions of the faulty site.
    """

    module: Any
    sites: tuple[Site, ...]
    active: tuple[Site, Fault] | None = None
    visits: list[Visit] = attrs.field(factory=list)

    @classmethod
    def of(cls, text: str, load: Callable[[str], Any]) -> "Bench":
        """Load a module's text with its sites replaced. `load` makes a module from a text."""
        found = instrumented(text)
        bench = cls(load(found.text), found.sites)
        vars(bench.module).update({SITE: bench.site, SLICE: slice})
        return bench

    @contextmanager
    def planted(self, site: Site, fault: Fault) -> Iterator[None]:
        """Make a fault active."""
        self.active, self.visits = (site, fault), []
        try:
            yield
        finally:
            self.active = None

    def site(self, number: int, kind: str, *args: Any, **options: Any) -> Any:
        """Do what the site does, with the fault if it is the faulty one."""
        right = self._right(kind, args, options)
        if self.active is None or self.active[0].number != number:
            return right
        wrong = self.active[1](self.module, kind, right, *args, **options)
        self.visits.append(Visit(right, wrong))
        return wrong

    def _right(self, kind: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if kind == "slice":
            return args[0][args[1]]
        return vars(self.module)[kind](*args, **options)


def same(right: Any, wrong: Any) -> bool:
    """Return True if two values are equal bit for bit, up to axes of the mesh along which they are repeated."""
    import numpy as np

    if isinstance(right, tuple):
        return all(map(same, right, wrong))
    if isinstance(right, ExactArray):
        right, wrong = right.residues().values, wrong.residues().values
    try:
        right, wrong = np.broadcast_arrays(right, wrong)
    except ValueError:
        return False
    return right.dtype == wrong.dtype and right.tobytes() == wrong.tobytes()
