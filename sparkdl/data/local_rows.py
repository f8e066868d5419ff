"""Runs on the driver.

A training function called directly, with the rows that a run would give it.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from sparkdl import context
from sparkdl.data.dataframe.dataset import received
from sparkdl.data.dataframe.inputs import Data, session_of
from sparkdl.data.dataframe.sender import Feeder
from sparkdl.errors import ConfigError

__all__ = ["local"]


@contextlib.contextmanager
def local(data: Any) -> Iterator[None]:
    """Let `data.dataset` read DataFrames outside a run, to debug a training function.

    All rows are collected into this process, so give it few: `df.limit(1000)`.

    Args:
        data: what `experiment.allreduce` takes as `data=`: a DataFrame, or several by name.

    Raises:
        ConfigError: it is something else, has columns that cannot become tensors, or this is a
            run already.

    Example:
        >>> from pyspark.sql import SparkSession
        >>> from sparkdl import data
        >>> df = SparkSession.builder.getOrCreate().range(3)
        >>> with data.local(df):
        ...     for ids in data.dataset(batch_size_per_worker=2):
        ...         print(ids.numpy())
        sparkdl: train: 3 rows; batches of 2; 2 steps an epoch
        [0 1]
        [2]
    """
    me = context.current()
    session = session_of(data)
    if me.feed is not None or session is None:
        raise ConfigError(
            "data.local is for a training function that is called outside a run, with DataFrames; "
            f"got {type(data).__name__}{' inside one' if me.feed is not None else ''}."
        )
    given = Data.of(data, session, 1)
    before = os.environ.get(context.VARIABLE)
    with Feeder(given.feed((0,)), _batches(given)) as feeder:
        context.activate(dataclasses.replace(me, feed=feeder.theirs.dup().detach()))
        try:
            yield
        finally:
            received.cache_clear()
            os.environ.pop(context.VARIABLE)
            if before is not None:
                os.environ[context.VARIABLE] = before


def _batches(data: Data) -> Iterator[pa.RecordBatch]:
    """The rows of all, as a task would get them."""
    kinds = {name: pa.struct(list(schema)) for name, schema in data.schemas.items()}
    for name, frame in data.frames.items():
        for batch in frame.toArrow().to_batches():
            if len(kinds) == 1:
                yield batch
                continue
            rows = batch.num_rows
            columns = [
                batch.to_struct_array() if other == name else pa.nulls(rows, kind)
                for other, kind in kinds.items()
            ]
            yield pa.RecordBatch.from_arrays(columns, list(kinds))
