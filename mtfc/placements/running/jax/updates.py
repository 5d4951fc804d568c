"""The functions that follow the passes of a step, as the compiler writes them: means, norms, clipping, updates of parameters.

These functions take the results of the passes as arguments, and know nothing of pieces: `piecewise.py` runs them on pieces. An
optimizer that works element by element updates each piece by itself. One that looks at a whole parameter, such as LAMB or
Adafactor, gets it: each device that uses such a parameter holds it whole.
"""

from collections.abc import Collection, Mapping

import attrs

from mtfc.compiler.analysis.liveness import storage
from mtfc.compiler.analysis.output_weights import weights_of
from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Output, Program, Training, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.training import of_role, returned_outputs, update_of
from mtfc.compiler.passes.autodiff.differentiate import (
    Differentiated,
    finished_step,
    gradient_function,
    means,
    replaced_by,
    weighed_terms,
    weight_numbers,
)
from mtfc.compiler.passes.autodiff.update_equations import scale_state


def is_local(training: Training, parameter: str) -> bool:
    """Return True if the update of a parameter works element by element."""
    body = update_of(training, parameter).body
    return all(storage(eqn) in ("fused", "made") and not has_trait(eqn, "random", "indices") for eqn in body)


def updates_slice(training: Training, parameter: str, slice: Value) -> bool:
    """Return True if a slice of a parameter can be updated without the other slices."""
    (unit,) = of_role(update_of(training, parameter), "parameter")
    return len(slice.type.dims) >= len(unit.type.dims) or is_local(training, parameter)


@attrs.frozen(eq=False)
class AfterPasses:
    """A function that follows the passes.

    results: argument that the passes make -> its kind and name: an `output` of the one micro-batch, or the sum of the terms of
    several; the `gradient` of a parameter, summed over them; or the new value of a `state` of the model.
    """

    function: Function
    results: Mapping[Value, tuple[str, str]]

    @property
    def owners(self) -> dict[Value, str]:
        """The parameters of gradients and new states."""
        return {value: name for value, (kind, name) in self.results.items() if kind != "output"}


def terms_of(forward: Function, training: Training) -> Function:
    """Return the function from the outputs of one of several micro-batches to its terms in the sums over all of them."""
    weights = weights_of(forward, training)
    given = {o.name: Value(o.name, o.value.type) for o in forward.handed_out}
    b = Builder(Names(given), training.span, "backward")
    numbers = weight_numbers(b, given, weights)
    terms = weighed_terms(b, given, returned_outputs(forward, training), weights, numbers)
    arguments = tuple(Argument(value, "input") for value in given.values())
    return Function("terms", arguments, tuple(b.body), tuple(Output(*term) for term in terms.items()))


def after_passes(
    program: Program, training: Training, name: str, count: int, differentiated: Collection[str]
) -> AfterPasses:
    """Return the rest of `step`, `batch_gradients` or `step_gradients`, after the passes of some micro-batches.

    differentiated: the parameters that have a gradient.
    """
    forward = program.function("forward")
    parameters = tuple(argument for argument in forward.arguments if argument.role == "parameter")
    b = Builder(Names(argument.value.name for argument in parameters), training.span, "backward")

    results = dict[Value, tuple[str, str]]()

    def given(kind: str, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return an argument for each value that the passes hand on, and note its kind in `results`."""
        found = {name: Value(b.names.fresh(f"the.{name}"), value.type) for name, value in values.items()}
        results.update((value, (kind, name)) for name, value in found.items())
        return found

    known = {argument.value.name: argument.value for argument in parameters}
    terms = terms_of(forward, training).outputs if count > 1 else forward.handed_out
    outputs = given("output", {output.name: output.value for output in terms})
    states = given("state", replaced_by(forward))
    gradients = given("gradient", {each: known[each] for each in known if each in differentiated})
    sums = {known[each]: gradient for each, gradient in gradients.items()}
    if count > 1:
        outputs, sums = means(b, forward, training, outputs, sums)
    scale = scale_state(b, training.loss_scale) if name == "step" else None
    arguments = (*parameters, *(Argument(value, "input") for value in results))
    found = Differentiated(b, arguments, outputs, sums, states, scale)
    if name == "step":
        *_, function = finished_step(program, training, found)
    else:
        function = gradient_function(name, found, training, program.states)
    return AfterPasses(function, results)
