"""Texts of equations that differ from the text of their op, by the equation's first result.

Barriers stand between two numbers that XLA must not merge. XLA computes `(x * a) * b` as `x * (a * b)`, and `(x + a) + b` as `x +
(a + b)`. That rounds differently, as the language allows. But `a * b` may be no normal number, as in `x * 1e-30 * 1e-30 * 1e30`.
And `x * a` may overflow or underflow where `x * (a * b)` does not, as in `x * 1e30 * 1e-30`. The first factor then stands in an
`optimization_barrier`. This is so for numbers that are far from 1 for their dtype; chains of other numbers keep their text.

XLA computes `x / a` as `x * (1 / a)`. Where `1 / a` is no normal number, as for `x / 2e38`, both are divided by 4 first.

Other texts keep `jax.grad` of an emitted `forward` equal to the compiler's own gradients. JAX has no derivative of `lax.pmax`.
The prelude's `pmax` and `pmin` have one, which sends more. Most maxima over devices belong to a softmax that the file wraps in
`stop_gradient`: their operands are written as constants for differentiation. On one device the module calls `largest` or
`smallest`, as `jnp.max` shares a gradient among equal elements. `jnp.abs` has the slope 1 at 0, where the language says 0.

Attention calls a kernel where `analysis/attention_forms.py` finds a form that a kernel takes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial

import attrs

from mtfc.compiler.analysis.attention_forms import KernelForm, block_of, form_on, is_attention
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.loops import outputs_of, pairs, region_of
from mtfc.compiler.ir.numbers import SIGNIFICANDS, rounded
from mtfc.compiler.ir.opdef import Code, Text, no_gradient
from mtfc.compiler.ir.ops import OPS, has_trait
from mtfc.compiler.ir.ops.attention import ROLES, AttentionCall, call_of
from mtfc.compiler.ir.ops.collectives import ALL_REDUCE
from mtfc.compiler.ir.ops.creation import VALUE, literal
from mtfc.compiler.ir.types import FLOATS, Mesh


@attrs.frozen
class NumberChain:
    """The end of a chain of equations with numbers.

    scales: True if the numbers are multiplied, False if they are added. number: all of them together, from the last barrier on.
    last: the last equation. text: the text of that equation without a barrier.
    """

    scales: bool
    number: float
    last: Equation
    text: str


def guarded(function: Function) -> dict[Value, Text]:
    """Return the texts of sums of lookups, and of equations whose results need a barrier, also in loops."""
    texts = _on_bits(function)
    _collect(function, {}, texts)
    return texts


def shared(function: Function) -> dict[Value, Text]:
    """Return the texts of elementwise gradients that several dots read, behind a barrier, also in loops.

    XLA for TPUs would compute them again in each of these dots, and there once for each column of tiles.
    """
    texts: dict[Value, Text] = {}
    for body in (function.body, *(region_of(eqn).body for eqn in walk(function.body) if eqn.regions)):
        dots = Counter(v for eqn in body if has_trait(eqn, "dot") for v in {*eqn.operands})
        for eqn in body:
            is_read = dots[eqn.results[0]] > 1 and eqn.stage == "backward" and not eqn.regions
            if is_read and OPS[eqn.op].storage == "fused":
                texts[eqn.result] = _held(OPS[eqn.op].jax)
    return texts


def _held(text: Text) -> Text:
    """Return the text of an equation behind a barrier, past which XLA moves nothing."""
    if callable(text):
        return lambda code: f"lax.optimization_barrier({text(code)})"
    return f"lax.optimization_barrier({text})"


def _collect(function: Function, numbers: Mapping[Value, float], texts: dict[Value, Text]) -> None:
    """Add the texts of a function's body. numbers: arguments that are written as numbers."""
    known = {**numbers, **_numbers(function.body)}
    chains: dict[Value, NumberChain] = {}
    for eqn in function.body:
        if eqn.regions:
            inside = {a.value: known[v] for v, a in pairs(eqn) if v in known and a.role == "invariant"}
            _collect(region_of(eqn), inside, texts)
            continue
        link = _link(eqn, known, chains)
        if link is None:
            continue
        if link.last is eqn and link.text != OPS[eqn.op].jax:
            texts[eqn.result] = link.text
        before = chains.get(eqn.operands[0])
        chains[eqn.result] = _joined(before, link, texts) if before and link.last is eqn else link


def _joined(before: NumberChain, link: NumberChain, texts: dict[Value, Text]) -> NumberChain:
    """Return the chain with one more equation, or its last equation behind a barrier."""
    if before.scales != link.scales:
        return link
    number = before.number * link.number if link.scales else before.number + link.number
    dtype = link.last.result.type.dtype
    may_merge = _may_scale if link.scales else _may_add
    if may_merge(before.number, link.number, number, dtype):
        return attrs.evolve(link, number=number)
    texts[before.last.result] = f"lax.optimization_barrier({before.text})"
    return link


