"""The program that a run keeps for a later resume, and the notes about it."""

import dataclasses
from typing import Any

import pytest

from sparkdl import storage
from sparkdl.errors import ConfigError
from sparkdl.runner import start
from sparkdl.runner.execute import execute
from sparkdl.runs import provenance
from sparkdl.runs.layout import RunPaths
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import request_of

pytestmark = pytest.mark.usefixtures("quick_polls")


def test_large_program_is_not_kept(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "MAX_KEPT_BYTES", 1 << 20)
    table = bytes(3 << 20)
    request = request_of(1, root=root, progress=True)
    large = dataclasses.replace(request, train=lambda x: len(table))
    run = execute(large, InMemoryCluster(lambda attempt: returned(1.0)))
    assert not storage.exists(RunPaths(run.path).program)
    assert "has 3 MiB, more than 1 MiB, so it is not kept" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"too large.*Pass train= with the function"):
        provenance.read_program(RunPaths(run.path))


def test_program_that_chooses_its_backend_is_told(
    root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(x: float) -> Any:
        import os

        os.environ["KERAS_BACKEND"] = "jax"
        return x

    request = dataclasses.replace(request_of(1, root=root, progress=True), train=train)
    execute(request, InMemoryCluster(lambda attempt: returned(1.0)))
    out = capsys.readouterr().out
    assert "names KERAS_BACKEND, which Keras reads when it is imported" in out
    assert "Set the variable by env= in its place" in out
