"""Metrics of drift where the data is unlike the training data in few or extreme values."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import wasserstein_distance

from sparkdl.monitoring.metrics import METRICS
from sparkdl.profiles import FeatureBins
from tests.helpers.logs import PROFILE

TRAIN = np.arange(1000) / 1000


@pytest.mark.parametrize("move", [0.0, 0.5, 3.0, -40.0, 1e6])
def test_wasserstein_grows_beyond_the_training_data(move: float) -> None:
    feature = PROFILE["features"]["age"]
    later = TRAIN + move
    found = METRICS["wasserstein"].value(
        feature, FeatureBins.from_fields(feature).count(pa.array(later))
    )
    assert found == pytest.approx(wasserstein_distance(TRAIN, later) / TRAIN.std(), rel=0.01)


def test_wasserstein_of_values_that_are_not_finite_is_a_number() -> None:
    feature = PROFILE["features"]["age"]
    later = pa.array([*TRAIN, np.inf, -np.inf, 1.7e308])
    found = METRICS["wasserstein"].value(feature, FeatureBins.from_fields(feature).count(later))
    assert 0.1 < found < np.inf


@pytest.mark.parametrize(
    ("later", "is_drift"),
    [
        (["a"] * 500 + ["b"] * 500, False),
        (["a"] * 500 + ["b"] * 499 + ["a typo"], False),
        (["a"] * 4 + ["b"] * 3 + ["a typo"], False),
        (["a"] * 480 + ["b"] * 480 + ["new"] * 40, True),
        (["new"] * 1000, True),
        (["a"] * 600 + ["b"] * 400, True),
    ],
)
def test_a_single_new_text_is_no_drift_and_many_are(later: list[str], is_drift: bool) -> None:
    feature: dict[str, Any] = PROFILE["features"]["word"]
    metric = METRICS["chi_squared"]
    value = metric.value(feature, FeatureBins.from_fields(feature).count(pa.array(later)))
    assert metric.has_drifted(value, metric.threshold) == is_drift
