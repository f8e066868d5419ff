"""The driver's loop without Spark: searches whose trials go on from checkpoints, over all endings.

Each algorithm is population based training, or a pruner that pauses trials and promotes the best.
"""

import dataclasses
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkdl import checkpoints
from sparkdl.cluster.process.trial_folder import last_reported
from sparkdl.errors import ConfigError, TrialPruned
from sparkdl.files import storage
from sparkdl.runner.again.resume import resume_run
from sparkdl.runs import Run, Trial
from sparkdl.runs.history import load
from sparkdl.training.reporter import Reporter, Rungs
from tests.helpers.in_memory_cluster import (
    Attempt,
    InMemoryCluster,
    Outcome,
    lost,
    pruned,
    raised,
    returned,
)
from tests.helpers.loops import (
    background,
    events,
    journal_states,
    new_loop,
    request_of,
)
from tests.helpers.runs import segments
from tests.helpers.schedules import EPOCHS, SCHEDULES, Training, loop_of, resumed, search_of

pytestmark = pytest.mark.usefixtures("quick_polls")


def interrupted(root: str, name: str) -> tuple[Run, Training]:
    """A search that was cancelled when its first six trials had paused or ended."""
    is_over = threading.Event()

    def stop(attempt: Attempt, epoch: int) -> None:
        if attempt.number >= 6 and not is_over.is_set():
            loop.cancel(None)
            raise attempt._end.get()  # type: ignore[misc]

    training = Training(stop)
    loop = loop_of(root, InMemoryCluster(training), name)
    with background(loop):
        pass
    is_over.set()
    return loop.run, training


class TrainingError(Exception):
    """The exception that the function of a trial raises."""


def failing(training: Training) -> Callable[[Attempt], Outcome]:
    """A training of which a `TrainingError` is the end."""

    def call(attempt: Attempt) -> Outcome:
        try:
            return training(attempt)
        except TrainingError as exc:
            return raised(f"ValueError: {exc}")

    return call


def check_complete(run: Run, training: Training, max_repeats: int = 1) -> None:
    """Check that the search has done what it was asked for, and trained no epoch in vain."""
    assert (run.state, run.reason) == ("COMPLETE", None)
    assert len(run.trials) == 12
    assert {str(t.state) for t in run.trials} <= {"COMPLETE", "PRUNED"}
    assert run.best.value == max(t.value for t in run.trials if t.value is not None)
    assert max(training.epochs.values()) <= max_repeats
    for trial in run.trials:
        assert trial.state != "PAUSED"
        if trial.member is None and trial.state == "COMPLETE":
            assert trial.history.index.tolist() == list(range(EPOCHS))
    stored = load(run.path)
    assert [(t.state, t.value) for t in stored.trials] == [(t.state, t.value) for t in run.trials]


@pytest.mark.parametrize("name", SCHEDULES)
def test_search_runs_to_its_end_and_repeats_no_epoch(root: str, name: str) -> None:
    training = Training()
    loop = loop_of(root, InMemoryCluster(training), name)
    with background(loop):
        pass
    check_complete(loop.run, training)


@pytest.mark.parametrize("name", SCHEDULES)
def test_lost_executors_repeat_at_most_the_epoch_in_which_they_were_lost(
    root: str, name: str
) -> None:
    lock, losses = threading.Lock(), set()

    def lose(attempt: Attempt, epoch: int) -> None:
        with lock:
            if (attempt.number + epoch) % 3 == 0 and (attempt.number, epoch) not in losses:
                losses.add((attempt.number, epoch))
                raise lost()

    training = Training(lose)
    loop = loop_of(root, InMemoryCluster(training), name)
    with background(loop):
        pass
    assert losses
    check_complete(loop.run, training)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("ending", ["cancelled", "timeout_s=0.1 is over"])
