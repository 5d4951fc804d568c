"""Expressions that are read once move into the line that reads them.

    mul = x * x                                   mean = jnp.sum(x * x, axis=-1) / 64.0
    sum = jnp.sum(mul, axis=-1)          ->
    mean = sum / 64.0

Lines are joined in one block and under one comment, where the result fits on one line. JAX traces the same equations; some stand
later. A line that binds a name anew by a copy, as at the end of a loop, ends a block.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mtfc.backends.common.repeats import MARK

_NAME = re.compile(f"{MARK}\\d+{MARK}")
_PARTS = re.compile(f"( *)(?:({MARK}\\d+{MARK}) = )?(.*)")
_LATER = re.compile(r"\b(?:lambda|for)\b")


def inlined(
    lines: Sequence[str], reads: Mapping[str, str], kept: Sequence[str], names: Sequence[str], width: int
) -> Iterable[str]:
    """Return lines with each expression that is read once in its reader, if the line then has at most `width` columns.

    reads: argument -> the text that reads it, for up to two readers. kept: names that keep their line. names: the name that each
    mark stands for.
    """
    counts = Counter(_NAME.findall("\n".join([*lines, *kept])))
    texts = {name: text for name, text in reads.items() if counts[name] <= 2}
    found, makers, block = dict[int, str](), dict[str, int](), ""
    for number, line in enumerate(lines):
        line = _NAME.sub(lambda name: texts.get(name[0], name[0]), line)
        indent, target, expression = _PARTS.findall(line)[0]
        if indent != block or expression[:1] == "#" or (counts[target] > 2 and _NAME.fullmatch(expression)):
            block, makers = indent, {}
        read = () if _LATER.search(expression) else _NAME.findall(expression)
        for name in filter(makers.__contains__, read):
            longer = _joined(found[makers[name]], line)
            if len(_NAME.sub(lambda mark: names[int(mark[0].strip(MARK))], longer)) <= width:
                line = longer
                del found[makers[name]]
        found[number] = line
        if counts[target] == 2:
            makers[target] = number
    return found.values()


def _joined(maker: str, reader: str) -> str:
    """Return the reader of a name with the name's expression, in parentheses where Python needs them."""
    name, expression = maker.strip().split(" = ", 1)
    left, right = reader.split(name)
    plain, start = f"{left}{expression}{right}", len(left.lstrip().encode())
    if " " not in expression and expression[0].isalpha():
        return plain
    try:
        nodes = ast.walk(ast.parse(plain.lstrip()))
    except SyntaxError:  # as of `10.astype`
        nodes = iter(())
    place = (start, start + len(expression.encode()))
    is_whole = any(isinstance(x, ast.expr) and (x.col_offset, x.end_col_offset) == place for x in nodes)
    return plain if is_whole else f"{left}({expression}){right}"
