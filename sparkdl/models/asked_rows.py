"""Runs on the driver. Rows that are looked for among those of a training, by the keys of both."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError, named_type, suggest
from sparkdl.files import storage


@dataclass(frozen=True)
class AskedRows:
    """The keys of rows.

    Attributes:
        columns: the columns of the key.
        kinds: the kind of the values of each column, see `data.row_keys.kind_of`.
        values: the values of each column, as an Arrow array.
    """

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    values: tuple[Any, ...]

    @classmethod
    def of(cls, rows: Any, key: str | Sequence[str] | None) -> "AskedRows":
        """Create from the arguments of `models.affected`.

        Raises:
            ConfigError: if an argument is invalid.
        """
        from sparkdl.data.row_keys import key_columns, kind_of

        columns = key_columns(key, "key")
        table = _table(rows, columns)
        columns = columns or tuple(table.column_names)
        if not table.num_rows:
            raise ConfigError("rows has no rows; expected the rows to look for, or their keys.")
        for name in columns:
            if table.column_names.count(name) != 1:
                raise ConfigError(
                    f"rows has no column {name!r}.{suggest(name, table.column_names)} Columns "
                    f"are {', '.join(table.column_names)}. Pass key= with the columns of the key, "
                    "under the names that row_key= had."
                )
            if nulls := table[name].null_count:
                raise ConfigError(
                    f"column {name!r} of rows has {nulls} nulls, which are no key. Remove these "
                    "rows."
                )
            if kind_of(table.schema.field(name).type) is None:
                raise ConfigError(
                    f"column {name!r} of rows is {table.schema.field(name).type}; expected "
                    "integers, text, binary values or dates, as in the training."
                )
        kinds = tuple(str(kind_of(table.schema.field(name).type)) for name in columns)
        return cls(columns, kinds, tuple(table[name] for name in columns))

    def among(self, record: Mapping[str, Any]) -> set[bytes] | str:
        """Return the digests of the keys that are in a record, or why it is not known.

        Args:
            record: see `TrainingRows`.
        """
        import numpy as np

        from sparkdl.data.row_keys import DIGEST_BYTES, digests

        name = record["data"]
        if set(record["columns"]) != set(self.columns):
            recorded, asked = (", ".join(names) for names in (record["columns"], self.columns))
            return f"the rows of {name} were recorded by {recorded}, and not by {asked}"
        order = [self.columns.index(column) for column in record["columns"]]
        for column, kind, place in zip(record["columns"], record["kinds"], order, strict=True):
            if kind != self.kinds[place]:
                return f"{column} is {kind} in {name}, and {self.kinds[place]} in the rows"
        data = storage.read(record["url"])
        if len(data) % DIGEST_BYTES:
            return f"the record of {name} is damaged"
        dtype = np.dtype((np.void, DIGEST_BYTES))
        mine = np.unique(np.frombuffer(digests([self.values[n] for n in order]), dtype))
        theirs = np.frombuffer(data, dtype)
        return {each.tobytes() for each in mine[np.isin(mine, theirs)]}


def _table(rows: Any, columns: Sequence[str]) -> Any:
    """Return rows of any kind as a table of Arrow, with the columns of the key at least."""
    import pyarrow as pa

    if isinstance(rows, str | os.PathLike):
        return _read(os.fspath(rows))
    if isinstance(rows, pa.Table):
        return rows
    if hasattr(rows, "toPandas"):  # A DataFrame of Spark.
        chosen = rows.select(*columns) if columns else rows
        return pa.Table.from_pandas(chosen.toPandas(), preserve_index=False)
    if hasattr(rows, "iloc") and hasattr(rows, "columns"):
        chosen = rows[list(columns)] if set(columns) <= set(rows.columns) and columns else rows
        return pa.Table.from_pandas(chosen, preserve_index=False)
    if len(columns) != 1:
        raise ConfigError(
            f"rows is {named_type(rows)}; expected a DataFrame, a table of pyarrow or the "
            "path of a file, or a list of values with key= and the name of a single column."
        )
    try:
        return pa.table({columns[0]: pa.array(list(rows))})
    except (TypeError, pa.ArrowException) as exc:
        raise ConfigError(f"rows cannot be read as values of {columns[0]!r}: {exc}") from exc


def _read(path: str) -> Any:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    readers = {".parquet": pyarrow.parquet.read_table, ".csv": pyarrow.csv.read_csv}
    reader = readers.get(Path(path).suffix)
    if reader is None:
        raise ConfigError(f"rows is {path!r}; expected a file that ends in .parquet or .csv.")
    try:
        return reader(pa.BufferReader(storage.read(storage.absolute(path))))
    except FileNotFoundError:
        raise ConfigError(f"rows is {path!r}, which does not exist.") from None
    except pa.ArrowException as exc:
        raise ConfigError(f"rows is {path!r}, which cannot be read: {exc}") from exc
