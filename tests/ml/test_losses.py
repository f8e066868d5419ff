"""The task that the loss of a model implies, and the labels that a loss gets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.errors import ConfigError
from sparkdl.inference.custom_objects import custom_objects, pickle_objects
from sparkdl.ml.keras_training import KerasTraining, model_from_bytes
from sparkdl.ml.tasks import is_from_logits, only_loss, task_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("wrap", [lambda loss: loss, lambda loss: [loss], lambda loss: {"y": loss}])
def test_a_loss_tells_task_and_logits_in_a_list_or_dict(wrap: Any) -> None:
    import keras

    for loss, task, from_logits in (
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), "classification", True),
        (keras.losses.BinaryCrossentropy(), "classification", False),
        (keras.losses.binary_crossentropy, "classification", False),
        ("sparse_categorical_crossentropy", "classification", False),
        ("mse", "regression", False),
    ):
        found = only_loss(wrap(loss))
        assert (task_of(found), is_from_logits(found)) == (task, from_logits)


def test_a_loss_of_the_user_tells_nothing_by_its_name() -> None:
    def own_crossentropy(truth: Any, logits: Any) -> Any:
        return truth - logits

    with pytest.raises(ConfigError, match=r"'own_crossentropy' does not .* also set fromLogits"):
        task_of(own_crossentropy)
    with pytest.raises(ConfigError, match="does not tell logits from probabilities"):
        is_from_logits(own_crossentropy)


class Shifted:
    """Makes a loss of Keras, which only the functions of this file import."""

    def __new__(cls) -> Any:
        import keras

        class ShiftedLoss(keras.losses.Loss):  # type: ignore[misc]
            def call(self, y_true: Any, y_pred: Any) -> Any:
                return y_true - y_pred + 3

        return ShiftedLoss()


def own_loss(truth: Any, outputs: Any) -> Any:
    return (truth - outputs) * 2


def own_metric(truth: Any, outputs: Any) -> Any:
    return (truth - outputs) * 5


@pytest.mark.parametrize("kind", ["keras", "own", "class", "list"])
def test_a_model_travels_with_the_functions_of_its_compilation(kind: str, tmp_path: Path) -> None:
    """The oracle is the model itself."""
    import keras

    loss = {
        "keras": keras.losses.mean_squared_error,
        "own": own_loss,
        "class": Shifted(),
        "list": [own_loss],
    }[kind]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="y")])
    metrics = [own_metric, keras.metrics.mean_absolute_error]
    model.compile("adam", loss, metrics=metrics)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    pickled = pickle_objects(custom_objects(model, "keras", for_training=True))
    loaded = model_from_bytes((tmp_path / "model.keras").read_bytes(), pickled)
    x, y = np.arange(8.0).reshape(4, 2), np.arange(4.0)[:, None]
    assert loaded.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)
    # Inference needs none of them.
    assert custom_objects(model, "keras") == {}


def test_two_objects_of_one_name_are_refused() -> None:
    """Executors find a function by its name, also where a string names Keras's own."""
    import keras

    def mse(truth: Any, output: Any) -> Any:
        return keras.ops.mean(truth - output)

    def other(truth: Any, output: Any) -> Any:
        return keras.ops.sum(truth - output)

    other.__name__ = "mse"
    for loss, metric in (("mse", mse), (mse, other)):
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", loss, metrics=[metric])
        with pytest.raises(ValueError, match=r"have two objects named 'mse'\. Give one"):
            custom_objects(model, "keras", for_training=True)


@pytest.mark.parametrize(("has_one_value", "shape"), [(True, [3, 1]), (False, [3])])
def test_labels_have_the_shape_of_the_output(has_one_value: bool, shape: list[int]) -> None:
    """A loss that subtracts them would otherwise have a value for each pair of rows."""
    import tensorflow as tf

    from sparkdl.inference.tensor_spec import TensorSpec

    training = KerasTraining(
        make_model=lambda: None,
        make_callbacks=None,
        features="x",
        label="y",
        weight=None,
        inputs=(TensorSpec("x", (2,), "float32"),),
        epochs=1,
        batch_size=3,
        shuffle=False,
        checkpoint_interval=1,
        has_validation=False,
        has_one_value=has_one_value,
    )
    features = tf.constant(np.ones((3, 2)))
    inputs, label = training._as_model_takes(features, tf.constant([1.0, 2.0, 3.0]))
    assert (inputs.dtype, label.shape.as_list()) == (tf.float32, shape)
