"""Resolve the pipelines of a layout, and check that the loops of a program can run so."""

from collections.abc import Iterator, Mapping, Sequence

from mtfc.compiler.diagnostics import Diagnostic, Label, Span
from mtfc.compiler.ir.core import Equation
from mtfc.compiler.ir.loops import dim_of, has_condition
from mtfc.compiler.ir.micro_batch_rule import MixedMicroBatches, loop_sums, takes_batch
from mtfc.compiler.ir.types import Axes, Dim, Mesh, Pipeline
from mtfc.compiler.records import frozen
from mtfc.frontend.layouts.program_index import ProgramIndex, in_main_file
from mtfc.frontend.semantics.names.constants import integer
from mtfc.frontend.semantics.names.scope import Scope
from mtfc.frontend.syntax import ast


@frozen
class DeclaredPipeline:
    """A pipeline and its place. `batch` is the dimension that is cut into micro-batches."""

    pipeline: Pipeline
    batch: Dim
    span: Span


def resolve_pipelines(
    rules: Sequence[ast.PipelineRule], split: Mapping[str, Axes], mesh: Mesh, scope: Scope
) -> tuple[DeclaredPipeline, ...]:
    """Return the pipelines of a layout; `split` has the axes of each dimension. Wrong ones are reported and left out."""
    places: dict[str, Span] = {}
    found = []
    for rule in rules:
        loop = scope.dim(rule.loop, "E303")
        if loop is None:
            continue
        name, message = ast.Name(rule.loop.span, loop.name), f"`{rule.loop.text}` has two pipelines"
        if scope.is_first(name, places, "E309", message, "first pipeline"):
            each = _resolved(rule, loop, split, mesh, scope)
            found += [each] if each else []
    return tuple(found)


def _resolved(
    rule: ast.PipelineRule, loop: Dim, split: Mapping[str, Axes], mesh: Mesh, scope: Scope
) -> DeclaredPipeline | None:
    """Return a declared pipeline; None, with a diagnostic (E322), if it is wrong.

    split: dimension -> the axes that split it.
    """
    example = f"`pipeline {rule.loop.text}: {{ batch: 8 }}` cuts `batch` into 8 micro-batches"
    if loop.name not in split:
        message = f"the layout does not split `{rule.loop.text}`, so the pipeline has no stages"
        help = f"add a rule such as `{rule.loop.text}: {next(iter(mesh.names), 'stages')}`"
        return scope.refuse("E322", message, rule.loop.span, help=help)
    layers = [cut for cut in rule.cuts if cut.dim.text == rule.loop.text]
    batches = [cut for cut in rule.cuts if cut not in layers]
    if len(batches) != 1 or len(layers) > 1:
        message = f"a pipeline cuts one dimension into micro-batches, and this one names {len(batches)}"
        if layers and not batches:
            message = (
                f"the pipeline runs along `{loop.name}`, and micro-batches are parts of another dimension"
            )
        elif len(layers) > 1:
            message = f"the pipeline says {len(layers)} times into how many chunks it cuts `{loop.name}`"
        return scope.refuse("E322", message, layers[-1].span if layers else rule.span, help=example)
    (cut,) = batches
    batch, number = scope.dim(cut.dim, "E303"), integer(cut.parts, scope)
    chunks = integer(layers[0].parts, scope) if layers else 1
    if batch is None or number is None or chunks is None:
        return None
    axes = tuple(axis for axis in split.get(batch.name, ()) if axis not in split[loop.name])
    error = _error_of_cut(cut, batch, number, mesh, axes)
    if error is not None:
        return scope.refuse("E322", error, cut.span, help=example if number < 1 else None)
    pipeline = Pipeline(loop.name, batch.name, number, rule.checkpoint, chunks)
    stages = mesh.size(split[loop.name])
    error = _error_of_chunks(pipeline, loop, stages)
    if error is not None:
        help = f"`{{ {batch.name}: {stages}, {loop.name}: 2 }}` gives each stage 2 chunks of `{loop.name}`"
        return scope.refuse("E322", error, layers[0].span, help=help)
    if chunks > 1 and number % stages:
        message = f"{number} micro-batches cannot go around {stages} stages {chunks} times: they go in rounds of {stages}"
        return scope.refuse(
            "E322", message, cut.span, help=f"cut `{batch.name}` into a multiple of {stages} micro-batches"
        )
    return DeclaredPipeline(pipeline, batch, rule.span)


