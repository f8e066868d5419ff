"""Runs in the training process. The selected rows of a rank in blocks, for every framework."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.length_buckets import by_length
from sparkdl.data.nested import map_leaves
from sparkdl.data.own_memory import separately_owned
from sparkdl.data.ragged import Ragged
from sparkdl.distribute.step_times import step_times
from sparkdl.errors import ConfigError


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
        is_fresh: True if all batches are in different memory that nothing else reads.
    """

    def __init__(
        self,
        batches: Callable[[], Iterator[pa.RecordBatch]],
        convert: Arrays,
        is_fresh: bool = False,
    ) -> None:
        self._batches = batches
        self._convert = convert
        self._is_fresh = is_fresh
        self.padding = convert.padding()

    def bucketed(
        self, column: str, batch_size: int, next_seed: Callable[[], Any], window_batches: int
    ) -> Blocks:
        """Implement `Blocks.bucketed`."""
        self._convert.check_lengths_of(column)

        def batches() -> Iterator[pa.RecordBatch]:
            rows = self._batches()  # Begins the pass, of which `next_seed` gives the seed.
            return by_length(rows, column, batch_size, next_seed(), window_batches)

        return ArrowBlocks(batches, self._convert, is_fresh=True)

    def arrays(self) -> Iterator[Any]:
        """Implement `Blocks.arrays`."""
        for batch in self._batches():
            for part in self._convert.parts(batch):
                yield map_leaves(separately_owned(self._is_fresh), self._convert(part))

    def tensors(self) -> Any:
        """Implement `Blocks.tensors`."""
        import tensorflow as tf

        def elements() -> Iterator[Any]:
            for element in step_times().read(self.arrays()):
                yield map_leaves(to_tensor, element)

        return tf.data.Dataset.from_generator(elements, output_signature=self._convert.signature())


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


def to_tensor(array: Any) -> Any:
    """Return an array or `Ragged` in memory of its own as TensorFlow takes it from a generator."""
    if not isinstance(array, Ragged):
        return array
    import tensorflow as tf

    lengths = [np.diff(offsets) for offsets in array.offsets]
    return tf.RaggedTensor.from_nested_row_lengths(array.values, lengths)


def _from_tensor(tensor: Any) -> Any:
    import tensorflow as tf

    if isinstance(tensor, tf.RaggedTensor):
        splits = tuple(split.numpy() for split in tensor.nested_row_splits)
        return Ragged(tensor.flat_values.numpy(), splits)
    return tensor.numpy()
