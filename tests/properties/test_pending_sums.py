"""The order of factors changes no bytes: random products of pending sums."""

from random import Random

import attrs
from hypothesis import strategies as st

from tests.harness import communication
from tests.properties.campaign import holds_for

HEAD = """
dim batch = 8; dim i = 4; dim j = 6; dim k = 2
mesh line = [all: 2]
layout split on line = { batch: all }
"""

SUMS = {
    "sum(square(x))": (),
    "sum(x, over = batch)": ("i",),
    "sum(z, over = batch)": ("j",),
    "einsum(x, z -> [i, j])": ("i", "j"),
    "einsum(x, w -> [i, k])": ("i", "k"),
    "einsum(z, w -> [j, k])": ("j", "k"),
    "c": ("i", "j"),
}
"""Expressions, with their dimensions; all but `c` are pending where `batch` is split."""

CHAINED = 8
"""Factors of the products that have more choices than are all tried."""


@attrs.frozen
class ProductCase:
    """A model in two texts that differ in the order of factors alone."""

    body: str
    mirrored: str

    def source(self, body: str) -> str:
        return f"{HEAD}model m(x: [batch, i], z: [batch, j], w: [batch, k], c: [i, j]) {{\n{body}\n}}\n"


def case_of(seed: int, steps: int = 3) -> ProductCase:
    random = Random(seed)
    known = {f"s{n}": random.choice(list(SUMS)) for n in range(3)}
    dims = {name: SUMS[text] for name, text in known.items()}
    lines = [(f"{name} = {text}",) * 2 for name, text in known.items()]
    for n in range(steps):
        one, other = random.choice(list(dims)), random.choice(list(dims))
        joint = tuple(dict.fromkeys((*dims[one], *dims[other])))
        kept = tuple(dim for dim in joint if random.random() < 0.6)
        einsum = f"einsum({{}}, {{}} -> [{', '.join(kept)}])"
        broadcasts = set(dims[one]) <= set(dims[other]) or set(dims[other]) <= set(dims[one])
        pattern = random.choice(["{} * {}", "sum({} * {})", einsum]) if broadcasts else einsum
        name = f"p{n}"
        dims[name] = {"{": joint, "e": kept, "s": ()}[pattern[0]]
        lines.append((f"{name} = {pattern.format(one, other)}", f"{name} = {pattern.format(other, one)}"))
    ends = [f"tanh({name})" if random.random() < 0.5 else name for name in random.sample(list(dims), 2)]
    ends.append(f"tanh(p{steps - 1})")
    lines += [(f"o{n} = {end}",) * 2 for n, end in enumerate(ends)]
    lines.append(("return o0, o1, o2",) * 2)
    return ProductCase(*("\n".join(text) for text in zip(*lines, strict=True)))


def cases() -> st.SearchStrategy[ProductCase]:
    return st.integers(0, 2**32).map(case_of)


def bytes_sent(source: str) -> int:
    return sum(elements for _, _, elements in communication(source))


@holds_for(cases(), 40)
def test_the_order_of_factors_never_changes_the_bytes(case: ProductCase) -> None:
    assert bytes_sent(case.source(case.body)) == bytes_sent(case.source(case.mirrored))


def test_many_factors_are_chosen_one_after_another() -> None:
    """More combinations than are all tried: the sum passes through the large factors, and scalars are completed."""
    names = [f"s{n}" for n in range(CHAINED)]
    body = [f"{name} = sum(square(x) * {n}.0)" for n, name in enumerate(names, 2)]
    body += ["y = einsum(x, z -> [i, j])"]
    products = [f"p{n} = {name} * {'y' if n == 0 else f'p{n - 1}'}" for n, name in enumerate(names)]
    end = [f"t = tanh(sum(p{CHAINED - 1}))", "return t"]
    case = ProductCase("\n".join([*body, *products, *end]), "")
    assert bytes_sent(case.source(case.body)) == CHAINED + 1
