# mypy: allow-untyped-defs, allow-untyped-calls
"""Checks in generated modules that arguments are the arrays that the program is compiled for.

A module holds numbers that depend on sizes, 1 / batch for example, so arrays of other sizes would give wrong results. The text of
these functions is copied into the modules of both backends.
"""

import numpy as np

TYPES: dict[str, dict[str, tuple[str, dict[str, int]]]] = {}
"""Kind of arguments -> name -> dtype and sizes of the whole array. A generated module has its own table."""

LAYOUTS: dict[str, dict[str, object]] = {}
"""Kind of arguments -> the table of their layouts. A generated module has its own table."""


def check(kind, given):
    """Raise `ValueError` unless `given`, name -> dtype and whole shape, has exactly the arrays of a kind."""
    what, wanted = argument(kind), TYPES[kind]
    names = f"it takes {', '.join(wanted) or 'none'}"
    problems = [f'{what} lacks "{name}": {names}' for name in wanted if name not in given]
    problems += [f'{what} has "{name}", which is unknown: {names}' for name in given if name not in wanted]
    known = [name for name in wanted if name in given]
    problems += [mismatch(f'{what}["{name}"]', given[name], wanted[name]) for name in known]
    raise_if(problems)


def argument(kind):
    """Return the name of the argument that takes arrays of that kind."""
    return "inputs" if kind == "batches" else kind


def entries(kind, arrays):
    """Return the names and arrays of an argument. Raises `ValueError` if it is no dict of arrays."""
    if not hasattr(arrays, "items"):
        raise ValueError(f"{argument(kind)} is a dict of arrays by name, and not {type(arrays).__name__}")
    for name, x in arrays.items():
        if not hasattr(x, "dtype"):
            raise ValueError(f'{argument(kind)}["{name}"] is an array, and not {type(x).__name__}')
    return arrays.items()


def check_whole(given, layouts):
    """Raise `ValueError` if an array does not fit the table of its layout."""
    problems = []
    kinds = [kind for kind, table in LAYOUTS.items() if table is layouts] or list(TYPES)
    for name, x in given.items():
        if name not in layouts:
            what = argument(kinds[0]) if len(kinds) == 1 else "the argument"
            problems.append(f'{what} has "{name}", which is unknown: it takes {", ".join(layouts) or "none"}')
        wanted = [TYPES[kind][name] for kind in kinds if name in TYPES[kind]]
        found = [mismatch(f'"{name}"', (narrowed(x, type[0]), np.shape(x)), type) for type in wanted]
        problems += found[:1] if all(found) else [overflow(f'"{name}"', x, wanted[0][0])]
    raise_if(problems)


def narrowed(x, wanted):
    """Return the dtype of an array after placement: 64-bit numbers become 32-bit numbers."""
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    narrow = {"float64": "float32", "int64": "int32", "uint64": "uint32"}.get(dtype.name)
    return wanted if narrow == wanted else dtype.name


def overflow(label, x, wanted):
    """Return a message, empty unless the array holds integers that do not fit in the wanted dtype."""
    if not isinstance(x, np.ndarray) or x.dtype.name == wanted or x.dtype.kind not in "iu" or not x.size:
        return ""
    limits = np.iinfo(wanted)
    fits = limits.min <= x.min() and x.max() <= limits.max
    return "" if fits else f"{label} is {wanted}, and the given array has numbers that do not fit in it"


def raise_if(problems):
    """Raise `ValueError` with the messages that are not empty."""
    if any(problems):
        raise ValueError("\n".join(filter(None, problems)))


def mismatch(label, given, wanted):
    """Return how an array differs from the wanted one, with a remedy; an empty text if it does not differ."""
    dtype, shape = given
    sizes = wanted[1]
    if (dtype, tuple(shape)) == (wanted[0], tuple(sizes.values())):
        return ""
    named = ", ".join(f"{dim}: {size}" for dim, size in sizes.items())
    found = f"{label} is {wanted[0]}[{named}], and the given array is {dtype}[{', '.join(map(str, shape))}]"
    return f"{found}: {remedy(dtype, tuple(shape), wanted)}"


def remedy(dtype, shape, wanted):
    """Return the remedy for an array of another dtype or shape."""
    sizes = wanted[1]
    if shape == tuple(sizes.values()):
        return f'convert it with .astype("{wanted[0]}")'
    if shape == tuple(sizes.values())[1:]:
        return f"stack {next(iter(sizes.values()))} of these along a new first dimension, {next(iter(sizes))}"
    if len(shape) != len(sizes):
        return f"its dimensions are {', '.join(sizes) or 'none'}"
    others = {dim: found for (dim, size), found in zip(sizes.items(), shape, strict=True) if size != found}
    fixed = ", ".join(f"{dim} = {sizes[dim]}" for dim in others)
    options = " ".join(f"--dim {dim}={size}" for dim, size in others.items())
    return f"the program is compiled for {fixed}; for other sizes compile it again, with {options}"
