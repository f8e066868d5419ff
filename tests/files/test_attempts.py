"""The newest attempt at a trial writes, and no other."""

import json
import threading
from pathlib import Path

import pytest

from sparkdl.files import attempts, polling, storage
from sparkdl.files.attempts import Fence, SupersededError, claim


@pytest.fixture(params=["local", "memory"])
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path}"


def test_each_attempt_takes_the_next_number(trial: str) -> None:
    assert attempts.newest(trial) == -1
    assert claim(trial, "app", 0, 5) == 0
    assert not attempts.is_superseded(trial, 0)
    assert claim(trial, "app", 0, 6) == 1  # Spark has repeated the task.
    assert claim(trial, "app", 2, 9) == 2  # The driver has submitted the trial again.
    assert claim(trial, "later app", 2, 0) == 3
    assert attempts.newest(trial) == 3
    assert [attempts.is_superseded(trial, number) for number in range(4)] == [True] * 3 + [False]
    with pytest.raises(SupersededError, match="as attempt 2; this attempt ends"):
        attempts.check(trial, 1)


def test_a_task_that_wakes_up_late_takes_no_number(trial: str) -> None:
    claim(trial, "app", 0, 6)
    with pytest.raises(SupersededError):
        claim(trial, "app", 0, 5)
    claim(trial, "app", 1, 8)
    with pytest.raises(SupersededError):
        claim(trial, "app", 0, 9)
    assert attempts.newest(trial) == 1


def test_a_claim_that_the_store_has_written_in_spite_of_an_error_is_not_lost(
    trial: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, errors = storage.create, [OSError("the answer was lost")]

    def write_and_fail(url: str, data: str) -> None:
        create(url, data)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(storage, "create", write_and_fail)
    monkeypatch.setattr(polling.time, "sleep", lambda _: None)
    assert claim(trial, "app", 0, 5) == 0
    assert claim(trial, "app", 0, 6) == 1


def test_of_two_tasks_at_once_one_takes_a_number(tmp_path: Path) -> None:
    """Also where the list of files is out of date."""
    taken: list[int] = []

    def run(task: int) -> None:
        taken.append(claim(str(tmp_path), f"app {task}", 0, 0))

    threads = [threading.Thread(target=run, args=(task,)) for task in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(8))


def test_a_stale_list_of_files_does_not_give_a_number_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(str(tmp_path), "app", 0, 1)
    monkeypatch.setattr(storage, "list_names", lambda url: [])
    assert claim(str(tmp_path), "app", 0, 2) == 1
    with pytest.raises(SupersededError):
        claim(str(tmp_path), "app", 0, 1)


def test_the_number_of_a_gang_is_given(trial: str) -> None:
    attempts.take(trial, 0)
    attempts.take(trial, 0)
    fence = Fence(trial, 0, interval_s=0.0)
    fence.check()
    attempts.take(trial, 1)
    with pytest.raises(SupersededError):
        fence.check()
    assert fence.is_closed


def test_a_fence_looks_now_and_then(tmp_path: Path) -> None:
    fence = Fence(str(tmp_path), 0, interval_s=60.0)
    assert not fence.look()
    attempts.take(str(tmp_path), 1)
    assert not fence.look()
    content = json.loads((tmp_path / "attempts" / "1.claim").read_text())
    assert content["submission"] == 1


def test_an_attempt_that_was_lost_before_it_began_has_a_start(tmp_path: Path) -> None:
    """The driver waits for the start of one attempt after the other."""
    trial = str(tmp_path)
    claim(trial, "app", 0, 5)
    assert claim(trial, "app", 0, 6) == 1
    assert (tmp_path / "attempts/0.json").read_text() == '{"attempt": 0}'
    (tmp_path / "attempts/1.json").write_text("its own")
    assert claim(trial, "app", 0, 7) == 2
    assert (tmp_path / "attempts/1.json").read_text() == "its own"
