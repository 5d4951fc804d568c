"""The records that the API returns, and that the command prints with `--format json`.

Figures are of one device: seconds, bytes, FLOPs. Keys may be added in later versions, not changed; `docs/command.md` lists them.
"""

from typing import Any, NotRequired, TypedDict


class Place(TypedDict):
    """A line of a file; None for an equation that the compiler added."""

    file: str | None
    line: int | None


class MeshLayout(TypedDict):
    """The name of a layout, and the sizes of its mesh by axis."""

    layout: str
    mesh: dict[str, int]


class Sent(TypedDict):
    """Collectives of one kind: their number, and the size of one device's operands."""

    count: int
    elements_per_device: int
    bytes_per_device: int
    wire_bytes_per_device: float


class Totals(TypedDict):
    """A function's computation and communication; `collectives` has every kind, such as `all_reduce`."""

    flops_per_device: int
    wire_bytes_per_device: float
    collectives: dict[str, Sent]


class PipelineFigures(TypedDict):
    """A loop that runs as a pipeline. kept_bytes: bytes that a device keeps for the backward pass."""

    line: int | None
    loop: str
    stages: int
    micro_batches: int
    chunks: int
    ticks: int
    kept_bytes: int


class LoopEndedByData(Place):
    """A loop whose number of iterations is unknown, and the number that all figures count."""

    counted_iterations: int


class LayoutCost(MeshLayout):
    """The cost of a model under one layout. A model that is not trained has the figures of `forward` as `step`, too.

    memory_per_device: `parameters`, `gradients`, `optimizer`, `activations_peak` and `total`.
    """

    devices: int
    forward: Totals
    step: Totals
    memory_per_device: dict[str, int]
    pipelines: list[PipelineFigures]
    loops_ended_by_data: list[LoopEndedByData]
    formulas: NotRequired[dict[str, Any]]


class Costs(TypedDict):
    """`mtfc.cost`: a model under each of its layouts."""

    model: str
    layouts: list[LayoutCost]


class Cause(Place):
    """A rule that leads to a collective, the dimension that the rule splits, and a description of the line."""

    rule: str
    dim: str
    what: str


class Collective(Place):
    """An array that is sent `count` times in a step.

    The place is the line that computes the array; `used` is the line that needs the array.
    """

    kind: str
    axes: list[str]
    bytes_per_device: int
    count: int
    stage: str
    used: Place
    causes: list[Cause]


class SeparateAttention(Place):
    """A softmax between two dots that is not one op, and why."""

    why: str


class AttentionWithoutKernel(Place):
    """Attention that JAX computes in blocks on this kind of device, `TPU` or `GPU`, and why."""

    device: str
    why: str


class Explanation(MeshLayout):
    """`mtfc.explain`: the collectives of a layout and their causes."""

    model: str
    collectives: list[Collective]
    separate_attention: list[SeparateAttention]
    attention_without_kernel: list[AttentionWithoutKernel]


class Pairs(TypedDict):
    """Figures of one device in pairs, under the first layout and under the second; `seconds` are present with a machine."""

    seconds: NotRequired[list[float]]
    flops_per_device: list[float]
    bytes_per_device: list[float]
    memory_per_device: list[float]


class LineDifference(Pairs, Place):
    """A line's figures under two layouts."""

    stored: list[float]


class Difference(Pairs):
    """`mtfc.diff`: the figures of a step under two layouts, and those of its lines.

    Figures of a layout of several meshes are means of all devices. `bytes_between_meshes` are those of all devices together.
    """

    model: str
    layouts: list[str]
    peak_figures: NotRequired[bool]
    bytes_between_meshes: list[int]
    lines: list[LineDifference]


class ComparedArray(TypedDict):
    """An array of a layout beside the undistributed one; see `docs/command.md`."""

    error: float | None
    scale: float
    bound: float | None
    fault: str | None


class ComparedParts(TypedDict):
    """Arrays by name. training: parameters, optimizer state and reports after three steps."""

    outputs: dict[str, ComparedArray]
    gradients: dict[str, ComparedArray]
    parameters: dict[str, ComparedArray]
    training: dict[str, ComparedArray]


class SpecialNumbers(TypedDict):
    """The number of draws with special numbers, and the comparisons of those with a fault."""

    draws: int
    wrong: dict[str, ComparedParts]


class CheckRecord(TypedDict):
    """The result of a check of a model, or the reason why there is none: a failure is a fault."""

    model: str
    ok: bool
    skipped: str | None
    failed: str | None
    wrong: list[str]


class Case(CheckRecord, ComparedParts):
    """A layout on a backend, in the dtypes of the file. f64: the same in f64."""

    layout: str
    mesh: dict[str, int]
    backend: str
    not_finite: list[str]
    f64: ComparedParts
    special: SpecialNumbers


class ExactRecord(CheckRecord):
    """The exact check of a layout, or of the gradients of the undistributed program: see `verification/results.py`."""

    layout: str
    wrong_gradients: list[str]
    elements: int
    not_judged: int
    unsure: dict[str, int]
    computed: int
    cut_loops: int
    unjudged: list[str]


