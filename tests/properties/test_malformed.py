"""Mutated equations: the verifier refuses a program, or passes, interpreter and backends take it without a raw error."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from mtfc.backends.interpreter import interpret
from mtfc.backends.registry import BACKENDS
from mtfc.compiler.ir.core import Equation, Function, Program, Value
from mtfc.compiler.ir.loops import LOOP
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.verifier import Level, VerifyError, verify
from mtfc.compiler.passes.pass_base import Pass
from mtfc.compiler.passes.pipelines import default_pipeline, run
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import exact_data, load
from tests.properties.campaign import FEW_EXAMPLES, holds_for

MUTANTS = 60
"""The mutants of each program."""

JUNK: Sequence[Any] = (
    None, True, False, 0, 1, -1, 3, 2**31, 1.5, -0.0, float("nan"), float("inf"), 1e39, "", "f32", "f8", "i32", "bool", "a",
    (), [], {}, ("rows",), ("rows", "rows"), (1,), ((),), object,
)  # fmt: skip

Attributes = dict[str, Any]


def mutated(eqn: Equation, values: Sequence[Value], program: Program, random: Random) -> Equation:
    """Change the op, an operand, an attribute or the results of an equation."""
    dims = tuple(program.dims.values())
    odd = (
        *JUNK,
        *dims,
        *((dim,) for dim in dims),
        tuple(dims[:2]),
        tuple(dims[:1]) * 2,
        ((dims[0], dims[-1]),),
    )
    changes: tuple[Callable[[], Equation], ...] = (
        lambda: attrs.evolve(eqn, operands=eqn.operands[:-1]),
        lambda: attrs.evolve(eqn, operands=(*eqn.operands, random.choice(values))),
        lambda: attrs.evolve(eqn, operands=_replaced(eqn.operands, random.choice(values), random)),
        lambda: attrs.evolve(eqn, attrs=_without(eqn.attrs, random)),
        lambda: attrs.evolve(eqn, attrs={**eqn.attrs, "extra": random.choice(odd)}),
        lambda: attrs.evolve(eqn, op=random.choice([*OPS, LOOP, "gelu"])),
        lambda: attrs.evolve(eqn, results=eqn.results[:-1]),
        *(
            lambda key=key: attrs.evolve(eqn, attrs={**eqn.attrs, key: random.choice(odd)})
            for key in eqn.attrs
            for _ in range(3)
        ),
    )
    return random.choice(changes)()


def _replaced(operands: Sequence[Value], value: Value, random: Random) -> tuple[Value, ...]:
    if not operands:
        return (value,)
    place = random.randrange(len(operands))
    return (*operands[:place], value, *operands[place + 1 :])


def _without(attributes: Any, random: Random) -> Attributes:
    found = dict(attributes)
    if found:
        del found[random.choice(sorted(found))]
    return found


def mutants(program: Program, random: Random) -> Iterator[Program]:
    """Yield the program with one equation of `forward`, or of a loop in it, changed."""
    forward = program.function("forward")
    for _ in range(MUTANTS if forward.body else 0):
        changed = _changed(forward, program, random)
        yield program.map_functions(lambda f, changed=changed: changed if f is forward else f)


def _changed(function: Function, program: Program, random: Random) -> Function:
    place = random.randrange(len(function.body))
    eqn = function.body[place]
    earlier = [a.value for a in function.arguments] + [v for e in function.body[:place] for v in e.results]
    if eqn.regions and eqn.regions[0].body and random.random() < 0.7:
        new = attrs.evolve(eqn, regions=(_changed(eqn.regions[0], program, random),))
    else:
        new = mutated(eqn, earlier or list(eqn.results), program, random)
    return attrs.evolve(function, body=(*function.body[:place], new, *function.body[place + 1 :]))


def is_refused(program: Program, level: Level) -> bool:
    """Return True if the verifier refuses the program; any other error is a fault."""
    try:
        verify(program, level)
    except VerifyError:
        return True
    return False


@holds_for(st.tuples(programs(Options(layouts=1)), st.integers(0, 2**32)), FEW_EXAMPLES)
def test_a_mutated_equation_is_refused_or_legal(case: tuple[Any, int]) -> None:
    source, seed = case
    module, random = load(source.source), Random(seed)
    (original,), (declared, *_) = module.programs, module.layouts
    for mutant in mutants(original, random):
        if is_refused(mutant, "global"):
            continue
        arrays = exact_data(mutant.function("forward"), seed=1)
        with np.errstate(all="ignore"):
            interpret(mutant.function("forward"), mutant, arrays)
            placed = attrs.evolve(mutant, mesh=declared.mesh, layout=declared.layout)
            passes: tuple[Pass, ...] = default_pipeline("gradients")
            lowered = run(placed, passes)
            interpret(lowered.function("forward"), lowered, arrays)


@holds_for(st.tuples(programs(Options(layouts=1)), st.integers(0, 2**32)), FEW_EXAMPLES)
def test_a_mutated_lowered_equation_is_refused_or_legal(case: tuple[Any, int]) -> None:
    """Collectives too: their axes and dimensions. Both backends make text of what is legal."""
    source, seed = case
    module, random = load(source.source), Random(seed)
    (original,), (declared, *_) = module.programs, module.layouts
    placed = attrs.evolve(original, mesh=declared.mesh, layout=declared.layout)
    lowered = run(placed, default_pipeline("gradients"))
    for mutant in mutants(lowered, random):
        if not is_refused(mutant, "lowered"):
            with np.errstate(all="ignore"):
                interpret(mutant.function("forward"), mutant, exact_data(mutant.function("forward"), seed=1))
            for backend in BACKENDS.values():
                compile(backend.generate(mutant), "<generated>", "exec")
