"""Runs in the training process. Read a version of a Delta table as batches.

The table's log says what files a version has, see `delta_log`. They are read as those of `parquet`.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from sparkdl import context
from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.batching import Batches, make_dataset, takes_batches
from sparkdl.data.readers.delta_log import TableVersion
from sparkdl.data.readers.file_records import record, version_before
from sparkdl.data.readers.parquet import ParquetSource
from sparkdl.data.readers.parquet_footers import Fragment, row_groups_of
from sparkdl.data.readers.parquet_types import comparable_type
from sparkdl.data.readers.paths import absolute

_logger = logging.getLogger("sparkdl.data")


@takes_batches
def delta(
    path: str | os.PathLike[str],
    *,
    version: int | str | datetime | None = None,
    filter: Any = None,  # noqa: A002 - the name in pyarrow and pandas.
    ragged: Sequence[str] = (),
    pad: Mapping[str, Any] | None = None,
    decode: Mapping[str, str] | None = None,
    fill: Mapping[str, Any] | None = None,
    **batches: Any,
) -> Any:
    """Return this rank's share of a Delta table as a `tf.data.Dataset`, with equal steps per rank.

    The rows are those of one version, whatever is written to the table meanwhile. In a gang, the
    first rank chooses the version for all ranks. The trial's record of its files has the version,
    so that a run that is repeated says if it reads another one. Files and row groups are read as by
    `data.parquet`.

    It needs the package deltalake (`pip install 'sparkdl-platform[delta]'`), which reads the log
    of the table. On object stores deltalake has settings of its own, such as the variables
    `AWS_ENDPOINT_URL` and `AWS_REGION`.

    Args:
        path: the folder of the table; a local path or a URL.
        version: number of a version, or a time: the newest version at that time, as `datetime` or
            in ISO 8601, such as `2026-01-31T12:00:00Z`. By default the newest version.
        filter: condition for the rows to read, see `parquet`. Files that the condition excludes by
            their partition are not opened.
        ragged, pad, decode, fill: see `parquet`. A column that was added to the table later is null
            in the rows before.
        **batches: see `Batches`.

    Returns:
        A dataset of features, or of `(features, labels)`, with the types of `sparkdl.data.schema`.

    Raises:
        FileNotFoundError: if there is no table.
        ConfigError: if there is no such version, the version has no files, the path has a percent
            code such as `%20`, or the table has columns that were renamed or rows that were only
            marked as deleted. And as for `parquet`.
        ImportError: if deltalake is not installed.

    Example:
        >>> import deltalake, pyarrow as pa
        >>> deltalake.write_deltalake("table", pa.table({"x": [1, 2]}))
        >>> deltalake.write_deltalake("table", pa.table({"x": [7, 8, 9]}), mode="overwrite")
        >>> for version in (0, 1):
        ...     rows = delta("table", version=version, batch_size_per_worker=8)
        ...     print([batch.tolist() for batch in rows.as_numpy()])
        [[1, 2]]
        [[7, 8, 9]]
    """
    parsed = Batches.parse(batches)
    options = {"ragged": ragged, "decode": decode, "fill": fill, "pad": pad}
    own_arguments = {"path": path, "version": version, "filter": filter}
    pieces = agree(
        Call("data.delta", {**own_arguments, **parsed.division}),
        lambda: _list(path, version, filter),
    )
    return make_dataset(ParquetSource(path, filter, options, pieces), parsed)


def _list(
    path: str | os.PathLike[str], version: int | str | datetime | None, condition: Any
) -> Pieces:
    """Return the row groups of a version, in the form that `ParquetPieces` reads."""
    before = version_before(absolute(os.fspath(path))) if version is None else None
    table = TableVersion.open(path, version if before is None else before)
    record([table.files], version=table.number, is_newest=version is None)
    if context.current().is_chief:
        _logger.info("%s: %d files", table, len(table.files.paths))
    return row_groups_of(list(_fragments(table)), condition)


def _fragments(table: TableVersion) -> Iterator[Fragment]:
    """Yield the files; a column that a file does not store has the log's value, or is null."""
    absent = {field.name: pa.scalar(None, comparable_type(field.type)) for field in table.schema}
    for number, values in enumerate(table.partitions):
        yield Fragment.of(table.files, number, values, absent)
