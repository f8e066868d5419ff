"""Runs on the driver. Refuse Spark Connect, which lacks what the API of TensorFlowOnSpark needs."""

from typing import Any

from sparkdl.errors import ConfigError, PreflightError
from sparkdl.spark.connect import is_of_connect

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
    check_session(sc, caller)
    if not hasattr(sc, "_jsc"):
        raise ConfigError(
            f"{caller} got sc={sc!r}; expected a SparkContext, such as spark.sparkContext of a "
            "SparkSession."
        )


def check_session(value: object, caller: str) -> None:
    """Validate that a DataFrame, or what stands for a SparkContext, is not one of Spark Connect.

    Args:
        value: the object.
        caller: the name of the function that got it.

    Raises:
        PreflightError: if it is.
    """
    if is_of_connect(value):
        raise PreflightError(
            f"{caller} cannot run through Spark Connect: the API of TensorFlowOnSpark works with a "
            "SparkContext and its RDDs, which Spark Connect does not have. Start the session "
            "without SPARK_REMOTE and builder.remote(), or use sparkdl.experiment, sparkdl.data "
            "and sparkdl.inference, which work through Spark Connect."
        )
