"""The best trial is the best: whole configurations, the weights of the value, times, tables."""

import math
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkdl import checkpoints
from sparkdl.errors import NoCompleteTrialError
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.runs import Run, Trial, table
from sparkdl.runs.events import (
    NewTrial,
    ParameterSuggested,
    RunEnded,
    RunStarted,
    TrialChanged,
    TrialsAdded,
)
from sparkdl.runs.history import load
from sparkdl.runs.opening import OpenRun, RunDescription, continue_run, open_run
from sparkdl.runs.ranking import pareto, ranked
from sparkdl.runs.states import RunState, TrialState, evaluate_metric
from sparkdl.runs.trial import Usage
from sparkdl.runs.views.report import write_report

NAN = math.nan

# The only number tells another direction than that of the run.
UNCLEAR = evaluate_metric({"score": 1.0}, {}, None, direction="min").note


def trials_of(*rows: list[float], **metrics: float) -> list[Trial]:
    """Trials of configurations with three repeats; NaN is INVALID, infinity is not there yet."""
    trials = []
    for configuration, values in enumerate(rows):
        for value in values:
            trial = Trial(len(trials), {"c": configuration}, "", configuration=configuration)
            is_bad = math.isnan(value)
            trial.state = TrialState.INVALID if is_bad else TrialState.COMPLETE
            trial.value = None if is_bad else value
            trial.metrics = {} if is_bad else {"score": value, **metrics}
            trials.append(trial)
    return trials


# ---- repeats


def test_a_note_that_all_trials_have_is_told_once() -> None:
    trials = trials_of([0.5], [0.75], [0.25])
    trials[0].note = trials[2].note = "model.keras was saved and not returned"
    run = run_of(trials)
    assert str(run).count("saved and not returned") == 1
    assert "Trial 0 and 1 more: model.keras was saved and not returned" in str(run)
    trials[1].note = "another"
    assert str(run_of(trials)).count("saved and not returned") == 2


def test_a_configuration_that_diverged_with_one_seed_is_not_the_best() -> None:
    trials = trials_of([0.99, NAN, NAN], [0.95, 0.94, 0.95], [0.97])
    order = [trial.configuration for trial in ranked(trials, "max", repeats=3)]
    assert order == [1, 1, 1, 0, 2]
    assert ranked(trials, "max")[0].configuration == 0  # Without repeats each counts alone.


def test_incomplete_configurations_are_ranked_where_none_is_whole() -> None:
    trials = trials_of([0.9, NAN, NAN], [0.8])
    assert [t.number for t in ranked(trials, "max", repeats=3)] == [0, 3]


def test_pareto_front_compares_means_of_whole_configurations() -> None:
    trials = trials_of([0.9, 0.9], [0.99, NAN], [0.5, 0.7], [1.0, 0.6])
    for trial, latency in zip(trials, (10, 20, 1, 0, 30, 30, 5, 5), strict=True):
        trial.metrics["latency"] = latency
    objectives = {"score": "max", "latency": "min"}
    # Configuration 1 has diverged; 2 is dominated by 0; 3 has the mean 0.8 with less latency.
    assert [t.number for t in pareto(trials, objectives, repeats=2)] == [0, 6]


def run_of(trials: list[Trial], repeats: int = 1, **fields: Any) -> Run:
    run = Run("r", "/r", "r", "search", "score", trials=trials, repeats=repeats, **fields)
    for trial in trials:
        trial.metric = run.metric
    return run


def without_metric(trials: list[Trial]) -> Run:
    return Run("r", "/r", "r", "launch", trials=trials)


def test_table_says_how_many_repeats_a_mean_is_of() -> None:
    text = str(run_of(trials_of([0.99, NAN, NAN], [0.95, 0.94, 0.96]), repeats=3))
    assert "0.99000 ± 0 (1 of 3)" in text
    assert "Best: trial 5, score 0.96, c=1 (highest score; mean 0.95000 ± 0.01)" in text


# ---- messages and tables


def test_the_direction_is_shown_where_the_best_is_shown(root: str) -> None:
    run = run_of(trials_of([0.5], [0.25]), direction="min")
    assert run.goal == "lowest score"
    assert "Best: trial 1, score 0.25, c=1 (lowest score)" in str(run)
    assert "lowest score" in run._repr_html_()
    assert run_of([], objectives={"a": "max", "b": "min"}).goal == "highest a, lowest b"


def test_a_pruned_trial_shows_its_last_value_in_every_table(root: str) -> None:
    trials = trials_of([0.5], [0.25])
    pruned = Trial(2, {"c": 2}, "", state=TrialState.PRUNED, metrics={"value": 0.125})
    run = run_of([*trials, pruned])
    assert pruned.value is None
    assert pruned.last_value == 0.125
    assert "0.12500" in str(run)
    assert "0.12500" in run._repr_html_()
    assert run.to_pandas()["metric.value"].tolist()[2] == 0.125
    assert run.best.number == 0


