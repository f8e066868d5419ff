"""Runs on the driver. A run as a table: for the terminal, for a notebook, for pandas."""

import html as markup
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pandas as pd

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

__all__ = ["View", "cell", "frame", "grid", "html", "padded", "running", "text"]

# A longer run shows its best trials and its failures; to_pandas() has them all.
MOST_ROWS = 40

_LEFT = ("state", "failure", "error")
_COLORS = {
    TrialState.COMPLETE: "#1a7f37",
    TrialState.FAILED: "#cf222e",
    TrialState.INVALID: "#cf222e",
    TrialState.CANCELLED: "#9a6700",
    TrialState.LOST: "#9a6700",
    TrialState.PRUNED: "#9a6700",
}


@dataclass(frozen=True)
class View:
    """What is shown of a run.

    Attributes:
        headline: id, state and counts in a line.
        trials: all trials.
        ranked: the COMPLETE ones with a value, best first.
        metric: the title of the values.
        others: the names of more numbers that count.
        means: with repeats, the mean and the deviation of each configuration.
        pareto: of several numbers, the trials among which to choose.
        path: where everything is kept.
    """

    headline: str
    trials: Sequence[Trial]
    ranked: Sequence[Trial]
    metric: str
    path: str
    others: Sequence[str] = ()
    means: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    pareto: Sequence[Trial] = ()

    @property
    def starred(self) -> Sequence[Trial]:
        """The best trial, or those among which to choose."""
        return self.pareto or self.ranked[:1]

    def shown(self) -> Sequence[Trial]:
        """The trials that get a row."""
        if len(self.trials) <= MOST_ROWS:
            return self.trials
        failed = [trial for trial in self.trials if trial.state == TrialState.FAILED]
        chosen = [*self.ranked[: MOST_ROWS // 2], *failed[: MOST_ROWS // 2]]
        return chosen or self.trials[:MOST_ROWS]

    def hidden(self) -> str:
        """What is said of the trials that get none; empty where all do."""
        count = len(self.trials) - len(self.shown())
        return f"... {count} more trials: run.to_pandas() has them all" if count else ""

    def footlines(self) -> list[str]:
        """What all trials had in common, the best trial, and where everything is."""
        lines = []
        common = _common(self.trials)
        if common:
            lines.append(f"In all trials: {_params(common)}")
        if self.pareto:
            numbers = ", ".join(str(trial.number) for trial in self.pareto)
            lines.append(
                f"None is better in all of {self.metric}, {', '.join(self.others)}: {numbers}"
            )
        elif self.ranked:
            best = self.ranked[0]
            varying = {k: v for k, v in best.params.items() if k not in common}
            what = f"Best: trial {best.number}, {self.metric} {best.value:.5g}"
            lines.append(what + (f", {_params(varying)}" if varying else ""))
        return [*lines, f"Everything is in {self.path}"]


def _params(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={cell(value)}" for name, value in params.items())


def _common(trials: Sequence[Trial]) -> dict[str, Any]:
    """The parameters that are the same in all of several trials."""
    if len(trials) < 2:
        return {}
    first = trials[0].params
    return {k: v for k, v in first.items() if all(t.params.get(k) == v for t in trials)}


def frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """All trials with everything known of them, a row each."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    rows: list[dict[str, Any]] = []
    for trial in trials:
        ours: dict[str, Any] = {"trial": trial.number, "state": str(trial.state)}
        theirs = {name: trial.params.get(name) for name in names}
        outputs = {f"output.{name}": value for name, value in trial.outputs.items()}
        more: dict[str, Any] = {"value": trial.value, "attempts": trial.attempts}
        more |= {"seed": trial.seed, "duration_s": trial.duration_s, **asdict(trial.usage)}
        more |= {"failure": trial.failure, "error": trial.error, "path": trial.path}
        # A parameter keeps its name; where one of ours is called the same, ours is renamed.
        ours, more = ({_apart(k, theirs): v for k, v in some.items()} for some in (ours, more))
        rows.append({**ours, **theirs, **outputs, **more})
    return pd.DataFrame(rows)


def _apart(name: str, params: Mapping[str, Any]) -> str:
    return f"trial_{name}" if name in params else name


def _columns(view: View) -> list[tuple[str, list[str]]]:
    """The short table: titles, each with its cells."""
    trials, best = view.shown(), view.starred
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    columns = [
        ("trial", [f"{t.number}{' *' if t in best else ''}" for t in trials]),
        ("state", [str(t.state) for t in trials]),
    ]
    for name in names:
        if name not in _common(view.trials):
            columns.append((name, [cell(t.params.get(name, "")) for t in trials]))
    values = ["" if t.value is None else _number(t.value) for t in trials]
    columns.append((view.metric, values))
    if view.means:
        columns.append(("mean", [_mean(view.means.get(t.configuration)) for t in trials]))
    for name in view.others:
        numbers = [t.metrics.get(name) if t.value is not None else None for t in trials]
        columns.append((name, ["" if n is None else _number(n) for n in numbers]))
    seconds = [f"{t.usage.running_s:.1f}" if t.usage.running_s else "" for t in trials]
    columns.append(("seconds", seconds))
    if any(t.failure for t in trials):
        columns.append(("failure", [t.failure or "" for t in trials]))
    if any(t.error for t in trials):
        columns.append(("error", [cell(t.summary, 60) for t in trials]))
    return columns


def running(
    trials: Sequence[Trial], steps: Mapping[int, int], started: Mapping[int, float], metric: str
) -> list[tuple[str, list[str]]]:
    """The columns of a table of trials that run now.

    Args:
        trials: those that are shown.
        steps: the last step that each has reported, by number.
        started: for how many seconds each has run.
        metric: the reported number to show; else a trial's last.
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
    return [*columns, ("seconds", [f"{started[t.number]:.0f}" for t in trials])]


def _number(value: float) -> str:
    return f"{value:.5f}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.5g}"


def _mean(found: tuple[float, float] | None) -> str:
    return f"{_number(found[0])} ± {found[1]:.2g}" if found else ""


def cell(value: Any, width: int = 24) -> str:
    """A value as a table shows it."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def text(view: View) -> str:
    """The run as lines of text; `*` marks the best trial."""
    rows = padded(_columns(view) if view.trials else [])
    lines = [view.headline, *rows, view.hidden(), *view.footlines()]
    return "\n".join(line for line in lines if line)


def padded(columns: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Columns, each a title with its cells, as lines of text."""
    aligned = []
    for title, cells in columns:
        width = max(len(cell) for cell in (title, *cells))
        align = str.ljust if title in _LEFT else str.rjust
        aligned.append([align(cell, width) for cell in (title, *cells)])
    return ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]


def html(view: View) -> str:
    """The run as a fragment of HTML, styled in place: it is shown in any notebook."""
    columns = _columns(view) if view.trials else []
    titles = [title for title, _ in columns]
    head = "".join(_td(title, title, "font-weight:bold") for title in titles)
    body = []
    rows = zip(*(cells for _, cells in columns), strict=True)
    for trial, cells in zip(view.shown(), rows, strict=True):
        style = "font-weight:bold" if trial in view.starred else ""
        color = _COLORS.get(trial.state, "inherit")
        cells_html = "".join(
            _td(title, cell, style + (f";color:{color}" if title == "state" else ""), trial)
            for title, cell in zip(titles, cells, strict=True)
        )
        body.append(f"<tr>{cells_html}</tr>")
    foot = "<br>".join(markup.escape(line) for line in [view.hidden(), *view.footlines()] if line)
    table = f"<table><tr>{head}</tr>{''.join(body)}</table>" if columns else ""
    return f"<p><b>{markup.escape(view.headline)}</b></p>{table}<p>{foot}</p>"


def grid(columns: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Columns, each a title with its cells, as a table of HTML."""
    head = "".join(_td(title, title, "font-weight:bold") for title, _ in columns)
    rows = zip(*(cells for _, cells in columns), strict=True)
    titles = [title for title, _ in columns]
    body = [
        "".join(_td(title, one, "") for title, one in zip(titles, row, strict=True)) for row in rows
    ]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in body)}</table>"


def _td(title: str, cell: str, style: str, trial: Trial | None = None) -> str:
    side = "left" if title in _LEFT else "right"
    whole = f' title="{markup.escape(trial.summary)}"' if trial and title == "error" else ""
    return (
        f'<td{whole} style="text-align:{side};padding:2px 10px;{style}">{markup.escape(cell)}</td>'
    )
