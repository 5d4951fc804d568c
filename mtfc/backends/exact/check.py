"""The exact check: a layout's NumPy module and the undistributed program, both on residues.

The module is the text that users run, with every processor and every collective. The undistributed program is evaluated op by op,
before any pass but those that define it: attention as one op, the precision, the derivatives, and the choice of training or
evaluation. Sums, products
and quotients of residues do not depend on their order, so both sides agree bit for bit, or the compiler is wrong.

The gradients of the undistributed program are checked by themselves, in forward mode: for a random direction u, the derivative of
the outputs along u is the product of the gradients with u.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any
from zlib import crc32

import attrs
import numpy as np

from mtfc.backends.common import random_numbers
from mtfc.backends.common.emitter import FORMS, NAMES
from mtfc.backends.exact import residues
from mtfc.backends.exact.namespace import ExactNumpy
from mtfc.backends.exact.prime_field import PRIMES, PrimeField
from mtfc.backends.exact.residues import INFINITY, POISON, ExactArray
from mtfc.backends.interpreter import meaning, values_of
from mtfc.backends.numpy import backend
from mtfc.compiler.ir.attributes import INTEGER_RANGE
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Program, Value, walk
from mtfc.compiler.ir.loops import dim_of
from mtfc.compiler.ir.opdef import Shard
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.training import bound
from mtfc.compiler.ir.types import FLOATS
from mtfc.compiler.passes.autodiff.backward import with_differentiable_loops
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.bind_training import BindTraining
from mtfc.compiler.passes.fuse_attention import FuseAttention
from mtfc.compiler.passes.mixed_precision import MixedPrecision
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipelines import run

Arrays = Mapping[str, ExactArray]

STEP = 5
"""The number of the training step. It is not the first: some optimizers ignore their state there."""

DRAWS = (0, 1)
"""Draws have primes and residues of their own, so that a decision between scalars may fall either way."""


ITERATIONS = 32
"""The number of iterations after which a loop that only data ends is left: over a field, its condition may never fail."""

INTEGERS = ((0, 4), (-3, 4))
"""Bounds of drawn integers, in turn: the first are indices, the second have sums of either sign."""


HAVE_RESIDUES = {*FLOATS, *INTEGER_RANGE, "bool"} - {"i64", "u64"}


@attrs.frozen
class ExactResult:
    """A comparison with the undistributed program.

    wrong: the outputs that differ, such as `y of forward`. elements: the number of compared elements; not_judged: of those, the
    ones without a meaning in the field on both sides. unsure: what was replaced by pseudo-random numbers -> the number of
    elements, of the `computed` elements of the functions. cut_loops: the number of loops that both sides left after
    `ITERATIONS`. unjudged: the outputs of which no element has a meaning.
    """

    wrong: tuple[str, ...] = ()
    elements: int = 0
    not_judged: int = 0
    unsure: Mapping[str, int] = attrs.field(factory=dict)
    computed: int = 0
    cut_loops: int = 0
    unjudged: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.wrong


def summed_up(
    counts: Sequence[tuple[str, int, int, int]], unsure: Mapping[str, int], computed: int, cut_loops: int
) -> ExactResult:
    """Return the result of a comparison.

    counts: for each output in each draw its name, its number of elements, the number of differing elements, and the number of
    elements without a meaning in the field. unsure, computed and cut_loops are as in `ExactResult`.
    """
    judged = Counter[str]()
    for output, elements, _, meaningless in counts:
        judged[output] += elements - meaningless
    wrong = dict.fromkeys(output for output, _, differ, _ in counts if differ)
    elements = sum(count for _, count, _, _ in counts)
    not_judged = elements - judged.total()
    unjudged = tuple(output for output, count in judged.items() if not count)
    return ExactResult(tuple(wrong), elements, not_judged, dict(unsure), computed, cut_loops, unjudged)


Compute = Callable[[Function, Arrays], Arrays]
"""Returns the outputs of a function that something else than the undistributed program computes."""


@attrs.frozen(slots=False)
class ExactReference:
    """The undistributed program on residues, with its results on demand.

    given: values of arguments that are not floats, by name; others are drawn. derives: False for a program whose functions are
    all there, as of a function of JAX. attention: the passes of the compared programs that make attention one op. resized:
    changes the sizes of the program after its passes.
    """

    program: Program
    given: Mapping[str, Any] = attrs.field(factory=dict)
    seed: int = 0
    draws: Sequence[int] = DRAWS
    derives: bool = True
    attention: tuple[Pass, ...] = (FuseAttention(),)
    resized: Callable[[Program], Program] = lambda program: program
    results: dict[tuple[str, int], tuple[Arrays, Arrays]] = attrs.field(factory=dict, init=False, eq=False)
    """(function, draw) -> arguments and outputs."""

    derivatives: dict[tuple[Any, ...], tuple[np.uint64, bool]] = attrs.field(
        factory=dict, init=False, eq=False
    )
    """(draw, arguments) -> the derivative along the random direction of these arguments: see `_derivative`."""

    @cached_property
    def functions(self) -> Mapping[str, tuple[Function, Program]]:
        """The functions of a module, by name, with the programs that they are in."""
        derivatives = (Differentiate("gradients"), Differentiate("step")) if self.derives else ()
        passes = (*self.attention, MixedPrecision(), *derivatives, BindTraining())
        program = self.resized(run(self.program, passes))
        return {f.name: (f, program) for f in program.functions}

    def expected(self, name: str, draw: int) -> tuple[Arrays, Arrays]:
        """Return the arguments and the outputs of a function, by name."""
        if (name, draw) not in self.results:
            function = self.functions[name][0]
            field = self.field(draw)
            arguments = {a.value.name: self.drawn(a, field, draw, name) for a in function.arguments}
            self.results[name, draw] = arguments, evaluated(function, arguments, Evaluation(field))
        return self.results[name, draw]

    def compare(self, lowered: Program, text: str | None = None) -> ExactResult:
        """Compare a program, as far as its functions take inputs. text: its NumPy module, if the backend does not generate it.

        Raises `NotExact` if the module needs a function without a meaning in the field.
        """
        text = backend.generate(lowered) if text is None else text
        return self.compare_text(lowered.functions, text)

    def compare_text(self, functions: Sequence[Function], text: str, are_all: bool = True) -> ExactResult:
        """Compare the text of a NumPy module with these functions, as far as they take inputs.

        are_all: False if the module may lack outputs, such as gradients that are 0.
        Raises `NotExact` if the module needs a function without a meaning in the field.
        """

        def computing(field: PrimeField) -> Compute:
            module = loaded(text, field)

            def compute(function: Function, arguments: Arrays) -> Arrays:
                found = called(module, function, arguments, field)
                outputs = (output.name for output in self.functions[function.name][0].outputs)
                return {name: found[name] for name in outputs if are_all or name in found}

            return compute

        return self._compared(functions, computing)

    def _compared(
        self, functions: Sequence[Function], computing: Callable[[PrimeField], Compute]
    ) -> ExactResult:
        """Compare the outputs of functions with the undistributed program, in each draw.

        computing: returns the compared computation over a field. Raises `NotExact` if a function has values without residues.
        """
        if strange := next(filter(None, map(without_residues, functions)), None):
            raise residues.NotExact(strange)
        functions = [function for function in functions if "input" in FORMS[function.name].takes]
        counts, unsure, cut_loops = list[tuple[str, int, int, int]](), Counter[str](), 0
        for draw in self.draws:
            compute = computing(field := self.field(draw))
            for function in functions:
                arguments, expected = self.expected(function.name, draw)
                for output, array in compute(function, arguments).items():
                    known = expected[output]
                    counts.append((f"{output} of {function.name}", known.size, *compared(array, known)))
            unsure.update(field.counts)
            cut_loops += field.cut_loops
        computed = sum(computed_elements(self.functions[f.name][0].body) for f in functions)
        return summed_up(counts, unsure, len(self.draws) * computed, cut_loops)

    def wrong_gradients(self) -> tuple[str, ...]:
        """Return the arguments whose gradients the undistributed program computes wrongly, by forward mode."""
        found = (self.disagreeing(self.expected("gradients", draw)[1], draw) for draw in self.draws)
        return tuple(sorted({name for names in found for name in names}))

    def disagreeing(self, gradients: Arrays, draw: int) -> tuple[str, ...]:
        """Return the arguments whose gradients differ from forward mode. gradients: `d_` and an argument's name -> array."""
        if not self._differentiable or self.agrees(gradients, draw):
            return ()
        return tuple(name for name in self._differentiable if not self.agrees(gradients, draw, [name]))

    @property
    def _differentiable(self) -> tuple[str, ...]:
        """The arguments that have gradients: inputs and parameters of floats, without the model's states."""
        function, program = self.functions["gradients"]
        arguments = [a for a in function.arguments if a.role in ("input", "parameter")]
        names = [a.value.name for a in arguments if a.value.type.dtype in FLOATS]
        return tuple(name for name in names if name not in program.states)

    def agrees(self, gradients: Arrays, draw: int, names: Sequence[str] | None = None) -> bool:
        """Return True if the derivative along a random direction is the product of the gradients with that direction.

        A gradient may have elements without a meaning only if the outputs are computed from values without a meaning. The
        direction is 0 there.
        """
        field, along = self.field(draw), np.uint64(0)
        directions, is_whole = dict[str, Any](), True
        for name in self._differentiable if names is None else names:
            g = gradients[f"d_{name}"].residues()
            drawn = _random(field, g.shape, "direction", name, draw)
            directions[name] = np.where(g.values >= INFINITY, np.uint64(0), drawn)
            is_whole = is_whole and not g.has_special
            products = field.multiply(residues.without_specials(g), directions[name])
            along = field.add(along, field.total(products, None))
        change, is_defined = self._derivative(directions, draw, is_whole)
        return bool(along == change) and (is_whole or not is_defined)

    def _derivative(self, directions: Mapping[str, Any], draw: int, is_whole: bool) -> tuple[np.uint64, bool]:
        """Return the derivative of the outputs, and whether all values have a meaning. Remember them for whole directions."""
        key = (draw, *sorted(directions))
        if not is_whole:
            return self._forward_mode(directions, draw)
        if key not in self.derivatives:
            self.derivatives[key] = self._forward_mode(directions, draw)
        return self.derivatives[key]

    @cached_property
    def _forward(self) -> Function:
        """The function that forward mode differentiates."""
        program = self.resized(run(self.program, (*self.attention, MixedPrecision())))
        return with_differentiable_loops(bound(program.function("forward"), training=True))

    def _forward_mode(self, directions: Mapping[str, Any], draw: int) -> tuple[np.uint64, bool]:
        """Return the change of the outputs along directions of the arguments, and True if the change is defined everywhere."""
        arguments, field = self.expected("gradients", draw)[0], self.field(draw)
        given, forward = {}, self._forward
        for value in (argument.value for argument in forward.arguments):
            given[value] = _moved(arguments[value.name], field)
            given[value].tangent = directions.get(value.name)
        evaluation = Watched(field)
        known = evaluation.values(forward.body, given)
        change = np.uint64(0)
        for output in seeded(self.program, forward):
            y = known[output.value].residues()
            if y.tangent is not None:
                change = field.add(change, field.total(y.tangent, None))
        return change, evaluation.is_defined and residues.NO_SLOPE not in field.counts

    def field(self, draw: int) -> PrimeField:
        """Return the field of a draw."""
        return PrimeField(PRIMES[draw % len(PRIMES)], self.seed + draw)

    def drawn(self, argument: Argument, field: PrimeField, draw: int, function: str) -> ExactArray:
        """Return a value of an argument: random residues, or small integers."""
        type, name = argument.value.type, argument.value.name
        shape, dtype = tuple(dim.size for dim in type.dims), numpy_dtype(np, type.dtype)
        if argument.role == "step":
            return ExactArray(field, np.asarray(STEP, np.int32), np.int32)
        if type.dtype in FLOATS:
            return ExactArray(field, _random(field, shape, function, name, draw), dtype, True)
        if name in self.given:
            given = np.asarray(self.given[name])
            return ExactArray(field, np.broadcast_to(given, shape).astype(dtype), dtype)
        signed, small = INTEGERS[draw % len(INTEGERS)], (0, 2 if type.dtype == "bool" else 4)
        low, high = signed if type.dtype.startswith("i") else small
        numbers = _generator(self.seed, function, name, draw).integers(low, high, shape)
        return ExactArray(field, numbers.astype(dtype), dtype)


