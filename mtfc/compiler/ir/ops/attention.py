"""`attention`: a softmax between two dots, whose weights are never stored (Dao et al., FlashAttention, 2022, section 3.1).

The logits are the product of queries and keys, changed in this order: a soft cap, biases, masks. Their dimensions are those of
queries and keys without `depth`. The softmax is over the dimensions `memory`. Attributes:

- `roles`: a word for each operand behind q, k and v. `bias`: is added to the logits. `mask`: tells which logits count. `ids`: two
  operands in a row, whose equal elements count; `same_ids` says that both are one sequence, so that each query sees a key.
  `keep`: tells which weights stay, as dropout has it; the others become 0, and count in the softmax all the same.
- `rows`, `columns`, `low`, `high`: a logit counts if its row minus its column is at least `low` and at most `high`. Row and
  column are indices along these dimensions, the first most major. So a causal mask is `low=0`.
- `fill`: the number in the place of logits that do not count. `cap`: the soft cap.
- `part`: the keys are a part of those that a query attends to. So a query whose logits here are all minus infinity has `total` 0
  and no NaN: another part may have a key for it.

Two further results have a number for each query, in 32 bits or more: `largest`, which the logits are shifted by, and `total`, the
sum of the exponentials of what is left. The gradients compute the weights again from them, `exp(logit - largest) / total`, and
shards of `memory` may be computed apart and merged by them. Only ops of this file read them: a backend may shift by any number.
Under the exact check the shift is 0, because exp(x - y) is not exp(x) / exp(y) there: see `backends/exact/namespace.py`.
"""

from collections.abc import Callable, Container, Sequence
from functools import partial
from string import ascii_letters
from typing import Any

import attrs

from mtfc.compiler.ir.attributes import DIM_SET, DIMS, FLAG, INT, REAL, TEXT, Attribute
from mtfc.compiler.ir.core import Equation, Value
from mtfc.compiler.ir.opdef import (
    Attrs,
    BlockRewriter,
    Code,
    Infer,
    LayoutRule,
    OpBuilder,
    OpDef,
    OpError,
    Shard,
    Sizes,
    Split,
)
from mtfc.compiler.ir.ops.contraction import iteration_dims, letters_of, points_of
from mtfc.compiler.ir.ops.creation import literal
from mtfc.compiler.ir.ops.elementwise import align, check_dtypes, dims_text, numpy_dtype
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType
from mtfc.compiler.records import frozen

DEPTH, MEMORY = Attribute("depth", DIM_SET), Attribute("memory", DIM_SET)
RESULT_DIMS, ROLES = Attribute("dims", DIMS), Attribute("roles", TEXT)
ROWS, COLUMNS = Attribute("rows", DIMS), Attribute("columns", DIMS)
LOW, HIGH = Attribute("low", INT, optional=True), Attribute("high", INT, optional=True)
FILL, CAP = Attribute("fill", REAL), Attribute("cap", REAL, optional=True)
OPERAND = Attribute("operand", INT)
PART = Attribute("part", FLAG, optional=True)

ATTRIBUTES = (DEPTH, MEMORY, RESULT_DIMS, ROLES, ROWS, COLUMNS, LOW, HIGH, FILL, CAP)

OPERANDS = {"bias": 1, "mask": 1, "ids": 2, "same_ids": 2, "keep": 1}
"""Role -> the number of operands."""

DTYPES = {
    **dict.fromkeys(("mask", "keep"), frozenset({"bool"})),
    **dict.fromkeys(("ids", "same_ids"), frozenset({"i32"})),
}
"""Role -> the dtypes of its operands, if they are no floats."""

WIDE = {"f16": "f32", "bf16": "f32"}
"""Dtype -> the dtype of `largest` and `total`."""


def roles_of(attributes: Attrs) -> list[str]:
    """Return the role of each operand behind q, k and v."""
    return [role for role in ROLES.of(attributes).split() for _ in range(OPERANDS[role])]


def logits_dims(eqn: Equation) -> tuple[Dim, ...]:
    """Return the dimensions of the logits, those of `memory` last."""
    return _logits(eqn.operands[0].type, eqn.operands[1].type, eqn.attrs)


def _logits(q: TensorType, k: TensorType, attributes: Attrs) -> tuple[Dim, ...]:
    """Return the dimensions of the logits: those of queries and keys but for the depth, the keys' own last."""
    memory = tuple(dim for dim in k.dims if dim in MEMORY.of(attributes))
    rest = dict.fromkeys(dim for dim in (*q.dims, *k.dims) if dim not in (*memory, *DEPTH.of(attributes)))
    return (*rest, *memory)


