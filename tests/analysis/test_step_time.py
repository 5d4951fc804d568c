"""Test predicted times: figures worked out by hand, and invariants of random programs."""

import attrs
import pytest

from mtfc.compiler.cost.effects.roofline import work
from mtfc.compiler.cost.fusion import FusionModel
from mtfc.compiler.cost.hardware import Device, Hardware, Link, Rate
from mtfc.compiler.cost.step_time import Seconds, StepTime, step_time
from mtfc.compiler.cost.volumes import layout_cost, total
from mtfc.compiler.ir.core import Program
from mtfc.compiler.passes.pipelines import lower
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED
from tests.generators.programs import Generated, programs
from tests.harness import load, lowered
from tests.properties.campaign import holds_for

FLOPS, BYTES, SENT, LATENCY, OVERHEAD = 1e12, 1e11, 1e10, 1e-6, 2e-6

TWO_LAYERS = """\
dim batch = 1024
dim io = 512
dim hidden = 2048
mesh line = [all: 4]
layout single on line = {}
layout data on line = { batch: all }
layout model on line = { hidden: all }
model net(x: [batch, io]) {
  param w: [io, hidden] = zeros()
  param v: [hidden, io] = zeros()
  y = einsum(relu(einsum(x, w -> [batch, hidden])), v -> [batch, io])
  return y
}
"""

TWO_PRODUCTS = """\
dim a = 1024
dim b = 1024
dim c = 1024
mesh line = [all: 4]
layout split on line = { b: all }
model net(x: [a, b], y: [b, c], z: [a, c], u: [c, b]) {
  p = einsum(x, y -> [a, c])
  q = einsum(z, u -> [a, b])
  return p, q
}
"""

LOOP = """\
dim layers = 6
dim batch = 64
dim io = 128
dim out = 128
mesh line = [all: 2]
layout split on line = { io: all }
model net(x: [batch, io]) {
  repeat layers {
    param w: [io, out] = zeros()
    x = rename(einsum(x, w -> [batch, out]), out -> io)
  }
  return x
}
"""


