"""Logs over all ranks, for what Keras returns in different shapes."""

from typing import Any

import numpy as np
import pytest

from sparkdl.distribute.keras_metrics import Results, logs_of_all


class OneRank:
    """A ring of one rank."""

    def allgather_object(self, value: Any) -> list[Any]:
        return [value]


@pytest.mark.parametrize("of_metric", [0.5, np.array([0.5], "float32")])
def test_a_metric_of_one_value_is_known_as_number_and_as_array(of_metric: Any) -> None:
    """Keras up to 3.10 returns an array from a step, and a number from the metrics."""
    results = Results({"f1": of_metric}, {"f1": np.array([0.75])})
    logs = logs_of_all(OneRank(), {"f1": np.array([0.5]), "own": 2.0}, results)  # type: ignore[arg-type]
    assert (logs["f1"].tolist(), logs["own"]) == ([0.75], 2.0)
