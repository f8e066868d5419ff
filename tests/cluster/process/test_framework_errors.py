"""The line that is shown for an error: the cause, without the names of operations around it."""

from typing import Any

import numpy as np
import pytest

from sparkdl.cluster.process.framework_errors import error_line
from sparkdl.data.exact_numbers import cast_tensor


class InvalidArgumentError(Exception):
    __module__ = "tensorflow.python.framework.errors_impl"


TEXTS = {
    "a reader in a loop": (
        "{{function_node __wrapped__IteratorGetNext_output_types_2_device_/job:localhost}} "
        "ValueError: column 'age' has 8 nulls. Drop them.\nsecond line\n"
        "Traceback (most recent call last):\n\n  File ...\n\nValueError: column 'age' has 8 nulls. "
        "Drop them.\n\n\n\t [[{{node PyFunc}}]] [Op:IteratorGetNext] name: ",
        "ValueError: column 'age' has 8 nulls. Drop them.",
    ),
    "a reader in fit": (
        "Graph execution error:\n\nDetected at node PyFunc defined at (most recent call last):\n"
        "<stack traces unavailable>\nLookupError: the user's own\n"
        "Traceback (most recent call last):\n\n  File ...\n\n\t [[{{node PyFunc}}]]\n"
        "\t [[IteratorGetNext]] [Op:__inference_multi_step_on_iterator_221]",
        "LookupError: the user's own",
    ),
    "a layer in fit": (
        "Graph execution error:\n\nDetected at node sequential_1/Cast defined at (most recent call "
        'last):\n  File "train.py", line 16, in <module>\n\nCast string to float is not supported\n'
        "\t [[{{node sequential_1/Cast}}]] [Op:__inference_multi_step_on_iterator_356]",
        "InvalidArgumentError: Cast string to float is not supported",
    ),
    "an assertion": (
        "{{function_node __wrapped__IteratorGetNext}} Error in user-defined function passed to "
        "MapDataset:7: assertion failed: [column \\'i\\' has a number] [x == y] [x = ] [1]\n\t "
        "[[{{function_node assert}}{{node assert_equal_1/Assert}}]] [Op:IteratorGetNext] name: ",
        "InvalidArgumentError: column 'i' has a number",
    ),
    "another operation": (
        "{{function_node __wrapped__StringToNumber}} not a number: x [Op:StringToNumber] name: ",
        "InvalidArgumentError: not a number: x [Op:StringToNumber] name:",
    ),
    "no text": ("", "InvalidArgumentError:"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_cause_is_found_in_a_message_of_tensorflow(name: str) -> None:
    text, line = TEXTS[name]
    assert error_line(InvalidArgumentError(text)).strip() == line


def test_other_errors_keep_their_first_line() -> None:
    assert error_line(ValueError("one\ntwo")) == "ValueError: one"
    assert error_line(KeyError("x")) == "KeyError: 'x'"


@pytest.mark.slow
def test_the_error_of_a_reader_comes_through_tensorflow() -> None:
    import tensorflow as tf

    def rows() -> Any:
        yield np.zeros(1, "float32")
        raise ValueError("column 'age' has 8 nulls")

    dataset = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([1]))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(dataset)
    assert error_line(caught.value) == "ValueError: column 'age' has 8 nulls"


@pytest.mark.slow
def test_the_number_that_is_lost_is_named() -> None:
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensors(tf.constant([2**32 + 3], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(rows.map(lambda ids: cast_tensor(ids, "int32", lambda n: f"'ids' has {n} [of 2].")))
    assert error_line(caught.value) == "InvalidArgumentError: 'ids' has 4294967299 [of 2]."
