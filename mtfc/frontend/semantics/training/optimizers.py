"""Find the optimizer that a `train` block calls, and its hyperparameters.

An optimizer may have several declarations, for parameters of different types: the first that fits is used. Optimizers of the file
come before those of the library, which need no import. Hyperparameters are scalar expressions of numbers and of `step`, the
number of the training step.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.types import FLOATS, TensorType
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.semantics.names.scope import ANY, Scope
from mtfc.frontend.syntax import ast, other_libraries
from mtfc.frontend.syntax.ast import is_override

EXAMPLE = "for example `sgd(learning_rate = 0.1)`"


@frozen
class Optimizer:
    """An optimizer as a `train` block calls it: its declarations, and the scope of their file."""

    scope: Scope
    decls: tuple[ast.OptimizerDecl, ...]
    call: ast.Call

    @property
    def name(self) -> str:
        return self.call.function.text


def find_optimizer(node: ast.Expr, scope: Scope, std: Scope) -> Optimizer | None:
    """Return the optimizer that a call in `scope` means; `std` has the optimizers of the library."""
    if not isinstance(node, ast.Call):
        scope.error("E405", "expected an optimizer", node.span, help=EXAMPLE)
        return None
    if isinstance(node.function, ast.Path):
        return _of_module(node, node.function, scope, std)
    name = node.function.text
    for file in (scope, std):
        if name in file.optimizers:
            return Optimizer(file, file.optimizers[name], node)
    known = tuple(ChainMap(dict.fromkeys(scope.optimizers), dict.fromkeys(std.optimizers)))
    scope.unknown("E404", f"unknown optimizer `{name}`", node.function, known, _elsewhere(name, std))
    return None


def _elsewhere(name: str, std: Scope) -> str | None:
    """Return help for an optimizer of another library."""
    meant = other_libraries.optimizer(name, std.optimizers)
    return f"write `{usage(meant, std.optimizers[meant][0])}`, without an import" if meant else None


def _of_module(node: ast.Call, path: ast.Path, scope: Scope, std: Scope) -> Optimizer | None:
    head, *rest = path.parts
    name = ".".join(rest)
    if head not in scope.modules:
        help = (
            f"add `import {head}`" if standard_library.text(head) is not None else _elsewhere(rest[-1], std)
        )
        scope.error("E113", f"no module `{head}` is imported", path.span, help=help)
        return None
    module = scope.modules[head]
    if module is not None and name in module.optimizers:
        return Optimizer(module, module.optimizers[name], node)
    if module is not None and name not in module.doubtful:
        known = [f"{head}.{each}" for each in module.optimizers]
        scope.unknown("E404", f"module `{head}` has no optimizer `{name}`", path, known)
    return None


# Hyperparameters


def given_hypers(
    optimizer: Optimizer, decl: ast.OptimizerDecl, scope: Scope
) -> dict[str, ast.Argument] | None:
    """Return the hyperparameters that the call gives; others have defaults. Returns None if the call is wrong."""
    known = {hyper.name.text: hyper for hyper in decl.hypers}
    call, problems = optimizer.call, list(_surplus(optimizer, decl))
    given = dict(zip(known, call.arguments, strict=False))
    for keyword in call.keywords:
        name = keyword.name.text
        if name not in known:
            message = f"`{optimizer.name}` has no hyperparameter `{name}`"
            other = _with_hyper(optimizer, name)
            alias = other_libraries.hyperparameter(name, known)
            if alias:
                scope.error("E405", message, keyword.name.span, help=alias)
            elif other:
                help = f"`{other}` has it: write `{other}(..., {name} = ...)`"
                scope.error("E405", message, keyword.name.span, help=help)
            else:
                scope.unknown("E405", message, keyword.name, known)
            problems.append(keyword.span)
        elif name in given and not is_override(keyword):
            scope.error("E405", f"`{name}` is given twice", keyword.span)
            problems.append(keyword.span)
        else:
            given[name] = keyword.value
    help = f"write `{usage(optimizer.name, decl)}`"
    for span in _surplus(optimizer, decl):
        scope.error("E405", f"`{optimizer.name}` takes no such argument", span, help=help)
    missing = [name for name, hyper in known.items() if name not in given and hyper.default is None]
    if missing and not problems:
        names = " and ".join(f"`{name}`" for name in missing)
        scope.error("E405", f"`{optimizer.name}` needs {names}", call.span, help=help)
    return None if missing or problems else given


def declaration_of(optimizer: Optimizer, hyper: str) -> ast.OptimizerDecl:
    """Return the first declaration of the optimizer with this hyperparameter, which must exist."""
    return next(each for each in optimizer.decls if hyper in (known.name.text for known in each.hypers))


def _with_hyper(optimizer: Optimizer, hyper: str) -> str | None:
    """Return another optimizer that has the hyperparameter, first one with a similar name."""
    found = [
        name
        for name, decls in optimizer.scope.optimizers.items()
        if any(each.name.text == hyper for each in decls[0].hypers)
    ]
    return min(found, key=lambda name: (not name.startswith(optimizer.name), name), default=None)


def _surplus(optimizer: Optimizer, decl: ast.OptimizerDecl) -> Iterator[Span]:
    """Yield the places of arguments that the optimizer does not take."""
    call = optimizer.call
    extra = (*call.arguments[len(decl.hypers) :], *call.bindings, *((call.scope,) if call.scope else ()))
    yield from (node.span for node in extra)


def usage(name: str, decl: ast.OptimizerDecl) -> str:
    """Return an example of a call, with the hyperparameters that have no default."""
    needed = (hyper.name.text for hyper in decl.hypers if hyper.default is None)
    return f"{name}({', '.join(f'{each} = 0.1' for each in needed)})"


# Declarations


def check_optimizers(decls: Iterable[ast.OptimizerDecl], scope: Scope) -> None:
    """Report errors in the heads of a file's optimizers."""
    first: dict[str, ast.OptimizerDecl] = {}
    for decl in decls:
        _check_head(decl, scope)
        before = first.setdefault(decl.name.text, decl)
        if before is not decl and before.pattern is None:
            message = f"this case of optimizer `{decl.name.text}` is never used"
            label = Label(before.parameter.span, "the one before it is for every parameter")
            scope.error("E102", message, decl.name.span, [label])
        if decl.pattern is None:
            first[decl.name.text] = decl


