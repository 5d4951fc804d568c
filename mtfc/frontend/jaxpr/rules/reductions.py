"""Reductions, running sums, convolutions and pooling.

A convolution is an einsum of the windows of each spatial axis, and pooling is a reduction of windows.
"""

from collections.abc import Callable, Sequence

from mtfc.compiler.ir.core import Value
from mtfc.compiler.ir.ops.elementwise import NUMBERS
from mtfc.compiler.ir.types import FLOATS, Dim
from mtfc.frontend.jaxpr.factors import Axis, axis, cut, leaves
from mtfc.frontend.jaxpr.flat import AppliedPrimitive
from mtfc.frontend.jaxpr.primitive_rules import Axes, JaxprEmitter, Linker, PrimitiveRule
from mtfc.frontend.jaxpr.rules.elementwise import taken_by


def _axes(step: AppliedPrimitive) -> tuple[int, ...]:
    """Return the reduced axes, counted from 0."""
    rank = len(step.operands[0].shape)
    return tuple(j % rank for j in step.params["axes"])


def link(linker: Linker, step: AppliedPrimitive) -> None:
    """Give the result the axes that stay."""
    gone = _axes(step)
    linker.keep(step, [j for j in range(len(step.operands[0].shape)) if j not in gone])


def _emit(op: str) -> Callable[[JaxprEmitter, AppliedPrimitive], Sequence[Value]]:
    """Return the emit rule of a reduction."""

    def emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
        """Reduce along the dimensions that the value has. It repeats elements along the others."""
        x = emitter.operand(step, 0)
        gone = emitter.dims.of(f for j in _axes(step) for f in step.operands[0].axes[j])
        absent = tuple(dim for dim in gone if dim not in x.type.dims)
        if absent and op == "prod":
            x, absent = emitter.with_dims(x, (*x.type.dims, *absent)), ()
        over = tuple(dim for dim in gone if dim in x.type.dims)
        found = emitter.build(op, x, over=over) if over else x
        if op != "sum":
            return (found,)
        for dim in absent:
            found = emitter.times(found, dim.size)
        return (found,)

    return emit


