"""Convert Python values of options to the text that the command takes.

A layout is a mapping from dimensions to axes, and a mesh is a mapping from axes to sizes, like the declarations of the language.
Both become the text of a declaration: one parser reads all layouts, and errors can point into the text.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from numbers import Real
from os import PathLike, fspath
from typing import TYPE_CHECKING, TypeAlias

from mtfc.driver.errors import UsageError

if TYPE_CHECKING:
    from mtfc.compiler.passes.pass_base import Pass

PathOption = str | PathLike[str]

Axes = str | Sequence[str]
"""A mesh axis, or several axes with the most major one first."""

LayoutOption = str | Mapping[str, Axes | Mapping[str, Axes | int]]
"""The name of a layout, rules as text, or as `{"batch": "rows", "params": {"hidden": ("rows", "cols")}}`."""

MeshOption = str | Mapping[str, int]
"""The name of a mesh, its shape as text, or as `{"rows": 2, "cols": 4}`."""

MemoryOption = str | int
"""A size such as `"80GiB"`, or a number of bytes."""

PassesOption: TypeAlias = "str | Sequence[Pass]"
"""Passes as text, such as `"differentiation,mine,partitioning"`, or one after the other."""

NAME = re.compile(r"[A-Za-z_]\w*")
KEY = re.compile(r"(value\s+)?[A-Za-z_]\w*(\.\w+)*|\*")

RULE = "a rule is a dimension and its axes, such as {'batch': 'rows'} or {'batch': ('rows', 'cols')}"
NAMED = "`program.arguments()` shows each array's dimensions, and 'params' splits stored ones: {'params': {'hidden': 'rows'}}"
WHOLE = "leave the entry out, as a dimension without a rule is not split"
CODE = re.compile(r"[A-Z]\d{3}")
ENTRY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")

SETTINGS = (
    "entries of a train block are a mapping, such as {'accumulate': 4} or {'optimizer.learning_rate': 1e-3}"
)
SECTION = "only params, optimizer and value have rules of their own, such as {'params': {'hidden': 'rows'}}"
FORM = "entries of forms are words, or a whole number, such as {'forms': {'regions': 'time'}}"


def layout_option(layout: LayoutOption | None) -> str | None:
    """Return the text of a layout. Raises `UsageError` for an illegal value."""
    if layout is None or isinstance(layout, str):
        return layout
    if not isinstance(layout, Mapping):
        raise UsageError(f"layout={layout!r} is neither text nor a mapping: {RULE}")
    return _rules(layout, has_sections=True)


def memory_option(memory: MemoryOption | None) -> str | None:
    """Return the text of a memory limit. Raises `UsageError` for an illegal value."""
    if memory is None or isinstance(memory, str):
        return memory
    return str(_size(memory, "memory"))


def passes_option(passes: PassesOption | None) -> str | tuple[Pass, ...] | None:
    """Return a pipeline as the driver takes it. Raises `UsageError` for an illegal value."""
    if passes is None or isinstance(passes, str):
        return passes
    from mtfc.compiler.passes.pass_base import Pass

    found = tuple(passes) if isinstance(passes, Iterable) else (passes,)
    wrong = next((each for each in found if not isinstance(each, Pass)), None)
    if wrong is not None:
        raise UsageError(
            f"passes={passes!r}: {wrong!r} is no `mtfc.ir.Pass`; give passes, or text such as 'default'"
        )
    return found


def mesh_option(mesh: MeshOption | None) -> str | None:
    """Return the text of a mesh, which may be one of JAX. Raises `UsageError` for an illegal value."""
    mesh = getattr(mesh, "shape", mesh)
    if mesh is None or isinstance(mesh, str):
        return mesh
    if not isinstance(mesh, Mapping):
        raise UsageError(f"mesh={mesh!r} is neither text nor a mapping such as {{'rows': 2, 'cols': 4}}")
    if not mesh:
        raise UsageError("mesh={} has no axes: a mesh has at least one, such as {'all': 1}")
    axes = (
        f"{_name(axis, 'mesh')}: {_size(size, f'axis {axis!r} of the mesh')}" for axis, size in mesh.items()
    )
    return f"[{', '.join(axes)}]"


def sizes_option(dims: Mapping[str, int] | None) -> dict[str, int]:
    """Return sizes of dimensions by name. Raises `UsageError` for a size that is not a whole number."""
    if not isinstance(dims, Mapping | None):
        raise UsageError(f"dims={dims!r} is no mapping such as {{'batch': 64}}")
    return {str(name): _size(size, f"dims[{name!r}]") for name, size in (dims or {}).items()}


def file_option(file: PathOption) -> str:
    """Return the text of the path of a .mtf file. Raises `UsageError` for any other value."""
    text = fspath(file) if isinstance(file, PathLike) else file
    if not isinstance(text, str):
        raise UsageError(f"{file!r} is no path of a .mtf file; a function of JAX goes to `mtfc.from_jax`")
    return text


def path_option(option: str, path: PathOption | None) -> str | None:
    """Return the text of a path, or None if it is left out. Raises `UsageError` for any other value."""
    text = fspath(path) if isinstance(path, PathLike) else path
    if not isinstance(text, str | None):
        raise UsageError(f"{option}={path!r} is no path: expected text or a pathlib.Path")
    return text


def target_option(target: PathOption) -> str:
    """Return the name of a machine, or the text of the path of a file. Raises `UsageError` for any other value."""
    text = path_option("target", target)
    if text is None:
        raise UsageError("target=None is no machine: expected its name, or a .mtf file that declares one")
    return text


def text_option(option: str, text: str | None) -> str | None:
    """Return a text, or None if it is left out. Raises `UsageError` for any other value."""
    if not isinstance(text, str | None):
        raise UsageError(f"{option}={text!r} is no text")
    return text


def program_text(text: str) -> str:
    """Return the text of a .mtf file. Raises `UsageError` for any other value."""
    if not isinstance(text, str):
        raise UsageError(f"text={text!r} is not the text of a .mtf file")
    return text


def names_option(option: str, names: Sequence[str] | None) -> list[str] | None:
    """Return names as a list. Raises `UsageError` for anything but a sequence of texts."""
    if names is None:
        return None
    is_list = isinstance(names, Iterable) and not isinstance(names, str | bytes | Mapping)
    found = list(names) if is_list else []
    if not is_list or not all(isinstance(name, str) for name in found):
        raise UsageError(f"{option}={names!r} is no sequence of names, such as ['data', 'model']")
    return found


def settings_option(settings: Mapping[str, object] | None) -> dict[str, object]:
    """Return entries of a `train` block by dotted key. Raises `UsageError` for any other value.

    The parts of an entry may be a mapping: `{"precision": {"compute": "bf16"}}` is `{"precision.compute": "bf16"}`.
    """
    if not isinstance(settings, Mapping | None):
        raise UsageError(f"set={settings!r}: {SETTINGS}")
    found: dict[str, object] = {}
    for key, value in (settings or {}).items():
        if not isinstance(key, str) or not ENTRY.fullmatch(key.strip()):
            raise UsageError(f"set has the key {key!r}: {SETTINGS}")
        if isinstance(value, Mapping):
            parts = settings_option(value)
            found |= {f"{key.strip()}.{part}": each for part, each in parts.items()}
        else:
            found[key.strip()] = value
    return found


def number_option(option: str, value: int | None, least: int, most: int) -> None:
    """Raise `UsageError` unless an option that is given is a whole number from `least` to `most`."""
    if value is not None and not least <= _size(value, option) <= most:
        raise UsageError(f"{option}={value!r} is not from {least} to {most:,}")


def seconds_option(option: str, value: float) -> None:
    """Raise `UsageError` unless an option is a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < inf:
        raise UsageError(f"{option}={value!r} is no number of seconds above 0")


