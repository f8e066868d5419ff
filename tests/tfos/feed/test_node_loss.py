"""The reason why a node has gone, as a task that feeds it finds it in the run directory."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.outcome import Outcome, RankInfo, Status
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.rank_files import RankFiles
from sparkdl.tfos.cluster.node_files import MET, post_outcome
from sparkdl.tfos.feed import node_loss


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrialPaths:
    monkeypatch.setattr(node_loss, "EXPLANATION_TIMEOUT_S", 0.5)
    paths = TrialPaths(str(tmp_path))
    storage.write(paths.attempt(0), '{"ranks": {}}')
    RankFiles(paths.ranks(0)).post_numbered(MET, 0)
    return paths


def ended(rank: int, status: Status, error: str | None = None) -> Outcome:
    who = RankInfo(rank=rank, role=f"worker {rank}", host="a")
    return Outcome(status=status, error=error, who=who)


def test_outcomes_are_read_once_and_a_store_may_fail_for_a_moment(
    trial: TrialPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RankFiles(trial.ranks(0))
    post_outcome(files, 0, ended(0, Status.RETURNED), b"")
    read, reads = storage.read, Counter[str]()

    def counted(url: str, *args: Any) -> bytes:
        reads[url.rsplit("/", 1)[-1]] += 1
        if reads.total() == 2:
            raise OSError("the store is down")
        return read(url, *args)

    monkeypatch.setattr(storage, "read", counted)
    with pytest.raises(RuntimeError, match="no reason was reported within"):
        node_loss.explain("run", trial, 1)
    assert reads["0.row"] == 1


def test_a_cluster_that_no_listing_shows_yet_has_not_ended(
    trial: TrialPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "list_names", lambda url: [])
    with pytest.raises(RuntimeError, match="no reason was reported within"):
        node_loss.explain("run", trial, 1)
    monkeypatch.undo()
    storage.remove(trial.ranks(0))
    with pytest.raises(RuntimeError, match="the cluster has ended"):
        node_loss.explain("run", trial, 1)


def test_the_reason_may_come_late_on_a_network_filesystem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver gives a silent node up after `REMOTE_PATIENCE_S`; the reason comes after that."""
    assert node_loss.REMOTE_EXPLANATION_TIMEOUT_S > node_loss.REMOTE_PATIENCE_S
