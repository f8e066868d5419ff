"""The handle of a cluster, without Spark."""

from typing import Any

import pytest

from sparkdl.tfos.cluster import handle
from sparkdl.tfos.cluster.handle import InputMode, TFCluster
from sparkdl.tfos.node.runtime import ClusterInfo
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import run_trials


class EndedContext:
    """A SparkContext whose JVM ends while rows are fed."""

    def addJobTag(self, tag: str) -> None:
        pass

    def removeJobTag(self, tag: str) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


def test_error_of_a_feed_is_not_hidden_by_the_end_of_spark(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> bool:
        raise ValueError("the rows cannot be read")

    monkeypatch.setattr(handle, "feed", fail)
    memory = InMemoryCluster(lambda attempt: returned(1.0))
    info = ClusterInfo(places=[("worker", 0)], default_fs="file://", working_dir="/")
    cluster = TFCluster(EndedContext(), memory, run_trials(root, memory), info, InputMode.SPARK)
    with pytest.raises(ValueError, match="the rows cannot be read"):
        cluster._feed([], 1, "input")
    assert not cluster._running_calls
