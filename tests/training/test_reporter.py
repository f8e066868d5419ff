"""Numbers of reports, in the objects of the frameworks."""

import warnings
from typing import Any

import numpy as np
import pytest

from sparkdl.training.reporter import as_metrics


def of_tensorflow() -> list[Any]:
    tf = pytest.importorskip("tensorflow")
    half = tf.cast(1.5, tf.bfloat16)
    return [tf.constant(1.5), tf.constant([1.5]), tf.constant([[1.5]]), tf.Variable(1.5), half]


def of_torch() -> list[Any]:
    torch = pytest.importorskip("torch")
    loss = torch.tensor([1.5], requires_grad=True) * 1
    return [loss, loss[0], loss.detach()[None], torch.tensor(1.5, dtype=torch.bfloat16)]


def of_numpy() -> list[Any]:
    return [np.float32(1.5), np.array(1.5), np.array([1.5]), np.array([[1.5]])]


@pytest.mark.parametrize("make", [of_numpy, of_tensorflow, of_torch])
def test_a_tensor_of_one_number_is_that_number(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in make():
            assert as_metrics({"loss": value, "none": None}) == {"loss": 1.5}
            assert as_metrics(value) == {"value": 1.5}


@pytest.mark.parametrize("value", [np.ones(2), np.ones(0), [1.5], "a", {"a": [1]}])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="expected a number, or a dict of numbers by name"):
        as_metrics(value)
