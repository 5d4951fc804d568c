"""Evaluation: the means of a model's outputs over all rows of some data, while a run trains and for `mtfc eval`.

The rows after the last whole batch take a second compilation. Each batch weighs by its number of rows; an output that is a mean
over a count of the data, such as the tokens of a mask, weighs by that count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any

import attrs

from mtfc.backends.common.devices import import_jax
from mtfc.compiler.activity import doing
from mtfc.compiler.analysis.output_weights import with_weights
from mtfc.compiler.ir.core import Program
from mtfc.driver.data.inputs import data_inputs, given_parameters
from mtfc.driver.errors import UsageError, say
from mtfc.driver.loading.selection import Case, LayoutOnMesh, Resizing, select
from mtfc.driver.loading.sources import Sources
from mtfc.driver.options import EvalOptions
from mtfc.driver.running.execution import jax_program
from mtfc.driver.running.run import weighted_mean
from mtfc.driver.training.data_interface import UserSource
from mtfc.driver.training.data_sources import DataSource, FileSource, check_documents, open_source
from mtfc.driver.training.hosts import Hosts, watched_peers
from mtfc.driver.training.loop import iter_batches
from mtfc.driver.training.same_run import check_same, facts_of, program_fingerprint
from mtfc.driver.training.signals import Stop, Stopped
from mtfc.reports.training_report import EvaluationSummary

if TYPE_CHECKING:
    from mtfc.backends.jax.jax_program import JaxProgram

Means = dict[str, float]
"""The means of the outputs by name."""


def check_hosts(case: Case, hosts: Hosts) -> None:
    """Raise `UsageError` for a placement or a layout of several meshes in several processes."""
    if hosts.are_several and not isinstance(case, LayoutOnMesh):
        case.refuse({"--coordinator or --distributed": True}, ", which runs in one process")


@attrs.frozen(eq=False)
class Forward:
    """The forward pass on devices. rows: of a batch. counts: output -> the output with its count, of those with a count."""

    on_devices: JaxProgram
    rows: int
    counts: Mapping[str, str]

    @classmethod
    def of(cls, program: Program, case: Case, rows: int) -> Forward:
        counted, counts = with_weights(program)
        return cls(jax_program(case.forward_source(counted, "jax")), rows, counts)

    def batch(self, params: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        """Return the mean and the weight of each output with at most one dimension. params: as `placed` returns them."""
        jax = import_jax()
        jnp = jax.numpy
        outputs = self.on_devices.forward(params, batch)
        found = {name: jnp.mean(x.astype(jnp.float32)) for name, x in outputs.items() if x.ndim < 2}
        numbers = {name: float(x) for name, x in jax.device_get(found).items()}
        weights = {name: numbers[count] for name, count in self.counts.items()}
        names = [name for name in numbers if name not in self.counts.values()]
        return {name: (numbers[name], weights.get(name, float(self.rows))) for name in names}

    def placed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return whole parameters as this program places them: the layout of fewer rows may lack rules."""
        shardings = {name: each.sharding for name, each in self.on_devices.abstract("params").items()}
        moved = import_jax().device_put(dict(params), shardings)
        return self.on_devices.place(moved, "params")


