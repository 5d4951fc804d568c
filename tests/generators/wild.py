"""Small models that care for no bounds: every op and function of the library on any operand, beside extreme numbers.

They are for the exact check, where no number overflows. `wild` is a pure function of its seed. It draws without Hypothesis,
which would take longer than the check. Some models are not legal: `mtfc check` says which.
"""

from collections.abc import Callable, Sequence
from random import Random

import attrs

NUMBERS = ("0.0", "1.0", "-1.0", "2.0", "0.5", "1.5", "0.1", "-0.3", "3.0", "7.0", "0.25", "1e-8", "1e-30", "-1e9", "-30000.0",
           "1e30", "-1e30", "3e38", "65504.0", "-4.0", "0.99", "1e4")  # fmt: skip
EXPONENTS = (
    "2.0", "3.0", "-1.0", "0.5", "-0.5", "1.5", "-1.5", "2.5", "0.25", "-2.0", "0.0", "1.0", "0.1", "0.333", "10.0", "1.7",
)  # fmt: skip
SIZES = (1, 2, 2, 3, 4, 4, 6)
MESHES = ((("x", 2),), (("x", 2), ("y", 2)), (("x", 2), ("y", 3)), (("x", 3),), (("x", 4),))
SMOOTH = ("relu", "exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt", "square", "abs", "sign", "erf", "sin", "cos", "floor",
          "stop_gradient")  # fmt: skip
SCALARS = ("gelu", "gelu_tanh", "silu", "softplus", "leaky_relu", "elu", "selu")

Dims = tuple[str, ...]


@attrs.frozen
class Value:
    """A variable, or another expression that needs no brackets."""

    text: str
    dims: Dims
    dtype: str


@attrs.define
class Writer:
    """A model that is being written. dims: the sizes of dimensions, by name. real: the dtype of most floats."""

    random: Random
    real: str
    dims: dict[str, int]
    lines: list[str] = attrs.field(factory=list)
    values: list[Value] = attrs.field(factory=list)
    imports: dict[str, None] = attrs.field(factory=dict)

    def one(self, choices: Sequence[str]) -> str:
        """Draw a text. In f16, numbers are small."""
        if self.real == "f16":
            choices = [each for each in choices if not each.endswith(("e9", "e30", "e38"))]
        return self.random.choice(choices)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def dim(self, size: int) -> str:
        """Declare a dimension."""
        name = f"d{len(self.dims)}"
        self.dims[name] = size
        return name

    def shape(self, most: int = 3) -> Dims:
        """Draw some of the first dimensions, in any order."""
        return tuple(self.random.sample(["n", "m", "k"], self.random.randint(0, most)))

    def add(self, text: str, dims: Dims, dtype: str) -> Value:
        """Bind a new variable."""
        value = Value(f"v{len(self.values)}", dims, dtype)
        self.lines.append(f"{value.text} = {text}")
        self.values.append(value)
        return value

    def pick(self, fits: Callable[[Value], bool]) -> Value | None:
        """Draw a value, mostly a new one."""
        fitting = [each for each in self.values if fits(each)]
        return fitting[-1 - int(len(fitting) * self.random.random() ** 2)] if fitting else None

    def float(self, least: int = 0) -> Value:
        """Draw a float with at least so many dimensions."""
        found = self.pick(lambda v: v.dtype == self.real and len(v.dims) >= least)
        return found or self.add(
            f"random.normal({typed(('n', 'm', 'k'), '')}, dtype = {self.real})", ("n", "m", "k"), self.real
        )

    def integer(self, most: int = 2) -> Value:
        found = self.pick(lambda v: v.dtype == "i32" and len(v.dims) <= most)
        return found or self.add("range(n)", ("n",), "i32")

    def truth(self, within: Dims | None = None) -> Value:
        """Draw a truth value, whose dimensions are among these."""
        allowed = set(within) if within is not None else set(self.dims)
        found = self.pick(lambda v: v.dtype == "bool" and set(v.dims) <= allowed)
        if found and self.chance(0.7):
            return found
        if within:
            dim = self.one(within)
            return Value(
                f"(range({dim}) {self.one(('<', '>=', '=='))} {self.random.randint(-1, 4)})", (dim,), "bool"
            )
        return (
            Value("(" + self.comparison_of(self.float())[0] + ")", (), "bool")
            if within is None
            else Value("true", (), "bool")
        )

    def partner(self, x: Value) -> str:
        """Draw an operand beside x: a number, or a value with some of the dimensions of x."""
        if self.chance(0.35):
            return self.one(NUMBERS) if x.dtype == self.real else str(self.random.randint(-3, 5))
        found = self.pick(lambda v: v.dtype == x.dtype and set(v.dims) <= set(x.dims))
        return found.text if found else x.text

    def comparison_of(self, x: Value) -> tuple[str, Dims]:
        return f"{x.text} {self.one(('<', '<=', '>', '>=', '==', '!='))} {self.partner(x)}", x.dims


