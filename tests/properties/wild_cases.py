"""Checks of the cases that `generators/wild.py` and `generators/jax_functions.py` draw. Each case is one layout."""

from random import Random
from typing import Any

import jax
import numpy as np

import mtfc
from mtfc.compiler.diagnostics import CompileError
from mtfc.compiler.ir.types import Layout, Mesh, Rules
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.jax_functions.imported_program import ImportedProgram
from mtfc.driver.verification.exact_cases import exact_lowered
from tests.generators.jax_functions import JaxFunction, jax_function
from tests.generators.wild import wild
from tests.harness import load
from tests.properties.test_exact import check_program

MESH = Mesh("mesh", (("x", 2), ("y", 2)))


def is_legal(source: str) -> bool:
    try:
        load(source)
    except CompileError:
        return False
    return True


def check_wild(seed: int) -> int:
    """Check the legal layouts of a wild model exactly, and its gradients. Return the number of layouts."""
    model = wild(seed)
    if not is_legal(model.source(())):
        return 0
    layouts = model.layouts
    if not is_legal(model.source(layouts)):
        layouts = tuple(each for each in layouts if is_legal(model.source((each,))))
    return check_program(model.source(layouts))


def imported(function: JaxFunction) -> ImportedProgram | None:
    """Import a function, or return None if JAX itself refuses to trace it, as some gradients of loops."""
    plain, structs = function.load(), [jax.ShapeDtypeStruct(*each) for each in function.arguments]
    try:
        jax.eval_shape(plain, *structs)
    except Exception:
        return None
    return mtfc.from_jax(plain, *structs, parameters=())


def drawn_rules(program: ImportedProgram, seed: int) -> list[Rules]:
    """Draw a layout of one dimension, and one of two."""
    random, names = Random(seed), [name for name, size in program.dims.items() if size % 2 == 0]
    found = [Rules(((name, ("x",)),)) for name in random.sample(names, min(len(names), 1))] or [Rules(())]
    if len(names) > 1:
        a, b = random.sample(names, 2)
        found.append(Rules(((a, ("x",)), (b, ("y",)))))
    return found


def check_jax_function(seed: int) -> int:
    """Check layouts of a random function of JAX exactly. Return the number of layouts."""
    function = jax_function(seed)
    program = imported(function)
    if program is None:
        return 0
    given: dict[str, Any] = {
        leaf.name: np.asarray(leaf.constant).reshape([dim.size for dim in leaf.flat_dims])
        for leaf in program.imported.inputs
        if leaf.constant is not None and leaf.key is None
    }
    layouts = drawn_rules(program, seed)
    for rules in layouts:
        found = exact_lowered(program.program, lower(program.program, MESH, Layout("drawn", rules)), given, 0)
        assert found.ok, f"{rules}: {found.wrong}\n{function.text}"
    return len(layouts)
