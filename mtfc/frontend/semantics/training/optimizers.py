"""Find the optimizer that a `train` block calls, and elaborate it into functions that update parameters.

An optimizer may have several declarations, for parameters of different types: the first that fits is used. Optimizers of the file
come before those of the library, which need no import. Hyperparameters are scalar expressions of numbers and of `step`, the
number of the training step.

There is one function for each type of the parameters as stored; for a parameter that a `repeat` stacks, this is the type of one
slice. An optimizer sees only the dimensions of its parameter, under the names of its pattern. So every layout that is legal for
the parameter is legal for its update: see `ir/training.py`.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping

import attrs

from mtfc.compiler.diagnostics import Label, Span
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Update, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.types import FLOATS, Dim, TensorType, scalar
from mtfc.compiler.records import frozen
from mtfc.frontend.semantics.bodies.expressions import Expressions, Operand, Result, Site
from mtfc.frontend.semantics.bodies.function_builder import BlockBuilder, FunctionBuilder
from mtfc.frontend.semantics.bodies.statements import BodyKind, ElaboratedBody
from mtfc.frontend.semantics.calls import argument_kinds as kinds
from mtfc.frontend.semantics.calls.builtin_calls import elaborate_call
from mtfc.frontend.semantics.calls.function_calls import Bindings, GivenArgument
from mtfc.frontend.semantics.names import standard_library
from mtfc.frontend.semantics.names.scope import ANY, STEP, Scope
from mtfc.frontend.syntax import ast, other_libraries
from mtfc.frontend.syntax.ast import bound, is_override, variables, walk

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
        return scope.refuse("E405", "expected an optimizer", node.span, help=EXAMPLE)
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
    """Return help if a name is that of an optimizer in another library, such as `AdamW` of PyTorch; otherwise None."""
    meant = other_libraries.optimizer(name, std.optimizers)
    return f"write `{usage(meant, std.optimizers[meant][0])}`, without an import" if meant else None


def _of_module(node: ast.Call, path: ast.Path, scope: Scope, std: Scope) -> Optimizer | None:
    """Return an optimizer that is named with its module; None, with a diagnostic, if there is none."""
    head, *rest = path.parts
    name = ".".join(rest)
    if head not in scope.modules:
        help = (
            f"add `import {head}`" if standard_library.text(head) is not None else _elsewhere(rest[-1], std)
        )
        return scope.refuse("E113", f"no module `{head}` is imported", path.span, help=help)
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
            meant = other_libraries.hyperparameter(name, known) or _with_hyper(optimizer, name)
            scope.unknown("E405", message, keyword.name, known, meant=meant)
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
    """Return help that names another optimizer with the hyperparameter, first one with a similar name."""
    found = [
        name
        for name, decls in optimizer.scope.optimizers.items()
        if any(each.name.text == hyper for each in decls[0].hypers)
    ]
    other = min(found, key=lambda name: (not name.startswith(optimizer.name), name), default=None)
    return f"`{other}` has it: write `{other}(..., {hyper} = ...)`" if other else None


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
    """Report names of an optimizer that are declared twice, types of hyperparameters, and a wrong pattern."""
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
    """Report dimensions of a pattern that are paths or stand twice, and a dtype that no parameter has."""
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


def elaborate_updates(
    optimizer: Optimizer, types: Mapping[str, TensorType], scope: Scope
) -> tuple[Update, ...] | None:
    """Return the updates of parameters for a `train` block in the file `scope`; None if one has an error.

    types: the types of the parameters by name.
    """
    if not types and given_hypers(optimizer, optimizer.decls[0], scope) is None:
        return None
    names: dict[TensorType, list[str]] = {}
    for name, type in types.items():
        names.setdefault(type, []).append(name)
    updates: list[Update] = []
    wrong: list[ast.OptimizerDecl] = []
    for type, parameters in names.items():
        case = _case(optimizer, type)
        if case is None:
            report_no_case(optimizer, parameters[0], type, scope)
            return None
        function = None if case[0] in wrong else _function(optimizer, *case, type, scope)
        if function is None:  # an error for one type is not repeated for others
            wrong.append(case[0])
        else:
            updates.append(Update(tuple(parameters), function))
    return None if wrong else tuple(updates)


def elaborate_hyperparameter(optimizer: Optimizer, name: str, scope: Scope) -> Function | None:
    """Make the function that computes one hyperparameter of an optimizer, such as its learning rate: no arguments, one f32[]
    output.

    The hyperparameter is that of the first declaration which has it. Returns None, with a diagnostic, if the call of the
    optimizer is wrong.
    """
    decl = declaration_of(optimizer, name)
    given = given_hypers(optimizer, decl, scope)
    inside = _inside(optimizer, Bindings(set(), optimizer.scope))
    body = UpdateBody(decl, scalar("f32"), inside)
    return None if given is None else body.hyperparameter(name, given, scope)


def _case(optimizer: Optimizer, type: TensorType) -> tuple[ast.OptimizerDecl, Bindings] | None:
    """Return the first declaration that fits a type, and the bindings of the names in its pattern."""
    found = ((decl, _matched(decl, type, optimizer.scope)) for decl in optimizer.decls)
    return next(((decl, bindings) for decl, bindings in found if bindings is not None), None)


def _function(
    optimizer: Optimizer, decl: ast.OptimizerDecl, bindings: Bindings, type: TensorType, scope: Scope
) -> Function | None:
    """Return the update function of a declaration for parameters of a type; None, with a diagnostic, if the call is wrong.

    bindings: the names in the declaration's pattern, bound to that type.
    """
    given = given_hypers(optimizer, decl, scope)
    inside = _inside(optimizer, bindings)
    return None if given is None else UpdateBody(decl, type, inside).function(given, scope)


def _matched(decl: ast.OptimizerDecl, type: TensorType, scope: Scope) -> Bindings | None:
    """Return the bindings of the pattern's names if a type fits the pattern; without a pattern, every type fits."""
    span = decl.parameter.span
    pattern = decl.pattern or ast.Type(span, None, (ast.Ellipsis(span),))
    if pattern.dtype is None:
        pattern = pattern.evolve(dtype=ast.Name(span, ANY))
    bindings = Bindings(
        {dim.text for dim in pattern.dims if isinstance(dim, ast.Name)}, scope, any=(type.dtype, span)
    )
    argument = ast.FnArg(span, decl.parameter, pattern, None)
    operand = Operand(Value(decl.parameter.text, type), span)
    return bindings if bindings.match([GivenArgument(argument, operand)]) is None else None


