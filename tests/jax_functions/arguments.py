"""Run imported programs on the interpreter and as modules, with the arguments of the user's function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mtfc.backends import interpreter
from mtfc.backends.registry import BACKENDS
from mtfc.compiler.ir.core import Program
from mtfc.driver.jax_functions.comparison import perturbed, spread_of
from mtfc.driver.jax_functions.imported_program import ImportedProgram

Arrays = Mapping[str, Any]


def data(x: Any) -> Any:
    """Return an array of NumPy. Random keys become their data."""
    return np.asarray(jax.random.key_data(x) if is_key(x) else x)


def is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and bool(jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key))


def program_arguments(program: ImportedProgram, args: Sequence[Any]) -> Arrays:
    """Return the program's arguments by name, in the shapes of its dimensions."""
    leaves = iter(jax.tree.leaves(tuple(args)))
    given = {
        leaf.name: leaf.constant if leaf.constant is not None else next(leaves)
        for leaf in program.imported.inputs
    }
    return {
        leaf.name: data(given[leaf.name]).reshape([dim.size for dim in leaf.flat_dims])
        for leaf in program.imported.inputs
    }


def interpreted(program: ImportedProgram, arguments: Arrays) -> list[Any]:
    return in_order(program, interpreter.interpret(program.imported.main, program.program, arguments))


def run(program: ImportedProgram, lowered: Program, arguments: Arrays, backend: str) -> list[Any]:
    """Run a lowered program's module."""
    module = BACKENDS[backend].load(BACKENDS[backend].generate(lowered))
    main = lowered.function(program.imported.main.name)
    params, inputs, state = (
        {a.value.name: arguments[a.value.name] for a in main.arguments if a.role == role}
        for role in ("parameter", "input", "state")
    )
    given = module.shard(params, module.PARAMETERS), module.shard(inputs, module.INPUTS)
    if main.name == "forward":
        return in_order(program, module.unshard(module.forward(*given), module.OUTPUTS["forward"]))
    outputs, params, state = module.train_step(given[0], module.shard(state, module.STATE), given[1], 0)
    new = {**module.unshard(params, module.PARAMETERS), **module.unshard(state, module.STATE)}
    found = module.unshard(outputs, module.OUTPUTS["train_step"])
    return in_order(program, {**found, **{name: new[old] for name, old in program.imported.replaced.items()}})


def in_order(program: ImportedProgram, outputs: Arrays) -> list[Any]:
    """Return the outputs in the shapes of the user's function."""
    return [np.asarray(outputs[leaf.name]).reshape(leaf.shape) for leaf in program.imported.outputs]


def rounding_spread(function: Callable[..., Any], args: Sequence[Any], expected: Sequence[Any]) -> list[Any]:
    """Return how far each number of the results moves if the arguments change by some roundings."""
    leaves, tree = jax.tree.flatten(tuple(args))
    draws = perturbed([x if is_key(x) else np.asarray(x) for x in leaves], "f32")
    results = [jax.tree.leaves(function(*jax.tree.unflatten(tree, draw))) for draw in draws]
    return spread_of(expected, [[data(x).astype(np.float64) for x in each] for each in results])
