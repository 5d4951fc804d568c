"""Text that is no program, or almost one."""

import re
from typing import Any

from hypothesis import strategies as st

from tests.generators.programs import programs

WORDS = [
    "dim", "mesh", "layout", "on", "model", "param", "return", "train", "minimize", "report", "optimizer", "precision",
    "params", "value", "import", "fn", "repeat", "scan", "along", "yield", "state", "watch", "as", "checkpoint", "true",
    "false", "and", "or", "not", "f32", "bf16", "i32", "bool", "u32", "f64", "einsum", "sum", "mean", "max", "broadcast",
    "reshape", "rename", "slice", "pad", "concat", "shift", "range", "one_hot", "argmax", "where", "cast", "relu", "zeros",
    "full", "sgd", "momentum", "normal", "over", "x", "w", "h", "batch", "io", "rows", "cols", "loss", "clip", "accumulate",
]  # fmt: skip
SIGNS = (
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "->",
    "=",
    "==",
    ":",
    ",",
    ";",
    "\n",
    "+",
    "-",
    "*",
    "**",
    "/",
    "//",
    "<",
    "...",
    ".",
    "#",
)
NUMBERS = ("0", "1", "8", "0.5", "1e309", "1e-400", "007", "99999999999999999999999", "1.2.3", "-1", "2.")
ODD = ("\t", "\r\n", "\x00", "é", "ﬁ", "\u2028", "\ufeff", "😀", '"', "'", "`", "\\", "@", "$", "%")

TOKEN = re.compile(r"\"[^\"\n]*\"|\w+|->|\*\*|//|[<>=!]=|\s|.", re.DOTALL)


def tokens() -> st.SearchStrategy[str]:
    return st.sampled_from((*WORDS, *SIGNS, *NUMBERS, *ODD))


def arbitrary_text() -> st.SearchStrategy[str]:
    """Draw any text, or a sequence of the language's own tokens."""
    return st.text(max_size=200) | st.lists(tokens(), max_size=40).map(" ".join)


@st.composite
def mutated_programs(draw: Any) -> str:
    """Draw a program with a few of its tokens deleted, doubled, exchanged or replaced."""
    parts = TOKEN.findall(draw(programs()).source)
    for _ in range(draw(st.integers(1, 4))):
        parts = draw(edited(parts))
    return "".join(parts)


@st.composite
def edited(draw: Any, parts: list[str]) -> list[str]:
    i = draw(st.integers(0, len(parts) - 1))
    j = min(len(parts), i + draw(st.integers(1, 8)))
    kind = draw(st.sampled_from(("replace", "delete", "double", "insert", "exchange", "copy")))
    if kind == "replace":
        return [*parts[:i], draw(tokens()), *parts[i + 1 :]]
    if kind == "delete":
        return [*parts[:i], *parts[j:]] or ["x"]
    if kind == "double":
        return [*parts[:j], *parts[i:j], *parts[j:]]
    if kind == "insert":
        return [*parts[:i], draw(tokens()), *parts[i:]]
    other = draw(st.integers(0, len(parts) - 1))
    if kind == "copy":
        return [*parts[:i], parts[other], *parts[i + 1 :]]
    swapped = list(parts)
    swapped[i], swapped[other] = swapped[other], swapped[i]
    return swapped


def respaced(source: str, random: Any) -> str:
    """Draw the source with blanks, line breaks and comments where they change nothing."""
    parts, depth = [], 0
    for token in TOKEN.findall(source):
        depth += (token in "([") - (token in ")]")
        blanks = " " * random.choice((0, 0, 0, 1, 3))
        if depth > 0 and token in "([,":
            blanks += random.choice(("", "", "", "\n", "  # a comment\n"))
        if token == "\n":
            token = random.choice(("\n", "\n", "\n\n", "  # another\n", "\n# a line\n"))
        joined = token.isidentifier() or token[-1].isalnum() or token in "./<>=!-*"
        parts.append(token if joined else token + blanks)
    return "".join(parts)
