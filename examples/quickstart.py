from pathlib import Path

import numpy as np

import mtfc

file = Path(__file__).with_name("two_layer.mtf")
p = mtfc.compile(file, layout="hybrid")  # for 8 devices, or virtual ones
x = np.random.default_rng(0).standard_normal((64, 128), np.float32)
batch = {"x": x, "target": np.roll(x, 1, axis=1)}
state = p.init(seed=0)
for _ in range(100):
    state, metrics = p.train_step(state, batch)
print(f"loss {metrics['loss']:.4f}; w is split as {state.params['w'].sharding.spec}")
