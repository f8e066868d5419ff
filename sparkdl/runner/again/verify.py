"""Runs on the driver. Train a trial again in a place of its own, and compare the results."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.cluster.base import Cluster
from sparkdl.errors import AllTrialsFailedError, ConfigError, TrainingFailedError
from sparkdl.files import storage
from sparkdl.files.jsonl import read_lines
from sparkdl.files.layout import RunPaths, TrialPaths, place_of_verifications
from sparkdl.runner.again.reproduce import OnlyTrial, reproduce_run
from sparkdl.runs import Run, Trial, TrialState, provenance
from sparkdl.runs.differences import Difference
from sparkdl.runs.earlier_run import code_differences, files_read
from sparkdl.runs.events import RunStarted, TrialChanged
from sparkdl.runs.history import read_description, read_events, read_run
from sparkdl.runs.ids_and_seeds import trial_seed
from sparkdl.runs.verification.causes import causes_of
from sparkdl.runs.verification.trials import Compared, compare_trials
from sparkdl.runs.verification.verification import (
    Verdict,
    Verification,
    write_verification,
)


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """The arguments of `experiment.verify`.

    Attributes:
        number: the number of the trial; None for the best one, or the only one.
        train: the function, or None for the function that the run has kept.
        data: the DataFrames, for a run that had some.
        ignored: names of metrics and returned values that are not compared.
        repeats: the largest number of trainings.
        num_workers: another number of workers of a gang.
        options: options of the new training.
    """

    number: int | None = None
    train: Callable[..., Any] | None = None
    data: Any = None
    ignored: Sequence[str] = ()
    repeats: int = 2
    num_workers: int | None = None
    options: Mapping[str, Any]


def verify_run(path: str, request: VerifyRequest, cluster: Cluster | None = None) -> Verification:
    """Train a trial again, and tell whether the results are the same.

    Args:
        path: the run directory, which stays as it is.
        request: the arguments of the user.
        cluster: the cluster; by default the Spark session of the options or of the data.

    Raises:
        ConfigError: if the trial cannot be trained again. Nothing was started.
        RunStoppedError: if a new training was stopped before its end.
    """
    run = read_run(path)
    trial, description = _chosen(run, request.number), read_description(path)
    _check(run, trial, description, request)
    place = place_of_verifications(path, request.options.get("root"))
    first = _train_again(path, run, trial, request, place, cluster)
    again = first.trials[trial.number]
    mismatches, compared = compare_trials(trial, again, request.ignored)
    runs, varying = [first], None
    if mismatches and request.repeats > 1 and again.state == TrialState.COMPLETE:
        runs.append(_train_again(path, run, trial, request, place, cluster))
        second = runs[1].trials[trial.number]
        varying = {one.what for one in compare_trials(again, second, request.ignored)[0]}
    found = _differences(path, first, trial, description)
    verification = Verification(
        run=run.id,
        trial=trial.number,
        verdict=_verdict(bool(mismatches), compared),
        mismatches=mismatches,
        causes=causes_of(mismatches, found, trial, description, varying),
        differences=found,
        compared=compared,
        ignored=list(request.ignored),
        trainings=[each.path for each in runs],
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        versions=provenance.versions(),
    )
    write_verification(place, first.id, verification)
    if verification.verdict == Verdict.EQUAL:
        storage.remove(first.path)
    return verification


def _verdict(has_mismatches: bool, compared: Compared) -> Verdict:
    if has_mismatches:
        return Verdict.DIFFERENT
    return Verdict.UNKNOWN if compared.is_nothing else Verdict.EQUAL


def _chosen(run: Run, number: int | None) -> Trial:
    """Return the trial with a number, or the best one.

    Raises:
        ConfigError: if there is no such trial, or it is not COMPLETE.
    """
    if number is None:
        best = run.trials if len(run.trials) == 1 else run.top(1)
        if (len(run.objectives) > 1 and len(run.trials) > 1) or not best:
            raise ConfigError(
                f"run {run.id} has no best trial among its {len(run.trials)} trials. Pass trial= "
                "with the number of a trial that is COMPLETE."
            )
        number = best[0].number
    if (
        isinstance(number, bool)
        or not isinstance(number, int)
        or not (0 <= number < len(run.trials))
    ):
        raise ConfigError(
            f"trial is {number!r}; expected the number of a trial of run {run.id}, from 0 to "
            f"{len(run.trials) - 1}."
        )
    trial = run.trials[number]
    if trial.state != TrialState.COMPLETE:
        raise ConfigError(
            f"trial {number} of run {run.id} is {trial.state}; expected a trial that is COMPLETE, "
            "whose results can be compared."
        )
    return trial


def _check(run: Run, trial: Trial, description: Mapping[str, Any], request: VerifyRequest) -> None:
    """Validate the arguments.

    Raises:
        ConfigError: if an argument does not fit the run.
    """
    if trial.seed != trial_seed(description["seed"], trial.number):
        raise ConfigError(
            f"run {run.id} replays trials of another run with their seeds. Verify that run, or "
            "call experiment.reproduce, which runs the whole replay again."
        )
    if (description["request"].get("search") or {}).get("style") == "objective":
        raise ConfigError(
            f"the objective of run {run.id} asks Optuna for its parameters, so that no trial can "
            "be trained alone. experiment.reproduce runs the whole search again."
        )
    if request.options.get("wait", True) is not True:
        raise ConfigError("wait=False is given, but verify compares results. Leave it out.")
    if request.repeats not in (1, 2):
        raise ConfigError(
            f"repeats is {request.repeats!r}; expected 1, or 2 to train once more where results "
            "differ."
        )
    is_gang = description["request"]["is_gang"]
    if request.num_workers is not None and not (is_gang and request.num_workers > 0):
        raise ConfigError(
            f"num_workers is {request.num_workers!r}; expected a number above 0, for the trial of "
            f"a gang. Run {run.id} is {description['plan']}."
        )


def _train_again(
    path: str, run: Run, trial: Trial, request: VerifyRequest, place: str, cluster: Cluster | None
) -> Run:
    """Return the run in which the trial was trained again; its function may have failed there."""
    versions = {
        record["paths"][0]: record["version"]
        for record in read_lines(TrialPaths(trial.path).files)
        if record.get("is_newest") and "version" in record
    }
    only = OnlyTrial(
        number=trial.number,
        num_workers=request.num_workers,
        init_from=None if trial.parent is None else run.trials[trial.parent],
        versions=versions,
    )
    options = {**request.options, "root": place}
    try:
        return reproduce_run(path, request.train, {}, request.data, options, cluster, only)
    except (AllTrialsFailedError, TrainingFailedError) as error:
        failed: Run = error.run
        if failed.trials[trial.number].state in (TrialState.FAILED, TrialState.INVALID):
            return failed
        raise


def _differences(
    path: str, new: Run, trial: Trial, description: Mapping[str, Any]
) -> list[Difference]:
    """Return what differs between the two trainings, as far as both have recorded it."""
    found = [*new.differences, *code_differences(path, new.path), *_later_code(path, trial)]
    known = {one.subject for one in found}
    found += [one for one in files_read(path, new.path, trial.number) if one.subject not in known]
    if description["request"]["reads_rows"] and not _has_hash(path):
        found.append(
            Difference(
                subject="data rows",
                before="no hash, see fingerprint=True,",
                now="rows that were passed again",
            )
        )
    return found


def _later_code(path: str, trial: Trial) -> Iterator[Difference]:
    """Yield the function of a later `resume`, which the run has kept in place of the trial's."""
    is_complete = False
    for event in read_events(path).events:
        if isinstance(event, TrialChanged) and event.number == trial.number:
            is_complete = event.state == TrialState.COMPLETE
        elif isinstance(event, RunStarted) and is_complete and "train" in (event.changed or {}):
            yield Difference(
                subject="code of the function",
                before="that with which the trial was trained",
                now="that with which the run was resumed later, which the run has kept",
            )


def _has_hash(path: str) -> bool:
    prints = storage.read_many([RunPaths(path).data_fingerprints])
    return any(b'"hash"' in text for text in prints.values())
