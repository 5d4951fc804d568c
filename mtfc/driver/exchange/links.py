"""Apply a map of weights to a program: link each tensor of the other library to its places in our parameters.

The program alone decides the links: its parameters, and the sizes of its dimensions. So a map that does not fit the program is
reported (E507) before a file is read. A link gives a tensor's name and shape, and moves numbers in both directions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, product
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Label, nearest
from mtfc.compiler.ir.core import Parameter, Program
from mtfc.compiler.ir.types import Dim
from mtfc.driver.data.array_files import Array, whole
from mtfc.driver.data.fitting import shape_text
from mtfc.driver.exchange.weight_map import CODE, HOLE, Axes, Rule, WeightMap, holes


@attrs.frozen(slots=False, eq=False)
class Part:
    """The place in a parameter of a part of a tensor.

    index: the element along each dimension of the parameter that numbers tensors, None along the others. dims: the others, with
    split ones replaced by their parts. axes: the names of `dims` that each axis of the tensor joins.
    """

    parameter: Parameter
    index: tuple[int | None, ...]
    dims: tuple[Dim, ...]
    axes: Axes

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part in the tensor."""
        sizes = {dim.name: dim.size for dim in self.dims}
        return tuple(math.prod(sizes[name] for name in axis) for axis in self.axes)

    def taken(self, values: Array) -> Array:
        """Return the part of the tensor from the parameter's values."""
        return (
            values[self._at]
            .reshape([dim.size for dim in self.dims])
            .transpose(self._order)
            .reshape(self.shape)
        )

    def put(self, values: Array, part: Array) -> None:
        """Write the part of the tensor into the parameter's values."""
        back = sorted(range(len(self._order)), key=self._order.__getitem__)
        ours = part.reshape([self.dims[i].size for i in self._order]).transpose(back)
        values[self._at] = ours.reshape(values[self._at].shape)

    @property
    def _at(self) -> tuple[Any, ...]:
        """Return the index, which keeps an array even if it numbers all dimensions."""
        return (*(slice(None) if i is None else i for i in self.index), ...)

    @property
    def _order(self) -> list[int]:
        positions = {dim.name: i for i, dim in enumerate(self.dims)}
        return [positions[name] for axis in self.axes for name in axis]


@attrs.frozen(slots=False, eq=False)
class TensorLink:
    """A tensor of the other library: its possible names, and its parts along axis `rule.join`."""

    names: tuple[str, ...]
    parts: tuple[Part, ...]
    rule: Rule

    @cached_property
    def shape(self) -> tuple[int, ...]:
        shapes = [part.shape for part in self.parts]
        join = self.rule.join
        if len(shapes) == 1:
            return shapes[0]
        return (*shapes[0][:join], sum(shape[join] for shape in shapes), *shapes[0][join + 1 :])

    @property
    def shape_text(self) -> str:
        """Return `(heads d_k) d_model`, and what is joined."""
        texts = [" ".join(map(_axis_text, part.axes)) or "a scalar" for part in self.parts]
        return f" joined along axis {self.rule.join} with ".join(f"`{text}`" for text in texts)

    def split(self, tensor: Array) -> Iterator[tuple[Part, Array]]:
        """Yield the parts, and their numbers in the tensor."""
        join = self.rule.join
        ends = accumulate(part.shape[join] if len(self.parts) > 1 else 0 for part in self.parts)
        for part, end in zip(self.parts, ends, strict=True):
            cut = (*(slice(None),) * join, slice(end - part.shape[join], end)) if len(self.parts) > 1 else ...
            yield part, tensor[cut]

    def joined(self, values: Mapping[str, Array]) -> Array:
        """Return the tensor from the values of parameters by name."""
        import numpy as np

        parts = [part.taken(values[part.parameter.name]) for part in self.parts]
        return np.concatenate(parts, self.rule.join) if len(parts) > 1 else parts[0]


def _axis_text(axis: Sequence[str]) -> str:
    return f"({' '.join(axis)})" if len(axis) > 1 else axis[0] if axis else "1"


