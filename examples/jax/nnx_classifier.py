"""A convolutional network in Flax NNX: the best of all layouts on eight devices, and its gradients by our own program."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine


class Classifier(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.second = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.hidden = nnx.Linear(4 * 4 * 32, 128, rngs=rngs)
        self.out = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.first(x)), (2, 2), (2, 2))
        x = nnx.max_pool(nnx.relu(self.second(x)), (2, 2), (2, 2))
        return self.out(nnx.relu(self.hidden(x.reshape(len(x), -1))))


graph, params = nnx.split(Classifier(nnx.Rngs(0)))


def loss(params, images, labels):
    logits = nnx.merge(graph, params)(images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def main():
    images, labels = jnp.ones((64, 16, 16, 1)), jnp.arange(64) % 10
    gradients = jax.value_and_grad(loss)
    program = mtfc.from_jax(gradients, params, images, labels)
    print(program.coverage())
    plan = program.search(devices=8, target="tpu_v5e", mesh={"data": 8}, budget=10)
    value, found = jax.jit(plan.step)(params, images, labels)
    expected, right = gradients(params, images, labels)
    worst = max(
        jnp.abs(a - b).max() for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True)
    )
    print(f"loss {value:.3f}, alone {expected:.3f}; gradients agree to 1e-5: {bool(worst < 1e-5)}")


if __name__ == "__main__":
    main()
