"""Checks of every test of predictions, and what they share."""

import glob
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.helpers.processes import eventually


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Check that downloaded and unpacked copies of models are removed."""
    pattern = os.path.join(tempfile.gettempdir(), "sparkdl-model-*")
    before = set(glob.glob(pattern))
    yield
    # After one task has failed, other tasks may still be loading the model.
    assert eventually(lambda: set(glob.glob(pattern)) <= before)


@pytest.fixture
def tasks(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the tasks that predict passes to Spark, in the order of the calls."""
    tasks: list[Any] = []
    dataframe_type = type(spark.range(1))
    monkeypatch.setattr(dataframe_type, "mapInArrow", lambda self, task, schema: tasks.append(task))
    return tasks
