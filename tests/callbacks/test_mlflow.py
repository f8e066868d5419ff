"""Runs are mirrored in a real tracking server of MLflow, while they go on and later."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.callbacks import MLflow
from sparkdl.cli.main import main
from sparkdl.errors import ConfigError, RunStoppedError
from sparkdl.files import storage
from sparkdl.runner.again.resume import resume_run
from sparkdl.runner.loop import trial_loop
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.request import Request
from sparkdl.runs import Run
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import request_of
from tests.helpers.mlflow_server import MISSING, Gate, mlflow_server
from tests.helpers.processes import eventually
from tests.helpers.runs import run_with_outputs

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.slow,
    # MLflow and what it imports.
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("quick_polls"),
]


@pytest.fixture
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_loop, "LOCAL_POLL_S", 0.01)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("no_proxy", "127.0.0.1")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
            yield url


@pytest.fixture
def client(server: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(server)


class Content:
    """The runs of an experiment in MLflow.

    Attributes:
        num_parents: the number of runs without a parent.
        parent: the run without a parent.
        children: the others, by the number of the trial.
    """

    def __init__(self, client: Any, experiment_name: str) -> None:
        self._client = client
        known = client.get_experiment_by_name(experiment_name)
        runs = client.search_runs([known.experiment_id])
        parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        self.num_parents = len(parents)
        self.parent = parents[0]
        self.children = {int(r.data.tags["sparkdl.trial"]): r for r in runs if r not in parents}
        self.statuses = {number: run.info.status for number, run in self.children.items()}

    def history(self, number: int) -> dict[str, list[tuple[int, float]]]:
        """The points of each metric of a trial."""
        run = self.children[number]
        return {
            name: [
                (p.step, p.value) for p in self._client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }

    def files(self, number: int | None = None) -> list[str]:
        """The artifacts of a trial, or of the run."""
        return _files(self._client, self.parent if number is None else self.children[number])

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Content)
        # As texts, since a NaN differs from itself.
        mine, theirs = (
            str(
                [
                    (run.info.run_id, run.info.status, run.info.end_time, run.data.to_dictionary())
                    for run in (content.parent, *content.children.values())
                ]
            )
            for content in (self, other)
        )
        return mine == theirs


def _files(client: Any, run: Any, folder: str | None = None) -> list[str]:
    paths = []
    for file in client.list_artifacts(run.info.run_id, folder):
        paths += _files(client, run, file.path) if file.is_dir else [file.path]
    return sorted(paths)


def mirror(uri: str, name: str, **arguments: Any) -> MLflow:
    return MLflow(uri, experiment=name, **{"interval_s": 0.05, **arguments})


def points(client: Any, name: str, number: int, metric: str) -> int:
    """Wait a moment, and return the number of points of a metric of a trial."""
    time.sleep(0.2)
    known = client.get_experiment_by_name(name)
    where = f"tags.`sparkdl.trial` = '{number}'"
    runs = client.search_runs([known.experiment_id], where) if known else []
    return sum(len(client.get_metric_history(run.info.run_id, metric)) for run in runs)


@contextmanager
def going_on(request: Request, cluster: InMemoryCluster) -> Iterator[Run]:
    """Start a run; wait for its end, also if the test fails."""
    run = execute(replace(request, options=replace(request.options, wait=False)), cluster)
    try:
        yield run
    except BaseException:
        run.cancel()
        raise
    finally:
        with suppress(RunStoppedError):
            run.wait()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_run_is_mirrored_while_it_goes_on(root: str, server: str, client: Any) -> None:
    cluster = InMemoryCluster(num_slots=2)

    def finish(attempt: Attempt) -> Outcome:
        if attempt.number == 0:
            attempt.report(0, loss=0.5, **{"top@5": 0.75})
            attempt.report(1, loss=0.25)
        return attempt.wait()

    cluster._run_task = finish
    options = {"callbacks": [mirror(server, "live")], "metric": "score", "description": "Why"}
    with going_on(request_of(4, root=root, **options), cluster) as run:
        assert eventually(lambda: points(client, "live", 0, "loss") == 2)
        content = Content(client, "live")
        assert content.statuses == {0: "RUNNING", 1: "RUNNING"}
        assert content.parent.info.status == "RUNNING"
        cluster.attempt(0).end(returned(score=1.0, loss=0.25, size=7.0))
        cluster.attempt(1).end(raised("ValueError: no such file"))
        cluster.attempt(2).end(returned(score=2.0))
        cluster.attempt(3).end(returned(score=float("nan")))

    content = Content(client, "live")
    parent = content.parent
    assert (parent.info.run_name, parent.info.status) == (run.id, "FINISHED")
    assert parent.data.metrics == {"score": 2.0}
    tags = parent.data.tags
    assert tags["mlflow.note.content"] == "Why"
    assert tags["sparkdl.state"], tags["sparkdl.best_trial"] == ("COMPLETE", "2")
    assert tags["sparkdl.trials"] == "2 of 4 trials complete, 1 failed, 1 invalid"
    assert {"run.json", "environment.txt"} <= set(content.files())
    assert content.statuses == {0: "FINISHED", 1: "FAILED", 2: "FINISHED", 3: "FAILED"}
    assert {c.data.tags["mlflow.parentRunId"] for c in content.children.values()} == {
        parent.info.run_id
    }
    assert [content.children[n].data.params for n in range(4)] == [
        {"x": f"{n}.0"} for n in range(4)
    ]
    assert content.history(0) == {
        "loss": [(0, 0.5), (1, 0.25)],
        "top_5": [(0, 0.75)],
        "score": [(1, 1.0)],
        "size": [(1, 7.0)],
    }
    failed = content.children[1].data.tags
    assert failed["mlflow.note.content"].startswith("ValueError: no such file")
    assert content.children[3].data.tags["sparkdl.state"] == "INVALID"
    assert "error.txt" in content.files(1)
    span = run.trials[0].spans[0]
    assert content.children[0].info.start_time == int(span[0] * 1000)
    assert content.children[0].info.end_time == int((span[1] or 0) * 1000)
    assert main(["mlflow", "push", run.path]) == 0  # The server and the experiment of its callback.
    assert Content(client, "live") == content
    assert Content(client, "live").history(0) == content.history(0)


# More than MLflow takes at once.
NUM_STEPS = 900


@pytest.fixture
def old_run(root: str, tmp_path: Path) -> Run:
    """A run of two trials with models, from before there was a tracking server."""
    files = []
    for number in range(2):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "model.keras").write_bytes(b"model %d" % number)
        files.append(folder / "model.keras")
    run = run_with_outputs(root, {"accuracy": [0.5, 0.75]}, {"model": files})
    for trial, num_steps in zip(run.trials, (2, NUM_STEPS), strict=True):
        lines = [{"step": step, "metrics": {"loss": 1 / (step + 1)}} for step in range(num_steps)]
        text = "\n".join(json.dumps(line) for line in lines)
        storage.write(f"{trial.path}/metrics.jsonl", f"{text}\n")
        storage.write(f"{trial.path}/log.txt", "trained\n")
    return run


def test_old_run_is_pushed_once(
    old_run: Run, server: str, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["mlflow", "push", old_run.path, "--uri", server]
    assert main(command) == 0
    content = Content(client, "one")  # The name of the run.
    assert f"is run {content.parent.info.run_id} of MLflow('{server}'" in capsys.readouterr().out
    assert content.files(0) == ["log.txt", "model/model.keras"]
    history = content.history(1)
    assert [step for step, _ in history["loss"]] == list(range(NUM_STEPS))
    assert history["accuracy"] == [(NUM_STEPS - 1, 0.75)]

    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"run": "one", "mlflow_run_id": content.parent.info.run_id, "trials": 2}
    again = Content(client, "one")
    assert again == content
    assert again.history(1) == history

    old_run.tag("baseline")
    old_run.note("for the paper")
    assert main(command) == 0
    tags = Content(client, "one").parent.data.tags
    assert tags["baseline"] == "true"
    assert "for the paper" in tags["mlflow.note.content"]


def test_models_and_the_files_of_the_best_trial_are_copied_once(
    root: str, server: str, client: Any, tmp_path: Path
) -> None:
    (tmp_path / "model.keras").write_bytes(b"model")
    files = {"model": [tmp_path / "model.keras"] * 2}
    run = run_with_outputs(root, {"accuracy": [0.5, 0.75]}, files)
    for number, trial in ((1, 0), (2, 1)):
        folder = f"{root}/models/digits/{number}"
        storage.write(f"{folder}/saved_model.pb", b"graph %d" % number)
        record = {"name": "digits", "version": number, "run": "one", "trial": trial}
        storage.write(f"{folder}/model.json", json.dumps(record))
    mirror(server, "files", artifacts="none").push(run)
    content = Content(client, "files")
    assert not (content.files() or content.files(1))
    assert not client.search_registered_models("name = 'digits'")
    for _ in range(2):
        mirror(server, "files", artifacts="best").push(run)
        content = Content(client, "files")
        known = client.search_model_versions("name = 'digits'")
        assert {v.tags["sparkdl.version"]: v.run_id for v in known} == {
            f"{number + 1}": child.info.run_id for number, child in content.children.items()
        }
        assert len(known) == 2
        version = [f"models/digits/1/{name}" for name in ("model.json", "saved_model.pb")]
        assert content.files(0) == version
        assert "model/model.keras" in content.files(1)


def test_trial_that_runs_again_continues_its_child(root: str, server: str, client: Any) -> None:
    def outcome(attempt: Attempt) -> Outcome:
        attempt.report(attempt.attempt * 2, loss=1.0)
        attempt.report(attempt.attempt * 2 + 1, loss=0.5)
        is_first = attempt.number == 0 and attempt.attempt == 0
        return raised("ValueError: no") if is_first else returned(1.0)

    request = request_of(2, root=root, callbacks=[mirror(server, "again")])
    run = execute(request, InMemoryCluster(outcome))
    before = Content(client, "again")
    assert before.children[0].info.status == "FAILED"
    assert before.children[0].data.tags["mlflow.note.content"] == "ValueError: no"
    options = {"callbacks": [mirror(server, "again")], "progress": False}
    cluster = InMemoryCluster(outcome)
    resume_run(run.path, None, {}, frozenset({"failed"}), None, options, cluster)
    after = Content(client, "again")
    assert after.num_parents == 1
    assert len(after.children) == 2
    child = after.children[0]
    assert (child.info.run_id, child.info.status) == (
        before.children[0].info.run_id,
        "FINISHED",
    )
    assert after.history(0)["loss"] == [(0, 1.0), (1, 0.5), (2, 1.0), (3, 0.5)]
    assert not {"mlflow.note.content", "sparkdl.failure"} & child.data.tags.keys()


def test_tags_that_do_not_hold_any_more_are_removed(root: str, server: str, client: Any) -> None:
    cluster = InMemoryCluster(lambda attempt: returned(attempt.task.trial.params["x"]))
    request = request_of(3, root=root, timeout_s=0.0001)
    with pytest.raises(RunStoppedError) as caught:
        execute(request, cluster)
    run = caught.value.run
    assert isinstance(run, Run)
    run.tag("first", "kept")
    mirror(server, "tags").push(run)
    known = Content(client, "tags").parent
    client.set_tag(known.info.run_id, "mine", "true")
    assert {"first", "kept", "sparkdl.reason"} <= known.data.tags.keys()
    run.untag("first")
    options = {"progress": False, "timeout_s": 600}
    run = resume_run(run.path, None, {}, frozenset(), None, options, cluster)
    mirror(server, "tags").push(run)
    tags = Content(client, "tags").parent.data.tags
    assert tags["sparkdl.state"] == "COMPLETE"
    assert (tags["kept"], tags["mine"]) == ("true", "true")
    assert not {"first", "sparkdl.reason"} & tags.keys()


def test_server_that_is_down_costs_one_warning(
    root: str, server: str, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    begun_s = time.monotonic()
    down = mirror("http://ann:pa55word@127.0.0.1:1", "down")

    def outcome(attempt: Attempt) -> Outcome:
        time.sleep(0.04)
        return returned(1.0)

    run = execute(request_of(8, root=root, callbacks=[down]), InMemoryCluster(outcome))
    assert time.monotonic() - begun_s < 60.0
    assert run.counts() == {"COMPLETE": 8}
    (text,) = warnings_of(caplog)
    assert "the server does not answer" in text
    assert f"sparkdl mlflow push {run.path}" in text
    written = Path(run.path, "run.json").read_text()
    assert "pa55word" not in written + caplog.text
    with pytest.raises(ConfigError, match="had credentials, which run run has not kept"):
        MLflow.of_run(json.loads(written))
    assert main(["mlflow", "push", run.path, "--uri", "http://127.0.0.1:1"]) == 1
    assert main(["mlflow", "push", run.path, "--uri", server]) == 0
    assert len(Content(client, "down").children) == 8


@pytest.mark.parametrize("fault", ["is down", "loses answers"])
def test_server_that_comes_back_has_everything_once(
    root: str, server: str, client: Any, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = fault.replace(" ", "-")
    cluster = InMemoryCluster(num_slots=1)
    with Gate(server) as gate:
        request = request_of(1, root=root, callbacks=[mirror(gate.url, name)])
        with going_on(request, cluster):
            attempt = cluster.attempt(0)
            attempt.report(0, loss=1.0)
            assert eventually(lambda: points(client, name, 0, "loss"))
            if fault == "is down":
                gate.close()
            gate.loses_answers = fault != "is down"
            attempt.report(1, loss=0.5)
            assert eventually(lambda: warnings_of(caplog))
            gate.loses_answers, gate.is_open = False, True
            attempt.report(2, loss=0.25)
            attempt.end(returned(1.0))
    assert len(warnings_of(caplog)) == 1
    content = Content(client, name)
    assert content.num_parents == 1
    assert content.history(0) == {"loss": [(0, 1.0), (1, 0.5), (2, 0.25)], "value": [(2, 1.0)]}
    assert content.parent.info.status == "FINISHED"
