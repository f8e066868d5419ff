"""Runs on the driver. Describe a run in place of starting it, for `sparkdl plan`."""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sparkdl.files import storage
from sparkdl.runner.display.progress_lines import duration_text
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runs import Run
from sparkdl.runs.history import history, read_run
from sparkdl.runs.retry_choice import Retry, waits_again
from sparkdl.runs.states import TrialState
from sparkdl.search.population import first_intervals
from sparkdl.search.population_settings import REPLAY
from sparkdl.search.settings import SearchSettings
from sparkdl.secrets.masks import mask_params

# Reasons for the end of a program.
USES_RESULT = "uses the result of a run"
IN_PROCESS = "calls a training function in this process"

# The first combinations of parameters that are shown.
MAX_SHOWN = 3
# So many earlier runs are read to find one with trials that have ended.
MAX_EARLIER = 5


@dataclass(frozen=True)
class ProgramEnd:
    """The code of the `SystemExit` that ends a program where it needs what was not done.

    A program does not take this exception for a failure, and a thread ends silently with it.

    Attributes:
        why: the reason, as the end of a sentence about the program.
    """

    why: str


@dataclass(frozen=True, kw_only=True)
class RunPreview:
    """A run that would be started.

    Attributes:
        kind: the verb.
        name: the name of the run.
        plan: the processes of a trial and their resources.
        num_processes: the number of processes of each trial.
        num_cores: the number of CPU cores of each process.
        num_trials: the number of trials; None if only a stopping rule limits it.
        params: the first combinations of parameters.
        are_proposals: the parameters are what the sampler may propose; results may change them.
        stop_rules: the rules that may end the run before its last trial.
        at_once: the number of trials at once.
        slots: the slots of Spark, and where their number comes from.
        root: the folder of the runs.
        resumes: the id of the run that would be finished; None for a new run.
        trial_s: the median seconds of a trial in an earlier run of the same name, None without one.
        trial_s_from: the number of these trials and the id of their run.
        note: a remark, such as the size of a large function.
    """

    kind: str
    name: str
    plan: str
    num_processes: int
    num_cores: int
    num_trials: int | None
    params: Sequence[Mapping[str, Any]]
    are_proposals: bool
    stop_rules: Mapping[str, Any]
    at_once: int
    slots: str
    root: str
    resumes: str | None = None
    trial_s: float | None = None
    trial_s_from: str = ""
    note: str = ""

    @property
    def duration_s(self) -> float | None:
        """The expected seconds of the run; None without an earlier run, or without a last trial."""
        if self.trial_s is None or self.num_trials is None:
            return None
        all_s = math.ceil(self.num_trials / self.at_once) * self.trial_s
        return min(all_s, self.stop_rules.get("timeout_s") or all_s)

    def to_dict(self) -> dict[str, Any]:
        """Return the preview as a dict for JSON."""
        return {**vars(self), "duration_s": self.duration_s}

    def __str__(self) -> str:
        count = "trials" if self.num_trials is None else f"{self.num_trials} trial(s)"
        what = f"the rest of {self.resumes}: {count}" if self.resumes else count
        lines = [f"{self.kind} {self.name!r}: {what}, {self.at_once} at once"]
        rows = [
            ("plan", self.plan),
            ("slots", f"{self.slots}; {self.num_cores} core(s) for each process"),
            *((("trials" if i == 0 else ""), text) for i, text in enumerate(self._trial_lines())),
            ("root", self.root),
            ("duration", self._duration_text()),
            ("note", self.note),
        ]
        return "\n".join([*lines, *(f"  {name:<9} {text}" for name, text in rows if text)])

    def _trial_lines(self) -> Iterator[str]:
        for params in self.params:
            text = ", ".join(f"{name}={value!r}" for name, value in params.items())
            text = text or "no parameters"
            yield f"{text} (a proposal)" if self.are_proposals else text
        rest = None if self.num_trials is None else self.num_trials - len(self.params)
        if rest and self.params:
            yield f"... {rest} more"
        elif rest is None:
            yield "... until a rule ends the run"
        if self.stop_rules:
            rules = ", ".join(f"{name}={value!r}" for name, value in self.stop_rules.items())
            yield f"ends early by {rules}"

    def _duration_text(self) -> str:
        if self.trial_s is None:
            return "unknown, as the root has no earlier run of this name with a trial that ended"
        each = f"{duration_text(self.trial_s)} per trial ({self.trial_s_from})"
        if self.duration_s is None:
            return f"unknown number of trials, {each}"
        return f"about {duration_text(self.duration_s)}, at {each}"


@dataclass
class _State:
    """The previews of the program that runs now; None if verbs start runs."""

    previews: list[RunPreview] | None = None


# Process-wide state: the verbs of a program do not know by whom the program was started.
_state = _State()


@contextmanager
def previewing() -> Iterator[list[RunPreview]]:
    """Let verbs describe their runs in place of starting them; yield the list of previews."""
    previews: list[RunPreview] = []
    _state.previews = previews
    try:
        yield previews
    finally:
        _state.previews = None


