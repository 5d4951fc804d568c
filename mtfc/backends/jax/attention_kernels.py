"""Texts of attention that call a kernel, where `analysis/attention_forms.py` finds a form that a kernel takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial

from mtfc.compiler.analysis.attention_forms import KernelForm, block_of, form_on, is_attention
from mtfc.compiler.ir.core import Equation, Function, Value, walk
from mtfc.compiler.ir.opdef import Code, Text
from mtfc.compiler.ir.ops.attention import ROLES, AttentionCall, call_of
from mtfc.compiler.ir.types import Mesh


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


# TPUs


def splash_text(eqn: Equation, form: KernelForm, call: AttentionCall, mesh: Mesh) -> str:
    """Return `splash_attention(...)`."""
    block = block_of(form, eqn.operands[0].type.dtype)
    own = [f'row="{call.letters[form.row]}"', f"block={block}", _varying(eqn, mesh)]
    shards = form.row.size // form.sizes[form.row]
    own += [f"shards={shards}", *call.keywords("first")] if "first" in call.options else []
    options = ", ".join([*own, *call.keywords("band", "cap", "dtype")])
    return f"splash_{eqn.op}({call.form}, *x, {options})"


# GPUs


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
