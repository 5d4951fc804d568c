"""Functions with every form of signature and body, and calls of them."""

from typing import Any

import attrs
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim
from tests.generators.blocks import statements
from tests.generators.operands import operand, real_operand, reduced_to
from tests.generators.scope import MAX_ELEMENTS, Scope
from tests.generators.statements import REST, Argument, Assign, Call, Function, Given, Variable
from tests.generators.terms import Shape, Term, dims_text, settled, volume

MOST = 3
DEEPEST = 2
REST_DIM = Dim(REST, 12)
"""The dim that stands for `...` in a body. A call gives at most 12 elements for it, and a mean over it is never exact."""


@attrs.frozen(eq=False)
class Known:
    """A declared function. If a call's tensors have values like `arguments`, its results have values like `results`.

    `fixed` are the dims of the file that its body may name; `has_rest` says that its signature has a `...`.
    """

    function: Function
    arguments: tuple[Term, ...]
    results: tuple[Term, ...]
    fixed: Shape
    has_rest: bool


def call(draw: Any, scope: Scope) -> Term:
    """Draw a call of a new or a known function."""
    known = [each for each in scope.functions if _callable(each, scope)]
    may_declare = scope.inside < DEEPEST and len(scope.functions) < MOST
    if not known and not may_declare:
        return real_operand(draw, scope)
    if not known or (may_declare and draw(st.booleans())):
        function = declared(draw, scope)
        if not _callable(function, scope):
            return real_operand(draw, scope)
    else:
        function = draw(st.sampled_from(known))
    return _called(draw, scope, function)


def _callable(known: Known, scope: Scope) -> bool:
    """Return True if the dims that the body names can be named here, and no parameter is stacked along one of them."""
    in_scope = set(known.fixed) <= {*scope.fixed} if scope.inside else True
    return in_scope and known.function.facts.owned.isdisjoint(scope.stacked)


# Declarations


def declared(draw: Any, scope: Scope) -> Known:
    """Draw a new function; its body is made for the sizes of generic dims at the first call."""
    inner = _empty(draw, scope)
    generics = tuple(dim for dim in inner.dims if dim not in inner.fixed)
    has_rest = draw(st.integers(0, 2)) == 2
    arguments = [_argument(draw, inner, generics, has_rest and not i) for i in range(draw(st.integers(1, 3)))]
    terms = tuple(inner.variables.values())
    numbers = [_number(draw, inner.fresh("n"), generics) for _ in range(draw(st.sampled_from((0, 0, 1))))]
    given = tuple(Term(each.name, (), scope.real, 2.0, None) for each in numbers)
    inner = attrs.evolve(inner, has_rest=has_rest, numbers=given)
    for _ in range(draw(st.sampled_from((1, 0, 2)))):
        inner.parameter(inner.fresh("w"), tuple(draw(st.permutations(generics)))[:2])
    statements(draw, inner, 3)
    results = _results(draw, inner, (*generics, *inner.fixed))
    typed = tuple(
        (term.dtype, Variable(term.text, tuple(draw(st.permutations(term.dims))))) for term in results
    )
    function = Function(
        name=f"f{len(scope.functions)}",
        generics=generics,
        by_name=generics[: draw(st.sampled_from((0, 0, 0, 1)))],
        arguments=(*arguments, *numbers),
        results=typed,
        block=inner.block,
        locals=tuple(_local(draw, dim, generics) for dim in inner.dims if dim.name.startswith("t")),
        any_dtype=not inner.facts.owned and draw(st.booleans()),
        facts=inner.facts,
    )
    ordered = tuple(
        attrs.evolve(term, dims=value.dims) for term, (_, value) in zip(results, typed, strict=True)
    )
    scope.functions.append(Known(function, terms, ordered, inner.fixed, has_rest))
    return scope.functions[-1]


def _empty(draw: Any, scope: Scope) -> Scope:
    """Make the scope of a new function: one to three generic dims, with sizes of the caller's, and perhaps dims of the file."""
    from_file = scope.fixed if scope.inside else tuple(scope.dims)
    sizes = [dim.size for dim in draw(st.permutations(scope.dims))[: draw(st.integers(1, 3))]]
    generics = [Dim(f"g{i}", size) for i, size in enumerate(sizes)]
    fixed = tuple(draw(st.permutations(from_file)))[: draw(st.sampled_from((0, 0, 1, 2)))]
    return Scope(
        scope.mesh,
        scope.real,
        scope.kinks,
        scope.family,
        scope.options,
        dims=[*generics, *fixed],
        functions=scope.functions,
        calls=scope.calls,
        fixed=fixed,
        inside=scope.inside + 1,
    )


def _argument(draw: Any, scope: Scope, generics: Shape, has_rest: bool) -> Argument:
    dims = list(draw(st.permutations(scope.dims))[: draw(st.integers(1, 3))])
    if has_rest:
        dims.insert(draw(st.integers(0, len(dims))), REST_DIM)
    while volume(dims) > MAX_ELEMENTS:
        dims = dims[1:]
    name, exact = scope.fresh("a"), scope.kinks and draw(st.booleans())
    scope.bind(
        name, scope.seen(Term(name, tuple(dims), scope.real, 4.0 if exact else 2.0, 4 if exact else None))
    )
    return Argument(name, scope.real, tuple(dims))


def _number(draw: Any, name: str, generics: Shape) -> Argument:
    """Draw a number argument of up to 2, with or without a default."""
    default = draw(st.sampled_from((None, "0.5", "1 / 4", f"rsqrt({generics[0].name})")))
    return Argument(name, "", None, default)


