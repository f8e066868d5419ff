"""Runs on the driver. Compare the data of a run with a reference before its first trial."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import ConfigError, DriftError, named_type
from sparkdl.monitoring.drift import DEFAULT_METRICS, MIN_ROWS, Thresholds, drift

_logger = logging.getLogger("sparkdl.monitoring")


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A reference for the data of a run: a value for the option `expect`.

    Before the first trial, the rows of `data=` are compared with the reference, see
    `monitoring.drift`. Spark reads them once for it. If a feature has drifted, the run is refused,
    and nothing is written.

    Args:
        reference: a version of a model, its name such as `loans@stable`, a profile or a DataFrame.
        dataset: the name of the DataFrame to compare, if `data=` has several; by default `train`.
        metrics: the distances, as for `monitoring.drift`.
        columns: the features to compare; by default all of the reference.
        thresholds: values beyond which a feature has drifted, as for `monitoring.drift`.
        min_rows: with fewer rows, no feature has drifted.
        warn: begin the run in any case, and log a warning with the table.

    Example:
        >>> from sparkdl import experiment, monitoring
        >>> from pyspark.sql import SparkSession
        >>> spark = SparkSession.builder.getOrCreate()
        >>> before = spark.range(1000).selectExpr("id % 7 as size")
        >>> now = spark.range(1000).selectExpr("id % 7 + 3 as size")
        >>> expected = monitoring.Expectation(reference=before)
        >>> experiment.launch(lambda: 0.9, data=now, expect=expected)
        Traceback (most recent call last):
        ...
        sparkdl.errors.DriftError: the data is not as expected, and no trial was started...
    """

    reference: Any
    dataset: str | None = None
    metrics: Sequence[str] = DEFAULT_METRICS
    columns: Sequence[str] | None = None
    thresholds: Thresholds | None = None
    min_rows: int = MIN_ROWS
    warn: bool = False

    def check(self, data: Any) -> None:
        """Compare the data of a run with the reference.

        Args:
            data: the value of `data=`.

        Raises:
            ConfigError: if there is no such DataFrame, or the comparison is not possible.
            DriftError: if a feature has drifted, unless `warn` is set.
        """
        found = drift(
            self.reference,
            self._frame(data),
            metrics=self.metrics,
            columns=self.columns,
            thresholds=self.thresholds,
            min_rows=self.min_rows,
        )
        if not found.drifted:
            return
        if self.warn:
            _logger.warning("the data of the run is not as expected.\n%r", found)
            return
        raise DriftError(
            f"the data is not as expected, and no trial was started.\n{found!r}\nCorrect the data, "
            "expect a newer reference, or pass warn=True to monitoring.Expectation to train "
            "nevertheless.",
            found,
        )

    def _frame(self, data: Any) -> Any:
        frame, name = data, "data"
        if isinstance(data, Mapping):
            name = self.dataset or (next(iter(data)) if len(data) == 1 else "train")
            if name not in data:
                raise ConfigError(
                    f"expect= is for dataset {name!r}, and data= has {', '.join(map(repr, data))}. "
                    "Pass dataset= to monitoring.Expectation."
                )
            frame = data[name]
        if not hasattr(frame, "select"):
            raise ConfigError(
                f"{name} is {named_type(frame)}; expect= can compare DataFrames of Spark only."
            )
        return frame
