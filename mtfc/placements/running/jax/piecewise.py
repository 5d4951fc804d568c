"""A function on arrays in pieces: a call for each piece of a parameter, and one for the numbers of all parameters.

An array belongs to the parameter that it is about, such as a gradient or a state. Arguments say so, and results follow their
operands. A sum over a parameter, as in the norm of all gradients, is a number: each element counts once, and what depends on the
number is computed on device 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from mtfc.compiler.ir.builder import fresh_copy, needed_for
from mtfc.compiler.ir.core import Argument, Equation, Function, Output, Value
from mtfc.compiler.ir.ops import has_trait
from mtfc.compiler.ir.ops.creation import VALUE
from mtfc.compiler.ir.types import ITEM_BYTES, Dim, TensorType
from mtfc.placements.running.jax.parts import ModuleFunctions
from mtfc.placements.running.jax.passes import short, sources_of, whole_of
from mtfc.placements.running.jax.pieces import PiecesByName, StoredPiece, pieces_by_value, region_type
from mtfc.placements.running.jax.tasks import Ends, HeldPiece, TaskList

Variables = Callable[[Value], Sequence[str]]
"""Argument -> the variables of the pieces of its parameter, in order; or one variable with the whole array."""


class Piecewise:
    """Adds the tasks of a function."""

    def __init__(
        self,
        functions: ModuleFunctions,
        tasks: TaskList,
        pieces: PiecesByName,
        function: Function,
        owners: Mapping[Value, str],
        variables: Variables,
    ) -> None:
        """Prepare the needed equations.

        groups: parameter -> the outputs that belong to it; None -> the others. owners: argument, later any value -> its
        parameter, if it belongs to one. pieces: the pieces of each parameter. joint: numbers that follow from one parameter and
        concern others -> the parameter. late: these, and what follows from them alone.
        """
        self.functions, self.tasks, self.pieces, self.variables = functions, tasks, pieces, variables
        needed = needed_for((o.value for o in function.outputs), function.body)
        self.function = attrs.evolve(function, body=needed)
        self.makers = {value: eqn for eqn in self.function.body for value in eqn.results}
        self.owners, self.joint, self.late = dict(owners), dict[Value, str](), set[Value]()
        self.whole = {owners[a.value]: a.value.type.dims for a in function.arguments if a.role == "parameter"}
        self.known: dict[Value, str] = {}
        updated = {a.value.name: owners.get(a.value) for a in function.arguments}
        self.groups: dict[str | None, list[Output]] = {None: []}
        for output in function.outputs:
            self.groups.setdefault(updated.get(str(output.updates)), []).append(output)
        self._find_owners()

    def _find_owners(self) -> None:
        """Find for each value the parameter on whose pieces it is computed.

        A scalar that a parameter's pieces give, and that other parameters or a reduction need, is joint: it is summed over the
        pieces. What follows from it is late, and computed once for all.
        """
        concerned: dict[Value, set[str | None]] = {}
        for owner, outputs in self.groups.items():
            for output in outputs:
                concerned.setdefault(output.value, set()).add(owner)
        for eqn in reversed(self.function.body):
            reached = set[str | None]().union(*(concerned.get(value, ()) for value in eqn.results))
            for value in eqn.operands:
                concerned.setdefault(value, set()).update(reached)
        for eqn in self.function.body:
            own = {self.owners[value] for value in eqn.operands if value in self.owners}
            for value in eqn.results if own else ():
                (owner,) = own
                others = concerned.get(value, set()) - {owner}
                if not value.type.dims and (others or self._reduces_pieces(eqn, owner)):
                    self.joint[value] = owner
                    self.late.add(value)
                else:
                    self.owners[value] = owner
            if not own and not self.late.isdisjoint(eqn.operands):
                self.late.update(eqn.results)

    def _reduces_pieces(self, eqn: Equation, owner: str) -> bool:
        """Return True if an equation reduces arrays of which a device has only a piece."""
        whole = tuple((0, dim.size) for dim in self.whole[owner])
        is_reduction = any(value.type.dims for value in eqn.operands)
        return is_reduction and any(piece.region != whole for piece in self.pieces[owner])

    def run(self) -> dict[str, list[str]]:
        """Add the tasks; return the variables of each output."""
        shared = self.groups[None]
        parts = {owner: self._part(own, self.late) for owner, own in self.groups.items() if owner is not None}
        read = dict.fromkeys(
            a.value for part in parts.values() for a in part.arguments if a.value in self.late
        )
        for value, owner in self.joint.items():
            self.known[value] = self._total(value, owner)
        late_outputs = [Output(value.name, value) for value in read if value not in self.joint]
        part = self._part([*shared, *late_outputs], self.joint)
        names = self._call(part, 0, part.name, {a.value: self._whole(a.value) for a in part.arguments})
        variables_of = {output.name: [name] for output, name in zip(shared, names, strict=False)}
        self.known |= {output.value: name for output, name in zip(part.outputs, names, strict=True)}
        for owner, part in parts.items():
            for number, piece in enumerate(self.pieces[owner]):
                for output, name in zip(
                    part.outputs, self._on_piece(part, owner, number, piece), strict=True
                ):
                    variables_of.setdefault(output.name, []).append(name)
        return variables_of

    def _part(self, outputs: Iterable[Output], given: Iterable[Value]) -> Function:
        """Return the function from arguments and given values to some outputs."""
        outputs, known = tuple(outputs), set(given)
        values = [output.value for output in outputs]
        body = needed_for(values, [eqn for eqn in self.function.body if known.isdisjoint(eqn.results)])
        made = {value for eqn in body for value in eqn.results}
        read = dict.fromkeys([v for eqn in body for v in eqn.operands] + values)
        arguments = tuple(Argument(value, "input") for value in read if value not in made)
        return Function(self.function.name, arguments, body, outputs)

    def _total(self, value: Value, owner: str) -> str:
        """Return a joint number on device 0: the sum of its terms, in each of which elements count once."""
        part, terms = self._part([Output(value.name, value)], ()), list[str]()
        pieces = self.pieces[owner]
        for own in pieces_by_value({owner: pieces}).values():
            held = [HeldPiece(piece.device, piece.ends, "") for piece in own]
            for number, region in sources_of(held, whole_of(own[0].value), -1, 0):
                (term,) = self._on_piece(part, owner, pieces.index(own[number]), own[number], region)
                terms.append(self.tasks.on(term, 0, ITEM_BYTES[value.type.dtype]))
        assert len(terms) < 2 or has_trait(self.makers[value], "sum"), "terms are added up"
        return self.tasks.total(0, terms, short(value)) if terms else self.tasks.filled(value.type, 0, 0)

    def _on_piece(
        self, part: Function, owner: str, number: int, piece: StoredPiece, region: Ends | None = None
    ) -> list[str]:
        """Return the outputs of a part on a piece of a parameter, or on a region of the piece."""
        type, known = region_type(piece.value.type, region or piece.ends), list[str]()
        small = shortened(part, self.whole[owner], type.dims)
        for value in (argument.value for argument in part.arguments):
            name = self.variables(value)[number] if value in self.owners else self._whole(value)
            known.append(
                self.tasks.cut(name, piece.ends, region) if region and value in self.owners else name
            )
        if not known:
            return [self._filled(small, output.value, piece.device) for output in small.outputs]
        given = dict(zip((argument.value for argument in small.arguments), known, strict=True))
        return self._call(small, piece.device, f"{part.name}_{short(piece.value)}", given)

    def _filled(self, part: Function, value: Value, device: int) -> str:
        """Return a variable with a result that depends on no argument."""
        (maker,) = (eqn for eqn in part.body if value in eqn.results)
        return self.tasks.filled(value.type, VALUE.of(maker.attrs), device)

    def _call(self, part: Function, device: int, name: str, known: Mapping[Value, str]) -> list[str]:
        """Add a call of a part; return the variables of its outputs. known: those of its arguments."""
        read = {value for eqn in part.body for value in eqn.operands}
        arguments = tuple(argument for argument in part.arguments if argument.value in read)
        outputs = tuple(output for output in part.outputs if output.value not in known)
        variables = dict(known)
        if outputs:
            sizes = [each.value.type.size * ITEM_BYTES[each.value.type.dtype] for each in arguments]
            given = [known[each.value] for each in arguments]
            operands = [self.tasks.on(each, device, n) for each, n in zip(given, sizes, strict=True)]
            doc = f"Compute {', '.join(output.name for output in outputs)}."
            part_function = self.functions.add(Function(part.name, arguments, part.body, outputs), name, doc)
            result_names = [short(Value(output.name, output.value.type)) for output in outputs]
            names = self.tasks.call(device, part_function, operands, result_names)
            variables |= {output.value: each for output, each in zip(outputs, names, strict=True)}
        return [variables[output.value] for output in part.outputs]

    def _whole(self, value: Value) -> str:
        """Return a variable with a number of all parameters, or an array that belongs to none."""
        if value not in self.known:
            (self.known[value],) = self.variables(value)
        return self.known[value]


def shortened(function: Function, whole: Sequence[Dim], dims: Sequence[Dim]) -> Function:
    """Return a function of a parameter for a piece, whose dimensions are shorter. A slice lacks some of the whole dimensions."""
    sizes: dict[str, Dim | None] = {dim.name: None for dim in whole} | {dim.name: dim for dim in dims}

    def type_of(value: Value) -> TensorType:
        return TensorType(value.type.dtype, _with(value.type.dims, sizes))

    return fresh_copy(
        function, type_of, lambda eqn: {key: _with(value, sizes) for key, value in eqn.attrs.items()}
    )


def _with(value: Any, sizes: Mapping[str, Dim | None]) -> Any:
    """Return dimensions with other sizes, without those that have none; anything else as it is."""
    if isinstance(value, Dim):
        return sizes.get(value.name, value)
    if not isinstance(value, tuple):
        return value
    return tuple(each for each in (_with(each, sizes) for each in value) if each is not None)
