"""Build equations: the builder infers types by the ops' rules, and gives fresh names, the current span and the current stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.attributes import fitted
from mtfc.compiler.ir.core import Attr, Equation, Stage, Value
from mtfc.compiler.ir.opdef import form_error
from mtfc.compiler.ir.ops import OPS
from mtfc.compiler.ir.types import FLOATS, ITEM_BYTES, Dim, TensorType


class Names:
    """Gives names that are unique within one function: `h`, `h_2`, `h_3` ..."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, wanted: str) -> str:
        name, number = wanted, self._next.get(wanted, 2)
        while name in self._taken:
            name, number = f"{wanted}_{number}", number + 1
        self._next[wanted] = number
        self._taken.add(name)
        return name


class VerifyError(Exception):
    """An invariant does not hold: `reason` says which, `where` and `span` say where."""

    def __init__(self, reason: str, where: str, span: Span | None = None) -> None:
        super().__init__(f"{reason}\n  in {where}" + (f"\n  from {span}" if span else ""))
        self.reason, self.where, self.span = reason, where, span


def is_narrow(type: TensorType, dtype: str = "f32") -> bool:
    """Return True for floats of fewer bits than a dtype has."""
    return type.dtype in FLOATS and ITEM_BYTES[type.dtype] < ITEM_BYTES[dtype]


def wide_type(type: TensorType) -> TensorType:
    """Return the type with f32 in the place of floats of 16 bits."""
    return type.with_dtype("f32") if is_narrow(type) else type


class Builder:
    """Appends equations to `body`; they get the current `span` and `stage`."""

    def __init__(self, names: Names, span: Span | None = None, stage: Stage = "forward") -> None:
        self.names, self.span, self.stage = names, span, stage
        self.body: list[Equation] = []
        self._constants: dict[tuple[str, str], Value] = {}

    def __call__(self, op: str, *operands: Value, name: str = "", **attributes: Attr) -> Value:
        """Append one equation and return its only result.

        Raise `OpError` if the op refuses the operands, and `VerifyError` if the equation is malformed: see `several`.
        """
        (result,) = self.several(op, *operands, names=(name or op,), **attributes)
        return result

    def several(
        self, op: str, *operands: Value, names: Sequence[str], **attributes: Attr
    ) -> tuple[Value, ...]:
        """Append one equation and return its results, called `names`. Raise `OpError` if the op refuses the operands.

        Raise `VerifyError` if there is no such op, or if the op has other operands, attributes or results.
        """
        wrong = form_error(OPS[op], len(operands), attributes) if op in OPS else f"unknown op {op}"
        if wrong is not None:
            raise VerifyError(wrong, f"a new equation called {', '.join(names)}", self.span)
        types = OPS[op].infer([v.type.unsplit() for v in operands], attributes)
        if len(types) != len(names):
            raise VerifyError(f"{op} has {len(types)} results", f"a new equation called {', '.join(names)}")
        results = tuple(Value(self.names.fresh(name), type) for name, type in zip(names, types, strict=True))
        self.append(Equation(op, operands, results, attributes, span=self.span, stage=self.stage))
        return results

    def append(self, eqn: Equation) -> None:
        self.body.append(eqn)

    def replace(self, old: Equation, new: Equation) -> None:
        """Put `new` in the place of `old`."""
        self.body[self.body.index(old)] = new

    def constant(self, value: float | int | bool, dtype: str) -> Value:
        """Return the scalar `value`. Equal constants share one equation. Floats are rounded, too large ones to infinity."""
        value = fitted(value, dtype)
        key = (dtype, repr(value))  # `repr` tells 0.0 from -0.0
        if key not in self._constants:
            self._constants[key] = self("constant", name="c", value=value, dtype=dtype)
        return self._constants[key]

    def like(self, value: float | int | bool, other: Value) -> Value:
        """Return the scalar `value` in the dtype of `other`."""
        return self.constant(value, other.type.dtype)

    def zeros(self, type: TensorType) -> Value:
        """Return zeros of a type; of truth values false."""
        value = False if type.dtype == "bool" else 0.0 if type.dtype in FLOATS else 0
        return self("full", dims=type.dims, value=value, dtype=type.dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        return x if x.type.dtype == dtype else self("cast", x, dtype=dtype)

    def wide(self, x: Value) -> Value:
        """Cast a float of 16 bits to f32; return any other value as it is."""
        return self.cast(x, wide_type(x.type).dtype)

    def sum_to(self, x: Value, dims: Sequence[Dim]) -> Value:
        """Sum `x` over the dimensions that `dims` lacks: the transpose of a broadcast."""
        over = tuple(dim for dim in x.type.dims if dim not in dims)
        return self("sum", x, over=over) if over else x

    def einsum(self, *operands: Value, dims: Sequence[Dim]) -> Value:
        return self("einsum", *operands, dims=tuple(dims))

    def ordered(self, x: Value, dims: Sequence[Dim]) -> Value:
        """Return `x` with its dimensions in the given order."""
        return x if x.type.dims == tuple(dims) else self("transpose", x, dims=tuple(dims))

    def broadcast(self, x: Value, type: TensorType) -> Value:
        """Return `x` broadcast to the dimensions of `type`."""
        return x if set(type.dims) == set(x.type.dims) else self("broadcast", x, dims=type.dims)
