"""Pipelines: the order of the passes, and the loop that runs them."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import attrs

from mtfc.compiler.activity import doing
from mtfc.compiler.diagnostics import did_you_mean
from mtfc.compiler.garbage import few_collections
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.compiler.ir.verifier import LEVELS, Level, Verifier
from mtfc.compiler.passes.autodiff.differentiate import Differentiate
from mtfc.compiler.passes.binarize_einsum import BinarizeEinsum
from mtfc.compiler.passes.bind_training import BindTraining
from mtfc.compiler.passes.cse import Cse
from mtfc.compiler.passes.dce import Dce
from mtfc.compiler.passes.factor_sums import FactorSums
from mtfc.compiler.passes.fuse_attention import FuseAttention
from mtfc.compiler.passes.join_dots import JoinDots
from mtfc.compiler.passes.mixed_precision import MixedPrecision
from mtfc.compiler.passes.partition.assign_layouts import AssignLayouts
from mtfc.compiler.passes.partition.combine_collectives import CombineCollectives
from mtfc.compiler.passes.partition.insert_reshards import InsertReshards
from mtfc.compiler.passes.partition.lower_collectives import LowerCollectives
from mtfc.compiler.passes.partition.place_reductions import PlaceReductions
from mtfc.compiler.passes.partition.propagate_layouts import PropagateLayouts
from mtfc.compiler.passes.partition.split_regions import SplitRegions
from mtfc.compiler.passes.partition.spread_attention import SpreadAttention
from mtfc.compiler.passes.pass_base import Pass, PipelineError
from mtfc.compiler.passes.pipeline_loops import PipelineLoops
from mtfc.compiler.passes.recompute import Recompute
from mtfc.compiler.passes.simplify import Simplify
from mtfc.compiler.passes.spatial.partition_spatial import PartitionSpatial
from mtfc.compiler.passes.spatial.spread_groups import SpreadGroups
from mtfc.compiler.passes.unroll_loops import UnrollLoops

Observer = Callable[[Pass, Program, float], None]
"""Called after each pass with the pass, the new program, and the seconds that the pass took."""

PASSES: dict[str, type[Pass]] = {
    cls.name: cls
    for cls in (
        FuseAttention,
        MixedPrecision,
        Differentiate,
        BindTraining,
        Simplify,
        FactorSums,
        Cse,
        Dce,
        PipelineLoops,
        SpreadGroups,
        PartitionSpatial,
        BinarizeEinsum,
        JoinDots,
        AssignLayouts,
        SpreadAttention,
        PropagateLayouts,
        SplitRegions,
        PlaceReductions,
        InsertReshards,
        LowerCollectives,
        CombineCollectives,
        UnrollLoops,
        Recompute,
    )
}


def simplification() -> tuple[Pass, ...]:
    """Return the passes for a model in training before differentiation; the `soap` space makes its operators from the result."""
    return (MixedPrecision(), BindTraining(training=True), Simplify(), Cse(), Dce())


def _differentiates(of: str) -> bool:
    """Return True if the functions that `of` names are gradients of programs that do not train, too."""
    return "gradients" in of.split("+")


def differentiation(of: str = "step") -> tuple[Pass, ...]:
    """Return the passes from the model to its gradients: `step`, `gradients`, `step+gradients`, or `module`."""
    added = map(Differentiate, of.split("+"))
    return (
        FuseAttention(gradients=not _differentiates(of)),
        MixedPrecision(),
        *added,
        BindTraining(),
        Simplify(),
        FactorSums(),
        Cse(),
        Dce(),
        PipelineLoops(),
        Cse(),
        Dce(),
    )


def preparation() -> tuple[Pass, ...]:
    """Return the last passes on a global program: its equations then get layouts."""
    return (SpreadGroups(), PartitionSpatial(), BinarizeEinsum(), JoinDots(), Simplify(), Cse(), Dce())


def layout_assignment() -> tuple[Pass, ...]:
    """Return the passes that give every equation a layout. Later passes read only these layouts."""
    return (*preparation(), AssignLayouts(), SpreadAttention(), PropagateLayouts(), SplitRegions())


def spmd_lowering() -> tuple[Pass, ...]:
    """Return the passes from equations with layouts to one processor's program with collectives."""
    return (
        PlaceReductions(),
        InsertReshards(),
        Cse(),
        Dce(),
        LowerCollectives(),
        CombineCollectives(),
        UnrollLoops(),
        Recompute(),
    )


