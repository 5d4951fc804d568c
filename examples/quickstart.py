import numpy as np

import mtfc

module = mtfc.compile("examples/two_layer.mtf", layout="hybrid").load("jax")  # on 8 devices, or virtual ones
params, state = module.init(seed=0), {}  # plain gradient descent has no state
x = np.random.default_rng(0).standard_normal((64, 128), np.float32)
batch = module.shard({"x": x, "target": np.roll(x, 1, axis=1)}, module.INPUTS)
for step in range(100):
    outputs, params, state = module.train_step(params, state, batch, step)
print(f"loss {outputs['loss']:.4f}; w is split as {params['w'].sharding.spec}")
