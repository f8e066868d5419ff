"""A rank's share of the rows under a strategy of several workers with several GPUs each."""

import warnings

import numpy as np
import pytest

from sparkdl.distribute.autoshard import _split_batches, mark_share


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "sizes"), [(8, [2, 2, 2, 2]), (7, [2, 2, 2, 1, 0]), (1, [1, 0, 0, 0])]
)
def test_each_batch_is_split_into_one_part_per_gpu(rows: int, sizes: list[int]) -> None:
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensors(({"x": tf.range(rows)}, tf.range(rows)))
    parts = list(_split_batches(batches, 4 if rows != 7 else 5))
    assert [len(label) for _, label in parts] == sizes
    assert [int(i) for features, _ in parts for i in features["x"]] == list(range(rows))


@pytest.mark.slow
def test_keras_does_not_warn_that_rows_of_a_reader_are_not_shuffled() -> None:
    import keras
    import tensorflow as tf

    x = np.zeros((4, 1), "float32")
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = tf.data.Dataset.from_tensor_slices((x, x)).batch(2)
        model.fit(dataset, verbose=0)
        assert ["shuffle=True" in str(warning.message) for warning in caught] == [True]
        model.fit(mark_share(dataset), verbose=0)
    assert len(caught) == 1
