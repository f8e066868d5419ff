"""Runs in the training process. Record the keys of the rows of files, see `data.row_keys`."""

from collections.abc import Iterator

import pyarrow as pa

from sparkdl import context
from sparkdl.data.readers.base import ArrowSource, Source
from sparkdl.data.row_keys import key_log
from sparkdl.data.shard import Range


def record_row_keys(source: Source) -> None:
    """Record the keys of all rows of a source, which are read once more with these columns only.

    One rank does it for all; in an elastic gang each does, as the one may be lost.

    Args:
        source: the rows of all ranks that `split=`, `where=` and `filter=` have chosen.
    """
    me = context.current()
    if not (me.is_chief or me.is_elastic):
        return
    is_arrow = isinstance(source, ArrowSource)
    if log := key_log(source.name, source.schema if is_arrow else None, has_all=True):
        try:
            if isinstance(source, ArrowSource) and log.problem is None:
                for batch in _all_rows(source):
                    log.add(batch)
        finally:
            log.close()


def _all_rows(source: ArrowSource) -> Iterator[pa.RecordBatch]:
    ranges = [Range(piece, 0, rows) for piece, rows in enumerate(source.sizes) if rows]
    return source.read(ranges, list(context.current().row_key))
