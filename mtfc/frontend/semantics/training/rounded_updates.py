"""Warn about updates that 16 bits round away: W605 for a number of the optimizer, W606 for whole steps."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil, log2, sqrt

from mtfc.compiler.diagnostics import Label
from mtfc.compiler.ir.core import Initializer, Parameter, Update, Value
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.training import of_role
from mtfc.frontend.semantics.names.constants import number
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.semantics.training.optimizers import Optimizer, given_hypers

ZERO = {"f16": 2.0**-25, "bf16": 2.0**-134}
"""The largest numbers that each dtype rounds to zero."""

NEAR_ONE = {"f16": (1 - 2.0**-12, 1 + 2.0**-11), "bf16": (1 - 2.0**-9, 1 + 2.0**-8)}
"""The least and the largest number that each dtype rounds to one."""

STEPS = (0, 1, 10, 100, 1000, 10_000, 100_000)
"""The steps at which numbers of schedules are tried."""

SIGNIFICANT = 8
"""The significant bits of a bf16."""

EQUAL_STEPS = ("adam", "adamw")
"""Optimizers of the library whose steps have about the size of the learning rate, whatever the size of the gradient."""

RATE = "learning_rate"

MOST_SHOWN = 3
"""The most parameters that a warning points at."""


def warn_of_rounding(
    optimizer: Optimizer, updates: Sequence[Update], parameters: Sequence[Parameter], scope: Scope, std: Scope
) -> None:
    """Warn about the updates of one optimizer. parameters: those of the model. std: the file of the library's optimizers."""
    hypers = _numbers(optimizer, scope)
    lost = {found for update in updates for found in _lost_numbers(update)}
    for value, rounded, dtype in sorted(lost):
        name = next((f"`{name} = {value:g}`" for name, each in hypers.items() if each == value), f"{value:g}")
        message = f"{name} of `{optimizer.name}` is {rounded} in {dtype}, the dtype of the parameters that it updates"
        other = "a smaller number" if rounded and value < 1 else "a larger number"
        help = f"store parameters as `params: f32` in `precision`, or give {other}"
        scope.error("W605", message, optimizer.call.span, help=help)
    if optimizer.scope is std and optimizer.name in EQUAL_STEPS and RATE in hypers:
        by_name = {each.name: each for each in parameters}
        _warn_of_small_steps(optimizer, hypers[RATE], updates, by_name, scope)


def _numbers(optimizer: Optimizer, scope: Scope) -> dict[str, float]:
    """Return the hyperparameters that are constant."""
    with_rate = (each for each in optimizer.decls if RATE in (hyper.name.text for hyper in each.hypers))
    decl = next(with_rate, optimizer.decls[0])
    given = given_hypers(optimizer, decl, scope.for_text()) or {}
    nodes = {hyper.name.text: given.get(hyper.name.text, hyper.default) for hyper in decl.hypers}
    found = {name: number(node, scope.for_text()) for name, node in nodes.items() if node is not None}
    return {name: float(value) for name, value in found.items() if value is not None}


def _lost_numbers(update: Update) -> Iterator[tuple[float, int, str]]:
    """Yield the numbers that their dtype rounds to zero or to one, and are not: each with the rounded number and the dtype.

    A number that depends on the step, as a schedule gives it, is lost if it is so at all tried steps.
    """
    tried = [_scalars(update, step) for step in STEPS]
    for eqn in update.function.body:
        dtype = eqn.results[0].type.dtype
        if dtype not in ZERO or not has_trait(eqn, "constant", "cast"):
            continue
        least, largest = NEAR_ONE[dtype]
        found = [value for known in tried if (value := known.get(eqn.results[0], 0)) not in (0, 1)]
        if found and all(abs(value) <= ZERO[dtype] or least <= value <= largest for value in found):
            yield found[0], int(least <= found[0]), dtype


def _scalars(update: Update, step: int) -> dict[Value, float]:
    """Return the scalars of an update that depend on the number of the step alone."""
    known = dict[Value, float]()
    for eqn in update.function.body:
        operands = [known[value] for value in eqn.operands if value in known]
        value, compute = eqn.attrs.get("value"), OPS[eqn.op].number
        if has_trait(eqn, "step_number"):
            known[eqn.result] = step
        elif has_trait(eqn, "constant") and isinstance(value, int | float):
            known[eqn.result] = float(value)
        elif operands and len(operands) == len(eqn.operands) and (compute or has_trait(eqn, "cast")):
            with suppress(ArithmeticError, ValueError):
                known[eqn.result] = compute(*operands) if compute else operands[0]
    return known


def _warn_of_small_steps(
    optimizer: Optimizer,
    rate: float,
    updates: Sequence[Update],
    parameters: Mapping[str, Parameter],
    scope: Scope,
) -> None:
    """Warn about parameters in bf16 that a step of the learning rate leaves as they are."""
    stored = [
        parameters[name]
        for update in updates
        if of_role(update.function, "parameter")[0].type.dtype == "bf16"
        for name in update.parameters
    ]
    least = {each.name: _least_step(_size(each.init)) for each in stored}
    kept = [each for each in stored if 0 < rate < least[each.name]]
    if not kept:
        return
    labels = [
        Label(
            each.span,
            f"elements of about {_size(each.init):.2g} change from steps of {least[each.name]:.2g} on",
        )
        for each in kept[:MOST_SHOWN]
        if each.span is not None
    ]
    names = ", ".join(f"`{each.name}`" for each in kept[:MOST_SHOWN])
    more = f" and {len(kept) - MOST_SHOWN} more" if len(kept) > MOST_SHOWN else ""
    message = (
        f"steps of `{RATE} = {rate:g}` vanish in bf16: they leave most elements of {names}{more} as they are"
    )
    help = "store parameters as `params: f32` in `precision`; `compute: bf16` stays"
    scope.error("W606", message, optimizer.call.span, labels, help)


def _least_step(size: float) -> float:
    """Return half the distance of a bf16 to the next smaller one: what is smaller rounds to no change."""
    return 2.0 ** (ceil(log2(size)) - 1 - SIGNIFICANT) if size else 0.0


def _size(init: Initializer) -> float:
    """Return the root mean square of the initial elements."""
    numbers = dict(init.args)
    if init.name == "normal":
        return sqrt(numbers["mean"] ** 2 + numbers["stddev"] ** 2)
    if init.name == "uniform":
        low, high = numbers["low"], numbers["high"]
        return sqrt((low * low + low * high + high * high) / 3)
    return abs({"ones": 1.0, "constant": numbers.get("value", 0.0)}.get(init.name, 0.0))
