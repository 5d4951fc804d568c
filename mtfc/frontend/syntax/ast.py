"""The nodes of the syntax tree of a .mtf file.

Nodes are immutable. Two nodes are equal if they have the same structure, wherever they are in the source. The tree has the text
as written, without its meaning: elaboration finds out if a name is a value, a dimension or a function, and if `x -> [a, b]` maps
a dimension or states the dimensions of a result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import ClassVar, Literal, Self, dataclass_transform

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.types import EVERY

UnaryOp = Literal["-", "not"]
BinaryOp = Literal["+", "-", "*", "/", "//", "@", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or"]


@dataclass_transform(frozen_default=True)
class Record:
    """Immutable data, as `attrs.frozen` makes it, in classes that cost nothing to define.

    `attrs` compiles methods for each class: for the sixty classes here it takes 30 ms, a fifth of a cold `mtfc check`.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    """The names of the fields, in the order of the arguments of the class."""

    def __init_subclass__(cls) -> None:
        cls.fields = (*cls.fields, *vars(cls).get("__annotations__", ()))

    def __init__(self, *values: object, **named: object) -> None:
        self.__dict__.update(zip(self.fields, values, strict=False), **named)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.fields)
        return f"{type(self).__name__}({shown})"

    def evolve(self, **changes: object) -> Self:
        """Return a copy with other values of some fields."""
        return type(self)(**{**self.__dict__, **changes})


class Node(Record):
    """Anything that stands somewhere in the source. Two nodes are equal if all fields but their spans are."""

    span: Span

    def structure(self) -> tuple[object, ...]:
        """Return the values of all fields but the span."""
        return tuple([getattr(self, name) for name in self.fields[1:]])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.structure() == other.structure()

    def __hash__(self) -> int:
        return hash((type(self), self.structure()))


OPTION = "<--set>"
"""The file of nodes that come from `--set`: see `option_overrides.py`."""


def is_override(node: Node) -> bool:
    """Return True if `--set` put this node into the tree."""
    return node.span.file == OPTION


# Expressions


class Int(Node):
    """`64`"""

    value: int


class Float(Node):
    """`0.1`, `1e-3`: finite."""

    value: float


class Bool(Node):
    """`true`, `false`"""

    value: bool


class Name(Node):
    """A plain name, whether declared here or used."""

    text: str


class Path(Node):
    """A name dotted through modules or scopes: `nn.softmax` is `("nn", "softmax")`."""

    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return ".".join(self.parts)


DimName = Name | Path
"""The name of a dimension of this file, or of a module or function: `common.batch`."""


class Unary(Node):
    op: UnaryOp
    operand: Expr


class Binary(Node):
    """Arithmetic, comparison or logic. Comparisons do not chain."""

    op: BinaryOp
    left: Expr
    right: Expr


class Ellipsis(Node):
    """`...` among dimensions: any further dimensions, the same ones wherever it appears in one signature."""


class DimList(Node):
    """`[batch, io]` or `[..., d_out]` as an argument."""

    dims: tuple[DimName | Ellipsis, ...]


class Tuple(Node):
    """`(1, 1)` as an argument."""

    items: tuple[Expr, ...]


class Arrow(Node):
    """`source -> target` as an argument: `length -> memory`, `height -> [out_h, k_h]`, or `x * w -> [batch]`.

    The first two map a dimension, and the last states the dimensions of the result. `f(a -> [b])` can be either: that depends on
    `f`.
    """

    source: Expr
    target: DimName | DimList


class Keyword(Node):
    """`over = [hidden]`"""

    name: Name
    value: Expr | DimList | Tuple


class DimBinding(Node):
    """`d_out = d_ff` between a call's square brackets."""

    generic: Name
    dim: DimName


class Call(Node):
    """`function[bindings](arguments, keywords) as scope sharing shared`"""

    function: Name | Path
    bindings: tuple[DimBinding, ...]
    arguments: tuple[Argument, ...]
    keywords: tuple[Keyword, ...]
    scope: Name | None
    shared: Name | None

    def split_result(self) -> tuple[tuple[Argument, ...], DimList | None]:
        """Return the arguments and the result's dimensions, reading a last `x -> [dims]` as argument `x` and result `[dims]`."""
        last = self.arguments[-1] if self.arguments else None
        if isinstance(last, Arrow) and isinstance(last.target, DimList):
            return (*self.arguments[:-1], last.source), last.target
        return self.arguments, None