def _inside(optimizer: Optimizer, bindings: Bindings) -> Scope:
    """Return the scope of the body, whose only dimensions are those of the pattern."""
    label = Label(optimizer.call.span, f"in this call of `{optimizer.name}`")
    scope = optimizer.scope.inside((label,))
    scope.dims = {name: dim for name, (dim, _) in bindings.dims.items()}
    scope.places = {name: span for name, (_, span) in bindings.dims.items()}
    scope.rest = bindings.rest[0] if bindings.rest else ()
    scope.any = bindings.any[0] if bindings.any else None
    return scope


def _problem(eqn: Equation, own: tuple[Dim, ...]) -> str | None:
    """Return why an equation may not stand in an optimizer, as the end of a sentence; None if it may.

    own: the parameter's dims.
    """
    if has_trait(eqn, "training"):
        return "asks for `training`, and updates are computed in training alone"
    if has_trait(eqn, "random"):
        return "draws random numbers, which the parameters that it updates would share"
    if eqn.regions:
        return "contains a loop"
    for dim in (dim for value in eqn.results for dim in value.type.dims):
        if dim not in own:
            return f"computes with dimension `{dim.name}`, which its parameter does not have"
    return None


@frozen
class UpdatedVariable:
    """The parameter or a state: the place of its declaration, and its type.

    A state that starts as a number stays a number, of any dtype.
    """

    span: Span
    type: TensorType
    is_number: bool = False


