"""Generated modules of both backends refuse arrays that they are not compiled for, with the same messages."""

from typing import Any

import numpy as np
import pytest

from mtfc.compiler.ir.core import Program
from tests.harness import jax_module, lowered, numpy_module

SOURCE = """
dim batch = 32
dim io = 4
mesh grid = [rows: 2, cols: 2]
layout split on grid = { batch: rows, io: cols }

model m(x: [batch, io], ids: i32[batch]) {
  param w: [io] = ones()
  loss = mean(square(x * w)) + mean(cast(ids, f32))
  return loss
}

train m {
  minimize loss
  optimizer = momentum(learning_rate = 0.1)
  ACCUMULATE
}
"""


def program(accumulate: int = 1) -> Program:
    return lowered(SOURCE.replace("ACCUMULATE", f"accumulate = {accumulate}"))


@pytest.fixture(params=["numpy", "jax"])
def load(request: pytest.FixtureRequest) -> Any:
    return jax_module if request.param == "jax" else numpy_module


def batch(rows: int, *front: int) -> dict[str, Any]:
    return {"x": np.ones((*front, rows, 4), np.float32), "ids": np.ones((*front, rows), np.int32)}


def unchecked(module: Any, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays, placed by a module that is compiled for their sizes."""
    return dict(module.shard(arrays, module.INPUTS))


def message(call: Any) -> str:
    with pytest.raises(ValueError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("rows", [8, 16, 64])
def test_another_batch_size_is_refused(load: Any, rows: int) -> None:
    """The mean over 32 rows is a multiplication by 1/32, which gives a wrong loss for any other number of rows."""
    module = load(program())
    wanted = f'"x"] is float32[batch: 32, io: 4], and the given array is float32[{rows}, 4]'
    advice = (
        f"the program is compiled for batch = 32; for other sizes compile it again, with --dim batch={rows}"
    )
    assert advice in message(lambda: module.shard(batch(rows), module.INPUTS))
    other = load(lowered(SOURCE.replace("ACCUMULATE", "").replace("batch = 32", f"batch = {rows}")))
    params, inputs = module.init(0), unchecked(other, batch(rows))
    for call in (
        lambda: module.forward(params, inputs),
        lambda: module.train_step(params, module.init_state(), inputs, 0),
    ):
        assert f"inputs[{wanted}: {advice}" in message(call)


def test_arrays_of_the_right_sizes_are_taken(load: Any) -> None:
    module = load(program())
    inputs = module.shard(batch(32), module.INPUTS)
    assert float(np.ravel(module.forward(module.init(0), inputs)["loss"])[0]) == 2.0
    outputs, _, _ = module.train_step(module.init(0), module.init_state(), inputs, 0)
    assert float(np.ravel(outputs["loss"])[0]) == 2.0


def test_another_dtype_is_refused(load: Any) -> None:
    module = load(program())
    wanted = '"ids" is int32[batch: 32], and the given array is float32[32]: convert it with .astype("int32")'
    given = {**batch(32), "ids": np.ones(32, np.float32)}
    assert message(lambda: module.shard(given, module.INPUTS)) == wanted
    placed = module.shard(batch(32), module.INPUTS)
    found = message(
        lambda: module.forward(module.init(0), {**placed, "ids": placed["ids"].astype("float32")})
    )
    assert found == f"inputs[{wanted.replace(' is', '] is', 1)}"


@pytest.mark.parametrize("dtype", ["uint8", "bool", "complex64", "float16"])
def test_only_wide_numbers_are_narrowed(load: Any, dtype: str) -> None:
    module = load(program())
    assert "convert it" in message(lambda: module.shard({"ids": np.ones(32, dtype)}, module.INPUTS))
    wide = {"x": np.ones((32, 4)), "ids": np.ones(32, np.int64)}
    module.forward(module.init(0), module.shard(wide, module.INPUTS))
    wide["ids"][3] += 2**32
    found = message(lambda: module.shard(wide, module.INPUTS))
    assert found == '"ids" is int32, and the given array has numbers that do not fit in it'


def test_arguments_may_have_names(load: Any) -> None:
    module = load(program())
    params, inputs = module.init(0), module.shard(batch(32), module.INPUTS)
    named = module.forward(params=params, inputs=inputs)
    assert np.array_equal(named["loss"], module.forward(params, inputs)["loss"])
    state = module.init_state()
    module.train_step(params=params, state=state, inputs=inputs, step=0)
    with pytest.raises(TypeError, match="inputs"):
        module.forward(module.init(0))


def test_arguments_are_dicts_of_arrays(load: Any) -> None:
    module = load(program())
    params, inputs = module.init(0), module.shard(batch(32), module.INPUTS)
    found = message(lambda: module.train_step(params, None, inputs, 0))
    assert found == "state is a dict of arrays by name, and not NoneType"
    found = message(lambda: module.forward(params, {**inputs, "ids": [1, 2]}))
    assert found == 'inputs["ids"] is an array, and not list'


def test_arrays_that_are_not_placed_are_refused_on_numpy() -> None:
    """Both a whole array and parameters split for another layout are refused."""
    module = numpy_module(program(), checked=False)
    params, inputs = module.init(0), module.shard(batch(32), module.INPUTS)
    found = message(lambda: module.forward(params, batch(32)))
    assert found == 'inputs["x"] is not placed on this mesh: place whole arrays with shard(arrays, INPUTS)'
    other = numpy_module(
        lowered(SOURCE.replace("ACCUMULATE", "").replace("batch: rows, io: cols", "batch: cols, io: rows")),
        False,
    )
    found = message(lambda: module.forward(other.init(0), inputs))
    assert (
        found == 'params["w"] is not placed on this mesh: place whole arrays with shard(arrays, PARAMETERS)'
    )
    for shape in ((1, 32, 4), (2, 16, 4), (32, 1, 4)):
        wrong = {**inputs, "x": np.ones(shape, np.float32)}
        assert "place" in message(lambda wrong=wrong: module.forward(params, wrong))


def test_missing_and_unknown_names_are_told(load: Any) -> None:
    module = load(program())
    inputs = module.shard(batch(32), module.INPUTS)
    found = message(lambda: module.forward({"v": inputs["ids"]}, {"x": inputs["x"]}))
    assert found == 'params lacks "w": it takes w\nparams has "v", which is unknown: it takes w'
    found = message(lambda: module.forward(module.init(0), {"x": inputs["x"]}))
    assert found == 'inputs lacks "ids": it takes x, ids'
    found = message(lambda: module.train_step(module.init(0), {}, inputs, 0))
    assert found == 'state lacks "w.velocity": it takes w.velocity'
    found = message(lambda: module.shard({"y": inputs["x"]}, module.INPUTS))
    assert found == 'inputs has "y", which is unknown: it takes x, ids'


def test_a_step_takes_all_its_micro_batches(load: Any) -> None:
    module = load(program(accumulate=3))
    params, state = module.init(0), module.init_state()
    single = module.shard(batch(32), module.INPUTS)
    found = message(lambda: module.train_step(params, state, single, 0))
    assert "is float32[micro: 3, batch: 32, io: 4], and the given array is float32[32, 4]" in found
    assert "stack 3 of these along a new first dimension, micro" in found
    found = message(lambda: module.shard(batch(16), module.INPUTS))
    assert '"x" is float32[batch: 32, io: 4], and the given array is float32[16, 4]' in found
    assert "micro: 3" in message(lambda: module.shard(batch(16, 3), module.BATCHES))
    assert "its dimensions are batch, io" in message(lambda: module.shard(batch(32, 3), module.INPUTS))
    stacked = module.shard(batch(32, 3), module.BATCHES)
    assert "batch, io" in message(lambda: module.forward(params, stacked))
    outputs, _, _ = module.train_step(params, state, stacked, 0)
    assert float(np.ravel(outputs["loss"])[0]) == 2.0


def test_parameters_of_another_model_are_refused(load: Any) -> None:
    module = load(program())
    wrong = {"w": np.ones(8, np.float32)}
    assert "compiled for io = 4" in message(lambda: module.shard(wrong, module.PARAMETERS))