Expr = Int | Float | Bool | Name | Path | Unary | Binary | Call
Argument = Expr | DimList | Tuple | Arrow


# Types


class Type(Node):
    """`f32[batch, io]`; `dtype` is None when left out. Any name is accepted as dtype here."""

    dtype: Name | None
    dims: tuple[DimName | Ellipsis, ...]


# Statements


class DimDecl(Node):
    """`dim hidden = 4 * io`, in a file or in a function."""

    name: Name
    size: Expr


class Broken(Node):
    """A statement or declaration with a syntax error that has been reported.

    `names` are the words in the text, `targets` the words that the text seems to bind.
    """

    names: frozenset[str]
    targets: frozenset[str] = frozenset()


class Assign(Node):
    """`h = expr`, or `values, indices = expr`."""

    targets: tuple[Name, ...]
    value: Expr


class Param(Node):
    """`param w: f32[io, hidden] = normal(stddev = 0.05)`"""

    name: Name
    type: Type
    init: Expr


class State(Node):
    """`state m = zeros_like(p)`, in an optimizer, or `state mean: [hidden] = 0`, in a model or a function."""

    name: Name
    type: Type | None
    value: Expr


class StateUpdate(Node):
    """`update mean = 0.9 * mean + 0.1 * m`, in a model or a function."""

    name: Name
    value: Expr


class Watch(Node):
    """`watch scores, h`, in a model or a function: values that are handed out beside the outputs."""

    values: tuple[Expr, ...]


class Return(Node):
    """`return y, loss`"""

    values: tuple[Expr, ...]


class Yield(Node):
    """`yield hs = h`, in a loop."""

    name: Name
    value: Expr


class SliceBinding(Node):
    """`x_t = x`: in each iteration of a loop, `x_t` is a slice of x."""

    name: Name
    source: Expr


class Repeat(Node):
    """`repeat layers checkpoint with k = keys { ... }`, `repeat steps while not done { ... }`"""

    dim: DimName
    checkpoint: bool
    slices: tuple[SliceBinding, ...]
    condition: Expr | None
    body: tuple[Statement, ...]


class Scan(Node):
    """`scan x_t = x, y_t = y along time { ... }`, `scan x_t = x along time while not done { ... }`"""

    slices: tuple[SliceBinding, ...]
    dim: DimName
    condition: Expr | None
    body: tuple[Statement, ...]


Statement = Assign | Param | State | StateUpdate | Watch | Return | Yield | Repeat | Scan | DimDecl | Broken


# Declarations


class ImportDecl(Node):
    """`import nn`"""

    name: Name


class MeshAxis(Node):
    """`rows: 2`"""

    name: Name
    size: Expr


class MeshDecl(Node):
    """`mesh grid = [rows: 2, cols: 4]`, the first axis most major."""

    name: Name
    axes: tuple[MeshAxis, ...]


class Every(Node):
    """`*` in place of a dimension: for each parameter, its largest dimension that divides evenly."""

    @property
    def text(self) -> str:
        return EVERY


class SplitRule(Node):
    """`batch: rows`, or `batch: (rows, cols)` with the most major axis first."""

    dim: DimName | Every
    axes: tuple[Name, ...]


class FormFigure(Node):
    """`flops_per_byte: 300`, in the section `forms` of a layout."""

    key: DimName
    number: Int | Float


class RuleSet(Node):
    """`{ d_model: rows }` after `params:` or `optimizer:`"""

    rules: tuple[SplitRule, ...]


class FormSet(Node):
    """`{ regions: time, dots: joined }` after `forms:`"""

    entries: tuple[SplitRule | FormFigure, ...]


class ValueRules(Node):
    """`value layers.ffn.h: { hidden: cols }`"""

    path: Name | Path
    rules: tuple[SplitRule, ...]


class Allow(Node):
    """`allow W601`, in a layout."""

    code: Name


class Degree(Node):
    """`batch: 2`"""

    dim: DimName
    parts: Expr


