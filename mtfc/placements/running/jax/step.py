"""The functions of a placed module: passes of all micro-batches, sums of gradients, and what follows them on pieces."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import attrs

from mtfc.backends.common.forms import FORMS
from mtfc.backends.common.module import arguments, dict_text, summary
from mtfc.compiler.ir.core import Function, Training, Value
from mtfc.compiler.ir.training import LOSS_SCALE
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.placements.running.jax.passes import PlacedGraph, PlacedRun, short
from mtfc.placements.running.jax.pieces import PiecesByName, StoredPiece, pieces_by_value
from mtfc.placements.running.jax.piecewise import Piecewise
from mtfc.placements.running.jax.plan import ModulePlan, outputs_of, seed_of, whole_on
from mtfc.placements.running.jax.sums import Reduced, summed_gradients
from mtfc.placements.running.jax.tasks import Ends, HeldPiece, dispatch_order, volume, with_deletions
from mtfc.placements.running.jax.updates import after_passes, terms_of

Unpacked = Mapping[str, Sequence[str]]
"""Array -> the variables of its pieces."""


class FunctionWriter:
    """Writes a function of the module. first: the statements before its tasks."""

    def __init__(self, plan: ModulePlan) -> None:
        self.plan, self.tasks = plan, plan.new_tasks()
        self.first: list[str] = []

    def unpacked(self, source: str, pieces: PiecesByName, turn: int = 0) -> Unpacked:
        """Return the variables of the arrays of a dict. turn: the micro-batch whose pieces are taken."""
        found: dict[str, list[str]] = {}
        for name, own in pieces.items():
            for number, piece in enumerate(own, len(own) * turn):
                variable = self.tasks.given(short(piece.value), piece.device)
                self.first.append(f'{variable} = {source}["{name}"][{number}]')
                found.setdefault(name, []).append(variable)
        return found

    def start(
        self, placed: PlacedGraph, params: Unpacked, micro: int = 0, number: str | None = None
    ) -> PlacedRun:
        """Return a pass whose inputs are unpacked. number: a variable with the number of the micro-batch over all steps."""
        held = dict[Value, list[HeldPiece]]()
        known = {a.value.name: a.value for a in placed.graph.function.arguments}
        inputs = self.unpacked("inputs", self.plan.inputs, micro)
        for name, pieces in {**self.plan.parameters, **self.plan.inputs}.items():
            for piece, variable in zip(pieces, (params.get(name) or inputs[name]), strict=True):
                if value := known.get(piece.value.name):
                    held.setdefault(value, []).append(HeldPiece(piece.device, piece.ends, variable))
        for argument in placed.graph.function.arguments:
            if argument.role == "step":
                there = number or self.tasks.add(0, "at(0, 0)", [], ["number"])[0]
                held[argument.value] = [HeldPiece(0, (), there)]
        return PlacedRun(placed, self.tasks, held)

    def definition(
        self, name: str, signature: str, doc: str, returned: Mapping[str, Mapping[str, str | Sequence[str]]]
    ) -> str:
        """Return the definition of the function. returned: the dicts that it returns, of arrays or of their pieces."""
        lines, stay = list[str](), set[str]()
        for group, arrays in returned.items():
            texts = [
                (key, each if isinstance(each, str) else f"({', '.join(each)},)")
                for key, each in arrays.items()
            ]
            lines.append(f"{group} = {dict_text(texts, indent=4)}")
            stay.update(v for each in arrays.values() for v in ([each] if isinstance(each, str) else each))
        ordered = list(dispatch_order(self.tasks.tasks, self.plan.devices))
        assert len(ordered) == len(self.tasks.tasks), "tasks wait for each other"
        lines.append(f"return {', '.join(returned)}")
        body = [f'"""{doc}"""', *self.first, *with_deletions(ordered, stay), *lines]
        text = "\n".join(body).split("\n")
        return f"def {name}({signature}):\n" + "".join(f"    {line}\n" for line in text)

    # Functions of the model

    def forward(self) -> str:
        """Return the definition of `forward`."""
        run_ = self.start(self.plan.forward, self.unpacked("params", self.plan.parameters))
        run_.run()
        outputs = {name: whole_on(run_, value) for name, value in outputs_of(self.plan.forward).items()}
        doc = f"Compute {', '.join(outputs)}."
        return self.definition("forward", "params, inputs", doc, {"outputs": outputs})

    def gradients(self) -> str:
        """Return the definition of `gradients`, which returns whole arrays."""
        assert self.plan.step is not None
        run_ = self.start(self.plan.step, self.unpacked("params", self.plan.parameters))
        run_.seed = seed_of(self.plan.step, self.tasks, 1.0)
        run_.run()
        outputs = {name: whole_on(run_, value) for name, value in outputs_of(self.plan.step).items()}
        reduced = summed_gradients(self.tasks, pieces_by_value(self.plan.parameters), [run_])
        for name in self.plan.differentiated():
            outputs[f"d_{name}"] = self._assembled(name, reduced)
        doc = "Compute the outputs of a training step, and the gradients of params."
        return self.definition("gradients", "params, inputs", doc, {"outputs": outputs})

    def _assembled(self, name: str, reduced: Reduced) -> str:
        """Return a variable with the whole gradient of a parameter, on one device."""
        pieces = self.plan.parameters[name]
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

    # Functions of training

    def on_pieces(self, name: str) -> str:
        """Return the definition of a function without passes: `clip_gradients` or `averaged`."""
        function = self.plan.lowered.function(name)
        known = {**self.unpacked(FORMS[name].takes["parameter"], self.plan.parameters)}
        known |= self.unpacked("state", self.plan.states) if "state" in FORMS[name].takes else {}
        return self._finished(function, {a.value: known[a.value.name] for a in function.arguments}, {})

    def with_passes(self, name: str) -> str:
        """Return the definition of `step`, `batch_gradients` or `step_gradients`."""
        plan, training, placed = self.plan, self.plan.training, self.plan.step
        assert training is not None and placed is not None
        count = 1 if name == "batch_gradients" else plan.accumulate
        params = self.unpacked("params", plan.parameters)
        state = self.unpacked("state", plan.states) if name == "step" else {}
        number = self.tasks.given("number", 0)
        self.first.append(f"{number} = numbered(step)")
        runs = self._passes(training, placed, count, params, number, state.get(LOSS_SCALE))
        self.tasks.group = (count, 1)
        weight = self._weight_on if self._is_weighed(count) else None
        reduced = summed_gradients(self.tasks, pieces_by_value(plan.parameters), runs, weight)
        after = after_passes(plan.inside, training, name, count, plan.differentiated())
        known: dict[Value, Sequence[str]] = {}
        for argument in after.function.arguments:
            if argument.role == "step":
                known[argument.value] = [number]
            elif argument.role != "input":
                known[argument.value] = (params if argument.role == "parameter" else state)[
                    argument.value.name
                ]
        given = {value: parameter for parameter, value in (*after.gradients.items(), *after.states.items())}
        for parameter, value in after.gradients.items():
            known[value] = [
                reduced.get((each.value.name, each.device)) or self.tasks.filled(each.type, 0, each.device)
                for each in plan.parameters[parameter]
            ]
        new = {
            (v.name, each.device): each.name
            for v, own in self._updated_states(runs[-1]).items()
            for each in own
        }
        for parameter, value in after.states.items():
            known[value] = [new[each.value.name, each.device] for each in plan.parameters[parameter]]
        read = {v for eqn in after.function.body for v in eqn.operands} | {
            o.value for o in after.function.outputs
        }
        totals = self._totals(runs, {name for name, value in after.outputs.items() if value in read})
        known |= {after.outputs[name]: [variable] for name, variable in totals.items()}
        return self._finished(after.function, known, given)

    def _finished(
        self, function: Function, known: Mapping[Value, Sequence[str]], given: Mapping[Value, str]
    ) -> str:
        """Return the definition of a function from the variables of its arguments. given: argument -> its parameter."""
        form, owners, roles = FORMS[function.name], dict(given), {}
        for argument in function.arguments:
            name = argument.value.name
            roles[name] = argument.role
            owner = (
                name
                if argument.role == "parameter"
                else self.plan.owner(name)
                if argument.role == "state"
                else None
            )
            if owner is not None:
                owners[argument.value] = owner
        pieces = self.plan.parameters
        found = Piecewise(self.plan.functions, self.tasks, pieces, function, owners, known.__getitem__).run()
        returned: dict[str, dict[str, str | Sequence[str]]] = {"outputs": {}} if form.outputs else {}
        returned |= {f"new_{group}": {} for group in form.gives.values()}
        for output in function.outputs:
            if output.updates is None:
                returned["outputs"][output.name] = found[output.name][0]
            else:
                returned[f"new_{form.gives[roles[output.updates]]}"][output.updates] = found[output.name]
        return self.definition(form.name, form.signature, summary(function), returned)

    def _passes(
        self,
        training: Training,
        placed: PlacedGraph,
        count: int,
        params: Unpacked,
        number: str,
        scale: Sequence[str] | None,
    ) -> list[PlacedRun]:
        """Add the passes of several micro-batches. scale: the variable of a loss scale that changes."""
        runs: list[PlacedRun] = []
        fixed = training.loss_scale.start if training.loss_scale is not None and scale is None else 1.0
        share = fixed * (self.plan.unit if count > 1 else 1.0)
        for micro in range(count):
            self.tasks.group = (micro, 1)
            at = (
                self._number(number, micro, count)
                if any(a.role == "step" for a in placed.graph.function.arguments)
                else None
            )
            run_ = self.start(placed, params, micro, at)
            if runs:
                run_.held.update(self._updated_states(runs[-1]))
            weight = partial(self._weight, run_, training.minimize) if self._is_weighed(count) else None
            run_.seed = seed_of(placed, self.tasks, share, scale[0] if scale else None, weight)
            run_.run()
            runs.append(run_)
        return runs

    def _number(self, number: str, micro: int, count: int) -> str:
        """Return a variable with the number of a micro-batch over all steps."""
        if count == 1:
            return number
        return self.tasks.add(0, f"counted({number}, {count}, at({micro}, 0))", [number], ["number"])[0]

    def _is_weighed(self, count: int) -> bool:
        """Return True if several micro-batches have weights."""
        return count > 1 and bool(self.plan.weights)

    def _weight(self, run_: PlacedRun, output: str) -> str:
        """Return a variable with the weight of a micro-batch for an output."""
        return whole_on(run_, outputs_of(run_.placed)[self.plan.weights[output]])

    def _weight_on(self, run_: PlacedRun, device: int) -> str:
        """Return a variable on a device with the weight of a micro-batch for the loss."""
        assert self.plan.training is not None
        return self.tasks.on(self._weight(run_, self.plan.training.minimize), device, 4)

    def _updated_states(self, run_: PlacedRun) -> dict[Value, list[HeldPiece]]:
        """Return the new values of the model's states after a pass, where the states are stored."""
        found: dict[Value, list[HeldPiece]] = {}
        function = run_.placed.graph.function
        given = {a.value.name: a.value for a in function.arguments}
        for output in (each for each in function.outputs if each.updates is not None):
            for piece in self.plan.parameters[str(output.updates)]:
                name = run_.gathered(output.value, piece.region, piece.device, 0)[0]
                held = HeldPiece(piece.device, piece.ends, self._shaped(name, piece.shape, piece))
                found.setdefault(given[piece.value.name], []).append(held)
        return found

    def _totals(self, runs: Sequence[PlacedRun], wanted: Collection[str]) -> dict[str, str]:
        """Return the variables of outputs: of the one micro-batch, or of the sums of the terms of several."""
        values, training = outputs_of(runs[0].placed), self.plan.training
        if len(runs) == 1:
            return {name: whole_on(runs[0], values[name]) for name in values if name in wanted}
        assert training is not None
        terms = terms_of(self.plan.inside.function("forward"), training)
        terms = attrs.evolve(terms, outputs=tuple(each for each in terms.outputs if each.name in wanted))
        found: dict[str, list[str]] = {}
        for run_ in runs:

            def whole(value: Value, run_: PlacedRun = run_) -> list[str]:
                return [whole_on(run_, values[value.name])]

            for name, own in Piecewise(self.plan.functions, self.tasks, {}, terms, {}, whole).run().items():
                found.setdefault(name, []).append(self.tasks.on(own[0], 0, 4))
        return {
            name: self.tasks.total(0, own, short(Value(name, values[name].type)))
            for name, own in found.items()
        }
