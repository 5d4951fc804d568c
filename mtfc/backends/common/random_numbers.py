# mypy: allow-untyped-defs, allow-untyped-calls
"""Random numbers that depend on a seed, a name, further numbers and an element's global index alone.

They are those of JAX: counter-based Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) of the
element's row-major index, in the form that JAX calls partitionable. Uniform numbers equal JAX's bit for bit, normal ones to
5 units in the last place.

The text of these functions is copied into generated modules of both backends, where `np` is `numpy` or `jax.numpy`, and gives the
same bits in both. For this the functions use only operations on floats that every processor rounds alike: sums, differences and
products. They use no logarithms, roots or quotients, which differ between libraries. A product that is added to another number is
made by `times`, which no compiler turns into a fused multiply-add.
"""

import math
import zlib

import numpy as np


def random_key(seed, name, *numbers):
    """Return a key, two words, made of `seed`, the CRC of `name` and further numbers."""
    key = word(0), word(seed)
    for number in (zlib.crc32(name.encode()), *numbers):
        key = threefry(key, word(0), word(number))
    return key


def word(number):
    """Return a number modulo 2**32 as an array with one more axis: arrays overflow without warnings."""
    if isinstance(number, int):
        return np.full(1, number % 2**32, np.uint32)
    return np.asarray(number)[..., None].astype(np.uint32)


def threefry(key, high, low):
    """Apply Threefry-2x32 with 20 rounds to counters of a high and a low word: two arrays of random words."""
    keys = (*key, key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    high, low = high + keys[0], low + keys[1]
    for i in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            high = high + low
            low = (low << distance | low >> 32 - distance) ^ high
        high = high + keys[(i + 1) % 3]
        low = low + (keys[(i + 2) % 3] + np.uint32(i + 1))
    return high, low


def random_bits(key, sizes, whole=None, start=None):
    """Return 32 random bits per element of a part: `sizes` elements from `start` on, of a `whole` shape."""
    whole, start = whole or sizes, start or (0,) * len(sizes)
    key = [words.reshape(words.shape[:-1] + (1,) * (len(sizes) + 1)) for words in key]
    high, low = threefry(key, *global_index(sizes, whole, start))
    return (high ^ low)[..., 0]


def global_index(sizes, whole, start):
    """Return each element's row-major index, as high and low words.

    The high word is 0 if the low word suffices for all elements.

    start: the index of the first element in the whole array.
    """
    high = low = word(0)
    for i, size in enumerate(sizes):
        stride = math.prod(whole[i + 1 :])
        index = word(start[i]) + np.arange(size, dtype=np.uint32).reshape((-1,) + (1,) * (len(sizes) - i))
        low = low + index * np.uint32(stride % 2**32)
        if math.prod(whole) > 2**32:
            added = index * np.uint32(stride % 2**32)
            carry = (low < added).astype(np.uint32)
            high = high + index * np.uint32(stride >> 32) + high_product(index, stride % 2**32) + carry
    return high, low


def high_product(x, factor):
    """Return the high word of words times a factor below 2**32, from products of their halves."""
    low, high = np.uint32(factor % 2**16), np.uint32(factor >> 16)
    inner = ((x & 0xFFFF) * low >> 16) + ((x & 0xFFFF) * high & 0xFFFF) + ((x >> 16) * low & 0xFFFF)
    return (x >> 16) * high + ((x & 0xFFFF) * high >> 16) + ((x >> 16) * low >> 16) + (inner >> 16)


def random_uniform(key, sizes, whole=None, start=None):
    """Draw uniform numbers in [0, 1), in f32: 23 random bits are the fraction of a number in [1, 2)."""
    bits = random_bits(key, sizes, whole, start)
    return (bits >> 9 | np.uint32(0x3F800000)).view(np.float32) - np.float32(1)


def random_normal(key, sizes, whole=None, start=None):
    """Draw standard normal numbers in f32: the quantiles of (4 k + 1) 2**-24 in (-1, 1)."""
    number = (random_bits(key, sizes, whole, start) >> 9).astype(np.int32) * 4 + (1 - 2**24)
    return normal_quantile(number.astype(np.float32) * np.float32(2**-24))


def normal_quantile(x):
    """Return the inverse of erf(x / sqrt(2)), in f32, for multiples of 2**-24 between -1 and 1.

    It is x times a smooth function of -log(1 - x**2) (M. Giles, "Approximating the erfinv function", 2010).
    One polynomial approximates the function up to 5, another one beyond.
    """
    near = (
        4.7452814e-10, -2.4269829e-08, 4.3811852e-07, -3.532529e-06, 8.252774e-06, 5.7257108e-05,
        -0.00017253798, -0.0033071956, 0.016334642, 0.32811671, 1.2533141,
    )  # fmt: skip
    far = (
        2.7183967e-12, -5.5822593e-11, 4.970255e-10, -2.738092e-09, -7.7782486e-10, 4.346957e-07,
        -1.07782935e-05, 0.00021991886, -0.005037931, 0.21934266, 4.347584,
    )  # fmt: skip
    w = negative_log(np.float32(1) - times(x, x))
    inner = w < 5
    chosen = (np.where(inner, np.float32(a), np.float32(b)) for a, b in zip(near, far, strict=True))
    return times(x, polynomial(w - np.where(inner, np.float32(0), np.float32(10.5)), chosen))


def negative_log(x):
    """Return -log(x) in f32 for 0 < x <= 1: the exponent's part, and a polynomial in the fraction less 1."""
    coefficients = (
        -0.10378662, 0.16338125, -0.17212434, 0.19884239, -0.2497156, 0.33335608, -0.50000346, 0.99999994,
    )  # fmt: skip
    bits = x.view(np.int32) - 0x3F3504F3  # the bits of sqrt(1/2)
    exponent = (bits >> 23).astype(np.float32)
    fraction = ((bits & 0x7FFFFF) + 0x3F3504F3).view(np.float32) - np.float32(1)
    series = polynomial(fraction, map(np.float32, coefficients))
    return times(exponent, np.float32(-0.6931472)) - times(fraction, series)


def polynomial(x, coefficients):
    """Evaluate the polynomial in x with these coefficients, that of the highest power first."""
    result = np.float32(0)
    for coefficient in coefficients:
        result = times(x, result) + coefficient
    return result


def times(x, y):
    """Return x * y, rounded before anything is added to it.

    No compiler can fuse a sum with the maximum. The maximum changes nothing, as its bound is near the lowest
    of all numbers. The bound depends on x, so compilers cannot remove the maximum.
    """
    return np.maximum(x * y, x - np.float32(3e38))
