# mypy: allow-untyped-defs, allow-untyped-calls
"""Functions for attention that are copied into generated modules of both backends. In JAX modules `np.` is `jnp.`.

The logits of all queries and keys are never in memory at once: `attention_blocks` computes the results block by block along their
longest dimension. Each backend has its own `attention_blocks`, `attention_mean`, `attention_dot`, `attention_aligned` and
`attention_origin`.

- form: the operands, the logits and the result in letters, such as `hld,hmd,hmd,lm->hlm->hld`. The letters of `memory` are the
  last of the logits.
- first: letter -> the index of the first element here, for letters of the band that are split.

The other arguments are the attributes of the op: see `compiler/ir/ops/attention.py`.
"""

import numpy as np

from mtfc.backends.numpy.attention import (
    attention_aligned,
    attention_blocks,
    attention_dot,
    attention_mean,
    attention_origin,
)


def attention(form, q, k, v, *others, memory, dtype, part=False, **options):
    """Return the attention, and two numbers for each query: see `attention_softmax`."""
    terms, logits, result, arrays, kinds = attention_operands(form, (q, k, v, *others), **options)
    rest = logits.removesuffix(memory)
    kept = "".join(letter for letter in result if letter in rest)

    def block(q, k, v, *others):
        found, _, _ = attention_logits(terms, logits, (q, k, v, *others), kinds, **options)
        axes = tuple(range(-len(memory), 0))
        subscripts = f"{logits},{terms[2]}->{result}"
        drops = "keep" in kinds

        def softmax():
            weights, *numbers = attention_softmax(found, axes, part)
            return attention_kept(weights, terms, logits, (q, k, v, *others), kinds), *numbers

        mean, *numbers = attention_mean(softmax, subscripts, found, v, axes, part, drops)
        numbers = (x.reshape(x.shape[: x.ndim - len(memory)]) for x in numbers)
        return mean.astype(dtype), *(attention_aligned(x, rest, kept) for x in numbers)

    return attention_blocks(block, arrays, terms, (result, kept, kept), logits)


def attention_dq(form, q, k, v, *others, memory, dtype, **options):
    """Return the gradient for the queries.

    The last operands are the two numbers of `attention`, the result's cotangent, and its product with the result.
    """
    return attention_gradients(form, (q, k, v, *others[:-4]), others[-4:], (0,), dtype, **options)[0]


def attention_dkv(form, q, k, v, *others, memory, dtype, **options):
    """Return the gradients for keys and values."""
    return attention_gradients(form, (q, k, v, *others[:-4]), others[-4:], (1, 2), dtype, **options)


def attention_dbias(form, q, k, v, *others, memory, dtype, operand, **options):
    """Return the gradient for operand number `operand`."""
    return attention_gradients(form, (q, k, v, *others[:-4]), others[-4:], (operand,), dtype, **options)[0]


def attention_gradients(form, operands, last, wanted, dtype, **options):
    """Return the gradients for the operands with these numbers. The weights are computed again."""
    terms, logits, result, arrays, kinds = attention_operands(form, operands, **options)
    kept = "".join(letter for letter in result if letter in logits)
    count = len(arrays)

    def block(*arrays):
        given, (largest, total, cotangent, delta) = arrays[:count], arrays[count:]
        found, counts, slope = attention_logits(terms, logits, given, kinds, **options)
        largest, total = (attention_aligned(x, kept, logits) for x in (largest, total))
        weights = np.exp(found - largest) / total
        change = attention_dot(f"{result},{terms[2]}->{logits}", cotangent, given[2])
        change = attention_kept(change, terms, logits, given, kinds) - attention_aligned(delta, kept, logits)
        change, weights = weights * change, attention_kept(weights, terms, logits, given, kinds)
        change = change if counts is None else np.where(counts, change, np.zeros((), change.dtype))
        scaled = change if slope is None else change * slope
        factors = {
            0: (scaled, given[1], terms[1]),
            1: (scaled, given[0], terms[0]),
            2: (weights, cotangent, result),
        }
        found = []
        for number in wanted:
            x, y, term = factors.get(number, (change, np.ones(delta.shape, delta.dtype), kept))
            found.append(attention_dot(f"{logits},{term}->{terms[number]}", x, y).astype(dtype))
        return tuple(found)

    names = [*terms, kept, kept, result, kept]
    results = tuple(terms[number] for number in wanted)
    return attention_blocks(block, (*arrays, *last), names, results, logits)


