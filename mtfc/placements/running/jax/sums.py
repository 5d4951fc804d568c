"""The sums of gradients over passes, and over the devices that hold the same elements of a parameter."""

from collections.abc import Callable, Mapping, Sequence

from mtfc.compiler.ir.types import ITEM_BYTES
from mtfc.placements.running.jax.passes import PlacedRun, short
from mtfc.placements.running.jax.pieces import PiecesByName
from mtfc.placements.running.jax.tasks import HeldPiece, TaskList

Reduced = Mapping[tuple[str, int], str]
"""Value and device -> variable with the gradient of the device's piece, summed over all devices that hold it."""


def summed_gradients(
    tasks: TaskList,
    held: PiecesByName,
    runs: Sequence[PlacedRun],
    weight: Callable[[PlacedRun, int], str] | None = None,
) -> Reduced:
    """Add up the gradients of all passes on each device, and then those of the devices that hold the same elements.

    weight: pass and device -> variable with the weight of the pass: gradients of weight 0 count as zeros.
    """
    terms_of: dict[str, dict[int, list[str]]] = {}
    for run_ in runs:
        for (value, device), pieces in run_.gradients.items():
            ends = next(each.ends for each in held[value.name] if each.device == device)
            name = tasks.joined(device, ends, pieces, f"d_{short(value)}", adds=True)
            if weight:
                there = weight(run_, device)
                name = tasks.add(device, f"masked({name}, {there})", [name, there], [name])[0]
            terms_of.setdefault(value.name, {}).setdefault(device, []).append(name)
    sums: dict[tuple[str, int], str] = {}
    for number, (value_name, terms) in enumerate(terms_of.items()):
        base = f"d_{short(held[value_name][0].value)}"
        item = ITEM_BYTES[held[value_name][0].value.type.dtype]
        is_narrow = item < ITEM_BYTES["f32"]
        totals = {device: _added(tasks, device, names, base, is_narrow) for device, names in terms.items()}
        pieces = [
            HeldPiece(piece.device, piece.ends, totals.get(piece.device, "")) for piece in held[value_name]
        ]
        for device, variable in tasks.summed(pieces, item, base, number).items():
            sums[value_name, device] = variable
    return sums


def _added(tasks: TaskList, device: int, names: Sequence[str], base: str, is_narrow: bool) -> str:
    """Return the sum of the gradients of micro-batches, added in their order, so that each can be freed early.

    Floats of 16 bits are added in 32 bits, and rounded once.
    """
    rounds = is_narrow and len(names) > 1
    found = tasks.apply(device, "widened", names[:1], [base])[0] if rounds else names[0]
    for name in names[1:]:
        found = tasks.total(device, [found, name], base)
    return tasks.apply(device, "rounded", [found, names[0]], [base])[0] if rounds else found
