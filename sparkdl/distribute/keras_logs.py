"""Runs in the training process. The logs of Keras, which may hold arrays as those of F1Score."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np


def as_array(value: Any) -> Any:
    """Return a logged value, which may be a tensor, as a NumPy array."""
    # PyTorch; TensorFlow has the last one.
    for method in ("detach", "cpu", "numpy") if hasattr(value, "detach") else ("numpy",):
        value = getattr(value, method)() if hasattr(value, method) else value
    return np.asarray(value)


def as_numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the logs of an epoch that are one number each; the others are named in a warning.

    Keras's `History` and `CSVLogger` keep arrays as they are. A report, a table and a search need
    one number.

    Args:
        logs: values by name, as Keras passes them to callbacks.

    Example:
        >>> import numpy as np
        >>> as_numbers({"loss": np.float32(0.5), "f1_score": np.array([0.75])})
        {'loss': 0.5, 'f1_score': 0.75}
    """
    arrays = {name: as_array(value) for name, value in logs.items() if value is not None}
    numbers = {name: float(array.ravel()[0]) for name, array in arrays.items() if array.size == 1}
    if left_out := [name for name in arrays if name not in numbers]:
        warnings.warn(
            f"{', '.join(left_out)}: the metric has {arrays[left_out[0]].size} values, and is "
            "not reported; expected one number. Keras's F1Score, for example, has one with "
            'average="macro".',
            stacklevel=2,
        )
    return numbers