def value_dims(eqn: Equation) -> tuple[Dim, ...]:
    """Return the dimensions that only the values and the result have."""
    return tuple(dim for dim in eqn.operands[2].type.dims if dim not in logits_dims(eqn))


def _check(types: Sequence[TensorType], attributes: Attrs) -> None:
    """Raise `OpError` unless the operands in front of any gradients' fit."""
    q, k, v, *others = types
    check_dtypes((q, k, v), FLOATS)
    depth, memory, dims = DEPTH.of(attributes), MEMORY.of(attributes), RESULT_DIMS.of(attributes)
    logits = _logits(q, k, attributes)
    if not {*depth} <= {*q.dims} & {*k.dims} or not {*memory} <= {*k.dims} & {*v.dims} - {*q.dims}:
        raise OpError(f"attention over {dims_text(memory)} of {dims_text(q.dims)} and {dims_text(k.dims)}")
    if {*dims} != ({*logits} | {*v.dims}) - {*memory} or {*k.dims} - {*depth} != {*v.dims} & {*logits}:
        raise OpError(f"attention to {dims_text(v.dims)} cannot have dimensions {dims_text(dims)}")
    unknown = [role for role in ROLES.of(attributes).split() if role not in OPERANDS]
    if unknown or len(roles_of(attributes)) != len(others):
        raise OpError(f"attention has {len(others)} operands for the roles `{ROLES.of(attributes)}`")
    if not {*ROWS.of(attributes), *COLUMNS.of(attributes)} <= {*logits}:
        raise OpError("a row or column of the mask is no dimension of the logits")
    for role, type in zip(roles_of(attributes), others, strict=True):
        check_dtypes((type,), DTYPES.get(role, FLOATS))
        if not {*type.dims} <= {*logits}:
            raise OpError(f"the logits {dims_text(logits)} lack a dimension of {dims_text(type.dims)}")


def _results(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, TensorType, TensorType]:
    """Return the types of the result, `largest` and `total`."""
    _check(types, attributes)
    q, dims = types[0], RESULT_DIMS.of(attributes)
    rest = tuple(dim for dim in dims if dim in _logits(q, types[1], attributes))
    number = TensorType(WIDE.get(q.dtype, q.dtype), rest)
    return TensorType(q.dtype, dims), number, number


def _gradient_types(wanted: Callable[[Sequence[TensorType], Attrs], Sequence[TensorType]]) -> Infer:
    """Return the type rule of a gradient.

    Its last operands are `largest`, `total`, the cotangent of the result, and its product with the result.

    wanted: returns the types of the results.
    """

    def infer(types: Sequence[TensorType], attributes: Attrs) -> tuple[TensorType, ...]:
        """Return the types of the gradients. Raises `OpError` unless the last four operands fit the forward pass."""
        result, number, _ = _results(types[:-4], attributes)
        if tuple(types[-4:]) != (number, number, result, number):
            raise OpError(f"the gradient of attention has operands {', '.join(map(str, types[-4:]))}")
        return tuple(wanted(types, attributes))

    return infer


def _rule(eqn: Equation) -> LayoutRule:
    """Every processor needs queries, keys and values whole along `depth` and along the dimensions of the values.

    The attention also needs `memory` whole. A gradient is a sum over all other dimensions of the logits that it lacks.
    """
    depth, memory = DEPTH.of(eqn.attrs), MEMORY.of(eqn.attrs)
    is_gradient = len(eqn.operands) > 3 + len(roles_of(eqn.attrs))
    mixed = {dim.name for dim in (*depth, *(value_dims(eqn) if is_gradient else memory))}
    found = {dim for value in eqn.results for dim in value.type.dims}
    reduced = tuple(dim for dim in logits_dims(eqn) if dim not in found) if is_gradient else ()
    return LayoutRule(
        index=dict.fromkeys(sorted(mixed)),
        whole=frozenset(dim.name for dim in found if dim.name in mixed),
        reduced=reduced,
    )