def typed(dims: Dims, dtype: str) -> str:
    return f"{dtype}[{', '.join(dims)}]"


def without(dims: Dims, *gone: str) -> Dims:
    return tuple(dim for dim in dims if dim not in gone)


# Elementwise


def unary(w: Writer) -> None:
    x = w.float()
    w.add(w.one((*(f"{each}({x.text})" for each in SMOOTH), f"-{x.text}")), x.dims, x.dtype)


def binary(w: Writer) -> None:
    x = w.float() if w.chance(0.8) else w.integer(3)
    y = w.partner(x)
    operators = ("+", "-", "*", "/") if x.dtype == w.real else ("+", "-", "*")
    texts = [f"{x.text} {op} {y}" for op in operators]
    texts += [f"{y} {op} {x.text}" for op in operators if y[0] != "-"]
    texts += [f"{name}({a}, {b})" for name in ("minimum", "maximum") for a, b in ((x.text, y), (y, x.text))]
    w.add(w.one(texts), x.dims, x.dtype)


def power(w: Writer) -> None:
    x = w.float()
    w.add(w.one((f"{x.text} ** {w.one(EXPONENTS)}", f"{x.text} ** {w.partner(x)}", f"{w.one(NUMBERS[1:7])} ** {x.text}",
                 f"{w.partner(x)} ** {x.text}")), x.dims, x.dtype)  # fmt: skip


def comparison(w: Writer) -> None:
    text, dims = w.comparison_of(w.float() if w.chance(0.7) else w.integer(3))
    w.add(text, dims, "bool")


def logic(w: Writer) -> None:
    x = w.truth()
    y = w.truth(x.dims)
    w.add(
        w.one((f"not {x.text}", *(f"{x.text} {op} {y.text}" for op in ("and", "or", "==", "!=")))),
        x.dims,
        "bool",
    )


def choice(w: Writer) -> None:
    x = w.float() if w.chance(0.8) else w.integer(3)
    c, y = w.truth(x.dims), w.partner(x)
    w.add(w.one((f"where({c.text}, {x.text}, {y})", f"where({c.text}, {y}, {x.text})")), x.dims, x.dtype)


def masked(w: Writer) -> None:
    """Hide elements, whole rows too, and normalize."""
    x = w.float(1)
    c, least = w.truth(x.dims), w.one(("-1e9", "-1e30", "-30000.0", "0.0", "-3e38"))
    y = w.add(f"where({c.text}, {x.text}, {least})", x.dims, x.dtype)
    w.imports["nn"] = None
    dim = w.one(y.dims)
    kind = w.one(("softmax", "log_softmax", "logsumexp", "max", "own"))
    if kind == "max":
        w.add(f"max({y.text}, over = {dim})", without(y.dims, dim), y.dtype)
    elif kind == "own":
        top = w.add(f"maximum(max({y.text}, over = {dim}), {least})", without(y.dims, dim), y.dtype)
        e = w.add(f"exp({y.text} - {top.text})", y.dims, y.dtype)
        w.add(
            f"{e.text} / (sum({e.text}, over = {dim}) + {w.one(('0.0', '1e-30', '1e-8'))})", y.dims, y.dtype
        )
    else:
        w.add(f"nn.{kind}({y.text}, {dim})", without(y.dims, dim) if kind == "logsumexp" else y.dims, y.dtype)


