"""Runs in the training process. Read this rank's rows of a DataFrame, as Spark delivers them."""

import functools
import logging
import os
import socket
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl import context
from sparkdl.context import Context
from sparkdl.data import schema
from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.batching import Batches, rows_of, takes_batches
from sparkdl.data.blocks import ArrowBlocks
from sparkdl.data.dataframe.receiver import Receiver
from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.dataframe.row_passes import RowPasses
from sparkdl.data.dataset_report import record_columns
from sparkdl.data.nested import map_leaves
from sparkdl.data.own_memory import separately_owned
from sparkdl.data.readers.chosen_rows import row_tests
from sparkdl.data.rows import Rows
from sparkdl.errors import ConfigError, suggest

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
    run. After a restart in the middle of an epoch, training can go on with the rows that no step
    has used, see `Rows.load_state_dict`.

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
    options = {"ragged": ragged, "decode": decode, "fill": fill, "pad": pad}
    columns = schema.columns(buffer.schema, selection.names, **options)
    passes = RowPasses(me, buffer, parsed, cache, len(received_datasets(me.feed or 0, os.getpid())))
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
    record_columns(name, mapped or selection, buffer.schema, options)
    is_length_known = me.num_readers > 1 and parsed.steps is None
    if not is_length_known:
        # Keras warns at the end of every dataset of unknown length.
        warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning, "keras")
    return _in_batches(name, passes, arrays, parsed, mapped, is_length_known)


def _in_batches(
    name: str, passes: RowPasses, arrays: Arrays, batches: Batches, mapped: Any, has_length: bool
) -> Rows:
    """Return the rows of passes as batches.

    Args:
        name: the name of the DataFrame.
        passes: the passes.
        arrays: the conversion of a batch to arrays.
        batches: how rows become batches.
        mapped: the columns with those that `map` computes.
        has_length: the number of batches is known.
    """
    num_readers = context.current().num_readers

    def rows_in(next_pass: Any, size: Any, **more: Any) -> Rows:
        # Shuffling copies rows; others are those of the mapped files, which are read again.
        blocks = ArrowBlocks(next_pass, arrays, is_fresh=bool(batches.shuffle))
        batch_size = batches.per_worker(num_readers)
        counts = size() if has_length else (None, None)
        more |= {"numbers": passes.numbers, "mapped": mapped}
        return rows_of(name, blocks, batches, batch_size, *counts, **more)

    def once() -> Rows:
        return rows_in(functools.partial(passes.next_pass, False), passes.size_without_repeats)

    resumable = passes if passes.has_state else None
    is_padded = num_readers > 1 and batches.last_batch == "pad"
    return rows_in(
        passes.next_pass, passes.size, resumable=resumable, once=once if is_padded else None
    )


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
    datasets = received_datasets(me.feed, os.getpid())
    if name not in datasets:
        raise ConfigError(
            f"there is no data {name!r}.{suggest(name, list(datasets))} The data= of this run has "
            f"{', '.join(datasets)}."
        )
    return datasets[name]


@functools.lru_cache(maxsize=1)
def received_datasets(channel: int, pid: int) -> dict[str, RowBuffer]:
    """Return the datasets that this process receives, by name; the receiver is created once.

    Args:
        channel: descriptor of the socket to the Spark task.
        pid: id of this process; a forked process receives rows of its own.
    """
    return Receiver(socket.socket(fileno=channel)).datasets