def test_search_that_is_cancelled_or_times_out_goes_on_without_a_loss(
    root: str, name: str, ending: str
) -> None:
    """The first trials pause or complete; the seventh runs until its job is cancelled."""
    is_over = threading.Event()

    def stop(attempt: Attempt, epoch: int) -> None:
        if attempt.number < 6 or is_over.is_set():
            return
        if ending == "cancelled":
            loop.cancel(None)
        else:  # However long the first trials took.
            rules = loop.rules
            rules._options = dataclasses.replace(rules._options, timeout_s=0.1)
        raise attempt._end.get()  # type: ignore[misc]

    training = Training(stop)
    loop = loop_of(root, InMemoryCluster(training), name)
    with background(loop):
        pass
    is_over.set()
    run = loop.run
    assert (run.state, run.reason) == ("CANCELLED", ending)
    paused = [t.number for t in run.trials if t.state == "PAUSED"]
    assert bool(paused) == (name != "pbt")
    assert {str(t.state) for t in run.trials} <= {"COMPLETE", "PAUSED", "PRUNED", "CANCELLED"}
    assert [t.number for t in load(run.path).trials if t.state == "PAUSED"] == paused
    steps = {number: run.trials[number].history.index.tolist() for number in paused}
    again = resumed(run.path, InMemoryCluster(training), name, reopen=True)
    check_complete(again, training, max_repeats=2)
    # Nobody has trained an epoch before the pause again.
    assert all(training.epochs[number, e] == 1 for number in paused for e in steps[number])


@pytest.mark.parametrize("name", ["asha", "hyperband", "pbt"])
def test_driver_that_is_killed_at_any_moment_is_resumed(
    root: str, name: str, tmp_path: Path
) -> None:
    training = Training()
    loop = loop_of(root, InMemoryCluster(training, num_slots=1), name, parallelism=1)
    with background(loop):
        pass
    lines = segments(Path(loop.run.path))[-1].read_text().splitlines(keepends=True)
    whole = [(t.params, t.value) for t in loop.run.trials]
    for num_lines in range(4, len(lines) - 1, 19):
        path = shutil.copytree(loop.run.path, tmp_path / name / str(num_lines) / "run")
        shutil.rmtree(path / "owner")
        (path / "summary.json").unlink()
        segments(path)[-1].write_text("".join(lines[:num_lines]))
        run = resumed(str(path), InMemoryCluster(Training(), num_slots=1), name, reopen=True)
        assert run.state == "COMPLETE"
        assert len(run.trials) == 12
        # What was proposed before is the same; a random sampler draws anew after a resume.
        known = json.loads("[" + ",".join(lines[:num_lines]) + "]")
        num_known = sum(len(e["trials"]) for e in known if e["event"] == "trials")
        assert [t.params for t in run.trials[:num_known]] == [p for p, _ in whole[:num_known]]
        assert not any(t.state in ("PAUSED", "WAITING", "CANCELLED") for t in run.trials)


# ---- members of a population


@pytest.mark.parametrize("trial_value", ["last", "best"])
def test_member_continues_from_the_weights_that_it_was_chosen_for(
    root: str, trial_value: str
) -> None:
    """Each interval is best in its first epoch, and collapses in its last one."""
    begun: dict[int, tuple[str, int] | None] = {}

    def train(attempt: Attempt) -> Outcome:
        spec = attempt.task.trial
        begun[spec.number] = spec.init_from
        for epoch, share in enumerate((1.0, 0.5, 0.0)):
            metrics = {"score": share * spec.params["x"]}
            attempt.report(epoch, **metrics)
            made = Path(attempt.paths.folder, "made")
            made.mkdir(exist_ok=True)
            (made / "epoch").write_text(str(epoch))
            checkpoints.commit(str(made), attempt.paths.folder, epoch, metrics, attempt.attempt)
        return returned(score=0.0)

    request = request_of(search=search_of("pbt"), metric="score", seed=1, trial_value=trial_value)
    loop = new_loop(root, InMemoryCluster(train), request)
    with background(loop):
        pass
    trials = loop.run.trials
    assert loop.run.counts() == {"COMPLETE": 12}
    for trial in trials[4:]:
        parent = trials[trial.parent or 0]
        folder, number = begun[trial.number] or ("", 0)
        (chosen,) = [c for c in checkpoints.committed(folder) if c.number == number]
        assert folder == parent.path
        assert (chosen.url, chosen.metrics) == (parent.checkpoint, {"score": parent.value})
        assert chosen.step == (0 if trial_value == "best" else 2)


