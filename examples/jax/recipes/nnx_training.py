"""Flax NNX: a plan of abstract objects trains the real ones, with batches made while the plan's mesh is set."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine


class Network(nnx.Module):
    def __init__(self, rngs):
        self.fc1 = nnx.Linear(16, 32, rngs=rngs)
        self.fc2 = nnx.Linear(32, 8, rngs=rngs)

    def __call__(self, x):
        return self.fc2(nnx.relu(self.fc1(x)))


def build():
    model = Network(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@nnx.jit
def step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
    optimizer.update(model, gradients)
    return loss


def batch(seed):
    x = jax.random.normal(jax.random.key(seed), (32, 16))
    return x, jnp.tanh(x[:, :8])


def main():
    model, optimizer = nnx.eval_shape(build)
    names = {
        "model/fc1/kernel": "inner hidden"
    }  # or: "model/*/kernel/value", as program.arguments() prints places
    program = mtfc.from_jax(step, model, optimizer, *jax.eval_shape(batch, 0), names=names)
    plan = program.plan({"batch": "data", "hidden": "model"}, {"data": 4, "model": 2})
    planned = plan.jit(step)

    model, optimizer = build()
    with jax.sharding.set_mesh(plan.mesh):
        for seed in range(20):
            model, optimizer, loss = planned(model, optimizer, *batch(seed))
    print(f"loss {loss:.2f}; fc1 is split as {model.fc1.kernel.sharding.spec}")
    return float(loss)


def alone():
    """Return the loss of the same steps on one device."""
    objects = build()
    return [float(step(*objects, *batch(seed))) for seed in range(20)][-1]


if __name__ == "__main__":
    main()
