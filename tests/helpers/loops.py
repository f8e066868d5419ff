"""Run requests on a cluster in memory."""

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparkdl.cluster.plan import Role
from sparkdl.cluster.program.packaging import Program, pack
from sparkdl.files.layout import RunPaths
from sparkdl.options import Options
from sparkdl.runner.control.run_handle import RunHandle
from sparkdl.runner.display.progress import Progress
from sparkdl.runner.loop.assembly import make_loop
from sparkdl.runner.loop.observers import RunObserver
from sparkdl.runner.loop.trial_loop import TrialLoop
from sparkdl.runner.pipeline.begin import make_source
from sparkdl.runner.pipeline.execute import description_of
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runner.request import Request
from sparkdl.runs import Run
from sparkdl.runs.journal import read_journal
from sparkdl.runs.opening import OpenRun, continue_run, open_run
from sparkdl.search.settings import SearchSettings
from tests.helpers.in_memory_cluster import InMemoryCluster

__all__ = [
    "background",
    "continued_loop",
    "events",
    "journal_states",
    "new_loop",
    "request_of",
    "run_trials",
]


def train(x: float = 0.0) -> float:
    """The function of all requests; a cluster in memory never calls it."""
    return x


@functools.cache
def packed() -> Program:
    return pack(train)


def request_of(
    num_trials: int = 1,
    *,
    kind: str = "launch",
    roles: Sequence[Role] = (Role(name="worker", count=1),),
    search: SearchSettings | None = None,
    objectives: dict[str, str] | None = None,
    is_gang: bool = False,
    **options: Any,
) -> Request:
    """A request for trials with x = 0, 1, 2 ..., or for a search."""
    return Request(
        "search" if search else kind,
        tuple(roles),
        train,
        Options.parse({"progress": False, "run_id": "run", **options}),
        None if search else [{"x": float(i)} for i in range(num_trials)],
        search,
        is_gang=is_gang or kind == "allreduce",
        is_distributed=kind == "allreduce",
        objectives=objectives or {},
    )


def new_loop(
    root: str, cluster: InMemoryCluster, request: Request, observers: Sequence[RunObserver] = ()
) -> TrialLoop:
    """A loop over a new run directory."""
    prepared = prepare(request, packed(), cluster)
    return _loop(prepared, open_run(root, description_of(prepared), "error"), observers)


def continued_loop(path: str, cluster: InMemoryCluster, request: Request, **how: Any) -> TrialLoop:
    """A loop over the directory of a run that was interrupted."""
    return _loop(prepare(request, packed(), cluster), continue_run(path, **how))


def _loop(
    prepared: PreparedRun, opened: OpenRun, observers: Sequence[RunObserver] = ()
) -> TrialLoop:
    source = make_source(prepared.request, opened, lambda text: None)
    progress = Progress(opened.run, prepared.plan, is_shown=False)
    return make_loop(prepared, opened, source, progress, observers)


def run_trials(root: str, cluster: InMemoryCluster, num_trials: int = 1, **options: Any) -> Run:
    """Run trials to their end; the error of a run in which nothing completed is not raised."""
    loop = new_loop(root, cluster, request_of(num_trials, **options))
    with background(loop):
        pass
    return loop.run


@contextmanager
def background(loop: TrialLoop) -> Iterator[TrialLoop]:
    """Run a loop in a thread; at the end wait for it."""
    handle = RunHandle(loop)
    handle.start()
    try:
        yield loop
    except BaseException:
        handle.cancel(None)
        raise
    finally:
        thread = handle._thread
        assert isinstance(thread, threading.Thread)
        thread.join(120.0)
        if thread.is_alive():
            handle.cancel(None)
            loop.submitted.cancel()  # Whatever is wrong with the loop, its threads must end.
            raise AssertionError("the loop has not ended")


def events(run: Run | str, kind: str | None = None) -> list[dict[str, Any]]:
    """The events of a journal, of one kind."""
    path = run.path if isinstance(run, Run) else run
    journal = [event.to_dict() for event in read_journal(RunPaths(path).journal)]
    return [event for event in journal if kind in (None, event["event"])]


def journal_states(run: Run | str, number: int) -> list[str]:
    """The states that a trial went through."""
    return [e["state"] for e in events(run, "trial") if e["number"] == number]
