"""Runs anywhere (pure). The columns that the names of folders such as `year=2024` define.

Types are inferred as by Spark, see `PartitioningUtils.scala` of Spark 4: one type for all folders.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import types

from sparkdl.data.readers.paths import Files
from sparkdl.errors import ConfigError

Texts = Mapping[str, str | None]

NULL = "__HIVE_DEFAULT_PARTITION__"
MAX_DECIMAL_DIGITS = 38
# Digits of the decimals that hold all values of the integer types.
_DIGITS = {pa.int32(): 10, pa.int64(): 20}

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(
    r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)", re.ASCII
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(_DATE.pattern + r" [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9])?")
_TIMESTAMP_TYPE = pa.timestamp("us", "UTC")


def within_folders(matches: Iterable[Files]) -> list[str]:
    """Return the paths of all files, each relative to the folder that is read."""
    return [path[len(files.folder) :] for files in matches for path in files.paths]


def folder_texts(path: str) -> dict[str, str | None]:
    """Return the values in the names of a file's folders as text, by column; None for null.

    Args:
        path: the file, relative to the folder that is read.

    Example:
        >>> folder_texts("year=2024/city=a%20b/part-0.parquet")
        {'year': '2024', 'city': 'a b'}
    """
    pairs = [name.split("=", 1) for name in path.split("/")[:-1] if "=" in name]
    return {unquote(name): None if text == NULL else unquote(text) for name, text in pairs}


def folder_types(folders: Iterable[Texts]) -> dict[str, pa.DataType]:
    """Return the type of each column.

    Args:
        folders: the result of `folder_texts` for all files.

    Example:
        >>> folder_types([{"k": "1", "day": "2024-01-31"}, {"k": "3000000000", "day": None}])
        {'k': DataType(int64), 'day': DataType(date32[day])}
    """
    texts_by_name: dict[str, dict[str, None]] = {}
    for texts in folders:
        for name, text in texts.items():
            texts_by_name.setdefault(name, {})
            if text is not None:
                texts_by_name[name][text] = None
    return {name: _common(set(map(_type, texts))) for name, texts in texts_by_name.items()}


def _type(text: str) -> pa.DataType:
    """Return the type that Spark infers from one text."""
    if _INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return pa.int32() if -(2**31) <= int(text) < 2**31 else pa.int64()
    if _DOUBLE.fullmatch(text):
        digits = _whole_digits(text)
        return pa.decimal128(digits, 0) if digits else pa.float64()
    if _TIMESTAMP.fullmatch(text) and _time(text):
        return _TIMESTAMP_TYPE
    return pa.date32() if _DATE.fullmatch(text) and _time(text) else pa.string()


def _whole_digits(text: str) -> int:
    """Return the number of digits of a whole number without a point; 0 for others."""
    if text[-1] in "fFdDNy":
        return 0
    number = Decimal(text)
    exponent = number.as_tuple().exponent
    digits = number.adjusted() + 1
    is_whole = isinstance(exponent, int) and exponent >= 0
    return digits if is_whole and digits <= MAX_DECIMAL_DIGITS else 0


def _common(kinds: set[pa.DataType]) -> pa.DataType:
    """Return the type that has the values of all types, as Spark chooses it."""
    decimals = [kind.precision for kind in kinds if types.is_decimal(kind)]
    numbers = {kind for kind in kinds if not types.is_decimal(kind)}
    if decimals and numbers <= set(_DIGITS):
        return pa.decimal128(max([*decimals, *(_DIGITS[kind] for kind in numbers)]), 0)
    if len(kinds) == 1:
        return kinds.pop()
    for wide, narrow in (
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.int32()),
        (_TIMESTAMP_TYPE, pa.date32()),
    ):
        if kinds == {wide, narrow}:
            return wide
    return pa.string()  # Also if all values are null.


def _time(text: str) -> datetime | None:
    """Return the time of a text, or None for a day such as 02-30."""
    form = "%Y-%m-%d %H:%M:%S.%f"
    try:
        return datetime.strptime(
            text, form[: 8 if len(text) == 10 else 17 if "." not in text else 20]
        )
    except ValueError:
        return None


@lru_cache(1 << 12)
def folder_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a column.

    Args:
        text: a value of `folder_texts`.
        kind: the type of the column, see `folder_types`, or another one to convert to. A text has
            the time zone of this process, as in Spark's default.

    Example:
        >>> folder_value("007", pa.int32())
        <pyarrow.Int32Scalar: 7>
    """
    if text is None:
        return pa.scalar(None, kind)
    value: Any = text
    if types.is_integer(kind):
        value = int(text)
    elif types.is_decimal(kind):
        value = Decimal(text)
    elif types.is_floating(kind):
        value = float(text.rstrip("fFdD"))
    elif types.is_date(kind) or types.is_timestamp(kind):
        value = _time(text)
        if value is not None and types.is_date(kind):
            value = value.date()
        elif value is not None and kind.tz:
            value = value.astimezone(timezone.utc)
    elif not types.is_string(kind):
        return pa.scalar(text).cast(kind)
    return pa.scalar(value, kind)


