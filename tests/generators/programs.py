"""Whole programs: well-typed .mtf source text with one mesh and layouts that are legal for it."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim, Mesh
from tests.generators.blocks import COUNTED, UNTOUCHED, statements
from tests.generators.features import FAMILIES
from tests.generators.flat import ONE, Flat, Place, called, flat_name, flat_parameter
from tests.generators.layouts import LayoutText, legal_layouts
from tests.generators.meshes import dimensions, meshes
from tests.generators.scope import MAX_ELEMENTS, Options, Scope
from tests.generators.statements import MODULE, Function, Writing
from tests.generators.terms import Shape, Term, dims_text, tame, volume

LAYOUT_NAMES = ("main", "second", "third")


@attrs.frozen
class Generated:
    """A program, and the facts about it that properties need.

    flat: the same program without layouts, with every function inlined and every loop unrolled. main: the same program with
    functions that it imports from the file `library`. values: the dims of all values that a name is ever bound to, by full name.
    """

    source: str
    flat: str
    main: str
    library: str
    mesh: Mesh
    layouts: tuple[LayoutText, ...]
    values: dict[str, list[Shape]]
    parameters: tuple[str, ...]
    dims: Shape

    def __str__(self) -> str:
        return self.source

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Return the form in which Hypothesis shows a failing example."""
        printer.text(f'"""\n{self.source}"""')


@st.composite
def programs(draw: Any, options: Options = Options()) -> Generated:  # noqa: B008
    """Draw a well-typed program with legal layouts."""
    mesh = draw(meshes())
    real = draw(st.sampled_from(options.reals))
    trained = options.accumulated or draw(st.booleans())
    rough = options.rough and trained and real == "f32" and draw(st.integers(0, 11)) == 11
    kinks = not rough and draw(st.booleans()) and options.jumps
    family = draw(st.integers(0, len(FAMILIES) - 1))
    scope = Scope(mesh, real, kinks, family, options, draw(dimensions(mesh)))
    inputs = _inputs(draw, scope)
    _parameters(draw, scope, at_least=int(trained))
    anchor = _anchor(draw, scope) if trained else ""
    statements(draw, scope, options.statements)
    returned = _returned(draw, scope, trained)
    training = _training(draw, scope, returned, rough) if trained else ""
    return _written(draw, scope, inputs, returned, training, anchor)


def _written(
    draw: Any, scope: Scope, inputs: list[Term], returned: str, training: str, anchor: str
) -> Generated:
    """Draw the program in both forms, with layouts for all its tensors. `anchor` is a parameter that is always trained."""
    flat = Flat(scope.calls)
    for each in inputs:
        flat.value(each.text, each.dims)
    flat.block(scope.block, Place())
    scope.facts.shapes.update(dict.fromkeys((*flat.shapes, *flat.params.values())))
    scope.facts.reduced.update(flat.reduced)
    names = LAYOUT_NAMES[: draw(st.integers(1, scope.options.layouts))]
    stored = list(flat.params.values())
    values = {name: shapes for name, shapes in flat.values.items() if any(shapes[0])}
    functions = [known.function for known in scope.functions]
    writing = Writing(scope.calls)
    trained = [name for name in flat.params if name != anchor]
    groups = _groups(draw, trained) if training and scope.options.grouped else ()
    flat_text = _flat_text(inputs, returned, flat, scope) + _grouped(training, groups, flat_parameter)
    training = _grouped(training, groups, str)
    body = _model(inputs, returned, writing, scope, functions) + training
    scope.dims = dims = _used(scope.dims, body)
    layouts = tuple(draw(legal_layouts(name, scope, stored, values)) for name in names)
    mesh = ", ".join(f"{name}: {size}" for name, size in scope.mesh.axes)
    counted = [COUNTED] if scope.options.counted else []
    head = [
        *(f"dim {dim.name} = {dim.size}" for dim in (*dims, *counted)),
        f"mesh grid = [{mesh}]",
        *map(str, layouts),
    ]
    source = "\n".join(head) + "\n\n" + body
    shown = tuple(dim for dim in dims if any(dim in shape for shape in scope.facts.shapes))
    abroad = Writing(scope.calls, _movable(scope))
    rest = [function for function in functions if function not in abroad.imported]
    main = [f"import {MODULE}", *head, "", _model(inputs, returned, abroad, scope, rest) + training]
    library = "\n".join(
        line for each in functions if each in abroad.imported for line in writing.function(each)
    )
    texts = (source, flat_text, "\n".join(main), library + "\n")
    return Generated(*texts, scope.mesh, layouts, flat.values, tuple(flat.params), shown)


