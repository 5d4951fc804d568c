"""Programs and problems that come from no .mtf file: graphs, IR text, and instances of a contest.

A graph of `mtfc.graph` in the place of a .mtf file: `MODULE:GRAPH`, or `MODULE:FUNCTION` for a function that returns one.

Files of IR text, as `mtfc compile` prints it, in the place of a .mtf file.

The contest's format: a problem as a JSON object.

`{"problem": {"name", "nodes": {"costs", "usages", "intervals"}, "edges": {"nodes", "costs"}, "usage_limit"}}`, as google/iopddl
defines it: a list per node or edge, pairs of numbers in `intervals` and `edges.nodes`. Other keys are ignored.
"""

import gzip
import inspect
import json
import sys
import zlib
from collections.abc import Callable, Sized
from contextlib import redirect_stdout
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import attrs

from mtfc.compiler.diagnostics import Diagnostics, Span, failure
from mtfc.compiler.garbage import few_collections
from mtfc.compiler.ir.builder import VerifyError
from mtfc.compiler.ir.core import Program
from mtfc.compiler.ir.parser import ReadError, read_program
from mtfc.compiler.ir.printer import is_placed
from mtfc.compiler.ir.verifier import LEVELS, Level, verify
from mtfc.compiler.search.solver.assignment_problem import AssignmentProblem, Booleans, Integers, Ragged
from mtfc.driver.errors import UsageError
from mtfc.driver.loading.choice import Choice
from mtfc.driver.loading.selection import ONE_DEVICE, UNDISTRIBUTED
from mtfc.driver.loading.sources import Sources, line_span
from mtfc.driver.training.user_code import FUNCTION, explained, imported_value
from mtfc.frontend.elaborate import elaborate
from mtfc.frontend.layout_options import parse_layout, parse_mesh
from mtfc.frontend.syntax.parser import parse


def graph_file(spec: str) -> tuple[Any, str]:
    """Return a graph and the path of its file, which is there as long as the graph; or None and the text as it is.

    Raises `UsageError` if the module cannot be imported, and the errors of a graph.
    """
    if FUNCTION.fullmatch(spec) is None or Path(spec).exists():
        return None, spec
    with redirect_stdout(sys.stderr):  # standard output is for results alone
        value = imported_value(spec, "", "a graph, or a function of JAX with --args", "VALUE")
        if callable(value) and not isinstance(value, PathLike) and _needs_nothing(value):
            with explained(f"calling {spec}"):
                value = value()
        return (value, fspath(value)) if isinstance(value, PathLike) else (None, spec)


def _needs_nothing(function: Callable[..., Any]) -> bool:
    """Return True if a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


SUFFIX = ".ir"


def is_ir(file: str) -> bool:
    return file.endswith(SUFFIX)


def read_ir(file: str, choice: Choice, sources: Sources) -> tuple[Program, Level]:
    """Return the program of a file, and the last level at which all invariants hold.

    A global program gets the mesh and the layout of the options. Raises `CompileError` and `UsageError`.
    """
    if choice.model or choice.dims or choice.settings:
        raise UsageError(f"{file} holds one program at fixed sizes: no --model, --dim or --set")
    sources.add_choice(choice)
    name = sources.read(file)
    text = sources.texts[name]
    try:
        program = read_program(text)
        level = level_of(program)
        if not program.has_function("forward"):
            raise ReadError("there is no function forward", 1)
    except ReadError as error:
        message = str(error).removeprefix(f"line {error.line}: ")
        raise failure("E014", message, line_span(name, text, error.line)) from None
    except VerifyError as error:
        raise failure("E014", error.reason, _place(name, text, error.where)) from None
    if level == "global":
        return _placed(program, choice), level
    if choice.mesh or choice.layout:
        raise UsageError(f"{file} has layouts already: no --mesh or --layout")
    return program, level


def level_of(program: Program) -> Level:
    """Return the last level at which a program is sound. Raises a `VerifyError`, if possible one that is not about levels."""
    has_layouts = any(map(is_placed, program.functions))
    errors = []
    for level in [each for each in reversed(list(LEVELS)) if LEVELS[each].layouts == has_layouts]:
        try:
            verify(program, level)
        except VerifyError as error:
            errors.append(error)
        else:
            return level
    raise next((each for each in errors if "at level" not in each.reason), errors[-1])


def _placed(program: Program, choice: Choice) -> Program:
    """Return a global program with the mesh and layout of the options, or those of the text, or one device."""
    if choice.mesh is None and choice.layout is None:
        return attrs.evolve(program, mesh=program.mesh or ONE_DEVICE, layout=program.layout or UNDISTRIBUTED)
    diagnostics = Diagnostics()
    dims = "".join(
        f"dim {dim.name} = {dim.size}\n" for dim in program.dims.values() if dim.name.isidentifier()
    )
    module = elaborate(parse(dims, "<dims>", diagnostics), diagnostics)
    mesh = parse_mesh(choice.mesh, module) if choice.mesh else program.mesh or ONE_DEVICE
    layout = parse_layout(choice.layout, module, mesh).layout if choice.layout else UNDISTRIBUTED
    return attrs.evolve(program, mesh=mesh, layout=layout)


def _place(file: str, text: str, where: str) -> Span:
    """Return the span of the equation that an error names, or of the first line."""
    found = (i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith(where))
    return line_span(file, text, next(found, 1))


GZIP = b"\x1f\x8b"
LARGEST = 4 * 10**18
"""The largest number in a file, so that the sum of two fits into 64 bits."""


class MalformedInstance(Exception):
    """The file is not an instance. The message names the place, the expected and the found value."""


def read(content: bytes) -> AssignmentProblem:
    """Read a problem from a file's content, compressed by gzip or not. Raises `MalformedInstance`."""
    with few_collections():  # parsing makes millions of lists, none of them garbage
        return _problem(_object(_parsed(_unzipped(content)), "problem", "the file"))


