"""The journal survives drivers that are killed, disks that are full, and stores that fail."""

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sparkdl.files import storage
from sparkdl.runs import journal as journals
from sparkdl.runs.events import ReportsReceived, RunEnded, RunStarted, StopRequested
from sparkdl.runs.journal import Journal, read_journal, scan_journal
from sparkdl.runs.states import RunState
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.fake_stores import fake_stores


def kinds(folder: str) -> list[str]:
    return [str(event.kind) for event in read_journal(folder)]


def stops(folder: str) -> list[int]:
    return [event.number for event in read_journal(folder) if isinstance(event, StopRequested)]


@pytest.fixture(params=["local", "hdfs", "store"])
def folder(request: pytest.FixtureRequest, root: str) -> Iterator[str]:
    with fake_stores():
        yield {
            "local": f"{root}/journal",
            "hdfs": f"hdfs://host/{uuid4().hex}/journal",
            "store": f"memory://{uuid4().hex}/journal",
        }[request.param]


def test_read_journal_returns_events_in_order(folder: str) -> None:
    assert read_journal(folder) == []
    journal = Journal(folder)
    written = journal.write([RunStarted(), StopRequested(number=0)])
    written += journal.write([RunEnded(state=RunState.FAILED, reason="ünicode\nline")])
    journal.close()
    events = read_journal(folder)
    assert events == written
    assert [str(event.kind) for event in events] == ["start", "stop", "end"]
    assert isinstance(events[2], RunEnded)
    assert events[2].reason == "ünicode\nline"
    assert all((event.time or 0.0) > 1.7e9 for event in events)


def test_journal_of_a_killed_driver_goes_on_in_another_segment(folder: str) -> None:
    first = Journal(folder, owner=1)
    first.write([RunStarted()])
    first.close()
    name = storage.join(folder, storage.list_names(folder)[0])
    storage.append(name, b'{"event": "tri')
    content = scan_journal(folder)
    assert (kinds(folder), content.num_lost) == (["start"], 0)
    second = Journal(folder, owner=2, after=content.last)
    second.write([RunEnded(state=RunState.COMPLETE)])
    second.close()
    assert kinds(folder) == ["start", "end"]


