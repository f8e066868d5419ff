"""Runs anywhere (pure). Conditions for rows that are functions of Python, or sets of values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sparkdl.errors import ConfigError, suggest


@dataclass(frozen=True)
class RowCondition:
    """The rows whose value of a column passes a condition.

    Attributes:
        column: name of the column.
        condition: a function that is given the values of many rows (rows,) as an array of NumPy and
            returns an array (rows,) of bool, which no null passes; or the values that are wanted.
    """

    column: str
    condition: Any

    @classmethod
    def parse(cls, value: Any) -> list["RowCondition"]:
        """Create from the argument `where`; all conditions must hold.

        Raises:
            ConfigError: if the value is not a dict from columns to functions or values.

        Example:
            >>> [each.column for each in RowCondition.parse({"age": lambda age: age >= 18})]
            ['age']
        """
        conditions = list(value.items()) if isinstance(value, Mapping) else []
        kinds = (list, tuple, set, frozenset)
        if not conditions or not all(
            isinstance(name, str) and (callable(each) or isinstance(each, kinds))
            for name, each in conditions
        ):
            raise ConfigError(
                f"where is {value!r}; expected a dict from columns to functions of an array, such "
                "as {'age': lambda age: age >= 18}, or to the values that are wanted, such as "
                "{'label': [0, 1]}."
            )
        return [cls(name, each) for name, each in conditions]

    @property
    def columns(self) -> tuple[str]:
        """The name of the column, alone."""
        return (self.column,)

    def check(self, schema: pa.Schema) -> None:
        """Validate the column.

        Args:
            schema: the columns of the rows.

        Raises:
            ConfigError: if the column does not exist, a wanted value is not of its type, or the
                column has arrays, which cannot be compared with values.
        """
        if self.column not in schema.names:
            raise ConfigError(
                f"where names column {self.column!r}, which does not exist."
                f"{suggest(self.column, schema.names)} Columns are {', '.join(schema.names)}."
            )
        if callable(self.condition):
            return
        kind = schema.field(self.column).type
        if types.is_nested(kind):
            raise ConfigError(
                f"where has values for column {self.column!r}, which is {kind}; expected a column "
                "of numbers or strings. Pass a function of an array of these values instead."
            )
        self._value_set(kind)

    def _value_set(self, kind: pa.DataType) -> pa.Array:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        values = list(self.condition)
        try:
            value_set = pa.array(values, kind)
            # pyarrow cuts the fraction off.
            if types.is_integer(kind) and value_set.to_pylist() != values:
                raise ValueError("they are not whole numbers")
            return value_set
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
            raise ConfigError(
                f"where has {self.condition!r} for column {self.column!r}; expected values of "
                f"{kind}: {exc}"
            ) from exc

    def mask(self, values: pa.Array) -> "np.ndarray[Any, Any]":
        """Return an array (rows,) of bool: True for the rows that pass.

        Args:
            values: the values of the column. A function gets those that are not null, in the dtype
                of the column, so that the result does not depend on the other rows of a batch.

        Raises:
            ConfigError: if the function compares the values with one of another type.
            ValueError: if the function does not return a bool for each value.

        Example:
            >>> RowCondition("label", {1, 2}).mask(pa.array([0, 1, 2, None]))
            array([False,  True,  True, False])
        """
        if not callable(self.condition):
            value_set = self._value_set(values.type)
            if types.is_dictionary(values.type):
                values = values.dictionary_decode()
            is_in_set: np.ndarray[Any, Any] = pc.is_in(values, value_set).to_numpy(
                zero_copy_only=False
            )
            return is_in_set
        is_valid = values.is_valid().to_numpy(zero_copy_only=False)
        passes: np.ndarray[Any, Any] = np.zeros(len(values), bool)
        if is_valid.any():
            passes[is_valid] = self._call(values.drop_null())
        return passes

    def _call(self, values: pa.Array) -> "np.ndarray[Any, Any]":
        """Return what the function returns for values without nulls."""
        array = values.to_numpy(zero_copy_only=False)
        try:
            result = np.asarray(self.condition(array))
        except TypeError as exc:
            advice = (
                "Compare times with numpy.datetime64, such as t >= np.datetime64('2024-03-01')."
                if types.is_temporal(values.type)
                else "Compare the values with some of their type."
            )
            raise ConfigError(
                f"the function of where for column {self.column!r}, which is {values.type}, failed "
                f"with an array of {array.dtype}: {exc}\n{advice}"
            ) from exc
        if result.shape != (len(values),) or result.dtype != bool:
            raise ValueError(
                f"the function of where for column {self.column!r} returned an array of "
                f"{result.dtype} {list(result.shape)} for {len(values)} rows; expected a bool for "
                "each row, such as age >= 18. It is called with the values of many rows."
            )
        return result
