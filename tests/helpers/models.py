"""Models and rows to try them on."""

from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def dense(width: int, units: int = 1, **options: Any) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Input((width,)), keras.layers.Dense(units, **options)])


def numbers(session: SparkSession, rows: int = 10, partitions: int = 3) -> DataFrame:
    """`id`, and columns x0 to x4 that grow with it."""
    columns = [(F.col("id") * (i + 1) / rows).cast("float").alias(f"x{i}") for i in range(5)]
    return session.range(rows, numPartitions=partitions).select("id", *columns)


def values(df: DataFrame, *names: str) -> np.ndarray:
    """The columns, by id, as rows of an array."""
    rows = df.orderBy("id").select(*names).collect()
    return np.array([[row[name] for name in names] for row in rows], "float32")


def save(model: Any, path: Path) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras advises against HDF5.
        model.save(path)