def folder_values(
    paths: Sequence[str], kinds: Mapping[str, pa.DataType]
) -> list[dict[str, pa.Scalar]]:
    """Return the values of the columns of each file.

    Args:
        paths: the files, each relative to the folder that is read.
        kinds: types that the user has given, by column.

    Raises:
        ConfigError: if a value does not have the type that the user has given.

    Example:
        >>> folder_values(["k=1/a.csv", "k=2/a.csv"], {})
        [{'k': <pyarrow.Int32Scalar: 1>}, {'k': <pyarrow.Int32Scalar: 2>}]
    """
    folders = [folder_texts(path) for path in paths]
    inferred = folder_types(folders)
    kind_of = {name: kinds.get(name, kind) for name, kind in inferred.items()}

    def value(name: str, text: str | None) -> pa.Scalar:
        try:
            return folder_value(text, kind_of[name])
        except (pa.ArrowException, ValueError, ArithmeticError) as exc:
            raise ConfigError(
                f"schema says that {name!r} is {kind_of[name]}, and a folder has {text!r}: {exc}."
            ) from exc

    return [{name: value(name, text) for name, text in texts.items()} for texts in folders]


def folder_columns(
    urls: Sequence[str],
    values: Sequence[Mapping[str, pa.Scalar]],
    names: Collection[str] | None = None,
) -> dict[str, pa.Array]:
    """Return columns that the folders of all files define, with a value for each file.

    Args:
        urls: the files.
        values: the result of `folder_values` for the files.
        names: names of the columns that are read, among others; None for all columns of folders.

    Raises:
        ValueError: if only the folders of some files define a column.
    """
    found = {name: value.type for of_file in values for name, value in of_file.items()}
    kinds = {name: kind for name, kind in found.items() if names is None or name in names}
    for url, of_file in zip(urls, values, strict=True):
        if missing := [name for name in kinds if name not in of_file]:
            raise ValueError(
                f"{url} has no column {missing[0]!r}, which the folders of other files define. "
                "Move the file, read files of one kind of folders, or read other columns only: "
                "feature_cols=[...]."
            )
    return {
        name: pa.array([of_file[name].as_py() for of_file in values], kind)
        for name, kind in kinds.items()
    }


def with_folder_columns(
    batch: pa.RecordBatch,
    num_rows: int,
    names: Sequence[str],
    values: Mapping[str, pa.Scalar],
) -> pa.RecordBatch:
    """Return rows of a file with the columns that its folders define.

    Args:
        batch: the columns that are stored in the file; there may be none.
        num_rows: number of rows.
        names: names of the columns to return.
        values: the values that the folders of the file define, by column.
    """
    arrays = [
        pa.repeat(values[name], num_rows) if name in values else batch.column(name)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))
