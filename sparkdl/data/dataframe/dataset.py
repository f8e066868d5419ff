"""Runs in the training process. Read this rank's rows of a DataFrame, as Spark delivers them."""

import functools
import logging
import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl import context
from sparkdl.context import Context
from sparkdl.data import schema
from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.batching import Batches, rows_of, takes_batches
from sparkdl.data.blocks import ArrowBlocks
from sparkdl.data.dataframe.balancing import BalancedRows, RowBalance, SingleRank
from sparkdl.data.dataframe.receiver import Receiver
from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.dataset_report import report_dataset
from sparkdl.data.lanes import MAX_LANES, WINDOW_BYTES
from sparkdl.data.nested import map_leaves
from sparkdl.data.own_memory import separately_owned
from sparkdl.data.pass_numbers import PassNumbers
from sparkdl.data.readers.chosen_rows import row_tests
from sparkdl.data.shard import totals
from sparkdl.data.shuffle import shuffled
from sparkdl.errors import ConfigError, suggest

__all__ = ["dataset", "received"]

# Rows next to each other in the order of arrival that stay in the same window of a shuffled pass.
SLICE_ROWS = 256

_logger = logging.getLogger("sparkdl.data")


@takes_batches
def dataset(
    name: str = "train",
    *,
    ragged: Sequence[str] = (),
    pad: Mapping[str, Any] | None = None,
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    cache: bool = True,
    **batches: Any,
) -> Any:
    """Return this rank's rows of a DataFrame that was passed as `data=`.

    Spark reads the DataFrame once. Later passes read a copy of this rank's rows on its local disk.
    Every row is used once per pass, and every rank takes the same number of steps. Several ranks
    begin when all rows have arrived, or at once if `steps` is given; a single rank begins with the
    first row. Rows come in the order in which Spark delivers them, which may differ from run to
    run.

    Under `distribute.strategy()` pass the dataset to `fit` unchanged: it already holds only this
    rank's rows and is not divided again. Create the strategy first, as TensorFlow requires.

    Args:
        name: name of the DataFrame; a single DataFrame without a name is `train`.
        ragged: names of the columns whose arrays differ in length; in other columns all arrays
            have the length of the first.
        pad: values that fill shorter arrays up to the longest of their batch, by column name:
            `{"tokens": 0}`. See `bucket_by`.
        decode: dtypes of the binary columns that hold numbers, by name: `{"image": "uint8"}`.
        fill: values that replace nulls, by column name; without a value a null is an error.
        cache: keep the rows for further passes. False allows a single pass, which is faster and
            can read more rows than the local disk holds.
        **batches: see `sparkdl.data.batching.Batches`.

    Returns:
        `Rows`, a `tf.data.Dataset` of features, or of `(features, labels)`, each of (rows, ...).

    Raises:
        ConfigError: if there is no such DataFrame or column, the DataFrame is empty, or an
            argument is invalid.
        ValueError: if one of the first rows has a null, or an array of another length than the
            first. For a later row, iterating over the dataset raises TensorFlow's error.

    Example:
        >>> from sparkdl import experiment
        >>> def train():
        ...     from sparkdl import data
        ...     rows = data.dataset(batch_size_per_worker=4, label_cols="y")
        ...     return sum(len(label) for _, label in rows)
        >>> from pyspark.sql import SparkSession
        >>> df = SparkSession.builder.getOrCreate().range(10).selectExpr("id / 2 AS x", "id AS y")
        >>> experiment.launch(train, data=df, metric="rows", progress=False).best.value
        10.0
    """
    parsed = Batches.parse(batches)
    if row_tests(parsed.split, parsed.where):
        raise ConfigError(
            "split= and where= are for files. Choose the rows in Spark: df.where(...), "
            "df.randomSplit, or the expression in help(sparkdl.data.row_split)."
        )
    me = context.current()
    buffer = _row_buffer(me, name)
    selection = parsed.select(buffer.schema.names)
    columns = schema.columns(
        buffer.schema, selection.names, ragged=ragged, decode=decode, fill=fill, pad=pad
    )
    passes = _RowPasses(me, buffer, parsed, cache)
    arrays = Arrays(columns, selection)
    first = passes.first()
    batch_size = parsed.per_worker(me.num_readers)
    sample: Any = None
    if first:
        sample = arrays(first)  # An error here is plain; TensorFlow would wrap a later one.
    elif not passes.num_rows():
        raise ConfigError(
            f"data {name!r} has no rows: the DataFrame is empty. Look at its filters and joins."
        )

    def sample_batch() -> Any:
        batch = sample and {name: sample[name][:batch_size] for name in sample}
        return batch and map_leaves(separately_owned(), batch)

    mapped = parsed.mapped(buffer.schema.names, sample_batch)
    if me.is_chief and (text := schema.describe_conversions(buffer.schema, selection.names)):
        _logger.info("%s: %s", name, text)
    is_length_known = me.num_readers > 1 and parsed.steps is None
    steps, num_rows = passes.size() if is_length_known else (None, None)
    if not is_length_known:
        # Keras warns at the end of every dataset of unknown length.
        warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning, "keras")
    blocks = ArrowBlocks(passes.next_pass, arrays, is_fresh=bool(parsed.shuffle))
    return rows_of(name, blocks, parsed, batch_size, steps, num_rows, passes.numbers, mapped)