LOOKUP = """\
dim rows = 4096
dim units = 8
dim batch = 16
model net(ids: i32[batch]) {
  param table: [rows, units] = zeros()
  loss = sum(gather(table, ids, rows))
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""


def machine(overhead: float = OVERHEAD, sent: float = SENT) -> Hardware:
    device = Device({"f32": Rate.constant(FLOPS)}, 1e9, Rate.constant(BYTES), overhead)
    return Hardware("box", device, (Link("wire", "switch", (), Rate.constant(sent), LATENCY),))


def in_memory(devices: int) -> Hardware:
    box = machine()
    link = attrs.evolve(box.links[0], kind="memory", sizes=(devices,))
    return attrs.evolve(box, device=attrs.evolve(box.device, overlap=0.0), links=(link,))


def timed(program: Program, hardware: Hardware) -> StepTime:
    assert program.mesh is not None
    function = program.function("step" if program.has_function("step") else "forward")
    return step_time(function, program.mesh, hardware)


def kernel(flops: float, size: float) -> float:
    return max(flops / FLOPS, size / BYTES) + OVERHEAD


def test_two_layers_on_one_device() -> None:
    """The step has two dots and, between them, a kernel that reads and writes the hidden layer."""
    product = kernel(2 * 1024 * 512 * 2048, 4 * (1024 * 512 + 512 * 2048 + 1024 * 2048))
    relu = kernel(1024 * 2048, 2 * 4 * 1024 * 2048)
    step = timed(lowered(TWO_LAYERS, layout="single"), machine())
    assert step.seconds == pytest.approx(2 * product + relu)
    assert step.total == Seconds(compute=pytest.approx(step.seconds))
    assert step.utilisation == pytest.approx((4 * 1024 * 512 * 2048 + 1024 * 2048) / FLOPS / step.seconds)


def test_model_parallelism_waits_for_its_all_reduce() -> None:
    step = timed(lowered(TWO_LAYERS, layout="model"), machine())
    reduce = 2 * (3 * LATENCY + 3 / 4 * 4 * 1024 * 512 / SENT)
    assert step.total.communication == pytest.approx(reduce)
    assert step.total.exposed == pytest.approx(reduce)
    assert step.busy == pytest.approx({"wire": reduce})


def test_a_loop_takes_as_long_as_its_iterations() -> None:
    once = timed(lowered(LOOP.replace("layers = 6", "layers = 1")), machine())
    six = timed(lowered(LOOP), machine())
    assert once.total.communication > 0
    assert six.seconds == pytest.approx(6 * once.seconds)
    assert six.total.exposed == pytest.approx(6 * once.total.exposed)


def test_an_iteration_costs_its_copies_for_dots() -> None:
    """An iteration copies the slice of weights that its dot reads. It also copies the result of the dot if the loop stacks the
    result.
    """
    box, copy = machine(), 2 * 4 * 128 * 128 / BYTES + OVERHEAD
    looping = attrs.evolve(box, device=attrs.evolve(box.device, loop=7e-6))
    program = load(LOOP).programs[0]
    single = lower(program, ONE_DEVICE, UNDISTRIBUTED)
    product = kernel(2 * 64 * 128 * 128, 4 * (64 * 128 + 128 * 128 + 64 * 128))
    assert timed(single, box).seconds == pytest.approx(6 * (product + copy))
    assert timed(single, looping).seconds == pytest.approx(6 * (product + copy + 7e-6))
    on_tpu, looping_on_tpu = (
        attrs.evolve(each, device=attrs.evolve(each.device, mxu_size=128)) for each in (box, looping)
    )
    besides = timed(single, looping_on_tpu).seconds - timed(single, on_tpu).seconds
    assert besides == pytest.approx(6 * 7e-6)
    kept = LOOP.replace("x = rename", "y = einsum(x, w -> [batch, out])\n    yield ys = y\n    x = rename")
    ys = lower(load(kept.replace("return x", "return x, ys")).programs[0], ONE_DEVICE, UNDISTRIBUTED)
    keeping = 2 * 4 * 64 * 128 / BYTES + OVERHEAD
    assert timed(ys, box).seconds == pytest.approx(6 * (product + copy + keeping))


def test_tables_take_the_time_of_what_indices_point_at() -> None:
    step = lower(load(LOOKUP).programs[0], ONE_DEVICE, UNDISTRIBUTED)
    device = attrs.evolve(machine(0.0).device, ops={"gather": 1e3, "scatter_add": 1e3})
    function = step.function("step")
    each = zip(function.body, work(function, ONE_DEVICE, device), strict=True)
    taken = {eqn.op: work.seconds for eqn, work in each}
    assert taken["gather"] == taken["scatter_add"] == pytest.approx(16 * 8 / 1e3)


def test_communication_hides_behind_what_does_not_need_it() -> None:
    """The second dot runs during the all-reduce of the first result."""
    product = kernel(2 * 1024**3 / 4, 4 * 1024 * (256 + 256 + 1024))
    reduce = 2 * (3 * LATENCY + 3 / 4 * 4 * 1024**2 / SENT)
    step = timed(lowered(TWO_PRODUCTS), machine())
    assert reduce > product
    assert step.seconds == pytest.approx(product + reduce)
    assert step.total.exposed == pytest.approx(reduce - product)
    fast = timed(lowered(TWO_PRODUCTS), machine(sent=1e13))
    assert fast.seconds == pytest.approx(2 * product)
    assert fast.total.exposed == 0


def test_processors_copy_in_shared_memory_themselves() -> None:
    """Nothing else runs during the all-reduce of the first result, and loading does not hide behind computing."""
    step = timed(lowered(TWO_PRODUCTS), in_memory(4))
    moved = 4 * 1024 * (256 + 256 + 1024)
    product = 2 * 1024**3 / 4 / FLOPS + moved / BYTES + OVERHEAD
    reduce = 4 * LATENCY + 2 * 4 * 1024**2 / SENT
    assert step.total == Seconds(
        compute=pytest.approx(2 * product), communication=pytest.approx(reduce), exposed=pytest.approx(reduce)
    )


def test_elementwise_chains_are_one_kernel() -> None:
    text = """\
dim n = 1000000
model net(x: [n], y: [n]) {
  z = exp(x * y + 1.0) / (x + 2.0)
  return z
}
"""
    module = load(text)
    (program,) = module.programs
    function = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("forward")
    found = work(function, ONE_DEVICE, machine(overhead=0).device)
    size = 4 * 10**6
    assert sum(each.bytes for each in found) <= 4 * size  # x twice, y, z
    assert timed(lower(program, ONE_DEVICE, UNDISTRIBUTED), machine()).seconds == pytest.approx(
        sum(each.seconds for each in found) + OVERHEAD
    )


def test_a_folded_dot_stores_only_the_sums() -> None:
    text = """\
