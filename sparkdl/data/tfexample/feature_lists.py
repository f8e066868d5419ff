"""Runs in the training process. Refuse feature lists where TensorFlow would leave them out.

Field 1 of an Example, and of a SequenceExample without its lists, has the features; field 2 of a
SequenceExample has the lists. Source: `tensorflow/core/example/example.proto`, and
https://protobuf.dev/programming-guides/encoding
"""

from typing import Any

_LISTS = 0x12  # The tag of field 2, with a length.
# A length has 7 bits in each of at most 5 bytes.
_LENGTH_BYTES = 5


def refuse_lists(records: Any) -> Any:
    """Return serialized records, none of which has feature lists.

    Args:
        records: a tensor (records,) of strings.

    Raises:
        tf.errors.InvalidArgumentError: if a record has feature lists.

    Example:
        >>> import tensorflow as tf
        >>> int(tf.size(refuse_lists(tf.constant([tf.train.Example().SerializeToString()]))))
        1
    """
    import tensorflow as tf

    sizes = tf.strings.length(records)
    head = _bytes(records, tf.zeros_like(sizes), 1 + _LENGTH_BYTES)
    digits = head[:, 1:]
    # Each byte but the last has its highest bit set.
    is_part = tf.math.cumprod(tf.cast(digits >= 128, tf.int32), axis=1, exclusive=True)
    values = is_part * (digits % 128) * [1 << 7 * place for place in range(_LENGTH_BYTES)]
    ends = 1 + tf.reduce_sum(is_part, 1) + tf.reduce_sum(values, 1)
    ends = tf.where(head[:, 0] == _LISTS, 0, tf.minimum(ends, sizes))
    behind = _bytes(records, ends, 2)
    has_lists = (behind[:, 0] == _LISTS) & (behind[:, 1] > 0)
    message = (
        "a record has the feature lists of a SequenceExample, and the first record of the files "
        "has none. Read the files by as_numpy(), or begin with a record that has lists."
    )
    assertion = tf.debugging.Assert(tf.logical_not(tf.reduce_any(has_lists)), [message])
    with tf.control_dependencies([assertion]):
        return tf.identity(records)


def _bytes(records: Any, begin: Any, count: int) -> Any:
    """Return some bytes of each record, with zeros behind its end: (records, count)."""
    import tensorflow as tf

    texts = tf.strings.substr(records, begin, tf.fill(tf.shape(records), count))
    return tf.cast(tf.io.decode_raw(texts, tf.uint8, fixed_length=count), tf.int32)