def _emit_argmax(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Emit an argmax over one axis, whose factors are merged into one dimension first."""
    (j,) = _axes(step)
    x, dim = emitter.merged(emitter.operand(step, 0), step.operands[0].axes, j)
    return (emitter.build("argmax", x, over=(dim,)),)


def _is_plain_argmax(step: AppliedPrimitive) -> bool:
    return step.params["index_dtype"].name == "int32" and step.operands[0].dtype in FLOATS


def _link_along(linker: Linker, step: AppliedPrimitive) -> None:
    linker.give(step.results[0], step.operands[0].axes)


def _emit_cumsum(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Emit a cumulative sum along an axis, whose factors are merged for it and parted again."""
    axes, j = step.operands[0].axes, step.params["axis"]
    x, dim = emitter.merged(emitter.operand(step, 0), axes, j)
    found = emitter.build("cumsum", x, dim=dim, exclusive=False, reverse=step.params["reverse"])
    return (emitter.parted(found, dim, axes[j]),)


def _emit_rev(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append a flip along each reversed axis."""
    x, axes = emitter.operand(step, 0), step.operands[0].axes
    for j in step.params["dimensions"]:
        x, dim = emitter.merged(x, axes, j)
        x = emitter.parted(emitter.build("flip", x, dim=dim), dim, axes[j])
    return (x,)


Padding = tuple[int, int]


Row = tuple[int, int, int, Padding, int, int]
"""An axis with windows: (axis, size, stride, padding, spacing of its elements in the padded array, dilation)."""


def _all_windows(
    emitter: JaxprEmitter,
    value: Value,
    axes: Axes,
    rows: Sequence[Row],
    kernel_of: Callable[[int], Dim],
    targets: Axes,
    fill: float,
) -> tuple[Value, list[tuple[Dim, Axis]]]:
    """Return the windows along axes of a value, and the dimensions of the windows' places with their axes.

    kernel_of: makes the dimension inside of windows for the row of a number. targets: the axes of the windows' places. Backends
    make a convolution of windows only if no other equation stands between them.
    """
    build, outs, sources = emitter.build, list[tuple[Dim, Axis]](), list[Dim]()
    for j, _, _, padding, spacing, _ in rows:
        value, source = emitter.merged(value, axes, j)
        low, high = (int(each) for each in padding)
        if spacing > 1:
            wide = emitter.dims.new("spaced", (source.size - 1) * spacing + 1)
            value = build("pad", value, source=source, target=wide, before=0, stride=spacing, value=fill)
            source = wide
        if low < 0 or high < 0:
            part = emitter.dims.new("part", source.size + min(low, 0) + min(high, 0))
            value = build("slice", value, source=source, target=part, start=max(-low, 0), stride=1)
            source = part
        sources.append(source)
    for n, (source, (_, _, stride, (low, high), _, dilation)) in enumerate(zip(sources, rows, strict=True)):
        kernel, out = kernel_of(n), emitter.single(targets[n], "out")
        value = build(
            "window", value, source=source, out=out, kernel=kernel, stride=stride, before=max(int(low), 0),
            after=max(int(high), 0), dilation=dilation, value=fill,
        )  # fmt: skip
        outs.append((out, targets[n]))
    return value, outs


# convolution


def _link_convolution(linker: Linker, step: AppliedPrimitive) -> None:
    """Link features and groups. Spatial axes of the result are new."""
    (x, w), params, (result,) = step.operands, step.params, step.results
    numbers = params["dimension_numbers"]
    groups, batches = params["feature_group_count"], params["batch_group_count"]
    batch, feature = x.axes[numbers.lhs_spec[0]], x.axes[numbers.lhs_spec[1]]
    out = w.axes[numbers.rhs_spec[0]]
    in_groups = cut(feature, (groups, x.shape[numbers.lhs_spec[1]] // groups))
    in_batches = cut(batch, (batches, x.shape[numbers.lhs_spec[0]] // batches))
    number = max(groups, batches)
    outs = cut(out, (number, w.shape[numbers.rhs_spec[0]] // number))
    if in_groups is None or in_batches is None or outs is None:
        step.is_opaque = True
        linker.rule(step).link(linker, step)
        return
    lead = in_groups[0] if groups > 1 else in_batches[0]
    wanted = {numbers.rhs_spec[1]: in_groups[1]}
    if lead:
        wanted[numbers.rhs_spec[0]] = (*lead, *linker.fitted((outs[1],), [None], x.axes)[0])
    found = linker.fit(step, 1, wanted, x.axes)
    axes: list[Axis] = [axis(size) for size in result.shape]
    axes[numbers.out_spec[0]] = in_batches[1]
    axes[numbers.out_spec[1]] = found[numbers.rhs_spec[0]]
    linker.give(result, tuple(axes))
    linker.space(*x.axes, *found, *(axes[j] for j in numbers.out_spec[2:]))


def _emit_convolution(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Append a convolution as an einsum of windows and kernel.

    Dimensions that neither operand has, because its elements repeat, only multiply the result by their size.
    """
    x, params, (result,) = step.operands[0], step.params, step.results
    numbers, dtype = params["dimension_numbers"], result.dtype
    value = emitter.build.cast(emitter.operand(step, 0), dtype)
    kernel = emitter.build.cast(emitter.operand(step, 1), dtype)
    own = step.axes(1)

    def size_of_window(n: int) -> Dim:
        """Return the kernel's dimension along window n, after its factors are merged into one."""
        nonlocal kernel
        kernel, size = emitter.merged(kernel, own, numbers.rhs_spec[2 + n])
        return size

    rows = zip(
        numbers.lhs_spec[2:], numbers.rhs_spec[2:], params["window_strides"], params["padding"],
        params["lhs_dilation"], params["rhs_dilation"], strict=True,
    )  # fmt: skip
    targets = tuple(result.axes[o] for o in numbers.out_spec[2:])
    value, outs = _all_windows(emitter, value, x.axes, [*rows], size_of_window, targets, 0.0)
    known = {*value.type.dims, *kernel.type.dims}
    spatial = {f: out for out, factors in outs for f in leaves(factors)}
    dims = (spatial.get(f) or emitter.dims.of((f,))[0] for axis in result.axes for f in leaves(axis))
    found = emitter.build.einsum(value, kernel, dims=tuple(dict.fromkeys(d for d in dims if d in known)))
    gone = emitter.dims.of(own[numbers.rhs_spec[1]])
    for dim in gone:
        if dim not in known:
            found = emitter.times(found, dim.size)
    for out, factors in outs:
        found = emitter.parted(found, out, factors)
    return (found,)


# reduce_window


def windows_of(step: AppliedPrimitive) -> list[Row]:
    """Return the rows of the axes that have windows."""
    params = step.params
    ones = (1,) * len(params["window_dimensions"])
    rows = zip(
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        params.get("base_dilation") or ones,
        params.get("window_dilation") or ones,
        strict=True,
    )
    return [(j, *row) for j, row in enumerate(rows) if row != (1, 1, (0, 0), 1, 1)]


def _link_pooling(linker: Linker, step: AppliedPrimitive) -> None:
    """Axes with windows are new in the result."""
    (x,), (result,) = step.operands, step.results
    moved = {row[0] for row in windows_of(step)}
    axes = tuple(axis(result.shape[j]) if j in moved else a for j, a in enumerate(x.axes))
    linker.give(result, axes)
    linker.space(*x.axes, *axes)


FILLS = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}


def _pooling(op: str) -> PrimitiveRule:
    """Return the rule of a reduction over windows, such as max pooling."""

    def emit(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
        """Append the reduction over the windows."""
        result = step.results[0]
        value = emitter.operand(step, 0)
        value, kernels, outs = _pooled(emitter, step, value, result.axes, FILLS[op])
        found = emitter.build(op, value, over=tuple(kernels)) if kernels else value
        for out, factors in outs:
            found = emitter.parted(found, out, factors)
        return (found,)

    return PrimitiveRule(
        _link_pooling, emit, lambda step: len(step.operands) == 1 and step.operands[0].dtype in FLOATS
    )


def _pooled(
    emitter: JaxprEmitter, step: AppliedPrimitive, value: Value, axes: Axes, fill: float
) -> tuple[Value, list[Dim], list[tuple[Dim, Axis]]]:
    """Return the windows along all axes, the dimensions inside of windows, and the dimensions of the windows with their axes."""
    rows, kernels = windows_of(step), list[Dim]()

    def kernel(n: int) -> Dim:
        kernels.append(emitter.dims.new("window", rows[n][1]))
        return kernels[-1]

    targets = tuple(axes[row[0]] for row in rows)
    value, outs = _all_windows(emitter, value, step.operands[-1].axes, rows, kernel, targets, fill)
    return value, kernels, outs


# select_and_scatter_add


def _is_plain_selection(step: AppliedPrimitive) -> bool:
    """Accept the transpose of a largest or smallest element over windows without negative padding."""
    plain = step.params["select_prim"].name in ("ge", "le") and step.operands[0].dtype in FLOATS
    return plain and all(min(padding) >= 0 for padding in step.params["padding"])


def _link_selection(linker: Linker, step: AppliedPrimitive) -> None:
    """Fit the source's axes without windows to the operand's. The other axes of the source are new."""
    _, x = step.operands
    moved = {row[0] for row in windows_of(step)}
    linker.fit(step, 0, {j: a for j, a in enumerate(x.axes) if j not in moved}, x.axes)
    linker.give(step.results[0], x.axes)


def _emit_selection(emitter: JaxprEmitter, step: AppliedPrimitive) -> Sequence[Value]:
    """Add each source to the first largest element of its window. The smallest is the largest of the negative numbers."""
    axes = step.axes(0)
    build, y = emitter.build, emitter.operand(step, 0)
    value = emitter.operand(step, 1)
    if step.params["select_prim"].name == "le":
        value = build("neg", value)
    windows, kernels, outs = _pooled(emitter, step, value, axes, float("-inf"))
    folded = []
    for (j, _, stride, (low, high), _, _), kernel, (out, factors) in zip(
        windows_of(step), kernels, outs, strict=True
    ):
        y = emitter.merged(y, axes, j, out)[0] if emitter.dims.of(factors) != (out,) else y
        inside = emitter.single(step.operands[1].axes[j])
        folded.append((j, inside, out, kernel, stride, low, high))
    first = build("is_argmax", windows, over=tuple(kernels))
    found = emitter.elementwise("mask", first, y)
    for j, inside, out, kernel, stride, low, high in folded:
        found = build(
            "fold",
            found,
            source=inside,
            out=out,
            kernel=kernel,
            stride=stride,
            before=low,
            after=high,
            dilation=1,
        )
        found = emitter.parted(found, inside, step.operands[1].axes[j])
    return (found,)


REDUCTIONS = {
    **{f"reduce_{name}": name for name in ("sum", "max", "min", "prod")},
    "reduce_and": "all",
    "reduce_or": "any",
}
"""Primitive that reduces -> the op that it is."""

RULES: dict[str, PrimitiveRule] = {
    **{name: PrimitiveRule(link, _emit(op), taken_by(op, over=())) for name, op in REDUCTIONS.items()},
    "argmax": PrimitiveRule(link, _emit_argmax, _is_plain_argmax),
    "cumsum": PrimitiveRule(_link_along, _emit_cumsum, lambda step: step.operands[0].dtype in NUMBERS),
    "rev": PrimitiveRule(_link_along, _emit_rev, moves=True),
    "conv_general_dilated": PrimitiveRule(
        _link_convolution, _emit_convolution, lambda step: {x.dtype for x in step.operands} <= FLOATS
    ),
    "reduce_window_sum": _pooling("sum"),
    "reduce_window_max": _pooling("max"),
    "reduce_window_min": _pooling("min"),
    "select_and_scatter_add": PrimitiveRule(_link_selection, _emit_selection, _is_plain_selection),
}
