"""Small programs of products of pending sums: every value is a sum over a split batch, or made from others by few ops."""

from typing import Any

import attrs
from hypothesis import strategies as st

DIMS = {"p": 4, "q": 6, "r": 2}
SUMS = (("p",), ("q",), ("p", "q"), ("q", "r"), ())
ARGUMENTS = ("a: [batch, p]", "b: [batch, q]", "c: [batch, r]")
OPERANDS = {"p": "a", "q": "b", "r": "c"}


@attrs.frozen
class Line:
    """One statement: `name = op of operands`, of these dimensions. In a product the order of operands is free."""

    name: str
    op: str
    operands: tuple[str, ...]
    dims: tuple[str, ...]

    def text(self, turned: bool) -> str:
        names, dims = self.operands[::-1] if turned else self.operands, ", ".join(self.dims)
        match self.op:
            case "batch":
                body = (
                    f"einsum({', '.join(names)} -> [{dims}])"
                    if len(names) > 1
                    else f"sum({names[0]}, over = batch)"
                )
            case "total":
                body = f"sum({names[0]})"
            case "einsum":
                body = f"einsum({', '.join(names)} -> [{dims}])"
            case "mul" | "add":
                body = f" {'*' if self.op == 'mul' else '+'} ".join(names)
            case _:
                body = f"{self.op}({names[0]})"
        return f"  {self.name} = {body}"


@attrs.frozen
class Products:
    """A program under a layout that splits the batch, and perhaps some values over the same axis."""

    lines: tuple[Line, ...]
    returned: tuple[str, ...]
    split: tuple[str, ...]

    def source(self, turned: bool = False) -> str:
        sizes = "\n".join(f"dim {name} = {size}" for name, size in {"batch": 8, **DIMS}.items())
        rules = ["batch: all", *(f"value {name}: {{ q: all }}" for name in self.split)]
        body = "\n".join(line.text(turned) for line in self.lines)
        return (
            f"{sizes}\nmesh line = [all: 2]\nlayout main on line = {{ {', '.join(rules)}, allow W602 }}\n"
            f"model m({', '.join(ARGUMENTS)}) {{\n{body}\n  return {', '.join(self.returned)}\n}}\n"
        )


def _line(draw: Any, name: str, before: list[Line]) -> Line:
    if len(before) < 2 or draw(st.integers(0, 2)) == 0:
        dims = draw(st.sampled_from(SUMS))
        operands = tuple(OPERANDS[dim] for dim in dims)
        return Line(name, "batch" if dims else "total", operands or ("a",), dims)
    x, y = draw(st.sampled_from(before)), draw(st.sampled_from(before))
    op = draw(st.sampled_from(("einsum", "einsum", "mul", "add", "exp")))
    if op == "exp":
        return Line(name, op, (x.name,), x.dims)
    union = tuple(dict.fromkeys((*x.dims, *y.dims)))
    if op == "einsum" or union not in (x.dims, y.dims):
        kept = tuple(dim for dim in union if draw(st.booleans()))
        return Line(name, "einsum", (x.name, y.name), kept)
    return Line(name, op, (x.name, y.name), union)


@st.composite
def products(draw: Any, most: int = 7) -> Products:
    lines: list[Line] = []
    for i in range(draw(st.integers(3, most))):
        lines.append(_line(draw, f"v{i}", lines))
    used = {name for line in lines for name in line.operands}
    ends = [line.name for line in lines if line.name not in used]
    more = draw(st.sampled_from([line.name for line in lines]))
    split = [line.name for line in lines if "q" in line.dims and line.op == "exp" and draw(st.booleans())]
    return Products(tuple(lines), tuple(dict.fromkeys((*ends, more))), tuple(split))