def _row_buffer(me: Context, name: str) -> RowBuffer:
    if me.feed is None and me.role == "evaluator":
        raise ConfigError(
            f"data.dataset({name!r}) has no rows on an evaluator: all rows go to the workers. Read "
            "files in the evaluator instead, for example with data.parquet."
        )
    if me.feed is None:
        raise ConfigError(
            f"data.dataset({name!r}) has no rows: this process received none. Pass data=df "
            "to experiment.allreduce or launch, and call data.dataset in the training function. To "
            "debug the training function by itself, call it under `with data.local(df):`."
        )
    datasets = received(me.feed, os.getpid())
    if name not in datasets:
        raise ConfigError(
            f"there is no data {name!r}.{suggest(name, list(datasets))} The data= of this run has "
            f"{', '.join(datasets)}."
        )
    return datasets[name]


@functools.lru_cache(maxsize=1)
def received(channel: int, pid: int) -> dict[str, RowBuffer]:
    """Return the datasets that this process receives, by name; the receiver is created once.

    Args:
        channel: descriptor of the socket to the Spark task.
        pid: id of this process; a forked process receives rows of its own.
    """
    return Receiver(socket.socket(fileno=channel)).datasets


@functools.cache
def _row_balance(
    buffer: RowBuffer, last_batch: str, max_rows: int | None, batch_size: int
) -> RowBalance:
    """Return the balance of a dataset, created once for all calls with the same arguments."""
    return RowBalance(context.current(), buffer, last_batch, max_rows, batch_size)


class _RowPasses:
    """Passes over the rows of one rank, including rows that are still arriving.

    Args:
        me: the context of the rank.
        buffer: the rank's rows.
        batches: how rows become batches.
        cache: keep the rows for further passes.

    Attributes:
        numbers: counts the passes.
    """

    def __init__(self, me: Context, buffer: RowBuffer, batches: Batches, cache: bool) -> None:
        num_datasets = len(received(me.feed or 0, os.getpid()))
        if not cache and (batches.epochs > 1 or batches.shuffle or num_datasets > 1):
            raise ConfigError(
                "cache=False reads rows once, in the order of their arrival; it requires epochs=1, "
                f"shuffle=False and a single DataFrame, and got epochs={batches.epochs}, "
                f"shuffle={batches.shuffle} and {num_datasets} DataFrames."
            )
        self._me = me
        self._buffer = buffer
        self._batches = batches
        self._batch_size = batches.per_worker(me.num_readers)
        max_rows = batches.steps and batches.steps * self._batch_size
        buffer.open(cache, max_rows)
        self._balance = (
            _row_balance(buffer, batches.last_batch, max_rows, self._batch_size)
            if me.num_readers > 1
            else SingleRank(buffer, max_rows)
        )
        self.numbers = PassNumbers()
        self._is_reported = False

    def first(self) -> pa.RecordBatch | None:
        """Return a batch with the first row; None if there are no rows."""
        return next((batch for batch in self._in_order() if batch.num_rows), None)

    def num_rows(self) -> int:
        """Return the number of rows of all ranks; wait until all rows have arrived."""
        return self._balanced().rows

    def next_pass(self) -> Iterator[pa.RecordBatch]:
        """Return the rows of the next pass."""
        number = self.numbers.take()
        if not self._batches.shuffle:
            return self._in_order()
        entropy = [self._me.data_seed, number, self._me.rank]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        rows = self._in_random_order(seed)
        return shuffled([(rows, seed)], self._batches.window_rows, WINDOW_BYTES)

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        position, balanced = 0, None
        while balanced is None:
            certain, balanced = self._certain_rows(position)
            yield from self._buffer.take(position, certain)
            position = certain
        yield from balanced.extra

    def _in_random_order(self, seed: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows, in random order slice by slice."""
        balanced = self._balanced()
        yield from balanced.extra
        random = np.random.default_rng(seed)
        begin = int(random.integers(balanced.available - balanced.keeps + 1))
        size = max(min(SLICE_ROWS, self._batches.window_rows // MAX_LANES), 1)
        for place in random.permutation(-(-balanced.keeps // size)).tolist():
            start, stop = place * size, min((place + 1) * size, balanced.keeps)
            yield from self._buffer.read(begin + start, begin + stop)

    def size(self) -> tuple[int, int]:
        """Return the numbers of batches and rows per pass; wait until all rows have arrived."""
        rows, world_size = self._balanced().rows, self._me.num_readers
        last_batch = self._batches.last_batch
        steps, padded, _ = totals(rows, world_size, self._batch_size, last_batch)
        is_cut = last_batch == "drop"
        return steps, steps * self._batch_size if is_cut else (rows + padded) // world_size

    def _balanced(self) -> BalancedRows:
        certain, balanced = self._certain_rows(0)
        while balanced is None:
            certain, balanced = self._certain_rows(certain)
        return balanced

    def _certain_rows(self, beyond: int) -> tuple[int, BalancedRows | None]:
        certain, balanced = self._balance.certain_rows(beyond)
        if balanced and not self._is_reported:
            self._is_reported = True
            rows, world_size = balanced.rows, self._me.num_readers
            numbers = totals(rows, world_size, self._batch_size, self._batches.last_batch)
            max_steps = self._batches.steps
            report_dataset(self._buffer.name, self._batch_size, max_steps, rows, *numbers)
        return certain, balanced