def test_member_that_fails_at_once_leaves_the_others_their_intervals(root: str) -> None:
    """Trial 0 has the only parameters that diverge; the other members are slow."""
    others_have_begun = threading.Barrier(4)

    def diverge(attempt: Attempt, epoch: int) -> None:
        if attempt.number < 4:
            others_have_begun.wait(120.0)
        if attempt.number == 0 or attempt.task.trial.params["x"] == trials[0].params["x"]:
            raise TrainingError("diverged")

    training = Training(diverge)
    loop = loop_of(root, InMemoryCluster(failing(training), num_slots=4), "pbt")
    trials = loop.run.trials
    with background(loop):
        pass
    assert loop.run.state == "COMPLETE"
    assert Counter(trial.member for trial in trials) == {0: 3, 1: 3, 2: 3, 3: 3}
    assert [str(trial.state) for trial in trials].count("FAILED") == 1
    retry = [trial for trial in trials if trial.member == 0][1]
    assert trials[retry.parent or 0].member != 0


# ---- trials that pause


def test_trial_that_is_lost_before_it_asks_pauses_or_goes_on_all_the_same(root: str) -> None:
    """Its executor is lost at each rung, when the checkpoint is committed."""
    lock, losses = threading.Lock(), set()

    def lose(attempt: Attempt, epoch: int) -> None:
        with lock:
            if epoch in (0, 1, 3) and (attempt.number, epoch) not in losses:
                losses.add((attempt.number, epoch))
                raise lost()

    training = Training(before_ask=lose)
    loop = loop_of(root, InMemoryCluster(training), "asha")
    with background(loop):
        pass
    assert {epoch for _, epoch in losses} == {0, 1, 3}
    check_complete(loop.run, training)
    # At a rung, as many as without losses go on.
    reached = Counter(epoch for _, epoch in training.epochs)
    assert reached[0] == 12
    assert 6 <= reached[1] < 12
    assert reached[4] < reached[2] < reached[1]


def test_paused_trial_waits_and_goes_on_as_another_attempt(root: str) -> None:
    training = Training()
    loop = loop_of(root, InMemoryCluster(training), "asha")
    with background(loop):
        pass
    climbed = [t for t in loop.run.trials if t.attempts > 1]
    assert climbed
    for trial in climbed:
        states = journal_states(loop.run, trial.number)
        assert states[:4] == ["RUNNING", "PAUSED", "WAITING", "RUNNING"]
        assert len(trial.spans) == trial.attempts
    assert Counter(str(t.state) for t in loop.run.trials)["PRUNED"] >= 6
    # Each trial has ended once.
    final = Counter(
        event["number"] for event in events(loop.run, "trial") if event["state"] in FINAL
    )
    assert set(final.values()) == {1}


FINAL = ("COMPLETE", "PRUNED", "FAILED", "INVALID", "CANCELLED")


def test_paused_trial_that_is_cancelled_never_goes_on(root: str) -> None:
    done = threading.Event()

    def cancel(attempt: Attempt, epoch: int) -> None:
        trial = loop.run.trials[0]
        if not done.is_set() and trial.state == "PAUSED":
            done.set()
            loop.cancel(0)

    training = Training(cancel)
    loop = loop_of(root, InMemoryCluster(training, num_slots=1), "asha", parallelism=1)
    with background(loop):
        pass
    trial = loop.run.trials[0]
    assert (trial.state, trial.error) == ("CANCELLED", "cancelled")
    assert loop.run.state == "COMPLETE"
    assert journal_states(loop.run, 0)[-1] == "CANCELLED"