def without_operands(eqn: Equation, all_true: Container[Value]) -> Equation:
    """Return attention without the masks that let all logits count, and without dropout that keeps all weights."""
    roles, operands = list[str](), [*eqn.operands[:3]]
    others = iter(eqn.operands[3:])
    for role in ROLES.of(eqn.attrs).split():
        given = [next(others) for _ in range(OPERANDS[role])]
        if role not in ("mask", "keep") or given[0] not in all_true:
            roles.append(role)
            operands += given
    attributes = {**eqn.attrs, ROLES.name: " ".join(roles)}
    return attrs.evolve(eqn, operands=(*operands, *others), attrs=attributes)


def limits_of(eqn: Equation) -> tuple[int | None, int | None]:
    """Return the least and the largest row - column that counts."""
    low, high = (each.of(eqn.attrs) if each.name in eqn.attrs else None for each in (LOW, HIGH))
    return low, high


def rows_have_keys(eqn: Equation) -> bool:
    """Return True if every row has a key in the band that counts.

    A row without a key weights all keys equally, as the language says.
    """
    rows, columns = ROWS.of(eqn.attrs), COLUMNS.of(eqn.attrs)
    if not (len(rows) == len(columns) == 1 and {*roles_of(eqn.attrs)} <= {"bias", "same_ids"}):
        return False
    low, high = limits_of(eqn)
    last_row, last_column = rows[0].size - 1, columns[0].size - 1
    is_low_enough = low is None or (low <= 0 and low <= last_row)
    is_high_enough = high is None or (high >= -last_column and last_row - high <= last_column)
    has_diagonal = (low or 0) <= 0 <= (high or 0) and last_row <= last_column
    return is_low_enough and is_high_enough and (has_diagonal or "same_ids" not in roles_of(eqn.attrs))


# The meaning, on NumPy arrays


def softmax(np: Any, logits: Any, axes: tuple[int, ...], part: bool) -> tuple[Any, Any, Any]:
    """Return the softmax over axes, and `largest` and `total` with axes of size 1."""
    largest = np.max(logits, axis=axes, keepdims=True)
    largest = np.maximum(largest, np.finfo(logits.dtype).min) if part else largest
    e = np.exp(logits - largest)
    total = np.sum(e, axis=axes, keepdims=True)
    return e / (np.where(total == 0, 1, total) if part else total), largest, total


@frozen
class _Evaluation:
    """The evaluation of one equation on one processor."""

    shard: Shard
    arrays: Sequence[Any]

    @property
    def letters(self) -> dict[Dim, str]:
        """Return the letter of each dimension in einsums."""
        return dict(zip(iteration_dims(self.shard.eqn), ascii_letters, strict=False))

    def dot(self, x: tuple[Any, Sequence[Dim]], y: tuple[Any, Sequence[Dim]], dims: Sequence[Dim]) -> Any:
        terms = ["".join(self.letters[dim] for dim in each) for each in (x[1], y[1], dims)]
        return self.shard.np.einsum(f"{terms[0]},{terms[1]}->{terms[2]}", x[0], y[0], optimize=True)

    def operand(self, i: int) -> tuple[Any, Sequence[Dim]]:
        """Return operand number i in the dtype of sums, with its dimensions."""
        np, value = self.shard.np, self.shard.eqn.operands[i]
        wide = numpy_dtype(np, WIDE.get(value.type.dtype, value.type.dtype))
        return self.arrays[i].astype(wide), value.type.dims

    def spread(self, x: Any, dims: Sequence[Dim]) -> Any:
        """Return an array that broadcasts against the logits."""
        return align(x, [dim.name for dim in dims], [dim.name for dim in logits_dims(self.shard.eqn)])

    def others(self, *roles: str) -> list[Any]:
        """Return the further operands with some roles, such as biases, spread to the dimensions of the logits."""
        given = zip(
            roles_of(self.shard.eqn.attrs), self.arrays[3:], self.shard.eqn.operands[3:], strict=False
        )
        return [self.spread(x, value.type.dims) for role, x, value in given if role in roles]

    def index(self, dims: Sequence[Dim]) -> Any:
        """Return the index along dimensions, the first most major."""
        np, found = self.shard.np, 0
        for dim in dims:
            here = np.arange(self.sizes[dim], dtype=np.int32) + self.shard.offset(dim.name)
            found = found * self.sizes[dim] + self.spread(here, (dim,))
        return found

    @property
    def sizes(self) -> dict[Dim, int]:
        """Return the size of each dimension here."""
        given = zip(self.shard.eqn.operands, self.arrays, strict=True)
        return {d: size for value, x in given for d, size in zip(value.type.dims, x.shape, strict=True)}

    def logits(self) -> tuple[Any, Any, Any]:
        """Return the logits, which of them count, and the slope of the soft cap; True and 1 for all."""
        np, attributes = self.shard.np, self.shard.eqn.attrs
        logits = self.dot(self.operand(0), self.operand(1), logits_dims(self.shard.eqn))
        slope, counts = 1, True
        if CAP.name in attributes:
            squashed = np.tanh(logits / CAP.of(attributes))
            logits, slope = squashed * CAP.of(attributes), 1 - squashed * squashed
        for bias in self.others("bias"):
            logits = logits + bias.astype(logits.dtype)
        for mask in self.others("mask"):
            counts = mask & counts
        ids = self.others("ids", "same_ids")
        for left, right in zip(ids[::2], ids[1::2], strict=True):
            counts = (left == right) & counts
        if LOW.name in attributes or HIGH.name in attributes:
            ahead = self.index(ROWS.of(attributes)) - self.index(COLUMNS.of(attributes))
            counts = (ahead >= LOW.of(attributes)) & counts if LOW.name in attributes else counts
            counts = (ahead <= HIGH.of(attributes)) & counts if HIGH.name in attributes else counts
        if counts is True:
            return logits, True, slope
        return np.where(counts, logits, FILL.of(attributes)).astype(logits.dtype), counts, slope

    def kept(self, weights: Any) -> Any:
        """Return weights, or their cotangents, without those that dropout removes."""
        for keep in self.others("keep"):
            weights = self.shard.np.where(keep, weights, 0).astype(weights.dtype)
        return weights

    def sensitivities(self) -> tuple[Any, Any, Any]:
        """Return the weights that stay, the cotangents of the logits with biases, and the slope of the soft cap."""
        np, eqn = self.shard.np, self.shard.eqn
        logits, counts, slope = self.logits()
        spread = [self.spread(self.arrays[i], eqn.operands[i].type.dims) for i in (-4, -3, -1)]
        largest, total, delta = spread
        weights = np.exp(logits - largest) / total
        cotangent = self.dot(self.operand(len(eqn.operands) - 2), self.operand(2), logits_dims(eqn))
        found, weights = weights * (self.kept(cotangent) - delta), self.kept(weights)
        return weights, found if counts is True else np.where(counts, found, 0).astype(found.dtype), slope


