"""Write the parameters of a model to files for other libraries, and read theirs, for `mtfc export` and `mtfc import`.

Arrays are read, moved and written one at a time, in the dtypes of the source: memory holds one parameter and one tensor. All
names, shapes and dtypes are checked before the first number is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Diagnostics, nearest
from mtfc.compiler.ir.core import Parameter, Program
from mtfc.driver.data.array_files import (
    SAFETENSORS,
    Array,
    StoredArray,
    files_of,
    numpy_type,
    stored_arrays,
    unread,
    whole,
    write_arrays,
)
from mtfc.driver.data.checkpoint_files import local_parameters
from mtfc.driver.data.files import check_apart, check_writable
from mtfc.driver.data.fitting import kind_of
from mtfc.driver.data.inputs import stored_parameters
from mtfc.driver.errors import UsageError
from mtfc.driver.exchange.links import Part, TensorLink, links_of, regex
from mtfc.driver.exchange.weight_map import Rule, WeightMap, holes, read_map
from mtfc.driver.loading.selection import select_program
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import ExchangeOptions
from mtfc.driver.version import installed_version
from mtfc.reports.table import count_text


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
    metadata = {"program": program.name, "mtfc": installed_version() or "not installed"}
    write_arrays(options.output, arrays, {**metadata, **(weight_map.metadata if weight_map else {})})
    return WrittenFile(options.output, arrays)


# Moving numbers


def _exported(links: Sequence[TensorLink], ours: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Return their tensors. The parameters of a rule are read once for all of its tensors, which follow each other."""
    held: dict[str, Array] = {}

    def values(names: Sequence[str]) -> dict[str, Array]:
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
    """Return our parameters."""
    places: dict[str, list[tuple[TensorLink, Part]]] = {parameter.name: [] for parameter in parameters}
    for link in links:
        for part in link.parts:
            places[part.parameter.name].append((link, part))

    def stored(parameter: Parameter) -> StoredArray:
        shape = tuple(dim.size for dim in parameter.type.dims)
        dtype = _common(theirs[link].dtype for link, _ in places[parameter.name])
        return StoredArray(shape, dtype, lambda: _gathered(shape, dtype, places[parameter.name], theirs))

    return {parameter.name: stored(parameter) for parameter in parameters}


def _gathered(
    shape: tuple[int, ...],
    dtype: str,
    places: Iterable[tuple[TensorLink, Part]],
    theirs: Mapping[TensorLink, StoredArray],
) -> Array:
    """Read a parameter, tensor by tensor."""
    import numpy as np

    values = np.empty(shape, numpy_type(dtype))
    for link, wanted in places:
        for part, numbers in link.split(theirs[link].read()):
            if part is wanted:
                part.put(values, numbers)
    return values


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
        self._check_missing([link for link, name in names.items() if name is None])
        found = {link: self.arrays[name] for link, name in names.items() if name is not None}
        self._check_shapes([link for link, array in found.items() if array.shape != link.shape], names)
        self._check_kinds([link for link, array in found.items() if kind_of(array.dtype) not in "fiu"], names)
        self._check_unread({name for name in names.values() if name is not None})
        self.diagnostics.raise_if_errors()
        return found

    def _name(self, link: TensorLink) -> str | None:
        return next((name for name in link.names if name in self.arrays), None)

    def _check_missing(self, links: Iterable[TensorLink]) -> None:
        for rule, same in _by_rule(links):
            name = same[0].names[0]
            near = nearest(name, self.arrays)
            help = self._resized(rule) or (f"did you mean its tensor `{near}`?" if near else None)
            message = f"{self.path} has no tensor `{name}`{_more(same)}"
            self.diagnostics.add("E502", message, rule.span("theirs"), help=help)

    def _check_shapes(self, links: Iterable[TensorLink], names: Mapping[TensorLink, str | None]) -> None:
        for rule, same in _by_rule(links):
            link, name = same[0], names[same[0]] or ""
            shape = self.arrays[name].shape
            message = (
                f"`{name}` of {self.path} has shape {list(shape)}, and this rule needs {link.shape_text}, "
                f"which is {list(link.shape)}{_more(same)}"
            )
            self.diagnostics.add("E503", message, rule.span("theirs"), help=_other_sizes(link, shape))

    def _check_kinds(self, links: Iterable[TensorLink], names: Mapping[TensorLink, str | None]) -> None:
        for rule, same in _by_rule(links):
            name = names[same[0]] or ""
            dtype, type = self.arrays[name].dtype, same[0].parts[0].parameter.type.dtype
            message = f"a parameter is {type}, and `{name}` of {self.path} is {dtype}{_more(same)}"
            self.diagnostics.add("E504", message, rule.span("theirs"))

    def _check_unread(self, read: set[str]) -> None:
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


def _by_rule(links: Iterable[TensorLink]) -> Iterator[tuple[Rule, list[TensorLink]]]:
    rules: dict[int, list[TensorLink]] = {}
    for link in links:
        rules.setdefault(id(link.rule), []).append(link)
    return ((same[0].rule, same) for same in rules.values())


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
