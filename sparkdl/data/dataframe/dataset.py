"""Runs in the training process.

`data.dataset`: this rank's rows of a DataFrame, as they come from Spark.
"""

import functools
import itertools
import os
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl import context
from sparkdl.context import Context
from sparkdl.data import schema as table
from sparkdl.data.arrow_arrays import Arrays, arrow_dataset
from sparkdl.data.batching import Batches, finished, shuffled, takes_batches, tell
from sparkdl.data.column_selection import Wanted
from sparkdl.data.dataframe.balancing import Agreement, Alone, Settled
from sparkdl.data.dataframe.receiver import Receiver
from sparkdl.data.dataframe.row_buffer import Arriving
from sparkdl.data.shard import totals
from sparkdl.errors import ConfigError, suggest

__all__ = ["dataset", "received"]

WINDOW_ROWS = 1 << 16


@takes_batches
def dataset(
    name: str = "train",
    *,
    ragged: Sequence[str] = (),
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    cache: bool = True,
    **batches: Any,
) -> Any:
    """This rank's rows of the DataFrame that the verb was given as `data=`.

    Spark reads the DataFrame once. Passes after the first are read from a copy of this rank's rows
    on its local disk. Every row is used once in a pass, and every rank takes the same number of
    steps: several ranks begin when all rows have arrived, or at once with `steps`; a single one
    begins with the first row. Rows come in the order in which Spark delivers them, which may
    differ from run to run.

    Under `distribute.strategy()` give it to `fit` as it is: it is not divided once more. Make the
    strategy first, as TensorFlow demands.

    Args:
        name: which of several DataFrames; one that was given alone is `train`.
        ragged: columns whose arrays differ in length; the others have the first one's.
        decode: binary columns that hold numbers, with their dtype, such as `{"image": "uint8"}`.
        fill: what stands for a null, by column; without it a null is an error.
        cache: keep the rows for further passes; False is for a single pass, faster, and over more
            rows than the local disk holds.
        **batches: see `sparkdl.data.batching.Batches`.

    Returns:
        A `tf.data.Dataset` of features, or of `(features, labels)`, each of (rows, ...).

    Raises:
        ConfigError: there is no such DataFrame or column, or an argument is wrong.

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
    me = context.current()
    arriving = _arriving(me, name)
    wanted = Wanted.among(arriving.schema.names, parsed.feature_cols, parsed.label_cols)
    columns = table.columns(arriving.schema, wanted.names, ragged=ragged, decode=decode, fill=fill)
    rows = _Rows(me, arriving, parsed, cache)
    arrays = Arrays(columns, wanted)
    if first := rows.first():
        arrays.learn(first)
    elements = arrow_dataset(rows.next_pass, arrays)
    known = me.world_size > 1 and parsed.steps is None
    steps = rows.steps() if known else None
    if not known:
        # Keras says so of every dataset whose length it is not told.
        warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning, "keras")
    return finished(elements, parsed, parsed.per_worker(me.world_size), steps)


def _arriving(me: Context, name: str) -> Arriving:
    if me.feed is None and me.role == "evaluator":
        raise ConfigError(
            f"data.dataset({name!r}) finds no rows: an evaluator gets none, all are shared out to "
            "the workers. Let it read files, by data.parquet say."
        )
    if me.feed is None:
        raise ConfigError(
            f"data.dataset({name!r}) finds no rows: none were given to this process. Pass data=df "
            "to experiment.allreduce or launch, and call it in the training function. To debug "
            "that function by itself, call it under `with data.local(df):`."
        )
    datasets = received(me.feed, os.getpid())
    if name not in datasets:
        raise ConfigError(
            f"there is no data {name!r}.{suggest(name, list(datasets))} The verb was given "
            f"{', '.join(datasets)}."
        )
    return datasets[name]


@functools.lru_cache(maxsize=1)
def received(channel: int, pid: int) -> dict[str, Arriving]:
    """The datasets that come over a channel of this process, by name."""
    return Receiver(socket.socket(fileno=channel)).datasets


@functools.cache
def _agreement(arriving: Arriving, last_batch: str, most: int | None) -> Agreement:
    """One for all calls that ask for the same: the ranks agree once."""
    return Agreement(context.current(), arriving, last_batch, most)


class _Rows:
    """The rows of one rank: passes over those that have arrived or still do."""

    def __init__(self, me: Context, arriving: Arriving, batches: Batches, cache: bool) -> None:
        several = len(received(me.feed or 0, os.getpid()))
        if not cache and (batches.epochs > 1 or batches.shuffle or several > 1):
            raise ConfigError(
                "cache=False reads rows once, as they come; it takes epochs=1, shuffle=False and "
                f"a single DataFrame, and got epochs={batches.epochs}, shuffle={batches.shuffle} "
                f"and {several}."
            )
        self._me, self._arriving, self._batches = me, arriving, batches
        self._batch_size = batches.per_worker(me.world_size)
        most = batches.steps and batches.steps * self._batch_size
        arriving.open(cache, most)
        self._count = (
            _agreement(arriving, batches.last_batch, most)
            if me.world_size > 1
            else Alone(arriving, most)
        )
        self._passes = itertools.count()
        self._is_told = False

    def first(self) -> pa.RecordBatch | None:
        """A batch with the first row; None if there is none at all."""
        return next((batch for batch in self._in_order() if batch.num_rows), None)

    def next_pass(self) -> Iterator[pa.RecordBatch]:
        """The rows of one more pass."""
        number = next(self._passes)
        if not self._batches.shuffle:
            return self._in_order()
        entropy = [self._me.seed, number, self._me.rank]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        return shuffled(self._in_any_order(seed), WINDOW_ROWS, seed)

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        position, settled = 0, None
        while settled is None:
            certain, settled = self._certain(position)
            yield from self._arriving.take(position, certain)
            position = certain
        yield from settled.extra

    def _in_any_order(self, seed: int) -> Iterator[pa.RecordBatch]:
        """All rows, their batches in another order."""
        settled = self._settled()
        bounds = self._arriving.bounds(settled.keeps)
        yield from settled.extra
        for place in np.random.default_rng(seed).permutation(len(bounds)):
            yield from self._arriving.read(*bounds[place])

    def steps(self) -> int:
        """Batches of a pass of every rank; waits until all rows have arrived."""
        rows, world_size = self._settled().rows, self._me.world_size
        return totals(rows, world_size, self._batch_size, self._batches.last_batch)[0]

    def _settled(self) -> Settled:
        certain, settled = self._certain(0)
        while settled is None:
            certain, settled = self._certain(certain)
        return settled

    def _certain(self, beyond: int) -> tuple[int, Settled | None]:
        certain, settled = self._count.certain(beyond)
        if settled and not self._is_told:
            self._is_told = True
            rows, world_size = settled.rows, self._me.world_size
            numbers = totals(rows, world_size, self._batch_size, self._batches.last_batch)
            tell(self._arriving.name, self._batches, rows, *numbers)
        return certain, settled