class StepRecord(CheckRecord):
    """The training step of a model beside its `train` block.

    not_checked: the parts without a definition, or that no step shows.
    """

    not_checked: list[str]
    arrays: dict[str, ComparedArray]


class SizesRecord(TypedDict):
    """The exact check of a layout for every size. sizes: dimension or mesh axis -> `size`, `multiple` and the `small` sizes."""

    layout: str
    model: str
    ok: bool
    wrong: list[str]
    unproven: str | None
    elements: int
    not_judged: int
    sizes: dict[str, dict[str, Any]]


class Verification(TypedDict):
    """`mtfc.verify`: all cases; `ok` is True if all agree. jax_gradients: the reference's gradients beside `jax.grad`.

    exact: the results of the exact check. steps: training steps beside their declarations. without_numbers: the results that are
    NaN or infinite wholly. all_sizes: the results of the check for every size, which is run alone.
    """

    ok: bool
    jax_gradients: dict[str, dict[str, ComparedArray]]
    cases: list[Case]
    exact: list[ExactRecord]
    without_numbers: list[str]
    steps: list[StepRecord]
    all_sizes: NotRequired[list[SizesRecord]]


class StepLine(Place):
    """The time of a line of the file."""

    compute_seconds: float
    communication_seconds: float
    exposed_communication_seconds: float


class Step(MeshLayout):
    """`Compiled.simulate`: a step on a machine. links: seconds of use of each link. fits: True if memory suffices.

    peak_figures: True if the machine has peak figures only; small steps then take far longer than predicted.
    """

    model: str
    target: str
    devices: int
    peak_figures: bool
    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    exposed_communication_seconds: float
    utilisation: float
    links: dict[str, float]
    memory_per_device: dict[str, int]
    memory_of_device: int
    fits: bool
    lines: list[StepLine]


class WithoutForms(MeshLayout):
    """The best layout without forms that a search found, and its bound."""

    objective_seconds: float | None
    objective_bytes: int | None
    lower_bound_seconds: float | None
    lower_bound_bytes: int | None
    optimal: bool


class Alternative(MeshLayout):
    """The best plan of another kind than the one that a search found."""

    step_seconds: float
    compute_seconds: float
    memory_per_device: int


class PlacedLayout(MeshLayout):
    """The best placement that is also a layout: its seconds as a placement, and as `mtfc simulate` shows the layout."""

    placed_seconds: float
    step_seconds: float


class Search(MeshLayout):
    """`mtfc.search`: the best layout on a machine, or with `space="soap"` the best placement, whose mesh is empty.

    layout: rules, or the placement's declaration. optimal: True if nothing in the space is better. ending: `complete`, `time` or
    `interrupted`. gap: the part by which the result is at most above the best; None if nothing is proven. lower_bound_seconds: no
    layout of the space takes less. baselines: the seconds of the layouts to compare with. Optional keys belong to layouts
    alone, or to placements alone. utilisation: the share of the peak FLOP/s. memory: bytes of a device by kind. links: seconds
    of each link. link_bytes: bytes that a device sends on it. bubbles: the share of the time in which a device of each pipeline
    is idle. fewer_devices: the devices that a plan with idle ones needs, and its step there. what_if: the plans of `--what-if`.
    alternatives: the best plans of other kinds, the best first. forms: the entries of the layout's section `forms`.
    without_forms: for a layout with forms, the best layout without them and its bound; the other bound is then that of all plans.
    """

    space: str
    target: str
    devices: int
    peak_figures: bool
    objective: NotRequired[str]
    objective_seconds: float
    lower_bound_seconds: float | None
    lower_bound_bytes: NotRequired[int | None]
    objective_bytes: NotRequired[int | None]
    optimal: bool
    ending: str
    gap: float | None
    locally_optimal: NotRequired[bool]
    strategies: NotRequired[int | None]
    evaluated: int
    search_seconds: float
    forms: NotRequired[dict[str, str | int]]
    without_forms: NotRequired[WithoutForms]
    compute_seconds: NotRequired[float]
    communication_seconds: NotRequired[float]
    bytes_sent: NotRequired[int]
    memory_per_device: int
    recomputed: NotRequired[bool]
    baselines: dict[str, float | None]
    bytes_after_cuts: NotRequired[list[int]]
    restricted_to: NotRequired[str | None]
    best_layout: NotRequired[PlacedLayout]
    history: NotRequired[list[dict[str, float]]]
    overlapping_seconds: NotRequired[float]
    nothing_split: NotRequired[str | None]
    fewer_devices: NotRequired[dict[str, float]]
    utilisation: NotRequired[float]
    examples_per_second: NotRequired[float]
    tokens_per_second: NotRequired[float]
    memory: NotRequired[dict[str, int]]
    links: NotRequired[dict[str, float]]
    link_bytes: NotRequired[dict[str, int]]
    bubbles: NotRequired[dict[str, float]]
    what_if: NotRequired[list[dict[str, Any]]]
    alternatives: NotRequired[list[Alternative]]
    overlapping_baselines: NotRequired[dict[str, float]]
