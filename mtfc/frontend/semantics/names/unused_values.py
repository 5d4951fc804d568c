"""Find statements whose results nothing uses, and copies of statements that could be a loop.

A graph has a node for each statement of a body, and an edge to each statement whose value the statement reads. A statement that
no `return` or `watch` reaches is dead. Dead statements are checked for errors, but add no equation, random number or name to the
program.
A loop adds a node for each variable that it carries: the node reads the variable before the loop and at the end of the body.
Parameters and states are kept even if nothing reads them. An update of a state is needed, and reads the state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat

import attrs

from mtfc.compiler.diagnostics import Diagnostic, Label, Span
from mtfc.compiler.records import define, frozen
from mtfc.frontend.syntax import ast
from mtfc.frontend.syntax.ast import bound, bound_inside, children

CODE = "W603"
SILENT = "_"
"""The prefix of names that are unused on purpose."""

TAKE_VARIABLES = ("gradients", "stack")
"""Built-in functions with a list of variables in brackets; other lists are of dimensions."""

MOST_LABELS = 3


@define(eq=False)
class _Node:
    """A statement, or a variable that a loop carries; `reads` are the nodes whose values it needs."""

    names: tuple[ast.Name, ...] = ()
    statement: ast.Statement | None = None
    reads: list[_Node] = attrs.field(factory=list)


Environment = dict[str, _Node]
"""The node of each name at one place."""


@frozen
class Unused:
    """The dead statements of a body by place, and the warnings about them.

    `groups` are unused names, each with the statements that only its value needs.
    """

    dead: frozenset[Span] = frozenset()
    groups: tuple[tuple[_Node, tuple[_Node, ...]], ...] = ()

    def warnings(self) -> Iterator[Diagnostic]:
        """Yield a warning for each group of unused names."""
        for node, others in self.groups:
            if _wanted(node):
                yield _warning(node, others)


NOTHING = Unused()


def find_unused(decl: ast.ModelDecl | ast.FnDecl) -> Unused:
    """Find the dead statements of a model or a function; a body without `return` has none."""
    walk = _Walk()
    given = decl.inputs if isinstance(decl, ast.ModelDecl) else decl.args
    walk.body({each.name.text: _Node() for each in given}, decl.body)
    if not walk.returns:
        return NOTHING
    live = _reached(walk.roots, set())
    left = [node for node in walk.nodes if node not in live]
    dead = (
        node.statement.span
        for node in left
        if node.statement and not isinstance(node.statement, ast.Param | ast.State)
    )
    return Unused(frozenset(dead), tuple(_groups(left, live)))


class _Walk:
    """A walk over a body. `roots` are the nodes that are needed, `nodes` those of statements in the order of the source."""

    def __init__(self) -> None:
        """Start before the first statement.

        returns: True once a statement returns.
        """
        self.nodes: list[_Node] = []
        self.roots: list[_Node] = []
        self.returns = False

    def body(self, values: Environment, statements: Iterable[ast.Statement]) -> None:
        """Follow the statements of a body up to its first `return`. values: those that are visible."""
        for statement in statements:
            self.statement(statement, values, ())
            if isinstance(statement, ast.Return):
                self.returns = True
                return

    def statement(self, node: ast.Statement, values: Environment, loop: tuple[_Node, ...]) -> None:
        """Add a statement, in the bodies of loops with the node of the innermost one."""
        if isinstance(node, ast.Repeat | ast.Scan):
            self._loop(node, values, loop)
        elif isinstance(node, ast.Assign):
            made = self._binding(node, node.targets, values, loop)
            values.update((name.text, made) for name in node.targets)
        elif isinstance(node, ast.Param | ast.State):
            self._param(node, values, loop)
        else:  # these stay in any case: `return`, `watch`, `update`, `dim`, and statements with errors
            root = _Node(reads=[*_read(node, values), *loop])
            self.roots.append(root)
            values.update(dict.fromkeys(node.targets if isinstance(node, ast.Broken) else (), root))

    def _binding(
        self, node: ast.Statement, names: tuple[ast.Name, ...], values: Environment, loop: tuple[_Node, ...]
    ) -> _Node:
        """Add the node of a statement that binds names."""
        made = _Node(names, node, [*_read(node, values), *loop])
        self.nodes.append(made)
        return made

    def _param(self, node: ast.Param | ast.State, values: Environment, loop: tuple[_Node, ...]) -> None:
        """Keep the loop of a parameter or state, and what its initial value reads, even if nothing reads the parameter."""
        self.roots.append(_Node(reads=[*_read(node, values), *loop]))
        values[node.name.text] = self._binding(node, (node.name,), values, loop)

    def _yield(self, node: ast.Yield, values: Environment, handed_out: Environment, loop: _Node) -> None:
        """Add a `yield`. handed_out: the nodes of the names that the loop has yielded so far."""
        made = self._binding(node, (node.name,), values, (loop,))
        if node.name.text in handed_out:  # a name yielded twice is an error, which needs both statements
            made.reads.append(handed_out[node.name.text])
        handed_out[node.name.text] = made

    def _loop(self, node: ast.Repeat | ast.Scan, values: Environment, around: tuple[_Node, ...]) -> None:
        """Add a loop: a carried variable is read by the value that it has at the end of an iteration, and the other way
        round. around: the loops around it.
        """
        sources = (each for slice in node.slices for each in _read(slice, values))
        loop = _Node((), node, [*sources, *around])
        self.nodes.append(loop)
        if node.condition is not None:
            loop.reads += _read(node.condition, values)
        slices = {each.name.text: loop for each in node.slices}
        bound = {name.text for name in bound_inside(node.body)} - slices.keys()
        carried = {name: _Node(reads=[values[name], loop]) for name in bound if name in values}
        inside: Environment = {**values, **carried, **slices}
        handed_out: Environment = {}
        for statement in node.body:
            if isinstance(statement, ast.Yield):
                self._yield(statement, inside, handed_out, loop)
            else:
                self.statement(statement, inside, (loop,))
        for name, each in carried.items():
            each.reads.append(inside[name])
            values[name] = _Node(reads=[each, inside[name]])
        if node.condition is not None:
            loop.reads += _read(node.condition, values)
        values.update(handed_out)


def _read(node: ast.Node, values: Mapping[str, _Node]) -> Iterator[_Node]:
    """Yield the nodes of the names in a statement's expressions; for a text that did not parse, of all its words."""
    names = sorted(node.names) if isinstance(node, ast.Broken) else (name.text for name in value_names(node))
    yield from (values[name] for name in names if name in values)


