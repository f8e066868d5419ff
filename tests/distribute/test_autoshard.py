"""A rank's share of the rows under a strategy of several workers with several GPUs each."""

import pytest

from sparkdl.distribute.autoshard import _split_batches


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
