"""Loss and gradients of a placed module, in pieces like the parameters, so that another library can update these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import indent

import attrs

from mtfc.backends.common.module import arguments
from mtfc.compiler.ir.core import Training
from mtfc.compiler.ir.training import GRAD_NORM
from mtfc.placements.running.jax.passes import PlacedRun, short
from mtfc.placements.running.jax.pieces import StoredPiece
from mtfc.placements.running.jax.plan import ModulePlan
from mtfc.placements.running.jax.step import StepWriter
from mtfc.placements.running.jax.sums import Reduced
from mtfc.placements.running.jax.updates import clipped_function, unscaled_function

PiecesOfArrays = Mapping[str, Sequence[str]]
"""Name of an array -> the variables of its pieces."""


def value_and_grad(plan: ModulePlan) -> list[str]:
    """Return `value_and_grad` and the functions that it calls: see `backends/common/module.py`. No loss has none."""
    training = plan.training
    if training is None or plan.step is None or plan.step.graph.loss is None:
        return []
    accumulates, clips = plan.accumulate > 1, training.clip is not None
    has_state = any(parameter.is_state for parameter in plan.program.parameters)
    counts = {"batch_gradients": 1, **({"step_gradients": plan.accumulate} if accumulates else {})}
    found = [GradientsWriter(plan).of_batches(name, count) for name, count in counts.items()]
    found += [GradientsWriter(plan).clipping()] if clips else []
    flags = {"accumulate": accumulates, "clip": clips, "with_state": has_state}
    options = [f"{name}=False" for name, is_there in flags.items() if is_there]
    chosen = "(step_gradients if accumulate else batch_gradients)" if accumulates else "batch_gradients"
    loss = f'outputs["{training.minimize}"]'
    lines = [
        f'"""Compute {training.minimize}, and the gradients of params, in pieces like the params."""',
        f"outputs, gradients, states = {chosen}(params, inputs, step)",
        *(["if clip:", "    _, gradients = clip_gradients(gradients)"] * clips),
        *([f"if with_state:\n    return ({loss}, {{**params, **states}}), gradients"] * has_state),
        f"return {loss}, gradients",
    ]
    signature = ", ".join(["params", "inputs", "step=0", *(["*", *options] if options else [])])
    body = indent("\n".join(lines), "    ")
    return [*found, f"def value_and_grad({signature}):\n{body}\n"]


class GradientsWriter(StepWriter):
    """Writes the parts of a step that compute gradients. A loss scale is the one of the first step."""

    def of_batches(self, name: str, count: int) -> str:
        """Return the definition of a function of several micro-batches: loss, gradients, and new states of the model."""
        assert self.plan.training is not None
        training = self.plan.training
        if training.loss_scale is not None:
            fixed = attrs.evolve(training.loss_scale, is_dynamic=False)
            training = attrs.evolve(training, loss_scale=fixed)
        self.number_variable()
        runs = self.passes(training, count)
        self.tasks.group = (count, 1)
        reduced = self.reduced(runs)
        gradients = {
            each: [self._gradient(training, piece, reduced) for piece in pieces]
            for each, pieces in self._parameters().items()
        }
        outputs = {training.minimize: self.mean(runs, training.minimize)}
        further: dict[str, PiecesOfArrays] = {"gradients": gradients, "states": self._new_states(runs[-1])}
        doc = f"Compute {training.minimize}, the gradients of params, and the model's new state."
        return self.plan.definition(
            name, "params, inputs, step", doc, self.first, self.tasks, outputs, further
        )

    def _parameters(self) -> Mapping[str, Sequence[StoredPiece]]:
        return {name: self.plan.pieces[name] for name in arguments(self.plan.lowered, "parameter")}

    def _gradient(self, training: Training, piece: StoredPiece, reduced: Reduced) -> str:
        """Return the gradient of a piece without the loss scale; zeros for a parameter that has none."""
        variable = reduced.get((piece.value.name, piece.device))
        if variable is None:
            return self.tasks.filled(piece.type, 0, piece.device)
        if training.loss_scale is None:
            return variable
        function = unscaled_function(training, piece.type)
        return self.called(function, "unscaled", piece.device, [variable], [f"d_{short(piece.value)}"])[0]

    def _new_states(self, last: PlacedRun) -> PiecesOfArrays:
        """Return the new values of the model's states, as far as the model updates them."""
        new = {
            (v.name, each.device): each.name for v, own in self.updated_states(last).items() for each in own
        }
        found = {}
        for name, pieces in self._parameters().items():
            own = [new[key] for piece in pieces if (key := (piece.value.name, piece.device)) in new]
            if own:
                found[name] = own
        return found

    def clipping(self) -> str:
        """Return the definition of `clip_gradients`, which scales gradients as `train_step` does."""
        assert self.plan.training is not None
        plain = attrs.evolve(self.plan.training, loss_scale=None)
        changed, known = {*self.plan.differentiated()}, dict[tuple[str, int], str]()
        given: dict[str, list[str]] = {}
        for name, pieces in self._parameters().items():
            for number, piece in enumerate(pieces):
                variable = self.tasks.given(f"d_{short(piece.value)}", piece.device)
                self.first.append(f'{variable} = gradients["{name}"][{number}]')
                given.setdefault(name, []).append(variable)
                if name in changed:
                    known[piece.value.name, piece.device] = variable
        self.shared[GRAD_NORM] = self.norm(plain, known)
        for name in changed:
            for number, piece in enumerate(self.plan.pieces[name]):
                function, old = clipped_function(plain, piece.type), [given[name][number]]
                wanted = [f"d_{short(piece.value)}"]
                given[name][number] = self.called(function, "clipped", piece.device, old, wanted)[0]
        doc = "Scale the gradients so that their joint norm is at most the limit."
        return self.plan.definition(
            "clip_gradients", "gradients", doc, self.first, self.tasks, {}, {"clipped": given}
        )
