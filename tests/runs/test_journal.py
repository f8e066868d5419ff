"""The journal survives a driver that was killed while it wrote."""

from pathlib import Path

from sparkdl.runs.journal import Journal, read_journal


def test_events_come_back_in_order(root: str) -> None:
    url = str(Path(root) / "journal.jsonl")
    assert read_journal(url) == []
    journal = Journal(url)
    journal.write([{"event": "start"}, {"event": "trial", "number": 0}])
    journal.write([{"event": "end", "reason": "ünicode\nline"}])
    events = read_journal(url)
    assert [e["event"] for e in events] == ["start", "trial", "end"]
    assert events[2]["reason"] == "ünicode\nline"
    assert all(e["time"] > 1.7e9 for e in events)


def test_a_torn_last_line_is_skipped_and_not_continued(root: str) -> None:
    path = Path(root) / "journal.jsonl"
    Journal(str(path)).write([{"event": "start"}])
    with path.open("a") as file:
        file.write('{"event": "tri')
    assert [e["event"] for e in read_journal(str(path))] == ["start"]
    Journal(str(path)).write([{"event": "end"}])
    assert [e["event"] for e in read_journal(str(path))] == ["start", "end"]