def test_search_with_a_target_prunes_those_that_pause(root: str) -> None:
    search = dataclasses.replace(search_of("asha"), stop={"score": 0.01})
    request = request_of(search=search, metric="score", seed=1)
    loop = new_loop(root, InMemoryCluster(Training()), request)
    with background(loop):
        pass
    assert loop.run.state == "COMPLETE"
    assert (loop.run.reason or "").startswith("stop: ")
    assert not [t for t in loop.run.trials if t.state == "PAUSED"]


def test_search_is_patient_with_trials_that_pause(root: str) -> None:
    search = dataclasses.replace(search_of("asha", 40), patience=6)
    loop = new_loop(
        root, InMemoryCluster(Training()), request_of(search=search, metric="score", seed=1)
    )
    with background(loop):
        pass
    assert (loop.run.reason or "").startswith("patience=6")
    assert len(loop.run.trials) < 40


def test_search_is_not_out_of_patience_before_a_trial_is_complete(root: str) -> None:
    search = dataclasses.replace(search_of("hyperband", 60), patience=6)
    request = request_of(search=search, metric="score", seed=1)
    loop = new_loop(root, InMemoryCluster(Training()), request)
    with background(loop):
        pass
    assert loop.run.best.state == "COMPLETE"
    # The first bracket alone has eight trials, of which one reaches its end.
    assert (loop.run.reason or "").startswith("patience=6")
    assert 8 <= len(loop.run.trials) < 60


@pytest.mark.parametrize("name", ["asha", "hyperband"])
def test_more_trials_can_be_added_to_a_search_that_has_ended(root: str, name: str) -> None:
    training = Training()
    loop = loop_of(root, InMemoryCluster(training), name, num_trials=6)
    with background(loop):
        pass
    before = {t.number: str(t.state) for t in loop.run.trials}
    run = resumed(loop.run.path, InMemoryCluster(training), name, reopen=True)
    check_complete(run, training)
    # What has ended is never run again.
    assert {number: str(run.trials[number].state) for number in before} == before
    if name == "hyperband":  # The new trials are the next bracket, whose first rung is 2.
        assert all(len(trial.history) >= 2 for trial in run.trials[6:])


def test_trial_that_is_promoted_after_its_last_report_keeps_its_value(root: str) -> None:
    """Without max_reports, the last report is at a rung; the function returns nothing."""
    training = Training()

    def train(attempt: Attempt) -> Outcome:
        outcome = training(attempt)
        reported = last_reported(str(Path(attempt.paths.folder, "metrics.jsonl")))
        return dataclasses.replace(outcome, outputs={}, reported=reported)

    pruner = {"asha": {"promote": True, "reduction": 2, "grace": EPOCHS}}
    search = dataclasses.replace(search_of("asha"), pruner=pruner)
    request = request_of(search=search, metric="score", seed=1)
    loop = new_loop(root, InMemoryCluster(train), request)
    with background(loop):
        pass
    complete = [t for t in loop.run.trials if t.state == "COMPLETE"]
    assert {str(t.state) for t in loop.run.trials} == {"COMPLETE", "PRUNED"}
    assert any("PAUSED" in journal_states(loop.run, t.number) for t in complete)
    assert all(t.value == t.history["score"].iloc[-1] for t in complete)


def test_search_whose_best_trial_fails_has_another_complete_one(root: str) -> None:
    failed: list[int] = []

    def fail(attempt: Attempt, epoch: int) -> None:
        if epoch and not failed:
            failed.append(attempt.number)
            raise TrainingError("no")

    pruner = {"asha": {"promote": True, "max_reports": EPOCHS}}
    search = dataclasses.replace(search_of("asha", 3), pruner=pruner)
    request = request_of(search=search, metric="score", seed=1, parallelism=1)
    loop = new_loop(root, InMemoryCluster(failing(Training(fail))), request)
    with background(loop):
        pass
    assert loop.run.counts() == {"COMPLETE": 1, "FAILED": 1, "PRUNED": 1}