class PipelineRule(Node):
    """`pipeline layers checkpoint: { batch: 8 }`"""

    loop: DimName
    checkpoint: bool
    cuts: tuple[Degree, ...]


class PartRules(Node):
    """`part (embed, head) on front: { batch: all, params: { vocab: all } }`; `misplaced`: entries that only a layout has."""

    paths: tuple[Name | Path, ...]
    mesh: Name
    rules: tuple[SplitRule, ...]
    params: RuleSet | None
    optimizer: RuleSet | None
    values: tuple[ValueRules, ...]
    pipelines: tuple[PipelineRule, ...]
    misplaced: tuple[FormSet | PartRules | Allow, ...]


class LayoutDecl(Node):
    """`layout hybrid for net on grid = { batch: rows, params: { d_model: rows } }`; `models` is empty for all models."""

    name: Name
    models: tuple[Name, ...]
    mesh: Name | None
    rules: tuple[SplitRule, ...]
    params: RuleSet | None
    optimizer: RuleSet | None
    values: tuple[ValueRules, ...]
    pipelines: tuple[PipelineRule, ...]
    parts: tuple[PartRules, ...]
    forms: FormSet | None
    allows: tuple[Allow, ...]


class DeviceRange(Node):
    """`0..3`, the devices 0, 1, 2 and 3"""

    first: Int
    last: Int


class DevicesOfKind(Node):
    """`gpu[0..3, 6]`, devices of a kind by number"""

    kind: DimName
    numbers: tuple[Expr | DeviceRange, ...]


class DeviceList(Node):
    """`[cpu, gpu[0..3]]`, in a link."""

    devices: tuple[DeviceSet, ...]


class OperatorPlacement(Node):
    """`layers.h[0]: { batch: 2 } on [0, 1]`.

    indices: the iterations of the loops around the operator. devices: empty if a search is asked about all devices.
    """

    path: Name | Path
    indices: tuple[Expr, ...]
    degrees: tuple[Degree, ...]
    devices: tuple[DeviceSet, ...]


class PlacementDecl(Node):
    """`placement found on 4 = { conv1: { batch: 4 } on [0, 1, 2, 3] }`; `devices` is the number of devices, or a machine."""

    name: Name
    devices: Expr
    operators: tuple[OperatorPlacement, ...]


class HardwareFigures(Node):
    """`{ f32: 67e12, bf16: 989e12 }`, or a table by size: `{ 1e3: 2e9, 1e6: 40e9 }`"""

    entries: tuple[HardwareFigure, ...]


class HardwareFigure(Node):
    """`memory: 80e9`, `size: (4, 4)`, `flops: { bf16: 989e12 }`; in a table by size the key is a number."""

    key: Name | Int | Float
    value: Expr | Tuple | DeviceList | HardwareFigures


class DeviceDecl(Node):
    """`device gpu: { count: 4, flops: { f32: 10e12 }, memory: 16e9, bandwidth: 700e9 }`"""

    name: Name
    figures: tuple[HardwareFigure, ...]


class LinkDecl(Node):
    """`link nvlink: { kind: switch, size: 8, bandwidth: 450e9 }`"""

    name: Name
    figures: tuple[HardwareFigure, ...]


class HardwareDecl(Node):
    """`hardware h100 = { device: { ... }, link nvlink: { ... } }`, the innermost link first.

    devices: the kinds of devices of a device graph; empty for nested links.
    """

    name: Name
    figures: tuple[HardwareFigure, ...]
    devices: tuple[DeviceDecl, ...]
    links: tuple[LinkDecl, ...]


class Input(Node):
    """One input of a model: `x: f32[batch, io]`"""

    name: Name
    type: Type


class ModelDecl(Node):
    """`model two_layer(inputs) { ... }`"""

    name: Name
    inputs: tuple[Input, ...]
    body: tuple[Statement, ...]


class FnArg(Node):
    """One argument of a function or hyper-parameter of an optimizer: `x: [..., d]`, `eps = 1e-5`."""

    name: Name
    type: Type | None
    default: Expr | None