dim batch = 64
dim height = 32
dim taps = 3
dim c = 16
dim k = 16
model net(x: [batch, height, c], t: [batch, height, k]) {
  param f: [taps, c, k] = normal()
  param g: [c] = normal()
  y = einsum(window(tanh(x * g), height -> [height, taps], padding = (1, 1)), f -> [batch, height, k])
  loss = sum(y * t)
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""
    module = load(text)
    (program,) = module.programs
    function = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("step")
    stored = FusionModel(function, ONE_DEVICE, machine().device).stored
    (fold,) = (eqn for eqn in function.body if eqn.op == "fold")
    assert fold.result in stored
    assert not stored.intersection(fold.operands)


def test_dots_with_windows_or_folds_are_convolutions() -> None:
    text = """\
dim batch = 64
dim height = 32
dim taps = 3
dim c = 16
dim k = 16
model net(x: [batch, height, c], t: [batch, height, k]) {
  param f: [taps, c, k] = normal()
  param g: [c, k] = normal()
  y = einsum(window(x, height -> [height, taps], padding = (1, 1)), f -> [batch, height, k])
  z = einsum(tanh(y), f -> [batch, height, taps, c])
  loss = sum(y * t) + sum(z) + sum(einsum(x, g -> [batch, height, k]))
  return loss
}
train net { minimize loss; optimizer = sgd(learning_rate = 0.1) }
"""
    (program,) = load(text).programs
    function = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("step")
    memory = FusionModel(function, ONE_DEVICE, machine().device)
    kernels = [memory.kernel(eqn) for eqn in function.body if eqn.op == "einsum"]
    assert kernels.count("convolution") == 2  # forward, and the filter's gradient; inputs have none
    assert kernels.count("einsum") >= 3


def test_ops_have_rates_of_their_own() -> None:
    """Only a maximum over windows is a pooling. An op without a rate takes the time of its bytes."""
    text = """\
dim batch = 64
dim rows = 64
dim half = 32
dim two = 2
model net(x: [batch, rows]) {
  y = max(window(x, rows -> [half, two], stride = 2), over = two)
  z = max(exp(x), over = rows)
  return y, z
}
"""
    (program,) = load(text).programs
    function = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("forward")
    plain = machine().device
    slow = attrs.evolve(plain, ops={"pool": 1e3, "exp": 1e4})
    found = {
        eqn.op + str(i): (a.seconds, b.seconds)
        for i, (eqn, a, b) in enumerate(
            zip(
                function.body,
                work(function, ONE_DEVICE, plain),
                work(function, ONE_DEVICE, slow),
                strict=True,
            )
        )
    }
    changed = {name[:-1]: slow for name, (before, slow) in found.items() if slow != before}
    assert changed == {"max": pytest.approx(4096 / 1e3 + OVERHEAD), "exp": pytest.approx(4096 / 1e4)}


def test_data_moved_for_dots_has_its_own_rates() -> None:
    """Two dots: one transposes its first matrix, one copies a factor so that the summed dimension comes first."""
    text = """\
dim batch = 24
dim k = 32
dim n = 40
dim gate = 4
dim units = 8
dim previous = 16
model net(x: [k, batch], w: [k, n], z: [batch, gate, units], u: [previous, gate, units]) {
  y = einsum(x, w -> [batch, n])
  h = einsum(z, u -> [batch, previous])
  return y, h
}
"""
    (program,) = load(text).programs
    function = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("forward")
    plain = machine().device
    slow = attrs.evolve(plain, ops={"transposed": 1e3, "reordered": 1e4})
    before, after = (work(function, ONE_DEVICE, device) for device in (plain, slow))
    longer = [b.seconds - a.seconds for a, b in zip(before, after, strict=True)]
    assert longer == pytest.approx([32 * 24 / 1e3, 16 * 4 * 8 / 1e4])


def test_a_tpu_kernel_reduces_what_it_computes_without_reading_it() -> None:
    text = """\
dim n = 1024
dim m = 1024
model net(x: [n, m]) {
  y = relu(x)
  z = max(x, over = m) + sum(y, over = m)
  a = where(x > 0, y, 0.0)
  return y, a, z
}
"""
    (program,) = load(text).programs
    function = lower(program, ONE_DEVICE, UNDISTRIBUTED).function("forward")
    plain = machine().device
    pairs = zip(
        function.body,
        work(function, ONE_DEVICE, plain),
        work(function, ONE_DEVICE, attrs.evolve(plain, mxu_size=128)),
        strict=True,
    )
    found = [(eqn.op, one, tpu) for eqn, one, tpu in pairs]
    size, row = 4 * 2**20, 4 * 2**10
    reductions = [(one.bytes, tpu.bytes) for op, one, tpu in found if op in ("sum", "max")]
    assert sorted(reductions) == [
        (size + row, size + row),
        (size + row, 2 * size + row),
    ]  # y is not read, but is in registers
    (chosen,) = [(one.bytes, tpu.bytes) for op, one, tpu in found if op == "where"]
    assert chosen == (2 * size, size)  # y is not read


@holds_for(programs(), 20)
def test_invariants_of_random_programs(generated: Generated) -> None:
    """A step is computation plus exposed communication, its FLOPs equal those of `cost`, and no device runs two tasks at once."""
    program = lowered(generated.source)
    step = timed(program, machine())
    assert step.seconds == pytest.approx(step.total.compute + step.total.exposed)
    assert step.total.exposed <= step.total.communication * (1 + 1e-9)
    assert max((0.0, *step.busy.values())) <= step.seconds * (1 + 1e-9)
    assert step.ideal * FLOPS == pytest.approx(float(total(layout_cost(program).step).flops))  # type: ignore[arg-type]
    rounding = 1e-12 * step.seconds
    for device in {event.device for event in step.events}:
        events = sorted((event.start, -event.end) for event in step.events if event.device == device)
        ends = [0.0]
        for start, end in events:  # inside of the one before, a loop, or after it
            while ends[-1] <= start + rounding and len(ends) > 1:
                ends.pop()
            assert len(ends) == 1 or -end <= ends[-1] + rounding
            ends.append(-end)
