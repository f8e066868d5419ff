"""Runs anywhere. DataFrames of pandas in files of the project.

Each function is that of pandas, with a path of the project in place of a local one, and the other
arguments by name. A function that writes replaces a file of the same name.
"""

from typing import Any

import pandas as pd

from sparkdl.hops.absent_names import absent_names
from sparkdl.hops.hdfs import open_file

__all__ = [
    "read_csv",
    "read_excel",
    "read_json",
    "read_parquet",
    "write_csv",
    "write_json",
    "write_parquet",
]

__getattr__ = absent_names(__name__, __all__)


def read_csv(hdfs_filename: str, **kwds: Any) -> Any:
    """Return the rows of a file with comma-separated values.

    Example:
        >>> write_csv("Resources/rows.csv", pd.DataFrame({"x": [1, 2]}), index=False)
        >>> read_csv("Resources/rows.csv").x.tolist()
        [1, 2]
    """
    with open_file(hdfs_filename, flags="rt") as file:
        return pd.read_csv(file, **kwds)


def read_json(hdfs_filename: str, **kwds: Any) -> Any:
    """Return the rows of a JSON file."""
    with open_file(hdfs_filename, flags="rt") as file:
        return pd.read_json(file, **kwds)


def read_parquet(hdfs_filename: str, **kwds: Any) -> Any:
    """Return the rows of a Parquet file."""
    with open_file(hdfs_filename, flags="r") as file:
        return pd.read_parquet(file, **kwds)


def read_excel(hdfs_filename: str, **kwds: Any) -> Any:
    """Return the rows of a sheet; pandas needs openpyxl for it."""
    with open_file(hdfs_filename, flags="r") as file:
        return pd.read_excel(file, **kwds)


def write_csv(hdfs_filename: str, dataframe: pd.DataFrame, **kwds: Any) -> None:
    """Write the rows of a DataFrame with commas between the values."""
    with open_file(hdfs_filename, flags="wt") as file:
        dataframe.to_csv(file, **kwds)


def write_json(hdfs_filename: str, dataframe: pd.DataFrame, **kwds: Any) -> None:
    """Write the rows of a DataFrame as JSON."""
    with open_file(hdfs_filename, flags="wt") as file:
        dataframe.to_json(file, **kwds)


def write_parquet(hdfs_filename: str, dataframe: pd.DataFrame, **kwds: Any) -> None:
    """Write the rows of a DataFrame as Parquet."""
    with open_file(hdfs_filename, flags="w") as file:
        dataframe.to_parquet(file, **kwds)
