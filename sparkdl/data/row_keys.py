"""Runs in the training process to record the keys of rows, on the driver to compare them.

With `row_key=`, a trial keeps a digest of the key of each row that it has opened:

```
<trial>/row-keys/<rank>-<n>.json  the dataset, and the columns of the key with the kinds of values
                /<rank>-<n>.md5   16 bytes for each row, in any order
```

A digest is the MD5 (RFC 1321) of the values of the key, each after its length. Equal values have
equal digests in every format, process and run.
"""

import hashlib
import json
import logging
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
from pyarrow import types

from sparkdl import context
from sparkdl.errors import ConfigError
from sparkdl.files.layout import ROW_KEYS

DIGEST_BYTES = 16
# The length that stands for a null.
_NULL = (1 << 32) - 1

_logger = logging.getLogger("sparkdl.data")


def key_columns(row_key: Any, argument: str = "row_key") -> tuple[str, ...]:
    """Return the columns of the option `row_key`; empty without it.

    Args:
        row_key: the value of the user.
        argument: the name of the argument, for the message.

    Raises:
        ConfigError: if it is neither the name of a column nor a list of names.

    Example:
        >>> key_columns("customer"), key_columns(["shop", "order"]), key_columns(None)
        (('customer',), ('shop', 'order'), ())
    """
    names = [row_key] if isinstance(row_key, str) else row_key
    if names is None:
        return ()
    is_list = isinstance(names, list | tuple) and len(names) == len(set(names)) > 0
    if not is_list or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"{argument} is {row_key!r}; expected the name of a column, such as 'customer', or a "
            "list of different names."
        )
    return tuple(names)


def kind_of(kind: pa.DataType) -> str | None:
    """Return the kind of the values of a column; None for a type without unique bytes.

    Values of different kinds are never equal: the text `7` is not the integer 7.

    Example:
        >>> kind_of(pa.int16()), kind_of(pa.large_string()), kind_of(pa.float64())
        ('integer', 'text', None)
    """
    if types.is_dictionary(kind):
        return kind_of(kind.value_type)
    if types.is_integer(kind):
        return "integer"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "binary"
    return "date" if types.is_date(kind) else None


def problem_of(columns: Sequence[str], schema: pa.Schema | None) -> str | None:
    """Return why the key of the rows of a dataset cannot be recorded; None if it can.

    Args:
        columns: the columns of the key.
        schema: names and types of the columns; None for rows without types of Arrow.
    """
    if schema is None:
        return "its columns have no types of Arrow"
    for name in columns:
        if name not in schema.names:
            return f"it has no column {name!r}, but {', '.join(schema.names)}"
        if kind_of(schema.field(name).type) is None:
            return (
                f"column {name!r} is {schema.field(name).type}; expected integers, text, binary "
                "values or dates"
            )
    return None


def digests(columns: Sequence[pa.Array | pa.ChunkedArray]) -> bytes:
    """Return the digests of rows, one after the other.

    Args:
        columns: the values of each column of the key.

    Example:
        >>> digests([pa.array([7])]) == digests([pa.array([7], pa.int8())])
        True
        >>> len(digests([pa.array(["a", "b"]), pa.array([1, None])])) // DIGEST_BYTES
        2
    """
    parts = [_encoded(column) for column in columns]
    return b"".join(
        hashlib.md5(b"".join(values), usedforsecurity=False).digest()
        for values in zip(*parts, strict=True)
    )


def _encoded(column: pa.Array | pa.ChunkedArray) -> Iterator[bytes]:
    """Yield the bytes of each value, after their length."""
    for value in column.to_pylist():
        if value is None:
            yield struct.pack("<I", _NULL)
            continue
        data = value if isinstance(value, bytes) else str(value).encode()
        yield struct.pack("<I", len(data)) + data


class KeyLog:
    """The record of the keys of the rows that this process gets of one dataset.

    Args:
        folder: the folder of the records of the trial.
        rank: the rank of this process.
        data: the name of the dataset.
        columns: the columns of the key.
        schema: names and types of the columns of the dataset.
        readers: the number of ranks, the first ones, that each have a part of the rows.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        data: str,
        columns: Sequence[str],
        schema: pa.Schema | None,
        readers: int,
    ) -> None:
        self.problem = problem_of(columns, schema)
        self._columns = list(columns)
        facts: dict[str, Any] = {"data": data, "columns": self._columns, "readers": readers}
        if schema is not None and self.problem is None:
            facts["kinds"] = [kind_of(schema.field(name).type) for name in columns]
        else:
            facts["problem"] = self.problem
            text = "%s: the keys of its rows are not recorded: %s"
            _logger.warning(text, data, self.problem)
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _next_file(folder, rank, json.dumps(facts))

    def add(self, batch: pa.RecordBatch) -> None:
        """Record the keys of rows, before the rows are used."""
        if self.problem is None:
            self._file.write(digests([batch.column(name) for name in self._columns]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _next_file(folder: Path, rank: int, facts: str) -> BinaryIO:
    """Return a new file for digests, which is written without a buffer, after its facts."""
    number = len(list(folder.glob(f"{rank}-*.json")))
    Path(folder, f"{rank}-{number}.json").write_text(facts)
    return Path(folder, f"{rank}-{number}.md5").open("xb", buffering=0)


def key_log(data: str, schema: pa.Schema | None, has_all: bool = False) -> KeyLog | None:
    """Return a new record for a dataset; None outside a run, and without `row_key=`.

    Args:
        data: the name of the dataset.
        schema: names and types of its columns.
        has_all: this rank records the rows of all ranks.
    """
    me = context.current()
    if not me.row_key or not me.folder:
        return None
    readers = 0 if has_all else me.num_readers
    return KeyLog(Path(me.folder, ROW_KEYS), me.rank, data, me.row_key, schema, readers)
