"""Compile and run source texts in all ways: on the interpreter, on both backends, under each layout."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Protocol
from unittest.mock import patch

import attrs
import numpy as np

from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import backend as jax_backend
from mtfc.backends.jax import runtime as jax_runtime
from mtfc.backends.numpy import backend as numpy_backend
from mtfc.compiler.diagnostics import Diagnostic, Diagnostics
from mtfc.compiler.ir.core import Function, Program, walk
from mtfc.compiler.ir.ops.collectives import KIND_OF, axes_of
from mtfc.compiler.ir.ops.elementwise import numpy_dtype
from mtfc.compiler.ir.verifier import verify
from mtfc.compiler.passes.pipelines import differentiation, lower, run
from mtfc.driver.loading.layout_targets import layout_targets
from mtfc.frontend.check import check
from mtfc.frontend.elaborate import Module, elaborate
from mtfc.frontend.layouts.declared_layouts import DeclaredLayout
from mtfc.frontend.semantics.names.unused_values import NOTHING
from mtfc.frontend.syntax.parser import parse

AMPLE = 600.0
"""Seconds in which every search of the tests ends by itself, also on a slow and busy machine."""

Arrays = dict[str, Any]

FILE = "test.mtf"

STEP = 5
"""The number of the tested step. It is not the first: some optimizers ignore their state there."""


def with_unused_values() -> AbstractContextManager[object]:
    """Elaborate unused statements, too: random programs have many of them."""
    return patch("mtfc.frontend.semantics.names.scope.find_unused", lambda decl: NOTHING)


def diagnose(source: str) -> list[Diagnostic]:
    """Return all diagnostics of `mtfc check` for a program in which everything is used."""
    with with_unused_values():
        return list(check(source, FILE, layout_targets=layout_targets))


@lru_cache(maxsize=4)
def load(source: str) -> Module:
    """Return the elaborated file. Raises `CompileError` if the file or one of its layouts has an error.

    Tests load a file again for each layout and function, so the last few are kept.
    """
    with with_unused_values():
        check(source, FILE, layout_targets=layout_targets).raise_if_errors()
        return elaborate(parse(source, FILE, Diagnostics()), Diagnostics())


def chosen_layout(module: Module, name: str | None) -> DeclaredLayout:
    """Return the layout of that name, or the first layout."""
    if name is None:
        return module.layouts[0]
    return next(layout for layout in module.layouts if layout.name == name)


def lowered(source: str, of: str = "step", layout: str | None = None) -> Program:
    """Return the source's only model as an SPMD program."""
    module = load(source)
    chosen = chosen_layout(module, layout)
    (program,) = module.programs
    return lower(program, chosen.mesh, chosen.layout, of)


def differentiated(program: Program, of: str) -> Program:
    """Return the undistributed program with its gradients."""
    found = run(program, differentiation(of))
    verify(found, "global")
    return found


def stages(program: Program, declared: DeclaredLayout, of: str) -> list[tuple[str, Program]]:
    """Return the program after each pass, by the pass's name, from `differentiate` on."""
    seen: list[tuple[str, Program]] = []
    lower(program, declared.mesh, declared.layout, of, [lambda each, made, _: seen.append((each.name, made))])
    start = next(i for i, (name, _) in enumerate(seen) if name == "differentiate")
    return seen[start:]


def changes(program: Program, declared: DeclaredLayout, of: str) -> Iterator[tuple[str, Program]]:
    """Yield those of the `stages` whose pass changes the program."""
    before = None
    for name, made in stages(program, declared, of):
        if made != before:
            before = made
            yield name, made


def communication(
    source: str, of: str = "forward", layout: str | None = None
) -> list[tuple[str, tuple[str, ...], int]]:
    """Return the collectives of a function: kind, mesh axes, elements of a processor's operands."""
    program = lowered(source, "gradients" if of == "gradients" else "step", layout)
    assert program.mesh is not None
    return [
        (KIND_OF[eqn.op], axes_of(eqn), sum(value.type.local_size(program.mesh) for value in eqn.operands))
        for eqn in walk(program.function(of).body)
        if eqn.op in KIND_OF
    ]


# Data


def exact_data(function: Function, seed: int) -> Arrays:
    """Draw arguments without rounding: multiples of 1/4 up to 2, small integers, truth values."""
    return _data(function, seed, lambda random, shape: random.integers(-8, 9, shape) / 4)


def generic_data(function: Function, seed: int) -> Arrays:
    """Draw floating-point arguments in general position: no two are equal, none is near 0."""
    return _data(
        function, seed, lambda random, shape: random.uniform(0.1, 2.0, shape) * random.choice([-1, 1], shape)
    )


def _data(function: Function, seed: int, draw: Callable[[Any, tuple[int, ...]], Any]) -> Arrays:
    random = np.random.default_rng(seed)
    arrays = {}
    for argument in function.arguments:
        type = argument.value.type
        shape = tuple(dim.size for dim in type.dims)
        if argument.role == "step":
            found = np.array(STEP)
        elif type.dtype in ("i32", "u32"):
            found = random.integers(-3, 4, shape)
        elif type.dtype == "bool":
            found = random.integers(0, 2, shape)
        else:
            found = np.asarray(draw(random, shape))
        if argument.role == "state":
            found = np.abs(found) + 0.25  # an optimizer may divide by it
        arrays[argument.value.name] = found.astype(numpy_dtype(np, type.dtype))
    return arrays


