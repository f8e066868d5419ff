"""The verbs of the `sparkdl` command that control a run of another process."""

import json
from typing import Any

import pytest

from sparkdl.cli.main import main
from sparkdl.runner.control import remote_driver as asking
from sparkdl.runner.loop import trial_loop
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from tests.helpers.in_memory_cluster import InMemoryCluster, returned
from tests.helpers.loops import background, events, new_loop, request_of


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_loop, "LOCAL_POLL_S", 0.005)
    monkeypatch.setattr(asking, "LOOK_S", (0.005, 0.005))


def test_every_verb_reaches_the_driver(
    root: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", root)
    cluster = InMemoryCluster(num_slots=3)
    settings = SearchSettings(space=Space.of({"x": Float(0.0, 1.0)}), num_trials=6)
    request = request_of(search=settings, parallelism=1, metric="score")
    with background(new_loop(root, cluster, request)) as loop:
        first = cluster.attempt(0)
        for words, answer in (
            (["pause", "run"], "run: paused; running trials go on"),
            (["set", "run", "parallelism=2", "num_trials=9"], "run: parallelism=2 num_trials=9"),
            (["set", "run", "stop.score=0.9"], "run: stop.score=0.9"),
            (["enqueue", "run", "x=0.25"], "run: a trial was added: x=0.25"),
            (["cancel", "run", "0"], "run: trial 0 is being cancelled"),
            (["unpause", "run"], "run: goes on"),
        ):
            assert main(words) == 0
            assert capsys.readouterr().out.strip() == answer
        cluster.attempt(1), cluster.attempt(2)
        assert main(["cancel", loop.run.path]) == 0
        first.end(returned(score=0.0))
    assert capsys.readouterr().out == "run: the run is being cancelled\n"
    assert loop.run.trials[1].params == {"x": 0.25}
    assert [event["action"] for event in events(loop.run, "control")] == [
        *("pause", "set", "set", "enqueue", "cancel", "unpause", "cancel"),
    ]


def test_answers_as_json_and_refusals(root: str, capsys: Any) -> None:
    with background(new_loop(root, InMemoryCluster(), request_of(1))) as loop:
        path = loop.run.path
        about = {"run": "run", "path": path}

        def answer(*words: str) -> tuple[int, Any]:
            return main([*words, "--json"]), json.loads(capsys.readouterr().out)

        assert answer("pause", path) == (0, {**about, "action": "pause", "done": True})
        done = {**about, "action": "unpause", "done": True}
        assert answer("unpause", path) == (0, done)
        done = {**about, "action": "enqueue", "params": {"x": 2}, "done": True}
        assert answer("enqueue", path, "x=2") == (0, done)
        done = {**about, "action": "set", "values": {"timeout_s": 60.5}, "done": True}
        assert answer("set", path, "timeout_s=60.5") == (0, done)
        code, refused = answer("enqueue", path, "y=2")
        assert (code, refused["done"]) == (2, False)
        assert "params contains 'y', which train(x) does not take" in refused["error"]
        assert main(["set", path, "num_trials=3"]) == 2
        assert "refused set(num_trials=3): only a search has num_trials" in capsys.readouterr().err
        for words, error in (
            (["set", path, "n_trials=3"], "Did you mean 'num_trials'"),
            (["set", path, "parallelism"], "'parallelism' is no name=value"),
            (["enqueue", path, "x=1", "x=2"], "'x' is given twice"),
            (["set", path, "stop=1", "stop.x=2"], "'stop.x' is given twice"),
            (["cancel", path, "7"], "has no trial 7; it has the trials 0 to 1"),
        ):
            assert main(words) == 2
            assert error in capsys.readouterr().err
        done = {**about, "action": "cancel", "trial": None, "done": True}
        assert answer("cancel", path) == (0, done)
    assert main(["pause", path]) == 2
    assert "run run has ended CANCELLED (cancelled by " in capsys.readouterr().err