def links_of(weight_map: WeightMap, program: Program) -> tuple[TensorLink, ...]:
    """Return a link for each tensor of the other library. Raises `CompileError` (E507)."""
    diagnostics = Diagnostics()
    matching = _Matching(weight_map, {each.name: each for each in program.parameters}, diagnostics)
    links = [link for rule in weight_map.rules for link in matching.links(rule)]
    if not diagnostics.errors:
        matching.check_all_linked(links)
    diagnostics.raise_if_errors()
    return tuple(links)


@attrs.frozen
class _Matching:
    """Matches rules with parameters, and reports (E507) what does not fit."""

    weight_map: WeightMap
    parameters: Mapping[str, Parameter]
    diagnostics: Diagnostics

    def error(
        self, rule: Rule, key: str, message: str, help: str | None = None, labels: Iterable[Label] = ()
    ) -> None:
        self.diagnostics.add(CODE, message, rule.span(key), labels, help)

    def links(self, rule: Rule) -> Iterator[TensorLink]:
        unknown = {hole for pattern in rule.ours for hole in holes(pattern)} - holes(rule.theirs[0])
        if unknown:
            self.error(rule, "ours", f"`{{{min(unknown)}}}` is not in `theirs`")
            return
        found = list(self._bindings(rule))
        for binding in found:
            parameters = [self.parameters.get(filled(pattern, binding)) for pattern in rule.ours]
            if None in parameters:
                self._unknown(rule, filled(rule.ours[parameters.index(None)], binding))
            else:
                yield from self._numbered(rule, binding, [each for each in parameters if each])
        if not found:
            self._unknown(rule, rule.ours[0])

    def _unknown(self, rule: Rule, name: str) -> None:
        near = nearest(name, self.parameters)
        help = f"did you mean `{near}`?" if near else None
        self.error(rule, "ours", f"the model has no parameter `{name}`", help)

    def _bindings(self, rule: Rule) -> Iterator[dict[str, str]]:
        """Yield the texts of the holes of `ours` with which the first pattern is the name of a parameter."""
        pattern = re.compile(regex(rule.ours[0], "[^.]+"))
        return (match.groupdict() for name in self.parameters if (match := pattern.fullmatch(name)))

    def _numbered(
        self, rule: Rule, binding: Mapping[str, str], parameters: Sequence[Parameter]
    ) -> Iterator[TensorLink]:
        """Yield the links of some parameters: one for each element of the dimensions that number tensors."""
        numbers = sorted(holes(rule.theirs[0]) - binding.keys())
        for name, parameter in product(numbers, parameters):
            if name not in parameter.type.names:
                help = (
                    f"braces number tensors along a dimension of the parameter, {shape_text(parameter.type)}"
                )
                message = f"`{{{name}}}` is neither in `ours` nor a dimension of `{parameter.name}`"
                self.error(rule, "theirs", message, help)
                return
        shapes = [
            self._shape(rule, parameter, dims, numbers)
            for parameter, dims in zip(parameters, rule.dims, strict=True)
        ]
        known = [each for each in shapes if each is not None]
        if len(known) < len(shapes) or not self._joins(rule, parameters, known):
            return
        sizes = {dim.name: dim.size for dim in parameters[0].type.dims}
        for at in product(*(range(sizes[name]) for name in numbers)):
            index = dict(zip(numbers, at, strict=True))
            names = tuple(
                filled(each, {**binding, **{k: str(v) for k, v in index.items()}}) for each in rule.theirs
            )
            parts = tuple(
                Part(parameter, tuple(index.get(name) for name in parameter.type.names), dims, axes)
                for parameter, (dims, axes) in zip(parameters, known, strict=True)
            )
            yield TensorLink(names, parts, rule)

    def _shape(
        self, rule: Rule, parameter: Parameter, axes: Axes | None, numbers: Sequence[str]
    ) -> tuple[tuple[Dim, ...], Axes] | None:
        """Return the dimensions of a tensor in our order, and its axes."""
        own = [dim for dim in parameter.type.dims if dim.name not in numbers]
        if axes is None:
            return tuple(own), tuple((dim.name,) for dim in own)
        used = [name for axis in axes for name in axis]
        dims = [part for dim in own for part in self._parts(rule, dim, used)]
        names = [dim.name for dim in dims]
        wrong = [name for name in used if name not in names]
        lost = [name for name in names if name not in used]
        shown = f"`{parameter.name}`, which is {shape_text(parameter.type)}"
        if wrong:
            near = nearest(wrong[0], names)
            help = f"did you mean `{near}`?" if near else None
            number = f"the braces of `theirs` have `{wrong[0]}` already" if wrong[0] in numbers else help
            self.error(rule, "dims", f"`{wrong[0]}` is no dimension of a tensor of {shown}", number)
        elif lost:
            self.error(rule, "dims", f"`dims` lacks `{lost[0]}`, a dimension of {shown}")
        elif len(set(used)) < len(used):
            twice = next(name for name in used if used.count(name) > 1)
            self.error(rule, "dims", f"`dims` has `{twice}` twice")
        else:
            return tuple(dims), axes
        return None

    def _parts(self, rule: Rule, dim: Dim, used: Sequence[str]) -> list[Dim]:
        """Return the parts that `split` gives a dimension, if the rule uses one of them; else the dimension itself."""
        parts = self.weight_map.split.get(dim.name, ())
        if dim.name in used or not any(name in used for name, _ in parts):
            return [dim]
        given = math.prod(size or 1 for _, size in parts)
        rest, left = divmod(dim.size, given)
        sizes = [Dim(name, rest if size is None else size) for name, size in parts]
        if left or math.prod(each.size for each in sizes) != dim.size:
            shown = " ".join(name if size is None else f"{name}={size}" for name, size in parts)
            self.error(rule, "dims", f"`{dim.name}` of {dim.size} cannot be split into `{shown}`")
        return sizes

    def _joins(
        self, rule: Rule, parameters: Sequence[Parameter], shapes: Sequence[tuple[tuple[Dim, ...], Axes]]
    ) -> bool:
        """Return True if the parameters can be joined along the rule's axis; else report it."""
        if len(shapes) == 1:
            return True
        if len({parameter.name for parameter in parameters}) < len(parameters):
            self.error(rule, "ours", "`ours` has a parameter twice")
            return False
        parts = [
            Part(parameter, (), dims, axes).shape
            for parameter, (dims, axes) in zip(parameters, shapes, strict=True)
        ]
        if any(len(part) <= rule.join for part in parts):
            self.error(rule, "join", f"their tensor has {len(parts[0])} axes: there is no axis {rule.join}")
            return False
        others = {part[: rule.join] + part[rule.join + 1 :] for part in parts}
        if len(others) > 1:
            shown = ", ".join(str(list(part)) for part in parts)
            self.error(rule, "ours", f"parts of shapes {shown} cannot be joined along axis {rule.join}")
        return len(others) == 1

    def check_all_linked(self, links: Sequence[TensorLink]) -> None:
        """Report parameters without a rule, and tensors or parts of parameters that two rules give."""
        places: dict[tuple[str, tuple[int | None, ...]], Rule] = {}
        names: dict[str, Rule] = {}
        for link in links:
            if (first := names.setdefault(link.names[0], link.rule)) is not link.rule:
                self._twice(link.rule, "theirs", f"the tensor `{link.names[0]}`", first)
            for part in link.parts:
                first = places.setdefault((part.parameter.name, part.index), link.rule)
                if first is not link.rule:
                    self._twice(link.rule, "ours", f"the parameter `{part.parameter.name}`", first)
        for name in self.parameters.keys() - {name for name, _ in places}:
            span = self.parameters[name].span or whole(self.weight_map.path)
            message = f"{self.weight_map.path} has no rule for the parameter `{name}`"
            self.diagnostics.add(CODE, message, span)

    def _twice(self, rule: Rule, key: str, what: str, first: Rule) -> None:
        labels = [Label(first.span(key), "the first rule is here")]
        self.error(rule, key, f"two rules give {what}", labels=labels)


def filled(pattern: str, binding: Mapping[str, str]) -> str:
    """Return a pattern with texts in the place of some holes."""
    return HOLE.sub(lambda match: binding.get(match[1], match[0]), pattern)


def regex(pattern: str, hole: str) -> str:
    """Return a regular expression that matches the names of a pattern; each hole is a group, and matches `hole`."""
    pieces = HOLE.split(pattern)
    seen: set[str] = set()
    found = ""
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            found += re.escape(piece)
        elif piece in seen:
            found += f"(?P={piece})"
        else:
            seen.add(piece)
            found += f"(?P<{piece}>{hole})"
    return found
