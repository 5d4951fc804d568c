# mypy: allow-untyped-calls
"""A program on the devices of a mesh: its training state, and functions that take batches.

A generated module works on dicts of arrays that its caller has placed. This class keeps them together: a `TrainState` is one
pytree, and batches are placed here. The module imports JAX at the top, so it is imported only where JAX runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import attrs
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from mtfc.backends.common.shares import Share
from mtfc.backends.jax.runtime import load, structs

Arrays = Mapping[str, Any]
"""Arrays by name: of NumPy or of JAX."""


@attrs.frozen(repr=False, eq=False, slots=False)
class TrainState:
    """Everything that training changes, as a pytree of whole `jax.Array`s, each placed by a `NamedSharding`.

    step: the number of finished steps, i32. params: the parameters by full name. optimizer: the optimizer's state by name.
    `train_step` donates the state that it is given: use the returned one from then on.
    """

    step: Any
    params: dict[str, Any]
    optimizer: dict[str, Any]

    def __repr__(self) -> str:
        """Return the step and the numbers of arrays: their values may be large."""
        params, arrays = len(self.params), len(self.optimizer)
        parts = (
            f"{params} parameter{'s' * (params != 1)}, {arrays} array{'s' * (arrays != 1)} of the optimizer"
        )
        return f"<TrainState after step {self.step}: {parts}>"


jax.tree_util.register_dataclass(TrainState, ["step", "params", "optimizer"], [])


@attrs.frozen(eq=False, slots=False)
class JaxProgram:
    """A generated module that is bound to the devices of its mesh."""

    module: Any

    several: ClassVar[str | None] = None
    """The kind of layout, if its functions are several programs, which JAX cannot trace as one; None if they are one program."""

    @classmethod
    def of(cls, source: str) -> JaxProgram:
        """Return the program of a module's text, of the class for its devices. Raises `Unavailable` if these are too few."""
        module = load(source)
        kinds = {"MESHES": MultiMeshJaxProgram, "DEVICES": PlacedJaxProgram}
        return next((kind for table, kind in kinds.items() if hasattr(module, table)), cls)(module)

    @property
    def mesh(self) -> Mesh:
        mesh: Mesh = self.module.bound_mesh
        return mesh

    @property
    def overlaps(self) -> bool:
        """True if functions return before their results are there; on virtual devices they wait: see `runtime.load`."""
        return self.mesh.size == 1 or self.mesh.devices.flat[0].platform != "cpu"

    @property
    def step_inputs(self) -> str:
        """The kind of inputs that a training step takes: `batches` with `accumulate`, where micro-batches are stacked."""
        return "batches" if "batches" in self.module.TYPES else "inputs"

    @cached_property
    def abstract_state(self) -> TrainState:
        """The state as `jax.ShapeDtypeStruct`s with their placements, without data."""
        step = jax.ShapeDtypeStruct((), np.int32, sharding=self._replicated)
        return TrainState(step, self.abstract("params"), self.abstract("state"))

    def abstract(self, kind: str) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the arrays of a kind, `params`, `state`, `inputs` or `batches`, without data."""
        return dict(self._structs[kind])

    def init(self, seed: int = 0) -> TrainState:
        """Return the state before the first step: parameters drawn from the seed, each device only its own part."""
        return self.state_of(self.module.init(seed))

    def placed_params(self, seed: int, given: Arrays) -> dict[str, Any]:
        """Return parameters on the devices: given ones, and the others drawn from the seed."""
        drawn = {} if given.keys() == self.module.PARAMETERS.keys() else self.module.init(seed)
        return self.place({**drawn, **given}, "params")

    def state_of(self, params: Arrays) -> TrainState:
        """Return the state before the first step that starts from these parameters, which are placed already."""
        optimizer = self.module.init_state() if hasattr(self.module, "init_state") else {}
        return TrainState(self.place_step(0), dict(params), dict(optimizer))

    def place_step(self, step: int) -> Any:
        """Return a number of finished steps on the devices."""
        return jax.device_put(np.int32(step), self._replicated)

    def stored(self, state: TrainState) -> TrainState:
        """Return the state as checkpoints have it: with whole arrays."""
        return state

    def restored(self, state: TrainState) -> TrainState:
        """Return a state as `stored` gives it in the form that `train_step` takes."""
        return state

    def placed(self, params: Arrays) -> Arrays:
        """Return parameters in the form that functions take."""
        return params

    def whole_params(self, params: Arrays) -> Arrays:
        """Return parameters as whole arrays."""
        return params

    def on_host(self, arrays: Arrays, kind: str) -> dict[str, Any]:
        """Return whole arrays on the host; processes exchange the parts that only some of them hold."""
        from jax.experimental.multihost_utils import process_allgather

        several = jax.process_count() > 1
        return {
            name: np.asarray(process_allgather(x, tiled=True) if several else x) for name, x in arrays.items()
        }

    def train_step(self, state: TrainState, batch: Arrays) -> tuple[TrainState, dict[str, Any]]:
        """Return the state after one more step, and the loss and reported values by name. The given state is donated."""
        _check_state(state, self.module.INPUTS)
        self.check_not_traced(state)
        inputs, state = self.place(batch, self.step_inputs), _final(self.restored(state), "train_step")
        step = state.step + 1
        metrics, params, optimizer = self.module.train_step(state.params, state.optimizer, inputs, state.step)
        return TrainState(step, params, optimizer), metrics

    def averaged(self, state: TrainState) -> dict[str, Any]:
        """Return the parameters with the averages of those that are trained, placed like the parameters."""
        _check_state(state, self.module.INPUTS)
        state = self.restored(state)
        params: dict[str, Any] = self.module.averaged(state.params, state.optimizer)
        return params

    def forward(self, params: Arrays, batch: Arrays) -> dict[str, Any]:
        """Return the outputs of the model, outside of training."""
        _check_params(params)
        self.check_not_traced(params)
        outputs: dict[str, Any] = self.module.forward(self.placed(params), self.place(batch))
        return outputs

    def compile_forward(self) -> None:
        """Compile `forward` for placed arrays before its first call, without a collective of several processes."""
        if self.several:
            return  # several programs run in one process
        self.module.forward.lower(self.abstract("params"), self.abstract("inputs")).compile()

    def value_and_grad(
        self, params: Arrays, batch: Arrays, step: Any = 0, **options: bool
    ) -> tuple[Any, Any]:
        """Return the loss of a training step, and the gradients of the parameters, placed like them.

        step: the number of the step, which random draws and schedules depend on. options: `accumulate` and `clip`, if the file
        asks for them.
        """
        _check_params(params)
        self.check_not_traced(params)
        kind = "batches" if options.get("accumulate") else "inputs"
        params = _final(self.placed(params), "value_and_grad")
        loss, gradients = self.module.value_and_grad(params, self.place(batch, kind), step, **options)
        return loss, gradients

    def place(self, batch: Arrays, kind: str = "inputs") -> dict[str, Any]:
        """Return the batch on the devices of the mesh. Raises `ValueError` for arrays that do not fit.

        An array is the whole one, or with several processes only the rows that the devices of this process hold. Placed arrays
        and tracers stay as they are.
        """
        check_batch(batch, self.module.LAYOUTS[kind])
        self.check_not_traced(batch)
        traced = any(isinstance(x, jax.core.Tracer) for x in batch.values())
        if traced or all(self._is_placed(kind, name, x) for name, x in batch.items()):
            return dict(batch)
        if jax.process_count() == 1:
            return dict(self.module.shard(dict(batch), self.module.LAYOUTS[kind]))
        return {name: self._part(kind, name, x) for name, x in batch.items()}

    def check_not_traced(self, tree: Any) -> None:
        """Raise `ValueError` for arrays under a transformation of JAX, if the functions are several programs."""
        if self.several and any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree)):
            raise ValueError(
                f"{self.several} is several programs, which JAX cannot trace as one: call this outside of jax.jit, jax.grad and"
                " jax.vmap"
            )

    def _is_placed(self, kind: str, name: str, x: Any) -> bool:
        struct = self._structs[kind].get(name)
        return isinstance(x, jax.Array) and struct is not None and x.sharding == struct.sharding

    @cached_property
    def share(self) -> Share:
        """The rows of each input that the devices of this process hold; several programs are in one process."""
        if self.several:
            return Share()
        structs = {name: struct for name, struct in self.abstract("inputs").items() if struct.shape}
        slices = {name: [index[0] for index in _indices(struct)] for name, struct in structs.items()}
        return Share.of_slices(slices, {name: struct.shape[0] for name, struct in structs.items()})

    def _part(self, kind: str, name: str, x: Any) -> Any:
        """Place one array of several processes."""
        struct = self._structs[kind].get(name)
        if struct is None or (isinstance(x, jax.Array) and not x.is_fully_addressable):
            return x  # the function that takes the batch names unknown arrays
        self._check_dtype(kind, name, x)
        local, axis = np.asarray(x).astype(struct.dtype, copy=False), int(kind == "batches")
        rows = struct.shape[axis] if len(struct.shape) > axis else 1
        held = (*struct.shape[:axis], len(self.share.rows(name, rows)), *struct.shape[axis + 1 :])
        if local.shape not in (struct.shape, held):
            raise ValueError(
                f'"{name}" has shape {local.shape}: give the whole array, {struct.shape}, or the part of this process, {held}'
            )

        def shard(index: Any) -> Any:
            if local.shape == struct.shape:
                return local[index]
            return local[(*index[:axis], self.share.local(name, index[axis], rows), *index[axis + 1 :])]

        return jax.make_array_from_callback(struct.shape, struct.sharding, shard, dtype=struct.dtype)

    def _check_dtype(self, kind: str, name: str, x: Any) -> None:
        """Raise `ValueError` if an array has a dtype, or integers, that the input cannot have."""
        wanted = self.module.TYPES[kind][name]
        shape, dtype = tuple(wanted[1].values()), self.module.narrowed(x, wanted[0])
        problem = self.module.mismatch(f'"{name}"', (dtype, shape), wanted)
        self.module.raise_if([problem or self.module.overflow(f'"{name}"', x, wanted[0])])

    @property
    def _replicated(self) -> Any:
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def _structs(self) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
        """The arrays of each kind by name, without data."""
        return {kind: structs(self.module, kind, self._sharding) for kind in self.module.TYPES}

    def _sharding(self, layout: Any) -> Any:
        """Return the placement of an array whose entry of `LAYOUTS` is given."""
        return NamedSharding(self.mesh, layout)


@attrs.frozen(eq=False, slots=False)
class MultiMeshJaxProgram(JaxProgram):
    """A generated module for several meshes. Each array is on the devices of one mesh, so checkpoints take it as it is."""

    several: ClassVar[str | None] = "a layout of several meshes"

    @property
    def overlaps(self) -> bool:
        """True if functions return before their results are there; on devices of the CPU they wait."""
        devices = [device for mesh in self.module.BOUND.values() for device in mesh.devices.flat]
        return devices[0].platform != "cpu" or all(mesh.size == 1 for mesh in self.module.BOUND.values())

    @property
    def _replicated(self) -> Any:
        return NamedSharding(self.module.mesh_of(next(iter(self.module.MESHES))), PartitionSpec())

    def _sharding(self, layout: Any) -> Any:
        return self.module.sharding(layout)


@attrs.frozen(eq=False, slots=False)
class PlacedJaxProgram(JaxProgram):
    """A generated module of a placement. Arrays are tuples of pieces, each on one device; checkpoints have whole arrays."""

    several: ClassVar[str | None] = "a placement"

    @property
    def overlaps(self) -> bool:
        """True: devices exchange data without collectives, so no two functions under way can block each other."""
        return True

    def place(self, batch: Arrays, kind: str = "inputs") -> dict[str, Any]:
        """Return the batch in pieces on their devices. Raises `ValueError` for arrays that do not fit."""
        table, is_dict = self.module.LAYOUTS[kind], isinstance(batch, Mapping)
        pieces = {name: x for name, x in batch.items() if isinstance(x, tuple)} if is_dict else {}
        check_batch({name: batch[name] for name in batch if name not in pieces} if is_dict else batch, table)
        self.check_not_traced(batch)
        if lacking := [name for name in table if name not in batch]:
            raise ValueError(f'{kind} lacks "{lacking[0]}": it takes {", ".join(table)}')
        if len(pieces) == len(batch):
            return pieces
        whole = self.module.unshard(pieces, {name: table[name] for name in pieces})
        return dict(self.module.shard({**batch, **whole}, table))

    def placed(self, params: Arrays) -> Arrays:
        """Return parameters in pieces; they may be whole."""
        return self.place(params, "params")

    def stored(self, state: TrainState) -> TrainState:
        """Return the state with whole arrays on the first device, as checkpoints have it under every layout."""
        optimizer = jax.device_put(self.on_host(state.optimizer, "state"), self._replicated)
        return TrainState(state.step, dict(self.whole_params(state.params)), optimizer)

    def restored(self, state: TrainState) -> TrainState:
        """Return a state with whole arrays in pieces."""
        return TrainState(
            state.step, self.place(state.params, "params"), self.place(state.optimizer, "state")
        )

    def whole_params(self, params: Arrays) -> Arrays:
        """Return parameters as whole arrays on the first device."""
        whole: Arrays = jax.device_put(self.on_host(params, "params"), self._replicated)
        return whole

    def on_host(self, arrays: Arrays, kind: str) -> dict[str, Any]:
        """Return whole arrays on the host."""
        return dict(self.module.unshard(dict(arrays), self.module.LAYOUTS[kind]))

    @property
    def _replicated(self) -> Any:
        return SingleDeviceSharding(self.module.place(0))

    def _sharding(self, layout: Any) -> Any:
        return self._replicated


def _indices(struct: Any) -> Any:
    """Return the indices of the shards on this process's devices."""
    return struct.sharding.addressable_devices_indices_map(struct.shape).values()


