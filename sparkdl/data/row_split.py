"""Runs anywhere (pure). Split rows by the hash of a column, for training and validation.

A row's place is a number from 0 to 1: the first 32 bits of the MD5 of its value as text, divided by
2^32. The same value has the same place in every file, process, run and system; Spark computes it as
`conv(substr(md5(cast(id AS string)), 1, 8), 16, 10) / 4294967296`. Source: RFC 1321 for MD5.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkdl.errors import ConfigError


@dataclass(frozen=True)
class RowSplit:
    """The rows whose place is in a range.

    Attributes:
        column: name of the column that is hashed: integers, strings or binary values.
        begin: the least place.
        end: the end of the places, exclusive.
    """

    column: str
    begin: float
    end: float

    @classmethod
    def parse(cls, value: Any) -> "RowSplit":
        """Create from the argument `split`.

        Raises:
            ConfigError: if the value is not a column and a range within 0 and 1.

        Example:
            >>> RowSplit.parse(("id", 0.0, 0.9))
            RowSplit(column='id', begin=0.0, end=0.9)
        """
        parts = tuple(value) if isinstance(value, list | tuple) else ()
        is_named = len(parts) == 3 and isinstance(parts[0], str)
        numbers = [part for part in parts[1:] if isinstance(part, int | float)]
        if not is_named or len(numbers) != 2 or not 0 <= numbers[0] < numbers[1] <= 1:
            raise ConfigError(
                f"split is {value!r}; expected a column and a range within 0 and 1, such as "
                "('id', 0.0, 0.9) for nine of ten rows, and ('id', 0.9, 1.0) for the others."
            )
        return cls(parts[0], float(numbers[0]), float(numbers[1]))

    @property
    def columns(self) -> tuple[str]:
        """The name of the column, alone."""
        return (self.column,)

    def check(self, schema: pa.Schema) -> None:
        """Validate the column.

        Args:
            schema: the columns of the rows.

        Raises:
            ConfigError: if the column does not exist, or is of a type without a unique text.
        """
        kind = schema.field(self.column).type if self.column in schema.names else None
        if kind is None or not any(
            is_kind(kind)
            for is_kind in (
                types.is_integer,
                types.is_string,
                types.is_large_string,
                types.is_binary,
                types.is_large_binary,
            )
        ):
            columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
            raise ConfigError(
                f"split names column {self.column!r}, which "
                f"{'does not exist' if kind is None else f'is {kind}'}; expected a column of "
                f"integers, strings or binary values. Columns are {columns}."
            )

    def mask(self, values: pa.Array) -> "np.ndarray[Any, Any]":
        """Return an array (rows,) of bool: True for the rows of the split.

        Args:
            values: the values of the column.

        Raises:
            ValueError: if there is a null, which has no hash.

        Example:
            >>> RowSplit("id", 0.0, 0.7).mask(pa.array([1, 2, 3, 4]))
            array([False, False, False,  True])
        """
        if values.null_count:
            raise ValueError(
                f"column {self.column!r} has {values.null_count} nulls among {len(values)} values, "
                "and split needs a value in every row. Split by another column."
            )
        if types.is_integer(values.type):
            values = values.cast(pa.string())
        binary = values.cast(pa.large_binary())
        digests = [hashlib.md5(v, usedforsecurity=False).digest() for v in binary.to_pylist()]
        words = np.frombuffer(b"".join(digests), ">u4")[::4]
        places = words / 2.0**32
        return (self.begin <= places) & (places < self.end)