def _movable(scope: Scope) -> frozenset[Function]:
    """Return the functions that can stand in another file: they name no dims of this file, and call only such functions."""
    found: set[Function] = set()
    for known in scope.functions:
        if not known.fixed and found.issuperset(called(known.function, scope.calls)):
            found.add(known.function)
    return frozenset(found)


def _used(dims: Iterable[Dim], text: str) -> list[Dim]:
    """Return the dims that the text names."""
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    return [dim for dim in dims if dim.name in words]


def _model(
    inputs: list[Term], returned: str, writing: Writing, scope: Scope, functions: Iterable[Function]
) -> str:
    """Write the model and the functions of its file."""
    lines = [f"model m({_typed(inputs)}) {{", *writing.block(scope.block, "  "), f"  return {returned}", "}"]
    for function in functions:
        lines += ["", *writing.function(function)]
    return "\n".join(lines) + "\n"


def _flat_text(inputs: list[Term], returned: str, flat: Flat, scope: Scope) -> str:
    body = [*flat.declared.values(), *flat.lines, f"  return {returned}", "}"]
    text = "\n".join([f"model m({_typed(inputs)}) {{", *body]) + "\n"
    own = (Dim(flat_name(dim.name), dim.size) for dim in flat.locals)
    dims = _used((*scope.dims, *own, Dim(ONE, 1)), text)
    return "\n".join([*(f"dim {dim.name} = {dim.size}" for dim in dims), "", text])


def _typed(terms: list[Term]) -> str:
    return ", ".join(f"{term.text}: {term.dtype}{dims_text(term.dims)}" for term in terms)


def _shape(draw: Any, scope: Scope) -> Shape:
    """Draw one to three of the declared dims, in any order."""
    dims = draw(st.permutations(scope.dims))[: draw(st.sampled_from((2, 3, 2, 1, 2, 3, 0)))]
    while volume(dims) > MAX_ELEMENTS:
        dims = dims[1:]
    return tuple(dims)


def _inputs(draw: Any, scope: Scope) -> list[Term]:
    """Declare inputs: multiples of 1/4 up to 2, small integers, and truth values."""
    extra = ["i32"] * draw(st.sampled_from((0, 1))) + ["bool"] * draw(st.sampled_from((0, 0, 0, 1)))
    dtypes = [scope.real] * draw(st.integers(1, 3)) + extra
    found = []
    for name, dtype in zip("xyzuv", dtypes, strict=False):
        bound, grain = {"i32": (3.0, 0), "bool": (1.0, 0)}.get(dtype, (2.0, 2))
        found.append(scope.seen(Term(name, _shape(draw, scope), dtype, bound, grain)))
        scope.bind(name, found[-1])
    if scope.options.counted:
        found.append(scope.seen(Term("all", (COUNTED, *_shape(draw, scope)), scope.real, 2.0, 2)))
        scope.long.append(found[-1])
    return found


def _parameters(draw: Any, scope: Scope, at_least: int) -> None:
    for name in ("w", "b", "p")[: draw(st.integers(at_least, 3))]:
        init = draw(st.sampled_from(("normal(stddev = 0.5)", "zeros()", "ones()")))
        scope.parameter(name, _shape(draw, scope), init)


def _anchor(draw: Any, scope: Scope) -> str:
    """Add a term of the loss that always depends on a parameter; return that parameter."""
    name = draw(st.sampled_from([param.name for param in scope.block.params]))
    scope.assign(UNTOUCHED, scope.seen(Term(f"{0.5**6} * sum({name})", (), scope.real, 64.0, None)))
    return str(name)


def _returned(draw: Any, scope: Scope, trained: bool) -> str:
    """Return the names of outputs, after the loss of a trained model."""
    newest = next(reversed(scope.variables))
    others = draw(st.lists(st.sampled_from(list(scope.variables)), unique=True, max_size=3))
    names = list(dict.fromkeys((*others, newest)))
    if trained:
        parts = [_scalar(draw, scope.variables[name]) for name in _loss_terms(draw, scope)]
        scope.assign("loss", Term(" + ".join([*parts, UNTOUCHED]), (), scope.real, 64.0, None))
        names.append("loss")
    return ", ".join(names)