def _error_of_chunks(pipeline: Pipeline, loop: Dim, stages: int) -> str | None:
    """Return the error in an entry such as `layers: 2`, for the chunks of each stage."""
    chunks = pipeline.chunks
    if chunks < 1:
        return f"a stage cannot hold {chunks} chunks of `{loop.name}`"
    if chunks > 1 and loop.size % (stages * chunks):
        return f"`{loop.name}` has size {loop.size}, which cannot be cut evenly into {chunks} chunks on each of {stages} stages"
    return None


def _error_of_cut(cut: ast.Degree, batch: Dim, number: int, mesh: Mesh, axes: Axes) -> str | None:
    """Return why a batch cannot be cut into micro-batches; None if it can.

    axes: the axes that split the batch beside the stages.
    """
    name = cut.dim.text
    if number < 1:
        return f"`{name}` cannot be cut into {number} micro-batches"
    if batch.size % number:
        return f"`{name}` has size {batch.size}, which cannot be cut evenly into {number} micro-batches"
    if batch.size // number % mesh.size(axes):
        over = " and ".join(f"`{axis}` ({mesh.sizes[axis]})" for axis in axes)
        size = batch.size // number
        return f"a micro-batch has {size} of the {batch.size} elements of `{name}`, which cannot be split evenly over {over}"
    return None


def pipeline_errors(facts: ProgramIndex, pipelines: Sequence[DeclaredPipeline]) -> Iterator[Diagnostic]:
    """Yield E323 for loops whose iterations need all micro-batches at once, and E322 for loops that data may end."""
    for declared in pipelines:
        for eqn in _loops(facts, declared):
            if has_condition(eqn):
                span = in_main_file(eqn.span) if eqn.span else declared.span
                labels = (Label(declared.span, "the pipeline"),)
                help = "all stages of a pipeline run for each micro-batch: leave the condition out"
                yield Diagnostic("E322", "a loop with `while` cannot be a pipeline", span, labels, help)
            elif takes_batch(eqn, declared.batch):
                yield from _mixing(eqn, declared)


def absent_loops(
    programs: Sequence[ProgramIndex], pipelines: Sequence[DeclaredPipeline]
) -> Iterator[Diagnostic]:
    """Yield E322 for pipelines that no model has a loop for."""
    for declared in pipelines if programs else ():
        loop, batch = declared.pipeline.loop, declared.batch
        loops = [eqn for each in programs for eqn in _loops(each, declared)]
        if not loops:
            help = f"a pipeline is a loop, such as `repeat {loop}`"
            yield Diagnostic("E322", f"no model has a loop along `{loop}`", declared.span, help=help)
        elif not any(takes_batch(eqn, batch) for eqn in loops):
            places = tuple(Label(in_main_file(eqn.span), "this loop") for eqn in loops if eqn.span)
            message = f"no value that the loop along `{loop}` takes or gives has the dimension `{batch.name}`"
            help = "cut the dimension of the batch into micro-batches"
            yield Diagnostic("E322", message, declared.span, places[:1], help)


def _loops(facts: ProgramIndex, declared: DeclaredPipeline) -> list[Equation]:
    return [eqn for eqn in facts.loops if dim_of(eqn).name == declared.pipeline.loop]


def _mixing(eqn: Equation, declared: DeclaredPipeline) -> Iterator[Diagnostic]:
    """Yield E323 if a loop's iterations need several micro-batches at once."""
    try:
        loop_sums(eqn, declared.batch)
    except MixedMicroBatches as error:
        help = "a pipeline computes each micro-batch by itself; only a sum over the batch may leave the loop, or a mean"
        span = in_main_file(error.eqn.span) if error.eqn.span else declared.span
        labels = (Label(declared.span, f"`{declared.batch.name}` is cut into micro-batches here"),)
        yield Diagnostic("E323", error.message, span, labels, help)
