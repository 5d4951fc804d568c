"""Random layers stay exact where equations between sums run on parts."""

from random import Random
from zlib import crc32

import attrs
from hypothesis import strategies as st

from mtfc.backends.exact.check import ExactReference
from mtfc.compiler.passes.partition.split_regions import SplitRegions
from mtfc.compiler.passes.pipelines import default_pipeline, run
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, load
from tests.properties.campaign import holds_for

HEAD = """
import nn
dim batch = 8; dim length = 4; dim io = 4; dim out = 4; dim hidden = 4; dim layers = 2
"""

LAYOUTS = (
    ("a: 2, b: 2", "batch: a, hidden: b"),
    ("a: 2, b: 2", "length: a, hidden: b"),
    ("a: 2, b: 2", "batch: a, hidden: b, params: { io: a }"),
    ("a: 2, b: 2", "io: a, hidden: b"),
    ("b: 4", "hidden: b"),
    ("b: 4", "hidden: b, optimizer: { *: b }"),
    ("a: 2, b: 2, c: 2", "batch: a, hidden: (b, c)"),
    ("a: 2, b: 2, c: 2", "batch: a, hidden: b, length: c"),
)

SUMS = (
    "x + nn.feed_forward[d_ff = hidden](x)",
    "x * nn.swiglu[d_ff = hidden](x)",
    "x + nn.dropout(nn.feed_forward[d_ff = hidden](nn.layer_norm(x)), rate = 0.5)",
    "nn.feed_forward[d_ff = hidden](nn.feed_forward[d_ff = hidden](x))",
    "nn.feed_forward[d_ff = hidden](x) * nn.feed_forward[d_ff = hidden](x)",
)
"""Statements with sums over hidden units."""

OTHERS = (
    "nn.layer_norm(x)", "nn.dropout(x, rate = 0.5)", "tanh(x)", "rename(nn.dense[d_out = out](x), out -> io)",
    "x - mean(x, over = batch)", "shift(x, length)", "shift(x, batch)", "cumsum(x, over = length)",
    "x * max(x, over = length)", "x + sum(x, over = [batch, length])", "where(x > mean(x, over = io), x, 0.5 * x)",
)  # fmt: skip

LOOPS = ("", "repeat layers", "repeat layers checkpoint")
ENTRIES = ("", "clip = 1.0", "accumulate = 2", "precision = { params: f32, compute: bf16 }")


@attrs.frozen
class LayersCase:
    """A model of random layers whose hidden units are split."""

    source: str


def case_of(seed: int) -> LayersCase:
    random = Random(seed)
    mesh, rules = random.choice(LAYOUTS)

    def statements() -> list[str]:
        chosen = [*random.choices(SUMS, k=random.randint(1, 2)), *random.choices(OTHERS, k=3)]
        return [f"x = {each}" for each in random.sample(chosen, len(chosen))]

    loop = random.choice(LOOPS)
    body = [f"{loop} {{", *statements(), "}", *statements()] if loop else statements()
    optimizer = f"optimizer = {random.choice(['sgd', 'adam'])}(learning_rate = 0.1)"
    lines = [
        f"mesh grid = [{mesh}]",
        f"layout split on grid = {{ {rules} }}",
        "model m(x: [batch, length, io]) {",
        *body,
        "loss = mean(square(x))",
        "return x, loss",
        "}",
        f"train m {{ minimize loss; {optimizer}; {random.choice(ENTRIES)} }}",
    ]
    return LayersCase(HEAD + "\n".join(lines) + "\n")


def check_program(source: str) -> int:
    """Assert that a program is exact with its regions on parts. Return how often the pass changes it."""
    module, count = load(source), 0
    (original,) = module.programs
    reference: ExactReference | None = None
    passes = default_pipeline("step+gradients")
    first = next(i for i, each in enumerate(passes) if isinstance(each, SplitRegions))
    for layout in module.layouts:
        placed = attrs.evolve(original, mesh=layout.mesh, layout=layout.layout)
        assigned = run(placed, passes[:first])
        for form in ("time", "memory"):
            chosen = SplitRegions(form, traffic=1, start=0, least=0)
            changed = run(assigned, [chosen], level="assigned")
            if all(a is b for a, b in zip(assigned.functions, changed.functions, strict=True)):
                continue
            reference = reference or ExactReference(original, draws=(crc32(source.encode()) % 2,))
            found = reference.compare(run(changed, (chosen, *passes[first + 1 :]), level="assigned"))
            assert found.ok, f"{layout.name}, {form}: {found.wrong}"
            count += 1
    return count


@holds_for(st.integers(0, 2**32).map(case_of), 4)
def test_layers_on_parts_are_exact(program: HasSource) -> int:
    return check_program(program.source)


@holds_for(programs(Options(structured=True)), 2)
def test_regions_of_random_programs_are_exact(program: HasSource) -> int:
    return check_program(program.source)
