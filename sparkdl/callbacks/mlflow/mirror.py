"""Runs on the driver. The mirror of a run in MLflow, made from the content of its directory.

The run is a run of MLflow, and each trial that has started is a child of it. Tags name the run and
the trial, so that a mirror that is made again finds them. The tag `sparkdl.reports` of a trial is
the place up to which its reports are in MLflow; it is written together with the metrics.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.callbacks.mlflow import values
from sparkdl.callbacks.mlflow.reports import Cursor, Report, new_reports
from sparkdl.runs import Run, Trial
from sparkdl.runs.annotations import Annotations
from sparkdl.runs.history import read_description

# Tags by which the runs of MLflow are found again.
RUN, CREATED, TRIAL = "sparkdl.run", "sparkdl.created", "sparkdl.trial"
REPORTS = "sparkdl.reports"

# What MLflow takes at once.
MAX_METRICS, MAX_PARAMS, MAX_TAGS, MAX_RUNS = 800, 90, 90, 1000


@dataclass
class Mirrored:
    """A run of MLflow, as far as it is known here.

    Attributes:
        id: its id.
        status: its status.
        params: the names of its parameters.
        metrics: the last value of each metric.
        tags: its tags.
    """

    id: str
    status: str
    params: set[str] = field(default_factory=set)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def cursor(self) -> Cursor:
        """The place up to which the reports of the trial are in MLflow."""
        return Cursor.parse(self.tags.get(REPORTS, ""))


class Mirror:
    """The mirror of a run in an experiment of MLflow.

    Args:
        client: the client of MLflow.
        run: the run.
        experiment: the name of the experiment, which is created if it is missing.

    Attributes:
        parent: the run of MLflow that stands for the run.
        children: those of the trials, by the number of the trial.
        experiment_id: the id of the experiment.
    """

    def __init__(self, client: Any, run: Run, experiment: str) -> None:
        self._client = client
        self._description = read_description(run.path)
        self._key = {RUN: run.id, CREATED: self._description["created"]}
        self.experiment_id = self._experiment(experiment)
        self.children: dict[int, Mirrored] = {}
        parent = self._find()
        if parent is None:
            tags = {**self._key, **values.parent_tags(run, self._description)}
            parent = self._create(run.id, values.started_ms(self._description), tags)
        self.parent = parent

    # ---- finding and creating runs of MLflow

    def _experiment(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name))
            except Exception:
                # Another run may have created the experiment a moment before.
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def _find(self) -> Mirrored | None:
        """Read what MLflow has of the run; return its parent run."""
        condition = " and ".join(f"tags.`{name}` = '{value}'" for name, value in self._key.items())
        parent, token = None, None
        while True:
            page = self._client.search_runs(
                [self.experiment_id], condition, max_results=MAX_RUNS, page_token=token
            )
            for run in page:
                mirrored = Mirrored(
                    run.info.run_id,
                    run.info.status,
                    set(run.data.params),
                    dict(run.data.metrics),
                    dict(run.data.tags),
                )
                if TRIAL in mirrored.tags:
                    self.children[int(mirrored.tags[TRIAL])] = mirrored
                else:
                    parent = mirrored
            token = page.token
            if not token:
                return parent

    def _create(self, name: str, start_ms: int, tags: Mapping[str, str]) -> Mirrored:
        created = self._client.create_run(
            self.experiment_id, start_time=start_ms, tags=dict(tags), run_name=name
        )
        return Mirrored(created.info.run_id, created.info.status, tags=dict(tags))

    # ---- following the run

    def update(self, run: Run) -> None:
        """Bring MLflow up to date with the run, its trials and their reports.

        Args:
            run: the run; another thread may be changing it.
        """
        for trial in list(run.trials):
            if trial.attempts and not self._is_done(trial):
                self._update_trial(run, copy.copy(trial))
        self._update_parent(run)

    def _is_done(self, trial: Trial) -> bool:
        mirrored = self.children.get(trial.number)
        return (
            mirrored is not None
            and trial.state.is_final
            and mirrored.cursor.attempt >= trial.attempts
            and mirrored.status == values.STATUS[trial.state]
        )

    def _update_trial(self, run: Run, trial: Trial) -> None:
        now = time.time()
        begin = trial.spans[0][0] if trial.spans else now
        if trial.number not in self.children:
            tags = {**self._key, TRIAL: str(trial.number), "mlflow.parentRunId": self.parent.id}
            name = f"trial {trial.number}"
            self.children[trial.number] = self._create(name, int(begin * 1000), tags)
        mirrored = self.children[trial.number]
        end = (trial.spans[-1][1] if trial.spans else None) or now
        reports = new_reports(trial, mirrored.cursor, now)
        if trial.state.is_final and mirrored.cursor.attempt < trial.attempts:
            reports.append(_result_of(run, trial, mirrored, reports, end))
        tags = values.trial_tags(trial)
        self._remove_tags(mirrored, values.obsolete_tags(mirrored.tags, tags, False))
        self._log(mirrored, trial.params, tags, reports)
        self._set_status(mirrored, values.STATUS[trial.state], end)

    def _update_parent(self, run: Run) -> None:
        mirrored = self.parent
        # Reading the tags and notes of users costs a request.
        known_notes = run.annotations() if run.state.is_final else Annotations()
        tags = values.summary_tags(run, self._description, known_notes)
        best = run.top(1) if len(run.objectives) < 2 else []
        reports = []
        ends = [end for trial in list(run.trials) for _, end in trial.spans if end is not None]
        end = max(ends, default=values.started_ms(self._description) / 1000)
        if best and run.state.is_final:
            name = _metric_of(run)
            value = float(best[0].value or 0.0)
            if mirrored.metrics.get(name) != value:
                reports.append(Report({name: value}, 0, end))
        self._remove_tags(mirrored, values.obsolete_tags(mirrored.tags, tags, run.state.is_final))
        self._log(mirrored, {}, tags, reports)
        self._set_status(mirrored, values.STATUS[run.state], end)

    # ---- writing to MLflow

    def _log(
        self,
        mirrored: Mirrored,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        reports: Sequence[Report],
    ) -> None:
        """Write what MLflow does not have yet, in as few requests as it allows."""
        from mlflow.entities import Metric, Param, RunTag

        names = values.names_of(params)
        new_params = [
            Param(names[name], values.text_of(value))
            for name, value in params.items()
            if names[name] not in mirrored.params
        ]
        for group in values.batches(new_params, MAX_PARAMS):
            if group:
                self._client.log_batch(mirrored.id, params=group)
                mirrored.params |= {param.key for param in group}
        metric_names = values.names_of(dict.fromkeys(n for r in reports for n in r.metrics))
        points = [
            (Metric(metric_names[name], value, int(report.time * 1000), report.step), report)
            for report in reports
            for name, value in report.metrics.items()
        ]
        groups = [*values.batches(points, MAX_METRICS)]
        for group, following in zip(groups, [*groups[1:], []], strict=True):
            cursor = _cursor_after(group, following, reports)
            changed = {n: v for n, v in {**tags, **cursor}.items() if mirrored.tags.get(n) != v}
            if not (group or changed):
                continue
            metrics = [metric for metric, _ in group]
            new_tags = [RunTag(name, value) for name, value in changed.items()]
            self._client.log_batch(mirrored.id, metrics=metrics, tags=new_tags[:MAX_TAGS])
            for more in values.batches(new_tags[MAX_TAGS:], MAX_TAGS):
                if more:
                    self._client.log_batch(mirrored.id, tags=more)
            mirrored.tags |= changed
            mirrored.metrics |= {metric.key: metric.value for metric in metrics}

    def set_tag(self, mirrored: Mirrored, name: str, value: str) -> None:
        """Write a tag of a run of MLflow."""
        self._client.set_tag(mirrored.id, name, value)
        mirrored.tags[name] = value

    def _remove_tags(self, mirrored: Mirrored, names: Sequence[str]) -> None:
        for name in names:
            self._client.delete_tag(mirrored.id, name)
            del mirrored.tags[name]

    def _set_status(self, mirrored: Mirrored, status: str, end: float) -> None:
        if mirrored.status == status:
            return
        if status in ("RUNNING", "SCHEDULED"):
            self._client.update_run(mirrored.id, status=status)
        else:
            self._client.set_terminated(mirrored.id, status, int(end * 1000))
        mirrored.status = status


def _cursor_after(
    group: Sequence[tuple[Any, Report]],
    following: Sequence[tuple[Any, Report]],
    reports: Sequence[Report],
) -> dict[str, str]:
    """Return the tag for the cursor behind the reports that are in MLflow with a group of points.

    Args:
        group: the points, each with its report.
        following: the points of the next group.
        reports: all reports.
    """
    if not following:
        done = reports[-1:]
    else:  # The next group may have the rest of a report.
        done = [report for _, report in group if report is not following[0][1]][-1:]
    return {REPORTS: str(done[0].after)} if done and done[0].after else {}


def _metric_of(run: Run) -> str:
    """Return the name in MLflow of the metric of a run."""
    return values.names_of([run.metric or "value"])[run.metric or "value"]


def _result_of(
    run: Run, trial: Trial, mirrored: Mirrored, reports: Sequence[Report], end: float
) -> Report:
    """Return the metrics of a trial that has ended, as far as its reports have not told them."""
    metrics_there = {**mirrored.metrics}
    for report in reports:
        names = values.names_of(report.metrics)
        metrics_there |= {names[name]: value for name, value in report.metrics.items()}
    metrics = dict(trial.metrics)
    if trial.value is not None:
        metrics.setdefault(run.metric or "value", trial.value)
    names = values.names_of(metrics)
    # A value that is no number differs from itself.
    new = {n: v for n, v in metrics.items() if str(metrics_there.get(names[n])) != str(float(v))}
    step = reports[-1].step if reports else mirrored.cursor.step
    return Report(new, step, end, Cursor(trial.attempts, 0, step))