def test_lost_lines_are_left_out_and_counted(root: str, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(root)
    journal.write([StopRequested(number=number) for number in range(4)])
    path = Path(root, storage.list_names(root)[0])
    lines = path.read_bytes().splitlines(keepends=True)
    # A short write of the second event, with the third one behind it.
    path.write_bytes(b"".join([*lines[:2], lines[2][:30], lines[3], lines[4]]))
    with caplog.at_level(logging.WARNING):
        content = scan_journal(root)
    assert ([e.number for e in content.events], content.num_lost) == ([0, 3], 2)  # type: ignore[attr-defined]
    assert "2 events of the journal" in caplog.text
    assert root in caplog.text


def test_read_journal_leaves_out_events_of_an_unknown_kind(folder: str) -> None:
    lines = [
        {"time": 1.0, "event": "later", "seq": 0},
        {"time": 2.0, "event": "start", "seq": 1, "more": 1},
        {"time": 2.0, "event": "end", "seq": 2},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    storage.write(f"{folder}/0001-000000.jsonl", text)
    content = scan_journal(folder)
    assert content.events == [RunStarted(time=2.0)]
    assert content.num_lost == 1  # The end has no state.


def test_events_of_an_earlier_owner_after_the_newer_one_began_are_ignored(folder: str) -> None:
    old = Journal(folder, owner=1)
    old.write([StopRequested(number=0)])
    old.flush(5.0)
    new = Journal(folder, owner=2, after=scan_journal(folder).last)
    new.write([StopRequested(number=1)])
    new.flush(5.0)
    old.write([StopRequested(number=2)])  # Its machine was suspended.
    old.flush(5.0)
    new.write([StopRequested(number=3)])
    new.flush(5.0)
    assert stops(folder) == [0, 1, 3]
    third = Journal(folder, owner=3, after=scan_journal(folder).last)
    third.write([StopRequested(number=4)])
    third.close()
    old.write([StopRequested(number=5)])
    new.write([StopRequested(number=6)])
    old.close(), new.close()
    assert stops(folder) == [0, 1, 3, 4]


def test_numbers_that_are_not_finite_are_json(folder: str) -> None:
    journal = Journal(folder)
    journal.write([RunStarted(changed={"stop": [float("nan"), float("-inf")]})])
    journal.close()
    data = storage.read(storage.join(folder, storage.list_names(folder)[0]))

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    for line in data.splitlines():
        json.loads(line, parse_constant=refuse)
    changed = read_journal(folder)[0].changed  # type: ignore[attr-defined]
    assert str(changed) == "{'stop': [nan, -inf]}"


def test_reports_can_be_left_out(folder: str) -> None:
    journal = Journal(folder)
    journal.write([RunStarted(), ReportsReceived(reports=[(0, 1, 0.5), (0, 2, float("nan"))])])
    journal.write([StopRequested(number=1)])
    journal.close()
    content = scan_journal(folder, with_reports=False)
    assert [str(event.kind) for event in content.events] == ["start", "stop"]
    assert (content.last, content.num_lost) == ({1: 3}, 0)
    assert kinds(folder) == ["start", "reports", "stop"]


# ---- stores and disks that fail


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "pause_s", lambda failures: 0.01)
    monkeypatch.setattr(journals, "GATHER_S", 0.01)


@pytest.mark.usefixtures("quick")
def test_events_are_kept_until_the_store_works_again(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    works = [True]

    def unless_broken(function: Callable[..., None]) -> Callable[..., None]:
        def write(url: str, data: bytes) -> None:
            if not works[0]:
                raise OSError(errno.ENOSPC, "No space left on device", url)
            function(url, data)

        return write

    for name in ("append", "write"):
        monkeypatch.setattr(storage, name, unless_broken(getattr(storage, name)))
    journal = Journal(folder)
    journal.write([StopRequested(number=0)])
    journal.flush(5.0)
    works[0] = False
    for number in range(1, 20):
        assert journal.write([StopRequested(number=number)])[0].time
    with pytest.raises(OSError, match="No space left"):
        journal.flush(0.1)
    assert stops(folder) == [0]
    warnings = [r.getMessage() for r in caplog.records if "cannot be written" in r.getMessage()]
    assert len(warnings) == 1
    assert "The disk is full: free some space." in warnings[0]
    assert folder in warnings[0]
    works[0] = True
    journal.flush(5.0)
    journal.write([StopRequested(number=20)])
    journal.close()
    assert stops(folder) == list(range(21))
    assert scan_journal(folder).num_lost == 0


@pytest.mark.usefixtures("quick")
def test_a_write_that_arrived_although_it_failed_is_read_once(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [True]

    def ambiguous(function: Callable[..., None]) -> Callable[..., None]:
        def write(url: str, data: bytes) -> None:
            function(url, data)
            if failures and failures.pop():
                raise OSError(errno.EIO, "the answer was lost", url)

        return write

    for name in ("append", "write"):
        monkeypatch.setattr(storage, name, ambiguous(getattr(storage, name)))
    journal = Journal(folder)
    journal.write([StopRequested(number=0)])
    journal.flush(5.0)
    journal.write([StopRequested(number=1)])
    journal.close()
    assert stops(folder) == [0, 1]


def test_journal_on_a_disk_that_fills_up_loses_nothing(root: str) -> None:
    """The limit of the file size stands for the end of the disk; the kernel writes a part first."""
    code = """
import resource, signal, sys
from sparkdl.runs import journal as journals
from sparkdl.runs.events import StopRequested
journals.pause_s = lambda failures: 0.05
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = journals.Journal(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
journal.write([StopRequested(number=0)])
resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
for number in range(1, 10):
    journal.write([StopRequested(number=number)])
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
journal.write([StopRequested(number=10)])
journal.close(10.0)
"""
    subprocess.run([sys.executable, "-c", code, root], check=True, timeout=240)
    assert stops(root) == list(range(11))
    assert scan_journal(root).num_lost == 0


# ---- requests


@pytest.mark.usefixtures("quick")
def test_one_flush_is_one_request(counting_store: CountingStore) -> None:  # noqa: F811
    folder = counting_store.url("journal")
    journal = Journal(folder)
    journal.write([RunStarted()])
    journal.flush(5.0)
    counting_store.requests.clear()
    for number in range(50):
        journal.write([StopRequested(number=number)])
    journal.flush(5.0)
    writes = [r for r in counting_store.requests if r.startswith("PUT ")]
    assert counting_store.requests == writes
    assert len(writes) <= 5  # Events are gathered.
    assert len(set(writes)) == len(writes)  # Nothing is written twice.
    journal.close()
    assert len(stops(folder)) == 50


@pytest.mark.usefixtures("quick")
def test_segments_of_a_long_run_are_merged(
    counting_store: CountingStore,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "MERGE", 5)
    monkeypatch.setattr(journals, "GATHER_S", 0.0)
    folder = counting_store.url("journal")
    journal = Journal(folder)
    for number in range(23):
        journal.write([StopRequested(number=number)])
        journal.flush(5.0)
    assert len(storage.list_names(folder)) == 4 + 3
    assert stops(folder) == list(range(23))
    journal.close()


def test_a_local_journal_is_one_file_that_grows(root: str) -> None:
    journal = Journal(root)
    sizes = []
    for number in range(5):
        journal.write([StopRequested(number=number)])
        sizes.append(os.path.getsize(Path(root, "0001-000000.jsonl")))
    assert sizes == sorted(set(sizes))
    assert os.listdir(root) == ["0001-000000.jsonl"]
