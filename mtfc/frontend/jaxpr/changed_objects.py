"""Functions that change the modules and optimizers of Flax NNX that they get: they become functions that return them anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any


def returning_changed(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a function that returns the objects which `function` changes, in order, and then its result.

    Its attribute `returned` is their number. A function that changes no object stays as it is.
    """
    import jax

    objects = [i for i, arg in enumerate(args) if _may_change(arg)]
    if not objects:
        return function
    changed: list[int] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        before = [jax.tree.leaves(args[i]) for i in objects]
        result = function(*args, **kwargs)
        after = [jax.tree.leaves(args[i]) for i in objects]
        for i, old, new in zip(objects, before, after, strict=True):
            if len(old) != len(new) or any(a is not b for a, b in zip(old, new, strict=True)):
                changed.append(i)
        return result

    jax.eval_shape(watched, *args, **kwargs)
    chosen = tuple(dict.fromkeys(changed))
    if not chosen:
        return function

    @wraps(function)
    def functional(*args: Any, **kwargs: Any) -> Any:
        copies = jax.tree.map(lambda x: x, (args, kwargs))  # the caller's own objects stay as they are
        result = function(*copies[0], **copies[1])
        return (*(copies[0][i] for i in chosen), result)

    vars(functional)["returned"] = len(chosen)
    return functional


def _may_change(arg: Any) -> bool:
    """Return True for an object of Flax NNX, whose methods may change its arrays."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(arg, nnx.Module | nnx.Optimizer)
