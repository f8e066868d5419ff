"""Where it runs: D. A run as a table: for the terminal, for a notebook, for pandas."""

import html as markup
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

__all__ = ["View", "frame", "html", "text"]

# A longer run shows its best trials and its failures; to_pandas() has them all.
MOST_ROWS = 40


@dataclass(frozen=True)
class View:
    """What is shown of a run.

    Attributes:
        headline: id, state and counts in a line.
        trials: all trials.
        ranked: the COMPLETE ones with a value, best first.
        metric: the title of the values.
        path: where everything is kept.
    """

    headline: str
    trials: Sequence[Trial]
    ranked: Sequence[Trial]
    metric: str
    path: str

    def shown(self) -> Sequence[Trial]:
        """The trials that get a row."""
        if len(self.trials) <= MOST_ROWS:
            return self.trials
        failed = [trial for trial in self.trials if trial.state == TrialState.FAILED]
        return [*self.ranked[: MOST_ROWS // 2], *failed[: MOST_ROWS // 2]]

    def hidden(self) -> str:
        """What is said of the trials that get none; empty where all do."""
        count = len(self.trials) - len(self.shown())
        return f"... {count} more trials: run.to_pandas() has them all" if count else ""

    def footlines(self) -> list[str]:
        """The best trial, and where everything is."""
        where = f"Everything is in {self.path}"
        if not self.ranked:
            return [where]
        best = self.ranked[0]
        params = ", ".join(f"{name}={_cell(value)}" for name, value in best.params.items())
        what = f"Best: trial {best.number}, {self.metric} {best.value:.5g}"
        return [what + (f", {params}" if params else ""), where]


def _varying(trials: Sequence[Trial]) -> list[str]:
    """The names of parameters, those that differ between trials first."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    same = [n for n in names if len({repr(t.params.get(n)) for t in trials}) == 1]
    return [n for n in names if n not in same] + same


def frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """All trials with everything known of them, a row each."""
    names = _varying(trials)
    rows: list[dict[str, Any]] = []
    for trial in trials:
        row: dict[str, Any] = {"trial": trial.number, "state": str(trial.state)}
        row |= {name: trial.params.get(name) for name in names}
        row |= {f"output.{name}": value for name, value in trial.outputs.items()}
        row |= {"value": trial.value, "attempts": trial.attempts, "seed": trial.seed}
        row |= {"duration_s": trial.duration_s, **asdict(trial.usage)}
        row |= {"error": trial.error, "path": trial.path}
        rows.append(row)
    return pd.DataFrame(rows)


def _rows(view: View) -> pd.DataFrame:
    trials = view.shown()
    columns: dict[str, list[Any]] = {
        "trial": [trial.number for trial in trials],
        "state": [str(trial.state) for trial in trials],
    }
    for name in _varying(trials):
        columns[name] = [_cell(trial.params.get(name)) for trial in trials]
    columns[view.metric] = ["" if t.value is None else f"{t.value:.5g}" for t in trials]
    columns["seconds"] = [f"{t.duration_s:.1f}" if t.attempts else "" for t in trials]
    if any(trial.error for trial in trials):
        columns["error"] = [_cell(trial.summary, 60) for trial in trials]
    columns[""] = ["<- best" if trial in view.ranked[:1] else "" for trial in trials]
    return pd.DataFrame(columns)


def _cell(value: Any, width: int = 24) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def text(view: View) -> str:
    """The run as lines of text."""
    rows = _rows(view).to_string(index=False) if view.trials else ""
    lines = [view.headline, rows, view.hidden(), *view.footlines()]
    return "\n".join(line for line in lines if line)


def html(view: View) -> str:
    """The run as a fragment of HTML."""
    rows = _rows(view).to_html(index=False, border=0) if view.trials else ""
    foot = "<br>".join(markup.escape(line) for line in view.footlines())
    hidden = f"<p>{view.hidden()}</p>" if view.hidden() else ""
    return f"<p><b>{markup.escape(view.headline)}</b></p>{rows}{hidden}<p>{foot}</p>"
