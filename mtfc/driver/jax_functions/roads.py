"""The roads to the results of a function of JAX, each as an exported program that another process runs.

A function of the user is a closure, which no other process can load. `jax.export` makes a text of StableHLO of it, in which
shardings are as in the function. XLA partitions and compiles the text in a child: see `verification/checks.py`.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from math import prod
from typing import Any

import attrs
import numpy as np

from mtfc.backends.common.devices import import_jax, reserve
from mtfc.backends.exact.jaxprs import with_key, without_key
from mtfc.driver.verification import checks
from mtfc.driver.verification.results import CheckResult

jax = import_jax()

Arrays = Sequence[Any]


@attrs.frozen(eq=False)
class Road:
    """A program and the arguments that it is computed on.

    draws: the leaves of each call's arguments, of NumPy. function: the program in this process. text: the program as `jax.export`
    gives it, for a mesh of the shape `axes`; it is empty if JAX exports no such program.
    """

    name: str
    draws: Sequence[Arrays]
    function: Callable[..., Any] | None
    text: bytes = b""
    axes: Mapping[str, int] = attrs.field(factory=lambda: {"all": 1})

    @property
    def devices(self) -> int:
        return prod(self.axes.values())

    @classmethod
    def of(cls, name: str, function: Any, tree: Any, keys: Sequence[Any], draws: Any, mesh: Any) -> Road:
        """Return the road of a function of pytrees. keys: for each leaf the implementation of its random keys, or None.

        mesh: of the function, or None.
        """
        from jax import export

        def flat(*leaves: Any) -> list[Any]:
            given = [with_key(x, key) for x, key in zip(leaves, keys, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, given)
            return [without_key(x) for x in jax.tree.leaves(function(*args, **kwargs))]

        is_cpu = jax.default_backend() == "cpu"
        options: Any = checks.QUICK_TO_COMPILE if is_cpu else None

        def here(*leaves: Any) -> Any:
            with on_mesh(mesh):
                return jax.jit(flat, compiler_options=options)(*leaves)

        if is_cpu and checks.uses_children():
            with on_mesh(mesh), suppress(Exception):  # effects, callbacks: JAX raises many kinds of errors
                exported = export.export(jax.jit(flat))(*draws[0])
                sent = dataclasses.replace(exported, _get_vjp=None)
                axes = dict(mesh.shape) if mesh is not None else {"all": exported.nr_devices}
                return cls(name, draws, here, pickle.dumps(sent), axes)
        return cls(name, draws, here)

    def results(self) -> list[Arrays]:
        """Return the leaves of the results for each draw, of NumPy."""
        function = self.function or self._loaded()
        return [[np.asarray(x) for x in jax.tree.leaves(function(*draw))] for draw in self.draws]

    def _loaded(self) -> Any:
        exported = pickle.loads(self.text)
        devices = np.array(jax.devices()[: self.devices]).reshape([*self.axes.values()])
        mesh = jax.sharding.Mesh(devices, tuple(self.axes))
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return jax.jit(exported.call, in_shardings=whole)


@attrs.frozen(slots=False)
class RoadResults(CheckResult):
    """The leaves of the results of a road, which `model` names, for each draw."""

    draws: Sequence[Arrays] = ()

    @property
    def reason(self) -> str | None:
        """Why there are no results, as the end of a sentence."""
        return f"was skipped: {self.skipped}" if self.skipped else self.failed


def checks_of(roads: Sequence[Road], seconds: float) -> Sequence[checks.Check]:
    """Return the computation of each road as a check."""

    def check(road: Road) -> checks.Check:
        blank = RoadResults(road.name)
        return checks.Check(road.name, lambda: [attrs.evolve(blank, draws=road.results())], blank, seconds)

    return [check(road) for road in roads]


def _sent(roads: Sequence[Road], seconds: float, is_wide: bool) -> Sequence[checks.Check]:
    """Return the checks in a child, where JAX starts with as many devices as they need."""
    reserve(max(road.devices for road in roads))
    jax.config.update("jax_enable_x64", is_wide)
    return checks_of(roads, seconds)


def computed(roads: Sequence[Road], seconds: float, budget: float | None) -> Iterator[RoadResults]:
    """Yield the results of each road. seconds: the time of a road.

    Programs that JAX does not export run in this process, where no time can be kept.
    """
    known = checks_of(roads, seconds)
    if not all(road.text for road in roads):
        yield from checks.results_here(known)
        return
    sent = [attrs.evolve(road, function=None) for road in roads]
    arguments = (sent, seconds, bool(jax.config.jax_enable_x64))
    yield from checks.results(
        known, checks.Remade("mtfc.driver.jax_functions.roads:_sent", arguments), budget
    )


def on_mesh(mesh: Any) -> AbstractContextManager[Any]:
    """Return a context with a mesh, or with none."""
    return nullcontext() if mesh is None else jax.sharding.set_mesh(mesh)