def attention_operands(form, operands, roles="", band=None, first=None, **options):
    """Return the letters of the operands, the logits and the result; and operands and roles, with the band's indices behind."""
    terms, logits, result = form.split("->")
    terms = terms.split(",")
    counts = {"ids": 2, "same_ids": 2}
    found = [role for role in filter(None, roles.split(",")) for _ in range(counts.get(role, 1))]
    if band is None:
        return terms, logits, result, operands, found
    sizes: dict[str, int] = {}
    for x, term in zip(operands, terms, strict=True):
        sizes |= zip(term, x.shape[x.ndim - len(term) :], strict=True)
    rows, columns = (attention_index(letters, sizes, first or {}) for letters in band[:2])
    return [*terms, *band[:2]], logits, result, (*operands, rows, columns), [*found, "band", "band"]


def attention_index(letters, sizes, first):
    """Return the index along dimensions, the first most major."""
    found = 0
    for letter in letters:
        here = np.arange(sizes[letter], dtype=np.int32) + first.get(letter, attention_origin())[..., None]
        found = found * sizes[letter] + attention_aligned(here, letter, letters)
    return found


def attention_logits(terms, logits, operands, kinds, fill, cap=None, band=None, **options):
    """Return the logits, which of them count, and the slope of the soft cap; None where all count, and for a slope of 1.

    kinds: the role of each operand behind q, k and v.
    """
    q, k, _, *others = operands
    found, counts, slope = attention_dot(f"{terms[0]},{terms[1]}->{logits}", q, k), None, None
    if cap is not None:
        squashed = np.tanh(found / cap)
        found, slope = squashed * cap, 1 - squashed * squashed
    parts = [attention_aligned(x, term, logits) for x, term in zip(others, terms[3:], strict=True)]
    given = {kind: [x for x, other in zip(parts, kinds, strict=True) if other == kind] for kind in kinds}
    for bias in given.get("bias", []):
        found = found + bias.astype(found.dtype)
    masks = list(given.get("mask", []))
    for ids in (given.get("ids", []), given.get("same_ids", [])):
        masks += [left == right for left, right in zip(ids[::2], ids[1::2], strict=True)]
    if band is not None:
        ahead = given["band"][0] - given["band"][1]
        masks += [] if band[2] is None else [ahead >= band[2]]
        masks += [] if band[3] is None else [ahead <= band[3]]
    for mask in masks:
        counts = mask if counts is None else counts & mask
    if counts is not None:
        found = np.where(counts, found, fill).astype(found.dtype)
    return found, counts, slope


def attention_kept(weights, terms, logits, operands, kinds):
    """Return weights, or their cotangents, without those that dropout removes."""
    for x, term, kind in zip(operands[3:], terms[3:], kinds, strict=True):
        if kind == "keep":
            keep = attention_aligned(x, term, logits)
            weights = np.where(keep, weights, np.zeros((), weights.dtype))
    return weights


def attention_softmax(logits, axes, part):
    """Return the softmax over axes; and with axes of size 1 the shift of the logits, and the sum of the exponentials."""
    largest = np.max(logits, axis=axes, keepdims=True)
    largest = np.maximum(largest, np.finfo(largest.dtype).min) if part else largest
    e = np.exp(logits - largest)
    total = np.sum(e, axis=axes, keepdims=True)
    return e / (np.where(total == 0, 1, total) if part else total), largest, total
