"""Runs anywhere (pure). Checks of each request: its secret, its version, its row splits."""

import hmac
from collections.abc import Mapping

import numpy as np

from sparkdl.serving.json_tensors import Array
from sparkdl.serving.request_error import RequestError, invalid
from sparkdl.serving.signatures import Signature

# TensorFlow Serving counts versions in int64.
MAX_VERSION = (1 << 63) - 1


def check_token(authorization: str, token: str) -> None:
    """Validate that a request carries the secret of the server.

    Args:
        authorization: the header or the metadata `authorization` of the request.
        token: the secret.

    Raises:
        RequestError: if it does not.

    Example:
        >>> check_token("Bearer 0123456789abcdef", "0123456789abcdef")
        >>> check_token("Bearer guess", "0123456789abcdef")
        Traceback (most recent call last):
        sparkdl.serving.request_error.RequestError: the header 'Authorization: Bearer TOKEN' is ...
    """
    scheme, _, secret = authorization.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(secret.encode(), token.encode()):
        raise RequestError(
            "UNAUTHENTICATED", "the header 'Authorization: Bearer TOKEN' is missing or wrong"
        )


def version_number(text: str | None) -> int | None:
    """Return the number of a version; None if the request names no version.

    Raises:
        RequestError: if the text is no number that a version can have.

    Example:
        >>> version_number("12")
        12
    """
    if text is None:
        return None
    # Python refuses to convert some thousand digits.
    if not text.isdecimal() or len(text) > 19 or int(text) > MAX_VERSION:
        raise invalid(f"Failed to convert version: {text[:40]} to numeric.")
    return int(text)


def check_splits(signature: Signature, arrays: Mapping[str, Array]) -> None:
    """Validate that row splits fit their values; wrong ones may end the process of TensorFlow.

    Source of the rules: https://www.tensorflow.org/guide/ragged_tensor

    Args:
        signature: the signature.
        arrays: the inputs by name.

    Raises:
        RequestError: if row splits do not begin with 0, become smaller, or do not end with the
            number of the values.
    """
    for name in signature.ragged_inputs:
        # The splits of a tensor with several ragged axes, from the outer to the inner one.
        keys = [f"{name}_{n}" for n in range(1, len(signature.inputs))]
        keys = [key for key in keys if key in signature.inputs]
        num_values = len(arrays[name]) if arrays[name].ndim else 0
        lengths = [*(np.size(arrays[key]) - 1 for key in keys[1:]), num_values]
        for key, length in zip(keys, lengths, strict=True):
            array = arrays[key]
            is_right = array.ndim == 1 and len(array) and array[0] == 0 and array[-1] == length
            if not is_right or (np.diff(array) < 0).any():
                raise invalid(
                    f"input {key!r} has the row splits {array.ravel().tolist()[:10]}; expected "
                    f"numbers that ascend from 0 to {length}"
                )
