"""The functions of a placed module: passes of all micro-batches, sums of gradients, and what follows them on pieces."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from textwrap import indent

import attrs

from mtfc.backends.common.emitter import FORMS
from mtfc.backends.common.module import dict_text, summary
from mtfc.backends.common.prelude import definitions
from mtfc.backends.jax.backend import RESERVED
from mtfc.compiler.ir.builder import Names
from mtfc.compiler.ir.core import Function, Training, Value
from mtfc.compiler.ir.training import LOSS_SCALE
from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.placements.running.jax.passes import PlacedGraph, PlacedRun, short
from mtfc.placements.running.jax.pieces import PiecesByName, StoredPiece, pieces_by_value
from mtfc.placements.running.jax.piecewise import Piecewise, Variables
from mtfc.placements.running.jax.plan import PLACED, ModulePlan, outputs_of, seed_of, whole_on
from mtfc.placements.running.jax.sums import Reduced, summed_gradients
from mtfc.placements.running.jax.tasks import HeldPiece, TaskList, dispatch_order, with_deletions
from mtfc.placements.running.jax.updates import after_passes, terms_of

LOCALS = (
    "params", "state", "inputs", "step", "outputs", "gradients", "new_params", "new_state", "new_gradients",
)  # fmt: skip

TAKEN = (*LOCALS, *RESERVED, *definitions(PLACED))
"""Names that no variable of a function has."""

Unpacked = Mapping[str, Sequence[str]]
"""Array -> the variables of its pieces."""

Returned = dict[str, str | list[str]]
"""Array -> a variable with all of it, or those of its pieces."""


class FunctionWriter:
    """Writes a function of the module.

    first: the statements that unpack arrays; they stand before the tasks.
    """

    def __init__(self, plan: ModulePlan) -> None:
        self.plan, self.tasks = plan, TaskList(Names(TAKEN))
        self.first: list[str] = []

    def unpacked(self, source: str, pieces: PiecesByName, turn: int = 0) -> Unpacked:
        """Write statements that unpack the arrays of a dict, and return the variables of each array's pieces.

        source: the variable of the dict. turn: the micro-batch whose pieces are taken.
        """
        found: dict[str, list[str]] = {}
        for name, own in pieces.items():
            for number, piece in enumerate(own, len(own) * turn):
                variable = self.tasks.given(short(piece.value), piece.device)
                self.first.append(f'{variable} = {source}["{name}"][{number}]')
                found.setdefault(name, []).append(variable)
        return found

    def start(
        self, placed: PlacedGraph, params: Unpacked, micro: int = 0, count: int = 1, step_variable: str = ""
    ) -> PlacedRun:
        """Start the pass of micro-batch `micro` of `count`: unpack its arrays, and return the pass before its first task.

        params: the variables of the parameters' pieces. step_variable: a variable with the number of the training step; if
        empty, the number is 0.
        """
        held = dict[Value, list[HeldPiece]]()
        known = {a.value.name: a.value for a in placed.graph.function.arguments}
        inputs = self.unpacked("inputs", self.plan.inputs, micro)
        for name, pieces in {**self.plan.parameters, **self.plan.inputs}.items():
            for piece, variable in zip(pieces, (params.get(name) or inputs[name]), strict=True):
                if value := known.get(piece.value.name):
                    held.setdefault(value, []).append(HeldPiece(piece.device, piece.ends, variable))
        for argument in placed.graph.function.arguments:
            if argument.role == "step":
                counted: list[object] = [step_variable, count, f"at({micro}, 0)"]
                function, given = ("counted", counted) if step_variable else ("at", [0, 0])
                held[argument.value] = [HeldPiece(0, (), self.tasks.apply(0, function, given, ["number"])[0])]
        return PlacedRun(placed, self.tasks, held)

    def definition(self, name: str, signature: str, doc: str, returned: Mapping[str, Returned]) -> str:
        """Return the definition of the function. returned: the dicts that it returns."""
        lines, stay = list[str](), set[str]()
        for group, arrays in returned.items():
            texts = {
                key: each if isinstance(each, str) else f"({', '.join(each)},)"
                for key, each in arrays.items()
            }
            lines.append(f"{group} = {dict_text(texts.items(), indent=4)}")
            stay.update(
                name for each in arrays.values() for name in ([each] if isinstance(each, str) else each)
            )
        ordered = list(dispatch_order(self.tasks.tasks, self.plan.devices))
        assert len(ordered) == len(self.tasks.tasks), "tasks wait for each other"
        lines.append(f"return {', '.join(returned)}")
        body = "\n".join([f'"""{doc}"""', *self.first, *with_deletions(ordered, stay), *lines])
        return f"def {name}({signature}):\n{indent(body, '    ')}\n"

    # Functions of the model

    def forward(self) -> str:
        """Return the definition of `forward`."""
        outputs = self._outputs(self.plan.forward)[1]
        doc = f"Compute {', '.join(outputs)}."
        return self.definition("forward", "params, inputs", doc, {"outputs": outputs})

    def gradients(self) -> str:
        """Return the definition of `gradients`, which returns the gradients in pieces."""
        assert self.plan.step is not None
        run_, outputs = self._outputs(self.plan.step, has_gradients=True)
        reduced = summed_gradients(self.tasks, pieces_by_value(self.plan.parameters), [run_])
        for name in self.plan.differentiated():
            outputs[f"d_{name}"] = self._gradient(name, reduced)
        doc = "Compute the outputs of a training step, and the gradients of params."
        return self.definition("gradients", "params, inputs", doc, {"outputs": outputs})

    def _outputs(self, placed: PlacedGraph, has_gradients: bool = False) -> tuple[PlacedRun, Returned]:
        """Add one pass; return it, and the variables of its outputs, which are whole."""
        run_ = self.start(placed, self.unpacked("params", self.plan.parameters))
        run_.seed = seed_of(placed, self.tasks, 1.0) if has_gradients else None
        run_.run()
        return run_, {name: whole_on(run_, value) for name, value in outputs_of(placed).items()}

    def _gradient(self, name: str, reduced: Reduced) -> list[str]:
        """Return the variables of the pieces of a parameter's gradient."""
        return [
            reduced.get((each.value.name, each.device)) or self.tasks.filled(each.type, 0, each.device)
            for each in self.plan.parameters[name]
        ]

    # Functions of training

    def on_pieces(self, name: str) -> str:
        """Return the definition of a function without passes: `clip_gradients` or `averaged`."""
        known = {**self.unpacked(FORMS[name].takes["parameter"], self.plan.parameters)}
        known |= self.unpacked("state", self.plan.states) if "state" in FORMS[name].takes else {}
        return self._finished(self.plan.lowered.function(name), lambda value: known[value.name])

    def with_passes(self, name: str) -> str:
        """Return the definition of `step`, `batch_gradients` or `step_gradients`."""
        plan, training, placed = self.plan, self.plan.training, self.plan.step
        assert training is not None and placed is not None
        count = 1 if name == "batch_gradients" else plan.accumulate
        params = self.unpacked("params", plan.parameters)
        step_variable = self.tasks.given("number", 0)
        self.first.append(f"{step_variable} = numbered(step)")
        variables_of = {**params, **(self.unpacked("state", plan.states) if name == "step" else {})}
        runs = self._passes(placed, training, count, params, step_variable, variables_of.get(LOSS_SCALE))
        self.tasks.group = (count, 1)
        weight = self._weight_on if self._is_weighed(count) else None
        reduced = summed_gradients(self.tasks, pieces_by_value(plan.parameters), runs, weight)
        after = after_passes(plan.inside, training, name, count, plan.differentiated())
        updated = self._updated_states(runs[-1])
        new = {(value.name, each.device): each.name for value, pieces in updated.items() for each in pieces}

        def variables(value: Value) -> Sequence[str]:
            """Return the variables of an argument of the function behind the passes: an output, a gradient, a state or a
            parameter.
            """
            kind, of = after.results.get(value, ("", value.name))
            if kind == "output":
                return [self._total(runs, of)]
            if kind == "gradient":
                return self._gradient(of, reduced)
            if kind == "state":
                return [new[each.value.name, each.device] for each in plan.parameters[of]]
            return variables_of.get(of) or [step_variable]

        return self._finished(after.function, cache(variables), after.owners)

    def _finished(self, function: Function, variables: Variables, owners: Mapping[Value, str] = {}) -> str:
        """Return the definition of a function of variables. owners: argument that is the result of a pass -> its parameter."""
        form = FORMS[function.name]
        own = {a.value: a.value.name for a in function.arguments if a.role == "parameter"} | dict(owners)
        states = ((a.value, self.plan.owner(a.value.name)) for a in function.arguments if a.role == "state")
        own |= {value: owner for value, owner in states if owner is not None}
        plan = self.plan
        found = Piecewise(plan.functions, self.tasks, plan.parameters, function, own, variables).run()
        returned = dict[str, Returned]()
        for group, outputs in form.groups(function).items():
            if group == "outputs":
                returned[group] = {key: found[key][0] for key in outputs}
            else:
                returned[f"new_{group}"] = {key: found[output.name] for key, output in outputs.items()}
        return self.definition(form.name, form.signature, summary(function), returned)

    def _passes(
        self,
        placed: PlacedGraph,
        training: Training,
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
            run_ = self.start(placed, params, micro, count, number)
            if runs:
                run_.held.update(self._updated_states(runs[-1]))
            weight = partial(self._weight, run_, training.minimize) if self._is_weighed(count) else None
            run_.seed = seed_of(placed, self.tasks, share, scale[0] if scale else None, weight)
            run_.run()
            runs.append(run_)
        return runs

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
        new_pieces: dict[Value, list[HeldPiece]] = {}
        function = run_.placed.graph.function
        values_by_name = {a.value.name: a.value for a in function.arguments}
        for output in (each for each in function.outputs if each.updates is not None):
            for piece in self.plan.parameters[str(output.updates)]:
                name = run_.gathered(output.value, piece.region, piece.device, 0)[0]
                new_piece = HeldPiece(piece.device, piece.ends, self._shaped(name, piece))
                new_pieces.setdefault(values_by_name[piece.value.name], []).append(new_piece)
        return new_pieces

    def _shaped(self, variable: str, piece: StoredPiece) -> str:
        """Return a variable as an array without the axes that a loop slices."""
        if len(piece.region) == len(piece.ends):
            return variable
        device = self.tasks.device[variable]
        return self.tasks.add(device, f"{variable}.reshape({piece.shape})", [variable], [short(piece.value)])[
            0
        ]

    def _total(self, runs: Sequence[PlacedRun], name: str) -> str:
        """Return the variable of an output: of the one micro-batch, or the sum of the terms of several."""
        values, training = outputs_of(runs[0].placed), self.plan.training
        if len(runs) == 1:
            return whole_on(runs[0], values[name])
        assert training is not None
        terms = terms_of(self.plan.inside.function("forward"), training)
        (term,) = (output for output in terms.outputs if output.name == name)
        terms, found = attrs.evolve(terms, outputs=(term,)), list[str]()
        for run_ in runs:

            def whole(value: Value, run_: PlacedRun = run_) -> list[str]:
                return [whole_on(run_, values[value.name])]

            ((own,),) = Piecewise(self.plan.functions, self.tasks, {}, terms, {}, whole).run().values()
            found.append(self.tasks.on(own, 0, term.value.type.size * ITEM_BYTES[term.value.type.dtype]))
        return self.tasks.total(0, found, short(term.value))
