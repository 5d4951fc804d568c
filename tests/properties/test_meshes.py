"""Random parts of random programs run on meshes of their own, and compute what the undistributed program does."""

from random import Random
from zlib import crc32

import attrs

from mtfc.backends.interpreter import interpret
from mtfc.backends.jax import runtime
from mtfc.backends.numpy import backend
from mtfc.compiler.diagnostics import Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.types import Layout, Mesh
from mtfc.frontend.elaborate import Module
from mtfc.frontend.layouts.legality import check_layout
from mtfc.meshes.mesh_labels import MeshPart
from mtfc.meshes.module import generate
from mtfc.meshes.multi_mesh_program import MultiMeshProgram
from mtfc.meshes.segments import part_programs
from tests.generators.programs import programs
from tests.generators.scope import Options
from tests.harness import HasSource, call, differentiated, exact_data, functions, load, tolerance
from tests.properties.campaign import holds_for

SINGLE_PRECISION = programs(Options(reals=("f32",), rough=False, constants=False, statements=4, layouts=1))


@holds_for(programs())
def test_numpy_in_segments_gives_the_results(program: HasSource) -> None:
    _check(program, "numpy")


@holds_for(programs(Options(accumulated=True, statements=5)), 8)
def test_segments_of_micro_batches_give_the_results(program: HasSource) -> None:
    _check(program, "numpy")


@holds_for(SINGLE_PRECISION, 3)
def test_jax_in_segments_gives_the_results(program: HasSource) -> None:
    _check(program, "jax")


def _check(program: HasSource, kind: str) -> None:
    module = load(program.source)
    (original,) = module.programs
    parts = drawn_parts(module, original, Random(crc32(program.source.encode())), small=kind == "jax")
    for of, name in functions(original):
        whole = differentiated(original, of)
        arrays = exact_data(whole.function(name), seed=3)
        expected = interpret(whole.function(name), whole, arrays)
        text = generate(MultiMeshProgram(original, parts, "two", of), kind)
        loaded = (runtime if kind == "jax" else backend).load(text)
        actual = call(loaded, whole.function(name), arrays)
        tolerance(original).check(actual, expected, f"{name} in segments on {kind}")


def drawn_parts(module: Module, program: Program, random: Random, small: bool) -> tuple[MeshPart, ...]:
    """Return parts of a program: two or three meshes, the names that run on each, and rules that are legal there.

    small: all meshes but one have one processor, since JAX has eight devices here.
    """
    sections = module.scope.reports.sections
    names = sorted(name for name, places in sections.items() if not any(each.is_looped for each in places))
    random.shuffle(names)
    number = random.choice((1, 1, 2))
    groups: list[list[Span]] = [[] for _ in range(number)]
    for name in names[: random.randint(0, len(names))]:
        groups[random.randrange(number)] += [each.place for each in sections[name]]
    found = [
        MeshPart(*_on_mesh(module, f"mesh_{i}", random), tuple(places)) for i, places in enumerate(groups)
    ]
    found.insert(random.randint(0, number), MeshPart(*_on_mesh(module, "rest", random), (), True))
    large = random.randrange(len(found))
    for i, part in enumerate(found):
        if i != large and (small or random.random() < 0.2):
            alone = attrs.evolve(part.mesh, axes=tuple((name, 1) for name in part.mesh.names))
            found[i] = attrs.evolve(part, mesh=alone)
    return _legal(module, program, tuple(found))


def _on_mesh(module: Module, name: str, random: Random) -> tuple[Mesh, Layout]:
    declared = random.choice(module.layouts)
    return attrs.evolve(declared.mesh, name=name), declared.layout


def _legal(module: Module, program: Program, parts: tuple[MeshPart, ...]) -> tuple[MeshPart, ...]:
    """Return parts with no rules where those that were drawn are illegal."""
    found = []
    for part, own in zip(parts, part_programs(program, parts), strict=True):
        declared = next(each for each in module.layouts if each.layout == part.layout)
        errors = [
            each
            for each in check_layout(own, attrs.evolve(declared, mesh=part.mesh))
            if each.severity == "error"
        ]
        found.append(attrs.evolve(part, layout=Layout("whole")) if errors else part)
    return tuple(found)
