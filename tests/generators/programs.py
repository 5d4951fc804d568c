"""Whole programs: well-typed .mtf source text with one mesh and layouts that are legal for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim, Mesh
from tests.generators import componentwise, contractions, structure
from tests.generators.layouts import LayoutText, legal_layouts
from tests.generators.meshes import dimensions, meshes
from tests.generators.scope import MAX_ELEMENTS, Draw, Options, Scope, Term, dims_text, tame

Feature = Callable[[Draw[Any], Scope], Term]

# How often each kind of expression is drawn. Ops that jump come last: without them the rest stays.
SMOOTH: tuple[tuple[int, Feature], ...] = (
    (3, componentwise.linear),
    (3, componentwise.smooth),
    (5, componentwise.arithmetic),
    (2, componentwise.square),
    (1, componentwise.quotient),
    (1, componentwise.power),
    (10, contractions.einsum),
    (2, contractions.outer_product_summed_away),
    (5, contractions.sums_combined),
    (5, contractions.total),
    (1, contractions.product),
    (1, structure.broadcast),
    (1, structure.transpose),
    (3, structure.rename),
    (4, structure.reduced_and_renamed),
    (2, structure.rename_there_and_back),
    (3, structure.reshape),
    (2, structure.cut),
    (2, structure.pad),
    (3, structure.concat),
    (2, structure.shift),
    (2, structure.creation),
    (1, componentwise.conversion),
)
KINKED: tuple[tuple[int, Feature], ...] = (
    (6, componentwise.kinked),
    (5, componentwise.extremum),
    (2, componentwise.comparison),
    (2, componentwise.logical),
    (4, componentwise.choice),
    (4, contractions.extreme),
    (2, contractions.quantifier),
    (2, contractions.argmax),
)

LAYOUT_NAMES = ("main", "second", "third")


def _repeated(table: tuple[tuple[int, Feature], ...]) -> list[Feature]:
    return [feature for weight, feature in table for _ in range(weight)]


ALL_FEATURES, SMOOTH_FEATURES = _repeated(SMOOTH + KINKED), _repeated(SMOOTH)


@st.composite
def expression(draw: Any, scope: Scope) -> Term:
    """One expression of any kind; where its result would be too large, that is summed away."""
    feature = draw(st.sampled_from(ALL_FEATURES if scope.kinks else SMOOTH_FEATURES))
    term = scope.seen(feature(draw, scope))
    if term.size <= MAX_ELEMENTS or term.dtype == "bool":
        return term
    small = attrs.evolve(term, text=f"sum({term.text})", dims=(), bound=term.bound * term.size)
    return scope.seen(tame(small, 64.0))


@attrs.frozen
class Generated:
    """A program, and what a property needs to know about it.

    values: the dims of every value that a name is ever bound to, the last one's last.
    """

    source: str
    mesh: Mesh
    layouts: tuple[LayoutText, ...]
    values: dict[str, list[tuple[Dim, ...]]]
    parameters: tuple[str, ...]
    dims: tuple[Dim, ...]

    def __str__(self) -> str:
        return self.source

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How Hypothesis shows a failing example."""
        printer.text(f'"""\n{self.source}"""')


@st.composite
def programs(draw: Any, options: Options = Options()) -> Generated:  # noqa: B008
    """A well-typed program with legal layouts."""
    mesh = draw(meshes())
    real = draw(st.sampled_from(options.reals))
    trained = draw(st.booleans())
    rough = options.rough and trained and real == "f32" and draw(st.integers(0, 11)) == 11
    kinks = not rough and draw(st.booleans())
    scope = Scope(mesh, real, kinks, options, draw(dimensions(mesh)))
    inputs, parameters = _inputs(draw, scope), _parameters(draw, scope, at_least=int(trained))
    header = [f"model m({', '.join(inputs)}) {{", *parameters.values()]
    body = [_anchor(draw, scope, tuple(parameters))] if trained else []
    body += _statements(draw, scope, options.statements)
    body += _returned(draw, scope, trained)
    shapes = tuple(scope.shapes)
    values = {name: shapes for name, shapes in scope.history.items() if any(shapes[0])}
    stored = [scope.history[name][0] for name in parameters]
    names = LAYOUT_NAMES[: draw(st.integers(1, options.layouts))]
    layouts = [draw(legal_layouts(name, scope, stored, values)) for name in names]
    blocks = ["\n".join([*header, *body, "}"])]
    if trained:
        blocks.append(_training(draw, rough))
    text = "\n\n".join([_declarations(scope, layouts), *blocks]) + "\n"
    used = tuple(dim for dim in scope.dims if any(dim in shape for shape in shapes))
    return Generated(text, mesh, tuple(layouts), scope.history, tuple(parameters), used)