def _evaluate(shard: Shard, *arrays: Any) -> tuple[Any, Any, Any]:
    """Compute attention on a shard: the weighted mean of values, and for the gradients the largest logit and the sum of each
    row.
    """
    each, eqn, np = _Evaluation(shard, arrays), shard.eqn, shard.np
    logits, dims = each.logits()[0], logits_dims(eqn)
    axes = tuple(dims.index(dim) for dim in MEMORY.of(eqn.attrs))
    softmax_function = getattr(np, "attention_softmax", partial(softmax, np))
    weights, *numbers = softmax_function(logits, axes, PART.name in eqn.attrs)
    result = each.dot((each.kept(weights), dims), each.operand(2), eqn.results[0].type.dims)
    row_dims = [dim.name for dim in dims if dim not in MEMORY.of(eqn.attrs)]
    largest, total = (
        align(x.reshape(x.shape[: len(row_dims)]), row_dims, eqn.results[1].type.names) for x in numbers
    )
    return result.astype(arrays[0].dtype), largest, total


def _evaluate_dq(shard: Shard, *arrays: Any) -> Any:
    """Compute the gradient of the queries on a shard."""
    each, eqn = _Evaluation(shard, arrays), shard.eqn
    _, cotangent, slope = each.sensitivities()
    found = each.dot((cotangent * slope, logits_dims(eqn)), each.operand(1), eqn.result.type.dims)
    return found.astype(arrays[0].dtype)


def _evaluate_dkv(shard: Shard, *arrays: Any) -> tuple[Any, Any]:
    """Compute the gradients of keys and values on a shard."""
    each, eqn = _Evaluation(shard, arrays), shard.eqn
    used, cotangent, slope = each.sensitivities()
    dims, (dk, dv) = logits_dims(eqn), (value.type.dims for value in eqn.results)
    found = each.dot((cotangent * slope, dims), each.operand(0), dk)
    values = each.dot((used, dims), each.operand(len(arrays) - 2), dv)
    return found.astype(arrays[0].dtype), values.astype(arrays[0].dtype)


