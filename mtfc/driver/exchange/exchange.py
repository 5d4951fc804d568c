"""Write the parameters of a model to files for other libraries, and read theirs, for `mtfc export` and `mtfc import`.

Arrays are read, moved and written one at a time, in the dtypes of the source: memory holds one parameter and one tensor. All
names, shapes and dtypes are checked before the first number is read.

A map of weights is applied to a program: each tensor of the other library is linked to its places in our parameters. The program
alone decides the links: its parameters, and the sizes of its dimensions. So a map that does not fit is reported (E507) before a
file is read. A link gives a tensor's name and shape, and moves numbers in both directions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate, product
from typing import Any

import attrs
import numpy as np

from mtfc.compiler.diagnostics import Diagnostics, Label, did_you_mean, nearest
from mtfc.compiler.ir.core import Parameter, Program
from mtfc.compiler.ir.types import Dim
from mtfc.driver.data.array_files import (
    SAFETENSORS,
    Array,
    StoredArray,
    files_of,
    local_parameters,
    numpy_type,
    stored_arrays,
    unread,
    whole,
    write_arrays,
)
from mtfc.driver.data.files import check_apart, check_writable
from mtfc.driver.data.inputs import kind_of, shape_text, stored_parameters
from mtfc.driver.errors import UsageError
from mtfc.driver.exchange.weight_map import CODE, HOLE, Axes, Rule, WeightMap, holes, read_map
from mtfc.driver.loading.selection import select_program
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import ExchangeOptions
from mtfc.driver.version import installed_version
from mtfc.reports.source_lines import count_text


@attrs.frozen
class WrittenFile:
    """The arrays that were written to a file: shapes, and dtypes by their NumPy names."""

    path: str
    arrays: Mapping[str, StoredArray]

    def record(self) -> dict[str, Any]:
        """Return the JSON record."""
        arrays = {
            name: {"shape": list(each.shape), "dtype": each.dtype} for name, each in self.arrays.items()
        }
        return {"file": self.path, "arrays": arrays}

    def report(self) -> str:
        """Return `out.safetensors: 12 arrays, 8.03 G numbers in bfloat16`."""
        number = len(self.arrays)
        dtypes = ", ".join(sorted({each.dtype for each in self.arrays.values()}))
        numbers = count_text(sum(each.size for each in self.arrays.values()))
        return f"{self.path}: {number} array{'s'[: number - 1]}, {numbers} numbers in {dtypes}"


def export_weights(options: ExchangeOptions, sources: Sources) -> WrittenFile:
    """Write all parameters, from a file under our names. Raises `CompileError`, `UsageError` and `Unavailable`."""
    program, weight_map = _start(options, "--params", sources)
    links = links_of(weight_map, program) if weight_map else ()
    source = local_parameters(options.source)
    ours = stored_parameters(source, program, averages=options.averages)
    return _written(options, program, weight_map, _exported(links, ours) if weight_map else ours)


def import_weights(options: ExchangeOptions, sources: Sources) -> WrittenFile:
    """Write all parameters under our names, from a file of any names. Raises `CompileError`, `UsageError` and `Unavailable`."""
    program, weight_map = _start(options, "--from", sources)
    source = local_parameters(options.source)
    if weight_map is None:
        return _written(options, program, None, stored_parameters(source, program))
    links = links_of(weight_map, program)
    theirs = _Tensors(source, weight_map, links, stored_arrays(source)).fitting()
    return _written(options, program, None, _imported(program.parameters, links, theirs))


def _start(options: ExchangeOptions, source: str, sources: Sources) -> tuple[Program, WeightMap | None]:
    """Check the files, and read the program and the map."""
    if not options.output.endswith((".npz", SAFETENSORS)):
        raise UsageError(f"-o {options.output}: the name of the file must end in .npz or {SAFETENSORS}")
    for each in files_of(options.source):
        check_apart({"-o": options.output}, {"FILE": options.file, source: each, "--map": options.map})
    check_writable(options.output)
    program = select_program(options.file, options.choice, sources)
    return program, read_map(options.map, sources) if options.map is not None else None


def _written(
    options: ExchangeOptions,
    program: Program,
    weight_map: WeightMap | None,
    arrays: Mapping[str, StoredArray],
) -> WrittenFile:
    """Write arrays to the output, with metadata, and return their record."""
    metadata = {"program": program.name, "mtfc": installed_version() or "not installed"}
    write_arrays(options.output, arrays, {**metadata, **(weight_map.metadata if weight_map else {})})
    return WrittenFile(options.output, arrays)


# Moving numbers


def _exported(links: Sequence[TensorLink], ours: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Return their tensors. The parameters of a rule are read once for all of its tensors, which follow each other."""
    held: dict[str, Array] = {}

    def values(names: Sequence[str]) -> dict[str, Array]:
        """Return parameters by name, and keep them until others are wanted."""
        if not held.keys() >= set(names):
            held.clear()
            held.update({name: ours[name].read() for name in names})
        return held

    def reader(link: TensorLink, dtype: str) -> Callable[[], Array]:
        names = [part.parameter.name for part in link.parts]
        return lambda: link.joined(values(names)).astype(numpy_type(dtype), copy=False)

    dtypes = [_common(ours[part.parameter.name].dtype for part in link.parts) for link in links]
    return {
        link.names[0]: StoredArray(link.shape, dtype, reader(link, dtype))
        for link, dtype in zip(links, dtypes, strict=True)
    }


