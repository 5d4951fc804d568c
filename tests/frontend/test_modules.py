"""Test imports: the files that are read, and the visibility of their names."""

import pytest

from mtfc.compiler.diagnostics import CompileError, Diagnostic, Diagnostics, Span
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.verifier import verify
from mtfc.frontend.check import check
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.layout_options import parse_layout
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.format import format_source
from mtfc.frontend.syntax.parser import parse
from mtfc.reports.diagnostic_text import render

MAIN = "folder/main.mtf"


class Folder:
    """Neighbouring files; `asked` are the paths that the compiler has asked for."""

    def __init__(self, **files: str) -> None:
        self.files = {f"folder/{name}.mtf": text for name, text in files.items()}
        self.asked: list[str] = []

    def __call__(self, path: str) -> str | None:
        self.asked.append(path)
        return self.files.get(path)


def program(source: str, **files: str) -> Program:
    diagnostics = Diagnostics()
    module = elaborate(parse(source, MAIN, diagnostics), diagnostics, neighbour=Folder(**files))
    assert not list(diagnostics), render(diagnostics, {})
    (found,) = module.programs
    verify(found, "global")
    return found


def errors(source: str, **files: str) -> list[tuple[str, str, int]]:
    """Return code, file and line of each error."""
    found = check(source, MAIN, neighbour=Folder(**files)).errors
    return [(each.code, each.span.file, each.span.line) for each in found]


COMMON = "dim batch = 8\ndim half = batch // 2\nfn doubled(x: [...]) -> [...] { return 2 * x }\n"


def test_functions_and_dimensions_of_a_neighbour() -> None:
    found = program(
        """
        import common
        dim io = common.half - 1
        model net(x: [common.batch, io]) {
          y = common.doubled(sum(x, over = common.batch)) / common.half
          z = slice(x, common.batch -> common.half)
          return y, z
        }
        """,
        common=COMMON,
    )
    assert {name: dim.size for name, dim in found.dims.items()} == {
        "io": 3,
        "common.batch": 8,
        "common.half": 4,
    }
    types = [str(output.value.type) for output in found.function("forward").outputs]
    assert types == ["f32[io]", "f32[common.half, io]"]


def test_layouts_split_dimensions_of_neighbours_and_functions() -> None:
    source = """
    import common
    mesh line = [all: 2]
    layout both = { common.batch: all, wide.more: all }
    fn wide(x: [...]) -> [...] { dim more = 4; return sum(broadcast(x -> [..., more]), over = more) }
    model net(x: [common.batch]) { y = wide(x); return y }
    """
    assert errors(source, common=COMMON) == [("E301", MAIN, 4)]
    diagnostics = Diagnostics()
    module = elaborate(parse(source, MAIN, diagnostics), diagnostics, neighbour=Folder(common=COMMON))
    assert parse_layout("wide.more:all", module).layout.rules.by_dim == {"wide.more": ("all",)}
    assert parse_layout("{ common.half: all }", module).layout.rules.by_dim == {"common.half": ("all",)}


def test_a_neighbour_wins_over_the_library_but_for_the_library_itself() -> None:
    source = """
    import nn
    import losses
    dim batch = 4
    dim classes = 3
    model net(x: [batch, classes], n: i32[batch]) {
      x = nn.mine(x)
      loss = losses.softmax_cross_entropy(x, n)
      return loss
    }
    """
    forward = program(source, nn="fn mine(x: [...]) -> [...] { return -x }").function("forward")
    assert forward.body[0].op == "neg"
    assert [code for code, *_ in errors(source)] == ["E104"]


def test_only_files_that_are_imported_are_read() -> None:
    folder = Folder(
        first="import second\nfn f(x: [...]) -> [...] { return second.f(x) }", second="import nn", third=""
    )
    source = "import first\nimport nn\ndim d = 2\nmodel net(x: [d]) { y = nn.relu(x); return x }"
    check(source, MAIN, neighbour=folder)
    assert sorted(folder.asked) == ["folder/first.mtf", "folder/nn.mtf", "folder/second.mtf"]


def test_imports_of_an_imported_file_are_not_visible() -> None:
    source = "import first\ndim d = 2\nmodel net(x: [d]) { y = nn.gelu(x); z = first.nn.gelu(x); return x }"
    assert [code for code, *_ in errors(source, first="import nn\n")] == ["E113", "E104"]


def test_models_layouts_and_meshes_of_a_neighbour_do_not_count() -> None:
    other = COMMON + "mesh line = [all: 2]\nlayout l = { batch: all }\nmodel m(x: [batch]) { return x }\n"
    source = "import other\ndim d = 2\nmodel net(x: [d]) { y = other.doubled(x); return y }"
    assert program(source, other=other).name == "net"


def test_errors_stand_in_the_file_that_they_are_in() -> None:
    broken = (
        "dim batch = 8 +\ndim other = missing\nfn f(x: [...] -> [...] {\n  return x\n}\n"
        "fn g(x: [...]) -> [...] {\n  return y\n}\n"
    )
    source = (
        "import broken\ndim d = broken.batch\nmodel net(x: [d]) {\n  y = broken.g(2)\n  return broken.f(x)\n}"
    )
    assert errors(source, broken=broken) == [
        ("E001", "folder/broken.mtf", 1),
        ("E103", "folder/broken.mtf", 2),
        ("E002", "folder/broken.mtf", 3),
        ("E101", "folder/broken.mtf", 7),
        ("E109", MAIN, 5),
    ]


def test_a_file_that_cannot_be_read_is_one_error() -> None:
    def neighbour(path: str) -> str | None:
        raise CompileError([Diagnostic("E013", "this file is not UTF-8 text", Span(path, 1, 1, 1, 2))])

    source = "import nn\ndim d = nn.size\nmodel net(x: [d]) { y = nn.gelu(x); return y }"
    found = check(source, MAIN, neighbour=neighbour).errors
    assert [(each.code, each.span.file) for each in found] == [("E013", "folder/nn.mtf")]


def test_files_may_import_one_file_by_two_ways() -> None:
    source = """
    import left
    import right
    dim d = 2
    model net(x: [d]) { y = left.f(x) + right.f(x); return y }
    """
    side = "import common\nfn f(x: [...]) -> [...] { return common.doubled(x) }"
    assert len(program(source, left=side, right=side, common=COMMON).function("forward").body) == 4


@pytest.mark.parametrize("module", standard_library.modules())
def test_the_library_is_read_declaration_by_declaration(module: str) -> None:
    """Parsing declarations of the library one by one gives the same trees and spans as parsing the whole file."""
    text = standard_library.text(module)
    assert text is not None
    diagnostics = Diagnostics()
    whole = parse(text, standard_library.file_of(module), diagnostics)
    assert not list(diagnostics)
    assert format_source(text) == text
    sections = [
        each
        for by_name in standard_library.sections(module).values()
        for same in by_name.values()
        for each in same
    ]
    parts = [standard_library.declaration(each) for each in sorted(sections, key=lambda each: each.line)]
    assert parts == list(whole.declarations)
    assert [each.span for each in parts] == [each.span for each in whole.declarations]
    assert all(
        isinstance(each, ast.FnDecl | ast.DimDecl | ast.ImportDecl | ast.OptimizerDecl) for each in parts
    )


def test_unused_library_modules_are_not_parsed() -> None:
    standard_library.declaration.cache_clear()
    program("import nn\ndim d = 2\nmodel net(x: [d]) { y = nn.gelu(x); return y }")
    functions = standard_library.sections("nn")["fn"]
    assert standard_library.declaration.cache_info().currsize < len(functions) / 2
