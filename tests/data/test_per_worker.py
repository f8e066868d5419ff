"""Rows for the workers of a parameter-server run: refused, with what to do instead."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import context, data
from sparkdl.errors import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture(params=["coordinator", "worker of a ring"])
def is_refused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """The process is a coordinator, or one that may do all that TensorFlow can."""
    import tensorflow as tf

    from sparkdl.data import per_worker

    is_coordinator = request.param == "coordinator"
    strategy = "parameter_server" if is_coordinator else "local"
    monkeypatch.setenv(context.VARIABLE, f'{{"strategy": "{strategy}"}}')
    # What the guard replaces is restored after the test.
    coordinator = tf.distribute.coordinator.ClusterCoordinator
    create = lambda self, dataset: "created"  # noqa: E731
    monkeypatch.setattr(coordinator, "create_per_worker_dataset", create)
    per_worker._guard_coordinator.cache_clear()
    return is_coordinator


def result_of(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as exc:  # TensorFlow wraps what is raised while it traces a function.
        assert "ConfigError" in repr(exc) or isinstance(exc, ConfigError)
        assert "cannot be read by its workers. Read the rows on the coordinator" in str(exc)
        return "refused"


def test_rows_of_readers_are_not_for_other_processes(is_refused: bool, tmp_path: Path) -> None:
    import tensorflow as tf

    pq.write_table(pa.table({"id": range(9)}), tmp_path / "p")

    def dataset() -> Any:
        return data.parquet(tmp_path, global_batch_size=4)

    mine = dataset()
    create = tf.distribute.coordinator.ClusterCoordinator.create_per_worker_dataset
    expected = "refused" if is_refused else "created"
    assert result_of(create, None, mine) == expected
    assert result_of(create, None, mine.map(lambda ids: ids + 1)) == expected
    assert create(None, tf.data.Dataset.range(3)) == "created"
    # In the function that makes a dataset of each worker, which TensorFlow traces.
    traced = result_of(tf.function(lambda: len(dataset().element_spec.shape)))
    assert traced == "refused" if is_refused else traced == 1
    assert sum(len(batch) for batch in mine) == 9, "here it can be read"