def partitioning() -> tuple[Pass, ...]:
    """Return the passes from a global program to one processor's program."""
    return (*layout_assignment(), *spmd_lowering())


def layout_independent() -> tuple[Pass, ...]:
    """Return the first passes of partitioning, as far as their result is the same under every layout."""
    return (BinarizeEinsum(most=2), Simplify(), Cse(), Dce())


def default_pipeline(of: str = "step") -> tuple[Pass, ...]:
    return (*differentiation(of), *partitioning())


@few_collections()
def run(
    program: Program, passes: Iterable[Pass], observers: Sequence[Observer] = (), level: Level = "global"
) -> Program:
    """Run the passes in order, and verify the program after each.

    Raises `PipelineError` if a pass cannot run at the level of the program, and `VerifyError` if a pass breaks an invariant.
    """
    verifier = Verifier()
    for each in passes:
        if level not in each.takes:
            raise PipelineError(_out_of_order(each, level))
        start = time.perf_counter()
        with doing(each.name), _named(each):
            program = each.run(program)
            seconds = time.perf_counter() - start
            level = each.level or level
            if not isinstance(program, Program):
                raise TypeError(f"its `run` returns {type(program).__name__}, and not a program")
            verifier.check(program, level)
        for observe in observers:
            observe(each, program, seconds)
    return program


@contextmanager
def _named(own: Pass) -> Iterator[None]:
    """Note the name of a pass that is not the compiler's own on an error of it, or of the program that it returns."""
    try:
        yield
    except Exception as error:
        if type(own) not in PASSES.values():
            error.add_note(f"{OWN_PASS}{own.name}`")
        raise


OWN_PASS = "in the pass `"
"""The begin of the note on an error."""


def _out_of_order(wanted: Pass, level: Level) -> str:
    """Say which passes have to stand before or after a pass that cannot run at a level."""
    order = list(LEVELS)
    makers = {cls.level: name for name, cls in PASSES.items() if cls.level}
    if order.index(level) > order.index(wanted.takes[-1]):
        return f"`{wanted.name}` has to run before `{makers[order[order.index(wanted.takes[-1]) + 1]]}`"
    return f"`{wanted.name}` has to run after `{makers[wanted.takes[0]]}`"


def pipeline_of(passes: Sequence[Pass], of: str) -> tuple[Pass, ...]:
    """Return a pipeline that adds the functions that `of` names, in place of those that its `differentiate` adds."""
    found = tuple(
        attrs.evolve(each, gradients=False)
        if isinstance(each, FuseAttention) and _differentiates(of)
        else each
        for each in passes
        if not isinstance(each, Differentiate)
    )
    place = next((i for i, each in enumerate(passes) if isinstance(each, Differentiate)), None)
    return found if place is None else (*found[:place], *map(Differentiate, of.split("+")), *found[place:])


def check_order(passes: Iterable[Pass]) -> None:
    """Raise `PipelineError` unless the passes can run in this order on a global program, and lower it."""
    level: Level = "global"
    for each in passes:
        if level not in each.takes:
            raise PipelineError(_out_of_order(each, level))
        level = each.level or level
    if level != "lowered":
        raise PipelineError(f"the passes end with a program that is {level}, and it has to be lowered")


def lower(
    program: Program,
    mesh: Mesh | None,
    layout: Layout | None,
    of: str = "step",
    observers: Sequence[Observer] = (),
) -> Program:
    """Return the SPMD program of a model under a layout. `of` is `step`, `gradients`, or both, as for `differentiation`."""
    placed = attrs.evolve(program, mesh=mesh, layout=layout)
    return run(placed, default_pipeline(of), observers)


