"""Runs anywhere (pure). Conditions for rows that are predicates of petastorm.

A predicate has the methods `get_fields()`, the names of its columns, and `do_include(values)`,
which is called with a dict of the values of one row. Source: `petastorm/predicates.py` of
petastorm 0.13.1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from sparkdl.errors import ConfigError, suggest


@dataclass(frozen=True)
class RowPredicate:
    """The rows that a predicate includes.

    Attributes:
        predicate: an object with the methods of petastorm's `PredicateBase`.
    """

    predicate: Any

    @classmethod
    def fits(cls, value: Any) -> bool:
        """Return True if a value has the methods of a predicate."""
        return all(callable(getattr(value, name, None)) for name in ("get_fields", "do_include"))

    @property
    def columns(self) -> list[str]:
        """The names of the columns that the predicate is given."""
        return sorted(self.predicate.get_fields())

    def check(self, schema: pa.Schema) -> None:
        """Validate the columns.

        Args:
            schema: the columns of the rows.

        Raises:
            ConfigError: if a column does not exist.
        """
        for name in self.columns:
            if name not in schema.names:
                raise ConfigError(
                    f"the predicate of where= reads column {name!r}, which does not exist."
                    f"{suggest(name, schema.names)} Columns are {', '.join(schema.names)}."
                )

    def mask(self, *values: pa.Array) -> "np.ndarray[Any, Any]":
        """Return an array (rows,) of bool: True for the rows that the predicate includes.

        Args:
            *values: the values of each column. The predicate is given scalars of NumPy, strings,
                arrays of NumPy, and None for a null, as from petastorm.
        """
        names = self.columns
        rows = zip(*map(_values, values), strict=True)
        do_include = self.predicate.do_include
        found = [bool(do_include(dict(zip(names, row, strict=True)))) for row in rows]
        return np.array(found, bool)


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column as petastorm has them."""
    kind = column.type
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if types.is_nested(kind):
        return [None if value is None else np.array(value) for value in column.to_pylist()]
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        column = column.fill_null(False if types.is_boolean(kind) else 0)
    array = column.to_numpy(zero_copy_only=False)
    return [None if null else value for null, value in zip(is_null, array, strict=True)]
