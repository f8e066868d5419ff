"""Trials that pause and go on from their checkpoints, on embedded Spark, as users call them."""

import pytest

from sparkdl import experiment
from sparkdl import search as spaces
from sparkdl.errors import ConfigError
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]

SPACE = {"rate": spaces.Float(0.0, 1.0)}
EPOCHS = 4


def climb(rate: float) -> dict[str, float]:
    """Train for four epochs, and count the epochs of all processes."""
    import json
    from pathlib import Path

    from sparkdl import context

    before = context.get_checkpoint()
    state = json.loads(Path(before, "state").read_text()) if before else {"epoch": 0, "trained": 0}
    for epoch in range(state["epoch"], EPOCHS):
        state = {"epoch": epoch + 1, "trained": state["trained"] + 1}
        Path("state").mkdir(exist_ok=True)
        Path("state", "state").write_text(json.dumps(state))
        context.report({"score": rate * (epoch + 1)}, step=epoch)
        # Another call commits, as the callbacks Report and Checkpoint of Keras do.
        context.report({"score": rate * (epoch + 1)}, step=epoch, checkpoint="state")
    return {"score": rate * EPOCHS, "trained": state["trained"]}


def test_trials_pause_after_the_commit_and_go_on_in_another_process(root: str) -> None:
    run = experiment.search(
        climb,
        SPACE,
        algorithm="bohb",
        pruner={"asha": {"promote": True, "reduction": 2, "max_reports": EPOCHS}},
        num_trials=6,
        # With two at a time, a better trial may reach each rung right after a worse one, and none
        # waits.
        parallelism=1,
        **quiet(root, metric="score", seed=3),
    )
    assert run.counts().keys() == {"COMPLETE", "PRUNED"}
    for trial in run.trials:
        num_epochs = len(trial.history)
        assert num_epochs == (EPOCHS if trial.state == "COMPLETE" else min(2, num_epochs))
        assert trial.history.index.tolist() == list(range(num_epochs))
        assert trial.checkpoints[-1].step == num_epochs - 1
        if trial.state == "COMPLETE":
            assert trial.outputs["trained"] == EPOCHS  # No epoch was trained again.
    assert max(trial.attempts for trial in run.trials) > 1
    assert run.best.value == max(trial.value or 0.0 for trial in run.trials)
    resumed = experiment.resume(run.path, num_trials=7, progress=False)
    assert len(resumed.trials) == 7
    assert not {"PAUSED", "WAITING"} & resumed.counts().keys()


def weigh(rate: float) -> dict[str, float]:
    """Report two metrics with a call for each, of which the second commits."""
    from pathlib import Path

    from sparkdl import context

    Path("state").mkdir(exist_ok=True)
    Path("state", "state").write_text("1")
    for epoch in range(context.current().reported[0], EPOCHS):
        context.report({"score": rate * (epoch + 1)}, step=epoch)
        context.report({"cost": 2 - rate}, step=epoch, checkpoint="state")
    return {"score": rate * EPOCHS, "cost": 2 - rate}


def test_trials_of_two_metrics_pause_and_say_why(root: str) -> None:
    run = experiment.search(
        weigh,
        SPACE,
        pruner={"asha": {"promote": True, "reduction": 2, "max_reports": EPOCHS}},
        num_trials=4,
        parallelism=1,
        **quiet(root, metric=["score", "cost"], direction=["max", "min"], seed=3),
    )
    best = max(run.trials, key=lambda trial: trial.params["rate"])  # It is so in both metrics.
    assert run.pareto == [best]
    for trial in run.trials:
        assert (trial.state == "PRUNED") == (trial.note or "").startswith("paused at report ")
        assert len(trial.history) == (EPOCHS if trial.state == "COMPLETE" else trial.attempts)


def test_processes_of_a_gang_cannot_pause(root: str) -> None:
    with pytest.raises(ConfigError, match="workers_per_trial is 2, but the pruner promotes"):
        experiment.search(
            climb,
            SPACE,
            pruner={"asha": {"promote": True}},
            num_trials=2,
            workers_per_trial=2,
            **quiet(root, metric="score"),
        )