def _imported(
    parameters: Iterable[Parameter], links: Sequence[TensorLink], theirs: Mapping[TensorLink, StoredArray]
) -> dict[str, StoredArray]:
    """Return our parameters, each read tensor by tensor."""
    places: dict[str, list[tuple[TensorLink, Part]]] = {parameter.name: [] for parameter in parameters}
    for link in links:
        for part in link.parts:
            places[part.parameter.name].append((link, part))

    def stored(parameter: Parameter) -> StoredArray:
        """Return a parameter, which is read later from the arrays that its elements come from."""
        shape = tuple(dim.size for dim in parameter.type.dims)
        dtype = _common(theirs[link].dtype for link, _ in places[parameter.name])

        def read() -> Array:
            values = np.empty(shape, numpy_type(dtype))
            for link, wanted in places[parameter.name]:
                for part, numbers in link.split(theirs[link].read()):
                    if part is wanted:
                        part.put(values, numbers)
            return values

        return StoredArray(shape, dtype, read)

    return {parameter.name: stored(parameter) for parameter in parameters}


def _common(dtypes: Iterable[str]) -> str:
    """Return a dtype that holds the numbers of all dtypes, up to the rounding of integers above 2**24."""
    found = set(dtypes)
    return found.pop() if len(found) == 1 else "float64" if "float64" in found else "float32"


# Checks


