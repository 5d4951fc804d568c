# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions for attention that are copied into generated NumPy modules: see `backends/common/attention.py`."""

import math

import numpy as np

from mtfc.backends.common.arrays import wide
from mtfc.backends.numpy.prelude import MESH, einsum, spread


def attention_dot(subscripts, x, y):
    """Return the product of two arrays on every processor, in 32 bits for 16-bit numbers."""
    return einsum(subscripts, wide(x), wide(y))


def attention_mean(softmax, subscripts, logits, v, axes, part, drops):
    """Return the mean of the values by the softmax of the logits over axes, and the numbers of the softmax.

    softmax: computes what `attention_softmax` returns. drops: True if it leaves out weights that count in the sum.
    """
    weights, *numbers = softmax()
    return attention_dot(subscripts, weights, v), *numbers


def attention_aligned(x, term, letters):
    """Transpose an array with axes `term` to those of `letters`, with axes of size 1 for letters that it lacks."""
    mesh = range(len(MESH))
    return spread(x, [*mesh, *term], [*mesh, *letters])


def attention_origin():
    """Return 0, for every processor."""
    return np.zeros((1,) * len(MESH), np.int32)


def attention_blocks(function, arrays, terms, results, logits, most=2**22):
    """Return the results of a function, computed in blocks along the longest dimension that all results and the logits have.

    most: the largest number of logits in memory.
    """
    sizes: dict[str, int] = {}
    mesh = 1
    for x, term in zip(arrays, terms, strict=True):
        sizes |= zip(term, x.shape[len(MESH) :], strict=True)
        mesh = max(mesh, math.prod(x.shape[: len(MESH)]))
    letters = [letter for letter in logits if all(letter in term for term in results)]
    if not letters:
        return function(*arrays)
    letter = max(letters, key=lambda letter: sizes[letter])
    total = mesh * math.prod(sizes[each] for each in logits)
    rows = max(1, min(sizes[letter], most * sizes[letter] // total))

    def part(x, term, start):
        place = (slice(None),) * (len(MESH) + term.find(letter))
        return x[(*place, slice(start, start + rows))] if letter in term else x

    starts = range(0, sizes[letter], rows)
    found = [function(*(part(x, t, start) for x, t in zip(arrays, terms, strict=True))) for start in starts]
    axes = [len(MESH) + term.index(letter) for term in results]
    return tuple(
        np.concatenate(each, axis) for each, axis in zip(zip(*found, strict=True), axes, strict=True)
    )
