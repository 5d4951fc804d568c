"""Twins: numbers of a program, each with the numbers that take its place in smaller programs.

A twin is a number of the program. Whoever compares, prints or hashes a twin sees this number. Arithmetic on twins computes the
smaller numbers, too. So passes on a program whose sizes are twins make the same equations as on the program, and know each number
of the smaller programs. `ir/resizing.py` puts twins into a program, and takes a smaller program out.
"""

import operator
from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from math import isfinite
from typing import Any

Smaller = tuple[Any, ...]
"""The numbers of the smaller programs, in order: integers, fractions, and floats that are not finite."""


class TwinInt(int):
    """An integer with smaller ones."""

    smaller: Smaller


class TwinFloat(float):
    """A float with the numbers that take its place."""

    smaller: Smaller


def twin(number: Any, smaller: Smaller) -> Any:
    """Return a number with the numbers that take its place; the number itself where all are equal to it."""
    if not isinstance(number, (int, float)) or all(each == number for each in smaller):
        return plain(number)
    made = TwinFloat(number) if isinstance(number, float) else TwinInt(number)
    made.smaller = smaller
    return made


def plain(number: Any) -> Any:
    """Return a number without its twins."""
    if isinstance(number, TwinInt):
        return int(number)
    return float(number) if isinstance(number, TwinFloat) else number


def smaller(number: Any, which: int) -> Any:
    """Return the number that takes the place of a number in a smaller program, as an integer or a float."""
    if isinstance(number, TwinInt):
        return int(number.smaller[which])
    return float(number.smaller[which]) if isinstance(number, TwinFloat) else number


def _exact(number: Any, which: int) -> Any:
    """Return the number of one smaller program without rounding: a finite float as a fraction."""
    if isinstance(number, (TwinInt, TwinFloat)):
        return number.smaller[which]
    return Fraction(number) if isinstance(number, float) and isfinite(number) else number


def _number_of_programs(*numbers: Any) -> int:
    """Return the number of smaller programs that the first twin among the numbers has values for; 0 without a twin."""
    return next((len(each.smaller) for each in numbers if isinstance(each, (TwinInt, TwinFloat))), 0)


def _quotient(a: Any, b: Any) -> Any:
    """Return a quotient as a fraction, which is not rounded."""
    return Fraction(a) / Fraction(b)


def on_twins(small: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of two numbers, or of a number and its dtype, compute the smaller numbers of its result, by `small`.

    Where a smaller number has no result, as of a division by 0, the number of the program takes its place.
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function for values with twins."""

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            programs = range(_number_of_programs(*args))
            if not programs:
                return function(*args, **options)
            found = function(*map(plain, args), **options)
            return twin(found, tuple(_tried(small, args, i, found) for i in programs))

        return call

    return decorated


def _tried(small: Callable[..., Any], args: Any, program: int, fallback: Any) -> Any:
    """Return what `small` computes from the numbers of one smaller program; `fallback` if it has no result there."""
    try:
        return small(*(_exact(each, program) for each in args))
    except (ArithmeticError, ValueError):
        return fallback


def _define_arithmetic(cls: type) -> None:
    """Let the operators of a class of twins compute the smaller numbers too, as fractions where they divide."""
    base: Any = int if cls is TwinInt else float
    operators: dict[str, Callable[..., Any]] = {
        **{name: getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "abs")},
        "truediv": _quotient,
    }
    for name, small in operators.items():
        setattr(cls, f"__{name}__", on_twins(small)(getattr(base, f"__{name}__")))
        if hasattr(base, f"__r{name}__"):
            turned: Callable[..., Any] = lambda a, b, small=small: small(b, a)  # noqa: E731
            setattr(cls, f"__r{name}__", on_twins(turned)(getattr(base, f"__r{name}__")))


_define_arithmetic(TwinInt)
_define_arithmetic(TwinFloat)