def _loss_terms(draw: Any, scope: Scope) -> list[str]:
    """Draw up to three floating-point variables, mostly new ones."""
    known = {name: term for name, term in scope.variables.items() if name != UNTOUCHED}
    real = [name for name in reversed(known) if scope.is_real(known[name])]
    if not real:
        return []
    chosen = draw(st.lists(st.sampled_from(real), unique=True, max_size=2))
    return list(dict.fromkeys((real[0], *chosen)))


def _scalar(draw: Any, x: Term) -> str:
    x = tame(x, 8.0)
    return draw(st.sampled_from((f"mean(square({x.text}))", f"mean({x.text})", f"0.125 * sum({x.text})")))  # type: ignore[no-any-return]


OPTIMIZERS = (
    "sgd(learning_rate = 0.25)", "momentum(learning_rate = 0.25)", "momentum(learning_rate = 0.125, momentum = 0.5)",
    "adam(learning_rate = 0.25 / (step + 1))", "adamw(learning_rate = 0.125)", "adafactor(learning_rate = 0.25)",
    "own(1 / sqrt(step + 1), decay = 0.75)",
)  # fmt: skip
OWN = """
optimizer own(rate, decay = 0.5) (p: [..., last], g) {
  state trace = zeros_like(p)
  state scale = zeros([last], dtype = any)
  trace = decay * trace + g
  scale = scale + mean(abs(g) -> [last])
  p = p - rate * (trace / scale + decay * p)
}

optimizer own(rate, decay = 0.5) (p, g) {
  p = decay * p - rate * g
}
"""
"""Draw an optimizer that a file declares: with states of two shapes, and without states where a parameter is a scalar."""


def _reported(draw: Any, scope: Scope, returned: str, optimizer: str) -> list[str]:
    """Draw reported names: floating-point outputs, whose mean over micro-batches exists, and built-in reports."""
    real = [name for name in returned.split(", ") if scope.is_real(scope.variables[name])]
    known = ["grad_norm", *(["learning_rate"] if "learning_rate" in optimizer else []), *real]
    return draw(st.lists(st.sampled_from(known), unique=True, min_size=1, max_size=3))  # type: ignore[no-any-return]


def _training(draw: Any, scope: Scope, returned: str, rough: bool) -> str:
    optimizer = draw(st.sampled_from(OPTIMIZERS))
    entries = ["minimize loss", f"optimizer = {optimizer}"]
    if draw(st.integers(0, 3)) == 3:
        entries.append(f"clip = {draw(st.sampled_from((0.5, 4.0)))}")
    if scope.options.accumulated or draw(st.integers(0, 5)) == 5:
        entries.append(f"accumulate = {draw(st.integers(2, 3))}")
    if rough:
        reduce = draw(st.sampled_from(("", ", reduce: f32")))
        scale = draw(st.sampled_from(("", ", loss_scale: 64", ", loss_scale: dynamic")))
        entries.append(f"precision = {{ params: f32, compute: bf16{reduce}{scale} }}")
    if draw(st.booleans()):
        entries.append(f"report {', '.join(_reported(draw, scope, returned, optimizer))}")
    declared = OWN if optimizer.startswith("own") else ""
    return "\ntrain m {\n" + "".join(f"  {entry}\n" for entry in entries) + "}\n" + declared


Group = tuple[str, tuple[str, ...]]
"""A group: its text, with `{}` for the patterns, and the parameters in it."""


def _groups(draw: Any, parameters: list[str]) -> tuple[Group, ...]:
    """Draw entries for some parameters; half of the programs have none."""
    if not parameters or draw(st.booleans()):
        return ()
    kinds = ("frozen {}", *(f"optimizer for {{}} = {each}" for each in OPTIMIZERS[:4]))
    members = st.lists(st.sampled_from(parameters), unique=True, min_size=1, max_size=2).map(tuple)
    groups = st.lists(st.tuples(st.sampled_from(kinds), members), min_size=1, max_size=2)
    return tuple(draw(groups))


def _grouped(training: str, groups: Iterable[Group], called: Callable[[str], str]) -> str:
    """Return the `train` block with the groups; `called` gives the names of parameters in the text."""
    lines = [entry.format(", ".join(f'"{called(name)}"' for name in names)) for entry, names in groups]
    return training.replace("{\n", "{\n" + "".join(f"  {line}\n" for line in lines), 1)
