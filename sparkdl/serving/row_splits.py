"""Runs anywhere (pure). The row splits of ragged inputs, which TensorFlow does not check.

Source of the rules: https://www.tensorflow.org/guide/ragged_tensor
"""

from collections.abc import Mapping

import numpy as np

from sparkdl.serving.json_tensors import Array
from sparkdl.serving.request_error import invalid
from sparkdl.serving.signatures import Signature

__all__ = ["check_splits"]


def check_splits(signature: Signature, arrays: Mapping[str, Array]) -> None:
    """Validate that row splits fit their values; wrong ones may end the process of TensorFlow.

    Args:
        signature: the signature.
        arrays: the inputs by name.

    Raises:
        RequestError: if row splits do not begin with 0, become smaller, or do not end with the
            number of the values.
    """
    for name in signature.ragged_inputs:
        # The splits of a tensor with several ragged axes, from the outer to the inner one.
        splits = [f"{name}_{n}" for n in range(1, len(signature.inputs))]
        inner = [key for key in splits if key in signature.inputs]
        lengths = [*(np.size(arrays[key]) - 1 for key in inner[1:]), _num_values(arrays[name])]
        for key, length in zip(inner, lengths, strict=True):
            array = arrays[key]
            is_right = array.ndim == 1 and len(array) and array[0] == 0 and array[-1] == length
            if not is_right or (np.diff(array) < 0).any():
                raise invalid(
                    f"input {key!r} has the row splits {array.tolist()[:10]}; expected numbers "
                    f"that ascend from 0 to {length}"
                )


def _num_values(array: Array) -> int:
    return len(array) if array.ndim else 0