def without_residues(function: Function) -> str | None:
    """Return a dtype of the function that residues and integers of 32 bits do not stand for, or None."""
    values = [
        *(a.value for a in function.arguments),
        *(v for eqn in walk(function.body) for v in eqn.results),
    ]
    own = (v.type.dtype for v in values)
    return next((dtype for dtype in own if dtype not in HAVE_RESIDUES), None)


def computed_elements(body: Sequence[Equation], per_equation: int = 0) -> int:
    """Return the number of elements of all results, each iteration of a loop counted. per_equation: added for each equation."""
    return sum(
        per_equation
        + sum(value.type.size for value in eqn.results)
        + sum(dim_of(eqn).size * computed_elements(region.body, per_equation) for region in eqn.regions)
        for eqn in body
    )


def seeded(program: Program, forward: Function) -> Iterable[Output]:
    """Return the outputs whose sum is differentiated: the minimized one, or without training all that are floats."""
    training, seen = program.training, set[Value]()
    for output in forward.handed_out:
        wanted = training is None or output.name == training.minimize
        if wanted and output.value.type.dtype in FLOATS and output.value not in seen:
            seen.add(output.value)
            yield output


def _generator(*key: Any) -> Any:
    return np.random.default_rng(crc32(repr(key).encode()))


def _random(field: PrimeField, shape: tuple[int, ...], *key: Any) -> Any:
    """Return random residues other than 0."""
    return _generator(*key).integers(1, field.p, shape, np.uint64)


