"""The journal survives a driver that was killed while it wrote."""

from pathlib import Path

from sparkdl.runs.events import RunEnded, RunStarted, StopRequested
from sparkdl.runs.journal import Journal, read_journal
from sparkdl.runs.states import RunState


def test_read_journal_returns_events_in_order(root: str) -> None:
    url = str(Path(root) / "journal.jsonl")
    assert read_journal(url) == []
    journal = Journal(url)
    written = journal.write([RunStarted(), StopRequested(number=0)])
    written += journal.write([RunEnded(state=RunState.FAILED, reason="ünicode\nline")])
    events = read_journal(url)
    assert events == written
    assert [str(event.kind) for event in events] == ["start", "stop", "end"]
    assert isinstance(events[2], RunEnded)
    assert events[2].reason == "ünicode\nline"
    assert all((event.time or 0.0) > 1.7e9 for event in events)


def test_journal_skips_a_torn_last_line_and_writes_on_a_new_line(root: str) -> None:
    path = Path(root) / "journal.jsonl"
    Journal(str(path)).write([RunStarted()])
    with path.open("a") as file:
        file.write('{"event": "tri')
    assert [str(event.kind) for event in read_journal(str(path))] == ["start"]
    Journal(str(path)).write([RunEnded(state=RunState.COMPLETE)])
    assert [str(event.kind) for event in read_journal(str(path))] == ["start", "end"]


def test_read_journal_leaves_out_events_of_an_unknown_kind(root: str) -> None:
    path = Path(root) / "journal.jsonl"
    path.write_text('{"time": 1.0, "event": "later"}\n{"time": 2.0, "event": "start"}\n')
    assert read_journal(str(path)) == [RunStarted(time=2.0)]