@attrs.frozen
class _Tensors:
    """The tensors of a file, and the check that the links of a map read all of them."""

    path: str
    weight_map: WeightMap
    links: Sequence[TensorLink]
    arrays: Mapping[str, StoredArray]
    diagnostics: Diagnostics = attrs.field(factory=Diagnostics)

    def fitting(self) -> dict[TensorLink, StoredArray]:
        """Return the tensor of each link. Raises `CompileError` (E502 to E505)."""
        names = {link: self._name(link) for link in self.links}
        found = {link: self.arrays[name] for link, name in names.items() if name is not None}
        self._report("E502", self._missing, (link for link, name in names.items() if name is None))
        self._report("E503", self._misshaped, (link for link, x in found.items() if x.shape != link.shape))
        kinds = (link for link, x in found.items() if kind_of(x.dtype) not in "fiu")
        self._report("E504", self._no_numbers, kinds)
        self._check_unread({name for name in names.values() if name is not None})
        self.diagnostics.raise_if_errors()
        return found

    def _name(self, link: TensorLink) -> str | None:
        return next((name for name in link.names if name in self.arrays), None)

    def _report(
        self, code: str, text: Callable[[TensorLink], tuple[str, str | None]], links: Iterable[TensorLink]
    ) -> None:
        """Report the first of the links of each rule. text: returns its message and help."""
        rules: dict[int, list[TensorLink]] = {}
        for link in links:
            rules.setdefault(id(link.rule), []).append(link)
        for same in rules.values():
            message, help = text(same[0])
            self.diagnostics.add(code, message + _more(same), same[0].rule.span("theirs"), help=help)

    def _missing(self, link: TensorLink) -> tuple[str, str | None]:
        """Return the message and the help about a tensor that the file lacks."""
        near = nearest(link.names[0], self.arrays)
        help = self._resized(link.rule) or (f"did you mean its tensor `{near}`?" if near else None)
        return f"{self.path} has no tensor `{link.names[0]}`", help

    def _misshaped(self, link: TensorLink) -> tuple[str, str | None]:
        """Return the message and the help about a tensor of another shape than its rule needs."""
        name = self._name(link) or ""
        shape, needed = self.arrays[name].shape, f"{link.shape_text}, which is {list(link.shape)}"
        message = f"`{name}` of {self.path} has shape {list(shape)}, and this rule needs {needed}"
        return message, _other_sizes(link, shape)

    def _no_numbers(self, link: TensorLink) -> tuple[str, str | None]:
        name, type = self._name(link) or "", link.parts[0].parameter.type.dtype
        return f"a parameter is {type}, and `{name}` of {self.path} is {self.arrays[name].dtype}", None

    def _check_unread(self, read: set[str]) -> None:
        """Report (E505) tensors that no rule reads. Names that differ only in their numbers are reported once."""
        left = [name for name in unread(self.arrays, read) if not self._is_ignored(name)]
        alike: dict[str, list[str]] = {}
        for name in left:
            alike.setdefault(re.sub(r"\d+", "#", name), []).append(name)
        for names in alike.values():
            rule = next((rule for rule in self.weight_map.rules if self._numbers(rule, names[:1])), None)
            ignored = f"`ignore` in {self.weight_map.path} leaves tensors out"
            help = (self._resized(rule) if rule else None) or ignored
            message = f"{self.path} has a tensor `{names[0]}`{_more(names)}, and no rule reads it"
            self.diagnostics.add("E505", message, whole(self.path), help=help)

    def _is_ignored(self, name: str) -> bool:
        """Return True if the map of weights says to leave out a tensor."""
        return any(fnmatchcase(name, pattern) for pattern in self.weight_map.ignore)

    def _numbers(self, rule: Rule, names: Iterable[str]) -> list[dict[str, str]]:
        """Return the texts in the place of the braces, in the names that a rule's pattern takes."""
        patterns = [re.compile(regex(pattern, "[^.]+")) for pattern in rule.theirs]
        matches = (pattern.fullmatch(name) for pattern in patterns for name in names)
        return [match.groupdict() for match in matches if match]

    def _resized(self, rule: Rule) -> str | None:
        """Return help if the file numbers a rule's tensors from 0 to another size of a dimension."""
        found = self._numbers(rule, self.arrays)
        linked = (part.parameter for link in self.links if link.rule is rule for part in link.parts)
        sizes = {dim.name: dim.size for parameter in linked for dim in parameter.type.dims}
        for name in sorted(holes(rule.theirs[0]) & sizes.keys()):
            numbers = {int(each[name]) for each in found if each[name].isdecimal()}
            if numbers == set(range(len(numbers))) and 0 < len(numbers) != sizes[name]:
                return f"the file has {len(numbers)} of `{name}`, and the model {sizes[name]}: --dim {name}={len(numbers)}"
        return None


def _more(alike: Sequence[object]) -> str:
    return f" (and {len(alike) - 1} more alike)" if len(alike) > 1 else ""


def _other_sizes(link: TensorLink, shape: tuple[int, ...]) -> str | None:
    """Return help for a tensor of a wrong shape: sizes of dimensions that fit, or the order of axes."""
    if len(shape) == len(link.shape) and len(link.parts) == 1:
        axes = zip(link.parts[0].axes, link.shape, shape, strict=True)
        others = [(axis, size) for axis, ours, size in axes if ours != size]
        if all(len(axis) == 1 for axis, _ in others):
            return "the sizes of the file are " + " ".join(f"--dim {axis[0]}={size}" for axis, size in others)
    return "the sizes of dimensions are changed with --dim"


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
        return self._view(values).reshape(self.shape)

    def put(self, values: Array, part: Array) -> None:
        """Write the part of the tensor into the parameter's values."""
        view = self._view(values)
        view[...] = part.reshape(view.shape)

    def _view(self, values: Array) -> Array:
        """Return the place in the values, with an axis for each of `dims` in the order of the tensor's axes."""
        at = (*(slice(None) if i is None else i for i in self.index), ...)
        positions = {dim.name: i for i, dim in enumerate(self.dims)}
        order = [positions[name] for axis in self.axes for name in axis]
        return values[at].reshape([dim.size for dim in self.dims]).transpose(order)


@attrs.frozen(slots=False, eq=False)
class TensorLink:
    """A tensor of the other library: its possible names, and its parts along axis `rule.join`."""

    names: tuple[str, ...]
    parts: tuple[Part, ...]
    rule: Rule

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of a tensor, whose parts are joined along the axis `join` if there are several."""
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
        """Yield the links of a rule between their tensors and our parameters, for each value of the holes in its patterns."""
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
        help = did_you_mean(name, self.parameters)
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
            help = did_you_mean(wrong[0], names)
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