def _local(draw: Any, dim: Dim, generics: Shape) -> tuple[Dim, str]:
    """Draw a local dim of the function, and its size as it is written."""
    sizes = [str(dim.size)]
    for each in generics:
        if each.size % dim.size == 0 and each.size > dim.size:
            sizes.append(f"{each.name} // {each.size // dim.size}")
        if each.size != dim.size:
            sizes.append(f"{each.name} {'+' if dim.size > each.size else '-'} {abs(dim.size - each.size)}")
    return dim, draw(st.sampled_from(sizes))


def _results(draw: Any, scope: Scope, dims: Shape) -> list[Term]:
    """Draw one or two variables without dims that only the function has, the newest first."""
    fitting = [term for term in scope.terms if set(term.dims) <= {*dims, REST_DIM}]
    if not fitting:
        newest = scope.terms[0]
        fitting = [scope.assign(scope.fresh("h"), reduced_to(draw, scope, newest, dims))]
    more = draw(st.sampled_from(fitting)) if draw(st.integers(0, 2)) == 2 else fitting[0]
    return [fitting[0]] if more == fitting[0] else [fitting[0], more]


# Calls


def _called(draw: Any, scope: Scope, known: Known) -> Term:
    """Draw the result of a call. A call with several results, or with an alias, is a statement of its own."""
    function = known.function
    bound, rest = _bound(draw, scope, known)
    made = Call(function, (), bound, rest, True, None)
    terms = [_given(draw, scope, made, term) for term in known.arguments]
    if known.has_rest:
        made = attrs.evolve(made, rest=tuple(dim for dim in terms[0].dims if dim in rest))
    given = [Given(a.name, term.text, False) for a, term in zip(function.arguments, terms, strict=False)]
    given += _numbers_given(draw, function, bound)
    explicit = not _follows(made, terms) or draw(st.booleans())
    alias = scope.fresh("q") if draw(st.integers(0, 5)) == 5 else None
    made = attrs.evolve(made, given=_by_keyword(draw, given), explicit=explicit, alias=alias)
    name = f"call{len(scope.calls)}_"
    scope.calls[name] = made
    scope.facts.owned.update((*scope.stacked, *made.dims(tuple(function.facts.owned))))
    results = [attrs.evolve(term, dims=made.dims(term.dims), text=name) for term in known.results]
    if len(results) == 1 and alias is None:
        return scope.seen(results[0])
    return _several(draw, scope, name, results)


def _bound(draw: Any, scope: Scope, known: Known) -> tuple[dict[Dim, Dim], Shape]:
    """Choose dims of the caller for the generic dims and for `...`.

    No dim is chosen twice, or if the body names it, or if parameters are stacked along it: the function may have parameters with
    the generic dims.
    """
    bound: dict[Dim, Dim] = {}
    taken = {*known.fixed, *scope.stacked}
    for generic in known.function.generics:
        bound[generic] = scope.dim_of_size(draw, generic.size, (*taken, *bound.values()))
    rest: Shape = ()
    taken |= {*bound.values()}
    for dim in draw(st.permutations(scope.dims)) if known.has_rest else ():
        if dim not in taken and volume((*rest, dim)) <= REST_DIM.size and draw(st.booleans()):
            rest = (*rest, dim)
    return bound, rest


def _follows(call: Call, terms: list[Term]) -> bool:
    """Return True if the arguments alone determine the generic dims."""
    function = call.function
    known = {dim: call.bound[dim] for dim in function.by_name}
    pairs = zip((a.dims or () for a in function.arguments), terms, strict=False)
    for dims, term in sorted(pairs, key=lambda pair: REST_DIM in pair[0]):
        wanted = [dim for dim in dims if dim in call.bound and dim not in known]
        named = {known.get(dim, dim) for dim in dims}
        left = [dim for dim in term.dims if dim not in named]
        before = (
            wanted if REST_DIM not in dims else [d for d in wanted if dims.index(d) < dims.index(REST_DIM)]
        )
        after = wanted[len(before) :]
        known.update(zip(before, left, strict=False))
        known.update(zip(after, left[len(left) - len(after) :], strict=False))
    return known == dict(call.bound)


def _given(draw: Any, scope: Scope, made: Call, wanted: Term) -> Term:
    """Draw a term with the dims and values of an argument."""
    dims = made.dims(wanted.dims)
    x = operand(draw, scope, lambda t: t.dtype == scope.real and (t.exact or not wanted.exact))
    ones = Term(f"ones({dims_text(dims)}, dtype = {scope.real})", dims, scope.real)
    x = reduced_to(draw, scope, x or ones, dims)
    if set(x.dims) != set(dims):
        x = attrs.evolve(x, text=f"broadcast({x.text} -> {dims_text(dims)})", dims=dims)
    return scope.seen(settled(x, ones, wanted))


def _numbers_given(draw: Any, function: Function, bound: dict[Dim, Dim]) -> list[Given]:
    texts = ("0.25", "1 / 2", *(f"rsqrt({dim.name})" for dim in bound.values()))
    return [
        Given(argument.name, draw(st.sampled_from(texts)), True)
        for argument in function.arguments
        if argument.dims is None and (argument.default is None or draw(st.booleans()))
    ]


def _by_keyword(draw: Any, given: list[Given]) -> tuple[Given, ...]:
    """Give the last arguments by keyword, perhaps."""
    first = draw(st.integers(0, len(given))) if draw(st.integers(0, 3)) == 3 else len(given)
    return tuple(attrs.evolve(each, keyword=each.keyword or i >= first) for i, each in enumerate(given))


def _several(draw: Any, scope: Scope, name: str, results: list[Term]) -> Term:
    targets = tuple(Variable(scope.fresh("h"), scope.seen(term).dims) for term in results)
    scope.append(Assign(targets, name))
    terms = [scope.bind(target.name, term) for target, term in zip(targets, results, strict=True)]
    return draw(st.sampled_from(terms))  # type: ignore[no-any-return]