def _evaluate_dbias(shard: Shard, *arrays: Any) -> Any:
    """Compute the gradient of the bias on a shard: that of the logits, summed over the dims that the bias lacks."""
    each, eqn = _Evaluation(shard, arrays), shard.eqn
    _, cotangent, _ = each.sensitivities()
    one = shard.np.ones((), cotangent.dtype)
    found = each.dot((cotangent, logits_dims(eqn)), (one, ()), eqn.result.type.dims)
    return found.astype(numpy_dtype(shard.np, eqn.result.type.dtype))


# Gradients


def _gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value | None, ...]:
    """Compute the weights again. delta: the product of the result with its cotangent."""
    result, largest, total = e.results
    wide, dims = total.type.dtype, total.type.dims
    given = b.ordered(g[0], result.type.dims)
    product = b("mul", b.cast(result, wide), b.cast(given, wide))
    delta = b.ordered(b.sum_to(product, dims), dims)
    operands = (*e.operands, largest, total, given, delta)
    dq = b("attention_dq", *operands, name="d_q", **e.attrs)
    dk, dv = b.several("attention_dkv", *operands, names=("d_k", "d_v"), **e.attrs)
    others = (
        b("attention_dbias", *operands, operand=i, name="d_bias", **e.attrs) if role == "bias" else None
        for i, role in enumerate(roles_of(e.attrs), 3)
    )
    return (dq, dk, dv, *others)


# Shards of `memory`


def _distribute(b: BlockRewriter, eqn: Equation) -> tuple[Value, Value, Value] | None:
    """Attend to the shards of `memory` one by one, and weight the results by their sums of exponentials."""
    splits = [split for dim in MEMORY.of(eqn.attrs) if (split := b.split(eqn, dim))]
    if len(splits) != 1:
        return None
    build, (split,) = b.build, splits
    operands = [b.cut(x, split) if split.dim in x.type.dims else x for x in eqn.operands]
    dims, blocks, dtype = RESULT_DIMS.of(eqn.attrs), (split.blocks,), eqn.results[0].type.dtype
    attributes: dict[str, Any] = {
        **eqn.attrs,
        "dims": (*blocks, *dims),
        "memory": tuple(split.inner if dim == split.dim else dim for dim in MEMORY.of(eqn.attrs)),
        "rows": _cut(ROWS.of(eqn.attrs), split),
        "columns": _cut(COLUMNS.of(eqn.attrs), split),
    }
    attributes["part"] = True
    parts, each, total = build.several(
        "attention", *operands, names=("parts", "each", "totals"), **attributes
    )
    largest = build("max", each, over=blocks)
    shares = build("mul", build("exp", build("sub", each, largest)), total)
    total = build("sum", shares, over=blocks)
    sums = build.einsum(parts, build.cast(shares, dtype), dims=dims)
    whole = build("div", build.cast(sums, total.type.dtype), total)
    return build.cast(whole, dtype), largest, total


def _cut(dims: Sequence[Dim], split: Split) -> tuple[Dim, ...]:
    pairs = ((split.blocks, split.inner) if dim == split.dim else (dim,) for dim in dims)
    return tuple(dim for pair in pairs for dim in pair)


# Text


def _form(eqn: Equation) -> tuple[str, dict[Dim, str]]:
    """Return the operands, the logits and the result in letters, such as `hld,hmd,hmd,lm->hlm->hld`."""
    letters = letters_of(iteration_dims(eqn))
    given = eqn.operands[: 3 + len(roles_of(eqn.attrs))]
    terms = [value.type.dims for value in given]
    texts = [
        "".join(letters[dim] for dim in dims)
        for dims in (*terms, logits_dims(eqn), RESULT_DIMS.of(eqn.attrs))
    ]
    return f"{','.join(texts[:-2])}->{texts[-2]}->{texts[-1]}", letters


@frozen
class AttentionCall:
    """The call of a backend's function. options: keyword -> its value as text. letters: dimension -> letter."""

    form: str
    args: tuple[str, ...]
    options: dict[str, str]
    letters: dict[Dim, str]

    def text(self, name: str) -> str:
        return f"{name}({', '.join([self.form, *self.args, *self.keywords(*self.options)])})"

    def keywords(self, *names: str) -> list[str]:
        """Return those of the options that the call has."""
        return [f"{name}={self.options[name]}" for name in names if name in self.options]


