"""The texts of classes that `mtfc/compiler/records.py` makes are those of attrs."""

from typing import Any

import attrs
import pytest

from mtfc.compiler import records


def shape(make: Any) -> Any:
    """Make a class within a function, with a field that is not shown."""

    @make
    class Shape:
        name: str
        sides: tuple[float, ...] = ()
        area: float = attrs.field(default=1.0, repr=False)

    return Shape


def child(make: Any) -> Any:
    @make(eq=False)
    class Child(shape(make)):  # type: ignore[misc]
        inner: object = None

    return Child


def own_text(make: Any) -> Any:
    @make
    class Own:
        name: str

        def __repr__(self) -> str:
            return f"own {self.name}"

    return Own


@pytest.mark.parametrize("name", ["frozen", "define"])
@pytest.mark.parametrize("made", [shape, child, own_text])
def test_texts_are_those_of_attrs(made: Any, name: str) -> None:
    ours, theirs = made(getattr(records, name)), made(getattr(attrs, name))
    assert repr(ours("a\n")) == repr(theirs("a\n"))
    nested = attrs.evolve(ours("b"), name=ours("c"))
    assert repr(nested) == repr(attrs.evolve(theirs("b"), name=theirs("c")))


def test_a_frozen_class_is_frozen_and_a_defined_one_is_not() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        shape(records.frozen)("a").name = "b"
    defined = shape(records.define)("a")
    defined.name = "b"
    assert defined == type(defined)("b")
