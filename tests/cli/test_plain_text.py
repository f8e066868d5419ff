"""Texts of other users in runs and models control no terminal, and stop no list."""

import contextlib
import io
import json
from pathlib import Path

import pytest

from sparkdl.cli.main import main
from sparkdl.files import storage
from sparkdl.runs import annotations
from tests.helpers.stored_runs import ended

# The title of the window and the screen; the beginning of the line; the direction; half a pair.
HOSTILE = "x\x1b]0;title\x07\x1b[2J\r\x9b1m\u202e\ud800"


@pytest.fixture
def hostile(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root with a run and a model whose texts have all of it."""
    params = [{HOSTILE: HOSTILE}, {HOSTILE: 2}]
    for run_id in ("one", "two"):
        run = ended(root, run_id, name=HOSTILE, metric=HOSTILE, params=params).run
        annotations.add(run.path, tags=[HOSTILE], note=HOSTILE)
    record = {"format": 1, "name": "digits", "version": 1, "metrics": {HOSTILE: 1}, "trial": None}
    more = {"run": HOSTILE, "lineage": {HOSTILE: HOSTILE}, "exported": {"user": HOSTILE}}
    storage.write(f"{root}/models/digits/1/model.json", json.dumps({**record, **more}))
    monkeypatch.setenv("SPARKDL_ROOT", root)
    return root


@pytest.mark.parametrize("words", ["runs", "show one", "compare one two", "models list"])
def test_texts_of_others_command_no_terminal(hostile: str, words: str) -> None:
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, "utf-8", newline="")
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        assert main(words.split()) == 0
    stream.flush()
    text = data.getvalue().decode()
    assert "x\\x1b]0;title" in text
    assert not [c for c in text if not c.isprintable() and c != "\n"]


def test_streams_are_those_of_before(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(ended(root, "one").run.path)
    assert main(["show", str(path)]) == 0
    print("\x1b[1m")
    assert "\x1b[1m" in capsys.readouterr().out
