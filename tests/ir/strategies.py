"""Random IR: everything that the text can say. Operands and attributes are as the ops state; types fit or not."""

from collections.abc import Mapping
from typing import Any, get_args

import attrs
from hypothesis import strategies as st

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir import attributes as kinds
from mtfc.compiler.ir.attributes import INTEGER_RANGE, Kind, value_error
from mtfc.compiler.ir.core import (
    Argument,
    Attr,
    Equation,
    Function,
    Initializer,
    LossScale,
    Output,
    Parameter,
    Program,
    Role,
    Training,
    Update,
    Value,
)
from mtfc.compiler.ir.loops import LOOP, LOOP_ATTRIBUTES
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import EVERY, FLOATS, ITEM_BYTES, Dim, Layout, Mesh, Rules, TensorType

# Names that are also words of the text, or values of it.
ODD_NAMES = (
    "at", "as", "inf", "nan", "true", "false", "value", "params", "optimizer", "layout", "output", "input", "max",
)  # fmt: skip
DIMS = tuple(Dim(name, 2 + i) for i, name in enumerate((*ODD_NAMES, "batch", "io", "d_model")))
AXES = ("rows", "cols", "none", "step")
WITHOUT_OPERANDS = ("constant", "full", "uniform", "range", "training")
CHOSEN = (
    *WITHOUT_OPERANDS,
    "einsum",
    "all_reduce",
    "reshard",
    "all_gather",
    "top_k",
    "and",
    "is_argmax",
    "rename",
    "window",
)
CHOSEN_OR_LOOP = (*CHOSEN, "shift_shards", "concat", "cumsum", "cast", "bernoulli", LOOP)

names = st.sampled_from([*ODD_NAMES, "h", "layers.ffn.wi", "batch:rows;hidden:cols"])
numbers = st.one_of(st.integers(-(10**9), 10**9), st.floats())
axes_tuples = st.lists(st.sampled_from(AXES), unique=True, max_size=3).map(tuple)
dims_tuples = st.lists(st.sampled_from(DIMS), unique=True, max_size=3).map(tuple)
positions = st.integers(1, 99)
places = st.builds(
    Span, st.sampled_from(["a.mtf", "lib/nn.mtf", 'quote".mtf']), positions, positions, positions, positions
)
spans = st.none() | places | st.builds(lambda place, call: attrs.evolve(place, call=call), places, places)
layouts = st.none() | st.dictionaries(st.sampled_from([d.name for d in DIMS]), axes_tuples, max_size=3)
rules = st.dictionaries(names, axes_tuples, max_size=2).map(lambda d: Rules(tuple(d.items())))
stored = st.dictionaries(names | st.just(EVERY), axes_tuples, max_size=2).map(
    lambda d: Rules(tuple(d.items()))
)
settings_tuples = st.dictionaries(names, numbers, max_size=2).map(lambda d: tuple(d.items()))
some_axes = axes_tuples.filter(bool)
mappings = st.lists(
    st.tuples(st.sampled_from(DIMS), st.sampled_from(DIMS)), max_size=2, unique_by=lambda pair: pair[0]
).map(tuple)
KINDS: Mapping[Kind[Any], st.SearchStrategy[Any]] = {
    kinds.FLAG: st.booleans(),
    kinds.INT: st.integers(-(10**9), 10**9),
    kinds.REAL: numbers,
    kinds.NUMBER: numbers,
    kinds.TEXT: st.text().filter(kinds.TEXT.accepts),
    kinds.DTYPE: st.sampled_from(sorted(ITEM_BYTES)),
    kinds.DIM: st.sampled_from(DIMS),
    kinds.DIM_LIST: st.lists(st.sampled_from(DIMS), max_size=3).map(tuple),
    kinds.DIMS: dims_tuples,
    kinds.DIM_SET: dims_tuples,
    kinds.AXES: some_axes,
    kinds.AXIS_SET: some_axes,
    kinds.MAPPING: mappings,
}
"""Kind of attribute -> values of it."""


WITH_CONSTANTS = FLOATS | INTEGER_RANGE.keys() | {"bool"}


def elements(dtype: str) -> st.SearchStrategy[Any]:
    """Draw constants of a dtype."""
    if dtype == "bool":
        return st.booleans()
    return numbers.filter(lambda value: value_error(value, dtype) is None)