class UpdateBody(ElaboratedBody):
    """The body of a declaration of an optimizer for one type of parameters."""

    def __init__(self, decl: ast.OptimizerDecl, type: TensorType, scope: Scope) -> None:
        """Start a body for parameters of a type.

        is_updated: the body assigns the parameter. step: the number of the step, once read. given: the names that cannot be
        assigned: hyperparameters and the gradient. kept: the parameter and the states, whose last values are the outputs of
        the function.
        """
        names = [*(hyper.name for hyper in decl.hypers), decl.parameter, decl.gradient]
        builder = FunctionBuilder(BlockBuilder(variables(names, decl.body)), scope.reports.grown)
        super().__init__(BodyKind("optimizer", decl.name), decl.body, scope, builder, elaborate_call, names)
        self.decl, self.type = decl, type
        self.given: dict[str, Span] = {}
        self.kept: dict[str, UpdatedVariable] = {}
        self.is_updated = False
        self.step: Value | None = None

    def function(self, given: Mapping[str, ast.Argument], scope: Scope) -> Function | None:
        """Return the function for a call with these hyperparameters, in the file `scope`; None if there is an error.

        given: the hyperparameters by name.
        """
        decl, builder = self.decl, self.builder
        scope.reports.called.add(decl.name.span)
        for hyper in decl.hypers:
            self.give(hyper.name, self._hyper(hyper, given.get(hyper.name.text), scope))
        parameter = builder.argument(decl.parameter.text, self.type, "parameter", decl.parameter.span)
        self.keep(decl.parameter, parameter)
        self.give(decl.gradient, builder.argument(decl.gradient.text, self.type, "input", decl.gradient.span))
        self._give_step(self.expressions, decl.body)
        self.run()
        outputs = self.outputs()
        right = outputs is not None and None not in self.expressions.values.values()
        if outputs is None or not right or not self._is_possible():
            return None
        return Function(decl.name.text, tuple(builder.arguments), tuple(builder.block.body), outputs)

    def hyperparameter(self, name: str, given: Mapping[str, ast.Argument], scope: Scope) -> Function | None:
        """Return a function that gives the hyperparameter; None if the hyperparameter is wrong.

        given: the hyperparameters of the call, by name.
        """
        hyper = next(each for each in self.decl.hypers if each.name.text == name)
        result = self._hyper(hyper, given.get(name), scope)
        if result is None:
            return None
        expressions, block = self.expressions, self.builder.block
        value = expressions.tensor(expressions.as_operand(result, hyper.span), "f32")
        if value is None:
            return None
        return Function(name, (), tuple(block.body), (Output(name, block.cast(value, "f32")),))

    def _hyper(self, hyper: ast.FnArg, given: ast.Argument | None, scope: Scope) -> Result:
        """Elaborate a hyperparameter: the given one, or else the default, which sees the names of the optimizer's file."""
        node = hyper.default if given is None else given
        assert node is not None, "hyperparameters without a default are given"
        inside = Expressions(self.scope.file if given is None else scope, self.builder, {}, elaborate_call)
        if isinstance(node, ast.DimList | ast.Tuple | ast.Arrow):
            kinds.tensor(inside, node)  # reports it
            return None
        self._give_step(inside, (node,))
        value = inside.value(node, hyper.name.text)
        if isinstance(value, Value) and value.type.dims:
            message = f"hyperparameter `{hyper.name.text}` is a scalar, found {value.type}"
            return inside.scope.refuse("E405", message, node.span)
        if isinstance(value, Value) and value.type.dtype in FLOATS:
            self.builder.numbers.add(value)
        return value

    def _give_step(self, expressions: Expressions, nodes: Iterable[ast.Node]) -> None:
        """Bind `step` if a node mentions it: a number known when the program runs, f64 for f64 parameters and f32 for others."""
        names = (node for each in nodes for node in walk(each) if isinstance(node, ast.Name))
        place = next((name.span for name in names if name.text == STEP), None)
        if place is None or STEP in expressions.values:
            return
        if self.step is None:
            number = Operand(self.builder.step(place), place)
            dtype = "f64" if self.type.dtype == "f64" else "f32"
            self.step = expressions.emit(Site(place), "cast", number, dtype=dtype)
            assert self.step is not None, "an i32 can be cast"
            self.builder.numbers.add(self.step)
        expressions.values[STEP] = self.step

    def _is_possible(self) -> bool:
        """Return True if the update has only operations that an update can contain; report errors otherwise."""
        scope, name = self.scope, self.decl.name.text
        for parameter in self.builder.parameters:
            scope.error("E114", "`param` belongs in what a model calls", parameter.span or self.decl.span)
        problems: dict[str, Span] = {}
        for eqn in self.builder.block.body:
            problem = _problem(eqn, self.type.dims)
            if problem:
                problems.setdefault(problem, eqn.span or self.decl.span)
        for problem, span in problems.items():
            scope.error("E416", f"optimizer `{name}` {problem}", span)
        return not self.builder.parameters and not problems

    def give(self, name: ast.Name, value: Result) -> None:
        if self.bind(name, value):
            self.given[name.text] = name.span

    def keep(self, name: ast.Name, value: Value, is_number: bool = False) -> None:
        if self.bind(name, value):
            self.kept[name.text] = UpdatedVariable(name.span, value.type, is_number)

    def run(self) -> None:
        for statement in self.statements:
            self.statement(statement)

    def outputs(self) -> tuple[Output, ...] | None:
        """Return the new values of the parameter and of each state; None, and an error, if the parameter is not updated."""
        parameter = self.decl.parameter
        is_broken = any(isinstance(statement, ast.Broken) for statement in self.statements)
        if not self.is_updated and not is_broken:
            message = f"optimizer `{self.decl.name.text}` never assigns its parameter `{parameter.text}`"
            help = f"end it with `{parameter.text} = {parameter.text} - ...`"
            self.scope.error("E414", message, self.decl.name.span, help=help)
        values = self.expressions.values
        outputs = [Output(n, v, n) for n in self.kept if isinstance(v := values[n], Value)]
        return tuple(outputs) if self.is_updated and len(outputs) == len(self.kept) else None

    # Statements

    def statement(self, node: ast.Statement) -> None:
        """Elaborate a statement; report one that an optimizer cannot have."""
        if isinstance(node, ast.Assign | ast.State | ast.Yield | ast.Broken):
            super().statement(node)
            return
        self.misplaced(node, "a model or a function")
        for name in bound(node):
            self.expressions.values[name.text] = None

    def assign(self, node: ast.Assign) -> None:
        """Assign values: refuse to assign what is given to the optimizer, and let new values of parameter and states take their
        types.
        """
        given = [target for target in node.targets if target.text in self.given]
        values = self.expressions.values
        before = {target.text: values[target.text] for target in given}
        for target in given:
            message = f"`{target.text}` is given to optimizer `{self.decl.name.text}`, and cannot be assigned"
            label = Label(self.given[target.text], "it is given here")
            help = "give the new value another name"
            self.scope.error("E412", message, target.span, [label], help)
        super().assign(node)
        values.update(before)
        for target in node.targets:
            if target.text in self.kept:
                values[target.text] = self._replacing(target, values[target.text], self.kept[target.text])

    def _replacing(self, target: ast.Name, result: Result, kept: UpdatedVariable) -> Result:
        """Return a new value of the parameter or of a state, with the type of the old one.

        kept: the variable that the new value replaces.
        """
        self.is_updated |= target.text == self.decl.parameter.text
        if result is None:
            return None
        operand, type = self.expressions.as_operand(result, target.span), kept.type
        dtype = None if kept.is_number and operand.dtype in FLOATS else operand.dtype
        operand = attrs.evolve(operand, is_number=dtype is None)
        if not operand.fits(type):
            self.expressions.report_change(target, operand, type, kept.span)
            return None
        fit = self.expressions.as_type(operand, type, target.text)
        if kept.is_number and fit is not None:
            self.builder.numbers.add(fit)
        return fit

    def state(self, node: ast.State) -> None:
        """Declare a state of the optimizer, whose type is that of its initial value."""
        if node.type is not None:
            message = f"state `{node.name.text}` of an optimizer takes the type of its initial value"
            help = "leave the type out"
            self.scope.error("E420", message, node.type.span, help=help)
        start = self._start(node)
        if start is None:
            self.bind(node.name, None)
            return
        type, initial, is_number = start
        if node.name.text in self.places:
            self.bind(node.name, None)  # reports it
            return
        value = self.builder.block.own(node.name.text, type)
        self.builder.arguments.append(Argument(value, "state", node.name.span, initial=initial))
        self.keep(node.name, value, is_number)
        if is_number:
            self.builder.numbers.add(value)

    def _start(self, node: ast.State) -> tuple[TensorType, float, bool] | None:
        """Return the type of a state, the value that its elements start with, and True if the state is a number."""
        scratch = FunctionBuilder(BlockBuilder(()), self.builder.grown, numbers=self.builder.numbers)
        inside = Expressions(self.scope, scratch, self.later, elaborate_call)
        inside.values = dict(self.expressions.values)
        value = inside.value(node.value)
        if isinstance(value, int | float):
            return scalar("bool" if isinstance(value, bool) else "f32"), float(value), True
        made = next((eqn for eqn in scratch.block.body if value in eqn.results), None)
        if made is not None and has_trait(made, "filled"):
            return made.result.type, float(VALUE.of(made.attrs)), False
        if value is not None:
            message = f"state `{node.name.text}` does not start with equal elements"
            help = "begin with `zeros_like(p)`, `zeros([dims])`, `full([dims], 0.1)` or a number"
            self.scope.error("E413", message, node.value.span, help=help)
        return None
