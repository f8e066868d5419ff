"""Calls that wait for a remote store are made beside the loop of the run."""

import threading
from pathlib import Path

from sparkdl.files import storage
from sparkdl.runner.display.store_calls import NUM_THREADS, StoreCalls
from sparkdl.runner.pipeline.execute import execute
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import request_of
from tests.helpers.processes import eventually


def test_call_on_a_local_disk_is_made_at_once(tmp_path: Path) -> None:
    made: list[threading.Thread] = []
    StoreCalls(str(tmp_path)).call(lambda: made.append(threading.current_thread()))
    assert made == [threading.current_thread()]


def test_calls_to_a_store_run_together_and_leave_no_thread() -> None:
    calls, may_end = StoreCalls("memory://runs"), threading.Event()
    together = threading.Barrier(NUM_THREADS, timeout=120)
    made: list[int] = []

    def ask(number: int) -> None:
        together.wait()
        may_end.wait(120)
        made.append(number)

    for number in range(NUM_THREADS):
        calls.call(lambda number=number: ask(number))
    assert made == []  # The caller does not wait.
    may_end.set()
    calls.wait()
    assert sorted(made) == [*range(NUM_THREADS)]
    assert eventually(lambda: "sparkdl-store" not in {t.name for t in threading.enumerate()})


def test_calls_go_on_after_a_wait() -> None:
    calls, made = StoreCalls("memory://runs"), []
    for number in range(2):
        calls.call(lambda number=number: made.append(number))
        calls.wait()
    assert made == [0, 1]


def test_every_trial_of_a_search_in_a_store_has_its_events_at_the_end(
    counting_store: CountingStore,  # noqa: F811
) -> None:
    space = Space.of({"x": Float(0.0, 1.0)})
    search = SearchSettings(space=space, algorithm="random", num_trials=40)
    cluster = InMemoryCluster(lambda attempt: returned(attempt.task.trial.params["x"]))
    run = execute(request_of(search=search, root=counting_store.url("runs")), cluster)
    assert len(run.trials) == 40
    for trial in run.trials:
        names = storage.list_names(f"{trial.path}/tensorboard")
        assert [name.endswith(".sparkdl.hparams") for name in names] == [True]
