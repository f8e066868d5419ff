"""The task that the loss of a model implies, and the labels that a loss gets."""

from typing import Any

import numpy as np
import pytest

from sparkdl.errors import ConfigError
from sparkdl.ml.tasks import is_from_logits, only_loss, task_of
from sparkdl.ml.training import Training

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


@pytest.mark.parametrize(("has_one_value", "shape"), [(True, [3, 1]), (False, [3])])
def test_labels_have_the_shape_of_the_output(has_one_value: bool, shape: list[int]) -> None:
    """A loss that subtracts them would otherwise have a value for each pair of rows."""
    import tensorflow as tf

    from sparkdl.inference.tensor_spec import TensorSpec

    training = Training(
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
    features = {"features": tf.constant(np.ones((3, 2)))}
    inputs, label = training._as_model_takes(features, tf.constant([1.0, 2.0, 3.0]))
    assert (inputs.dtype, label.shape.as_list()) == (tf.float32, shape)
