"""Small functions of JAX as Python text.

They have slices, pads, gathers, scatters, windows, loops, branches, sorts, dots, casts and gradients.
`jax_function` is a pure function of its seed. Sizes repeat, so that the import has axes that might be the same and are not. Each
statement binds one variable, so that a failing text is made small by leaving out statements.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs

SIZES = (1, 2, 2, 3, 4, 4, 6, 8)
NUMBERS = ("0.0", "1.0", "-1.0", "0.5", "2.0", "0.1", "1e-8", "-1e9", "-jnp.inf", "1e30")
MODES = ("clip", "fill", "promise_in_bounds")

Shape = tuple[int, ...]


@attrs.frozen
class Variable:
    """A variable with its shape. kind: f for floats, i for integers, b for truth values."""

    name: str
    shape: Shape
    kind: str


@attrs.define
class Statements:
    """A function that is being written. real: the dtype of its floats."""

    random: Random
    real: str
    lines: list[str] = attrs.field(factory=list)
    variables: list[Variable] = attrs.field(factory=list)

    def one(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(choices)

    def add(self, text: str, shape: Shape, kind: str = "f") -> Variable:
        """Bind a new variable."""
        found = Variable(f"v{len(self.lines)}", shape, kind)
        self.lines.append(f"{found.name} = {text}")
        self.variables.append(found)
        return found

    def pick(self, kind: str, least: int = 0) -> Variable:
        """Draw a variable with at least so many axes, mostly a new one."""
        fitting = [v for v in self.variables if v.kind == kind and len(v.shape) >= least and 0 not in v.shape]
        if fitting:
            return fitting[-1 - int(len(fitting) * self.random.random() ** 2)]
        shape = tuple(self.one(SIZES) for _ in range(max(least, 1)))
        made = {
            "f": f"jnp.ones({shape}, '{self.real}')",
            "i": f"jnp.zeros({shape}, 'int32')",
            "b": f"jnp.zeros({shape}, bool)",
        }
        return self.add(made[kind], shape, kind)

    def axis(self, x: Variable) -> int:
        return self.random.randrange(len(x.shape))

    def other(self, x: Variable) -> str:
        """Draw an operand that broadcasts against x."""
        fitting = [
            v.name for v in self.variables if v.kind == x.kind and v.shape in (x.shape, x.shape[1:], ())
        ]
        if self.random.random() < 0.3 or not fitting:
            return self.one(NUMBERS) if x.kind == "f" else str(self.random.randint(-2, 3))
        return self.one(fitting)


def replaced(shape: Shape, axis: int, *new: int) -> Shape:
    return (*shape[:axis], *new, *shape[axis + 1 :])


def pointwise(s: Statements) -> None:
    x = s.pick("f")
    unary = (
        "exp", "tanh", "sin", "cos", "sqrt", "abs", "sign", "square", "negative", "log1p", "floor", "log",
    )  # fmt: skip
    text = s.one((*(f"jnp.{each}({x.name})" for each in unary), f"jax.nn.relu({x.name})", f"jax.nn.gelu({x.name})", f"lax.rsqrt({x.name})",  # noqa: E501
                  f"{x.name} ** {s.one(('2', '3', '-1', '0.5', '1.5', '-0.5', '2.5'))}", f"jnp.clip({x.name}, -1.0, 1.0)",
                  f"jax.nn.sigmoid({x.name})", f"jnp.reciprocal({x.name})", f"lax.stop_gradient({x.name})"))  # fmt: skip
    s.add(text, x.shape)


def arithmetic(s: Statements) -> None:
    x = s.pick(s.one("fffi"))
    y = s.other(x)
    names = ("add", "subtract", "multiply", "maximum", "minimum") + (
        ("divide",) if x.kind == "f" else ("floor_divide", "remainder")
    )
    s.add(f"jnp.{s.one(names)}({x.name}, {y})", x.shape, x.kind)


def truth(s: Statements) -> None:
    x = s.pick(s.one("ffi"))
    s.add(f"{x.name} {s.one(('<', '<=', '>', '>=', '==', '!='))} {s.other(x)}", x.shape, "b")


def choice(s: Statements) -> None:
    x = s.pick("f")
    fitting = [v.name for v in s.variables if v.kind == "b" and v.shape in (x.shape, x.shape[1:], ())]
    s.add(f"jnp.where({s.one(fitting) if fitting else f'{x.name} > 0'}, {x.name}, {s.other(x)})", x.shape)


def sliced(s: Statements) -> None:
    x = s.pick("f", 1)
    axis = s.axis(x)
    size, stride = x.shape[axis], s.one((1, 1, 2, 3))
    start = s.random.randrange(size)
    stop = s.random.randint(start + 1, size)
    front = ":, " * axis
    kind = s.one(("slice", "back", "index", "dynamic", "split"))
    length = stop - start
    if kind == "slice":
        s.add(f"{x.name}[{front}{start}:{stop}:{stride}]", replaced(x.shape, axis, -(-length // stride)))
    elif kind == "back":
        s.add(f"{x.name}[{front}::-{stride}]", replaced(x.shape, axis, -(-size // stride)))
    elif kind == "index":
        s.add(f"{x.name}[{front}{s.random.randint(-size, size - 1)}]", replaced(x.shape, axis))
    elif kind == "dynamic":
        at = s.one(("1", "-1", "jnp.argmax(v0.ravel())"))
        s.add(f"lax.dynamic_slice_in_dim({x.name}, {at}, {length}, {axis})", replaced(x.shape, axis, length))
    elif size % 2 == 0:
        s.add(f"jnp.split({x.name}, 2, {axis})[{s.random.randint(0, 1)}]", replaced(x.shape, axis, size // 2))


def updated(s: Statements) -> None:
    x = s.pick("f", 1)
    size, method = x.shape[0], s.one(("set", "add", "multiply", "max", "min"))
    start, stride = s.random.randrange(size), s.one((1, 2))
    place = s.one((f"{start}::{stride}", f"{s.random.randint(-size, size - 1)}"))
    if s.random.random() < 0.4:
        kept = s.random.randint(1, size)
        s.add(
            f"lax.dynamic_update_slice_in_dim({x.name}, {x.name}[:{kept}] * 2, {s.random.randint(-1, size)}, 0)",
            x.shape,
        )
    else:
        s.add(f"{x.name}.at[{place}].{method}({s.one(NUMBERS[:6])})", x.shape)


def padded(s: Statements) -> None:
    x = s.pick("f", 1)
    axis = s.axis(x)
    size = x.shape[axis]
    low, high, inner = s.random.randint(-1, 2), s.random.randint(-1, 2), s.one((0, 0, 1, 2))
    found = size + low + high + inner * (size - 1)
    if found > 0:
        config = tuple((low, high, inner) if i == axis else (0, 0, 0) for i in range(len(x.shape)))
        s.add(
            f"lax.pad({x.name}, jnp.array({s.one(NUMBERS)}, {x.name}.dtype), {config})",
            replaced(x.shape, axis, found),
        )


def reshaped(s: Statements) -> None:
    x = s.pick("f", 1)
    axis = s.axis(x)
    size = x.shape[axis]
    kind = s.one(("split", "merge", "flat", "transpose", "expand", "broadcast", "flip"))
    if kind == "split":
        part = s.one([each for each in range(1, size + 1) if size % each == 0])
        shape = replaced(x.shape, axis, part, size // part)
    elif kind == "merge" and axis + 1 < len(x.shape):
        shape = (*x.shape[:axis], size * x.shape[axis + 1], *x.shape[axis + 2 :])
    elif kind == "transpose":
        order = s.random.sample(range(len(x.shape)), len(x.shape))
        s.add(f"jnp.transpose({x.name}, {tuple(order)})", tuple(x.shape[i] for i in order))
        return
    elif kind == "flip":
        s.add(f"jnp.flip({x.name}, {axis})", x.shape)
        return
    elif kind == "broadcast" and len(x.shape) < 3:
        shape = (s.one(SIZES), *x.shape)
        s.add(f"jnp.broadcast_to({x.name}, {shape})", shape)
        return
    elif kind == "expand":
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
    else:
        shape = (volume(x.shape),)
    if len(shape) < 5:
        s.add(f"{x.name}.reshape({shape})", shape)


def volume(shape: Shape) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


def reduced(s: Statements) -> None:
    x = s.pick("f", 1)
    axis = s.axis(x)
    name = s.one(("sum", "mean", "max", "min", "prod", "var"))
    if s.random.random() < 0.3:
        s.add(f"jnp.{name}({x.name}, {axis}, keepdims=True)", replaced(x.shape, axis, 1))
    elif s.random.random() < 0.2:
        s.add(f"jnp.{s.one(('argmax', 'argmin'))}({x.name}, {axis})", replaced(x.shape, axis), "i")
    else:
        s.add(f"jnp.{name}({x.name}, {axis})", replaced(x.shape, axis))


def normalized(s: Statements) -> None:
    x = s.pick("f", 1)
    axis = s.axis(x)
    if s.random.random() < 0.3:
        s.add(f"jax.nn.logsumexp({x.name}, {axis})", replaced(x.shape, axis))
    else:
        s.add(f"jax.nn.{s.one(('softmax', 'log_softmax', 'standardize'))}({x.name}, {axis})", x.shape)


def running(s: Statements) -> None:
    x = s.pick("f", 1)
    name, reverse = s.one(("cumsum", "cumsum", "cumprod", "cummax", "cumlogsumexp")), s.one(("True", "False"))
    s.add(f"lax.{name}({x.name}, {s.axis(x)}, reverse={reverse})", x.shape)


def sorted_values(s: Statements) -> None:
    x = s.pick("f", 1)
    axis = s.axis(x)
    kind = s.one(("sort", "argsort", "top_k", "rolled"))
    if kind == "top_k":
        k = s.random.randint(1, x.shape[-1])
        s.add(f"lax.top_k({x.name}, {k})[0]", (*x.shape[:-1], k))
    elif kind == "rolled":
        s.add(f"jnp.roll({x.name}, {s.random.randint(-3, 4)}, {axis})", x.shape)
    else:
        s.add(f"jnp.{kind}({x.name}, {axis})", x.shape, "f" if kind == "sort" else "i")


def gathered(s: Statements) -> None:
    x, i = s.pick("f", 1), s.pick("i")
    axis = s.axis(x)
    shape = replaced(x.shape, axis, *i.shape)
    kind = s.one(("take", "one_hot", "along"))
    if kind == "take" and len(shape) < 5:
        s.add(f"jnp.take({x.name}, {i.name}, {axis}, mode='{s.one(('clip', 'fill', 'wrap'))}')", shape)
    elif kind == "one_hot" and len(i.shape) < 3:
        count = s.one(SIZES)
        s.add(f"jax.nn.one_hot({i.name}, {count}, dtype='{s.real}')", (*i.shape, count))
    elif i.shape == x.shape:
        s.add(f"jnp.take_along_axis({x.name}, {i.name}, {axis}, mode='{s.one(('clip', 'fill'))}')", x.shape)


def scattered(s: Statements) -> None:
    x = s.pick("f", 1)
    count = s.one(SIZES)
    low, step = s.random.randint(-2, 1), s.one((0, 1, 1, 2))
    ids = f"jnp.arange({x.shape[0]}) * {step} + {low}"
    into = (count, *x.shape[1:])
    method = s.one(("add", "add", "set", "max", "multiply")) if step else s.one(("add", "max", "multiply"))
    mode = s.one(MODES[:2])
    text = f"jnp.ones({into}, {x.name}.dtype).at[{ids}].{method}({x.name}, mode='{'drop' if mode == 'fill' else mode}')"
    if not (method == "set" and mode == "clip"):  # several updates of one element, in any order
        s.add(text, into)


def windowed(s: Statements) -> None:
    x = s.pick("f", 1)
    size, extent, stride, low = x.shape[0], s.random.randint(1, 3), s.one((1, 1, 2)), s.one((0, 0, 1))
    count = (size + 2 * low - extent) // stride + 1
    if count < 1:
        return
    rest = (1,) * (len(x.shape) - 1)
    pads = ((low, low), *((0, 0) for _ in rest))
    start, function = s.one((("0.0", "lax.add"), ("-jnp.inf", "lax.max"), ("jnp.inf", "lax.min")))
    dims = f"{(extent, *rest)}, {(stride, *rest)}, {pads}"
    s.add(
        f"lax.reduce_window({x.name}, jnp.array({start}, {x.name}.dtype), {function}, {dims})",
        (count, *x.shape[1:]),
    )


def dotted(s: Statements) -> None:
    x = s.pick("f", 1)
    fitting = [v for v in s.variables if v.kind == "f" and len(v.shape) >= 1 and x.shape[-1] in v.shape]
    y = s.one(fitting)
    letters = "abcdefgh"
    left, at = letters[: len(x.shape)], y.shape.index(x.shape[-1])
    right = "".join(left[-1] if i == at else letters[4 + i] for i in range(len(y.shape)))
    if len(x.shape) > 4 or len(y.shape) > 4:
        return
    rest = [
        *zip(left[:-1], x.shape[:-1], strict=True),
        *((c, n) for c, n in zip(right, y.shape, strict=True) if c != left[-1]),
    ]
    rest = s.random.sample(rest, min(len(rest), 3))
    if volume(tuple(n for _, n in rest)) < 600:
        result = "".join(c for c, _ in rest)
        s.add(f"jnp.einsum('{left},{right}->{result}', {x.name}, {y.name})", tuple(n for _, n in rest))


def joined(s: Statements) -> None:
    x = s.pick("f", 1)
    axis = s.axis(x)
    y = s.one([v for v in s.variables if v.kind == "f" and v.shape == x.shape])
    if s.random.random() < 0.4 and len(x.shape) < 4:
        s.add(f"jnp.stack([{x.name}, {y.name}], {axis})", (*x.shape[:axis], 2, *x.shape[axis:]))
    else:
        s.add(f"jnp.concatenate([{x.name}, {y.name}], {axis})", replaced(x.shape, axis, 2 * x.shape[axis]))


def looped(s: Statements) -> None:
    x = s.pick("f", 1)
    kind, rest = s.one(("scan", "fori", "while", "cond", "map")), x.shape[1:]
    y = next((v for v in reversed(s.variables) if v.kind == "f" and v.shape == rest), None)
    start = y.name if y else f"jnp.zeros({rest}, {x.name}.dtype)"
    body = s.one(("jnp.tanh(c) + u", "c * u", "jnp.maximum(c, u)", "c + u * 2"))
    if kind == "scan":
        part = s.one((0, 1))
        text = f"lax.scan(lambda c, u: ({body}, c - u), {start}, {x.name}, reverse={s.one(('True', 'False'))})[{part}]"
        s.add(text, x.shape if part else rest)
    elif kind == "map":
        s.add(f"jax.vmap(lambda u: u * 2 - jnp.flip(u, 0) if u.ndim else u)({x.name})", x.shape)
    elif kind == "fori":
        s.add(f"lax.fori_loop(0, {s.random.randint(0, 3)}, lambda i, c: c * 0.5 + i, {x.name})", x.shape)
    elif kind == "while":
        s.add(
            f"lax.while_loop(lambda c: c[0] < {s.random.randint(1, 4)}, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, {x.name}))[1]",
            x.shape,
        )
    else:
        s.add(f"lax.cond({x.name}.ravel()[0] > 0, lambda: {x.name} * 2, lambda: jnp.cos({x.name}))", x.shape)


def cast(s: Statements) -> None:
    x = s.pick(s.one("fib"))
    to = s.one(("float32", "bfloat16", "float16", "int32", "bool"))
    y = s.add(f"{x.name}.astype('{to}')", x.shape, {"int32": "i", "bool": "b"}.get(to, "w"))
    if y.kind == "w":
        s.add(f"{y.name}.astype('{s.real}')", x.shape)


def counted(s: Statements) -> None:
    size = s.one(SIZES)
    s.add(f"jnp.arange({size}) * {s.random.randint(-1, 2)} + {s.random.randint(-1, 2)}", (size,), "i")


KINDS: tuple[Callable[[Statements], None], ...] = (
    pointwise, pointwise, arithmetic, arithmetic, truth, choice, sliced, sliced, updated, padded, reshaped, reshaped, reduced,
    normalized, running, sorted_values, gathered, scattered, windowed, dotted, dotted, joined, looped, looped, cast, counted,
)  # fmt: skip


@attrs.frozen
class JaxFunction:
    """The text of a function `f`, and the shape and the dtype of each argument."""

    text: str
    arguments: tuple[tuple[Shape, str], ...]

    def load(self) -> Callable[..., Any]:
        """Return the function."""
        import jax
        import jax.numpy as jnp
        from jax import lax

        names: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": lax}
        exec(self.text, names)
        function: Callable[..., Any] = names["f"]
        return function


def jax_function(seed: int) -> JaxFunction:
    """Return the function of a seed."""
    random = Random(seed)
    real = random.choice(("float32",) * 4 + ("bfloat16", "float16"))
    s, arguments = Statements(random, real), []
    for kind in ("f", "f", random.choice("fib")):
        shape = tuple(random.choice(SIZES) for _ in range(random.choice((0, 1, 2, 2, 3))))
        dtype = {"f": real, "i": "int32", "b": "bool"}[kind]
        arguments.append((shape, dtype))
        s.variables.append(Variable(f"v{len(s.lines)}", shape, kind))
        s.lines.append("")
    for _ in range(random.randint(2, 7)):
        random.choice(KINDS)(s)
        if volume(s.variables[-1].shape) > 2000:
            break
    own = [v for v in s.variables[3:] if v.kind != "w"] or s.variables[:1]
    results = [v.name for v in own[-random.randint(1, 3) :]]
    names = [f"v{i}" for i in range(3)]
    lines = [f"    {line}" for line in s.lines if line]
    floats = [v.name for v in own if v.kind == "f"]
    text = "\n".join([f"def g({', '.join(names)}):", *lines, f"    return {', '.join(results)},"])
    if floats and random.random() < 0.4:
        places = tuple(i for i, (_, dtype) in enumerate(arguments) if dtype == real)
        loss = " + ".join(f"jnp.sum({name}.astype('float32') ** 2)" for name in floats[-2:])
        body = "\n".join([f"def h({', '.join(names)}):", *lines, f"    return {loss}"])
        text += f"\n{body}\ndef f(*xs):\n    return g(*xs), jax.grad(h, {places})(*xs)\n"
    else:
        text += "\nf = g\n"
    return JaxFunction(text, tuple(arguments))
