"""A quick program in place of TensorBoard, and event files."""

import json
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.board import server as tensorboard_server
from sparkdl.board.event_files import first_event, records, scalar
from sparkdl.data.tfexample.framing import spans
from tests.helpers.processes import eventually

__all__ = [
    "FAKE",
    "called",
    "events_in",
    "fake_tensorboard",
    "scalars",
    "session_groups",
    "steps_in",
]

FAKE = str(Path(__file__).with_name("fake_tensorboard"))


@pytest.fixture
def fake_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Start a program that has no page in place of TensorBoard; return the temporary folder."""
    child = SimpleNamespace(path=[FAKE, *sys.path], executable=sys.executable)
    monkeypatch.setattr(tensorboard_server, "sys", child)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def called(folder: Path) -> Any:
    """Return what the program was called with, and the entries of its folder when it began."""
    (path,) = folder.glob("*/called.json")
    return json.loads(path.read_text())


def scalars(tag: str, *values: float, first: int = 0) -> bytes:
    """The content of an event file with a value for each step, or what is added to one."""
    events = [scalar(tag, value, 1000.0 + step, step) for step, value in enumerate(values, first)]
    return records(*events) if first else records(first_event(1000.0), *events)


def events_in(folder: str | Path) -> list[Any]:
    """The values of all event files in a folder, in the order in which TensorBoard reads them."""
    paths = sorted(path for path in Path(folder).iterdir() if "tfevents" in path.name)
    return [value for path in paths for _, value in steps_in(path)]


def steps_in(path: Path) -> list[tuple[int, Any]]:
    """The step and the content of each value in an event file."""
    from tensorboard.compat.proto.event_pb2 import Event

    data = path.read_bytes()
    events = [Event.FromString(data[start:stop]) for start, stop in spans(data, str(path))]
    return [(event.step, value) for event in events for value in event.summary.value]


def session_groups(url: str, count: int, *statuses: str) -> list[dict[str, Any]]:
    """Return what the HParams tab shows once it has this number of groups and all statuses."""
    asked = {
        "allowedStatuses": [f"STATUS_{status}" for status in _STATUSES],
        "colParams": [],
        "startIndex": 0,
        "sliceSize": 100,
    }

    def ask() -> list[dict[str, Any]]:
        address = f"{url}data/plugin/hparams/session_groups"
        request = urllib.request.Request(address, json.dumps(asked).encode(), method="POST")
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                groups: list[dict[str, Any]] = json.load(response)["sessionGroups"]
        except (OSError, KeyError):
            return []
        sessions = [session for group in groups for session in group["sessions"]]
        shown = {session["status"].removeprefix("STATUS_") for session in sessions}
        return groups if len(groups) == count and shown >= set(statuses) else []

    answer = eventually(ask)
    assert isinstance(answer, list)
    assert answer
    return answer


_STATUSES = ("UNKNOWN", "SUCCESS", "FAILURE", "RUNNING")