def _declarations(scope: Scope, layouts: list[LayoutText]) -> str:
    """Dims that some tensor has, the mesh and the layouts."""
    used = {dim for shape in scope.shapes for dim in shape}
    lines = [f"dim {dim.name} = {dim.size}" for dim in scope.dims if dim in used]
    axes = ", ".join(f"{name}: {size}" for name, size in scope.mesh.axes)
    return "\n".join([*lines, f"mesh grid = [{axes}]", *map(str, layouts)])


def _shape(draw: Any, scope: Scope) -> tuple[Dim, ...]:
    """One to three of the declared dims, in any order."""
    dims = draw(st.permutations(scope.dims))[: draw(st.sampled_from((2, 3, 2, 1, 2, 3, 0)))]
    while Term("", tuple(dims), "f32").size > MAX_ELEMENTS:
        dims = dims[1:]
    return tuple(dims)


def _argument(draw: Any, scope: Scope, name: str, dtype: str) -> str:
    """Declares an input or parameter and gives its type: multiples of 1/4 up to 2, or small integers."""
    dims = _shape(draw, scope)
    bound, grain = {"i32": (3.0, 0), "bool": (1.0, 0)}.get(dtype, (2.0, 2))
    scope.bind(name, scope.seen(Term(name, dims, dtype, bound, grain)))
    return f"{name}: {dtype}{dims_text(dims)}"


def _inputs(draw: Any, scope: Scope) -> list[str]:
    extra = ["i32"] * draw(st.sampled_from((0, 1))) + ["bool"] * draw(st.sampled_from((0, 0, 0, 1)))
    dtypes = [scope.real] * draw(st.integers(1, 3)) + extra
    return [_argument(draw, scope, name, dtype) for name, dtype in zip("xyzuv", dtypes, strict=False)]


def _parameters(draw: Any, scope: Scope, at_least: int) -> dict[str, str]:
    names = ("w", "b", "p")[: draw(st.integers(at_least, 3))]
    inits = ("normal(stddev = 0.5)", "zeros()", "ones()")
    return {
        name: f"  param {_argument(draw, scope, name, scope.real)} = {draw(st.sampled_from(inits))}"
        for name in names
    }


def _statements(draw: Any, scope: Scope, most: int) -> list[str]:
    lines: list[str] = []
    while not lines or (len(lines) < most and draw(st.integers(0, 31)) > 0):
        name = f"h{len(lines)}"
        if draw(st.integers(0, 9)) == 9:
            name = draw(st.sampled_from(sorted(set(scope.variables) - {"anchor"})))
        term = draw(expression(scope))
        lines.append(f"  {name} = {term.text}")
        scope.bind(name, term)
    return lines


def _anchor(draw: Any, scope: Scope, parameters: tuple[str, ...]) -> str:
    """A term of the loss that depends on a parameter, whatever the rest does."""
    name = draw(st.sampled_from(parameters))
    scope.bind("anchor", scope.seen(Term("", (), scope.real, 64.0, None)))
    return f"  anchor = {0.5**6} * sum({name})"


def _returned(draw: Any, scope: Scope, trained: bool) -> list[str]:
    """The return statement, and before it the loss of a trained model."""
    newest = next(reversed(scope.variables))
    others = draw(st.lists(st.sampled_from(list(scope.variables)), unique=True, max_size=3))
    names = list(dict.fromkeys((*others, newest)))
    if not trained:
        return [f"  return {', '.join(names)}"]
    parts = [_scalar(draw, scope.variables[name]) for name in _loss_terms(draw, scope)]
    loss = " + ".join([*parts, "anchor"])
    return [f"  loss = {loss}", f"  return {', '.join(name for name in names if name != 'loss')}, loss"]


def _loss_terms(draw: Any, scope: Scope) -> list[str]:
    """Up to three floating-point variables, the newest ones likely."""
    known = {name: term for name, term in scope.variables.items() if name != "anchor"}
    real = [name for name in reversed(known) if scope.is_real(known[name])]
    if not real:
        return []
    chosen = draw(st.lists(st.sampled_from(real), unique=True, max_size=2))
    return list(dict.fromkeys((real[0], *chosen)))


def _scalar(draw: Any, x: Term) -> str:
    x = tame(x, 8.0)
    return draw(st.sampled_from((f"mean(square({x.text}))", f"mean({x.text})", f"0.125 * sum({x.text})")))  # type: ignore[no-any-return]


def _training(draw: Any, rough: bool) -> str:
    optimizer = draw(
        st.sampled_from(
            (
                "sgd(learning_rate = 0.25)",
                "momentum(learning_rate = 0.25)",
                "momentum(learning_rate = 0.125, momentum = 0.5)",
            )
        )
    )
    entries = ["minimize loss", f"optimizer = {optimizer}"]
    if draw(st.integers(0, 3)) == 3:
        entries.append(f"clip = {draw(st.sampled_from((0.5, 4.0)))}")
    if rough:
        entries.append("precision = { params: f32, compute: bf16 }")
    return "train m {\n" + "".join(f"  {entry}\n" for entry in entries) + "}"
