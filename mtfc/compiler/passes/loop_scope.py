"""Loops whose bodies ask for what they read and carry: values around them, and states that start as zeros."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from mtfc.compiler.ir.builder import Builder, Names
from mtfc.compiler.ir.core import Argument, Function, Output, Value
from mtfc.compiler.ir.loops import TICKS, by_role, make_loop, plain_loop
from mtfc.compiler.ir.types import Dim, TensorType, scalar


@attrs.define
class LoopScope:
    """The equations of one iteration of a loop, or of the function around all loops, which has no scope around it.

    given: value around -> argument. states: name -> what the loops carry under this name, as it is at this place. starts: name ->
    argument, where the loop of this scope carries it.
    """

    build: Builder
    around: LoopScope | None = None
    given: dict[Value, Argument] = attrs.field(factory=dict)
    states: dict[str, Value] = attrs.field(factory=dict)
    starts: dict[str, Value] = attrs.field(factory=dict)

    @property
    def top(self) -> Builder:
        """The builder of the function around all loops."""
        return self.build if self.around is None else self.around.top

    def inside(self, value: Value) -> Value:
        """Return the argument for a value of the scope around this one."""
        if value not in self.given:
            name = self.build.names.fresh(value.name)
            self.given[value] = Argument(Value(name, value.type), "invariant")
        return self.given[value].value

    def of_top(self, value: Value) -> Value:
        """Return what is a value of the function around all loops here."""
        return value if self.around is None else self.inside(self.around.of_top(value))

    def state(self, name: str, type: TensorType | None = None) -> Value:
        """Return what the loops carry under a name, which starts as zeros of a type. An earlier loop has given it without one."""
        if name not in self.states:
            if self.around is None:
                assert type is not None, f"no loop carries {name}"
                self.states[name] = self.build.zeros(type)
            else:
                start = self.around.state(name, type)
                self.states[name] = self.starts[name] = Value(self.build.names.fresh(name), start.type)
        assert type is None or self.states[name].type == type, name
        return self.states[name]

    def update(self, name: str, value: Value) -> None:
        self.states[name] = self.build.ordered(value, self.states[name].type.dims)

    def loop(self, dim: Dim, first: int | Value, body: Callable[[LoopScope, Value], None]) -> None:
        """Append a loop. `body` gets the scope of an iteration and its number: the number of the first one is `first`."""
        build = self.build
        inner = LoopScope(Builder(Names(), build.span, build.stage), self)
        count = Value(inner.build.names.fresh("number"), scalar("i32"))
        start = inner.inside(first) if isinstance(first, Value) else inner.build.constant(first, "i32")
        body(inner, inner.build("add", count, start, name="tick"))
        changed = {name: x for name, x in inner.starts.items() if inner.states[name] is not x}
        pairs = [(value, argument) for value, argument in inner.given.items()]
        for name, x in inner.starts.items():
            pairs.append((self.states[name], Argument(x, "carried" if name in changed else "invariant")))
        pairs.append((build("range", dim=dim), Argument(count, "sliced")))
        given = by_role(pairs)
        outputs = [Output(x.name, inner.states[name], x.name) for name, x in changed.items()]
        region = Function(TICKS, tuple(a for _, a in given), tuple(inner.build.body), tuple(outputs))
        loop = make_loop(build.names, region, [value for value, _ in given], plain_loop(dim, build))
        build.append(loop)
        self.states.update(zip(changed, loop.results, strict=True))
