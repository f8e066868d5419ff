"""A rank's share under a strategy of several workers: what one worker with several GPUs gets."""

import pytest

from sparkdl.distribute.autoshard import _split_batches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "sizes"), [(8, [2, 2, 2, 2]), (7, [2, 2, 2, 1, 0]), (1, [1, 0, 0, 0])]
)
def test_every_batch_becomes_as_many_parts_as_there_are_gpus(rows: int, sizes: list[int]) -> None:
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensors(({"x": tf.range(rows)}, tf.range(rows)))
    parts = list(_split_batches(batches, 4 if rows != 7 else 5))
    assert [len(label) for _, label in parts] == sizes
    assert [int(i) for features, _ in parts for i in features["x"]] == list(range(rows))