@attrs.frozen(eq=False)
class DataEvaluation:
    """Data to evaluate on, and the forward pass for its batches.

    rest: the forward pass of the rows after the last whole batch, and these rows. most: the most batches to evaluate. smaller:
    the forward passes of smaller batches that a function has given, by their number of rows. compiled: set once `forward` and
    `rest` are.
    """

    source: DataSource
    forward: Forward
    rest: tuple[Forward, Mapping[str, Any]] | None
    most: int | None
    resizing: Resizing
    smaller: dict[int, Forward] = attrs.field(factory=dict)
    compiled: Event = attrs.field(factory=Event)

    @classmethod
    def of(cls, source: DataSource, most: int | None, resizing: Resizing, leads: bool) -> DataEvaluation:
        """Return the evaluation on some data. Raises `CompileError`, `UsageError` and `Unavailable`."""
        program, case = resizing.selection.program, resizing.selection.case
        rows = 1
        if isinstance(source, FileSource):
            rows = source.examples.dim.size
        elif isinstance(source, UserSource) and source.examples:
            rows = source.examples[0].rows
        forward = Forward.of(program, case, rows)
        rest = _rest(source, resizing, most, leads) if isinstance(source, FileSource) else None
        if leads:
            say(f"evaluation: {_described(source, rest is not None)}")
        return cls(source, forward, rest, most, resizing)

    def means(self, params: Mapping[str, Any], stop: Stop) -> Means:
        """Return the means over the data, or over its first batches. params: whole arrays. Raises `Stopped`."""
        if stop.peers.count > 1 and not self.compiled.is_set():
            self._compile(stop)
        placed, parts = dict[Forward, dict[str, Any]](), []
        for forward, batch in self._batches(stop):
            placed[forward] = placed.get(forward) or forward.placed(params)
            parts.append(forward.batch(placed[forward], batch))
        if not parts:
            raise UsageError(f"these data do not fill one batch ({self.source.description()}): give more")
        return {name: weighted_mean([part[name] for part in parts]) for name in parts[0]}

    def _compile(self, stop: Stop) -> None:
        """Compile before the first batch, which all processes take or none. Raises `Stopped`."""

        def compile_all() -> None:
            for each in (self.forward, *(self.rest or ())[:1]):
                each.on_devices.compile_forward()

        stopped = False
        try:
            stop.wait(compile_all)
        except Stopped:
            stopped = True
        if any(stop.peers.gather(stopped or stop.is_requested)):
            raise Stopped
        self.compiled.set()

    def _batches(self, stop: Stop) -> Iterator[tuple[Forward, Mapping[str, Any]]]:
        number = 0
        with closing(self.source.batches(self.forward.on_devices.share, None)) as batches:
            for batch in islice(iter_batches(batches, stop), self.most):
                number += 1
                with doing(f"batch {number}"):
                    yield self._forward_of(batch, number), batch
        if self.rest is not None and (self.most is None or number < self.most):
            yield self.rest

    def _forward_of(self, batch: Mapping[str, Any], number: int) -> Forward:
        """Return the forward pass of a batch, which may have few rows if a function makes it. Raises `UsageError`."""
        source = self.source
        rows = source.rows_of(batch) if isinstance(source, UserSource) and not source.is_sharded else None
        if rows is None or rows == self.forward.rows:
            return self.forward
        assert isinstance(source, UserSource)
        if rows not in self.smaller:
            dim = attrs.evolve(source.examples[0].type.dims[0], size=rows)
            reason = self.resizing.refusal(dim, [each.name for each in source.examples])
            if reason is not None:
                raise UsageError(
                    f"item {number} of {source.name} has {rows} row{'s' * (rows != 1)}, and {reason}"
                )
            program = self.resizing.program(dim)
            self.smaller[rows] = Forward.of(program, self.resizing.case(program), rows)
        return self.smaller[rows]


def _rest(
    source: FileSource, resizing: Resizing, most: int | None, leads: bool
) -> tuple[Forward, Mapping[str, Any]] | None:
    """Return the forward pass of the rows after the last whole batch, and these rows. Raises `UsageError`."""
    if not source.rest or (most is not None and most <= source.whole_steps):
        return None
    dim = attrs.evolve(source.examples.dim, size=source.rest)
    reason = resizing.refusal(dim, [each.name for each in source.examples.inputs])
    if reason is not None:
        if not source.whole_steps:
            raise UsageError(f"{source.examples.name} has fewer rows than a batch, and {reason}")
        if leads:
            say(f"{source.examples.name}: the last {dim.size} rows are left out: {reason}")
        return None
    program = resizing.program(dim)
    forward = Forward.of(program, resizing.case(program), dim.size)
    return forward, source.rest_batch(forward.on_devices.share, data_inputs(program.function("forward")))


def _described(source: DataSource, has_rest: bool) -> str:
    if not isinstance(source, FileSource):
        return source.description()
    steps = source.whole_steps
    rest = f"{' and ' if steps else ''}one of {source.rest} row{'s' * (source.rest != 1)}" if has_rest else ""
    batches = f"{steps} batch{'es' * (steps != 1)}" if steps else ""
    return f"{source.examples.name}: {source.examples.count} examples, {batches}{rest}"


def evaluate(options: EvalOptions, sources: Sources) -> EvaluationSummary | None:
    """Evaluate the parameters of a file or of a run; return the means in process 0, None in others.

    Raises `CompileError`, `UsageError`, `Unavailable` and `FailedRequest`.
    """
    options.hosts.check()
    selection = select(options.file, options.choice, sources, or_placement=True, or_multi_mesh=True)
    check_hosts(selection.case, options.hosts)
    if options.hosts.are_several:
        options.hosts.join(selection.case.mesh.devices)
    program, case = selection.program, selection.case
    with watched_peers() as peers:
        given = given_parameters(
            options.params, options.params_partial, options.seed, program, options.averages
        )
        resizing = Resizing(options.file, options.choice, sources, selection)
        source = open_source(options.data, program, 1, options.tokenizer, True, options.whole_documents)
        check_documents("--data", source, options.whole_documents)
        if peers.count > 1:  # before the devices are used: they wait for all processes
            text = case.forward_source(program, "jax")
            facts = facts_of(options, program_fingerprint(program), text, case, {"--data": source})
            check_same(peers.gather(facts))
        evaluation = DataEvaluation.of(source, options.batches, resizing, peers.index == 0)
        on_devices = evaluation.forward.on_devices
        params = on_devices.whole_params(on_devices.placed_params(options.seed, given))
        means = evaluation.means(params, Stop(peers=peers))
        if not means:
            raise UsageError(f"model {program.name} has no output with at most one dimension")
    summary = EvaluationSummary(means, case.name, dict(case.mesh.axes))
    return summary if peers.index == 0 else None
