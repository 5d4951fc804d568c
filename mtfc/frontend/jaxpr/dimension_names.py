"""Names for the dimensions of an imported function: from the user, else from the names of arguments and parameters.

Copies of a layer, such as `layers/0` and `layers/1`, get the same dimensions. A layout then treats all copies alike, and a search
has the dimensions of one layer. Copies are arguments whose places differ in one number, and that have arrays of the same shapes.
Copies with two arrays of several axes are merged before arrays are linked. Copies with one matrix are merged afterwards, if no
array has a dimension of one copy and that of another: layers that add to their input are copies. The layers of a plain perceptron
are none, because the output dimension of one is the input dimension of the next.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from operator import itemgetter
from typing import Any

from mtfc.compiler.diagnostics import CompileError, failure
from mtfc.compiler.ir.core import Role
from mtfc.frontend.jaxpr.factors import Axis, Factor, leaves, may_unite, size_of, unite
from mtfc.frontend.jaxpr.flat import Flat, Var
from mtfc.frontend.jaxpr.roles import RoleFinder, Source
from mtfc.frontend.jaxpr.user_lines import definition
from mtfc.frontend.syntax.lexer import RESERVED

GivenNames = Mapping[str, str]
"""Pattern of a leaf's place -> names of its axes: `{"ids": "batch length", "**/up/kernel": "embed (heads head_dim)"}`."""

OTHERS = frozenset({"params", "optimizer", "value", "allow"})
"""Words that mean something else in a layout."""

GIVEN, BATCH, ANNOTATED, ROLE, MODULE, PLACE = range(6)
"""Ranks of names, the best first: of the user, the batch, logical names, by role, by module, and by place in order."""

WEIGHTS = frozenset({
    "b", "beta", "bias", "embedding", "embeddings", "gamma", "kernel", "mean", "offset", "scale", "table", "var", "w", "weight",
    "weights",
})  # fmt: skip
"""Names of arrays that say nothing without the module that has them."""

OF_WEIGHT = re.compile(r"(?<=.)_(w|b|bias|kernel|weight)$")
"""The end of an array's name that says that it is a weight, and nothing of its module."""


def propose(flat: Flat, roles: Sequence[Role], names: GivenNames, function: Callable[..., Any]) -> None:
    """Add names to the factors of all arguments. Axes to which the user gives one name become one dimension.

    Axes with one logical name of Flax do, too, where their sizes are equal and no array would have it twice.
    Raises `CompileError` for patterns that fit nothing, or not the array.
    """
    places = [place(flat, path) for path in flat.inputs]
    used: set[str] = set()
    named: dict[str, Axis] = {}
    logical: dict[str, Axis] = {}
    for order, (var, text) in enumerate(zip(flat.body.arguments, places, strict=False)):
        fitting = [each for each in names if matches(each, text)]
        used |= {*fitting}
        if fitting:
            _give(var.axes, names[fitting[0]], text, function, named)
        for own, each in zip(flat.annotations[order] or (), var.axes, strict=False):
            if own is not None and _can_name(own) and unite(logical.setdefault(own, each), each):
                _want(each, ANNOTATED, own)
    for pattern in names:
        if pattern not in used:
            raise _wrong(f"the pattern {pattern} in `names` matches no argument", function, places)
    for var, text in zip(flat.body.arguments, places, strict=False):
        for factor in (factor for each in var.axes for factor in leaves(each)):
            given = list(dict.fromkeys(name for rank, name in factor.wanted if rank == GIVEN))
            if len(given) > 1:
                both = f"`{given[0]}` and `{given[1]}` name one dimension of {text}"
                raise _wrong(f"{both}, because the function links the axes with these names", function)
    _propose_others(flat, roles, places)


