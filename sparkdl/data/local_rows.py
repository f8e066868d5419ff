"""Runs on the driver. Give rows to a training function that is called outside a run."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from sparkdl import context
from sparkdl.data.dataframe.dataset import received_datasets
from sparkdl.data.dataframe.inputs import DataFrameInputs, session_of
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.errors import ConfigError
from sparkdl.spark.capabilities import to_arrow
from sparkdl.spark.versions import check_session


@contextlib.contextmanager
def local(data: Any) -> Iterator[None]:
    """Let `data.dataset` read DataFrames outside a run, to debug a training function.

    All rows are collected into this process, so pass a small DataFrame: `df.limit(1000)`.

    Args:
        data: a DataFrame, or several by name, as in the `data=` of `experiment.allreduce`.

    Raises:
        ConfigError: if `data` has no DataFrame or has columns that cannot become tensors, if the
            process is already part of a run, or if a version is not supported.

    Example:
        >>> from pyspark.sql import SparkSession
        >>> from sparkdl import data
        >>> df = SparkSession.builder.getOrCreate().range(3)
        >>> with data.local(df):
        ...     for ids in data.dataset(batch_size_per_worker=2):
        ...         print(ids.numpy())
        [0 1]
        [2]
    """
    me = context.current()
    session = session_of(data)
    if me.feed is not None or session is None:
        raise ConfigError(
            "data.local is for a training function that is called outside a run, with DataFrames; "
            f"got {type(data).__name__}{' inside a run' if me.feed is not None else ''}."
        )
    check_session(session)
    inputs = DataFrameInputs.of(data, session, 1)
    previous = os.environ.get(context.VARIABLE)
    with RowSender(inputs.feed((0,)), _batches(inputs)) as sender:
        context.activate(dataclasses.replace(me, feed=sender.process_end.dup().detach()))
        try:
            yield
        finally:
            received_datasets.cache_clear()
            os.environ.pop(context.VARIABLE)
            if previous is not None:
                os.environ[context.VARIABLE] = previous


def _batches(inputs: DataFrameInputs) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all DataFrames in the form in which a Spark task receives them."""
    structs = {name: pa.struct(list(schema)) for name, schema in inputs.schemas.items()}
    for name, frame in inputs.frames.items():
        for batch in to_arrow(frame).to_batches():
            if len(structs) == 1:
                yield batch
                continue
            rows = batch.num_rows
            columns = [
                batch.to_struct_array() if other == name else pa.nulls(rows, struct)
                for other, struct in structs.items()
            ]
            yield pa.RecordBatch.from_arrays(columns, list(structs))
