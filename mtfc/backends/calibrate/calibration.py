"""Measures this machine: the rates of its kernels and of its links, by size.

On JAX the devices are those that a program would run on: real ones, or virtual ones of the CPU. All of them compute at once, as
in a program, so virtual devices share the processor's cores in the measurement too.

Each kernel is repeated inside one compiled loop. Each repetition uses an earlier result, so that XLA removes none, and the start
of the program does not count. The time of an empty iteration is taken off; on a GPU it is as long as many kernels, since the host
decides whether the loop goes on. To measure memory, several arrays take turns, as a program has many arrays and caches hold some
of them. Dots are of varied numbers, as a GPU takes less power, and less time, for equal ones. On NumPy there is one device, and
there are no links.

Rates do not include the overhead of a kernel, since a program pays it for each of its kernels (`roofline.py`).

A rate at a size is that of the median of several runs. `benchmarks accuracy` takes the median of several steps in the same way:
an occasional slowdown of the machine then affects the measurement and the step alike.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import attrs
import numpy as np

from mtfc.backends.common.devices import devices, jax
from mtfc.compiler.activity import doing
from mtfc.compiler.cost.hardware import Device, DotShares, Hardware, Kind, Link, Rate
from mtfc.compiler.cost.topology import Topology
from mtfc.compiler.ir.ops.collectives import SENDINGS
from mtfc.compiler.ir.types import Mesh

Loop = Callable[[int], Callable[[], object]]
"""Number of repetitions -> a function that does them, and returns when they are done."""

RUNS = 3
TURNS = 16
"""The number of arrays that take turns, unless they have more than `BYTES_OF_TURNS` together."""

BYTES_OF_TURNS = 1 << 26

CHAINED = 32
"""Dots in a loop's body on a GPU or TPU, which would wait for the loop between single dots."""

LARGER = 32
"""The factor by which arrays are larger on a GPU or TPU, to keep it busy."""

LEAST_REPETITIONS = 4
MOST_REPETITIONS = 1 << 20


@attrs.frozen
class Effort:
    """The sides of square matrices, the bytes of arrays, the elements of single ops, and the seconds of one run.

    shapes: True to measure also dots of matrices that are not square.
    """

    sides: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    sizes: tuple[int, ...] = (1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 24, 1 << 27)
    messages: tuple[int, ...] = (1 << 6, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 25)
    elements: int = 1 << 20
    seconds: float = 0.1
    shapes: bool = False

    def larger(self) -> Effort:
        """Return the effort that keeps a GPU busy."""
        return attrs.evolve(
            self, sizes=(*self.sizes, self.sizes[-1] * LARGER // 4), elements=self.elements * LARGER
        )

    def each(self, what: str, sizes: Iterable[int], measure: Callable[[int], Point]) -> list[Point]:
        """Return the measurements by size, up to the first that takes longer than a run should.

        what: the word for the measurements.
        """
        found = []
        for size in sizes:
            with doing(f"measuring {what} of size {size}"):
                found.append(measure(size))
            if found[-1][1] > self.seconds:
                break
        return found


QUICK = Effort((32, 128), (1 << 12, 1 << 16), (1 << 6, 1 << 10, 1 << 16), 1 << 12, 0.01)


def seconds_each(loop: Loop, effort: Effort) -> float:
    """Return the seconds of one repetition.

    One-time costs of a run, such as the allocation of large arrays, are taken off.
    """
    count, once = LEAST_REPETITIONS, _usual(loop(1))
    while (seconds := _usual(loop(count))) < effort.seconds and count < MOST_REPETITIONS:
        count = min(MOST_REPETITIONS, int(count * max(2.0, 1.2 * effort.seconds / seconds)))
    return (seconds - once) / (count - 1) if seconds > once else seconds / count


def _usual(run: Callable[[], object]) -> float:
    """Return the median seconds of several runs, after a first run that does not count."""
    run()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times)


