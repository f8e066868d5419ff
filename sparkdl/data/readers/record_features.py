"""Runs in the training process. The schema of TFRecord files, for TensorFlow and for Arrow."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.schema_inference import Inspected
from sparkdl.errors import ConfigError

_DTYPES = {Kind.INT64: "int64", Kind.FLOAT: "float32", Kind.BYTES: "string"}
_KINDS = {**{dtype: kind for kind, dtype in _DTYPES.items()}, "bytes": Kind.BYTES}
_ARROW_TYPES = {Kind.INT64: pa.int64(), Kind.FLOAT: pa.float32(), Kind.BYTES: pa.binary()}


@dataclass(frozen=True)
class RecordFeature:
    """A feature of `tf.train.Example`s, described without TensorFlow.

    Attributes:
        kind: kind of list in the feature.
        shape: the shape of a row's value; None for an array of any length.
    """

    kind: Kind
    shape: tuple[int, ...] | None = ()

    def describe(self) -> str:
        """Return dtype and shape as the log shows them.

        Example:
            >>> RecordFeature(Kind.FLOAT, (4,)).describe()
            'float32 [4]'
        """
        dtype, shape = _DTYPES[self.kind], self.shape
        if shape == ():
            return dtype
        return f"{dtype} [{'ragged' if shape is None else ', '.join(map(str, shape))}]"

    def column(self, name: str) -> Column:
        """Return the column of Arrow in which `to_batch` reads the feature."""
        return Column(name, self.kind, _ARROW_TYPES[self.kind], self.shape != ())

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of a row's value, with its shape."""
        kind = _ARROW_TYPES[self.kind]
        if self.shape is None:
            return pa.list_(kind)
        for width in reversed(self.shape):
            kind = pa.list_(kind, width)
        return kind

    def shaped(self, name: str, values: pa.Array) -> pa.Array:
        """Return a column that `to_batch` has read in the Arrow type of the feature.

        An absent feature is an empty array if arrays may have any length, as in TensorFlow.

        Raises:
            ValueError: if a record has no value, or another number of values than the shape.
        """
        if self.shape is None:
            return pa.ListArray.from_arrays(values.offsets, values.values, type=values.type)
        if values.null_count:
            raise ValueError(
                f"feature {name!r} is missing in {values.null_count} of {len(values)} records. "
                "Pass schema= without the feature, or write a value to every record."
            )
        if not self.shape:
            return values
        num_values = int(np.prod(self.shape))
        lengths = np.diff(values.offsets.to_numpy())
        if (lengths != num_values).any():
            raise ValueError(
                f"feature {name!r} has {lengths[lengths != num_values][0]} values in a record; "
                f"expected {num_values}, for a shape of {list(self.shape)}. Pass schema= with "
                "[None] for arrays of any length."
            )
        flat = values.flatten()
        for width in reversed(self.shape):
            flat = pa.FixedSizeListArray.from_arrays(flat, width)
        return flat


def inferred_features(inspected: Inspected) -> dict[str, RecordFeature]:
    """Return the features of the first records, by name.

    Args:
        inspected: the first records.
    """

    def feature(name: str) -> RecordFeature:
        length = None if name in inspected.lists else inspected.length(name)
        shape = None if length is None else () if length == 1 else (length,)
        return RecordFeature(inspected.kinds[name], shape)

    return {name: feature(name) for name in sorted(inspected.kinds)}


def parse_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the features of the user's schema, by name.

    Args:
        schema: see `tfrecord`.

    Returns:
        A `RecordFeature` for each name, or the user's feature of TensorFlow where it has no other
        description, such as one with a default value.

    Raises:
        ConfigError: if an entry is not a feature, a dtype, or a dtype and shape.
    """
    if not isinstance(schema, Mapping) or not schema:
        raise ConfigError(f"schema is {schema!r}; expected a dict from names to features.")
    return {name: _feature(name, entry) for name, entry in schema.items()}


def default_values(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that replace absent features, by name; only those of single values.

    Args:
        features: the result of `parse_schema`.
    """
    defaults = {name: getattr(each, "default_value", None) for name, each in features.items()}
    arrays = {name: np.asarray(each) for name, each in defaults.items() if each is not None}
    return {name: each.item() for name, each in arrays.items() if each.size == 1}


def _feature(name: str, entry: Any) -> Any:
    if _is_tensor_feature(entry):
        return _described(entry)
    dtype_like, shape = entry if _is_pair(entry) else (entry, ())
    dtype = getattr(dtype_like, "name", dtype_like)  # A dtype of TensorFlow, or its name.
    if not isinstance(dtype, str):
        dtype = getattr(dtype, "__name__", None)  # A class of NumPy.
    shape = [shape] if isinstance(shape, int) else shape
    if dtype not in _KINDS or not isinstance(shape, list | tuple):
        raise ConfigError(_invalid_entry(name, entry))
    if list(shape) == [None]:
        return RecordFeature(_KINDS[dtype], None)
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ConfigError(_invalid_entry(name, entry))
    return RecordFeature(_KINDS[dtype], tuple(shape))


def _is_tensor_feature(entry: Any) -> bool:
    """Return True for TensorFlow's features, which are named tuples."""
    modules = {each.__module__.partition(".")[0] for each in type(entry).__mro__}
    return hasattr(entry, "_fields") and "tensorflow" in modules


def _is_pair(entry: Any) -> bool:
    return type(entry) in (tuple, list) and len(entry) == 2


def _described(feature: Any) -> Any:
    """Return a feature of TensorFlow as `RecordFeature`, if that describes all of it."""
    tf = sys.modules["tensorflow"]
    kind = _KINDS.get(getattr(getattr(feature, "dtype", None), "name", ""))
    if kind is None:
        return feature
    if isinstance(feature, tf.io.VarLenFeature):
        return RecordFeature(kind, None)  # Sparse tensors cannot be rebatched.
    if isinstance(feature, tf.io.FixedLenFeature) and feature.default_value is None:
        return RecordFeature(kind, tuple(tf.TensorShape(feature.shape).as_list()))
    return feature


def _invalid_entry(name: str, entry: Any) -> str:
    return (
        f"schema[{name!r}] is {entry!r}; expected a dtype, ('float32', [28, 28]), or a feature of "
        "tf.io. A record holds int64, float32 and string (or bytes): cast to other dtypes "
        "afterwards, with Dataset.map. [None] is an array of any length."
    )


def tensor_feature(feature: Any) -> Any:
    """Return the feature of TensorFlow for one of `parse_schema` or `inferred_features`.

    Args:
        feature: a `RecordFeature`, or a feature of TensorFlow, which is returned unchanged.
    """
    if not isinstance(feature, RecordFeature):
        return feature
    import tensorflow as tf

    dtype = tf.as_dtype(_DTYPES[feature.kind])
    if feature.shape is None:
        # int64 is the default of tf.RaggedTensor and of the other readers.
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    return tf.io.FixedLenFeature(list(feature.shape), dtype)


def dense(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return parsed features with sparse tensors as dense ones, which can be cut into batches.

    Args:
        features: the tensors of a block of records, by name.
    """
    import tensorflow as tf

    return {
        name: tf.sparse.to_dense(each) if isinstance(each, tf.SparseTensor) else each
        for name, each in features.items()
    }
