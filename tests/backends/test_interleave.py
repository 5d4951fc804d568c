"""Parts are dealt out to processors in turn: both backends do what the whole array says, and send what is predicted."""

from itertools import product

import numpy as np
import pytest

from mtfc.backends.hlo import collectives
from mtfc.backends.jax import runtime
from mtfc.backends.jax.backend import generate
from mtfc.backends.jax.jax_program import JaxProgram
from mtfc.compiler.cost.volumes import layout_cost, total
from mtfc.compiler.ir.parser import read_program
from mtfc.compiler.ir.verifier import verify
from tests.harness import call, numpy_module

MESHES = {
    "rows: 2": 2, "rows: 3": 3, "rows: 4": 4, "rows: 5": 5, "rows: 2, cols: 4": 8, "rows: 3, cols: 2": 6,
}  # fmt: skip
AXES = {"rows: 2, cols: 4": "rows, cols", "rows: 3, cols: 2": "cols, rows"}
PARTS = (1, 2, 3, 4, 6, 9)


def program_text(mesh: str) -> str:
    """Return a program in IR that deals arrays of [io, places, parts] out, and collects others, for several numbers of parts."""
    axes, places = AXES.get(mesh, "rows"), MESHES[mesh]
    lines = [f"program dealing\nmesh grid = [{mesh}]\nlayout split = {{}}\ndim io = 2\ndim places = {places}"]
    lines += [f"dim parts_{n} = {n}" for n in PARTS]
    lines.append("\nfunction forward placed {")
    types = {(n, way): f"f32[io, parts_{n}, places{{{axes}}}]" for n in PARTS for way in ("false", "true")}
    lines += [f"  input %x_{n}_{way}: {type}" for (n, way), type in types.items()]
    for (n, way), type in types.items():
        operands = f"%x_{n}_{way} dim=places among=parts_{n} back={way} axes={{{axes}}}"
        lines.append(f"  %y_{n}_{way}: {type} = interleave_shards {operands}")
    lines += [f"  output y_{n}_{way} = %y_{n}_{way}" for n, way in types]
    return "\n".join([*lines, "}\n"])


def dealt(x: np.ndarray, back: bool) -> np.ndarray:
    """Return [io, parts, places] with part j of place i, number i * parts + j, at its place if all are counted out in turn."""
    result = np.empty_like(x)
    _, parts, places = x.shape
    for i, j in product(range(places), range(parts)):
        turn, place = divmod(i * parts + j, places)
        if back:
            result[:, j, i] = x[:, turn, place]
        else:
            result[:, turn, place] = x[:, j, i]
    return result


@pytest.mark.parametrize("mesh", MESHES)
def test_parts_arrive_at_their_turns(mesh: str) -> None:
    program = read_program(program_text(mesh))
    verify(program, "lowered")
    random = np.random.default_rng(0)
    inputs = {
        f"x_{n}_{way}": random.normal(size=(2, n, MESHES[mesh])).astype(np.float32)
        for n in PARTS
        for way in ("false", "true")
    }
    on_arrays = call(numpy_module(program), program.function("forward"), inputs)
    on_devices = JaxProgram.of(generate(program)).forward({}, inputs)
    for name, x in inputs.items():
        expected = dealt(x, name.endswith("true"))
        np.testing.assert_array_equal(on_arrays[name.replace("x", "y")], expected)
        np.testing.assert_array_equal(on_devices[name.replace("x", "y")], expected)


@pytest.mark.parametrize("mesh", MESHES)
def test_xla_sends_each_part_once(mesh: str) -> None:
    program = read_program(program_text(mesh))
    module, function = numpy_module(program), program.function("forward")
    predicted = total(layout_cost(program).forward).collectives["permute"]
    compiled = collectives(runtime.hlo(program, "forward"))["permute"]
    assert (predicted.count, predicted.bytes) == (compiled["count"], compiled["bytes_per_device"])
    assert predicted.count <= 2 * sum(PARTS)
    zeros = {
        a.value.name: np.zeros([dim.size for dim in a.value.type.dims], np.float32)
        for a in function.arguments
    }
    call(module, function, zeros)
    sent = module.SENT["permute"]
    assert (predicted.count, predicted.bytes) == (sent["count"], sent["bytes_per_device"])