# Running


def reference(source: str, function: str, arrays: Arrays) -> Arrays:
    """Return the results of the undistributed program."""
    (program,) = load(source).programs
    whole = differentiated(program, "gradients" if function == "gradients" else "step")
    return interpret(whole.function(function), whole, arrays)


def simulate(source: str, function: str, arrays: Arrays, layout: str | None = None) -> Arrays:
    """Return the results of the generated NumPy module."""
    program = lowered(source, "gradients" if function == "gradients" else "step", layout)
    return call(numpy_module(program), program.function(function), arrays)


def numpy_module(program: Program, checked: bool = True) -> Any:
    return numpy_backend.load(numpy_backend.generate(program, checked))


def jax_module(program: Program) -> Any:
    return jax_runtime.load(jax_backend.generate(program))


def call(module: Any, function: Function, arrays: Arrays) -> Arrays:
    """Run a function of a generated module on global arrays. Return global outputs under the names of the IR's outputs."""
    roles = {argument.value.name: argument.role for argument in function.arguments}
    given = {role: {n: x for n, x in arrays.items() if roles[n] == role} for role in set(roles.values())}
    params = module.shard(given.get("parameter", {}), module.PARAMETERS)
    stacked = getattr(module, "BATCHES", module.INPUTS) if function.name == "step" else module.INPUTS
    inputs = module.shard(given.get("input", {}), stacked)
    if function.name != "step":
        outputs = getattr(module, function.name)(params, inputs)
        return whole(module, outputs, module.OUTPUTS[function.name])
    state = module.shard(given.get("state", {}), module.STATE)
    outputs, params, state = module.train_step(params, state, inputs, STEP)
    replaced = {**whole(module, params, module.PARAMETERS), **whole(module, state, module.STATE)}
    return {
        **whole(module, outputs, module.OUTPUTS["train_step"]),
        **{output.name: replaced[output.updates] for output in function.outputs if output.updates},
    }


def whole(module: Any, arrays: Arrays, layouts: Mapping[str, Any]) -> Arrays:
    return {name: np.asarray(x) for name, x in module.unshard(arrays, layouts).items()}


# Comparing


class HasSource(Protocol):
    """A generated program, or anything else that has a source text."""

    @property
    def source(self) -> str: ...


TERMS = 16
"""Units in the last place of the largest number of all arrays: the rounding of terms that cancel in a small array."""


@attrs.frozen
class Tolerance:
    """The largest accepted difference of an array, relative to its own largest element.

    unit: a unit in the last place of 1. An array of small numbers, or zeros, may be a difference of numbers as large as those of
    other arrays.
    """

    relative: float
    unit: float = 2.0**-23

    def check(self, actual: Arrays, expected: Arrays, what: str) -> None:
        assert actual.keys() == expected.keys(), what
        rounding = TERMS * self.unit * max(map(_largest, expected.values()), default=0.0)
        for name, wanted in expected.items():
            self._check_one(np.asarray(actual[name]), np.asarray(wanted), rounding, f"{what}: {name}")

    def _check_one(self, actual: Any, wanted: Any, rounding: float, what: str) -> None:
        assert actual.shape == wanted.shape, what
        assert actual.dtype == wanted.dtype, f"{what}: {actual.dtype} is not {wanted.dtype}"
        if wanted.dtype.kind in "iub":
            np.testing.assert_array_equal(actual, wanted, err_msg=what)
            return
        atol = self.relative * _largest(wanted) + rounding
        np.testing.assert_allclose(
            actual.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=atol, err_msg=what
        )


def _largest(x: Any) -> float:
    """Return the largest finite absolute value of an array of floats; 0 for other arrays."""
    x = np.asarray(x)
    numbers = np.abs(x.astype(np.float64)) if x.dtype.kind not in "iub" else np.zeros(0)
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))


FINE, SINGLE, ROUGH = Tolerance(1e-9, 2.0**-52), Tolerance(2e-5), Tolerance(6e-2, 2.0**-8)


def tolerance(program: Program) -> Tolerance:
    """Return the largest accepted difference of a program's results, for its precision."""
    if program.training is not None and program.training.precision is not None:
        return ROUGH
    wide = any(argument.value.type.dtype == "f64" for argument in program.function("forward").arguments)
    return FINE if wide else SINGLE


def functions(program: Program) -> Iterator[tuple[str, str]]:
    """Yield the parts of a model that can be compared: option of `differentiate`, and function."""
    yield "gradients", "gradients"
    if program.training is not None:
        yield "step", "step"


def agree(source: str, jax: bool = True) -> None:
    """Assert that every layout on both backends has the results of the undistributed program."""
    module = load(source)
    (program,) = module.programs
    for of, name in functions(program):
        original = differentiated(program, of)
        arrays = exact_data(original.function(name), seed=7)
        expected = interpret(original.function(name), original, arrays)
        for layout in module.layouts:
            placed = lower(program, layout.mesh, layout.layout, of)
            verify(placed, "lowered")
            backends = [numpy_module(placed), *([jax_module(placed)] if jax else [])]
            for backend in backends:
                tolerance(program).check(
                    call(backend, placed.function(name), arrays), expected, f"{layout.name}: {name}"
                )