def conversion(w: Writer) -> None:
    x = w.pick(lambda v: True) or w.float()
    dtype = w.one((w.real, w.real, "i32", "bool", "bf16", "f16", "f64", "u32"))
    y = w.add(f"cast({x.text}, {dtype})", x.dims, dtype)
    if dtype not in (w.real, "i32", "bool"):
        w.add(f"cast({y.text}, {w.real})", x.dims, w.real)


# Reductions and dots


def reduction(w: Writer) -> None:
    x = w.float() if w.chance(0.8) else w.integer(3)
    over = w.random.sample(x.dims, w.random.randint(0, len(x.dims)))
    names = ("sum", "mean", "max", "min", "prod") if x.dtype == w.real else ("sum", "max", "min")
    w.add(
        f"{w.one(names)}({x.text} -> [{', '.join(without(x.dims, *over))}])", without(x.dims, *over), x.dtype
    )


def truths(w: Writer) -> None:
    x = w.truth()
    over = w.random.sample(x.dims, w.random.randint(0, len(x.dims)))
    w.add(
        f"{w.one(('any', 'all'))}({x.text} -> [{', '.join(without(x.dims, *over))}])",
        without(x.dims, *over),
        "bool",
    )


def place(w: Writer) -> None:
    x = w.float(1)
    dim = w.one(x.dims)
    w.add(f"argmax({x.text}, over = {dim})", without(x.dims, dim), "i32")


def dot(w: Writer) -> None:
    terms = [w.float() for _ in range(w.random.randint(1, 3))]
    union = list(dict.fromkeys(dim for each in terms for dim in each.dims))
    kept = tuple(w.random.sample(union, w.random.randint(0, len(union))))[:4]
    w.add(f"einsum({', '.join(each.text for each in terms)} -> [{', '.join(kept)}])", kept, w.real)


def grouped(w: Writer) -> None:
    x = w.float(1)
    row = w.one(x.dims)
    groups, out = w.dim(w.random.choice(SIZES)), w.dim(w.random.choice(SIZES))
    ids = w.add(f"range({row}) - {w.random.randint(0, 2)}", (row,), "i32")
    inner = without(x.dims, row)
    weight = w.add(
        f"random.normal([{', '.join((groups, *inner, out))}], dtype = {w.real})",
        (groups, *inner, out),
        w.real,
    )
    w.add(f"grouped_dot({x.text}, {weight.text}, {ids.text}, {groups} -> [{row}, {out}])", (row, out), w.real)


# Shapes


def broadcast(w: Writer) -> None:
    x = w.float()
    more = [dim for dim in ("n", "m", "k") if dim not in x.dims]
    if more and len(x.dims) < 4:
        dims = (*x.dims, w.one(more))
        dims = tuple(w.random.sample(dims, len(dims)))
        w.add(f"broadcast({x.text} -> [{', '.join(dims)}])", dims, x.dtype)


def transpose(w: Writer) -> None:
    x = w.float(2)
    dims = tuple(w.random.sample(x.dims, len(x.dims)))
    w.add(f"transpose({x.text} -> [{', '.join(dims)}])", dims, x.dtype)


