"""Runs on the driver. Show a run as a table: in a terminal, in a notebook, or with pandas."""

import functools
import html as markup
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

# A longer run shows its best trials and its failures; to_pandas() has all trials.
MAX_ROWS = 40

# Characters of an error and of a note in their columns. Their ends say what the user can do: the
# lines below the table have those that are longer, as many as MAX_MESSAGES.
MAX_ERROR = 60
MAX_NOTE = 160
MAX_MESSAGES = 5
MAX_MESSAGE = 1000

# A longer title of a column may be broken after its underscores.
MAX_TITLE = 16

# The most values of a parameter that are listed.
MAX_LISTED = 4

# Of the numbers of trials without a metric, the table shows the first ones.
MAX_UNNAMED = 8

_LEFT = ("", "name", "state", "failure", "error", "note")
_COLORS = {
    TrialState.COMPLETE: "#1a7f37",
    TrialState.FAILED: "#cf222e",
    TrialState.INVALID: "#cf222e",
    TrialState.CANCELLED: "#9a6700",
    TrialState.LOST: "#9a6700",
    TrialState.PRUNED: "#9a6700",
}


@dataclass(frozen=True, kw_only=True)
class View:
    """The content of the table of a run.

    Attributes:
        headline: a line with the id, the state and the counts.
        trials: all trials.
        ranked: the COMPLETE trials with a value, best first.
        metric: the title of the column of values.
        goal: the direction and the name of each metric, such as `highest accuracy`.
        path: the run directory.
        other_metrics: the names of further metrics, for a run with several metrics.
        means: the mean and the standard deviation of each configuration, for a run with repeats.
        num_complete: the number of COMPLETE trials of each configuration.
        repeats: the number of trials of each configuration.
        pareto: the trials that no other trial dominates, for a run with several metrics.
        unnamed: the names of the numbers of the trials, if none of them counts as the metric.
        why_no_best: the reason for which COMPLETE trials have no value, and what to do.
        excluded: the executors that got no more trials, each with the reason.
        in_common: sentences about what the failed trials have in common.
        of_ranks: sentences about the ranks of a gang.
    """

    headline: str
    trials: Sequence[Trial]
    ranked: Sequence[Trial]
    metric: str
    path: str
    goal: str
    other_metrics: Sequence[str] = ()
    means: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    num_complete: Mapping[int, int] = field(default_factory=dict)
    repeats: int = 1
    pareto: Sequence[Trial] = ()
    unnamed: Sequence[str] = ()
    why_no_best: str = ""
    excluded: Mapping[str, str] = field(default_factory=dict)
    in_common: Sequence[str] = ()
    of_ranks: Sequence[str] = ()

    @property
    def starred(self) -> Sequence[Trial]:
        """The trials that are marked with a star: the best trial, or the Pareto front."""
        return self.pareto or self.ranked[:1]

    @functools.cached_property
    def shown_trials(self) -> Sequence[Trial]:
        """The trials that have a row. The states of a live run change while it is shown."""
        if len(self.trials) <= MAX_ROWS:
            return self.trials
        failed = [trial for trial in self.trials if trial.state == TrialState.FAILED]
        chosen = [*self.ranked[: MAX_ROWS // 2], *failed[: MAX_ROWS // 2]]
        return chosen or self.trials[:MAX_ROWS]

    @functools.cached_property
    def has_shared_note(self) -> bool:
        """True if several trials have a note, all the same: it has a line in place of a column."""
        notes = [trial.note for trial in self.trials if trial.note]
        return len(notes) > 1 == len({*notes})

    def hidden(self) -> str:
        """Return a line about the trials without a row; empty if every trial has a row."""
        count = len(self.trials) - len(self.shown_trials)
        return f"... {count} more trials: run.to_pandas() has all of them" if count else ""

    def footlines(self) -> list[str]:
        """Return lines with the common parameters, the best trials and the run directory."""
        common = _common(self.trials)
        lines = [f"In all trials: {_params(common)}"] if common else []
        if self.pareto:
            numbers = ", ".join(str(trial.number) for trial in self.pareto)
            lines.append(f"Pareto front of {self.goal}: trials {numbers}")
        elif self.ranked:
            best = self.ranked[0]
            varying = {k: v for k, v in best.params.items() if k not in common}
            line = f"Best: trial {best.number}, {self.metric} {best.value:.5g}"
            line += f", {_params(varying)}" if varying else ""
            mean = f"; mean {self.mean(best)}" if self.means else ""
            lines.append(f"{line} ({self.goal}{mean})")
        elif self.why_no_best:
            lines.append(f"No best trial. {self.why_no_best}")
        if len(self.unnamed) > MAX_UNNAMED:
            rest = len(self.unnamed) - MAX_UNNAMED
            lines.append(f"{rest} more numbers are in trial.metrics and run.to_pandas()")
        lines += self._long_messages()
        states = (TrialState.FAILED, TrialState.INVALID)
        failed = [t for t in self.trials if t.state in states and t.attempts]
        if failed:
            command = f"sparkdl logs {shlex.quote(self.path)} {failed[0].number}"
            lines.append(f"Log of failed trial {failed[0].number}: {command}")
        lines += [f"Excluded: {name}, {reason}" for name, reason in self.excluded.items()]
        lines += [f"{sentence[:1].upper()}{sentence[1:]}" for sentence in self.of_ranks]
        return [*lines, f"Everything is in {self.path}"]

    def _long_messages(self) -> list[str]:
        """Return the errors and the notes that no column has whole, each one once."""
        numbers: dict[str, list[int]] = {}
        note_width = 0 if self.has_shared_note else MAX_NOTE
        for trial in self.shown_trials:
            for message, width in ((trial.summary, MAX_ERROR), (trial.note or "", note_width)):
                if len(message) > width:
                    numbers.setdefault(cell(message, MAX_MESSAGE), []).append(trial.number)
        return [
            f"Trial {of[0]}{f' and {len(of) - 1} more' if len(of) > 1 else ''}: {message}"
            for message, of in list(numbers.items())[:MAX_MESSAGES]
        ]

    def mean(self, trial: Trial) -> str:
        """Return the mean of a trial's configuration as text, and the number of its repeats."""
        if trial.configuration not in self.means:
            return ""
        mean, deviation = self.means[trial.configuration]
        count = self.num_complete.get(trial.configuration, 0)
        missing = f" ({count} of {self.repeats})" if count < self.repeats else ""
        return f"{_number(mean)} ± {deviation:.2g}{missing}"


def _params(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={cell(value)}" for name, value in params.items())


def _common(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the parameters that are the same in all trials; empty for a single trial."""
    first = trials[0].params if len(trials) > 1 else {}
    return {k: v for k, v in first.items() if all(t.params.get(k) == v for t in trials)}


def frame(trials: Sequence[Trial]) -> "pd.DataFrame":
    """Return a table of all fields of all trials, with one row per trial."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    metrics = list(dict.fromkeys(name for trial in trials for name in trial.metrics))
    has_members = any(trial.member is not None for trial in trials)
    rows: list[dict[str, Any]] = []
    for trial in trials:
        params = {name: trial.params.get(name) for name in names}
        outputs = {f"output.{name}": value for name, value in trial.outputs.items()}
        reported = {f"metric.{name}": trial.metrics.get(name) for name in metrics}
        first: dict[str, Any] = {
            "trial": trial.number,
            "state": str(trial.state),
            "configuration": trial.configuration,
            **({"member": trial.member, "parent": trial.parent} if has_members else {}),
        }
        last: dict[str, Any] = {
            "value": trial.value,
            "attempts": trial.attempts,
            "host": trial.host,
            "seed": trial.seed,
            "duration_s": trial.duration_s,
            **asdict(trial.usage),
            "failure": trial.failure,
            "error": trial.error,
            "note": trial.note,
            "path": trial.path,
        }
        row = {_column_name(name, params): value for name, value in first.items()}
        row |= {**params, **reported, **outputs}
        row |= {_column_name(name, params): value for name, value in last.items()}
        rows.append(row)
    import pandas as pd

    table = pd.DataFrame(rows)
    for name in [column for column in map(str, table) if column.startswith("output.")]:
        is_whole = {type(row[name]) for row in rows if row.get(name) is not None} == {int}
        if is_whole and table[name].isna().any():
            table[name] = pd.array([row.get(name) for row in rows], dtype="Int64")
    return table


def _column_name(name: str, params: Mapping[str, Any]) -> str:
    """Return the column of a field, which is renamed if a parameter has the same name."""
    return f"trial_{name}" if name in params else name


def _columns(view: View) -> list[tuple[str, list[str]]]:
    """Return the title and the cells of each column of the short table."""
    trials, best = view.shown_trials, view.starred
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    columns = [
        ("trial", [f"{t.number}{' *' if t in best else ''}" for t in trials]),
        ("state", [str(t.state) for t in trials]),
    ]
    for name in names:
        if name not in _common(view.trials):
            columns.append((name, [cell(t.params.get(name, "")) for t in trials]))
    # The last report of a trial that was stopped early is its only number.
    values = [t.last_value for t in trials]
    if not view.unnamed:
        columns.append((view.metric, ["" if n is None else _number(n) for n in values]))
    for name in view.unnamed[:MAX_UNNAMED]:
        title = f"{name} (returned)" if name in names else name
        columns.append((title, [_number_of(t, name) for t in trials]))
    if view.means:
        columns.append(("mean", [view.mean(t) for t in trials]))
    for name in view.other_metrics:
        numbers = [
            None if n is None else t.metrics.get(name) for t, n in zip(trials, values, strict=True)
        ]
        columns.append((name, ["" if n is None else _number(n) for n in numbers]))
    columns.append(("duration", [_seconds(t.duration_s) for t in trials]))
    columns.append(("training", [_seconds(t.usage.running_s) for t in trials]))
    if any(t.failure for t in trials):
        columns.append(("failure", [t.failure or "" for t in trials]))
        if len({t.host for t in trials if t.host}) > 1:
            columns.append(("host", [t.host or "" for t in trials]))
    if any(t.error for t in trials):
        columns.append(("error", [cell(t.summary, MAX_ERROR) for t in trials]))
    if any(t.note for t in trials) and not view.has_shared_note:
        columns.append(("note", [cell(t.note or "", MAX_NOTE) for t in trials]))
    return columns


def unnamed(trials: Sequence[Trial], metric: str | None) -> list[str]:
    """Return the names of the trials' numbers if none of the numbers counts as the metric."""
    if metric or any(trial.last_value is not None for trial in trials):
        return []
    return list(dict.fromkeys(name for trial in trials for name in trial.metrics))


def running(
    trials: Sequence[Trial], steps: Mapping[int, int], seconds: Mapping[int, float], metric: str
) -> list[tuple[str, list[str]]]:
    """Return the title and the cells of each column of the table of running trials.

    Args:
        trials: the trials to show.
        steps: the last reported step of each trial, by number.
        seconds: seconds since the start of each trial, by number.
        metric: the metric to show; of a trial that has not reported it, the first metric.
    """
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    columns = [
        ("trial", [str(t.number) for t in trials]),
        ("state", [str(t.state) for t in trials]),
    ]
    columns += [(name, [cell(t.params.get(name, "")) for t in trials]) for name in names]
    values = [t.metrics.get(metric, next(iter(t.metrics.values()), None)) for t in trials]
    columns.append((metric, ["" if v is None else _number(v) for v in values]))
    columns.append(("step", [str(steps.get(t.number, "")) for t in trials]))
    return [*columns, ("duration", [f"{seconds[t.number]:.0f} s" for t in trials])]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds else ""


def _number_of(trial: Trial, name: str) -> str:
    """Return a returned or reported number; empty if the trial has none with this name."""
    value = trial.outputs.get(name, trial.metrics.get(name))
    text = str(value) if isinstance(value, int) else ""
    return _number(value) if isinstance(value, float) else text


def _number(value: float) -> str:
    return f"{value:.5f}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.5g}"


def cell(value: Any, width: int = 24) -> str:
    """Return the text of a value in a cell, at most `width` characters.

    Example:
        >>> cell("the function returned nothing"), cell("a" * 30)
        ('the function...', 'aaaaaaaaaaaaaaaaaaaaa...')
    """
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if len(text) <= width:
        return text
    begin = text[: width - 3]
    if " " in begin[width // 2 :] and text[width - 3] != " ":
        begin = begin.rpartition(" ")[0]  # A sentence is cut between words.
    return f"{begin.rstrip()}..."


def text(view: View) -> str:
    """Return the table of a run as text; `*` marks the best trial."""
    rows = padded(_columns(view) if view.trials else [])
    lines = [view.headline, *view.in_common, *rows, view.hidden(), *view.footlines()]
    return "\n".join(line for line in lines if line)


def padded(columns: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return columns, each with a title and cells, as aligned lines of text."""
    aligned = []
    for title, cells in columns:
        width = max(len(cell) for cell in (title, *cells))
        align = str.ljust if title in _LEFT else str.rjust
        aligned.append([align(cell, width) for cell in (title, *cells)])
    return ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]


def html(view: View) -> str:
    """Return the table of a run as HTML with inline styles, which any notebook shows."""
    columns = _columns(view) if view.trials else []
    titles = [title for title, _ in columns]
    head = "".join(_head(title) for title in titles)
    body = []
    rows = zip(*(cells for _, cells in columns), strict=True)
    for trial, cells in zip(view.shown_trials, rows, strict=True):
        style = "font-weight:bold" if trial in view.starred else ""
        color = _COLORS.get(trial.state, "inherit")
        cells_html = "".join(
            _td(title, cell, style + (f";color:{color}" if title == "state" else ""), trial)
            for title, cell in zip(titles, cells, strict=True)
        )
        body.append(f"<tr>{cells_html}</tr>")
    foot = "<br>".join(markup.escape(line) for line in [view.hidden(), *view.footlines()] if line)
    table = f"<table><tr>{head}</tr>{''.join(body)}</table>" if columns else ""
    first = "".join(f"<p>{markup.escape(line)}</p>" for line in view.in_common)
    return f"<p><b>{markup.escape(view.headline)}</b></p>{first}{table}<p>{foot}</p>"


def grid(columns: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return columns, each with a title and cells, as an HTML table."""
    head = "".join(_td(title, title, "font-weight:bold") for title, _ in columns)
    rows = zip(*(cells for _, cells in columns), strict=True)
    titles = [title for title, _ in columns]
    body = [
        "".join(_td(title, cell, "") for title, cell in zip(titles, row, strict=True))
        for row in rows
    ]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def _head(title: str) -> str:
    """Return a title, which a narrow page may break after an underscore, if the title is long."""
    cell = _td(title, title, "font-weight:bold")
    if len(title) <= MAX_TITLE:
        return cell
    text = markup.escape(title)
    return f"{cell.removesuffix(f'{text}</td>')}{text.replace('_', '_<wbr>')}</td>"


def _td(title: str, cell: str, style: str, trial: Trial | None = None) -> str:
    side = "left" if title in _LEFT else "right"
    long = {"error": trial.summary, "note": trial.note or ""} if trial else {}
    whole = f' title="{markup.escape(long[title])}"' if title in long else ""
    return (
        f'<td{whole} style="text-align:{side};padding:2px 10px;{style}">{markup.escape(cell)}</td>'
    )


def tried(params: Iterable[Mapping[str, Any]], name: str) -> str:
    """Return the values of a parameter in trials as text, of many values the ends.

    Example:
        >>> tried([{"units": n} for n in range(10)], "units")
        '0 to 9, 10 values'
    """
    values = [*{json.dumps(each[name]): each[name] for each in params if name in each}.values()]
    texts = [cell(value) for value in values]
    if len(texts) > MAX_LISTED and all(isinstance(value, int | float) for value in values):
        return f"{cell(min(values))} to {cell(max(values))}, {len(texts)} values"
    more = f" ... {len(texts)} values" if len(texts) > MAX_LISTED else ""
    return ", ".join(texts[:MAX_LISTED]) + more