def call_of(code: Code) -> AttentionCall:
    """Return the call for an equation."""
    attributes = code.eqn.attrs
    form, letters = _form(code.eqn)

    def spelled(dims: Sequence[Dim]) -> str:
        return "".join(letters[dim] for dim in dims)

    memory = [dim for dim in logits_dims(code.eqn) if dim in MEMORY.of(attributes)]
    options = {"memory": f'"{spelled(memory)}"'}
    if roles_of(attributes):
        options["roles"] = f'"{ROLES.of(attributes).replace(" ", ",")}"'
    if LOW.name in attributes or HIGH.name in attributes:
        rows, columns = ROWS.of(attributes), COLUMNS.of(attributes)
        limits = f"{attributes.get(LOW.name)}, {attributes.get(HIGH.name)}"
        options["band"] = f'("{spelled(rows)}", "{spelled(columns)}", {limits})'
        starts = {letters[dim]: code.offset(dim.name, 0) for dim in (*rows, *columns)}
        first = ", ".join(f'"{letter}": {start}' for letter, start in starts.items() if start)
        options |= {"first": f"{{{first}}}"} if first else {}
    options["fill"] = literal(FILL.of(attributes))
    options |= {
        name: repr(attributes[name]) for name in (CAP.name, OPERAND.name, PART.name) if name in attributes
    }
    return AttentionCall(f'"{form}"', code.args, {**options, "dtype": code.dtype}, letters)


def _text(name: str) -> Callable[[Code], str]:
    return lambda code: call_of(code).text(name)


def _points(eqn: Equation, sizes: Sizes) -> tuple[Any, Any, Any]:
    """Return the numbers of logits, and of elements along `depth` and along the dimensions of the values."""
    logits, depth, value = logits_dims(eqn), DEPTH.of(eqn.attrs), value_dims(eqn)
    return points_of(eqn, logits, sizes), points_of(eqn, depth, sizes), points_of(eqn, value, sizes)


def row_dims(eqn: Equation) -> tuple[Dim, ...]:
    """Return the dimensions that queries have alone: devices that split one of them need the same keys."""
    q, k = eqn.operands[:2]
    return tuple(dim for dim in q.type.dims if dim not in (*k.type.dims, *DEPTH.of(eqn.attrs)))


ELEMENTWISE = 4
"""The largest logit, a difference, an exponential and a sum, for each logit."""


def _flops(depths: int, values: int) -> Callable[[Equation, Sizes], Any]:
    """Return the FLOPs of an op with so many dots over `depth` and over the dimensions of the values.

    Kernels on TPUs leave out what a band masks: these count, too.
    """

    def flops(eqn: Equation, sizes: Sizes) -> Any:
        logits, depth, value = _points(eqn, sizes)
        return logits * (2 * depths * depth + 2 * values * value + ELEMENTWISE)

    return flops


def _op(
    name: str, infer: Infer, evaluate: Callable[..., Any], flops: Callable[[Equation, Sizes], Any], doc: str
) -> OpDef:
    """Return the op of attention, or of one of its gradients."""
    is_gradient = name != "attention"
    return OpDef(
        name=name,
        arity=(6 if is_gradient else 3, None),
        attributes=(*ATTRIBUTES, *{"attention": (PART,), "attention_dbias": (OPERAND,)}.get(name, ())),
        infer=infer,
        layout_rule=_rule,
        distribute=None if is_gradient else _distribute,
        gradient=_no_second_gradient if is_gradient else _gradient,
        flops=flops,
        storage="kernel",
        traits=frozenset({"attention_gradient" if is_gradient else "attention"}),
        evaluate=evaluate,
        numpy=_text(name),
        doc=doc,
    )


def _no_second_gradient(b: OpBuilder, e: Equation, g: Sequence[Value]) -> tuple[Value | None, ...]:
    raise OpError("the gradient of attention has no gradient here")


OPS = (
    _op(
        "attention",
        _results,
        _evaluate,
        _flops(1, 1),
        "Softmax over `memory` between two dots.",
    ),
    _op(
        "attention_dq",
        _gradient_types(lambda types, attributes: [types[0]]),
        _evaluate_dq,
        _flops(2, 1),
        "The gradient of attention for the queries.",
    ),
    _op(
        "attention_dkv",
        _gradient_types(lambda types, attributes: types[1:3]),
        _evaluate_dkv,
        _flops(2, 2),
        "The gradients of attention for keys and values.",
    ),
    _op(
        "attention_dbias",
        _gradient_types(lambda types, attributes: [types[OPERAND.of(attributes)]]),
        _evaluate_dbias,
        _flops(1, 1),
        "The gradient of attention for a bias.",
    ),
)