def reshape(w: Writer) -> None:
    x = w.float(1)
    at = w.random.randrange(len(x.dims))
    if w.chance(0.5) and at + 1 < len(x.dims):
        merged = w.dim(w.dims[x.dims[at]] * w.dims[x.dims[at + 1]])
        dims = (*x.dims[:at], merged, *x.dims[at + 2 :])
    else:
        size = w.dims[x.dims[at]]
        part = w.random.choice([each for each in range(1, size + 1) if size % each == 0])
        dims = (*x.dims[:at], w.dim(part), w.dim(size // part), *x.dims[at + 1 :])
    w.add(f"reshape({x.text} -> [{', '.join(dims)}])", dims, x.dtype)


def rename(w: Writer) -> None:
    x = w.float(1)
    dim = w.one(x.dims)
    new = w.dim(w.dims[dim])
    w.add(f"rename({x.text}, {dim} -> {new})", tuple(new if d == dim else d for d in x.dims), x.dtype)


def sliced(w: Writer) -> None:
    x = w.float(1)
    dim = w.one(x.dims)
    size, stride = w.dims[dim], w.random.choice((1, 1, 2, 3))
    start = w.random.randrange(size)
    short = w.dim(w.random.randint(1, 1 + (size - 1 - start) // stride))
    text = f"slice({x.text}, {dim} -> {short}, start = {start}, stride = {stride})"
    w.add(text, tuple(short if d == dim else d for d in x.dims), x.dtype)


def padded(w: Writer) -> None:
    x = w.float(1)
    dim = w.one(x.dims)
    before = w.random.randint(0, 3)
    long = w.dim(w.dims[dim] + before + w.random.randint(0, 2))
    text = f"pad({x.text}, {dim} -> {long}, before = {before}, value = {w.one(NUMBERS)})"
    w.add(text, tuple(long if d == dim else d for d in x.dims), x.dtype)


def joined(w: Writer) -> None:
    x = w.float(1)
    y = w.pick(lambda v: v.dims == x.dims and v.dtype == x.dtype) or x
    dim = w.one(x.dims)
    both = w.dim(2 * w.dims[dim])
    w.add(
        f"concat({x.text}, {y.text}, {dim} -> {both})",
        tuple(both if d == dim else d for d in x.dims),
        x.dtype,
    )


def stacked(w: Writer) -> None:
    x = w.float()
    y = w.pick(lambda v: v.dims == x.dims and v.dtype == x.dtype) or x
    if len(x.dims) < 4:
        w.add(f"stack([{x.text}, {y.text}], {(two := w.dim(2))})", (two, *x.dims), x.dtype)


def shifted(w: Writer) -> None:
    x = w.float(1)
    dim, by = w.one(x.dims), w.random.randint(-4, 5)
    w.add(f"shift({x.text}, {dim}, by = {by}, wrap = {w.one(('true', 'false'))})", x.dims, x.dtype)


def windows(w: Writer) -> None:
    x = w.float(1)
    dim = w.one(x.dims)
    size, dilation, stride = w.dims[dim], w.random.choice((1, 1, 2)), w.random.choice((1, 1, 2))
    kernel, low, high = w.random.randint(1, 3), w.random.randint(0, 2), w.random.randint(0, 2)
    count = (size + low + high - (kernel - 1) * dilation - 1) // stride + 1
    if count < 1 or len(x.dims) > 3:
        return
    outer = dim if count == size and w.chance(0.5) else w.dim(count)
    inner = w.dim(kernel)
    options = f"stride = {stride}, padding = ({low}, {high}), dilation = {dilation}, value = {w.one(NUMBERS)}"
    dims = tuple(new for d in x.dims for new in ((outer, inner) if d == dim else (d,)))
    found = w.add(f"window({x.text}, {dim} -> [{outer}, {inner}], {options})", dims, x.dtype)
    w.add(
        f"{w.one(('sum', 'max', 'mean', 'min'))}({found.text}, over = {inner})", without(dims, inner), x.dtype
    )


def gathered(w: Writer) -> None:
    x, ids = w.float(1), w.integer(1)
    dim = w.one(x.dims)
    rest = tuple(d for d in x.dims if d != dim and d not in ids.dims)
    if dim not in ids.dims and len(rest) + len(ids.dims) < 4:
        w.add(f"gather({x.text}, {ids.text}, {dim})", (*ids.dims, *rest), x.dtype)


def scattered(w: Writer) -> None:
    x = w.float(1)
    along = w.one(x.dims)
    ids = w.pick(lambda v: v.dtype == "i32" and v.dims == (along,)) or w.add(
        f"range({along}) - 1", (along,), "i32"
    )
    size = w.dim(w.random.choice(SIZES))
    dims = (size, *without(x.dims, along))
    w.add(f"scatter_add({x.text}, {ids.text}, {size}, [{', '.join(dims)}])", dims, x.dtype)


def running(w: Writer) -> None:
    x = w.float(1)
    options = f"exclusive = {w.one(('true', 'false'))}, reverse = {w.one(('true', 'false'))}"
    w.add(f"cumsum({x.text}, over = {w.one(x.dims)}, {options})", x.dims, x.dtype)


def chosen(w: Writer) -> None:
    x = w.float(1)
    dim = w.one(x.dims)
    k = w.dim(w.random.randint(1, w.dims[dim]))
    dims = tuple(k if d == dim else d for d in x.dims)
    a, b = Value(f"v{len(w.values)}", dims, x.dtype), Value(f"v{len(w.values) + 1}", dims, "i32")
    w.lines.append(f"{a.text}, {b.text} = top_k({x.text}, {dim} -> {k})")
    w.values += [a, b]


# New values


def drawn(w: Writer) -> None:
    dims = w.shape()
    kind = w.one(("uniform", "normal", "bernoulli"))
    if kind == "bernoulli":
        w.add(f"random.bernoulli([{', '.join(dims)}], {w.one(('0.5', '0.0', '1.0', '0.3'))})", dims, "bool")
    else:
        w.add(f"random.{kind}([{', '.join(dims)}], dtype = {w.real})", dims, w.real)


def made(w: Writer) -> None:
    x, dim = w.float(), w.one(("n", "m", "k"))
    kind = w.random.randrange(5)
    if kind == 0:
        w.add(f"cast(range({dim}), {w.real}) * {w.one(NUMBERS)}", (dim,), w.real)
    elif kind == 1:
        ids = w.integer(2)
        if dim not in ids.dims:
            w.add(f"one_hot({ids.text}, {dim}, dtype = {w.real})", (*ids.dims, dim), w.real)
    elif kind == 2:
        w.add(f"full([{dim}], {w.one(NUMBERS)}, dtype = {w.real})", (dim,), w.real)
    elif kind == 3:
        w.add(f"zeros_like({x.text})", x.dims, x.dtype)
    else:
        w.add(f"range({dim}) * {w.random.randint(-2, 3)} - {w.random.randint(0, 4)}", (dim,), "i32")


def slope(w: Writer) -> None:
    """Differentiate within the model, and use the gradient."""
    y, x = w.float(), w.float()
    w.add(f"gradients(sum({y.text}) + sum({x.text}), {x.text})", x.dims, x.dtype)


def loop(w: Writer) -> None:
    """Repeat an update of a value, at times until a condition on data fails."""
    x, y = w.float(), w.float()
    inner = y.text if set(y.dims) <= set(x.dims) else w.one(NUMBERS[1:8])
    name, count = f"u{len(w.values)}", w.dim(w.random.choice((1, 2, 3)))
    w.lines.append(f"{name} = {x.text}")
    until = f" while sum({name}) {w.one(('<', '>', '!='))} {w.one(NUMBERS)}" if w.chance(0.3) else ""
    update = w.one(
        (
            f"{name} * {inner} + 0.5",
            f"tanh({name}) + {inner}",
            f"maximum({name}, {inner}) - 1.0",
            f"{name} / 2.0",
        )
    )
    w.lines.append(f"repeat {count}{' checkpoint' if w.chance(0.2) else ''}{until} {{ {name} = {update} }}")
    w.values.append(Value(name, x.dims, x.dtype))


# The library


def scalar_function(w: Writer) -> None:
    w.imports["nn"] = None
    x = w.float()
    w.add(f"nn.{w.one(SCALARS)}({x.text})", x.dims, x.dtype)


def normalized(w: Writer) -> None:
    w.imports["nn"] = None
    x = w.float(1)
    dim, name = w.one(x.dims), f"v{len(w.values)}"
    kind = w.one(
        (
            "softmax",
            "log_softmax",
            "logsumexp",
            *(("layer_norm", "rms_norm", "batch_norm", "dropout") if w.real == "f32" else ()),
        )
    )
    if kind == "batch_norm":
        w.add(f"nn.batch_norm[channels = {dim}]({x.text}) as {name}", x.dims, x.dtype)
    elif kind == "dropout":
        w.add(f"nn.dropout({x.text}, rate = {w.one(('0.5', '0.1', '0.0'))})", x.dims, x.dtype)
    else:
        dims = without(x.dims, dim) if kind == "logsumexp" else x.dims
        named = f" as {name}" if kind.endswith("norm") else ""
        w.add(f"nn.{kind}({x.text}, {dim}){named}", dims, x.dtype)


def losses(w: Writer) -> None:
    w.imports |= {"nn": None, "losses": None, "tensors": None}
    x = w.float(1)
    dim, kind = w.one(x.dims), w.random.randrange(5)
    ids = w.pick(lambda v: v.dtype == "i32" and v.dims == without(x.dims, dim))
    if kind == 0 and w.real == "f32":
        w.add(f"losses.sigmoid_cross_entropy({x.text}, sigmoid({x.text}))", (), "f32")
    elif kind == 1:
        w.add(f"losses.z_loss[vocab = {dim}]({x.text})", (), "f32")
    elif kind == 2 and ids is not None:
        w.add(
            f"nn.cross_entropy[vocab = {dim}]({x.text}, {ids.text}, smoothing = {w.one(('0.0', '0.1'))})",
            ids.dims,
            "f32",
        )
    elif kind == 3:
        w.add(
            f"tensors.nth_largest({x.text}, {dim}, n = {w.random.randrange(w.dims[dim])})",
            without(x.dims, dim),
            x.dtype,
        )
    else:
        by = w.one(("3", "-2", "cast(v0, i32)" if not w.values[0].dims else "1"))
        w.add(
            f"tensors.dynamic_shift({x.text}, {by}, {dim}, wrap = {w.one(('true', 'false'))})",
            x.dims,
            x.dtype,
        )


def dense(w: Writer) -> None:
    if w.real != "f32":
        return
    w.imports |= {"nn": None}
    x = w.float(1)
    name, inner = f"v{len(w.values)}", w.dim(w.random.choice(SIZES))
    last = x.dims[-1]
    texts = {
        f"nn.dense[d_in = {last}, d_out = {inner}]({x.text}) as {name}": (*x.dims[:-1], inner),
        f"nn.feed_forward[d_model = {last}, d_ff = {inner}]({x.text}) as {name}": x.dims,
        f"nn.swiglu[d_model = {last}, d_ff = {inner}]({x.text}) as {name}": x.dims,
    }
    text = w.one([*texts])
    w.add(text, texts[text], "f32")


def attention(w: Writer) -> None:
    """Attention by hand and of the library, with masks that hide whole rows."""
    w.imports["attention"] = None
    heads, length, memory, key = (
        w.dim(w.random.choice(each)) for each in ((1, 2), (2, 4), (1, 2, 4), (2, 4))
    )
    w.dims[memory] = w.dims[memory] if w.chance(0.5) else w.dims[length]
    q = w.add(f"random.normal([{heads}, {length}, {key}], dtype = {w.real})", (heads, length, key), w.real)
    k, v = (
        w.add(f"random.normal([{heads}, {memory}, {key}], dtype = {w.real})", (heads, memory, key), w.real)
        for _ in range(2)
    )
    scale = w.add(f"{q.text} * {w.one(('1.0', '0.5', 'rsqrt(4.0)'))}", q.dims, w.real)
    masks = ["true", f"range({memory}) < {w.random.randint(0, 2)}", f"range({length}) >= 1"]
    if w.dims[length] == w.dims[memory]:
        masks.append(f"attention.causal[length = {length}, memory = {memory}]()")
    mask = w.one(masks)
    if w.chance(0.5):
        text = f"attention.dot_product[memory = {memory}, d_k = {key}]({scale.text}, {k.text}, {v.text}, mask = {mask})"
        w.add(text, (heads, length, key), w.real)
        return
    w.imports["nn"] = None
    s = w.add(
        f"einsum({scale.text}, {k.text} -> [{heads}, {length}, {memory}])", (heads, length, memory), w.real
    )
    if mask != "true":
        s = w.add(f"where({mask}, {s.text}, {w.one(('-1e9', '-1e30', '-30000.0'))})", s.dims, w.real)
    p = w.add(f"nn.softmax({s.text}, {memory})", s.dims, w.real)
    w.add(f"einsum({p.text}, {v.text} -> [{heads}, {length}, {key}])", (heads, length, key), w.real)


NETWORKS: tuple[tuple[str, Dims, str], ...] = (
    ("attention", ("length", "model"), "attention.multi_head[memory = memory, heads = heads, d_k = key]({x}, mask = {mask})"),
    ("attention", ("length", "model"), "attention.multi_query[memory = memory, heads = heads, d_k = key]({x}, mask = {mask})"),
    ("attention", ("length", "model"),
     "attention.grouped_query[memory = memory, groups = groups, heads = heads, d_k = key]({x}, mask = {mask})"),
    ("attention", ("length", "model"), "attention.local[blocks = two, block = half, memory = memory2, heads = heads, d_k = key]({x})"),  # noqa: E501
    ("attention", ("length", "model"), "attention.rotary[length = length, d = model]({x})"),
    ("attention", ("length", "model"), "attention.compressed[memory = half, kernel = two, heads = heads, d_k = key]({x}, stride = 2)"),  # noqa: E501
    ("conv", ("length", "model"), "conv.conv1d[out_length = length, k_length = three, filters = wide]({x})"),
    ("conv", ("length", "model"), "conv.max_pool1d[out_length = half, k_length = two]({x})"),
    ("conv", ("length", "model"), "conv.avg_pool1d[out_length = half, k_length = two]({x})"),
    ("conv", ("length", "model"), "conv.depthwise_conv1d[out_length = length, k_length = three]({x})"),
    ("conv", ("length", "model"), "conv.local_response_norm[near = three]({x}, alpha = 0.5)"),
    ("conv", ("length", "model"), "conv.conv_transpose1d[out_length = double, k_length = two, filters = wide]({x})"),
    ("rnn", ("length", "model"), "rnn.lstm[time = length, hidden = wide]({x})"),
    ("rnn", ("length", "model"), "rnn.gru[time = length, hidden = wide]({x})"),
    ("moe", ("groups", "length", "model"), "moe.top_1[experts = two, capacity = three, d_ff = wide]({x})"),
    ("moe", ("groups", "length", "model"), "moe.top_2[experts = two, capacity = three, d_ff = wide]({x})"),
    ("moe", ("groups", "length", "model"), "moe.dropless_top_1[experts = two, d_ff = wide]({x})"),
    ("moe", ("groups", "length", "model"), "moe.dropless_top_2[experts = two, d_ff = wide]({x})"),
    ("transformer", ("length", "model"), "transformer.encoder_layer[memory = memory, heads = heads, d_k = key, d_ff = wide]({x})"),  # noqa: E501
    ("transformer", ("length", "model"), "transformer.decoder_layer[memory = memory, heads = heads, d_k = key, d_ff = wide]({x})"),  # noqa: E501
    ("transformer", ("length", "model"),
     "transformer.llama_layer[memory = memory, groups = groups, heads = heads, d_k = key, d_ff = wide]({x})"),
    ("nn", ("groups", "length", "model"), "nn.group_norm[batch = groups, channels = model, groups = two]({x})"),
    ("nn", ("length", "model"), "nn.tracked_batch_norm[channels = model]({x})"),
)  # fmt: skip
"""Module, dimensions of the operand, and call."""


def network(w: Writer) -> None:
    """Call a function of the library that has dimensions of its own."""
    if w.real != "f32" or "length" in w.dims:
        return
    length = w.random.choice((2, 4))
    w.dims |= {"length": length, "memory": length, "half": length // 2, "double": 2 * length, "memory2": length,
               "model": w.random.choice((2, 4)), "heads": 2, "groups": 2, "key": 2, "wide": w.random.choice((2, 3, 4)),
               "two": 2, "three": 3}  # fmt: skip
    module, dims, call = w.random.choice(NETWORKS)
    w.imports[module] = None
    x = w.add(f"random.normal([{', '.join(dims)}])", dims, "f32")
    mask = w.one(("true", "range(memory) < 1", "range(length) >= 1", "false"))
    if mask == "range(length) >= 1" and w.chance(0.5):
        w.imports["attention"] = None
        mask = "attention.causal[length = length, memory = memory]()"
    name = f"v{len(w.values)}"
    pair = ", balance" if module == "moe" else ""
    w.lines.append(f"{name}{pair} = {call.format(x=x.text, mask=mask)} as net")
    w.lines.append(f"s{name} = mean({name})")
    w.values.append(Value(f"s{name}", (), "f32"))
    if pair:
        w.values.append(Value("balance", (), "f32"))


KINDS: tuple[Callable[[Writer], None], ...] = (
    unary, unary, binary, binary, power, comparison, logic, choice, masked, conversion, reduction, reduction, truths, place, dot,
    dot, grouped, broadcast, transpose, reshape, rename, sliced, padded, joined, stacked, shifted, windows, gathered, scattered,
    running, chosen, drawn, made, slope, loop, scalar_function, normalized, losses, dense, attention, network,
)  # fmt: skip

OPTIMIZERS = ("sgd(learning_rate = 0.1)", "momentum(learning_rate = 0.01)", "nesterov(learning_rate = 0.1)", "adam(learning_rate = 1e-3)",  # noqa: E501
              "adamw(learning_rate = 3e-4, weight_decay = 0.1)", "adafactor(learning_rate = 0.01)", "sgdw(learning_rate = 1e-2)",
              "adam(learning_rate = schedules.cosine(step, peak = 1e-3, warmup = 3, steps = 10))",
              "sgd(learning_rate = schedules.warmup_rsqrt(step))")  # fmt: skip


def training(w: Writer) -> str:
    """Return a `train` block."""
    entries = ["minimize loss", f"optimizer = {w.one(OPTIMIZERS)}"]
    if "schedules" in entries[1]:
        w.imports["schedules"] = None
    for entry, share in (
        ("clip = 1.0", 0.3),
        ("accumulate = 2", 0.15),
        ("average = 0.99", 0.15),
        ("report grad_norm", 0.2),
    ):
        entries += [entry] * w.chance(share)
    if w.real == "f32" and w.chance(0.2):
        entries.append(
            f"precision = {{ params: f32, compute: {w.one(('bf16', 'f16'))}, loss_scale: {w.one(('64', 'dynamic'))} }}"
        )
    return "\ntrain m {\n" + "".join(f"  {entry}\n" for entry in entries) + "}\n"


def layout(w: Writer, mesh: Sequence[tuple[str, int]], used: Sequence[str]) -> str:
    """Return rules for some dimensions whose sizes the axes divide."""
    rules = {}
    for name, size in mesh:
        fitting = [dim for dim in used if w.dims[dim] % size == 0 and dim not in rules]
        rules |= dict.fromkeys(
            w.random.sample(fitting, min(len(fitting), w.random.choice((1, 1, 1, 2)))), name
        )
    return ", ".join(f"{dim}: {axis}" for dim, axis in rules.items())


@attrs.frozen
class WildModel:
    """A model without layouts, and its layouts, of which some may be illegal."""

    text: str
    mesh: str
    layouts: tuple[str, ...]

    def source(self, layouts: Sequence[str]) -> str:
        """Return the file with some layouts."""
        declared = "".join(f"layout l{i} on grid = {{ {rules} }}\n" for i, rules in enumerate(layouts))
        return f"{self.text}\nmesh grid = [{self.mesh}]\n{declared}"


def wild(seed: int) -> WildModel:
    """Return the model of a seed."""
    random = Random(seed)
    real = random.choice(("f32", "f32", "f32", "f32", "f64", "bf16", "f16"))
    w = Writer(random, real, {name: random.choice(SIZES) for name in ("n", "m", "k")})
    arguments = []
    for name in ("x", "y"):
        dims = w.shape()
        arguments.append(f"{name}: {typed(dims, real)}")
        w.values.append(Value(name, dims, real))
    arguments.append(f"i: {typed(dims := w.shape(2), 'i32')}")
    w.values.append(Value("i", dims, "i32"))
    w.lines.append(f"param p: {typed(dims := w.shape(), real)} = normal(stddev = 0.5)")
    w.values.append(Value("p", dims, real))
    for _ in range(random.randint(2, 7)):
        random.choice(KINDS)(w)
    floats = [each for each in w.values if each.dtype == real][-random.randint(1, 3) :]
    terms = " + ".join(f"{w.one(('sum', 'mean'))}({each.text})" for each in floats)
    w.lines.append(f"loss = sum(p) + {terms}")
    trains = random.random() < 0.5
    outputs = ["loss", *(each.text for each in w.values[4:] if each.text != "loss")]
    block = training(w) if trains else ""
    text = "".join(f"import {each}\n" for each in w.imports) + "".join(
        f"dim {dim} = {size}\n" for dim, size in w.dims.items()
    )
    body = "".join(f"  {line}\n" for line in w.lines)
    text += f"\nmodel m({', '.join(arguments)}) {{\n{body}  return {', '.join(outputs)}\n}}\n{block}"
    mesh = random.choice(MESHES)
    layouts = dict.fromkeys(layout(w, mesh, [*w.dims]) for _ in range(3))
    return WildModel(text, ", ".join(f"{name}: {size}" for name, size in mesh), tuple(layouts))
