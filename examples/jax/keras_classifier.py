"""A network in Keras: `fit` splits the variables and the data as a plan says, and learns what it learns on one device."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

import mtfc

jax.config.update("jax_num_cpu_devices", 8)  # virtual devices; leave it out on a real machine

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.layers.Input((16, 16, 1)),
            keras.layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(10),
        ]
    )


def planned(model, images, labels):
    """Return a plan for the gradients of the model's variables."""

    def loss(variables, others, images, labels):
        logits, others = model.stateless_call(variables, others, images, training=True)
        return LOSS(labels, logits), others

    gradients = jax.value_and_grad(loss, has_aux=True)
    variables = model.trainable_variables, model.non_trainable_variables
    program = mtfc.from_jax(gradients, *variables, images, labels, names={"**/dense/kernel": "inner hidden"})
    return program.plan({"batch": "data", "hidden": "model"}, {"data": 4, "model": 2})


def trained(model, images, labels):
    model.compile("adam", LOSS)
    return model.fit(images, labels, batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]


def main():
    random = np.random.default_rng(0)
    images, labels = random.standard_normal((64, 16, 16, 1), "float32"), np.arange(64, dtype="int32") % 10
    model = network()
    plan = planned(model, images, labels)
    print(plan)
    alone = trained(model, images, labels)

    keras.utils.clear_session()  # the new variables get the paths of the old ones
    keras.distribution.set_distribution(plan.keras_distribution())
    model = network()
    losses = trained(model, images, labels)
    print(f"dense/kernel is split as {model.layers[4].kernel.value.sharding.spec}")
    print(f"losses as on one device: {np.allclose(losses, alone, rtol=1e-4)}")


if __name__ == "__main__":
    main()
