"""Experiments between `begin` and `end`, which need no Spark."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sparkdl import experiment as verbs
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.hops import experiment, hdfs, tensorboard


@pytest.fixture(params=["local", "memory"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The project on each kind of store; the working directory is an empty folder."""
    monkeypatch.chdir(tmp_path)
    is_local = request.param == "local"
    url = str(tmp_path / "projects" / "demo") if is_local else f"memory://{tmp_path.name}/demo"
    monkeypatch.setenv("SPARKDL_ROOT", url)
    return url


def test_a_metric_that_is_no_number_leaves_the_experiment_open(project: str) -> None:
    path = experiment.begin("sum")
    with pytest.raises(ValueError, match="abc"):
        experiment.end("abc")  # type: ignore[arg-type]
    experiment.end(3)
    assert (verbs.load(path).state, verbs.load(path).best.value) == ("COMPLETE", 3.0)
    assert path not in tensorboard.logdir()


@pytest.mark.parametrize("metric", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_is_no_value(project: str, metric: float) -> None:
    path = experiment.begin("diverged")
    experiment.end(metric)
    run = verbs.load(path)
    assert (run.state, run.trials[0].state, run.trials[0].value) == ("FAILED", "INVALID", None)
    assert run.reason == f"metric 'metric' is {metric}; expected a finite number"
    assert verbs.history(project)["best"].isna().all()


def test_resources_of_the_same_name_are_kept_with_their_hashes(project: str) -> None:
    for name in ("a", "b"):
        hdfs.dump(name, f"Resources/{name}/config.yaml")
    names = ["Resources/a/config.yaml", "Resources/b/config.yaml"]
    path = experiment.begin("two", versioned_resources=names)
    experiment.end()
    for name in ("a", "b"):
        assert storage.read(f"{path}/resources/{name}/config.yaml") == name.encode()
    assert storage.exists(f"{path}/resources.json")


def test_nothing_is_left_in_the_folder_for_temporary_files(
    project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    path = experiment.begin("events")
    Path(tensorboard.logdir(), "note.txt").write_text("a note")
    experiment.end()
    assert storage.read(f"{path}/trials/0/tensorboard/note.txt") == b"a note"
    assert not [*folder.iterdir()]


def test_an_experiment_that_its_program_left_open_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path))
    program = "from sparkdl.hops import experiment; print(experiment.begin('killed'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    path = done.stdout.strip()
    assert verbs.load(path).state == "FAILED"
    for again in (verbs.resume, verbs.reproduce):
        with pytest.raises(ConfigError, match=r"\(begin\) cannot be resumed"):
            again(path)