def one_of(option: str, value: str, known: Iterable[str]) -> None:
    """Raise `UsageError` for an unknown word of an option. The command's parser reports such words itself."""
    words = list(known)
    if value not in words:
        raise UsageError(f"{option}={value!r} is none of: {', '.join(words)}")


def _rules(rules: Mapping[str, Axes | Mapping[str, Axes | int]], has_sections: bool) -> str:
    return f"{{ {', '.join(_entry(key, value, has_sections) for key, value in rules.items())} }}"


def _entry(key: object, value: object, has_sections: bool) -> str:
    """Return the text of an entry of a layout that is given as a mapping. has_sections: rules may stand within the entry."""
    if not isinstance(key, str) or not KEY.fullmatch(key.strip()):
        raise UsageError(f"layout has the key {key!r}, which is no name: {RULE}; {NAMED}")
    if key.strip() == "allow" and has_sections and (codes := _codes(value)):
        return ", ".join(f"allow {code}" for code in codes)
    if key.strip() == "forms" and has_sections and isinstance(value, Mapping):
        return f"forms: {{ {', '.join(_form(each, value[each]) for each in value)} }}"
    if isinstance(value, Mapping):
        if not has_sections:
            raise UsageError(f"layout has rules within rules for {key!r}: {SECTION}")
        return f"{key.strip()}: {_rules(value, has_sections=False)}"
    if isinstance(value, str):
        return f"{key.strip()}: {_name(value, 'layout')}"
    if not isinstance(value, Iterable):
        raise UsageError(f"layout splits {key!r} over {value!r}: {WHOLE if value is None else RULE}")
    return f"{key.strip()}: ({', '.join(_name(axis, 'layout') for axis in value)})"


def _form(key: object, value: object) -> str:
    """Return an entry of `forms` as text. Raises `UsageError` for a wrong one."""
    is_value = (isinstance(value, str) and NAME.fullmatch(value)) or type(value) is int
    if not isinstance(key, str) or not NAME.fullmatch(key) or not is_value:
        raise UsageError(f"layout has the form {key!r}: {value!r}: {FORM}")
    return f"{key}: {value}"


def _codes(value: object) -> list[str]:
    """Return the codes of warnings, one or several; nothing if these are the axes of a dimension called `allow`."""
    codes = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else []
    return codes if all(isinstance(code, str) and CODE.fullmatch(code) for code in codes) else []


def _name(axis: object, option: str) -> str:
    """Return the name of a mesh axis. Raises `UsageError` for anything else."""
    if not isinstance(axis, str) or not NAME.fullmatch(axis):
        raise UsageError(f"{option} has {axis!r} where the name of a mesh axis is expected")
    return axis


def _size(size: object, what: str) -> int:
    """Return a whole number. Raises `UsageError` for anything else. what: its name in the message."""
    if isinstance(size, bool):
        raise UsageError(f"{what} is {size!r}, which is no whole number")
    try:
        return operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{what} is {size!r}, which is no whole number") from None
