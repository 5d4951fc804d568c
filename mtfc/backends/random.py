# mypy: allow-untyped-defs, allow-untyped-calls
"""Random numbers that depend on a seed, a name and an element's global index alone.

So initial values agree for every layout, backend and number of devices. They are those of JAX: counter-based
Threefry-2x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) of the element's row-major
index, in the form that JAX calls partitionable. Uniform numbers equal JAX's bit for bit, normal ones to a few
units in the last place, as XLA approximates the logarithm in its own way.

The text of these functions is copied into generated modules: they use NumPy and `zlib` only.
"""

import math
import zlib

import numpy as np


def random_key(seed, name):
    """The key for the numbers called `name`: `fold_in(key(seed), crc32(name))`. Two words of 32 bits."""
    words = threefry((0, seed), np.zeros(1, np.uint32), np.full(1, zlib.crc32(name.encode()), np.uint32))
    return tuple(int(word[0]) for word in words)


def threefry(key, high, low):
    """Threefry-2x32 with 20 rounds: from the high and low words of counters to two arrays of random words."""
    first, second = (np.array([word % 2**32], np.uint32) for word in key)
    keys = (first, second, first ^ second ^ np.uint32(0x1BD11BDA))
    high, low = high + keys[0], low + keys[1]
    for i in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            high += low
            low = (low << distance | low >> (32 - distance)) ^ high
        high += keys[(i + 1) % 3]
        low += keys[(i + 2) % 3] + np.uint32(i + 1)
    return high, low


def random_bits(key, shape):
    """32 random bits for each element of an array, from its row-major index."""
    index = np.arange(math.prod(shape), dtype=np.uint64)
    high, low = threefry(key, (index >> 32).astype(np.uint32), index.astype(np.uint32))
    return (high ^ low).reshape(shape)


def random_uniform(key, shape, low=0.0, high=1.0):
    """Uniform in [low, high), in f32: 23 random bits are the fraction of a number in [1, 2)."""
    low, high = np.float32(low), np.float32(high)
    fractions = (random_bits(key, shape) >> 9 | np.uint32(0x3F800000)).view(np.float32) - np.float32(1)
    return np.maximum(low, fractions * (high - low) + low)


def random_normal(key, shape):
    """Normal with mean 0 and standard deviation 1, in f32."""
    above = np.nextafter(np.float32(-1), np.float32(0))
    return np.float32(math.sqrt(2)) * erf_inv(random_uniform(key, shape, above, 1.0))


def erf_inv(x):
    """The inverse of the error function in f32.

    Two polynomials in w = -log(1 - x**2), which meet at w = 5 (M. Giles, "Approximating the erfinv function",
    2010).
    """
    w = -np.log1p(-x * x)
    centre = (
        2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
        -0.00417768164, 0.246640727, 1.50140941,
    )  # fmt: skip
    tail = (
        -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
        0.00943887047, 1.00167406, 2.83297682,
    )  # fmt: skip
    near = w < 5
    t = np.where(near, w - np.float32(2.5), np.sqrt(np.maximum(w, 0)) - np.float32(3))
    result = np.zeros_like(x)
    for a, b in zip(centre, tail, strict=True):
        result = result * t + np.where(near, np.float32(a), np.float32(b))
    return result * x