def _check_head(decl: ast.OptimizerDecl, scope: Scope) -> None:
    places: dict[str, Span] = {}
    for name in (*(hyper.name for hyper in decl.hypers), decl.parameter, decl.gradient):
        scope.declare("value", name, places)
    for hyper in decl.hypers:
        if hyper.type:
            scope.error(
                "E204", "a hyperparameter is a scalar, and is written without a type", hyper.type.span
            )
    if decl.pattern:
        _check_pattern(decl.pattern, scope)


def _check_pattern(pattern: ast.Type, scope: Scope) -> None:
    places: dict[str, Span] = {}
    for dim in pattern.dims:
        if isinstance(dim, ast.Path):
            scope.error("E204", "a pattern gives dimensions names of its own", dim.span)
        else:
            text = dim.text if isinstance(dim, ast.Name) else "..."
            scope.declare("dimension", ast.Name(dim.span, text), places)
    dtype = pattern.dtype
    if dtype and dtype.text != ANY and scope.dtype(dtype) not in (*FLOATS, None):
        scope.error("E216", f"parameters are floating-point, not {dtype.text}", dtype.span)


def report_no_case(optimizer: Optimizer, name: str, type: TensorType, scope: Scope) -> None:
    """Report that no declaration is for the parameter `name`."""
    labels = [Label((decl.pattern or decl.parameter).span, "this one is not") for decl in optimizer.decls]
    message = f"no case of optimizer `{optimizer.name}` is for parameter `{name}`, which is {type}"
    help = f"add one for all others: `optimizer {optimizer.decls[0].name.text}(...) (p, g) {{ ... }}`"
    scope.error("E411", message, optimizer.call.function.span, labels[:4], help)
