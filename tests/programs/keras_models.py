"""Keras models, and functions that Keras knows by name, for stages of Spark ML."""

from typing import Any

import keras


@keras.saving.register_keras_serializable("tests")
def classifier(units: int = 4, learning_rate: float = 0.1, last: str = "softmax") -> Any:
    """Two classes of two numbers."""
    layers = [
        keras.layers.Input((2,)),
        keras.layers.Dense(units, "relu"),
        keras.layers.Dense(2, last),
    ]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@keras.saving.register_keras_serializable("tests")
def stop_early() -> list[Any]:
    """Stop after the second epoch, because the loss does not get better by 100."""
    from sparkdl.keras import EarlyStopping

    return [EarlyStopping("loss", min_delta=100.0, patience=1)]


@keras.saving.register_keras_serializable("tests")
def absolute_error(truth: Any, prediction: Any) -> Any:
    """A loss that Keras does not have under this name."""
    return keras.ops.mean(keras.ops.abs(truth - prediction), axis=-1)


def linear(*shapes: tuple[int, ...], units: int = 1, activation: str | None = None) -> Any:
    """The sum of all inputs, in every output."""
    names = ["first", "second"][: len(shapes)]
    inputs = [keras.Input(s, name=name) for s, name in zip(shapes, names, strict=True)]
    flat = [keras.layers.Flatten()(each) for each in inputs]
    joined = keras.layers.Concatenate()(flat) if len(flat) > 1 else flat[0]
    dense = keras.layers.Dense(units, activation, kernel_initializer="ones")
    return keras.Model(inputs if len(inputs) > 1 else inputs[0], dense(joined))


def embedding(dtype: str) -> Any:
    """A model of ten ids, or of one number, without weights that are random."""
    layers = [keras.layers.Input((1,), dtype=dtype)]
    if dtype == "int32":
        layers += [keras.layers.Embedding(10, 1, "zeros"), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile("sgd", "mse")
    return model
