"""Runs on the driver. Examples, classes and values as messages of TensorFlow Serving's gRPC API."""

from typing import Any

import numpy as np

from sparkdl.serving.example_format import check_size
from sparkdl.serving.json_tensors import Array
from sparkdl.serving.request_error import RequestError, invalid

__all__ = ["read", "write_classes", "write_values"]


def read(given: Any) -> Array:
    """Return the serialized `tf.train.Example`s of a request.

    Args:
        given: an `Input`: a list of examples, or a list of examples with a common context.

    Raises:
        RequestError: if there are no examples, or they are too large.
    """
    context = b""
    if given.WhichOneof("kind") == "example_list_with_context":
        context = given.example_list_with_context.context.SerializeToString()
        examples = given.example_list_with_context.examples
    else:
        examples = given.example_list.examples
    if not examples:
        raise invalid("Input is empty.")
    array = np.empty(len(examples), object)
    num_bytes = 0
    for number, example in enumerate(examples):
        # Messages that follow one another are read as one message.
        array[number] = context + example.SerializeToString()
        num_bytes += len(array[number])
        check_size(num_bytes)
    return array


def write_classes(results: list[Any], response: Any) -> None:
    """Write the label and the score of each class into an answer.

    Args:
        results: a list for each example, of pairs of a label and a score.
        response: the answer, a `ClassificationResponse`.

    Raises:
        RequestError: if a label is no text.
    """
    for pairs in results:
        classes = response.result.classifications.add().classes
        for label, score in pairs:
            if not isinstance(label, str):
                raise RequestError("UNIMPLEMENTED", "a label of the model is no text in UTF-8")
            classes.add(label=label, score=score)


def write_values(results: list[Any], response: Any) -> None:
    """Write the value of each example into an answer.

    Args:
        results: the values.
        response: the answer, a `RegressionResponse`.
    """
    for value in results:
        response.result.regressions.add(value=value)