@st.composite
def attributes_of(draw: Any, op: str) -> dict[str, Attr]:
    """Draw attributes of the kinds that an op states."""
    stated = LOOP_ATTRIBUTES if op == LOOP else OPS[op].attributes
    found = {a.name: draw(KINDS[a.kind]) for a in stated if not a.optional or draw(st.booleans())}
    if {"value", "dtype"} <= found.keys():
        found["dtype"] = draw(st.sampled_from(sorted(WITH_CONSTANTS)))
        found["value"] = draw(elements(found["dtype"]))
    return found


@st.composite
def types(draw: Any) -> TensorType:
    dims = draw(dims_tuples)
    splits = tuple(draw(axes_tuples) for _ in dims)
    pending = draw(axes_tuples)
    reduction = draw(st.sampled_from(["sum", "max", "min"])) if pending else "sum"
    return TensorType(draw(st.sampled_from(["f32", "bool"])), dims, splits, pending, reduction)


class _Scope:
    """The values that a later equation may use, and a counter for their names."""

    def __init__(self) -> None:
        self.values: list[Value] = []

    def define(self, draw: Any) -> Value:
        self.values.append(
            Value(f"{draw(st.sampled_from(['h', 'w.velocity', '7']))}_{len(self.values)}", draw(types()))
        )
        return self.values[-1]

    def use(self, draw: Any, least: int = 0, most: int = 3) -> tuple[Value, ...]:
        if not self.values:
            return ()
        return tuple(draw(st.lists(st.sampled_from(self.values), min_size=least, max_size=most)))


def _equation(draw: Any, scope: _Scope, depth: int) -> Equation:
    op = draw(st.sampled_from(CHOSEN_OR_LOOP if scope.values else WITHOUT_OPERANDS))
    least, *more = (0, None) if op == LOOP else OPS[op].arity
    operands = scope.use(draw, least, 3 if more else least)
    regions = [_function(draw, depth + 1) for _ in range(draw(st.integers(0, 2 if depth < 2 else 0)))]
    return Equation(
        op,
        operands,
        tuple(scope.define(draw) for _ in range(draw(st.integers(1, 2)))),
        draw(attributes_of(op)),
        tuple(regions),
        draw(spans),
        draw(st.sampled_from(["forward", "backward", "update"])),
        draw(st.none() | names),
        draw(layouts),
    )


def _body(draw: Any, scope: _Scope, depth: int) -> tuple[Equation, ...]:
    return tuple(_equation(draw, scope, depth) for _ in range(draw(st.integers(0, 3))))


@st.composite
def functions(draw: Any) -> Function:
    return _function(draw, 0)


def _function(draw: Any, depth: int) -> Function:
    """Draw a function, or a region that is nested `depth` deep in one."""
    scope = _Scope()
    roles = draw(st.lists(st.sampled_from(get_args(Role)), max_size=2))
    arguments = tuple(Argument(scope.define(draw), role, draw(spans), draw(layouts)) for role in roles)
    body = _body(draw, scope, depth)
    outputs = tuple(Output(draw(names), v, draw(st.none() | names), draw(layouts)) for v in scope.use(draw))
    return Function(draw(names), arguments, body, outputs)


@st.composite
def updates(draw: Any) -> Update:
    """Draw an optimizer's function, whose states start at any number."""
    found = _function(draw, 0)
    arguments = tuple(attrs.evolve(argument, initial=draw(st.floats(-2, 2))) for argument in found.arguments)
    return Update(
        tuple(draw(st.lists(names, min_size=1, max_size=2))), attrs.evolve(found, arguments=arguments)
    )


parameters = st.builds(Parameter, names, types(), st.builds(Initializer, names, settings_tuples), spans)
program_layouts = st.builds(
    Layout, names, rules, stored, stored, st.lists(st.tuples(names, rules), max_size=2).map(tuple)
)
trainings = st.builds(
    Training,
    minimize=names,
    updates=st.lists(updates(), max_size=1).map(tuple),
    precision=st.none() | st.just(("f32", "bf16")),
    clip=st.none() | numbers,
    accumulate=st.integers(1, 3),
    span=spans,
    report=st.lists(names, max_size=2).map(tuple),
    learning_rate=st.none() | functions(),
    reduce=st.none() | st.just("f32"),
    loss_scale=st.none() | st.builds(LossScale, numbers, st.booleans()),
)


@st.composite
def programs(draw: Any) -> Program:
    return Program(
        draw(names),
        {dim.name: dim for dim in DIMS},
        tuple(draw(st.lists(parameters, max_size=2))),
        tuple(draw(st.lists(functions(), max_size=2))),
        draw(st.none() | trainings),
        draw(st.none() | st.just(Mesh("grid", tuple((axis, 2) for axis in AXES)))),
        draw(st.none() | program_layouts),
    )
