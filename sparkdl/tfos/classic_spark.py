"""Runs on the driver. Refuse Spark Connect, which lacks what the API of TensorFlowOnSpark needs."""

from typing import Any

from sparkdl.errors import ConfigError, PreflightError
from sparkdl.spark_ml import is_of_connect

__all__ = ["check_context", "check_session"]


def check_context(sc: Any, caller: str) -> None:
    """Validate that an argument is a SparkContext.

    Args:
        sc: the argument.
        caller: the name of the function that got it.

    Raises:
        PreflightError: if it is a session of Spark Connect.
        ConfigError: if it is something else.
    """
    _refuse_connect(sc, caller)
    if not hasattr(sc, "_jsc"):
        raise ConfigError(
            f"{caller} got sc={sc!r}; expected a SparkContext, such as spark.sparkContext of a "
            "SparkSession."
        )


def check_session(df: Any, caller: str) -> None:
    """Validate that a DataFrame is not one of Spark Connect.

    Args:
        df: the DataFrame.
        caller: the name of the function that got it.

    Raises:
        PreflightError: if it is.
    """
    _refuse_connect(df, caller)


def _refuse_connect(value: object, caller: str) -> None:
    if is_of_connect(value):
        raise PreflightError(
            f"{caller} cannot run through Spark Connect: the API of TensorFlowOnSpark works with a "
            "SparkContext and its RDDs, which Spark Connect does not have. Start the session "
            "without SPARK_REMOTE and builder.remote(), or use sparkdl.experiment, sparkdl.data "
            "and sparkdl.inference, which work through Spark Connect."
        )