def test_to_pandas_has_the_reported_metrics_and_the_configuration() -> None:
    trials = trials_of([0.5, 0.25], [1.0, 2.0], loss=0.5)
    frame = run_of(trials, repeats=2).to_pandas()
    assert frame["configuration"].tolist() == [0, 0, 1, 1]
    assert frame.groupby("configuration")["metric.score"].mean().tolist() == [0.375, 1.5]
    assert frame["metric.loss"].tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("trials", "state", "message"),
    [
        (trials_of([NAN]), RunState.FAILED, "run.failed or"),
        ([Trial(0, {}, "")], RunState.RUNNING, "The run goes on"),
        ([Trial(0, {}, "", state=TrialState.PRUNED)], RunState.COMPLETE, "larger grace"),
        (
            [Trial(0, {}, "", state=TrialState.COMPLETE, metrics={"a": 1.0, "b": 2.0})],
            RunState.COMPLETE,
            "returned a, b: name one of them with metric=",
        ),
        ([Trial(0, {}, "", state=TrialState.COMPLETE)], RunState.COMPLETE, "returned no number"),
        (
            [Trial(0, {}, "", state=TrialState.COMPLETE, metrics={"score": 1.0}, note=UNCLEAR)],
            RunState.COMPLETE,
            "The trial has no value: the only number is 'score'.*Pass metric='score' and direct",
        ),
    ],
)
def test_a_missing_best_trial_is_explained(
    trials: list[Trial], state: RunState, message: str
) -> None:
    run = run_of(trials, state=state)
    with pytest.raises(NoCompleteTrialError, match=message):
        _ = run.best


def test_table_without_values_says_why() -> None:
    trials = [
        Trial(i, {"c": i}, "", state=TrialState.COMPLETE, metrics={"a": 1.0, "b": 2.0})
        for i in range(2)
    ]
    assert "No best trial. The trials returned a, b: name one of them" in str(run_of(trials))


def test_numbers_without_a_metric_have_a_column_each() -> None:
    trials = [
        Trial(i, {"c": i}, "", state=TrialState.COMPLETE, metrics={"accuracy": i / 4, "c": 8.0})
        for i in range(2)
    ]
    trials[1].outputs = {"c": 8}  # A whole number is shown as one.
    run = without_metric(trials)
    lines = str(run).splitlines()
    titles = ["trial", "state", "c", "accuracy", "c", "(returned)", "duration", "training"]
    assert lines[1].split() == titles
    assert lines[3].split() == ["1", "COMPLETE", "1", "0.25000", "8"]
    assert "name one of them with metric=" in lines[4]
    assert "0.25000" in run._repr_html_()
    single = str(without_metric(trials[:1]))
    assert "accuracy" in single.splitlines()[1]
    trials[0].metrics |= {f"more{i}": 1.0 for i in range(20)}
    assert "14 more numbers are in trial.metrics" in str(without_metric(trials))


def test_whole_numbers_stay_whole_in_the_data_frame() -> None:
    trials = trials_of([0.5], [0.25])
    trials[0].outputs = {"epochs": 3, "loss": 1.0}
    frame = run_of(trials).to_pandas()
    assert frame["output.epochs"].tolist()[0] == 3
    assert str(frame["output.epochs"].dtype) == "Int64"
    assert str(frame["output.loss"].dtype) == "float64"


def test_a_note_about_an_output_is_shown_in_the_row() -> None:
    trials = trials_of([0.5], [0.25])
    trials[1].note = "the returned 'model' is 'x.keras', which is no file; it is kept as text"
    run = run_of(trials)
    assert "the returned 'model' is 'x.keras'" in str(run)
    assert run.to_pandas()["note"].tolist()[1] == trials[1].note
    changed = TrialChanged(number=0, state=TrialState.COMPLETE, value=1.0, note="less")
    trials[0].apply(changed)
    assert trials[0].note == "less"


def test_a_live_run_can_be_shown_while_trials_are_added() -> None:
    run = run_of(trials_of(*[[i / 100] for i in range(60)]))
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            number = len(run.trials)
            run.trials.append(Trial(number, {"c": number}, "", state=TrialState.FAILED))
            run.trials[number % 60].state = TrialState.FAILED
            run.trials[(number + 1) % 60].state = TrialState.COMPLETE

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(15):
            assert run._repr_html_()
            assert str(run)
            del run.trials[60:]
    finally:
        stop.set()
        thread.join()


