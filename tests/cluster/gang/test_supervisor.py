"""The reports of a rank to its gang, on a store that fails."""

import functools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.cluster.gang import task as gang_task
from sparkdl.cluster.gang.supervisor import PEER_FAILED, Supervisor
from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.spark_errors import JobEnd, job_failed
from sparkdl.files import polling, storage
from sparkdl.files.rank_files import RankFiles
from tests.helpers.processes import eventually

PLAN = Plan(kind="parameter_server", roles=(Role(name="worker", count=3),), is_gang=True)
RAISED = SimpleNamespace(outcome=Outcome(status=Status.FAILED, error="ValueError: mine"))


class Store:
    """Fail the first writes of each file whose name ends with `.failed`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_failures: int) -> None:
        self.num_failures = num_failures
        self._write = storage.write
        monkeypatch.setattr(storage, "write", self.write)
        monkeypatch.setattr(polling, "pause_s", lambda num_failures: 0.01)
        monkeypatch.setattr(polling, "RETRY_S", 0.2)

    def write(self, url: str, data: bytes | str) -> None:
        if url.endswith(".failed") and self.num_failures:
            self.num_failures -= 1
            raise OSError("the store is down")
        self._write(url, data)


def supervisor_of(folder: Path) -> Supervisor:
    return Supervisor(PLAN, 0, RankFiles(str(folder)), folder)


def test_a_failure_that_could_not_be_written_is_written_at_a_later_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(monkeypatch, 1)
    supervisor = supervisor_of(tmp_path)
    supervisor._poll_s = 0.0
    process: Any = RAISED
    supervisor.watch(process)
    assert not (tmp_path / "0.failed").exists()
    supervisor.watch(process)
    assert (tmp_path / "0.failed").exists()


def test_an_end_is_reported_again_until_the_store_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(monkeypatch, 2)
    supervisor = supervisor_of(tmp_path)
    gang_task._tell(functools.partial(supervisor.post, "failed"), "worker 0: ValueError: mine")
    assert (tmp_path / "0.failed").exists()


def test_an_end_that_cannot_be_reported_is_raised_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark then ends the other ranks, which would wait without limit."""
    Store(monkeypatch, 1000)
    supervisor = supervisor_of(tmp_path)
    with pytest.raises(OSError, match=r"could not tell.*the store is down.*ValueError: mine"):
        gang_task._tell(functools.partial(supervisor.post, "failed"), "worker 0: ValueError: mine")


def test_a_process_id_that_cannot_be_written_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(url: str, data: bytes | str) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(storage, "write", full)
    supervisor_of(tmp_path).began(17)


def test_ranks_that_a_listing_lacks_are_not_named_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RankFiles(str(tmp_path)).post(1, "joining")
    monkeypatch.setattr(storage, "list_names", lambda url: [])
    assert supervisor_of(tmp_path)._absent() == "worker 2"


def test_ranks_into_which_a_gang_may_grow_are_not_named_as_absent(tmp_path: Path) -> None:
    roles = (Role(name="worker", count=4, min_count=2, in_ring=True),)
    plan = Plan(kind="allreduce", roles=roles, is_gang=True, elastic=True)
    assert Supervisor(plan, 0, RankFiles(str(tmp_path)), tmp_path)._absent() == "worker 1"


def test_a_rank_that_has_joined_and_returned_is_not_waited_for(tmp_path: Path) -> None:
    """The others may still wait for a third rank, which comes late."""
    (tmp_path / "0.joining").touch()
    process: Any = SimpleNamespace(outcome=None, started=time.monotonic())
    waiting, returned = (
        supervisor_of(tmp_path),
        Supervisor(PLAN, 1, RankFiles(str(tmp_path)), tmp_path),
    )
    waiting._poll_s = 0.0
    (tmp_path / "1.joining").touch()
    returned.post("done")
    assert waiting.watch(process) is None
    RankFiles(str(tmp_path)).post(2, "done")
    assert "worker 2 returned without a call" in (waiting.watch(process) or "")


def test_no_rank_is_said_to_have_returned_while_the_store_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0.joining").touch()
    RankFiles(str(tmp_path)).post(1, "done")
    process: Any = SimpleNamespace(outcome=None, started=time.monotonic())
    supervisor = supervisor_of(tmp_path)
    supervisor._poll_s = 0.0

    def down(*_: Any) -> bool:
        raise OSError("the store is down")

    with monkeypatch.context() as patch:
        patch.setattr(RankFiles, "has_posted", down)
        assert supervisor.watch(process) is None
    assert "worker 1 returned without a call" in (supervisor.watch(process) or "")


def test_a_rank_whose_peer_has_failed_is_ended_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl.cluster.gang.supervisor.FOLLOW_UP_GRACE_S", 0.2)
    process: Any = SimpleNamespace(outcome=None, started=time.monotonic())
    supervisor = supervisor_of(tmp_path)
    supervisor._poll_s = 0.0
    assert supervisor.watch(process) is None
    RankFiles(str(tmp_path)).post(1, "failed")
    assert supervisor.watch(process) is None, "it may still report an error of its own"
    assert eventually(lambda: supervisor.watch(process) == PEER_FAILED)


def test_a_store_that_fails_while_ranks_meet_is_no_fault_of_the_function() -> None:
    def meet(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    policy: Any = SimpleNamespace(meet=meet)
    task: Any = SimpleNamespace(plan=PLAN)
    with pytest.raises(RuntimeError) as raised:
        gang_task.run_rank(task, policy, PLAN.members[1])
    assert job_failed(raised.value).end is JobEnd.LOST
    assert "worker 1: [Errno 5] Input/output error" in str(job_failed(raised.value))