def _numbers(body: Iterable[Equation]) -> dict[Value, float]:
    """Return the number of each constant of floats."""
    constants = [eqn for eqn in body if has_trait(eqn, "constant") and eqn.result.type.dtype in FLOATS]
    return {eqn.result: float(VALUE.of(eqn.attrs)) for eqn in constants}


def _link(
    eqn: Equation, numbers: Mapping[Value, float], chains: Mapping[Value, NumberChain]
) -> NumberChain | None:
    """Return the chain that an equation with a number begins or ends, or that a view shows; None for any other equation."""
    if len(eqn.results) != 1 or not eqn.operands or eqn.result.type.dtype not in FLOATS:
        return None
    if OPS[eqn.op].storage == "view":
        return chains.get(eqn.operands[0])
    number = numbers.get(eqn.operands[-1])
    if len(eqn.operands) != 2 or number is None:
        return None
    text = str(OPS[eqn.op].jax)
    if has_trait(eqn, "multiply"):
        return NumberChain(True, number, eqn, text)
    if has_trait(eqn, "add", "subtract"):
        return NumberChain(False, number if has_trait(eqn, "add") else -number, eqn, text)
    return _divided(eqn, number, text) if has_trait(eqn, "divide") and number else None


def _divided(eqn: Equation, number: float, text: str) -> NumberChain:
    """Return a division by a number as a step of a chain of numbers: a multiplication by its inverse.

    An inverse that is not normal is avoided: both sides of the division are quartered.
    """
    inverse, dtype = abs(1 / number), eqn.result.type.dtype
    is_normal = not 0 < inverse < 1 or rounded(1 / number, dtype) is not None
    quarters = f"lax.optimization_barrier({{0}} * 0.25) / {literal(number / 4)}"
    return NumberChain(True, 1 / number, eqn, text if is_normal else quarters)


