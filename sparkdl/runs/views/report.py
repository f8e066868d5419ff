"""Runs on the driver. Write the report of a run, one HTML file for any browser."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runs import annotations, table
from sparkdl.runs.failures import in_common
from sparkdl.runs.states import RunState, TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views import html_parts
from sparkdl.runs.views.code_part import changes, code
from sparkdl.runs.views.data_part import data
from sparkdl.runs.views.figures import FIGURES, RunView
from sparkdl.runs.views.figures.curves import why_no_curves
from sparkdl.runs.views.figures.importance import why_no_importance
from sparkdl.runs.views.html_page import page
from sparkdl.runs.views.html_parts import duration, escaped, pairs, row, section, short
from sparkdl.runs.views.images_part import images
from sparkdl.runs.views.use_part import use_over_time

# Limits that keep the page of a long run small: kinds of failures, trials that failed alike,
# characters of an error, trials of the Pareto front.
MAX_FAILURES = 50
MAX_NUMBERS = 20
MAX_ERROR = 8000
MAX_FRONT = 20

_TIMES = {
    "waiting": (
        "#d0d4da",
        "for a slot or the rows of data=, before a trial's duration begins",
    ),
    "starting": ("#9aa1ab", "the process and its imports"),
    "first step": ("#a8d3ee", "training, until the first report"),
    "reporting": ("#009e73", "training, in context.report"),
    "rest": ("#0072b2", "training, the rest of it"),
}
_FACTS = (
    "description",
    "function",
    "plan",
    "created",
    "user",
    "host",
    "framework",
    "seed",
    "git_commit",
    "versions",
    "spark",
    "env",
)

# The sections of files beside the journal, with their titles.
PARTS: Mapping[str, tuple[str, Callable[[RunView], str]]] = {
    "use": ("CPU, memory and GPUs over time", use_over_time),
    "images": ("Images", images),
    "data": ("Data", data),
    "changes": ("What has changed", changes),
    "code": ("Code", code),
}


def write_report(run: RunView, to: str | None = None) -> str:
    """Write `report.html` into the run directory, in place of an earlier report.

    The page shows the best trial, the figures of `figures.plot`, the use of time, CPU, memory and
    GPUs, images that trials have left, the trials, the failures with their tracebacks, the data,
    the code with what has changed since the run before, and the environment. It needs no network.
    Of a long run the page draws only a part, and says so.

    Args:
        run: the run, live or loaded; its directory holds a `run.json`.
        to: another file or URL for the page.

    Returns:
        The path or URL of the page.

    Raises:
        FileNotFoundError: if there is no run in `run.path`.
    """
    figures = _figures(run)
    library = ""
    if any("<script" in text for text in figures):
        from plotly.offline import get_plotlyjs

        library = get_plotlyjs()
    parts = sections(run)
    texts = [
        *(parts[name] for name in ("head", "best", "failures", "times")),
        *figures,
        *(part(run, name) for name in ("use", "images")),
        _trials(run),
        *(part(run, name) for name in ("data", "changes", "code")),
        parts["facts"],
    ]
    url = storage.absolute(to) if to else RunPaths(run.path).report
    storage.write(url, page(f"{run.name}: {run.id}", [text for text in texts if text], library))
    return url


def sections(run: RunView) -> dict[str, str]:
    """Return the texts of the report as HTML, by name; one without content is empty.

    Args:
        run: the run, live or loaded; its directory holds a `run.json`.

    Raises:
        FileNotFoundError: if there is no run in `run.path`.
    """
    facts = json.loads(storage.read(RunPaths(run.path).run))
    return {
        "head": _head(run),
        "best": _best(run),
        "times": _times(run),
        "failures": _failures(run),
        "facts": _facts(facts, run.path),
    }


def part(run: RunView, name: str) -> str:
    """Return a section that is made of files of the user, of an earlier run or of trials.

    Args:
        run: the run, live or loaded.
        name: a name of `PARTS`.

    Returns:
        HTML; empty if there is nothing to show.
    """
    title, make = PARTS[name]
    try:
        return make(run)
    except Exception as exc:  # noqa: BLE001 Damage of these files must not hide the results.
        problem = f"{type(exc).__name__}: {exc}"
        return section(title, "", f"<p>It cannot be shown. {escaped(problem[:MAX_ERROR])}</p>")


def _params(trial: Trial) -> str:
    return pairs({name: short(value) for name, value in trial.params.items()})


def _head(run: RunView) -> str:
    seconds = f" in {duration(run.duration_s)}" if run.duration_s else ""
    reason = f" ({escaped(run.reason)})" if run.reason else ""
    remedy = "" if run.state == RunState.RUNNING else run.how_to_finish()
    of_ranks = [*run.slow_ranks, *run.resizes]
    lines = [*run.failures_in_common(), *of_ranks, *([remedy] if remedy else [])]
    return (
        f"<header><h1>{escaped(run.name)}</h1>"
        f"<p><b>{escaped(run.state)}</b>{reason}, {escaped(run.counts_text())}{seconds}</p>"
        f"{''.join(f'<p>{escaped(line)}</p>' for line in lines)}"
        f'<p class="soft">{escaped(run.kind)} {escaped(run.id)}</p>{_annotations(run)}</header>'
    )


def _annotations(run: RunView) -> str:
    of_run = annotations.read(run.path)
    tags = f"<p>Tags: {escaped(', '.join(of_run.tags))}</p>" if of_run.tags else ""
    return tags + "".join(f"<p>{escaped(note)}</p>" for note in of_run.notes)


def _best(run: RunView) -> str:
    if len(run.objectives) > 1:
        return _front(run)
    if len(run.trials) == 1:
        return _result(run.trials[0])
    best = run.top(1)
    if not best:
        return ""
    trial = best[0]
    mean, deviation = run.means()[trial.configuration]
    complete = [t.configuration for t in run.trials if t.state == TrialState.COMPLETE]
    count = complete.count(trial.configuration)
    value = f"{trial.value:.6g}" if run.repeats == 1 else f"{mean:.6g} &plusmn; {deviation:.2g}"
    of = f"{count} of {run.repeats}" if count < run.repeats else f"{count}"
    repeats = f", the mean of {of} trials with these parameters" if run.repeats > 1 else ""
    word = "highest" if run.direction == "max" else "lowest"
    body = f"<p><b>{value}</b> {escaped(run.metric or '')} ({word})</p>{_params(trial)}"
    note = f"trial {trial.number}{repeats}"
    return section("The best", note, f'<div class="best">{body}</div>')


def _result(trial: Trial) -> str:
    """Return the section on the only trial of a run, such as that of a distributed run."""
    if not (trial.metrics or trial.outputs or trial.params):
        return ""
    name = trial.metric or "value"
    value = "" if trial.value is None else f"<p><b>{trial.value:.6g}</b> {escaped(name)}</p>"
    numbers = {**trial.metrics, **trial.outputs}
    numbers = {key: short(number) for key, number in numbers.items() if not value or key != name}
    last = "" if trial.state == TrialState.COMPLETE else "the last reported values"
    return section(
        "Result" if numbers or value else "Parameters",
        last if numbers else "",
        f'<div class="best">{value}{pairs(numbers)}{_params(trial)}</div>',
    )


def _front(run: RunView) -> str:
    front = run.pareto
    names = list(dict.fromkeys(name for trial in front for name in trial.params))
    rows = [row(["trial", *run.objectives, *names])]
    for trial in front[:MAX_FRONT]:
        same = [t for t in run.trials if t.configuration == trial.configuration]
        complete = [t for t in same if t.state == TrialState.COMPLETE]
        values = [f"{fmean(t.metrics[name] for t in complete):.6g}" for name in run.objectives]
        params = [short(trial.params.get(name, "")) for name in names]
        rows.append(row([trial.number, *values, *params]))
    more = f", the first {MAX_FRONT} are shown" if len(front) > MAX_FRONT else ""
    means = f"; the values are means of {run.repeats} trials" if run.repeats > 1 else ""
    count = f"{len(front)} trials that no other trial beats in all metrics"
    note = f"{escaped(run.goal)}: {count}{more}{means}"
    body = html_parts.table(rows)
    return section("The best", note, body) if front else ""


def _times(run: RunView) -> str:
    """Return the section on the use of time, summed over all trials."""
    used = run.usage
    seconds = {
        "waiting": used.queued_s,
        "starting": used.starting_s,
        "first step": used.first_step_s,
        "reporting": used.reporting_s,
        "rest": max(0.0, used.running_s - used.first_step_s - used.reporting_s),
    }
    total = sum(seconds.values())
    if not total:
        return ""
    bars, rows = [], []
    for name, (color, words) in _TIMES.items():
        share = seconds[name] / total
        bars.append(f'<i style="background:{color};width:{share:.2%}" title="{words}"></i>')
        key = f'<i class="key" style="background:{color}"></i>'
        cells = f"{key}{name}", duration(seconds[name]), f"{share:.0%}", words
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    body = (
        f'<div class="share">{"".join(bars)}</div>'
        f'<div class="wide"><table class="times">{"".join(rows)}</table></div>'
    )
    idle = f"{run.idle}{' in the last session' if run.num_sessions > 1 else ''}" if run.idle else ""
    whole_s, training_s = used.starting_s + used.running_s, used.running_s
    training = f"of which training {duration(training_s)}"
    whole = f"duration of all trials together {duration(whole_s)}, {training}"
    notes = filter(None, (whole, idle, run.timeline))
    return section("Where the time went", "<br>".join(map(escaped, notes)), body)


def _figures(run: RunView) -> list[str]:
    """Return a section for each figure for which the run has enough data."""
    sections = []
    for name, (make, _) in FIGURES.items():
        # What a single attempt took is in the section on time.
        has_one_bar = name == "timeline" and sum(len(t.spans) for t in run.trials) < 2
        figure = None if has_one_bar else make(run)
        if figure is None:
            if name == "importance" and (reason := why_no_importance(run)):
                sections.append(section("Importance of the parameters", reason, ""))
            if name == "curves" and any(trial.attempts for trial in run.trials):
                sections.append(section("Learning curves", why_no_curves(run), ""))
            continue
        title = figure.layout.title
        # Without "<" no text in the data can end the script element.
        text = figure.to_json().replace("<", "\\u003c")
        body = f'<div class="figure"></div><script type="application/json">{text}</script>'
        note = title.subtitle.text or ""
        sections.append(section(title.text, note, f'<div class="wide">{body}</div>'))
    return sections


def _trials(run: RunView) -> str:
    if not run.trials:
        return ""
    view = replace(run.view(), headline="", in_common=())
    return section("Trials", "", f'<div class="wide trials">{table.html(view)}</div>')


def _failures(run: RunView) -> str:
    """Return the section on failures, grouped by their first line, each with one traceback."""
    failed = [t for t in run.trials if t.state in (TrialState.FAILED, TrialState.INVALID)]
    kinds: dict[str, list[Trial]] = {}
    for trial in failed:
        kinds.setdefault((trial.error or "").split("\n")[0], []).append(trial)
    counts = Counter({first_line: len(trials) for first_line, trials in kinds.items()})
    parts = [_failure(run, kinds[first_line]) for first_line, _ in counts.most_common(MAX_FAILURES)]
    remark = f", {MAX_FAILURES} of {len(counts)} kinds shown" if len(counts) > MAX_FAILURES else ""
    noun = "trial" if len(failed) == 1 else "trials"
    return section("Failures", f"{len(failed)} {noun}{remark}", "".join(parts)) if failed else ""


def _failure(run: RunView, trials: Sequence[Trial]) -> str:
    """Return the text on trials that failed alike: what they have in common, and one traceback."""
    trial, count = trials[0], len(trials)
    also = f" and {count - 1} more" if count > 1 else ""
    head = f"<b>trial {trial.number}{also}</b> {trial.state}: {escaped(trial.summary[:300])}"
    # The head of the page has what all failed trials have in common.
    clues = [] if run.failures_in_common() else in_common(run.trials, trials)
    first = "".join(f"<p>{escaped(line)}</p>" for line in clues)
    others = ", ".join(str(other.number) for other in trials[1:MAX_NUMBERS])
    more = f" and {count - MAX_NUMBERS} more" if count > MAX_NUMBERS else ""
    others = f'<p class="soft">also trials {others}{more}</p>' if others else ""
    error = f"<pre>{escaped(_shortened(trial.error or ''))}</pre>"
    return f"<details><summary>{head}</summary>{first}{others}{_params(trial)}{error}</details>"


def _shortened(error: str) -> str:
    half = MAX_ERROR // 2
    return error if len(error) <= MAX_ERROR else f"{error[:half]}\n...\n{error[-half:]}"


def _facts(facts: Mapping[str, Any], path: str) -> str:
    values = {name.replace("_", " "): _text(facts[name]) for name in _FACTS if facts.get(name)}
    return section("Environment", "", pairs({**values, "directory": path}))


def _text(fact: Any) -> str:
    if isinstance(fact, Mapping):
        return ", ".join(f"{name} {value}" for name, value in fact.items())
    return ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)