def value_names(node: ast.Node) -> Iterator[ast.Name]:
    """Yield the names in expressions that may be values, and not dimensions, functions or arguments."""
    if isinstance(node, ast.Name):
        yield node
        return
    skipped: tuple[object, ...] = ()
    if isinstance(node, ast.Call):
        skipped = (node.function, node.scope, node.shared, *node.bindings)
    elif isinstance(node, ast.Arrow):
        skipped = (node.target,)
    elif isinstance(node, ast.Repeat | ast.Scan):
        skipped = (node.dim,)
    elif isinstance(node, ast.Keyword | ast.Param | ast.State | ast.Yield | ast.DimDecl | ast.SliceBinding):
        skipped = (node.name,)
    elif isinstance(node, ast.Assign):
        skipped = node.targets
    takes_variables = isinstance(node, ast.Call) and node.function.text in TAKE_VARIABLES
    for child in children(node):
        if takes_variables and isinstance(child, ast.DimList):
            yield from (each for each in child.dims if isinstance(each, ast.Name))
        if not isinstance(child, ast.DimList | ast.Type) and not any(child is each for each in skipped):
            yield from value_names(child)


def _reached(roots: Iterable[_Node], known: set[_Node]) -> set[_Node]:
    """Return the nodes that the roots need, directly or not, without the known nodes."""
    found: set[_Node] = set()
    waiting = [each for root in roots for each in root.reads]
    while waiting:
        node = waiting.pop()
        if node not in found and node not in known:
            found.add(node)
            waiting += node.reads
    return found


def _groups(left: list[_Node], live: set[_Node]) -> Iterator[tuple[_Node, tuple[_Node, ...]]]:
    """Yield the unused names, each with the nodes that only it needs. The last name comes first: uses follow definitions.

    left: the nodes that nothing needs. live: the needed ones.
    """
    seen = set(live)
    named = {node: place for place, node in enumerate(left) if node.names}
    for node in reversed(named):
        if node not in seen:
            below = _reached([node], seen) - {node}
            seen |= {node, *below}
            yield node, tuple(sorted(named.keys() & below, key=named.__getitem__))


def _warning(node: _Node, others: tuple[_Node, ...]) -> Diagnostic:
    """Return the warning about a value that is never used. others: the values that it alone uses."""
    wanted = _wanted(node)
    names = " and ".join(f"`{name.text}`" for name in wanted)
    verb = "is" if len(wanted) == 1 else "are"
    place = wanted[0].span
    labels = [Label(each.names[0].span, "used for this alone") for each in others[:MOST_LABELS]]
    return Diagnostic(CODE, f"{names} {verb} never used", place, tuple(labels), _help(node))


def _wanted(node: _Node) -> list[ast.Name]:
    """Return the names that are not unused on purpose."""
    return [name for name in node.names if not name.text.startswith(SILENT)]


def _help(node: _Node) -> str:
    """Return how to mend an unused value, parameter or state."""
    name = _wanted(node)[0].text
    if isinstance(node.statement, ast.Param | ast.State):
        kind = "parameter" if isinstance(node.statement, ast.Param) else "state"
        return f"remove the line: until then `{name}` is a {kind}, which is stored and saved"
    return f"remove the line, or return `{name}`; a name that begins with `_` is unused on purpose"