def _propose_others(flat: Flat, roles: Sequence[Role], places: Sequence[str]) -> None:
    """Add names by role, by module, and by place."""
    arguments = [*zip(flat.body.arguments, roles, places, strict=False)]
    wrapped = {x for step in flat.body.steps if step.primitive == "random_wrap" for x in step.operands}
    sources = []
    for var, role, text in arguments:
        axes = var.axes[:-1] if var.key is not None or var in wrapped else var.axes
        names = _modules(text) if role != "input" else [_last(text), _last(text, 2)]
        sources.append(Source(var, axes, names, role != "input"))
    finder = RoleFinder({source.var: source for source in sources})
    finder.run(flat.body)
    _want(finder.batch(), BATCH, "batch")
    named: set[Factor] = set()
    for factors, name in finder.names():
        _want(factors, ROLE, name)
        named |= {*factors}
    made = [(use.kept, use.source) for use in finder.weights if use.source]
    made += [(source.axes[0], source) for source in sources if source.is_weight and len(source.axes) == 1]
    for factors, source in made:
        for name in source.names:
            _want(tuple(f for f in factors if f not in named) or factors, MODULE, name)
    for order, (var, _, text) in enumerate(arguments):
        for j, each in enumerate(var.axes):
            _want(each, PLACE + order, f"{_last(text, 2)}_{j}")
    _settle(f for source in sources for each in source.var.axes for f in leaves(each))


def _settle(factors: Iterable[Factor]) -> None:
    """Let each factor want one name, its best one that no other factor wants more."""
    every, settled = dict.fromkeys(factors), dict[str, Factor]()
    offers = [(rank, name, factor) for factor in every for rank, name in factor.wanted]
    for rank, name, factor in sorted(offers, key=itemgetter(0)):
        if name not in settled and factor in every:
            settled[name] = factor
            factor.wanted = [(rank, name)]
            del every[factor]


def _last(text: str, number: int = 1) -> str:
    """Return the last parts of a place that are no numbers, as a name."""
    parts = [part for part in text.removesuffix("/value").split("/") if not part.isdigit()]
    return ascii_name("_".join(parts[-number:]))


def _modules(text: str) -> list[str]:
    """Return names for the module of an array, the shortest first: `key` and `attention_key` of `params/attention/key/kernel`.

    The module of `layers/0/1` is `layers_0`, and that of `params/qkv_w` is `qkv`.
    """
    argument, *parts = [part for part in text.removesuffix("/value").split("/") if part not in ("", "~")]
    if len(parts) > 1 and (parts[-1].lower() in WEIGHTS or (parts[-1] + parts[-2]).isdigit()):
        parts.pop()
    if "".join(parts).isdigit():
        parts.insert(0, argument)
    parts[-1:] = [OF_WEIGHT.sub("", part) for part in parts[-1:]]
    least = 1 + "".join(parts[-1:]).isdigit()
    found = (ascii_name("_".join(parts[-number:])) for number in range(least, least + 3))
    return [name for name in found if _can_name(name)]


def place(flat: Flat, path: tuple[Any, ...]) -> str:
    """Return the place of a leaf, such as `params/layers/0/kernel`."""
    return "/".join([flat.argument_name(path), *flat.parts(path)])


def matches(pattern: str, text: str) -> bool:
    """Return True if a pattern fits a place: `*` is any part of a path, `**/` is any number of directories."""
    plain = pattern.removeprefix("**/")
    expression = re.compile(translate(plain))
    starts = range(text.count("/") + 1 if plain != pattern else 1)
    ends = (text, text.removesuffix("/value"))
    return any(expression.match("/".join(each.split("/")[i:])) for each in ends for i in starts)


def ascii_name(text: str) -> str:
    """Return text as letters, digits and `_` of names in the language."""
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")


def _can_name(name: str) -> bool:
    return name.isascii() and name.isidentifier() and name not in RESERVED | OTHERS


def _want(factors: Axis, rank: int, name: str) -> None:
    """Propose a name for an axis. If the axis has several factors, names by role are better for them than `name_a`, `name_b`."""
    own = leaves(factors)
    for i, factor in enumerate(own):
        part = (MODULE if rank == ANNOTATED else rank, f"{name}_{'abcdefgh'[i % 8]}")
        factor.wanted.append((rank, name) if len(own) == 1 else part)


