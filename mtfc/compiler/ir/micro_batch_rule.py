"""The rule of micro-batches: which values of a loop's body can be computed for one part of a batch at a time.

A value that has the dimension of the batch is cut along it. A value without the dimension is the same for all micro-batches, or
it is a *sum*: each micro-batch has a term, and the value is the sum of the terms. A sum over the batch makes one. It passes
through equations as a pending sum passes, and may leave the loop. Nothing else may use it, because a micro-batch would have to
wait for all others. An op that mixes the positions of the batch cannot be cut either, unless its operands are the same in all
iterations: then it is computed before the loop.

The check of layouts asks here, and so does the pass that makes pipelines.
"""

from collections.abc import Iterable, Mapping

from mtfc.compiler.ir.core import Attr, Equation, Function, Value
from mtfc.compiler.ir.loops import dim_of, pairs, region_of, results_of, with_carries
from mtfc.compiler.ir.opdef import LayoutRule, OpDef
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.sharding_rules import OperandGroup, linear_groups
from mtfc.compiler.ir.types import Dim

LISTS_OF_DIMS = ("dims", "mapped")
"""The attributes that list dimensions of a result; an op treats these dimensions alike."""

REDUCED = "over"
"""The attribute of reductions; the layout rule says how the op reduces each dimension."""


class MixedMicroBatches(Exception):
    """An equation needs the whole batch: `eqn` is the equation, and the message says why."""

    def __init__(self, eqn: Equation, message: str) -> None:
        super().__init__(message)
        self.eqn, self.message = eqn, message


def takes_batch(eqn: Equation, batch: Dim) -> bool:
    """Return True if a loop has anything to do with the batch. Other loops are no pipelines."""
    return any(batch in value.type.dims for value in (*eqn.operands, *eqn.results))


def loop_sums(eqn: Equation, batch: Dim) -> set[Value]:
    """Return the sums among the values of a loop's region, regions inside of it included, and among the loop's results.

    Raises `MixedMicroBatches`.
    """
    return _loop_sums(eqn, batch, frozenset(), before_loop(region_of(eqn), batch))


def _loop_sums(
    eqn: Equation, batch: Dim, given: frozenset[Value], before: Iterable[Equation] = ()
) -> set[Value]:
    """Return the sums of a loop. given: its operands that are sums. before: equations of its body that run before the loop."""
    region = region_of(eqn)
    if dim_of(eqn) == batch:
        raise MixedMicroBatches(eqn, f"a loop runs along `{batch.name}`")
    arguments = {argument.value for operand, argument in pairs(eqn) if operand in given}
    sums = with_carries(region, arguments, lambda given: _body_sums(region, batch, given, before))
    return sums.union(results_of(eqn, sums))


def _body_sums(
    region: Function, batch: Dim, arguments: Iterable[Value], before: Iterable[Equation]
) -> set[Value]:
    """Return the values of a loop's body that are sums over a micro-batch. arguments: the arguments that are sums.

    before: equations that run before the loop.
    """
    sums, gone = set(arguments), {id(eqn) for eqn in before}
    for eqn in region.body:
        if id(eqn) in gone:
            continue
        if eqn.regions:
            sums |= _loop_sums(eqn, batch, frozenset(sums.intersection(eqn.operands)))
        elif _is_sum(eqn, batch, sums):
            sums.update(eqn.results)
    return sums


def results_that_are_sums(eqn: Equation, batch: Dim) -> set[Value]:
    """Return the results of an equation without sums among its operands that are sums. Raises `MixedMicroBatches`."""
    if eqn.regions:
        return _loop_sums(eqn, batch, frozenset()) & {*eqn.results}
    return {*eqn.results} if _is_sum(eqn, batch, set()) else set()


def before_loop(region: Function, batch: Dim) -> list[Equation]:
    """Return the equations of a loop's body that need the whole batch and only invariant operands: they run before the loop."""
    same = {argument.value for argument in region.arguments if argument.role == "invariant"}
    found = []
    for eqn in region.body:
        if eqn.regions or has_trait(eqn, "random") or not same.issuperset(eqn.operands):
            continue
        same.update(eqn.results)
        rule = OPS[eqn.op].layout_rule(eqn)
        if batch in rule.reduced or mixes(eqn, rule, batch):
            found.append(eqn)
    return found


def _is_sum(eqn: Equation, batch: Dim, sums: set[Value]) -> bool:
    """Return True if the results are sums. Raises `MixedMicroBatches`."""
    rule = OPS[eqn.op].layout_rule(eqn)
    if batch not in rule.reduced and mixes(eqn, rule, batch):
        raise MixedMicroBatches(eqn, f"`{eqn.op}` needs all elements of `{batch.name}` at once")
    pending = [value for value in eqn.operands if value in sums]
    if batch in rule.reduced:
        if (
            pending
            or rule.reduction != "sum"
            or any(_is_position(*each, batch) for each in eqn.attrs.items())
        ):
            raise MixedMicroBatches(eqn, f"`{eqn.op}` needs all elements of `{batch.name}` at once")
        return True
    if pending and (summed_group(OPS[eqn.op], eqn, sums) is None or batch in eqn.result.type.dims):
        name = pending[0].name
        raise MixedMicroBatches(
            eqn, f"`{eqn.op}` needs the sum `{name}` over `{batch.name}`, of all micro-batches"
        )
    return bool(pending)


def summed_group(opdef: OpDef, eqn: Equation, sums: Iterable[Value]) -> OperandGroup | None:
    """Return the smallest group of linear operands that has all operands which are sums, or None.

    Another operand of the group is a sum, too: it is the term of the first micro-batch, and other terms are 0.
    """
    pending = {i for i, value in enumerate(eqn.operands) if value in set(sums)}
    groups = (group for group in linear_groups(opdef, eqn) if pending <= set(group))
    return min(groups, key=len, default=None)


def mixes(eqn: Equation, rule: LayoutRule, batch: Dim) -> bool:
    """Return True if an equation needs the positions along the batch, so that it cannot be cut."""
    name = batch.name
    has = [batch in value.type.dims for value in eqn.operands]
    if any(has) and batch not in rule.reduced and rule.index.get(name, name) != name:
        return True
    if name in rule.whole | rule.single or any(
        target == name and source != name for source, target in rule.index.items()
    ):
        return True
    return any(_is_position(*each, batch) for each in eqn.attrs.items())


def _is_position(key: str, value: Attr, batch: Dim) -> bool:
    """Return True if an attribute uses the batch otherwise than in a list of dimensions."""
    if isinstance(value, tuple) and key not in (*LISTS_OF_DIMS, REDUCED):
        return any(batch == each or (isinstance(each, tuple) and batch in each) for each in value)
    return value == batch


def cut_attributes(attributes: Mapping[str, Attr], batch: Dim, part: Dim) -> dict[str, Attr]:
    """Return attributes for one micro-batch: `part` takes the place of the batch."""
    changed: dict[str, Attr] = dict(attributes)
    for key, value in attributes.items():
        if isinstance(value, tuple):
            changed[key] = tuple(part if each == batch else each for each in value)  # type: ignore[assignment]
    return changed
