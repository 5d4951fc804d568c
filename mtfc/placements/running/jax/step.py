"""The training step of a placed module: passes of all micro-batches, sums of gradients, and updates of pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from mtfc.backends.common.module import arguments
from mtfc.compiler.ir.core import Function, Training, Value
from mtfc.compiler.ir.training import GRAD_NORM, LEARNING_RATE, LOSS_SCALE
from mtfc.compiler.ir.types import ITEM_BYTES, scalar
from mtfc.placements.running.jax.passes import PlacedRun, short, sources_of, whole_of
from mtfc.placements.running.jax.pieces import StoredPiece, region_type
from mtfc.placements.running.jax.plan import ModulePlan, outputs_of, seed_of, whole_on
from mtfc.placements.running.jax.sums import Reduced, pieces_by_value, summed_gradients
from mtfc.placements.running.jax.tasks import Ends, HeldPiece, TaskList, volume
from mtfc.placements.running.jax.updates import (
    STEP,
    needs_norm,
    rate_function,
    scale_function,
    squares_function,
    update_function,
)


class StepWriter:
    """Writes the training step.

    shared: variables with scalars that all updates read, on device 0. state: state and number of a piece -> variable.
    """

    def __init__(self, plan: ModulePlan, tasks: TaskList | None = None) -> None:
        assert plan.step is not None
        self.plan, self.placed = plan, plan.step
        self.tasks = tasks or plan.new_tasks()
        self.first: list[str] = []
        self.held = pieces_by_value(plan.pieces)
        self.shared: dict[str, str] = {}
        self.state: dict[tuple[str, int], str] = {}

    def reduced(self, runs: Sequence[PlacedRun]) -> Reduced:
        """Return the sums of gradients over passes and devices, weighed if several micro-batches have weights."""
        weight = self.weight_on if self.is_weighed(len(runs)) else None
        return summed_gradients(self.tasks, self.held, runs, weight, self.plan.unit)

    def weight_on(self, run_: PlacedRun, device: int, output: str | None = None) -> str:
        """Return a variable on a device with the weight of a micro-batch for an output, or else for the loss."""
        assert self.plan.training is not None
        return self.tasks.on(self.weight(run_, output or self.plan.training.minimize), device, 4)

    def assembled(self, name: str, reduced: Reduced) -> str:
        """Return a variable with the whole gradient of a parameter, on one device."""
        pieces = self.plan.pieces[name]
        type = arguments(self.plan.lowered, "parameter")[name]
        device, found = pieces[0].device, dict[Ends, HeldPiece]()
        for piece in pieces:
            variable = reduced.get((piece.value.name, piece.device))
            if variable is None or piece.region in found:
                continue
            variable = self.tasks.on(variable, device, ITEM_BYTES[type.dtype] * volume(piece.region))
            shape = tuple(last - first for first, last in piece.region)
            found[piece.region] = HeldPiece(device, piece.region, self._shaped(variable, shape, piece))
        whole = tuple((0, dim.size) for dim in type.dims)
        return self.tasks.joined(
            device, whole, [*found.values()], f"d_{short(Value(name, type))}", adds=False
        )

    def _shaped(self, variable: str, shape: tuple[int, ...], piece: StoredPiece) -> str:
        """Return a variable as an array with or without the axes that a loop slices."""
        if len(piece.region) == len(piece.ends):
            return variable
        device = self.tasks.device[variable]
        return self.tasks.add(device, f"{variable}.reshape({shape})", [variable], [short(piece.value)])[0]

    # The step

    def text(self) -> str:
        """Return the definition of `train_step`."""
        training = self.plan.training
        assert training is not None
        self._state_variables()
        runs = self.passes(training, self.plan.accumulate)
        self.tasks.group = (self.plan.accumulate, 1)
        reduced = self.reduced(runs)
        if needs_norm(training) or GRAD_NORM in training.report:
            self.shared[GRAD_NORM] = self.norm(training, reduced)
        new_params, new_state = self._updates(training, reduced, runs[-1])
        outputs = self._reports(training, runs)
        further: dict[str, Mapping[str, Sequence[str]]] = {"new_params": new_params, "new_state": new_state}
        doc = f"Compute {', '.join(outputs)}, and the new params and state."
        signature = "params, state, inputs, step"
        return self.plan.definition("train_step", signature, doc, self.first, self.tasks, outputs, further)

    def _state_variables(self) -> None:
        for name, pieces in self.plan.states.items():
            for i, piece in enumerate(pieces):
                variable = self.tasks.given(short(Value(name, piece.value.type)), piece.device)
                self.first.append(f'{variable} = state["{name}"][{i}]')
                self.state[name, i] = variable
                if self.plan.owner(name) is None:
                    self.shared[name] = variable
        self.number_variable()

    def number_variable(self) -> None:
        """Add the number of the step."""
        number = self.tasks.given("number", 0)
        self.first.append(f"{number} = numbered(step)")
        self.shared[STEP] = number

    def passes(self, training: Training, count: int) -> list[PlacedRun]:
        """Add the passes of several micro-batches."""
        runs: list[PlacedRun] = []
        scale = training.loss_scale
        fixed = scale.start if scale and not scale.is_dynamic else 1.0
        for micro in range(count):
            self.tasks.group = (micro, 1)
            run_, lines = self.plan.start(self.placed, self.tasks, micro)
            self.first += [line for line in lines if micro == 0 or "inputs[" in line]
            if runs:
                self._continue(runs[-1], run_)
            for argument in self.placed.graph.function.arguments:
                if argument.role == "step":
                    run_.held[argument.value] = self._numbers(micro, count)
            weight = partial(self.weight, run_, training.minimize) if self.is_weighed(count) else None
            share = fixed * (self.plan.unit if weight else 1 / count)
            run_.seed = seed_of(self.placed, self.tasks, share, self.shared.get(LOSS_SCALE), weight)
            run_.run()
            runs.append(run_)
        return runs

    def is_weighed(self, count: int) -> bool:
        """Return True if several micro-batches have weights."""
        return count > 1 and bool(self.plan.weights)

    def weight(self, run_: PlacedRun, output: str) -> str:
        """Return a variable with the weight of a micro-batch for an output."""
        return whole_on(run_, outputs_of(self.placed)[self.plan.weights[output]])

    def _continue(self, before: PlacedRun, run_: PlacedRun) -> None:
        """Take parameters from the pass before, and the states that it has updated."""
        for argument in self.placed.graph.function.arguments:
            if argument.role == "parameter":
                run_.held[argument.value] = before.held[argument.value]
        run_.held.update(self.updated_states(before))

    def updated_states(self, run_: PlacedRun) -> dict[Value, list[HeldPiece]]:
        """Return the new values of the model's states after a pass, where the states are stored."""
        found: dict[Value, list[HeldPiece]] = {}
        function = self.placed.graph.function
        given = {a.value.name: a.value for a in function.arguments}
        for output in (each for each in function.outputs if each.updates is not None):
            for piece in self.plan.pieces[str(output.updates)]:
                name = run_.gathered(output.value, piece.region, piece.device, 0)[0]
                held = HeldPiece(piece.device, piece.ends, self._shaped(name, piece.shape, piece))
                found.setdefault(given[piece.value.name], []).append(held)
        return found

    def _numbers(self, micro: int, count: int) -> list[HeldPiece]:
        """Return the number of a micro-batch over all steps."""
        number = self.shared[STEP]
        if count > 1:
            text = f"counted({number}, {count}, at({micro}, 0))"
            number = self.tasks.add(0, text, [number], ["number"])[0]
        return [HeldPiece(0, (), number)]

    def norm(self, training: Training, reduced: Reduced) -> str:
        """Return the joint norm of all gradients, on device 0: each element counts once."""
        terms = []
        for value, held in self.held.items():
            pieces = [each for each in held if (value, each.device) in reduced]
            known = [HeldPiece(each.device, each.ends, reduced[value, each.device]) for each in pieces]
            if not known:
                continue
            for number, region in sources_of(known, whole_of(held[0].value), -1, 0):
                piece = known[number]
                name = self.tasks.cut(piece.name, piece.ends, region)
                function = squares_function(training, region_type(held[0].value.type, region))
                (term,) = self.called(function, "squares", piece.device, [name], ["square"])
                terms.append(self.tasks.on(term, 0, 4))
        if not terms:
            return self.tasks.add(0, self.tasks.filled(scalar("f32"), 0, 0), [], ["grad_norm"])[0]
        total = self.tasks.total(0, terms, "squares")
        return self.tasks.add(0, f"root({total})", [total], ["grad_norm"])[0]

    def called(
        self,
        function: Function,
        name: str,
        device: int,
        given: Sequence[str],
        wanted: Sequence[str],
        states: Mapping[str, str] = {},
    ) -> list[str]:
        """Add a call of a function of the update.

        given: its first operands. states: those of the piece, by name. Other operands are scalars that all updates read.
        """
        operands = [*given]
        for argument in function.arguments[len(given) :]:
            key = STEP if argument.role == "step" else argument.value.name
            operands.append(states[key] if key in states else self.tasks.on(self.shared[key], device, 4))
        doc = f"Compute {', '.join(output.name for output in function.outputs)}."
        written = self.plan.functions.add(function, name, doc)
        return self.tasks.call(device, written, operands, wanted)

    # Updates

    def _updates(
        self, training: Training, reduced: Reduced, last: PlacedRun
    ) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Add the updates of all pieces; return the variables of the new parameters and states."""
        held = {(v.name, p.device): p.name for v, each in last.held.items() for p in each}
        for value, pieces in self.updated_states(last).items():
            for new in pieces:
                key = (value.name, new.device)
                held[key] = self._kept(new, held[key], training)
        states = self.plan.states
        new_state = {name: [self.state[name, i] for i in range(len(each))] for name, each in states.items()}
        changed = {*self.plan.differentiated()}
        new_params: dict[str, list[str]] = {}
        for name in arguments(self.plan.lowered, "parameter"):
            own = new_params.setdefault(name, [])
            for i, piece in enumerate(self.plan.pieces[name]):
                variable = self._variable(piece, name, i, held)
                if name in changed:
                    gradient = reduced.get((piece.value.name, piece.device)) or self.tasks.filled(
                        piece.type, 0, piece.device
                    )
                    variable = self._update(training, name, i, variable, gradient, new_state)
                own.append(variable)
        if training.loss_scale is not None and training.loss_scale.is_dynamic:
            self._next_scale(training, new_state)
        return new_params, new_state

    def _kept(self, new: HeldPiece, old: str, training: Training) -> str:
        """Return the new value of a state; the old one if the loss scale was too large."""
        if training.loss_scale is None or not training.loss_scale.is_dynamic:
            return new.name
        norm = self.tasks.on(self.shared[GRAD_NORM], new.device, 4)
        text = f"kept({norm}, {new.name}, {old})"
        return self.tasks.add(new.device, text, [norm, new.name, old], [new.name])[0]

    def _variable(
        self, piece: StoredPiece, name: str, number: int, held: Mapping[tuple[str, int], str]
    ) -> str:
        """Return the variable of a parameter's piece; one that the step does not read is unpacked."""
        key = (piece.value.name, piece.device)
        if key in held:
            return held[key]
        variable = self.tasks.given(short(piece.value), piece.device)
        self.first.append(f'{variable} = params["{name}"][{number}]')
        return variable

    def _update(
        self,
        training: Training,
        name: str,
        number: int,
        variable: str,
        gradient: str,
        new_state: dict[str, list[str]],
    ) -> str:
        """Add the update of one piece; return the variable of its new value."""
        piece = self.plan.pieces[name][number]
        function = update_function(training, name, piece.type)
        states = {key: self.state[key, number] for key in new_state if self.plan.owner(key) == name}
        wanted = [short(Value(output.name, piece.type)) for output in function.outputs]
        called, given = f"update_{short(piece.value)}", [variable, gradient]
        results = self.called(function, called, piece.device, given, wanted, states)
        new = variable
        for output, result in zip(function.outputs, results, strict=True):
            if output.updates == name:
                new = result
            elif output.updates in states:
                new_state[str(output.updates)][number] = result
            elif output.updates in new_state:
                new_state[str(output.updates)][0] = self.tasks.on(result, 0, 4)
        return new

    def _next_scale(self, training: Training, new_state: dict[str, list[str]]) -> None:
        function = scale_function(training)
        wanted = [output.name for output in function.outputs]
        results = self.called(function, "next_scale", 0, [], wanted)
        for output, result in zip(function.outputs, results, strict=True):
            new_state[str(output.updates)][0] = result

    # Reports

    def _reports(self, training: Training, runs: Sequence[PlacedRun]) -> dict[str, str]:
        """Return the variables of the step's outputs: means over the micro-batches, and figures of the step itself."""
        values, found = outputs_of(self.placed), dict[str, str]()
        for name in self.plan.reported():
            if name in values:
                found[name] = self.mean(runs, name)
            elif name == LEARNING_RATE:
                (found[name],) = self.called(rate_function(training), "learning_rate", 0, [], [name])
            elif name in self.shared:
                found[name] = self.shared[name]
            else:
                assert training.loss_scale is not None
                text = self.tasks.filled(scalar("f32"), training.loss_scale.start, 0)
                (found[name],) = self.tasks.add(0, text, [], [name])
        return found

    def mean(self, runs: Sequence[PlacedRun], name: str) -> str:
        """Return the mean of an output over micro-batches; the sum of the output that they are weighed by."""
        value = outputs_of(self.placed)[name]
        names = [whole_on(run_, value) for run_ in runs]
        if len(names) == 1:
            return names[0]
        device, size = self.tasks.device[names[0]], ITEM_BYTES[value.type.dtype]
        there = [self.tasks.on(each, device, size * volume(whole_of(value))) for each in names]
        text, weights = f"mean({', '.join(there)})", list[str]()
        if name == self.plan.weights.get(str(self.plan.training and self.plan.training.minimize)):
            text = f"total({', '.join(f'widened({each})' for each in there)})"
        elif name in self.plan.weights:
            weights = [self.weight_on(run_, device, name) for run_ in runs]
            text = f"weighed_mean(({', '.join(there)}), ({', '.join(weights)}))"
        return self.tasks.add(device, text, [*there, *weights], [short(value)])[0]