def memory_of_machine(shares: int) -> float:
    """Return the bytes of main memory for each of `shares` devices."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / shares


# NumPy


def with_numpy(devices: int | None, effort: Effort) -> tuple[Hardware, str]:
    """Measure this machine with the NumPy backend, one device; return also the name of the measuring tool."""
    flops = {
        dtype: rising(effort.each(f"dots in {dtype}", effort.sides, partial(_numpy_product, dtype, effort)))
        for dtype in NUMPY
    }
    bandwidth = rising(effort.each("sums", effort.sizes, lambda size: _numpy_sum(size, effort)))
    small = np.ones(8, np.float32)
    overhead = seconds_each(_repeated(lambda: np.multiply(small, small, out=small)), effort)
    dots = _numpy_shares(flops["f32"], effort) if effort.shapes else None
    device = Device(flops, memory_of_machine(1), bandwidth, overhead, overlap=0.0, dots=dots)
    return Hardware("here", device, ()), f"NumPy on {platform.machine()}"


NUMPY = {"f32": np.float32, "f64": np.float64}


def _repeated(once: Callable[[], object]) -> Loop:
    """Return a loop that calls a function a number of times."""

    def loop(count: int) -> Callable[[], object]:
        def run() -> None:
            for _ in range(count):
                once()

        return run

    return loop


def _numpy_product(dtype: str, effort: Effort, side: int) -> Point:
    """Return the FLOPs of a product of two square matrices in NumPy, and its seconds."""
    matrix = np.full((side, side), 1 / side, NUMPY[dtype])
    result = np.empty_like(matrix)
    return 2.0 * side**3, seconds_each(_repeated(lambda: np.matmul(matrix, matrix, out=result)), effort)


def _numpy_shares(rate: Rate, effort: Effort) -> DotShares:
    """Measure dots with few rows, and dots with few summed elements."""
    side = side_of(rate)

    def seconds(rows: int, summed: int) -> float:
        first, second = np.ones((rows, summed), np.float32), np.ones((summed, side), np.float32)
        result = np.empty((rows, side), np.float32)
        return seconds_each(_repeated(lambda: np.matmul(first, second, out=result)), effort)

    short = {each: seconds(each, side) for each in narrow_sides(side)}
    summed = {each: seconds(side, each) for each in narrow_sides(side)}
    return dot_shares(side, rate, short, summed)


def _numpy_sum(size: int, effort: Effort) -> Point:
    """Measure a kernel that reads one array and writes another, of `size` bytes together."""
    one = np.ones(size // 8, np.float32)
    other = np.empty_like(one)
    return float(size), seconds_each(_repeated(lambda: np.add(one, 1.0, out=other)), effort)


# JAX


def with_jax(count: int | None, effort: Effort) -> tuple[Hardware, str]:
    """Measure this machine with the JAX backend; return also the name of the measuring tool.

    count: the number of devices; None for all of JAX. Raises `Unavailable`.
    """
    found = devices(count) if count is not None else jax.devices()
    is_cpu = found[0].platform == "cpu"
    effort = effort if is_cpu else effort.larger()
    box, overhead, loop = _Devices.of(found, effort)
    dtypes = ("f32", "bf16") if is_cpu else ("f32", "bf16", "f16")
    flops = {dtype: rising(beyond(overhead, box.products(dtype))) for dtype in dtypes}
    bandwidth = rising(beyond(overhead, effort.each("sums", effort.sizes, box.sum)))
    ops = box.ops(bandwidth)
    overlap = 0.0 if is_cpu else 1.0
    dots = box.shares(flops["f32"], overhead) if effort.shapes else None
    device = Device(flops, box.memory(), bandwidth, overhead, ops, overlap, loop=loop, dots=dots)
    links, number = tuple[Link, ...](), len(found)
    if number > 1:
        links = (link_of("link", "memory" if is_cpu else "switch", number, box.collectives()),)
    tool = f"JAX {jax.__version__} on {number} device{'s'[: number - 1]} of kind {found[0].device_kind}"
    return Hardware("here", device, links), tool


JAX = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


@attrs.frozen
class _Devices:
    """Some JAX devices that all do the same at once. loop: seconds of an empty iteration."""

    devices: tuple[Any, ...]
    effort: Effort
    loop: float = 0.0

    @classmethod
    def of(cls, devices: Sequence[Any], effort: Effort) -> tuple[_Devices, float, float]:
        """Return the devices, the seconds of a minimal kernel, and the seconds of an iteration of a program's loop.

        The minimal kernel is a small dot.
        """
        box, start = cls(tuple(devices), effort), jax.numpy.ones((16, 16), "float32") / 16

        def seconds(times: int, body: Callable[[Any, Any], Any]) -> float:
            """Return the seconds of an iteration with `times` repetitions."""
            return times * box._seconds(body, start, chained=times)

        def product(one: Any, result: Any) -> Any:
            return result @ one

        def products(one: Any, result: Any) -> Any:
            return jax.lax.fori_loop(0, CHAINED, lambda _, result: product(one, result), result)

        once, often, looping = seconds(1, product), seconds(CHAINED, product), seconds(1, products)
        overhead = max((often - once) / (CHAINED - 1), 0.0)
        loop, inside = max(once - overhead, 0.0), max((looping - often) / CHAINED, 0.0)
        return attrs.evolve(box, loop=loop), overhead, inside

    @property
    def is_cpu(self) -> bool:
        return bool(self.devices[0].platform == "cpu")

    def memory(self) -> float:
        stats = self.devices[0].memory_stats() or {}
        return float(stats.get("bytes_limit") or memory_of_machine(len(self.devices)))

    def products(self, dtype: str) -> list[Point]:
        return self.effort.each(f"dots in {dtype}", self.effort.sides, partial(self.product, dtype))

    def product(self, dtype: str, side: int) -> Point:
        """Measure (FLOPs, seconds) of a dot with an orthogonal matrix, which keeps the size of the numbers."""
        random = np.random.default_rng(0)
        normal = random.standard_normal(side, np.float32)
        signs = np.sign(random.random(side, np.float32) - 0.5)
        mirrored = np.eye(side, dtype=np.float32) - np.outer(2 / (normal @ normal) * normal, normal)
        start = jax.numpy.asarray(mirrored * signs, JAX[dtype])
        chained = 1 if self.is_cpu else CHAINED
        return 2.0 * side**3, self._seconds(lambda one, result: result @ one, start, chained=chained)

    def shares(self, rate: Rate, overhead: float) -> DotShares:
        """Measure dots with few rows, and dots with few summed elements, in f32.

        A dot with few summed elements is followed by one with few columns, so that results keep their shape.
        """
        side, chained = side_of(rate), 1 if self.is_cpu else CHAINED
        random = np.random.default_rng(0).standard_normal((side, side))
        whole = jax.numpy.asarray(np.linalg.qr(random)[0], "float32")

        def rows(few: int) -> float:
            found = self._seconds(lambda _, result: result @ whole, whole[:few], chained=chained)
            return max(found - overhead, found / 10)

        def both(few: int) -> float:
            wide, tall = whole[:few], whole[:few].T
            return self._seconds(lambda _, result: (result @ wide) @ tall, whole[:, :few], chained=chained)

        few = narrow_sides(side)
        short = {each: rows(each) for each in few}
        summed = {each: max(both(each) - 2 * overhead - short[each], 0.0) for each in few}
        return dot_shares(side, rate, short, summed)

    def sum(self, size: int) -> Point:
        """Measure (bytes, seconds) of a kernel that reads and writes arrays of `size` bytes together."""
        start = jax.numpy.ones(size // 8, "float32")
        turns = max(1, min(TURNS, BYTES_OF_TURNS // start.nbytes))
        return float(size), self._seconds(lambda _, result: 0.5 * result + 0.5, start, turns)

    def ops(self, bandwidth: Rate) -> dict[str, float]:
        """Measure elements/s of the ops that take notably longer than reading and writing their bytes."""
        from mtfc.backends.calibrate import kernels

        elements = self.effort.elements
        notable = NOTABLY * 8 * elements / bandwidth.at(8 * elements)
        start = jax.numpy.linspace(0.1, 0.9, elements, dtype="float32")

        def seconds(op: Callable[[Any], Any] | None, name: str) -> float:
            array = start.reshape(kernels.SHAPES.get(name, (-1,)))
            with doing(f"measuring {name}"):
                return self._seconds(lambda _, result: op(result), array) if op else 0.0

        own = {
            name: (seconds(op, name) - seconds(kernels.BESIDES.get(name), name)) / kernels.TIMES.get(name, 1)
            for name, op in kernels.KERNELS.items()
            if self.is_cpu or name not in kernels.OF_CPUS
        }
        return {name: elements / each for name, each in own.items() if each > notable}

    def collectives(self) -> dict[str, list[Point]]:
        """Measure (bytes, seconds) of each kind of collective."""
        from mtfc.backends.calibrate.kernels import COLLECTIVES

        return {
            kind: self.effort.each(kind, self.effort.messages, partial(self.collective, kind, run))
            for kind, run in COLLECTIVES.items()
        }

    def collective(self, kind: str, run: Callable[[Any, str, int], Any], size: int) -> Point:
        """Measure a collective of an array of at least `size` bytes, all zeros, whose sums need no scaling."""
        members = len(self.devices)
        elements = -(-size // (4 * members**2)) * members
        is_part = SENDINGS[kind].operand == "part"
        array = jax.numpy.zeros(elements if is_part else elements * members, "float32")
        return 4 * elements * members, self._seconds(lambda _, result: run(result, "all", members), array)

    def _seconds(
        self, body: Callable[[Any, Any], Any], start: Any, turns: int = 1, chained: int = 1
    ) -> float:
        """Return the seconds of one repetition of `body(start, earlier result)` on every device.

        turns: the number of results that take turns. chained: repetitions in the loop's body.
        """
        from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(self.devices), ("all",), axis_types=(AxisType.Auto,))
        everywhere = jax.numpy.stack([start] * len(self.devices))
        whole, split = PartitionSpec(), PartitionSpec("all")  # type: ignore[no-untyped-call]
        array = jax.device_put(everywhere, NamedSharding(mesh, split))

        def local(array: Any, count: Any) -> Any:
            """Repeat the body `count` times on a device; each repetition reads and replaces one of `turns` results."""

            def step(i: Any, results: Any) -> Any:
                if turns == 1:
                    for _ in range(chained):
                        results = body(array[0], results).astype(array.dtype)
                    return results
                result = jax.lax.dynamic_index_in_dim(results, i % turns, keepdims=False)
                after = body(array[0], result).astype(array.dtype)
                return jax.lax.dynamic_update_index_in_dim(results, after, i % turns, 0)

            results = array[0] if turns == 1 else jax.numpy.stack([array[0]] * turns)
            return jax.lax.fori_loop(0, count, step, results)[None]

        mapped = jax.shard_map(local, mesh=mesh, in_specs=(split, whole), out_specs=split)
        compiled = jax.jit(mapped)
        seconds = seconds_each(lambda count: lambda: compiled(array, count).block_until_ready(), self.effort)
        return max(seconds - self.loop, seconds / 100) / chained


# Rates by size, and links on which collectives take the measured times


Point = tuple[float, float]
"""The size of a kernel or message, and the seconds that it takes."""

NOTABLY = 1.25
"""Times count as equal if their ratio is below this."""

LARGEST_SIDE = 2048
"""The largest side of matrices whose dots are measured in several shapes."""

NARROWED = (64, 16, 4)
"""The parts of that side which the narrow sides of these dots have."""

LEAST_SHARE = 1e-3


def rising(points: Iterable[Point]) -> Rate:
    """Return a rate from (work, seconds). More work never takes less time, whatever the clock says."""
    found, slowest = [], 0.0
    for size, seconds in points:
        slowest = max(slowest, seconds)
        found.append((float(size), size / slowest))
    return Rate(tuple(found))


def beyond(overhead: float, points: Sequence[Point]) -> list[Point]:
    """Return the times less the overhead of a kernel. Points that are not notably longer are left out, but for the last."""
    longer = [(size, seconds - overhead) for size, seconds in points if seconds > NOTABLY * overhead]
    return longer or [points[-1]]


def side_of(rate: Rate) -> int:
    """Return the side of the largest dot of square matrices that was measured, up to a limit."""
    side: float = (rate.points[-1][0] / 2) ** (1 / 3)
    return min(round(side), LARGEST_SIDE)


def narrow_sides(side: int) -> tuple[int, ...]:
    """Return the narrow sides for which dots are measured beside long sides of this size."""
    return tuple(dict.fromkeys(max(side // part, 1) for part in NARROWED))


def dot_shares(side: int, rate: Rate, short: Mapping[int, float], summed: Mapping[int, float]) -> DotShares:
    """Return the shares of a rate that dots reach, from the seconds of dots with few rows or few summed elements.

    Both have sides of `side` otherwise. Shares are those of dots with as many FLOPs. A share that is not notably below 1 is 1.
    """

    def shares(seconds: Mapping[int, float]) -> Rate:
        found = [(float(few), _share(2.0 * few * side**2, each, rate)) for few, each in seconds.items()]
        return Rate((*found, (float(side), 1.0))) if found[-1][0] < side else Rate(tuple(found))

    return DotShares(short=shares(short), summed=shares(summed))


def _share(flops: float, seconds: float, rate: Rate) -> float:
    share = flops / rate.at(flops) / seconds if seconds > 0 else 1.0
    return max(share, LEAST_SHARE) if share * NOTABLY < 1 else 1.0


def link_of(name: str, kind: Kind, members: int, times: Mapping[str, Sequence[Point]]) -> Link:
    """Return a link of a kind on which collectives take the given times.

    times: kind of collective -> (bytes of the whole array, seconds); for a permute, the bytes of one device. The latency and the
    bandwidth of the link are those of all-reduces, the smallest of which is all latency. Other collectives get a bandwidth of
    their own if they take notably more or less time than this link says.
    """
    unit = _LinkFormula.of("all_reduce", kind, members, latency=1.0)
    latency = min(seconds for _, seconds in times["all_reduce"]) / unit.fixed
    formulas = {each: _LinkFormula.of(each, kind, members, latency) for each in times}
    usual = formulas.pop("all_reduce").bandwidth(times["all_reduce"])
    own = {
        each: formula.bandwidth(times[each])
        for each, formula in formulas.items()
        if formula.is_off(times[each], usual)
    }
    return Link(name, kind, (members,), usual, latency, collectives=own)


@attrs.frozen
class _LinkFormula:
    """The time of a collective over all members of a link: `fixed` + `share` S / bandwidth seconds for an array of S bytes."""

    fixed: float
    share: float

    @classmethod
    def of(cls, collective: str, kind: Kind, members: int, latency: float) -> _LinkFormula:
        """Return the formula that `cost/topology.py` has."""
        local = 1.0 / SENDINGS[collective].whole_bytes(1.0, members)
        return cls(
            _seconds(collective, kind, members, latency, 0.0), _seconds(collective, kind, members, 0.0, local)
        )

    def bandwidth(self, times: Sequence[Point]) -> Rate:
        """Return the bandwidth that explains the times. Sizes that take no longer than the smallest do not count."""
        longer = [(size, seconds - self.fixed) for size, seconds in times]
        points = [(size, seconds) for size, seconds in longer if seconds > 1e-9]
        points = points or [(times[-1][0], self.fixed)]
        return rising([(size, seconds / self.share) for size, seconds in points])

    def is_off(self, times: Sequence[Point], bandwidth: Rate) -> bool:
        """Return True if a time differs notably from the formula's with this bandwidth."""
        ratios = [seconds / (self.fixed + self.share * size / bandwidth.at(size)) for size, seconds in times]
        return max(ratios) > NOTABLY or min(ratios) < 1 / NOTABLY


def _seconds(collective: str, kind: Kind, members: int, latency: float, local_bytes: float) -> float:
    """Return the seconds over all members of a link of one byte per second, for a permute from neighbour to neighbour."""
    one = Rate.constant(1.0)
    link = Link("link", kind, (members,), one, latency)
    topology = Topology.of(
        Mesh("all", (("all", members),)), Hardware("unit", Device({"f32": one}, 1.0, one), (link,))
    )
    return topology.seconds(collective, ("all",), local_bytes, hops=1)["link"]
