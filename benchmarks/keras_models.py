"""Models of Keras for `python -m benchmarks shardings`: functions of their variables, with their gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

Model = tuple[Callable[..., Any], tuple[Any, ...]]


def keras_models() -> dict[str, Callable[[], Model]]:
    """Return name -> model. The backend of Keras has to be JAX in this process."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    return {"keras_classifier": _classifier, "keras_transformer": _transformer}


def _classifier() -> Model:
    import keras

    layers = keras.layers
    return _gradients(
        keras.Sequential(
            [
                layers.Input((16, 16, 4)),
                layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
                layers.BatchNormalization(),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(8),
            ]
        ),
        (16, 16, 16, 4),
        (16,),
    )


def _transformer() -> Model:
    import keras

    layers = keras.layers
    x = start = layers.Input((16, 32))
    for _ in range(2):
        x = layers.Add()([x, layers.MultiHeadAttention(4, 8)(layers.LayerNormalization()(x), x)])
        hidden = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(32)(hidden)])
    return _gradients(keras.Model(start, layers.Dense(8)(x)), (16, 16, 32), (16, 16))


def resnet50() -> Model:
    """Return the gradients of ResNet50 on 64 images of 224 x 224. The backend of Keras has to be JAX in this process."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    return _gradients(keras.applications.ResNet50(weights=None), (64, 224, 224, 3), (64,))


def _gradients(model: Any, inputs: tuple[int, ...], labels: tuple[int, ...]) -> Model:
    """Return the gradients of a model's loss, and its arguments as shapes."""
    import jax
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def losses(variables: Any, others: Any, x: Any, y: Any) -> Any:
        logits, others = model.stateless_call(variables, others, x, training=True)
        return loss(y, logits), others

    make: Any = jax.ShapeDtypeStruct
    variables, others = (
        [make(tuple(v.shape), v.dtype) for v in each]
        for each in (model.trainable_variables, model.non_trainable_variables)
    )
    given = variables, others, make(inputs, "float32"), make(labels, "int32")
    return jax.value_and_grad(losses, has_aux=True), given