def is_previewing() -> bool:
    """Return True if verbs describe their runs in place of starting them."""
    return _state.previews is not None


def end_preview(why: str) -> None:
    """End a previewed program whose next step would train in this process, or needs a result.

    Args:
        why: the reason, as the end of a sentence about the program.

    Raises:
        SystemExit: if verbs describe their runs; its code is a `ProgramEnd`.
    """
    if is_previewing():
        raise SystemExit(ProgramEnd(why))


class PreviewedRun(Run):
    """The result of a verb that has started nothing. The program ends when it uses the result."""

    def __getattribute__(self, name: str) -> Any:
        # Python itself asks for special attributes, such as the class.
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise SystemExit(ProgramEnd(USES_RESULT))

    def __setattr__(self, name: str, value: Any) -> None:
        raise SystemExit(ProgramEnd(USES_RESULT))


def preview(prepared: PreparedRun, root: str, name: str, run: Run | None, retry: Retry) -> Run:
    """Note what a request would do.

    Args:
        prepared: the checked request.
        root: the folder of the runs.
        name: the name of the run.
        run: the run that would go on, as its directory tells it; None for a new one.
        retry: the ended trials that would run again.

    Returns:
        A run that ends the program as soon as it is used.
    """
    request = prepared.request
    search = request.search
    most = search.max_configurations if search else None
    if run:
        waiting = [trial.params for trial in run.trials if waits_again(trial, retry)]
        num_more = 0 if most is None else max(0, most - run.num_configurations)
    else:
        waiting = request.params or []
        num_more = most or 0
    num_trials: int | None = len(waiting)
    if search:
        num_trials = None if most is None else len(waiting) + num_more * search.repeats
        if run is None:
            waiting = _proposals(prepared, search, min(MAX_SHOWN, most or MAX_SHOWN))
    return _note_preview(prepared, root, name, run, num_trials, waiting[:MAX_SHOWN])


def _note_preview(
    prepared: PreparedRun,
    root: str,
    name: str,
    run: Run | None,
    num_trials: int | None,
    params: Sequence[Mapping[str, Any]],
) -> Run:
    request, plan, concurrency = prepared.request, prepared.plan, prepared.concurrency
    search = request.search
    at_once = concurrency.limit
    if num_trials is not None:
        at_once = max(1, min(at_once, num_trials))
    trial_s, source = _earlier_seconds(root, name, request.kind)
    preview = RunPreview(
        kind=request.kind,
        name=name,
        plan=str(plan).removeprefix(f"{plan.kind}, "),
        num_processes=plan.size,
        num_cores=concurrency.cores(at_once),
        num_trials=num_trials,
        params=[mask_params(values, prepared.secrets) for values in params],
        are_proposals=search is not None and search.algorithm != "grid" and not run,
        stop_rules=_stop_rules(prepared),
        at_once=at_once,
        slots=concurrency.slots.reason,
        root=root,
        resumes=run.id if run else None,
        trial_s=trial_s,
        trial_s_from=source,
        note=prepared.program.warning or "",
    )
    if _state.previews is not None:
        _state.previews.append(preview)
    return PreviewedRun.__new__(PreviewedRun)


def _stop_rules(prepared: PreparedRun) -> dict[str, Any]:
    search, options = prepared.request.search, prepared.request.options
    rules: dict[str, Any] = {
        name: getattr(search, name, None) for name in ("stop", "patience", "max_slot_hours")
    }
    rules |= {"timeout_s": options.timeout_s, "max_failed_trials": options.max_failed_trials}
    return {name: value for name, value in rules.items() if value is not None}


def _proposals(prepared: PreparedRun, search: SearchSettings, count: int) -> list[dict[str, Any]]:
    """Return the parameters with which a search begins; an objective requests its own later."""
    if search.style == "objective":
        return []
    request = prepared.request
    if search.is_scheduled:
        if search.is_replay:
            return [interval["params"] for interval in search.algorithm[REPLAY]["schedule"]][:count]
        return first_intervals(search, request.options.seed or 0, count)
    from sparkdl.search.study import Study

    objectives = dict(request.objectives)
    objectives = objectives or {request.options.metric or "value": str(request.options.direction)}
    study = Study(search, objectives, request.options.seed or 0)
    study.queue_initial()
    return [study.ask(number) for number in range(count)]


def _earlier_seconds(root: str, name: str, kind: str) -> tuple[float | None, str]:
    """Return the median seconds of the trials of an earlier run, and where they come from."""
    if not storage.exists(root):
        return None, ""
    table = history(root)
    rows = table[(table["name"] == name) & (table["kind"] == kind)]
    for path in itertools.islice(rows["path"], MAX_EARLIER):
        run = read_run(path)
        ended = (TrialState.COMPLETE, TrialState.PRUNED)
        seconds = [t.duration_s for t in run.trials if t.state in ended and t.duration_s]
        if seconds:
            return statistics.median(seconds), f"the median of {len(seconds)} in {run.id}"
    return None, ""