def test_failed_trials_that_are_tried_again_run(root: str) -> None:
    is_mended = threading.Event()

    def fail(attempt: Attempt, epoch: int) -> None:
        if epoch == 2 and not is_mended.is_set():
            raise TrainingError(f"no {attempt.number}")

    cluster = InMemoryCluster(failing(Training(fail)))
    loop = loop_of(root, cluster, "asha")
    with background(loop):
        pass
    attempts = {t.number: t.attempts for t in loop.run.trials if t.state == "FAILED"}
    assert attempts
    is_mended.set()
    retry = frozenset({"failed"})
    run = resumed(loop.run.path, cluster, "asha", reopen=True, retry=retry)
    assert run.state == "COMPLETE"
    assert all(run.trials[number].attempts > count for number, count in attempts.items())
    assert {str(t.state) for t in run.trials} == {"COMPLETE", "PRUNED"}


# ---- searches that are resumed with other settings


@pytest.mark.parametrize("name", ["asha", "hyperband"])
def test_paused_trials_reach_the_rungs_of_another_pruner(root: str, name: str) -> None:
    before, training = interrupted(root, name)
    paused = [t.number for t in before.trials if t.state == "PAUSED"]
    assert any(len(before.trials[number].history) < 3 for number in paused)
    pruner = {name: {"promote": True, "grace": 3, "reduction": 2, "max_reports": EPOCHS}}
    pruner[name].update({"brackets": 1} if name == "hyperband" else {})
    run = resumed(before.path, InMemoryCluster(training), name, pruner, reopen=True)
    check_complete(run, training, max_repeats=2)
    assert all(len(run.trials[number].history) >= 3 for number in paused)


def test_pruner_that_does_not_promote_is_refused_while_trials_are_paused(root: str) -> None:
    run, _ = interrupted(root, "asha")
    before = events(run)
    cluster = InMemoryCluster()
    for pruner in (None, "asha", {"hyperband": {"max_reports": EPOCHS}}):
        with pytest.raises(ConfigError, match="has PAUSED trials, which only a pruner with"):
            resume_run(
                run.path, None, {"pruner": pruner}, frozenset(), None, {"progress": False}, cluster
            )
    assert (events(run), cluster.submitted) == (before, [])


def test_first_trial_that_is_paused_shows_that_the_program_works(root: str) -> None:
    run, training = interrupted(root, "asha")
    assert run.trials[0].state == "PAUSED"
    running: set[int] = set()
    others_run = threading.Event()

    def train(attempt: Attempt) -> Outcome:
        running.add(attempt.number)
        if len(running) > 1:
            others_run.set()
        assert others_run.wait(120.0)
        return training(attempt)

    options = {"progress": False, "smoke": True}
    again = resume_run(
        run.path, lambda x: x, {}, frozenset(), None, options, InMemoryCluster(train)
    )
    check_complete(again, training, max_repeats=2)


def test_trial_without_a_checkpoint_begins_again_and_a_note_says_so(root: str) -> None:
    notes: list[str] = []

    def train(attempt: Attempt) -> Outcome:
        spec = attempt.task.trial
        rungs = Rungs(spec.rungs, spec.reported, ["score"])
        reporter = Reporter(
            Path(attempt.paths.folder), "metrics.jsonl", True, attempt.attempt, rungs=rungs
        )
        try:
            for epoch in range(EPOCHS):
                metrics = {"score": spec.params["x"] * (epoch + 1)}
                reporter.write(metrics, epoch)
                reporter.raise_if_paused(metrics, has_checkpoint=False)
        except TrialPruned:
            return pruned()
        return returned(score=spec.params["x"])

    loop = loop_of(root, InMemoryCluster(train), "asha")
    loop.source._notify = notes.append  # type: ignore[attr-defined]
    with background(loop):
        pass
    assert loop.run.state == "COMPLETE"
    assert len([note for note in notes if "pauses without a checkpoint" in note]) == 1
    trial: Trial
    for trial in loop.run.trials:
        if trial.state == "COMPLETE":
            assert trial.history.index.tolist() == list(range(EPOCHS))
    assert storage.exists(loop.run.path)
