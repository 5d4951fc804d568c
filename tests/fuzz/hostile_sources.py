"""Sources that nobody would write: soups of tokens, deep nests, many of one thing, and mixtures of real files.

`check` must answer each within `SECONDS` of one processor and `MEMORY` bytes, and without an internal error. `python -m
tests.fuzz.hostile_sources SIZE NUMBER ...` checks large sources in a process of its own, which no other test has filled, and
`... FOR SECONDS` checks small ones, the first ones and then others for so many seconds. Both print JSON: the seconds of each
source, the most bytes of the process, and the source that took the most of them.
"""

import json
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from mtfc.driver.check import check_source
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.sources import Sources

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.mtf"))

SIZE = 10_000
"""Most characters of a source."""

SECONDS = 1.0
"""The time within which `check` answers a source of this size."""

LARGE, LARGE_SECONDS, MEMORY = 1_000_000, 10.0, 2**30
"""The characters of a large source, the time for it, and the most bytes of the process that checks sources of any size."""

FEW = 60
"""The number of small sources that are checked in any case."""

TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


def source(number: int) -> str:
    """Return the hostile source of a number."""
    rng = random.Random(number)
    return rng.choice(KINDS)(rng)[:SIZE]


def large(number: int, size: int) -> str:
    """Return a source of `size` characters that repeats things; `number` counts through the things and their places."""
    start, *rest = LARGE_SOURCES[number % len(LARGE_SOURCES)]
    rng = random.Random(number)
    fixed, pieces = [start, *rest[1::2]], rest[::2]
    room = (size - sum(map(len, fixed))) // len(pieces)
    text = start
    for piece, after in zip(pieces, [*fixed[1:], ""], strict=False):
        text += repeated(piece, room, rng, whole=bool(after)) + after
    return text[:size]