class FnDecl(Node):
    """`fn dense[d_in, d_out](x: [..., d_in]) -> [..., d_out] { ... }`; several results are in parentheses."""

    name: Name
    generics: tuple[Name, ...]
    args: tuple[FnArg, ...]
    results: tuple[Type, ...]
    body: tuple[Statement, ...]


class OptimizerDecl(Node):
    """`optimizer sgd(learning_rate = 0.1) (p, g) { ... }`; `pattern` is the type of its parameters, None for any type."""

    name: Name
    hypers: tuple[FnArg, ...]
    parameter: Name
    pattern: Type | None
    gradient: Name
    body: tuple[Statement, ...]


class PrecisionRule(Node):
    """`compute: bf16` or `loss_scale: 1024`"""

    use: Name
    value: Expr


class Precision(Node):
    """`{ params: f32, compute: bf16 }`"""

    rules: tuple[PrecisionRule, ...]


class Pattern(Node):
    """`"*.bias"`, a pattern that selects parameters by their full names."""

    text: str


class OptimizerFor(Node):
    """`optimizer for "*.bias", "*.scale" = sgd(learning_rate = 0.1)`"""

    patterns: tuple[Pattern, ...]
    optimizer: Expr


class Frozen(Node):
    """`frozen "embed.*"`"""

    patterns: tuple[Pattern, ...]


class TrainDecl(Node):
    """`train two_layer { minimize loss; optimizer = sgd(learning_rate = 0.1) }`.

    An entry that is left out is None. groups: the entries for some of the parameters, in order.
    """

    model: Name
    minimize: Name | None
    optimizer: Expr | None
    precision: Precision | None
    accumulate: Expr | None
    weigh_by: Expr | None
    clip: Expr | None
    average: Expr | None
    report: tuple[Name, ...] | None
    groups: tuple[OptimizerFor | Frozen, ...] = ()


DeviceSet = Expr | DeviceRange | DevicesOfKind
"""Devices in a list: one by number or by name, or several."""

Declaration = (
    ImportDecl
    | DimDecl
    | MeshDecl
    | LayoutDecl
    | PlacementDecl
    | HardwareDecl
    | ModelDecl
    | FnDecl
    | OptimizerDecl
    | TrainDecl
    | Broken
)


class File(Node):
    declarations: tuple[Declaration, ...]


def children(node: Node) -> Iterator[Node]:
    """Yield the child nodes, in the order of the fields."""
    for name in node.fields:
        value = getattr(node, name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Node))


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all its descendants."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += children(node)


# Names that statements bind. `dead` are the places of statements to leave out: see `unused_values.py`.


Places = Collection[Span]


def bound(statement: Statement, dead: Places = ()) -> Sequence[Name]:
    """Return the names that a statement binds in its body, those inside of loops too."""
    if statement.span in dead:
        return ()
    if isinstance(statement, Assign):
        return statement.targets
    if isinstance(statement, Param | State | Yield):
        return (statement.name,)
    if isinstance(statement, Repeat | Scan):
        inside = [name for inner in statement.body for name in bound(inner, dead)]
        return [*(each.name for each in statement.slices), *inside]
    return ()


def variables(given: Iterable[Name], statements: Iterable[Statement], dead: Places = ()) -> dict[str, Span]:
    """Return the names that a body binds, each with the first place."""
    places: dict[str, Span] = {}
    for name in (*given, *(name for each in statements for name in bound(each, dead))):
        places.setdefault(name.text, name.span)
    return places


def bound_inside(statements: Iterable[Statement], dead: Places = ()) -> Iterator[Name]:
    """Yield the names that a loop's body binds; yields of inner loops are included, the loop's own yields are not."""
    for statement in statements:
        if statement.span in dead:
            continue
        if isinstance(statement, Assign):
            yield from statement.targets
        elif isinstance(statement, Param | State):
            yield statement.name
        elif isinstance(statement, Repeat | Scan):
            slices = {each.name.text for each in statement.slices}
            inner = (*bound_inside(statement.body, dead), *yielded(statement, dead))
            yield from (name for name in inner if name.text not in slices)


def yielded(node: Repeat | Scan, dead: Places = ()) -> list[Name]:
    """Return the names that a loop yields."""
    return [each.name for each in node.body if isinstance(each, Yield) and each.span not in dead]