def within_memory(passes: Sequence[Pass], limited: Recompute) -> tuple[Pass, ...]:
    """Return a pipeline that recomputes within a memory limit, unless its text gives another limit."""
    found = passes if any(isinstance(each, Recompute) for each in passes) else (*passes, Recompute())
    word = limited.memory if isinstance(limited.memory, str) else ""
    changed: list[tuple[Pass, Pass]] = [(Recompute(), limited), (PipelineLoops(), PipelineLoops(keep=word))]
    return tuple(next((new for old, new in changed if each == old), each) for each in found)


_ITEM = re.compile(r"\s*([\w-]+)\s*(?:\{([^{}]*)\})?\s*(?:,|$)")


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Parse text such as `differentiate,combine-collectives{max_bytes=0}`. Raises `PipelineError`.

    `default` stands for all passes of the default pipeline, `differentiation` and `partitioning` for its halves. Their options
    are those of single passes, as in `default{spread-attention.form=ring}`.
    """
    passes: list[Pass] = []
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise PipelineError(f"expected a pass name at `{text[position:].strip()}`")
        if match[1] in GROUPS:
            passes += _parse_group(match[1], _options(match[2] or ""))
        else:
            found = PASSES.get(match[1]) or installed_pass(match[1])
            passes.append(found.with_options(_options(match[2] or "")))
        position = match.end()
    return tuple(passes)


GROUPS: dict[str, Callable[[], tuple[Pass, ...]]] = {
    "default": default_pipeline,
    "differentiation": differentiation,
    "partitioning": partitioning,
}

ENTRY_POINTS = "mtfc.passes"
"""The group of entry points under which other packages offer passes."""


def unknown_pass(name: str, known: Iterable[str]) -> str:
    """Return the message about a pass that does not exist."""
    names = list(known)
    return f"unknown pass `{name}`; {did_you_mean(name, names, 'the passes are ' + ', '.join(names))}"


def installed_pass(name: str) -> type[Pass]:
    """Return a pass that an installed package offers. It imports this package alone. Raises `PipelineError`."""
    from importlib.metadata import entry_points

    every = list(entry_points(group=ENTRY_POINTS))
    offers = {each.value: each for each in every if each.name == name}
    if not offers:
        known = dict.fromkeys((*PASSES, *sorted(each.name for each in every)))
        raise PipelineError(unknown_pass(name, known))
    if len(offers) > 1:
        raise PipelineError(f"several packages offer a pass `{name}`: {', '.join(offers)}")
    ((value, offer),) = offers.items()
    try:
        found = offer.load()
    except Exception as error:
        raise PipelineError(f"pass `{name}` of {value} cannot be imported: {error}") from None
    if not isinstance(found, type) or not issubclass(found, Pass):
        raise PipelineError(f"`{name}` of {value} is no class derived from `mtfc.ir.Pass`")
    return found


def _parse_group(name: str, options: dict[str, str]) -> list[Pass]:
    """Return the passes of a group. Each of the options belongs to one kind of pass, as in `spread-attention.form`."""
    own: dict[str, dict[str, str]] = {}
    for key, value in options.items():
        owner, _, option = key.rpartition(".")
        own.setdefault(owner, {})[option] = value
    passes = GROUPS[name]()
    unknown = next((owner for owner in own if owner not in {each.name for each in passes}), None)
    if unknown is not None:
        wanted = (
            f"has no pass `{unknown}`" if unknown else "takes options such as `spread-attention.form=ring`"
        )
        raise PipelineError(f"`{name}` {wanted}")
    return [each.changed(own.get(each.name, {})) for each in passes]


def _options(text: str) -> dict[str, str]:
    """Return the options in a text such as `form=ring, least=64`."""
    pairs = [option.partition("=") for option in text.split(",") if option.strip()]
    options = {key.strip(): value.strip() for key, _, value in pairs}
    if len(options) < len(pairs):
        raise PipelineError(f"an option is there twice in `{text.strip()}`")
    return options