def write(problem: AssignmentProblem) -> str:
    """Return the problem as JSON text on one line."""
    nodes = {
        "costs": _lists(problem.costs),
        "usages": _lists(problem.usages),
        "intervals": problem.intervals.tolist(),
    }
    edges = {"nodes": problem.edges.tolist(), "costs": _lists(problem.edge_costs)}
    limit = {} if problem.limit is None else {"usage_limit": problem.limit}
    return json.dumps({"problem": {"name": problem.name, "nodes": nodes, "edges": edges, **limit}})


def _lists(rows: Ragged) -> list[list[int]]:
    return [rows[row].tolist() for row in range(len(rows))]


def _unzipped(content: bytes) -> bytes:
    """Return the content of a file, decompressed if it is gzip. Raises `MalformedInstance`."""
    if not content.startswith(GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise MalformedInstance(f"the file starts as gzip, but cannot be decompressed: {error}") from None


def _parsed(content: bytes) -> Any:
    """Return the value of JSON text. Raises `MalformedInstance`."""
    try:
        return json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedInstance(f"expected JSON: {error}") from None
    except ValueError:  # Python's message about numbers of thousands of digits names a setting of Python
        raise MalformedInstance(
            f"expected numbers of at most {LARGEST}; one has thousands of digits"
        ) from None


def _problem(record: dict[str, Any]) -> AssignmentProblem:
    """Return the assignment problem of an instance. Raises `MalformedInstance` with the first thing that is wrong."""
    nodes, edges = _object(record, "nodes", "problem"), _object(record, "edges", "problem")
    costs = _rows(nodes, "costs", "nodes")
    usages = _rows(nodes, "usages", "nodes")
    _expect_lengths(usages, costs.lengths, "nodes.usages", "as many as strategies in nodes.costs")
    _refuse(costs.lengths == 0, lambda i: f"expected at least one strategy in nodes.costs[{i}], found none")
    intervals = _pairs(nodes, "intervals", "nodes")
    _expect_count(intervals, len(costs), "nodes.intervals", "nodes.costs")
    ends = _pairs(edges, "nodes", "edges")
    _refuse(ends.max(1, initial=0) >= len(costs), lambda i: _wrong_ends(f"nodes below {len(costs)}", ends, i))
    _refuse(ends[:, 0] == ends[:, 1], lambda i: _wrong_ends("two different nodes", ends, i))
    tables = _rows(edges, "costs", "edges")
    sizes = costs.lengths[ends].prod(axis=1)
    _expect_lengths(tables, sizes, "edges.costs", "one for each pair of strategies of the edge's nodes")
    return AssignmentProblem(
        costs, usages, intervals, ends, tables, _limit(record), str(record.get("name", ""))
    )


def _object(record: Any, key: str, of: str) -> dict[str, Any]:
    """Return the entry of a JSON object that is an object itself. Raises `MalformedInstance`."""
    found = _entry(record, key, of)
    if not isinstance(found, dict):
        raise MalformedInstance(f"expected an object as `{key}` of {of}, found {_kind(found)}")
    return found


def _entry(record: Any, key: str, of: str) -> Any:
    """Return the entry of a JSON object. Raises `MalformedInstance` if there is none. of: the name of the object in messages."""
    if not isinstance(record, dict):
        raise MalformedInstance(f"expected {of} to be an object, found {_kind(record)}")
    if key not in record:
        raise MalformedInstance(
            f"expected a key `{key}` in {of}; there are {', '.join(map(str, record)) or 'none'}"
        )
    return record[key]


def _limit(record: dict[str, Any]) -> int | None:
    """Return the limit of memory in bytes, None for none. Raises `MalformedInstance` for a wrong one."""
    limit = record.get("usage_limit")
    if limit is not None and (type(limit) is not int or not 0 <= limit <= LARGEST):
        raise MalformedInstance(f"expected bytes as `usage_limit` of problem, found {limit!r:.40}")
    return limit


def _rows(record: dict[str, Any], key: str, of: str) -> Ragged:
    """Return a list of lists of numbers, such as the costs of each node's strategies."""
    import numpy as np

    lists, path = _entry(record, key, of), f"{of}.{key}"
    if not isinstance(lists, list):
        raise MalformedInstance(f"expected a list as {path}, found {_kind(lists)}")
    for index, each in enumerate(lists):
        if not isinstance(each, list):
            raise MalformedInstance(f"expected a list as {path}[{index}], found {_kind(each)}")
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return Ragged(_numbers(lists, path), offsets)


def _pairs(record: dict[str, Any], key: str, of: str) -> Integers:
    """Return a list of pairs of numbers as an array of two columns. Raises `MalformedInstance`."""
    rows = _rows(record, key, of)
    found = rows.lengths
    _refuse(found != 2, lambda i: f"expected two numbers in {of}.{key}[{i}], found {found[i]}")
    return rows.values.reshape(-1, 2)


def _refuse(wrong: Booleans, message: Callable[[int], str]) -> None:
    """Raise `MalformedInstance` for the first wrong position, if there is one."""
    for index in wrong.nonzero()[0][:1].tolist():
        raise MalformedInstance(message(index))


def _numbers(lists: list[list[Any]], path: str) -> Integers:
    """Return the entries of all lists, one list after the other."""
    import numpy as np

    flat = list(chain.from_iterable(lists))
    if all(kind is int for kind in set(map(type, flat))):
        try:
            values = np.array(flat, np.int64)
        except OverflowError:
            values = np.full(1, -1)
        if not len(values) or (values.min() >= 0 and values.max() <= LARGEST):
            return values
    raise MalformedInstance(_first_bad_number(lists, path))


def _first_bad_number(lists: list[list[Any]], path: str) -> str:
    """Return the message about the first entry that is no number in range."""
    places = ((row, column, each) for row, values in enumerate(lists) for column, each in enumerate(values))
    row, column, found = next(p for p in places if type(p[2]) is not int or not 0 <= p[2] <= LARGEST)
    return f"expected an integer from 0 to {LARGEST:.0e} in {path}[{row}][{column}], found {_kind(found)}"


def _expect_count(found: Sized, count: int, path: str, other: str) -> None:
    """Raise `MalformedInstance` unless a list is as long as another one. other: its name in the message."""
    if len(found) != count:
        raise MalformedInstance(
            f"expected as many entries in {path} as in {other}, {count}; found {len(found)}"
        )


def _expect_lengths(rows: Ragged, lengths: Integers, path: str, why: str) -> None:
    """Raise `MalformedInstance` unless each row has the length that another list says. why: the reason for the lengths."""
    _expect_count(rows, len(lengths), path, "the list before it")
    found = rows.lengths
    _refuse(
        found != lengths,
        lambda i: f"expected {lengths[i]} numbers in {path}[{i}], {why}; found {found[i]}",
    )


def _wrong_ends(expected: str, ends: Integers, edge: int) -> str:
    return f"expected {expected} in edges.nodes[{edge}], found {ends[edge].tolist()}"


def _kind(value: Any) -> str:
    """Describe a value in a few words."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return f"`{json.dumps(value):.40}`"