def compared(actual: ExactArray, expected: ExactArray) -> tuple[int, int]:
    """Return the number of elements that differ, and the number of elements that have no meaning on both sides.

    An infinity agrees with an element without a meaning. Infinity times a residue has a sign only if the residue is a small
    number, so the order of factors decides which of the two a program computes.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return max(1, expected.size), 0
    if not expected.is_float:
        return int((actual.values != expected.values).sum()), 0
    a, b = actual.residues().values, expected.residues().values
    unsure = (np.minimum(a, b) >= INFINITY) & ((a == POISON) | (b == POISON))
    return int(((a != b) & ~unsure).sum()), int(unsure.sum())


# The generated module


def loaded(text: str, field: PrimeField) -> Any:
    """Load the text of a NumPy module so that it computes on residues. Random bits are drawn by NumPy itself."""
    module, plain = backend.load(text), None
    for name in ("random_key", "random_uniform", "random_normal"):
        if name in vars(module):
            plain = plain or backend.load(text)
            vars(module)[name] = partial(_drawing, getattr(plain, name), field)
    vars(module)["np"] = ExactNumpy(field)
    if "iterations" in vars(module):
        vars(module)["iterations"] = partial(iterations, field)
    for name in {"mapped_call", "attention_softmax"} & vars(module).keys():
        vars(module)[name] = getattr(vars(module)["np"], name)
    return module


def iterations(field: PrimeField) -> Iterator[int]:
    """Number the iterations of a loop that only its condition ends, as far as both sides follow it."""
    yield from range(ITERATIONS)
    field.cut_loops += 1


def _drawing(function: Callable[..., Any], field: PrimeField, *args: Any) -> Any:
    """Call a function of random numbers on plain integers."""
    found = function(*residues.plain_index(args))
    return measured(field, np.asarray(found)) if isinstance(found, np.ndarray | np.generic) else found


def measured(field: PrimeField, numbers: Any) -> ExactArray:
    """Return numbers as they are: a scalar, too, is no constant of the text that may stand for a simpler fraction."""
    if numbers.dtype.kind in "biu":
        return ExactArray(field, numbers, numbers.dtype)
    return ExactArray(field, numbers.astype(np.float64), numbers.dtype)


class RandomNumbers:
    """The functions of random numbers that ops use, for the undistributed program."""

    def __init__(self, field: PrimeField) -> None:
        for name in ("random_key", "random_uniform", "random_normal"):
            setattr(self, name, partial(_drawing, getattr(random_numbers, name), field))


def called(module: Any, function: Function, arguments: Arrays, field: PrimeField) -> dict[str, ExactArray]:
    """Call a function of a module on residues: see `call`."""
    return call(module, function, _all_moved(arguments, field))


def call(module: Any, function: Function, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function of a module on global arrays, and return global outputs under the names of the IR's outputs."""
    roles = {argument.value.name: argument.role for argument in function.arguments}
    given = {role: {n: arguments[n] for n in roles if roles[n] == role} for role in {*roles.values()}}
    stacked = getattr(module, "BATCHES", module.INPUTS) if function.name == "step" else module.INPUTS
    params = module.shard(given.get("parameter", {}), module.PARAMETERS)
    inputs = module.shard(given.get("input", {}), stacked)
    name = NAMES[function.name]
    if function.name != "step":
        return dict(module.unshard(getattr(module, name)(params, inputs), module.OUTPUTS[name]))
    state = module.shard(given.get("state", {}), module.STATE)
    outputs, params, state = module.train_step(params, state, inputs, STEP)
    replaced = {**module.unshard(params, module.PARAMETERS), **module.unshard(state, module.STATE)}
    found = dict(module.unshard(outputs, module.OUTPUTS[name]))
    return found | {o.name: replaced[o.updates] for o in function.outputs if o.updates}


