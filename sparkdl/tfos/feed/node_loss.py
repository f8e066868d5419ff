"""Runs in a Spark task. Why the node that a task was to feed has gone."""

import json
import socket
import time

from sparkdl import storage
from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.rank_files import Listing, RankFiles
from sparkdl.runs.layout import TrialPaths
from sparkdl.tfos.cluster.node_files import OUTCOME, read_outcome

__all__ = ["explain"]

# So long after a node has gone it must be known why.
GONE_S = 15.0
LOOK_S = 0.05


def explain(run_path: str, trial: TrialPaths, rank: int | None) -> None:
    """Return if a node has gone that wanted no more rows.

    Args:
        run_path, trial: the cluster's run directory, and where its nodes tell how it goes.
        rank: the node's; None for any of this host.

    Raises:
        RuntimeError: it went for another reason, or there was none; the text says why.
    """
    folder = trial.ranks(0)
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        names = storage.names(folder)
        ended = Listing(frozenset(names)).ranks(OUTCOME)
        outcomes = [read_outcome(RankFiles(folder), ended_rank) for ended_rank in sorted(ended)]
        for outcome in outcomes:
            if outcome.is_failure:
                error = outcome.error or outcome.status
                raise RuntimeError(f"a node has failed: {outcome.who}: {error}")
        if any(name.endswith(".terminated") for name in names if _is_of(name, rank)):
            return
        if not names:
            _explain_end(run_path, trial)
        if not any(name.endswith(".failed") for name in names):
            _explain_peaceful(trial, rank, outcomes)
        time.sleep(LOOK_S)
    raise RuntimeError(f"a node has gone, and nothing says why: see {run_path}")


def _is_of(name: str, rank: int | None) -> bool:
    return rank is None or name.partition(".")[0] == str(rank)


def _explain_end(run_path: str, trial: TrialPaths) -> None:
    """Say how the whole cluster has ended."""
    why = f"everything is in {run_path}"
    if storage.exists(trial.error):
        why = storage.read(trial.error).decode()
    raise RuntimeError(f"the cluster has ended: {why}")


def _explain_peaceful(trial: TrialPaths, rank: int | None, outcomes: list[Outcome]) -> None:
    ranks = json.loads(storage.read(trial.attempt(0)))["ranks"]
    hosts = {name: where["host"] for name, where in ranks.items()}
    host = socket.gethostname()
    if rank is None and host not in hosts.values():
        places = ", ".join(f"{name} on {where}" for name, where in hosts.items())
        raise RuntimeError(
            f"no node runs on host {host} that this task could feed: the nodes are {places}. "
            "Let num_executors be the number of the application's executors."
        )
    done = [(o, o.who) for o in outcomes if o.who and (rank is None or o.who.rank == rank)]
    for outcome, who in done[:1]:
        if outcome.status is Status.STOPPED:
            raise RuntimeError(f"{who.role} has been stopped: {outcome.error}")
        raise RuntimeError(
            f"{who.role} returned before all rows were fed to it. Let its function take "
            "rows until should_stop(), or call terminate() of its DataFeed to end earlier."
        )