# W607: copies of statements that a `repeat` could run
#
# Two statements are copies if they are equal but for the names of values. A row of copies is a loop if each name means the same
# in every copy: a value of the same copy, a value of the copy before, or a value from before the row. After the row, only
# values of the last copy may be read.


UNROLLED = "W607"

FEWEST = 8
"""The fewest copies that are worth a loop."""

PERIODS = 8
"""The number of lengths of a copy that are tried at each statement."""


@frozen
class _Statement:
    """A statement of a body.

    form: the statement without the names of its values. reads: for each of these names, the number of the statement that bound
    the name last, or the name itself.
    """

    node: ast.Statement
    form: Hashable
    reads: tuple[int | str, ...]


@frozen
class _Copies:
    """Copies in a row: copy k has the statements from `start + k * period` on. number: the number of copies."""

    start: int
    period: int
    number: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.number


def unrolled_layers(decl: ast.ModelDecl | ast.FnDecl) -> Iterator[Diagnostic]:
    """Yield W607 for each row of copies in a model or a function."""
    yield from _in_body(decl.body)


def _in_body(body: Sequence[ast.Statement]) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each row of copies of the same statements, also in loops."""
    for node in body:
        if isinstance(node, ast.Repeat | ast.Scan):
            yield from _in_body(node.body)
    if len(body) >= FEWEST:
        statements = _statements(body)
        yield from (_of_copies(copies, statements) for copies in _rows(statements))


def _statements(body: Iterable[ast.Statement]) -> list[_Statement]:
    """Return the statements of a body with their forms. Statements of one form differ only in the names of values.

    Each name that a statement reads is given by the number of the statement that bound it last.
    """
    last: dict[str, int] = {}
    found: list[_Statement] = []
    for number, node in enumerate(body):
        names, targets = (*value_names(node),), (*bound(node),)
        form: Hashable = number
        if isinstance(node, ast.Assign | ast.Param):
            scopes = (each.scope for each in ast.walk(node) if isinstance(each, ast.Call) and each.scope)
            form = _form(node, {id(name) for name in (*names, *targets, *scopes)})
        found.append(_Statement(node, form, tuple(last.get(name.text, name.text) for name in names)))
        last.update((name.text, number) for name in targets)
    return found


def _form(node: object, left_out: set[int]) -> Hashable:
    """Return a node as nested tuples, without the nodes of some identities."""
    if isinstance(node, tuple):
        return tuple(_form(each, left_out) for each in node)
    if not isinstance(node, ast.Node):
        return node
    return () if id(node) in left_out else (type(node), _form(node.structure(), left_out))


def _rows(statements: Sequence[_Statement]) -> Iterator[_Copies]:
    """Yield rows of copies of the same statements, if nothing behind a row reads values of any copy but the last."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for number, each in enumerate(statements):
        places[each.form].append(number)
    last_read: dict[int | str, int] = {
        r: number for number, each in enumerate(statements) for r in each.reads
    }
    start = 0
    while start < len(statements):
        alike = places[statements[start].form]
        after = bisect_right(alike, start)
        periods = [number - start for number in alike[after : after + PERIODS]]
        row = next((row for p in periods if (row := _row(statements, start, p)).number >= FEWEST), None)
        if row and all(last_read.get(i, 0) < row.end for i in range(start, row.end - row.period)):
            yield row
        start = row.end if row else start + 1


def _row(statements: Sequence[_Statement], start: int, period: int) -> _Copies:
    """Return the copies of a period of statements that follow each other from a statement on."""
    row = _Copies(start, period, 1)
    while row.end + period <= len(statements) and _is_next(statements, row):
        row = attrs.evolve(row, number=row.number + 1)
    return row


def _is_next(statements: Sequence[_Statement], row: _Copies) -> bool:
    """True if another copy follows."""
    for number in range(row.end, row.end + row.period):
        one, other = statements[number - row.period], statements[number]
        if one.form != other.form or not all(map(_is_alike, one.reads, other.reads, repeat(row))):
            return False
    return True


def _is_alike(was: int | str, now: int | str, row: _Copies) -> bool:
    """True if a name means the same in the copy that follows a row as in the last copy of the row.

    was, now: the number of the statement that bound the name, or the name of an outer variable.
    """
    if isinstance(now, str) or now < row.start:
        return was == now
    if row.number == 1 and now < row.end:
        return isinstance(was, str) or was < row.start
    return now >= row.end - row.period and was == now - row.period


def _of_copies(row: _Copies, statements: Sequence[_Statement]) -> Diagnostic:
    """Return the warning that a loop would say the same as a row of copies."""
    first, second = (
        (*bound(node), node)[0].span for node in (statements[row.start + k * row.period].node for k in (0, 1))
    )
    what = "a statement" if row.period == 1 else f"{row.period} statements"
    return Diagnostic(
        UNROLLED,
        f"{row.number} copies of {what} in a row",
        first,
        (Label(second, "the second copy begins here"),),
        f"write them once inside of `repeat layers {{ ... }}`, with `dim layers = {row.number}`: it compiles faster",
    )