def _check_state(state: Any, inputs: Mapping[str, Any]) -> None:
    """Raise `ValueError` for anything but a state. inputs: the inputs of the model."""
    if not isinstance(state, TrainState):
        is_batch = isinstance(state, Mapping) and state.keys() == inputs.keys()
        help = "; the batch is the second argument" if is_batch else ""
        raise ValueError(
            f"the state is a TrainState, as `init` returns it, and not {type(state).__name__}{help}"
        )
    if not hasattr(state.step, "dtype"):
        raise ValueError(f"the state's step is an array, and not {type(state.step).__name__}")
    if state.step.ndim or state.step.dtype.kind != "i":
        found = f"{state.step.dtype}{list(state.step.shape)}"
        raise ValueError(f"the state's step is one whole number, and not {found}")


def _check_params(params: Any) -> None:
    """Raise `ValueError` for a whole state. The module checks the names and the arrays."""
    if isinstance(params, TrainState):
        raise ValueError("the first argument is the parameters, `state.params`, and not the whole state")


def check_batch(batch: Any, inputs: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless a batch is a dict of arrays, or of numbers. inputs: the inputs of the model."""
    if not isinstance(batch, Mapping):
        names = ", ".join(f'"{name}"' for name in inputs)
        raise ValueError(f"a batch is a dict of arrays by input, {names}, and not {type(batch).__name__}")
    for name, x in batch.items():
        if not hasattr(x, "dtype") and not isinstance(x, int | float):
            remedy = (
                f': convert it with numpy.asarray(batch["{name}"])' if isinstance(x, list | tuple) else ""
            )
            raise ValueError(f'batch["{name}"] is an array, and not {type(x).__name__}{remedy}')


def _final(tree: Any, name: str) -> Any:
    """Return arrays that JAX refuses to differentiate: only `forward` has derivatives at every op."""

    @jax.custom_jvp
    def same(x: Any) -> Any:
        return x

    @same.defjvp
    def refuse(*_: Any) -> Any:
        raise ValueError(
            f"`{name}` cannot be differentiated by JAX: differentiate `forward`, or call `value_and_grad`"
        )

    return jax.tree.map(lambda x: same(x) if isinstance(x, jax.core.Tracer) else x, tree)