def repeated(piece: str, room: int, rng: random.Random, whole: bool) -> str:
    """Return the copies of a piece that fill the room, each with its number; the last one is cut off unless all are whole."""
    if not {"{i}", "{j}"} & set(re.findall(r"{\w}", piece)):
        return piece * (room // len(piece) + (not whole))
    count = room // len(piece) + 1
    lines, length = [], 0
    for i in range(count):
        line = piece.format(i=i, j=rng.randrange(count))
        length += len(line)
        if whole and length > room:
            break
        lines.append(line)
    return "".join(lines)


def soup(rng: random.Random) -> str:
    """Return tokens of real files in any order."""
    tokens = TOKEN.findall(rng.choice(EXAMPLES).read_text("utf-8"))
    return "".join(rng.choice(tokens) for _ in range(rng.randint(1, SIZE // 3)))


def mixture(rng: random.Random) -> str:
    """Return a real file with pieces cut, doubled and moved."""
    text = rng.choice(EXAMPLES).read_text("utf-8")[:SIZE]
    for _ in range(rng.randint(1, 12)):
        start, length = rng.randrange(len(text) + 1), rng.randint(1, 200)
        piece, place = text[start : start + length], rng.randrange(len(text) + 1)
        if rng.random() < 0.5:
            text = text[:start] + text[start + length :]
        text = text[:place] + piece * rng.randint(0, 3) + text[place:]
    return text


def nest(rng: random.Random) -> str:
    """Return an expression in thousands of others."""
    inside = rng.choice(["(", "[", "{", "-", "not ", "x + ", "relu(", "x ** ", "{a: "])
    start = rng.choice(
        ["model m(x: []) { y = ", "dim a = ", "layout l on m = ", "fn f(x: []) -> [] { return ", ""]
    )
    return start + inside * (SIZE // len(inside))


def many(rng: random.Random) -> str:
    """Return a program with very many of one thing."""
    count = rng.randint(50, 600)
    thing = rng.choice(THINGS)
    body = "\n".join(thing.format(i=i, j=rng.randrange(count)) for i in range(count))
    return rng.choice([body, f"model m(x: []) {{\n{body}\n  return x\n}}\n"])


def tower(rng: random.Random) -> str:
    """Return functions that each call the ones before several times; the last one may be long."""
    thing = rng.choice(REPEATED)
    body = "\n".join(thing.format(i=i, j=i + 1) for i in range(rng.randint(0, 300)))
    lines = ["dim a = 4", f"fn f0(x: [...]) -> [...] {{\ny0 = 1\n{body}\nreturn tanh(x)\n}}"]
    for i in range(1, rng.randint(3, 60)):
        calls = "x"
        for _ in range(rng.randint(1, 4)):
            calls = f"f{rng.randrange(i)}({calls})"
        lines.append(f"fn f{i}(x: [...]) -> [...] {{ return {calls} }}")
    last = f"y = f{len(lines) - 2}(x)"
    body = rng.choice([last, f"repeat n {{\nx = x + 1\n}}\n{last}"])
    models = [f"model m{i}(x: [a]) {{\n  {body}\n  return y\n}}" for i in range(rng.choice([1, 1, 40]))]
    use = rng.choice(
        ["", "placement p{i} on 2 = {{ y: {{}} on [0] }}", "layout l{i} on w = {{ value {v}: {{ a: w }} }}"]
    )
    uses = [use.format(i=i, v=rng.choice(["y", f"v{i}"])) for i in range(rng.choice([1, 1, 40]))]
    loop = f"dim n = {10 ** rng.randint(0, 15)}\nmesh w = [w: 2]"
    return "\n".join([*lines, loop, *models, *uses])


REPEATED = (
    "y{j} = y{i} + 1", "dim d{i} = {j}", "param p{i}: [] = zeros()", "z{i} = x\nwatch z{i}", "_{i} = x",
)  # fmt: skip


def axes(rng: random.Random) -> str:
    """Return a layout over very many axes of a mesh."""
    names = [f"a{i}" for i in range(rng.randint(2, 60))]
    some = rng.sample(names, rng.randint(1, len(names)))
    rules = "; ".join(f"{dim}: ({', '.join(some)})" for dim in rng.sample(["a", "b", "params", "*"], 2))
    sizes = ", ".join(f"{name}: {rng.choice([1, 2, 3])}" for name in names)
    return (
        f"dim a = {2 ** min(62, len(some))}\ndim b = 8\nmesh m = [{sizes}]\nlayout l on m = {{ {rules} }}\n"
        "model net(x: [a, b]) {\n  y = sum(x)\n  return y\n}\n"
    )


THINGS = (
    "dim a{i} = a{j} * 2",
    "dim a{i} = {i}",
    "mesh m{i} = [all: {i}]",
    "import nn",
    "  x = x + {i}",
    "  y{i} = einsum(y{j}, x -> [])",
    "  param w{i}: [] = zeros()",
    "  z{i} = x + {i}; watch z{i}",
    "fn f{i}(x: []) -> [] {{ return f{j}(x) }}",
    "model m{i}(x: []) {{ return m{j} }}",
    "train m{i} {{ minimize loss }}",
    "# {i}",
)

KINDS: tuple[Callable[[random.Random], str], ...] = (soup, mixture, nest, many, tower, axes)


BODY = "model m(x: []) {\n"

PIECES = (*"([{)]};,@\"'#\\\n\0é1-", "'\n", "not ", "x + ", "relu(", "x ** ", "1.", "e1", "||")
"""Texts to repeat."""

HEAD = "dim a = 4\ndim b = 8\nmesh m = [x: 2, y: 2]\nlayout l on m = { a: x }\n"
MODEL = HEAD + "model n(x: [a, b]) {\n"
END = "  return x\n}\n"

MACHINE = (
    "device d: {{ count: 256, flops: {{ f32: 1e12 }}, memory: 1e9, bandwidth: 1e9 }}\n"
    "link w: {{ kind: wire, between: [d, d], bandwidth: 1e9 }}"
)

WHOLE = (
    (MODEL, "  y{i} = u{j} + 1\n", END),
    (MODEL, "  y = u + 1\n", END),
    (MODEL, "  y{i} = f{j}(x)\n", END),
    (MODEL, "  x = tanh(x) + {i}\n", END),
    (MODEL, "  param w{i}: [a] = zeros()\n  x = x * w{i}\n", END),
    (MODEL, "  z{i} = x\n  watch z{i}\n", END),
    (MODEL, "  y{i} = x + 1\n", END, "layout l{i} on m = {{ value y{j}: {{ a: x }} }}\n"),
    (MODEL, "  x = x + 1\n", END, "placement p{i} on 2 = {{ x: {{}} on [0] }}\n"),
    (MODEL + "  y = einsum(", "x, ", "x -> [a])\n" + END),
    (HEAD, "model n{i}(x: [a]) {{ return x }}\n", "# layouts\n", "layout l{i} on m = {{ a: x }}\n"),
    (HEAD + "mesh big = [", "q{i}: 1, ", "z: 2]\nlayout k on big = { a: (", "q{j}, ", "z) }\n"),
    (HEAD, "dim d{i} = 2\n", MODEL[len(HEAD) :], "  param w{i}: [d{j}] = zeros()\n", END),
    (HEAD, "dim d{i} = 2\n", "layout k on m = {", "d{j}: x; ", "}\n" + MODEL[len(HEAD) :] + END),
    (HEAD, "dim d{i} = 2\n", "# models\n", "model n{i}(x: [u{j}]) {{ return x }}\n"),
    (HEAD, "hardware h{i} = {{\n" + MACHINE + "\n}}\n"),
    (MODEL, "  y{i} = x\n", END + "layout k on m = {\n", "  part y{j} on m: {{ a: x }}\n", "}\n"),
)
"""Large sources that are cut off nowhere: parts in turn that stand once, and that are repeated."""

LARGE_SOURCES: tuple[tuple[str, ...], ...] = WHOLE + tuple(
    (start, piece)
    for start, pieces in (
        ("", PIECES),
        (BODY + "y = ", PIECES),
        ("layout l on m = ", PIECES),
        ("", [f"{each}\n" for each in THINGS]),
        (BODY, [f"{each}\n" for each in THINGS]),
    )
    for piece in pieces
)


def check_text_of(text: str) -> float:
    """Check a text, and return the seconds of one processor. Raises the errors that a user would see as internal ones."""
    sources = Sources()
    sources.texts["hostile.mtf"] = text
    start = time.process_time()
    found = check_source("hostile.mtf", Choice(), sources)
    from mtfc.reports.diagnostic_text import render

    render(found, sources.with_library())
    return time.process_time() - start


def most_memory() -> int:
    """Return the largest number of bytes that this process has had in memory.

    On Linux, `getrusage` counts the memory of the process that started this one, too.
    """
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text("ascii", "replace")
        return 1024 * int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def small_numbers(seconds: float) -> Iterator[int]:
    """Yield the numbers of the first small sources, and then others for so many seconds."""
    yield from range(FEW)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield random.randrange(2**63)


def measured(texts: Iterable[tuple[int, str]]) -> dict[str, Any]:
    """Check texts, and return the record that the command prints."""
    check_text_of("")  # imports
    seconds, growth = dict[int, float](), dict[int, int]()
    for number, text in texts:
        before = most_memory()
        seconds[number] = check_text_of(text)
        growth[number] = most_memory() - before
    return {"seconds": seconds, "memory": most_memory(), "largest": max(growth, key=growth.__getitem__)}


if __name__ == "__main__":
    if sys.argv[1] == "FOR":
        found = measured((number, source(number)) for number in small_numbers(float(sys.argv[2])))
    else:
        size, *numbers = map(int, sys.argv[1:])
        found = measured((number, large(number, size)) for number in numbers)
    print(json.dumps(found))
