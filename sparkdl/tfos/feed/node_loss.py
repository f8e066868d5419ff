"""Runs in a Spark task. Explain why the node that a task was to feed has gone."""

import json
import socket
import time
from collections.abc import Sequence

from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.polling import Outages, poll_s
from sparkdl.files.rank_files import REMOTE_PATIENCE_S, Listing, RankFiles
from sparkdl.tfos.cluster.node_files import MET, OUTCOME, read_outcome

# The reason why a node has gone must be in the run directory within this many seconds. In a store
# or on a network filesystem, the driver gives a silent node up later.
EXPLANATION_TIMEOUT_S = 15.0
REMOTE_EXPLANATION_TIMEOUT_S = REMOTE_PATIENCE_S + 30.0
POLL_S = 0.05


class NodeFailedError(RuntimeError):
    """A node has failed, or the whole cluster has ended: no rows can be fed any more."""


def explain(run_path: str, trial: TrialPaths, rank: int | None) -> None:
    """Return if a node has gone because it accepts no more rows; otherwise raise the reason.

    Args:
        run_path: the run directory of the cluster.
        trial: the folder in which the nodes report.
        rank: the rank of the node; None for any node of this host.

    Raises:
        NodeFailedError: if a node of the cluster has failed.
        RuntimeError: if the node has gone for another reason, or there is no such node. The
            message contains the reason.
    """
    files = RankFiles(trial.ranks(0))
    timeout_s = files.patience_s(EXPLANATION_TIMEOUT_S, REMOTE_EXPLANATION_TIMEOUT_S)
    deadline = time.monotonic() + timeout_s
    outages = Outages("read the reason why a node has gone")
    outcomes: dict[int, Outcome] = {}  # Each is read once: a store charges for requests.
    while time.monotonic() < deadline:
        with outages.tolerated():
            if _explained(run_path, trial, rank, outcomes):
                return
        time.sleep(poll_s(files.url, POLL_S))
    raise RuntimeError(
        f"a node has gone, and no reason was reported within {timeout_s:g} s. See the logs in "
        f"{run_path}"
    )


def _explained(
    run_path: str, trial: TrialPaths, rank: int | None, outcomes: dict[int, Outcome]
) -> bool:
    """Return True if the node accepts no more rows, and False if no reason is known yet.

    Args:
        run_path, trial, rank: see `explain`.
        outcomes: the outcomes of nodes that were read before, by rank; new ones are added.

    Raises:
        RuntimeError: if the node has gone for another reason.
    """
    files = RankFiles(trial.ranks(0))
    listing = files.look()
    for ended_rank in sorted(listing.ranks(OUTCOME) - outcomes.keys()):
        outcomes[ended_rank] = read_outcome(files, ended_rank)
    for outcome in outcomes.values():
        if outcome.is_failure:
            error = outcome.error or outcome.status
            raise NodeFailedError(f"a node has failed: {outcome.who}: {error}")
    if _has_terminated(listing, rank):
        return True
    if not listing.names and not files.has_numbered(MET, 0):
        _raise_end_of_cluster(run_path, trial)
    if not listing.ranks("failed"):
        _explain_without_failure(trial, rank, list(outcomes.values()))
    return False


def _has_terminated(listing: Listing, rank: int | None) -> bool:
    """Return True if the node, or with None any node, accepts no more rows."""
    terminated = listing.ranks("terminated")
    return bool(terminated) if rank is None else rank in terminated


def _raise_end_of_cluster(run_path: str, trial: TrialPaths) -> None:
    reason = f"see the logs in {run_path}"
    if storage.exists(trial.error):
        reason = storage.read(trial.error).decode()
    raise NodeFailedError(f"the cluster has ended: {reason}")


def _explain_without_failure(
    trial: TrialPaths, rank: int | None, outcomes: Sequence[Outcome]
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
    ended = [(o, o.who) for o in outcomes if o.who and (rank is None or o.who.rank == rank)]
    for outcome, who in ended[:1]:
        if outcome.status is Status.STOPPED:
            raise RuntimeError(f"{who.role} was stopped: {outcome.error}")
        raise RuntimeError(
            f"{who.role} returned before all rows were fed to it. Take rows until should_stop() is "
            "True, or call terminate() of the DataFeed to stop earlier."
        )
