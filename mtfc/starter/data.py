"""Make the data: points on three spirals, and the number of the spiral of each.

`python data.py` writes train.npz and test.npz.
"""

import numpy as np


def spirals(examples, seed):
    """Return points, f32[examples, 2], and labels, i32[examples]."""
    draw = np.random.default_rng(seed)
    label = draw.integers(3, size=examples)
    radius = np.sqrt(draw.uniform(0.02, 1.0, examples))
    angle = 4 * radius + label * 2 * np.pi / 3 + draw.normal(0.0, 0.1, examples)
    point = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return {"point": point.astype(np.float32), "label": label.astype(np.int32)}


if __name__ == "__main__":
    np.savez("train.npz", **spirals(4096, seed=0))
    np.savez("test.npz", **spirals(512, seed=1))
    print("train.npz: 4096 examples, test.npz: 512 examples")