def _may_scale(first: float, second: float, merged: float, dtype: str) -> bool:
    """Return True if the merged number is a normal one, and the second undoes no large scaling of the first."""
    if rounded(merged, dtype) is None or (merged == 0 and first and second):
        return False
    far = 2.0 ** (SIGNIFICANDS[dtype][2] // 4)
    up, back = abs(first), abs(second)
    return not ((up > far and back < 1) or (up < 1 / far and back > 1))


def _may_add(first: float, second: float, merged: float, dtype: str) -> bool:
    """Return True if the merged number is finite, and the first of two numbers of different sign leaves the digits of 1."""
    bits, _, most = SIGNIFICANDS[dtype]
    if not abs(merged) < 2.0 ** (most - 1):
        return False
    comes_back = (first > 0) != (second > 0)
    return not (comes_back and max(abs(first), abs(second)) >= 2.0**bits)


# Sums of single terms


def _on_bits(function: Function) -> dict[Value, Text]:
    """Return the texts of sums of lookups: one processor has each element, and the others 0, so the sum is that of the bits."""
    makers = {value: eqn for eqn in walk(function.body) if not eqn.regions for value in eqn.results}

    def is_lookup(x: Value) -> bool:
        while (maker := makers.get(x)) is not None and OPS[maker.op].storage == "view":
            x = maker.operands[0]
        is_read = maker is not None and OPS[maker.op].storage == "lookup" and x.type.dtype in ("f32", "f64")
        return is_read and maker is not None and not maker.operands[0].type.pending

    sums = [eqn for eqn in makers.values() if has_trait(eqn, "all_reduce", "reduce_scatter")]
    return {eqn.results[0]: _of_bits for eqn in sums if all(map(is_lookup, eqn.operands))}


def _of_bits(code: Code) -> str:
    """Return `sum_bits(lambda *x: lax.psum(x[0], "cols"), x_2)`."""
    names = tuple(f"x[{i}]" for i in range(len(code.args)))
    total = OPS[code.eqn.op].jax(attrs.evolve(code, args=names))  # type: ignore[operator]
    return f"sum_bits(lambda *x: {total}, {', '.join(code.args)})"


# Gradients by JAX


def differentiable(function: Function, differentiated: Set[Value]) -> dict[Value, Text]:
    """Return the text of each equation that must differ from the text of its op, by the first result."""
    found: dict[Value, Text] = {}
    for eqn in walk(function.body):
        if not eqn.operands or eqn.operands[0].type.dtype not in FLOATS:
            continue
        passes = not differentiated.isdisjoint(eqn.results)
        own = None if eqn.regions else OPS[eqn.op].jax_differentiated
        if has_trait(eqn, "all_reduce") and eqn.operands[0].type.reduction != "sum":
            found.update({} if passes else {eqn.results[0]: _constant})
        elif own is not None and passes:
            found[eqn.result] = own
    return found


def _constant(code: Code) -> str:
    """Return `pmax(lax.stop_gradient(x), "cols")`."""
    text = ALL_REDUCE.jax
    assert callable(text)
    return text(attrs.evolve(code, args=tuple(f"lax.stop_gradient({arg})" for arg in code.args)))


def differentiated(function: Function) -> frozenset[Value]:
    """Return the float values through which a gradient of the outputs passes, inside loops too."""
    found = {output.value for output in function.outputs}
    _reach(function, found)
    return frozenset(found)


def _reach(function: Function, found: set[Value]) -> None:
    """Add to `found` the values that the gradient reaches from the results in it.

    Collectives have no gradient rule, as they are inserted after differentiation. JAX differentiates them all the same.
    """
    for eqn in reversed(function.body):
        if not found.intersection(eqn.results):
            continue
        if eqn.regions:
            _reach_loop(eqn, found)
        elif has_trait(eqn, "placement") or OPS[eqn.op].gradient is not no_gradient:
            found.update(value for value in eqn.operands if value.type.dtype in FLOATS)


def _reach_loop(eqn: Equation, found: set[Value]) -> None:
    """Add the values that the gradient reaches through a loop.

    Go through the body until the carries reach no more values, as an iteration's result may depend on any earlier iteration. A
    carry is
    reached with its update: JAX differentiates the initial value even if the first iteration overwrites it.
    """
    region = region_of(eqn)
    carries = [(o.value, _named(region, o.updates)) for o in region.outputs if o.updates is not None]
    found.update([o.value for v, o in outputs_of(eqn) if v in found])
    before = 0
    while len(found) > before:
        before = len(found)
        _reach(region, found)
        for pair in carries:
            found.update(pair if not found.isdisjoint(pair) else ())
    found.update(value for value, argument in pairs(eqn) if argument.value in found)


def _named(region: Function, name: str) -> Value:
    return next(argument.value for argument in region.arguments if argument.value.name == name)


# Kernels of attention: splash attention on TPUs, and cuDNN on GPUs


def with_kernels(
    function: Function, mesh: Mesh, differentiated: Set[Value] = frozenset()
) -> dict[Value, Text]:
    """Return the texts of equations that call a kernel, by the first result, also in loops.

    differentiated: values through which users may differentiate.
    """
    found: dict[Value, Text] = {}
    for eqn in filter(is_attention, walk(function.body)):
        if any(form_on(device, eqn, mesh) for device in TEXTS):
            name = "on_device" if differentiated.isdisjoint(eqn.results) else "differentiable_on_device"
            found[eqn.results[0]] = partial(kernel_text, mesh=mesh, name=name)
    return found


def kernel_text(code: Code, mesh: Mesh, name: str) -> str:
    """Return `on_device(lambda *x: attention(...), q, k, v, tpu=lambda *x: splash_attention(...))`."""
    eqn, call = code.eqn, call_of(code)
    plain = f"lambda *x: {eqn.op}({call.form}, *x, {', '.join(call.keywords(*call.options))})"
    kernels = [
        f"{device}=lambda *x: {text(eqn, form, call, mesh)}"
        for device, text in TEXTS.items()
        if (form := form_on(device, eqn, mesh)) is not None
    ]
    return f"{name}({', '.join([plain, *call.args, *kernels])})"


def _varying(eqn: Equation, mesh: Mesh) -> str:
    axes = {axis for value in (*eqn.operands, *eqn.results) for axis in value.type.varying(mesh)}
    return f"varying={tuple(axis for axis in mesh.names if axis in axes)}".replace("'", '"')


def splash_text(eqn: Equation, form: KernelForm, call: AttentionCall, mesh: Mesh) -> str:
    """Return `splash_attention(...)`."""
    block = block_of(form, eqn.operands[0].type.dtype)
    own = [f'row="{call.letters[form.row]}"', f"block={block}", _varying(eqn, mesh)]
    shards = form.row.size // form.sizes[form.row]
    own += [f"shards={shards}", *call.keywords("first")] if "first" in call.options else []
    options = ", ".join([*own, *call.keywords("band", "cap", "dtype")])
    return f"splash_{eqn.op}({call.form}, *x, {options})"


def cudnn_text(eqn: Equation, form: KernelForm, call: AttentionCall, mesh: Mesh) -> str:
    """Return `cudnn_attention(...)`. Heads are those dimensions of the keys along which a bias differs."""
    biases = eqn.operands[3:4] if ROLES.of(eqn.attrs) else ()
    heads = "".join(call.letters[dim] for bias in biases for dim in bias.type.dims if dim in form.batch)
    numbers = {"bf16": "jnp.bfloat16", "f16": "jnp.float16"}[eqn.operands[0].type.dtype]
    own = [f'row="{call.letters[form.row]}"', f'heads="{heads}"', f"numbers={numbers}", _varying(eqn, mesh)]
    options = ", ".join([*own, *call.keywords("band", "operand", "dtype")])
    return f"cudnn_{eqn.op}({call.form}, *x, {options})"


TEXTS: Mapping[str, Callable[[Equation, KernelForm, AttentionCall, Mesh], str]] = {
    "tpu": splash_text,
    "gpu": cudnn_text,
}
"""Platform -> the text of its kernel's call."""
