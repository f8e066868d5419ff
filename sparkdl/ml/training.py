"""Runs in the training process. The parts that the training functions of estimators share."""

from dataclasses import dataclass
from typing import Any

from sparkdl.inference.tensor_spec import TensorSpec


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training function of an estimator, which every worker calls.

    Attributes:
        features: the feature columns, see `KerasEstimator`.
        label: the column of the labels.
        weight: the column of the weights of rows; None without weights.
        inputs: the inputs of the model, by name if `features` is a dict.
        epochs: number of passes over the rows.
        batch_size: number of rows in a step of all workers.
        shuffle: shuffle the rows.
        checkpoint_interval: epochs from one checkpoint to the next; -1 for no checkpoints.
        has_validation: True if there are rows that validate each epoch.
    """

    features: Any
    label: str
    weight: str | None
    inputs: tuple[TensorSpec, ...]
    epochs: int
    batch_size: int
    shuffle: bool
    checkpoint_interval: int
    has_validation: bool

    def rows(self, name: str, shuffle: bool) -> Any:
        """Return this rank's rows: batches of `(features, label)` or `(features, label, weight)`.

        Args:
            name: `train` or `validation`.
            shuffle: shuffle the rows.
        """
        from sparkdl import data

        return data.dataset(
            name,
            feature_cols=self.features,
            label_cols=self.label,
            weight_col=self.weight,
            global_batch_size=self.batch_size,
            shuffle=shuffle,
        )
