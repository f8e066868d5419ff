"""Readers of growing files return each whole line once, and skip torn lines."""

import json
from pathlib import Path
from uuid import uuid4

import pytest

from sparkdl.files import storage
from sparkdl.files.jsonl import MAX_LINES_BYTES, LogTail, Tail, read_lines, to_json
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401


@pytest.fixture(params=["local", "store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://jsonl/{uuid4().hex}"


def test_read_lines_of_a_missing_file_is_empty(folder: str) -> None:
    assert read_lines(f"{folder}/none.jsonl") == []


def test_read_lines_skips_torn_lines(folder: str) -> None:
    url = f"{folder}/a.jsonl"
    storage.write(url, '{"n": 1}\n{"n": 2, "text": "ü\n{"n": 3}\n7\n{"n": 4, "torn')
    assert read_lines(url) == [{"n": 1}, {"n": 3}]
    storage.write(url, '{"n": 1}\n{"n": 2}')
    assert read_lines(url) == [{"n": 1}, {"n": 2}]


def test_tail_returns_each_whole_line_once(folder: str) -> None:
    url = f"{folder}/a.jsonl"
    tail = Tail()
    assert tail.read([url]) == []
    storage.write(url, '{"n": 1}\n{"n": 2, "text": "ü')
    assert tail.read([url]) == [(url, {"n": 1})]
    assert tail.read([url]) == []
    storage.append(url, b'"}\n{"n": 3}\n{')
    assert tail.read([url]) == [(url, {"n": 2, "text": "ü"}), (url, {"n": 3})]
    assert tail.read([url]) == []


def test_tail_skips_lines_that_do_not_parse(folder: str) -> None:
    """A disk was full for a moment: half a line, and the next line behind it."""
    url = f"{folder}/a.jsonl"
    tail = Tail()
    storage.write(url, '{"n": 1}\n{"n": 2, "te{"n": 3}\n{"n": 4}\n')
    assert [line for _, line in tail.read([url])] == [{"n": 1}, {"n": 4}]
    storage.append(url, b'{"n": 5, "m{"n": 6}\n{"n": 7}\n')
    assert [line for _, line in tail.read([url])] == [{"n": 7}]
    storage.append(url, b'{"n": 8}\n')
    assert tail.read([url]) == [(url, {"n": 8})]


def test_numbers_that_are_not_finite_are_json(folder: str) -> None:
    url = f"{folder}/a.jsonl"
    value = {"loss": float("inf"), "list": [1.5, float("-inf")], "text": "NaN", "none": None}
    text = to_json(value)
    assert json.loads(text, parse_constant=pytest.fail)
    storage.write(url, text + "\n" + to_json({"n": float("nan")}) + "\n")
    lines = read_lines(url)
    assert lines[0] == value
    assert str(lines[1]) == "{'n': nan}"
    assert next(line for _, line in Tail().read([url])) == value


def test_tail_of_many_files_reads_those_asked_for(folder: str) -> None:
    urls = [f"{folder}/{name}.jsonl" for name in "abc"]
    for url in urls[:2]:
        storage.write(url, f'{{"url": "{url}"}}\n')
    tail = Tail()
    assert tail.read(urls[1:]) == [(urls[1], {"url": urls[1]})]
    assert tail.read(urls) == [(urls[0], {"url": urls[0]})]
    storage.append(urls[1], b'{"n": 2}\n')
    storage.write(urls[2], b'{"n": 3}\n')
    assert tail.read(urls) == [(urls[1], {"n": 2}), (urls[2], {"n": 3})]


def test_tail_begins_anew_after_forget(folder: str) -> None:
    url = f"{folder}/a.jsonl"
    tail = Tail()
    storage.write(url, '{"attempt": 0}\n')
    assert tail.read([url]) == [(url, {"attempt": 0})]
    storage.write(url, '{"attempt": 1}\n')
    assert tail.read([url]) == []
    tail.forget(url)
    assert tail.read([url]) == [(url, {"attempt": 1})]


def test_tail_begins_anew_when_its_offset_is_inside_a_line(folder: str) -> None:
    """A longer file of another attempt has replaced the file that was read."""
    url = f"{folder}/a.jsonl"
    tail = Tail()
    storage.write(url, '{"n": 1}\n')
    assert tail.read([url]) == [(url, {"n": 1})]
    storage.write(url, '{"name": "of another attempt"}\n{"n": 2}\n')
    assert tail.read([url]) == []
    assert [line for _, line in tail.read([url])] == [{"name": "of another attempt"}, {"n": 2}]


def test_log_tail_returns_each_whole_line_once(folder: str) -> None:
    url = f"{folder}/log"
    tail = LogTail(url)
    assert tail.lines() == []
    storage.write(url, "one\ntwo ü".encode())
    assert tail.lines() == ["one"]
    storage.append(url, b" more\r\nlast")
    assert tail.lines() == ["two ü more"]
    assert tail.lines() == []
    assert tail.lines(last=True) == ["last"]


def test_log_tail_skips_over_a_flood(folder: str) -> None:
    url = f"{folder}/log"
    storage.write(url, b"x" * 79 + b"\n" + b"line of the flood\n" * 100_000)
    tail = LogTail(url)
    lines = tail.lines()
    assert sum(map(len, lines)) <= MAX_LINES_BYTES
    assert set(lines) == {"line of the flood"}
    assert tail.num_skipped_bytes + sum(len(line) + 1 for line in lines) == storage.size(url)
    assert tail.lines() == []


def test_log_tail_pieces_are_the_whole_text(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.files.jsonl.PIECE_BYTES", 8)
    url = f"{folder}/log"
    tail = LogTail(url)
    assert list(tail.pieces()) == []
    storage.write(url, "first line\nsecond")
    assert list(tail.pieces()) == ["first li", "ne\nsecon", "d"]
    storage.append(url, b" line\n")
    assert list(tail.pieces()) == [" line\n"]
    assert tail.offset == storage.size(url)


def test_log_tail_pieces_may_cut_a_character(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.files.jsonl.PIECE_BYTES", 3)
    text = "größer ☃ 😀\n"
    storage.write(f"{folder}/log", text)
    assert "".join(LogTail(f"{folder}/log").pieces()) == text


def test_log_tail_goes_on_after_a_log_could_not_be_read(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{folder}/log"
    storage.write(url, "one\n")
    tail = LogTail(url)
    assert tail.lines() == ["one"]
    storage.append(url, b"two\n")

    def fails(*args: object) -> bytes:
        raise PermissionError(13, "the log of another user", url)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "read", fails)
        assert tail.lines() == tail.lines() == list(tail.pieces()) == []
    assert caplog.text.count("the log of another user") == 1
    assert tail.lines() == ["two"]


def test_log_tail_needs_one_request(counting_store: CountingStore) -> None:  # noqa: F811
    url = counting_store.url("log")
    storage.write(url, "one\n")
    counting_store.requests.clear()
    tail = LogTail(url)
    assert tail.lines() == ["one"]
    assert tail.lines() == []
    assert [request.split()[0] for request in counting_store.requests] == ["GET", "GET"]
