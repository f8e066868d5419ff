"""Population based training and its replay, on embedded Spark, as users call them."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import context, experiment
from sparkdl import search as spaces
from sparkdl.errors import ConfigError, FunctionError, RunStoppedError
from sparkdl.runs import Run
from tests.helpers.processes import eventually
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

SPACE = {"rate": spaces.Float(0.01, 1.0, log=True)}
ALGORITHM = {"pbt": {"population": 4}}


def descend(rate: float, steps: int = 5) -> dict[str, float]:
    """Continue a noisy descent for five steps; return the loss, which is best near 0."""
    # The imports are inside, because the function is kept in the run directory.
    import json
    import random
    from pathlib import Path

    from sparkdl import context

    before = context.get_checkpoint()
    state = json.loads(Path(before, "state.json").read_text()) if before else {"x": 10.0, "n": 0}
    noise = random.Random(context.seed)
    for _ in range(steps):
        state["x"] -= rate * (state["x"] + noise.gauss(0, 1))
        state["n"] += 1
    Path("state").mkdir()
    Path("state", "state.json").write_text(json.dumps(state))
    loss = state["x"] ** 2
    context.report({"loss": loss}, checkpoint="state")
    return {"loss": loss, "steps": state["n"]}


def line_of(run: Run, number: int) -> list[int]:
    line = [number]
    while (parent := run.trials[line[0]].parent) is not None:
        line.insert(0, parent)
    return line


def checked(run: Run) -> Run:
    """Check that each interval has continued from the checkpoint of its parent."""
    for trial in run.trials:
        line = line_of(run, trial.number)
        assert trial.outputs["steps"] == 5 * len(line)
        # The steps of the reports go on, too.
        assert trial.history.index.tolist() == [len(line) - 1]
    return run


def test_members_hand_on_checkpoints_and_replay_gives_the_metrics_again(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = quiet(root, metric="loss", direction="min", seed=5)
    run = experiment.search(descend, SPACE, algorithm=ALGORITHM, num_trials=20, **options)
    checked(run)
    assert run.counts() == {"COMPLETE": 20}
    assert {trial.member for trial in run.trials} == {0, 1, 2, 3}
    members = {trial.number: trial.member for trial in run.trials}
    handed = [t for t in run.trials if t.parent is not None and members[t.parent] != t.member]
    assert handed and all(trial.params != run.trials[trial.parent].params for trial in handed)
    table = run.to_pandas()
    assert table["member"].tolist() == [trial.member for trial in run.trials]
    loaded = experiment.load(run.path)
    assert [(t.member, t.parent) for t in loaded.trials] == [
        (t.member, t.parent) for t in run.trials
    ]
    # The last trials have the longest lines.
    last = run.trials[-1]
    again = checked(experiment.replay(loaded.trials[-1], progress=False))
    line = [run.trials[number] for number in line_of(run, last.number)]
    assert [t.params for t in again.trials] == [t.params for t in line]
    assert [t.metrics for t in again.trials] == [t.metrics for t in line]
    assert [t.seed for t in again.trials] == [t.seed for t in line]
    assert again.trials[-1].value == last.value
    assert (again.id != run.id, again.reproduces) == (True, run.id)
    monkeypatch.chdir(tmp_path)
    assert last.debug()["loss"] == last.value
    with pytest.raises(ConfigError, match="is no folder of a trial"):
        experiment.replay(run.path)


def test_members_that_end_within_an_epoch_go_on_with_the_rows_that_their_line_has_left(
    spark: SparkSession, root: str
) -> None:
    """Each interval makes 4 of the 10 steps of an epoch of a DataFrame."""

    def train(rate: float) -> dict[str, float]:
        from sparkdl import data

        batches = data.dataset(batch_size_per_worker=4, shuffle=True).as_numpy()
        batches.state_dict()
        done: list[tuple[int, list[int]]] = []
        if before := context.get_checkpoint():
            state, done = json.loads(Path(before, "state.json").read_text())
            batches.load_state_dict(state)
        goal = len(done) + 4
        while len(done) < goal:
            epoch = batches.state_dict()["epoch"]
            for ids in batches:
                done.append((epoch, ids.tolist()))
                if len(done) == goal:
                    break
        Path("state").mkdir()
        Path("state", "state.json").write_text(json.dumps([batches.state_dict(), done]))
        context.report({"loss": -rate}, checkpoint="state")
        uses = Counter((epoch, i) for epoch, ids in done for i in ids)
        first = {i for epoch, i in uses if epoch == 0}
        return {"loss": -rate, "most": max(uses.values()), "first": len(first), "all": len(uses)}

    run = experiment.search(
        train,
        SPACE,
        algorithm={"pbt": {"population": 2, "quantile": 0.5}},
        num_trials=5,
        data=spark.range(40),
        parallelism=1,  # So that a member that has trained is always compared with the other.
        **quiet(root, metric="loss", direction="min", seed=5),
    )
    members = {trial.number: trial.member for trial in run.trials}
    assert any(t.parent is not None and members[t.parent] != t.member for t in run.trials)
    for trial in run.trials:
        rows = 16 * len(line_of(run, trial.number))
        found = [trial.outputs[name] for name in ("most", "first", "all")]
        assert found == [1, min(rows, 40), rows], trial.number
        assert list(Path(trial.path, "rows").glob("*.json"))  # Other trials may need it.


def test_population_is_resumed_and_extended(root: str) -> None:
    options = quiet(root, metric="loss", direction="min", seed=5)
    run = experiment.search(descend, SPACE, algorithm=ALGORITHM, num_trials=6, **options)
    resumed = checked(experiment.resume(run.path, num_trials=9, progress=False))
    assert resumed.counts() == {"COMPLETE": 9}
    assert [t.params for t in resumed.trials[:6]] == [t.params for t in run.trials]
    with pytest.raises(ConfigError, match="cannot be changed to 'tpe'"):
        experiment.resume(run.path, algorithm="tpe", num_trials=10, progress=False)


def test_failed_interval_is_replaced_by_a_better_member(root: str) -> None:
    def train(x: float) -> float:
        before = context.get_checkpoint()
        if before is None and context.trial == 2:
            raise ValueError("diverged")
        Path("state").mkdir()
        Path("state", "trial").write_text(str(context.trial))
        context.report(x, checkpoint="state")
        return x if before else x + 1

    run = experiment.search(
        train, {"x": spaces.Float(0, 1)}, algorithm=ALGORITHM, num_trials=8, **quiet(root)
    )
    assert [str(trial.state) for trial in run.trials].count("FAILED") == 1
    follower = next(t for t in run.trials[3:] if t.member == 2)
    assert follower.parent in (0, 1, 3)
    parent = run.trials[follower.parent]
    given = json.loads(Path(parent.checkpoint or "", "trial").read_text())
    assert given == parent.number


def test_function_without_a_checkpoint_ends_the_run(root: str) -> None:
    with pytest.raises(FunctionError, match=r"trial \d has committed no checkpoint") as raised:
        experiment.search(
            lambda rate: rate, SPACE, algorithm=ALGORITHM, num_trials=8, **quiet(root)
        )
    assert raised.value.run.state == "FAILED"  # type: ignore[attr-defined]


def test_cancelled_population_goes_on(root: str, tmp_path: Path) -> None:
    def train(x: float) -> float:
        Path("state").mkdir()
        Path("state", "x").write_text(str(x))
        if context.trial >= 4 and not Path(tmp_path, "go").exists():
            time.sleep(300)
        context.report(x, checkpoint="state")
        return x

    space = {"x": spaces.Float(0, 1)}
    options: Any = quiet(root, seed=2, wait=False)
    run = experiment.search(train, space, algorithm=ALGORITHM, num_trials=8, **options)
    assert eventually(lambda: any(trial.state == "RUNNING" for trial in run.trials[4:]))
    run.cancel()
    with pytest.raises(RunStoppedError):
        run.wait()
    (tmp_path / "go").touch()
    resumed = experiment.resume(run.path, progress=False, wait=True)
    assert resumed.counts() == {"COMPLETE": 8}
    assert all(trial.parent is not None for trial in resumed.trials[4:])


def test_trial_of_another_search_has_no_schedule(root: str) -> None:
    run = experiment.launch(lambda x: x, {"x": [1]}, **quiet(root))
    with pytest.raises(ConfigError, match="has no schedule"):
        experiment.replay(run.trials[0], progress=False)
