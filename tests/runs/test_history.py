"""Lists of runs are quick, and no damaged or crashed run hides the others."""

import json
import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sparkdl.errors import RunDamagedError
from sparkdl.experiment.newest import newest_run
from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.history import history, load
from sparkdl.runs.opening import OpenRun, RunDescription, continue_run, open_run
from sparkdl.runs.states import RunState, TrialState
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.stored_runs import ended, shift


def new_run(root: str, run_id: str, number: int = 2) -> OpenRun:
    description = RunDescription(
        id=run_id,
        name="nightly",
        kind="launch",
        description=None,
        metric="accuracy",
        direction="max",
        params=[{"lr": 0.1 * n} for n in range(number)],
        seed=3,
        secrets=(),
        facts={},
    )
    return open_run(root, description, "error")


def ended_run(root: str, run_id: str) -> OpenRun:
    opened = new_run(root, run_id)
    opened.record(TrialChanged(number=0, state=TrialState.COMPLETE, value=0.75, attempt=0))
    opened.close(RunEnded(state=RunState.COMPLETE, duration_s=2.0))
    return opened


def test_a_run_that_has_not_ended_lasted_until_its_last_event(root: str) -> None:
    opened = new_run(root, "dead")
    begun_s = time.time()
    for state, after_s in ((TrialState.RUNNING, 1.0), (TrialState.COMPLETE, 90.0)):
        event = TrialChanged(number=0, state=state, attempt=0, time=begun_s + after_s)
        opened.record(event)
    opened.journal.flush(5.0)
    assert history(root)[["state", "seconds"]].values.tolist() == [
        ["RUNNING", pytest.approx(90.0, abs=1.0)]
    ]
    opened.owner.release()
    assert load(opened.run.path).duration_s == pytest.approx(90.0, abs=1.0)
    assert history(root)["seconds"][0] == pytest.approx(90.0, abs=1.0)
    # A driver that resumes the run counts the session once.
    again = continue_run(opened.run.path)
    assert again.run.duration_s == pytest.approx(90.0, abs=1.0)
    again.owner.release()


def test_the_newest_run_is_none_that_was_deleted(root: str) -> None:
    ended_run(root, "one")
    ended_run(root, "torn")
    # Their times of creation are the same, and the deletion of the newest run was interrupted.
    shutil.copytree(f"{root}/one", f"{root}/.two.deleted")
    for name, year in (("one", 2026), ("torn", 2026), (".two.deleted", 2027)):
        file = Path(root, name, "run.json")
        content = json.loads(file.read_bytes())
        file.write_text(json.dumps({**content, "created": f"{year}-11-22T10:00:00+0000"}))
    shutil.rmtree(f"{root}/torn/journal")
    assert newest_run(root) == f"{root}/one"


def elsewhere(opened: OpenRun, age_s: float) -> None:
    """Let the run look as if a driver on another host had it, with a heartbeat of this age."""
    opened.owner.release()
    folder = Path(opened.paths.owners)
    folder.joinpath("1.ended").unlink()
    folder.joinpath("1.json").write_text('{"host": "elsewhere", "pid": 1, "started": 1}')
    beat = {"beat": 7, "time": time.time() - age_s}
    folder.joinpath("1.beat").write_text(json.dumps(beat))


def test_a_thousand_runs_are_listed_from_their_summaries_alone(root: str, monkeypatch: Any) -> None:
    run = ended_run(root, "first").run
    summary = Path(run.path, "summary.json").read_bytes()
    for number in range(1000):
        os.mkdir(f"{root}/run-{number}")
        row = {**from_json(summary), "run": f"run-{number}"}
        Path(root, f"run-{number}", "summary.json").write_text(json.dumps(row))

    def refuse(path: str) -> Any:
        raise AssertionError(f"{path} is read, which takes longer")

    for name in ("read_description", "read_events", "_silence_s"):
        monkeypatch.setattr(f"sparkdl.runs.history.{name}", refuse)
    frame = history(root)
    assert len(frame) == 1001
    assert frame["best"].tolist() == [0.75] * 1001


def test_rows_are_the_same_with_and_without_a_summary(root: str) -> None:
    run = ended_run(root, "one").run
    row = history(root).drop(columns="heartbeat_s").iloc[0].to_dict()
    assert {k: row[k] for k in ("state", "trials", "COMPLETE", "FAILED", "best", "seconds")} == {
        "state": "COMPLETE",
        "trials": 2,
        "COMPLETE": 1,
        "FAILED": 0,
        "best": 0.75,
        "seconds": 2.0,
    }
    Path(run.path, "summary.json").unlink()
    assert history(root).drop(columns="heartbeat_s").iloc[0].to_dict() == row


def test_summary_of_a_run_that_goes_on_is_gone(root: str) -> None:
    run = ended_run(root, "one").run
    opened = continue_run(run.path, reopen=True)
    assert history(root)["state"].tolist() == ["RUNNING"]
    opened.close(RunEnded(state=RunState.FAILED))
    assert history(root)["state"].tolist() == ["FAILED"]


