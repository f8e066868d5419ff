"""Runs in the training process. The selected rows of a rank in blocks, for every framework."""

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.arrow_arrays import Arrays, owned
from sparkdl.data.length_buckets import by_length
from sparkdl.data.nested import map_leaves
from sparkdl.data.ragged import Ragged
from sparkdl.errors import ConfigError

__all__ = [
    "ArrowBlocks",
    "Blocks",
    "EitherBlocks",
    "TensorBlocks",
    "separately_owned",
    "to_tensor",
]


class Blocks(ABC):
    """Elements of features and labels, each of any number of rows; an iteration is one pass.

    Attributes:
        padding: the value with which the rows of a batch are padded, for each array in the
            structure of the elements; None without padding.
    """

    padding: Any = None

    @abstractmethod
    def arrays(self) -> Iterator[Any]:
        """Yield the elements of the next pass as NumPy arrays that can be changed in place.

        A column is an array (rows, *shape), or `Ragged`. Strings are an array of `str`, or of
        `bytes` if the column is binary.
        """

    @abstractmethod
    def tensors(self) -> Any:
        """Return a `tf.data.Dataset` of the elements."""

    def bucketed(
        self, column: str, batch_size: int, next_seed: Callable[[], Any], window_batches: int
    ) -> "Blocks":
        """Return the blocks with rows of similar length in the same batch.

        Args:
            column: name of a column of arrays.
            batch_size: number of rows in a batch.
            next_seed: returns the seed of the pass that has just begun; None keeps batches in
                order of length.
            window_batches: number of batches whose rows are sorted together.

        Raises:
            ConfigError: if the column has no lengths, or the reader has no columns of Arrow.
        """
        raise ConfigError(
            f"bucket_by={column!r} is for data.dataset, parquet and petastorm, whose rows can be "
            "sorted before TensorFlow has them. Write the rows as Parquet."
        )


class ArrowBlocks(Blocks):
    """Blocks of rows that are read as Arrow batches; NumPy needs no TensorFlow.

    Args:
        batches: returns the Arrow batches of the next pass.
        convert: the conversion of a batch to arrays.
    """

    def __init__(self, batches: Callable[[], Iterator[pa.RecordBatch]], convert: Arrays) -> None:
        self._batches = batches
        self._convert = convert
        self.padding = convert.padding()

    def bucketed(
        self, column: str, batch_size: int, next_seed: Callable[[], Any], window_batches: int
    ) -> Blocks:
        """Implement `Blocks.bucketed`."""
        self._convert.check_lengths_of(column)

        def batches() -> Iterator[pa.RecordBatch]:
            rows = self._batches()  # Begins the pass, of which `next_seed` gives the seed.
            return by_length(rows, column, batch_size, next_seed(), window_batches)

        return ArrowBlocks(batches, self._convert)

    def arrays(self) -> Iterator[Any]:
        """Implement `Blocks.arrays`."""
        for batch in self._parts():
            yield map_leaves(separately_owned(), self._convert(batch))

    def tensors(self) -> Any:
        """Implement `Blocks.tensors`."""
        import tensorflow as tf

        def elements() -> Iterator[Any]:
            for batch in self._parts():
                yield map_leaves(to_tensor, self._convert(batch))

        return tf.data.Dataset.from_generator(elements, output_signature=self._convert.signature())

    def _parts(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches():
            yield from self._convert.parts(batch)


class TensorBlocks(Blocks):
    """Blocks of rows that TensorFlow reads.

    Args:
        make: returns the `tf.data.Dataset` of the elements.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def arrays(self) -> Iterator[Any]:
        """Implement `Blocks.arrays`."""
        for element in self.tensors():
            yield map_leaves(_from_tensor, element)

    def tensors(self) -> Any:
        """Implement `Blocks.tensors`."""
        return self._make()


class EitherBlocks(Blocks):
    """Blocks of rows for which TensorFlow and NumPy have readers of their own.

    Args:
        arrays: returns the blocks that are read without TensorFlow, when they are first needed.
        tensors: the blocks that TensorFlow reads.
    """

    def __init__(self, arrays: Callable[[], Blocks], tensors: Blocks) -> None:
        self._without_tensors = functools.cache(arrays)
        self._tensors = tensors

    def arrays(self) -> Iterator[Any]:
        """Implement `Blocks.arrays`."""
        return self._without_tensors().arrays()

    def tensors(self) -> Any:
        """Implement `Blocks.tensors`."""
        return self._tensors.tensors()


def separately_owned() -> Callable[[Any], Any]:
    """Return a function that gives each array memory of its own: a column may be selected twice."""
    seen: set[int] = set()

    def in_own_memory(array: Any) -> Any:
        if isinstance(array, Ragged):
            return dataclasses.replace(array, values=in_own_memory(array.values))
        mine = owned(array)
        if id(mine) in seen:
            return mine.copy()
        seen.add(id(mine))
        return mine

    return in_own_memory


def to_tensor(array: Any) -> Any:
    """Return an array or `Ragged` as TensorFlow may use it without a further copy."""
    if not isinstance(array, Ragged):
        return owned(array)
    import tensorflow as tf

    lengths = [np.diff(offsets) for offsets in array.offsets]
    return tf.RaggedTensor.from_nested_row_lengths(owned(array.values), lengths)


def _from_tensor(tensor: Any) -> Any:
    import tensorflow as tf

    if isinstance(tensor, tf.RaggedTensor):
        splits = tuple(split.numpy() for split in tensor.nested_row_splits)
        return Ragged(tensor.flat_values.numpy(), splits)
    return tensor.numpy()
