"""Functions that change objects of Flax NNX that they get: they become functions that return the arguments with these anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any


def returning_changed(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a function that returns the arguments whose objects `function` changes, in order, and then its result.

    Its attribute `returned` is their number. A function that changes no object stays as it is.
    """
    import jax

    places = [key for key, arg in _by_place(args, kwargs).items() if _may_change(arg)]
    if not places:
        return function
    changed: list[int | str] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        given = _by_place(args, kwargs)
        before = [jax.tree.leaves(given[key]) for key in places]
        result = function(*args, **kwargs)
        after = [jax.tree.leaves(given[key]) for key in places]
        for key, old, new in zip(places, before, after, strict=True):
            if len(old) != len(new) or any(a is not b for a, b in zip(old, new, strict=True)):
                changed.append(key)
        return result

    jax.eval_shape(watched, *args, **kwargs)
    chosen = tuple(dict.fromkeys(changed))
    if not chosen:
        return function

    @wraps(function)
    def functional(*args: Any, **kwargs: Any) -> Any:
        copies = jax.tree.map(lambda x: x, (args, kwargs))  # the caller's own objects stay as they are
        result = function(*copies[0], **copies[1])
        new = _by_place(*copies)
        return (*(new[key] for key in chosen), result)

    vars(functional)["returned"] = len(chosen)
    return functional


def _by_place(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    """Return arguments by their numbers and names."""
    found: dict[int | str, Any] = dict(enumerate(args))
    return found | dict(kwargs)


def _may_change(arg: Any) -> bool:
    """Return True for an argument with an object of NNX, such as a module or a metric, whose methods may change its arrays."""
    import jax

    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return False

    kind = getattr(nnx, "Pytree", None) or nnx.Object  # the name in Flax before 0.12

    def is_object(x: Any) -> bool:
        return isinstance(x, kind)

    return any(map(is_object, jax.tree.leaves(arg, is_leaf=is_object)))
