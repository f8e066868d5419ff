"""Runs in the training process. Train the model of a `KerasEstimator` on the rows of this rank."""

import functools
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.data.exact_numbers import cast_tensor
from sparkdl.files.model_formats import load_keras
from sparkdl.inference.tensor_spec import TensorSpec, inexact_input
from sparkdl.ml.training import Training


def model_from_bytes(data: bytes, custom: bytes) -> Any:
    """Return the compiled model that the driver sent.

    Args:
        data: the contents of a `.keras` file.
        custom: the user's own classes and functions, pickled, see `inference.custom_objects`.
    """
    objects = pickle.loads(custom) if custom else {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        path.write_bytes(data)
        return load_keras(path, "keras", objects, trusted=True, is_compiled=True)


@dataclass(frozen=True, kw_only=True)
class KerasTraining(Training):
    """The training function of `KerasEstimator.fit`.

    The class is at module level so that it can be pickled by reference.

    Attributes:
        make_model: returns the compiled model.
        make_callbacks: returns further callbacks of Keras; None for no further ones.
        has_one_value: True if the output of the model has the shape (rows, 1).
    """

    make_model: Callable[[], Any]
    make_callbacks: Callable[[], Sequence[Any]] | None
    has_one_value: bool

    def __call__(self) -> dict[str, Any]:
        """Train, and return the path of the model and the metrics of the last epoch."""
        from sparkdl import distribute
        from sparkdl.distribute.keras_logs import as_numbers
        from sparkdl.keras import save

        with distribute.strategy().scope():
            model = self.make_model()
        done = model.fit(
            self._rows("train", self.shuffle),
            epochs=self.epochs,
            validation_data=self._rows("validation", False) if self.has_validation else None,
            callbacks=self._callbacks(),
            verbose=2,
        )
        metrics = as_numbers({name: values[-1] for name, values in done.history.items() if values})
        return {**metrics, "model": save(model, "model.keras")}

    def _callbacks(self) -> list[Any]:
        from sparkdl.keras import Checkpoint, Report

        own = Report() if self.checkpoint_interval < 0 else Checkpoint(self.checkpoint_interval)
        return [*(self.make_callbacks() if self.make_callbacks else ()), own]

    def _rows(self, name: str, shuffle: bool) -> Any:
        return self.rows(name, shuffle).map(self._as_model_takes)

    def _as_model_takes(self, features: Any, label: Any, weight: Any = None) -> tuple[Any, ...]:
        """Return `(inputs, labels)` or `(inputs, labels, weights)` of a batch."""
        if isinstance(self.features, Mapping):
            inputs = {spec.name: _fit(features[spec.name], spec) for spec in self.inputs}
        else:
            inputs = _fit(features, self.inputs[0])
        if self.has_one_value and label.shape.rank == 1:
            # A loss that subtracts (rows, 1) from (rows,) would compare all rows with each other.
            label = label[:, None]
        label = as_loss_takes(label, self.label)
        if not self.weight:
            return inputs, label
        return inputs, label, as_loss_takes(weight, self.weight)


def as_loss_takes(values: Any, name: str) -> Any:
    """Return labels or weights; refuse those that Keras, which casts them for its losses, loses.

    The dtype stays as it is for the user's own losses and metrics.
    """
    import keras
    import tensorflow as tf

    dtype = keras.config.floatx()

    def message(value: Any) -> str:
        return (
            f"column {name!r} has {value}, which Keras casts to {dtype} for its losses, where it "
            "is another number. Scale the column, or cast whole numbers to double, to round them."
        )

    with tf.control_dependencies([cast_tensor(values, dtype, message)]):
        return tf.identity(values)


def _fit(values: Any, spec: TensorSpec) -> Any:
    """Return a tensor with the shape and the dtype of an input, as `experiment.predict` does."""
    import tensorflow as tf

    shape = [-1, *(spec.shape or ())]
    if len(shape) != len(values.shape) and None not in shape:
        values = tf.reshape(values, shape)
    message = functools.partial(inexact_input, spec.name, np.dtype(spec.dtype))
    return cast_tensor(values, spec.dtype, message)
