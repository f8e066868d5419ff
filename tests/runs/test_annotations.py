"""Tags and notes: many processes write them at once, and everything shows them."""

import multiprocessing
from pathlib import Path
from uuid import uuid4

import pytest

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.runs import annotations
from sparkdl.runs.history import history, load
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.stored_runs import ended, started


def test_tags_and_notes_are_kept_in_their_order(root: str) -> None:
    run = ended(root, "one").run
    assert (run.tags, run.notes) == ([], [])
    run.tag("baseline", " for the paper ")
    run.note("diverges with lr=1")
    run.tag("baseline")
    run.untag("for the paper", "never given")
    run.note("fixed by clipping")
    for same in (run, load(run.path)):
        assert same.tags == ["baseline"]
        assert [note.text for note in same.notes] == ["diverges with lr=1", "fixed by clipping"]
        assert same.notes[0].user
        assert same.notes[0].time.startswith("20")
    # A tag that was removed may be given again.
    run.tag("for the paper")
    assert run.tags == ["baseline", "for the paper"]


def test_a_run_that_goes_on_can_be_tagged_from_elsewhere(root: str) -> None:
    opened = started(root, "live")
    load(opened.run.path).tag("watch")
    assert opened.run.tags == ["watch"]
    assert history(root)["tags"].tolist() == [["watch"]]
    opened.owner.release()


def _tag(path: str, number: int) -> None:
    for i in range(10):
        annotations.add(path, tags=[f"tag-{number}-{i}"])


def test_tags_of_many_processes_at_once_are_all_kept(root: str) -> None:
    path = ended(root, "one").run.path
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_tag, args=(path, n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(load(path).tags) == sorted(f"tag-{n}-{i}" for n in range(4) for i in range(10))


@pytest.mark.parametrize("tag", ["", "  ", "a,b", "a\nb", "x" * 101, ["a"], 3])
def test_what_is_no_tag_is_refused(root: str, tag: str) -> None:
    run = ended(root, "one").run
    with pytest.raises(ConfigError, match="a tag is"):
        run.tag("good", tag)
    with pytest.raises(ConfigError, match="the note is"):
        run.note("")
    assert run.tags == []


def test_a_credential_in_a_note_is_masked(root: str) -> None:
    run = ended(root, "one").run
    run.note("works with AWS_SECRET_ACCESS_KEY=abcdefghijklmnopqrstuvwxyz0123456789ABCD")
    assert "***" in run.notes[0].text
    assert "0123456789ABCD" not in "".join(
        path.read_text() for path in Path(run.path, "notes").iterdir()
    )


def test_the_report_shows_tags_and_notes(root: str) -> None:
    run = ended(root, "one").run
    run.tag("base<line>")
    run.note("needs a & b")
    page = Path(run.report()).read_text()
    assert "Tags: base&lt;line&gt;" in page
    assert "needs a &amp; b" in page


def test_damaged_annotations_are_left_out(root: str) -> None:
    run = ended(root, "one").run
    run.tag("good")
    for name, text in (("000002-x.json", "{"), ("000003-x.json", "[1]"), ("readme.txt", "hi")):
        storage.write(f"{run.path}/notes/{name}", text)
    assert run.tags == ["good"]
    run.untag("good")
    assert run.tags == []


def test_runs_without_tags_on_a_store_cost_no_request(
    counting_store: CountingStore,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparkdl.runs.journal.GATHER_S", 0.0)
    root = counting_store.url(uuid4().hex)
    for number in range(5):
        ended(root, f"run-{number}")
    load(f"{root}/run-3").tag("best")
    counting_store.requests.clear()
    frame = history(root)
    assert frame.set_index("run")["tags"].to_dict()["run-3"] == ["best"]
    verbs = [request.split()[0] for request in counting_store.requests]
    assert verbs.count("LIST") == 3  # The root, the index, and the tags of one run.
    assert verbs.count("GET") == 6
    assert len(verbs) == 9