def _give(
    axes: Sequence[Axis], text: str, where: str, function: Callable[..., Any], named: dict[str, Axis]
) -> None:
    """Give an array's factors the user's names. Parentheses group the names of one axis's factors; `_` names nothing."""
    groups = re.findall(r"\(([^)]*)\)|(\S+)", text.replace(",", " "))
    if len(groups) != len(axes):
        raise _wrong(f"`names` gives {where} {len(groups)} names, and it has {len(axes)} axes", function)
    for (grouped, single), each in zip(groups, axes, strict=True):
        own, given = leaves(each), grouped.split() or [single]
        if len(given) == 1:
            parts: list[tuple[str, Axis]] = [(given[0], each)]
        elif len(given) == len(own):
            parts = [(name, (factor,)) for factor, name in zip(own, given, strict=True)]
        else:
            sizes = ", ".join(str(factor.size) for factor in own)
            raise _wrong(f"an axis of {where} has factors of sizes {sizes}, and names ({grouped})", function)
        for name, part in parts:
            if name != "_" and part:
                _unite_named(name, part, where, function, named)


def _unite_named(
    name: str, part: Axis, where: str, function: Callable[..., Any], named: dict[str, Axis]
) -> None:
    """Give a name to an axis, and make the axis the same as others of this name. where: the place of the array in messages.

    named: the axes that have names.
    """
    if not _can_name(name):
        raise _wrong(f"`{name}` cannot name a dimension of {where}", function)
    if not unite(named.setdefault(name, part), part):
        sizes = {size_of(leaves(each)) for each in (named[name], part)}
        why = f"sizes {' and '.join(map(str, sorted(sizes)))}" if len(sizes) > 1 else "places in one array"
        raise _wrong(f"`{name}` names dimensions of different {why}, one of them of {where}", function)
    _want(part, GIVEN, name)


def _wrong(message: str, function: Callable[..., Any], places: Sequence[str] = ()) -> CompileError:
    shown = ", ".join(places[:12]) + (", ..." if len(places) > 12 else "")
    help = f"the arguments' arrays are: {shown}" if places else None
    return failure("E803", message, definition(function), help)


NUMBER = re.compile(r"^(.*?)(\d+)$")


def merge_copies(flat: Flat, are_linked: bool) -> None:
    """Unite the axes of arrays at the same place in copies: before arrays are linked in those of at least two matrices.

    Afterwards in those of one matrix, if no array has two of these axes.
    """
    for copies in _groups(flat).values():
        first, *others = copies.values()
        shapes = {place: var.shape for place, var in first.items()}
        if any({place: var.shape for place, var in other.items()} != shapes for other in others):
            continue
        pairs = [
            pair for other in others for x in first for pair in zip(first[x].axes, other[x].axes, strict=True)
        ]
        matrices = sum(len(shape) > 1 for shape in shapes.values())
        if all(may_unite(*pair) for pair in pairs) and matrices == 1 if are_linked else matrices > 1:
            for pair in pairs:
                unite(*pair)


Copy = dict[tuple[str, ...], Var]
"""A copy: place after its number -> array."""


def _groups(flat: Flat) -> dict[tuple[str | bool, ...], dict[str, Copy]]:
    """Return places before a number, and whether a place follows it -> number -> copy."""
    from jax.tree_util import keystr

    found: dict[tuple[str | bool, ...], dict[str, Copy]] = defaultdict(lambda: defaultdict(dict))
    for path, var in zip(flat.inputs, flat.body.arguments, strict=False):
        parts = (*(keystr((key,), simple=True) for key in path[:2]), *flat.parts(path))
        for i, part in enumerate(parts):
            match = NUMBER.match(part)
            if match and i > 1:
                after = parts[i + 1 :]
                found[(*parts[:i], match[1], bool(after))][match[2]][after] = var
    return found
