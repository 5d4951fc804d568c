"""Programs whose layout breaks one known rule, with the code of the expected error."""

from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import assume
from hypothesis import strategies as st

from mtfc.compiler.ir.types import Dim
from tests.generators.layouts import LayoutText, Splits
from tests.generators.programs import Generated, programs
from tests.generators.scope import Options


@attrs.frozen
class Illegal:
    """A program with an illegal layout; the expected code, and a word that the message must contain."""

    source: str
    code: str
    word: str

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Return the form in which Hypothesis shows a failing example."""
        printer.text(f'{self.code} with `{self.word}` in """\n{self.source}"""')


@st.composite
def illegal_programs(draw: Any) -> Illegal:
    program = draw(programs(Options(layouts=1)))
    breakage = draw(st.sampled_from(BREAKAGES))
    section = draw(st.sampled_from(("rules", "params", "value")))
    return breakage(draw, program, section)  # type: ignore[no-any-return]


def _with(program: Generated, section: str, splits: Splits, owner: str) -> str:
    """Return the program's source with these splits as the only ones, in the given section of its layout."""
    layout = {
        "rules": LayoutText("main", rules=splits),
        "params": LayoutText("main", params=splits),
        "value": LayoutText("main", values={owner: splits}),
    }[section]
    return program.source.replace(str(program.layouts[0]), str(layout))


def _owner(
    draw: Any, program: Generated, section: str, fits: Callable[[tuple[Dim, ...]], bool]
) -> tuple[str, tuple[Dim, ...]]:
    """Draw a tensor that the section applies to and that fits. For a rebound name the parameter is the first value."""
    stored = section == "params"
    names = program.parameters if stored else tuple(program.values)
    shapes = [(name, program.values[name][0 if stored else -1]) for name in names]
    found = [(name, shape) for name, shape in shapes if fits(shape)]
    assume(found)
    return draw(st.sampled_from(found))  # type: ignore[no-any-return]


def _not_injective(draw: Any, program: Generated, section: str) -> Illegal:
    """Put two dims of one tensor on one axis that could split either."""
    mesh = program.mesh
    axes = [axis for axis, size in mesh.axes if size > 1]
    assume(axes)
    axis = draw(st.sampled_from(axes))

    def splittable(shape: tuple[Dim, ...]) -> list[Dim]:
        return [dim for dim in shape if dim.size % mesh.sizes[axis] == 0]

    owner, shape = _owner(draw, program, section, lambda shape: len(splittable(shape)) > 1)
    first, second = draw(st.permutations(splittable(shape)))[:2]
    splits = {first.name: (axis,), second.name: (axis,)}
    return Illegal(_with(program, section, splits, owner), "E301", axis)


def _indivisible(draw: Any, program: Generated, section: str) -> Illegal:
    """Split a dim of a tensor over axes that do not divide its size."""
    mesh = program.mesh

    def bad(shape: tuple[Dim, ...]) -> list[tuple[Dim, tuple[str, ...]]]:
        ways = [(axis,) for axis in mesh.names] + [mesh.names]
        return [(dim, axes) for dim in shape for axes in ways if dim.size % mesh.size(axes)]

    owner, shape = _owner(draw, program, section, lambda shape: bool(bad(shape)))
    dim, axes = draw(st.sampled_from(bad(shape)))
    return Illegal(_with(program, section, {dim.name: axes}, owner), "E302", dim.name)


def _unknown_dim(draw: Any, program: Generated, section: str) -> Illegal:
    """Misspell a dim."""
    owner, shape = _owner(draw, program, section, lambda shape: bool(shape))
    name = draw(misspelt(draw(st.sampled_from(shape)).name, {dim.name for dim in program.dims}))
    return Illegal(_with(program, section, {name: (program.mesh.names[0],)}, owner), "E303", name)


def _unknown_axis(draw: Any, program: Generated, section: str) -> Illegal:
    """Misspell a mesh axis."""
    owner, shape = _owner(draw, program, section, lambda shape: bool(shape))
    axis = draw(misspelt(draw(st.sampled_from(program.mesh.names)), set(program.mesh.names)))
    dim = draw(st.sampled_from(shape))
    return Illegal(_with(program, section, {dim.name: (axis,)}, owner), "E304", axis)


@st.composite
def misspelt(draw: Any, name: str, known: set[str]) -> str:
    """Return `name` with a letter lost, doubled or added."""
    i = draw(st.integers(0, len(name) - 1))
    wrong = draw(st.sampled_from((name + "x", name[:i] + name[i] + name[i:], name[1:] or "q")))
    assume(wrong not in known and wrong.isidentifier())
    return wrong


BREAKAGES = (_not_injective, _indivisible, _unknown_dim, _unknown_axis)
