"""Runs in the driver. Columns of Spark ML vectors as arrays of float32, for Arrow."""

from typing import Any

from pyspark.sql import functions as F

from sparkdl.data.ml_vectors import TOO_LARGE, too_large_message


def vectors_to_arrays(vectors: Any, name: str, null_for_errors: bool = False) -> Any:
    """Return a column of dense and sparse vectors as arrays of float32; a null stays null.

    Args:
        vectors: the `Column`.
        name: the column's name in messages.
        null_for_errors: a vector with a finite number that float32 cannot represent becomes null;
            False fails the job.
    """
    from pyspark.ml.functions import vector_to_array

    arrays = vector_to_array(vectors, "float32")
    infinity = F.lit(float("inf")).cast("float")
    has_infinity = F.array_contains(arrays, infinity) | F.array_contains(arrays, -infinity)
    # Few rows have an infinity, so that few are looked at again.
    number = F.get(F.filter(vector_to_array(vectors), _is_too_large), 0)
    message = F.concat(F.lit(too_large_message(name, "")), number.cast("string"))
    error = F.lit(None) if null_for_errors else F.raise_error(message)
    checked = F.when(has_infinity & number.isNotNull(), error).otherwise(arrays)
    return F.when(vectors.isNotNull(), checked)


def _is_too_large(value: Any) -> Any:
    return (F.abs(value) >= TOO_LARGE) & (F.abs(value) < float("inf"))
