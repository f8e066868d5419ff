"""With smoke=True, the first trial shows that the program works before the others start."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sparkdl.errors import AllTrialsFailedError
from sparkdl.runner.again.resume import resume_run
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs import Run
from sparkdl.search import Float
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Space
from tests.helpers.in_memory_cluster import InMemoryCluster, raised, returned
from tests.helpers.loops import request_of

pytestmark = pytest.mark.usefixtures("quick_polls")


@contextmanager
def running(cluster: InMemoryCluster, root: str, **options: Any) -> Iterator[list[Run]]:
    """Run four trials in another thread."""
    runs: list[Run] = []
    request = request_of(4, root=root, smoke=True, **options)
    thread = threading.Thread(target=lambda: runs.append(execute(request, cluster)))
    thread.start()
    yield runs
    thread.join(120.0)
    assert not thread.is_alive()


def end_all(cluster: InMemoryCluster, numbers: range, metric: str | None = None) -> None:
    for number in numbers:
        cluster.attempt(number).end(returned(**{metric or "value": float(number)}))


@pytest.mark.parametrize("metric", [None, "accuracy"])
def test_the_others_start_when_the_first_trial_reports_the_metric(
    root: str, metric: str | None
) -> None:
    cluster = InMemoryCluster(num_slots=3)
    with running(cluster, root, metric=metric) as runs:
        first = cluster.attempt(0)
        if metric:
            first.report(0, loss=0.5)
            first.report(1, accuracy=float("nan"))
        threading.Event().wait(0.1)
        assert cluster.submitted == [0]
        first.report(2, **{metric or "loss": 0.5})
        cluster.await_submitted(3)
        # From now on, a failure of the first trial is that of any other.
        first.end(raised("ValueError: late"))
        end_all(cluster, range(1, 4), metric)
    assert runs[0].counts() == {"COMPLETE": 3, "FAILED": 1}


def test_the_others_start_when_the_first_trial_has_ended(root: str) -> None:
    cluster = InMemoryCluster(num_slots=3)
    with running(cluster, root) as runs:
        cluster.attempt(0)
        threading.Event().wait(0.1)
        assert cluster.submitted == [0]
        end_all(cluster, range(1))
        cluster.await_submitted(4)
        end_all(cluster, range(1, 4))
    assert runs[0].counts() == {"COMPLETE": 4}


@pytest.mark.parametrize("is_search", [False, True])
@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (lambda: raised("ValueError: no"), "ValueError: no"),
        (lambda: returned(acuracy=0.5), "acuracy"),
        (lambda: returned(0.5), "got value"),
    ],
)
def test_the_run_ends_with_the_reason_if_the_first_trial_fails(
    root: str, outcome: Callable[[], Any], why: str, is_search: bool
) -> None:
    cluster = InMemoryCluster(lambda attempt: outcome(), num_slots=3)
    space = Space.of({"x": Float(0.0, 1.0)})
    search = SearchSettings(space=space, num_trials=4) if is_search else None
    request = request_of(4, root=root, smoke=True, metric="accuracy", search=search)
    with pytest.raises(AllTrialsFailedError, match="the first trial failed, with smoke=True") as e:
        execute(request, cluster)
    assert why in str(e.value)
    assert cluster.submitted == [0]
    run = e.value.run
    # The corrected function begins with a trial alone again.
    cluster = InMemoryCluster(lambda attempt: returned(accuracy=1.0), num_slots=3)
    options = {"progress": False, "parallelism": 3}
    again = resume_run(run.path, lambda x: x, {}, frozenset({0}), None, options, cluster)
    assert again.counts() == {"COMPLETE": 4}
    assert cluster.submitted == [0, 1, 2, 3]