def _moved(x: ExactArray, field: PrimeField) -> ExactArray:
    return ExactArray(field, x.values, x.dtype, x.is_residue, shadow=x.shadow)


def _all_moved(arrays: Arrays, field: PrimeField) -> Arrays:
    return {name: _moved(array, field) for name, array in arrays.items()}


# The undistributed program


class Evaluation:
    """The meaning of equations that are not distributed, over a field."""

    longest = ITERATIONS
    """The number of iterations after which a loop that only data ends is left."""

    numpy: type[ExactNumpy] = ExactNumpy
    """The class of NumPy's functions."""

    def __init__(self, field: PrimeField) -> None:
        self.np, self.random = self.numpy(field), RandomNumbers(field)

    def __call__(self, shard: Shard, *arrays: ExactArray) -> Any:
        """Return the results of one equation."""
        found = meaning(attrs.evolve(shard, np=self.np, random=self.random), *arrays)
        return _moved(found, self.np.field) if has_trait(shard.eqn, "stop_gradient") else found

    def values(self, body: Iterable[Equation], given: Mapping[Value, ExactArray]) -> dict[Value, ExactArray]:
        """Return the given values, and all values that the equations compute."""
        return values_of(body, given, self, self.np, self.longest)


def evaluated(function: Function, arguments: Arrays, evaluation: Evaluation) -> dict[str, ExactArray]:
    """Return the outputs of a function that is not distributed, op by op."""
    given = {argument.value: arguments[argument.value.name] for argument in function.arguments}
    known = evaluation.values(function.body, given)
    return {output.name: known[output.value] for output in function.outputs}


class Watched(Evaluation):
    """An evaluation that notices values without a meaning in the field."""

    is_defined = True

    def __call__(self, shard: Shard, *arrays: ExactArray) -> Any:
        """Compute an op, and note if a result has no meaning."""
        found = super().__call__(shard, *arrays)
        results = found if isinstance(found, tuple) else (found,)
        is_poisoned = any(x.has_special and (x.values == POISON).any() for x in results)
        self.is_defined = self.is_defined and not is_poisoned
        return found
