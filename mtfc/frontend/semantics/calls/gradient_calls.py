"""Elaborate `gradients(loss, [w, x])`: the equations of reverse-mode differentiation follow those of the loss.

The equations are those that `differentiate` makes, as ordinary equations of the model: a layout splits them, reports price them,
and `differentiate` or another `gradients` differentiates them again. In a loop, the gradients are those of one iteration: values
of other iterations, and from outside of the loop, are arguments of its body.

This is the only module of the front end that uses a pass, because types of values and errors depend on the equations. The pass is
imported at the first call, so that `check` of other files does not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import attrs

from mtfc.compiler.diagnostics import Label
from mtfc.compiler.ir.core import Equation, Stage, Value, walk
from mtfc.compiler.ir.types import FLOATS
from mtfc.frontend.semantics.bodies.expressions import Expressions, Operand, Results, Site
from mtfc.frontend.semantics.bodies.function_builder import LARGEST, BlockBuilder
from mtfc.frontend.semantics.calls.function_calls import NODES

INDEPENDENT = "E425"


def gradients(expressions: Expressions, site: Site, loss: Operand, values: Sequence[Operand]) -> Results:
    """Return the gradient of the loss for each value, which has the value's type: zeros where none reaches the value."""
    nothing: Results = (None,) * len(values)
    wrong = [each for each in values if not _is_variable(expressions, each)]
    if not _is_loss(expressions, loss) or wrong:
        return nothing
    block, builder = expressions.block, expressions.builder
    start, wanted, before = _here(block, loss), [_here(block, each) for each in values], tuple(block.body)
    causes = _causes(before, start)
    if not _all_cause(expressions, loss, values, {start, *(v for eqn in causes for v in eqn.operands)}):
        return nothing
    builder.grown.size += len(before) // NODES
    is_small = builder.grown.size + len(causes) <= LARGEST  # a gradient has more equations than its value
    found = _differentiated(expressions, site, causes, start, wanted) if is_small else ()
    builder.grown.size += sum(1 for _ in walk(tuple(block.body[len(before) :])))
    if not is_small or builder.grown.size > LARGEST:
        message = f"with these gradients, the program has more than {LARGEST:,} equations and calls"
        help = "each `gradients` of gradients makes several times as many equations"
        expressions.scope.error("E122", message, site.span, help=help)
        block.body = list(before)
        return nothing
    return tuple(
        expressions.named(gradient, site.span, variable)
        for gradient, variable in zip(found, site.variables, strict=False)
    )


def _here(block: BlockBuilder, operand: Operand) -> Value:
    assert isinstance(operand.result, Value), "numbers are refused"
    return block.here(operand.result)


def _is_loss(expressions: Expressions, loss: Operand) -> bool:
    """Return True for a floating-point scalar; report an error otherwise."""
    scope = expressions.scope
    if loss.type is None:
        scope.error("E403", "a number has no gradients", loss.span)
    elif loss.type.dims:
        help = "sum it first: `gradients(sum(x), [w])` adds the gradients of all elements"
        scope.error("E402", f"`gradients` takes a scalar, found {loss.type}", loss.span, help=help)
    elif loss.type.dtype not in FLOATS:
        scope.error("E403", f"`gradients` takes a floating-point scalar, found {loss.type}", loss.span)
    else:
        return True
    return False


def _is_variable(expressions: Expressions, value: Operand) -> bool:
    """Return True for a floating-point tensor; report an error otherwise."""
    if value.type is not None and value.type.dtype in FLOATS:
        return True
    return expressions.scope.error(
        "E202", f"only floating-point tensors have gradients, found {value.found}", value.span
    )


def _causes(body: Sequence[Equation], value: Value) -> list[Equation]:
    """Return the equations that compute a value, in order."""
    needed, found = {value}, list[Equation]()
    for eqn in reversed(body):
        if not needed.isdisjoint(eqn.results):
            needed.update(eqn.operands)
            found.append(eqn)
    return found[::-1]


def _all_cause(
    expressions: Expressions, loss: Operand, values: Sequence[Operand], causes: Set[Value]
) -> bool:
    """Return True if all values are among the causes of the loss; report errors otherwise.

    A dead statement does not see the equations before it, so it is not checked.
    """
    block = expressions.block
    if expressions.builder.around is not None:
        return True
    missing = [each for each in values if _here(block, each) not in causes]
    for each in missing:
        help = f"its gradient would be 0: write `zeros_like({each.shown.strip('`')})` if that is meant"
        if any(block.loops()):
            help = (
                "in a loop, `gradients` sees one iteration: compute the loss from the value in the same loop"
            )
        labels = [Label(loss.span, f"{loss.shown} is computed without it")]
        message = f"the loss does not depend on {each.shown}"
        expressions.scope.error(INDEPENDENT, message, each.span, labels, help)
    return not missing


def _differentiated(
    expressions: Expressions, site: Site, causes: Sequence[Equation], loss: Value, wanted: Sequence[Value]
) -> tuple[Value, ...]:
    """Append the equations of the gradients of a loss, in the block's stage, and return the gradients.

    The equations belong to the places that they differentiate. Loops among the causes also yield what the gradients need.
    """
    from mtfc.compiler.passes.autodiff.backward import backward

    block = expressions.block
    known, place = len(block.body), block.located(site.span)
    call, block.call, block.span = block.call, None, place
    seed = block("full", dims=(), value=1.0, dtype=loss.type.dtype)
    found = backward(block, causes, {loss: seed}, wanted)
    block.span = place
    gradients = tuple(
        found.get(each) or block("full", dims=each.type.dims, value=0.0, dtype=each.type.dtype)
        for each in wanted
    )
    block.call = call
    block.body[known:] = _needed(block.body[known:], {*gradients}, block.stage)
    return gradients


def _needed(body: Sequence[Equation], results: set[Value], stage: Stage) -> list[Equation]:
    """Return the equations that results need, in a stage. Constants stay: the builder shares them."""
    kept = list[Equation]()
    for eqn in reversed(body):
        if not eqn.operands or not results.isdisjoint(eqn.results):
            results.update(eqn.operands)
            kept.append(_in_stage(eqn, stage))
    return kept[::-1]


def _in_stage(eqn: Equation, stage: Stage) -> Equation:
    regions = tuple(
        attrs.evolve(region, body=tuple(_in_stage(each, stage) for each in region.body))
        for region in eqn.regions
    )
    return attrs.evolve(eqn, stage=stage, regions=regions)