def test_parameters_that_are_shown_do_not_change_while_an_objective_asks_for_more() -> None:
    run = run_of(trials_of([0.5]))
    shown = iter(run.trials[0].params.items())
    next(shown)
    event = ParameterSuggested(number=0, name="more", value=1, distribution="")
    run.apply(event)
    assert "more" not in dict(shown)  # An iterator over a dict that has grown raises.
    assert run.trials[0].params["more"] == 1


def test_report_shows_means_and_fronts_as_the_run_does(root: str) -> None:
    description = RunDescription(
        id="two",
        name="two",
        kind="search",
        description="with token ghp" + "_" + "F4ke" * 10,
        metric="score",
        direction="max",
        params=[{"c": i} for i in range(3)],
        seed=0,
        secrets=(),
        facts={"objectives": {"score": "max", "latency": "min"}},
    )
    opened = open_run(root, description, "error")
    for number, (score, latency) in enumerate([(1.0, 5.0), (2.0, 6.0), (0.5, 7.0)]):
        metrics = {"score": score, "latency": latency}
        opened.record(
            TrialChanged(number=number, state=TrialState.COMPLETE, value=score, metrics=metrics)
        )
    opened.record(RunEnded(state=RunState.COMPLETE))
    page = Path(write_report(opened.run)).read_text()
    assert "Best: trial" not in page
    assert "Pareto front of highest score, lowest latency: trials 0, 1" in page
    assert "F4keF4ke" not in page
    opened.owner.release()


# ---- checkpoints


@pytest.fixture
def trained(tmp_path: Path) -> Trial:
    """A trial of three epochs, of which the second was the best."""
    source = tmp_path / "model"
    source.mkdir()
    folder = tmp_path / "trial"
    for step, value in enumerate([0.5, 0.9, 0.7]):
        (source / "weights").write_text(str(value))
        checkpoints.commit(source, str(folder), step, {"accuracy": value})
    trial = Trial(0, {}, str(folder), state=TrialState.COMPLETE)
    trial.metric = "accuracy"
    return trial


def weights(url: str | None) -> str:
    assert url
    return Path(url, "weights").read_text()


def test_checkpoint_has_the_weights_of_the_value(trained: Trial) -> None:
    trained.value = 0.7
    assert weights(trained.checkpoint) == "0.7"
    trained.value = 0.9  # The function returned the value of its best epoch.
    assert weights(trained.checkpoint) == "0.9"
    trained.value = 0.65  # Measured on other data, after the last epoch.
    assert weights(trained.checkpoint) == "0.7"
    trained.value, trained.state = None, TrialState.PRUNED
    assert weights(trained.checkpoint) == "0.7"


def test_best_checkpoint_and_all_checkpoints(trained: Trial, tmp_path: Path) -> None:
    assert weights(trained.best_checkpoint) == "0.9"
    trained.direction = "min"
    assert weights(trained.best_checkpoint) == "0.5"
    assert [checkpoint.metrics["accuracy"] for checkpoint in trained.checkpoints] == [0.5, 0.9, 0.7]
    without = Trial(1, {}, str(tmp_path / "none"))
    assert (without.checkpoint, without.best_checkpoint, without.checkpoints) == (None, None, [])


def test_reported_values_are_those_of_the_metric(tmp_path: Path) -> None:
    trial = Trial(0, {}, str(tmp_path))
    rows = ['{"step": 0, "metrics": {"acc": 0.5, "loss": 2}}', '{"step": 1, "metrics": {"acc": 1}}']
    storage.write(TrialPaths(trial.path).metrics, "\n".join(rows) + "\n")
    assert trial.reported_values() == [1]
    trial.metric = "loss"
    assert trial.reported_values() == [2]


# ---- times


def changed(state: str, time: float, **fields: Any) -> TrialChanged:
    return TrialChanged(number=0, state=TrialState(state), time=time, **fields)


def test_usage_of_attempts_that_were_ended_from_outside_is_known() -> None:
    for end in ({"state": "PRUNED"}, {"state": "CANCELLED"}):
        trial = Trial(0, {}, "")
        trial.apply(changed("RUNNING", 100.0, attempt=0))
        trial.apply(changed(time=107.5, **end))
        assert trial.usage == Usage(running_s=7.5)
        assert trial.duration_s == 7.5


def test_usage_counts_all_attempts_once() -> None:
    trial = Trial(0, {}, "")
    trial.apply(changed("RUNNING", 100.0, attempt=0))
    trial.apply(changed("LOST", 110.0, attempt=0))  # Spark repeats the task by itself.
    trial.apply(changed("RUNNING", 111.0, attempt=1))
    usage = {"starting_s": 1.0, "running_s": 4.0, "cpu_s": 3.0, "peak_memory_mb": 5.0}
    trial.apply(changed("LOST", 116.0, attempt=1))
    trial.apply(changed("WAITING", 116.0, attempt=1, failure="lost executor", usage=usage))
    trial.apply(changed("RUNNING", 117.0, attempt=2))
    trial.apply(changed("COMPLETE", 122.0, attempt=2, value=1.0, usage=usage))
    expected = Usage(starting_s=2.0, running_s=18.0, cpu_s=6.0, peak_memory_mb=5.0)
    assert trial.usage == expected
    run = run_of([trial, Trial(1, {}, "", usage=expected)])
    assert run.usage == Usage(starting_s=4.0, running_s=36.0, cpu_s=12.0, peak_memory_mb=5.0)