def test_crashed_runs_of_other_hosts_are_listed_at_once(root: str) -> None:
    for number in range(20):
        elsewhere(new_run(root, f"crashed-{number}"), 86400.0)
    elsewhere(new_run(root, "living"), 3.0)
    here = new_run(root, "here")
    begun = time.monotonic()
    frame = history(root).set_index("run")
    assert time.monotonic() - begun < 14.0  # Not 15 seconds for each.
    assert frame["state"].value_counts().to_dict() == {"FAILED": 20, "RUNNING": 2}
    assert frame.loc["living", "state"] == "RUNNING"
    assert 2.0 < frame.loc["living", "heartbeat_s"] < 60.0
    assert frame.loc["crashed-3", "heartbeat_s"] > 80000.0
    here.owner.release()


def test_folders_that_cannot_be_read_are_left_out_and_counted(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended_run(root, "good")
    os.mkdir(f"{root}/no run")
    for name, text in (("torn", "{"), ("list", "[]"), ("old", '{"id": "old"}')):
        storage.write(f"{root}/{name}/run.json", text)
    os.makedirs(f"{root}/odd/run.json")
    Path(root, "file").write_text("x")
    with caplog.at_level(logging.WARNING):
        frame = history(root)
    assert frame["run"].tolist() == ["good"]
    names = {os.path.basename(path) for path in frame.attrs["unreadable"]}
    assert names == {"torn", "list", "old", "odd"}
    assert f"4 folders below {root} cannot be read" in caplog.text


def _with_hole(path: Path) -> None:
    """A file of 100 GB takes no room on a disk that keeps holes."""
    path.parent.mkdir(exist_ok=True)
    with open(path, "ab") as file:
        file.truncate(100 << 30)


def _with_id(run: Path, name: object) -> None:
    description = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**description, "id": name}))


def _add_event(run: Path, **event: Any) -> None:
    (segment,) = (run / "journal").glob("*.jsonl")
    with open(segment, "a") as file:
        file.write(json.dumps({"time": 1, "seq": 100, **event}) + "\n")


@pytest.mark.parametrize(
    ("harm", "is_listed"),
    [
        (lambda run: _with_hole(run / "summary.json"), True),
        (lambda run: _with_hole(run / "notes" / "000001-0011223344556677.json"), True),
        (lambda run: _with_hole(run / "run.json"), False),
        (lambda run: _with_hole(run / "journal" / "0009-000000.jsonl"), False),
        (lambda run: (run / "run.json").write_text("[" * 100_000), False),
        (lambda run: _add_event(run, event="trial", number=10**12, state="COMPLETE"), False),
        (lambda run: _with_id(run, ".."), False),
        (lambda run: _with_id(run, "/tmp/x"), False),
        (lambda run: _with_id(run, ["x"]), False),
    ],
)
def test_what_another_user_has_written_hides_no_run(root: str, harm: Any, is_listed: bool) -> None:
    """Nor does it take long, much memory, or a name that leads out of the root."""
    ended_run(root, "good")
    ended_run(root, "evil")
    storage.write(f"{root}/.notes/evil", "")
    evil = Path(root, "evil")
    (evil / "summary.json").unlink()
    harm(evil)
    frame = history(root)
    assert set(frame["run"]) == ({"good", "evil"} if is_listed else {"good"})
    assert (f"{root}/evil" in frame.attrs["unreadable"]) != is_listed
    if not is_listed:
        with pytest.raises((RunDamagedError, OSError)):
            load(f"{root}/evil")


def test_runs_are_sorted_by_time_whatever_the_time_zone(root: str) -> None:
    created = {
        "oldest": "2026-03-29T03:30:00+0200",  # After the clocks went forward: 01:30 UTC.
        "middle": "2026-03-29T01:45:00+0000",
        "newest": "2026-03-28T22:00:00-0400",
    }
    for name, text in created.items():
        path = Path(ended_run(root, name).run.path, "summary.json")
        path.write_text(json.dumps({**from_json(path.read_bytes()), "started": text}))
    frame = history(root)
    assert frame["run"].tolist() == ["newest", "middle", "oldest"]
    assert str(frame["started"].dt.tz) == "UTC"


def test_time_that_looks_like_the_year_is_read(root: str) -> None:
    """Without a given format, pandas takes the 2026 of 20:26 for the year, and warns."""
    shift(ended(root, "a").run.path, started="2026-11-22T20:26:05+0000")
    assert history(root)["started"][0].isoformat() == "2026-11-22T20:26:05+00:00"


def test_list_of_runs_on_a_store_is_one_request_for_each(
    counting_store: CountingStore,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkdl.runs.journal.GATHER_S", 0.0)
    root = counting_store.url(uuid4().hex)
    for number in range(3):
        ended_run(root, f"run-{number}")
    counting_store.requests.clear()
    frame: Any = history(root)
    assert len(frame) == 3
    verbs = [request.split()[0] for request in counting_store.requests]
    assert sorted(verbs) == ["GET"] * 3 + ["LIST"]


def test_a_root_without_runs_has_the_columns_of_others(root: str) -> None:
    frame = history(root)
    assert list(frame["path"]) == []
    assert str(frame["started"].dtype).startswith("datetime64")
