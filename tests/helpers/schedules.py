"""Searches whose trials go on from checkpoints, on a cluster in memory."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkdl import checkpoints
from sparkdl.errors import TrialPruned
from sparkdl.runner.loop.trial_loop import TrialLoop
from sparkdl.runs import Run
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from sparkdl.training.reporter import Reporter, Rungs
from tests.helpers.in_memory_cluster import (
    Attempt,
    InMemoryCluster,
    Outcome,
    killed,
    pruned,
    returned,
)
from tests.helpers.loops import background, continued_loop, new_loop, request_of

__all__ = ["EPOCHS", "SCHEDULES", "Training", "loop_of", "resumed", "search_of"]

SPACE = Space.of({"x": Float(0.0, 1.0)})
EPOCHS = 8
ASHA: dict[str, Any] = {
    "algorithm": "random",
    "pruner": {"asha": {"promote": True, "reduction": 2, "max_reports": EPOCHS}},
}
HYPERBAND: dict[str, Any] = {
    "algorithm": "random",
    "pruner": {"hyperband": {"promote": True, "reduction": 2, "max_reports": EPOCHS}},
}
PBT: dict[str, Any] = {"algorithm": {"pbt": {"population": 4}}}
SCHEDULES = {
    "pbt": PBT,
    "asha": ASHA,
    "asha tpe": {**ASHA, "algorithm": "tpe"},
    "hyperband": HYPERBAND,
    "bohb": {**HYPERBAND, "algorithm": "bohb"},
}


class Training:
    """Trains in memory of the cluster, with the reporter and the checkpoints of real trials.

    Args:
        before_epoch: is called with the attempt and the epoch; may raise what ends the attempt.
        before_ask: the same, after the epoch was reported and its checkpoint committed.
    """

    def __init__(
        self,
        before_epoch: Callable[[Attempt, int], None] = lambda attempt, epoch: None,
        before_ask: Callable[[Attempt, int], None] = lambda attempt, epoch: None,
    ) -> None:
        self._before_epoch = before_epoch
        self._before_ask = before_ask
        self._lock = threading.Lock()
        # How often each epoch of each trial was trained.
        self.epochs: Counter[tuple[int, int]] = Counter()

    def __call__(self, attempt: Attempt) -> Outcome:
        spec = attempt.task.trial
        rungs = Rungs(spec.rungs, spec.reported, ["score"]) if spec.rungs else None
        folder = Path(attempt.paths.folder)
        reporter = Reporter(folder, "metrics.jsonl", True, attempt.attempt, rungs=rungs)
        newest = checkpoints.newest(attempt.paths.folder)
        first = 0 if newest is None else (newest.step or 0) + 1
        # An interval of a population is one epoch.
        is_interval = attempt.task.trial.init_from or (not spec.rungs and "pbt" in str(folder))
        try:
            for epoch in range(first, first + 1 if is_interval else EPOCHS):
                self._before_epoch(attempt, epoch)
                self._train_epoch(attempt, reporter, epoch)
        except TrialPruned:
            return pruned()
        return returned(score=spec.params["x"])

    def _train_epoch(self, attempt: Attempt, reporter: Reporter, epoch: int) -> None:
        if not attempt._end.empty():
            raise killed()
        with self._lock:
            self.epochs[attempt.number, epoch] += 1
        metrics = {"score": attempt.task.trial.params["x"] * (epoch + 1)}
        reporter.write(metrics, epoch)
        made = Path(attempt.paths.folder, f"made-{attempt.attempt}")
        made.mkdir(exist_ok=True)
        (made / "epoch").write_text(str(epoch))
        checkpoints.commit(str(made), attempt.paths.folder, epoch, metrics, attempt.attempt)
        self._before_ask(attempt, epoch)
        reporter.raise_if_paused(metrics, has_checkpoint=True)
        reporter.raise_if_stopped()


def search_of(name: str, num_trials: int = 12, **fields: Any) -> SearchSettings:
    return SearchSettings(space=SPACE, num_trials=num_trials, **{**SCHEDULES[name], **fields})


def loop_of(
    root: str, cluster: InMemoryCluster, name: str, num_trials: int = 12, **options: Any
) -> TrialLoop:
    request = request_of(
        search=search_of(name, num_trials), metric="score", seed=1, name=name, **options
    )
    return new_loop(f"{root}/{name.replace(' ', '-')}", cluster, request)


def resumed(path: str, cluster: InMemoryCluster, name: str, pruner: Any = None, **how: Any) -> Run:
    search = search_of(name, **({"pruner": pruner} if pruner else {}))
    loop = continued_loop(path, cluster, request_of(search=search, metric="score", seed=1), **how)
    with background(loop):
        pass
    return loop.run