def test_duration_is_that_of_all_sessions() -> None:
    run = run_of([])
    new = NewTrial(number=0, params={}, seed=0)
    run.apply(RunStarted(time=100.0))
    run.apply(TrialsAdded(time=101.0, trials=[new]))
    run.apply(changed("RUNNING", 124.0, attempt=0))  # Then the driver was killed.
    run.apply(RunStarted(time=500.0))
    run.apply(RunEnded(time=510.0, state=RunState.CANCELLED, duration_s=10.0))
    run.apply(RunStarted(time=900.0))
    run.apply(RunEnded(time=905.0, state=RunState.COMPLETE, duration_s=5.0))
    assert (run.duration_s, run.num_sessions) == (39.0, 3)
    assert "in 39.0 s" in str(run)


def test_a_resumed_run_is_loaded_with_the_time_of_all_sessions(root: str) -> None:
    description = RunDescription(
        id="one",
        name="one",
        kind="launch",
        description=None,
        metric=None,
        direction="max",
        params=[{}],
        seed=0,
        secrets=("tea-pot",),
        facts={"repeats": 2},
    )

    def end(opened: OpenRun, state: RunState, seconds: float) -> None:
        reason = "ValueError: a tea-pot, password=hunter" + "22"
        opened.record(RunEnded(state=state, duration_s=seconds, reason=reason))
        opened.owner.release()

    opened = open_run(root, description, "error")
    end(opened, RunState.CANCELLED, 24.0)
    end(continue_run(opened.run.path, secrets=("tea-pot",)), RunState.COMPLETE, 10.7)
    run = load(opened.run.path)
    assert run.duration_s == pytest.approx(34.7)
    assert run.repeats == 2
    assert run.reason == "ValueError: a ***, password=***"
    assert table.text(run.view()).startswith("Run one: COMPLETE (ValueError: a ***")


def test_a_trial_is_shown_in_one_line() -> None:
    trial = Trial(3, {"lr": 0.1}, "/r/3", state=TrialState.COMPLETE, value=0.9754321, metric="acc")
    assert repr(trial) == "<Trial 3 COMPLETE acc=0.975432 lr=0.1>"
    assert repr(Trial(4, {"lr": 0.2}, "/r/4")) == "<Trial 4 WAITING lr=0.2>"


def test_a_run_without_work_left_is_finished_by_a_corrected_function() -> None:
    def finishing(kind: str, trials: list[Trial], num_trials: int | None = None) -> str:
        run = Run("r", "/r", "r", kind, trials=trials, num_trials=num_trials)
        run.state = RunState.FAILED
        return run.how_to_finish()

    failed = [Trial(i, {}, "", state=TrialState.FAILED) for i in range(2)]
    call = "experiment.resume('/r', train=train, retry='failed')"
    corrected = f"After correcting the training function: {call}. "
    assert finishing("launch", failed) == finishing("search", failed, 2) == corrected
    unfinished = [
        finishing("launch", [*failed, Trial(2, {}, "")]),
        finishing("search", failed, 3),
        finishing("search", failed),
    ]
    assert unfinished == ["To finish it: experiment.resume('/r'). "] * 3


REMEDY = "Open it by its whole path, or pass versioned_resources=."


@pytest.mark.parametrize("field", ["error", "note"])
def test_a_message_is_cut_between_words_and_stands_whole_below_the_table(field: str) -> None:
    words = [f"word{number}" for number in range(40)]
    message = f"FileNotFoundError: {' '.join(words)}. {REMEDY}"
    trials = [Trial(i, {"c": i}, "", state=TrialState.FAILED, attempts=1) for i in range(3)]
    for trial in trials[:2]:
        setattr(trial, field, message)
    if field == "note":
        trials[2].note = "another one, as a note of all trials has no column"
    run = run_of(trials, state=RunState.FAILED)
    rows, _, foot = str(run).partition("Trial 0 and 1 more: ")
    assert foot.startswith(f"{message}\n")
    cut = [row for row in rows.splitlines() if row.endswith("...")]
    assert len(cut) == 2
    for row in cut:
        assert row.removesuffix("...").split()[-1] in words
    assert REMEDY in run._repr_html_()
