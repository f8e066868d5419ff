"""Runs in a Spark task. Explain why the node that a task was to feed has gone."""

import json
import socket
import time
from typing import Any

from sparkdl import storage
from sparkdl.cluster.gang.node_task import read_outcome
from sparkdl.cluster.outcome import says_failure
from sparkdl.polling import poll_s
from sparkdl.runs.layout import TrialPaths

__all__ = ["explain"]

# The reason why a node has gone must be in the run directory within this many seconds.
EXPLANATION_TIMEOUT_S = 15.0
POLL_S = 0.05


def explain(run_path: str, trial: TrialPaths, rank: int | None) -> None:
    """Return if a node has gone because it accepts no more rows; otherwise raise the reason.

    Args:
        run_path: the run directory of the cluster.
        trial: the folder in which the nodes report.
        rank: the rank of the node; None for any node of this host.

    Raises:
        RuntimeError: if the node has gone for another reason, or there is no such node. The
            message contains the reason.
    """
    folder = trial.ranks(0)
    deadline = time.monotonic() + EXPLANATION_TIMEOUT_S
    while time.monotonic() < deadline:
        names = storage.names(folder)
        rows = [name for name in names if name.endswith(".row")]
        outcomes = [read_outcome(storage.join(folder, name)) for name in rows]
        for outcome in filter(says_failure, outcomes):
            node = f"{outcome['role']} (rank {outcome['rank']}) on host {outcome['host']}"
            raise RuntimeError(f"a node has failed: {node}: {outcome.get('error', outcome)}")
        if any(name.endswith(".terminated") for name in names if _is_of_rank(name, rank)):
            return
        if not names:
            _raise_end_of_cluster(run_path, trial)
        if not any(name.endswith(".failed") for name in names):
            _explain_without_failure(trial, rank, outcomes)
        time.sleep(poll_s(folder, POLL_S))
    raise RuntimeError(
        f"a node has gone, and no reason was reported within {EXPLANATION_TIMEOUT_S:g} s. See the "
        f"logs in {run_path}"
    )


def _is_of_rank(name: str, rank: int | None) -> bool:
    return rank is None or name.partition(".")[0] == str(rank)


def _raise_end_of_cluster(run_path: str, trial: TrialPaths) -> None:
    reason = f"see the logs in {run_path}"
    if storage.exists(trial.error):
        reason = storage.read(trial.error).decode()
    raise RuntimeError(f"the cluster has ended: {reason}")


def _explain_without_failure(
    trial: TrialPaths, rank: int | None, outcomes: list[dict[str, Any]]
) -> None:
    """Raise if this host has no node, or if the node has returned or was stopped."""
    ranks = json.loads(storage.read(trial.attempt(0)))["ranks"]
    hosts = {name: place["host"] for name, place in ranks.items()}
    this_host = socket.gethostname()
    if rank is None and this_host not in hosts.values():
        nodes = ", ".join(f"{name} on {host}" for name, host in hosts.items())
        raise RuntimeError(
            f"host {this_host} runs no node that this task could feed; the nodes are {nodes}. "
            "Set num_executors to the number of executors of the Spark application."
        )
    ended = [o for o in outcomes if rank is None or o["rank"] == rank]
    if ended and "stopped" in ended[0]:
        raise RuntimeError(f"{ended[0]['role']} was stopped: {ended[0]['stopped']}")
    if ended:
        raise RuntimeError(
            f"{ended[0]['role']} returned before all rows were fed to it. Take rows until "
            "should_stop() is True, or call terminate() of the DataFeed to stop earlier."
        )
