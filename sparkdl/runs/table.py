"""Where it runs: D. A run as a table: for the terminal, for a notebook, for pandas."""

import html as markup
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from sparkdl.runs.run import Run, Trial

__all__ = ["frame", "html", "text"]

# A longer run shows its best trials and its failures; to_pandas() has them all.
MOST_ROWS = 40


def _varying(trials: "list[Trial]") -> list[str]:
    """The names of parameters, those that differ between trials first."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    same = [n for n in names if len({repr(t.params.get(n)) for t in trials}) == 1]
    return [n for n in names if n not in same] + same


def frame(run: "Run") -> pd.DataFrame:
    """All trials with everything known of them, a row each."""
    rows: list[dict[str, Any]] = []
    for trial in run.trials:
        row: dict[str, Any] = {"trial": trial.number, "state": str(trial.state)}
        row |= {name: trial.params.get(name) for name in _varying(run.trials)}
        row |= {f"output.{name}": value for name, value in trial.outputs.items()}
        row |= {"value": trial.value, "attempts": trial.attempts, "seed": trial.seed}
        row |= {"duration_s": trial.duration_s, **asdict(trial.usage)}
        row |= {"error": trial.error, "path": trial.path}
        rows.append(row)
    return pd.DataFrame(rows)


def _shown(run: "Run") -> "list[Trial]":
    if len(run.trials) <= MOST_ROWS:
        return run.trials
    return [*run.top(MOST_ROWS // 2), *run.failed[: MOST_ROWS // 2]]


def _short(run: "Run") -> pd.DataFrame:
    trials = _shown(run)
    best = run.top(1)
    columns: dict[str, list[Any]] = {
        "trial": [t.number for t in trials],
        "state": [str(t.state) for t in trials],
    }
    for name in _varying(trials):
        columns[name] = [_cell(t.params.get(name)) for t in trials]
    columns[run.metric or "value"] = ["" if t.value is None else f"{t.value:.5g}" for t in trials]
    columns["seconds"] = [f"{t.duration_s:.1f}" if t.attempts else "" for t in trials]
    if any(t.error for t in trials):
        columns["error"] = [_cell((t.error or "").split("\n")[0], 60) for t in trials]
    columns[""] = ["<- best" if t in best else "" for t in trials]
    return pd.DataFrame(columns)


def _cell(value: Any, width: int = 24) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def _headline(run: "Run") -> str:
    why = f" ({run.reason})" if run.reason else ""
    seconds = f" in {run.duration_s:.1f} s" if run.duration_s else ""
    return f"Run {run.id} ({run.kind}): {run.state}{why}, {run.counts_text()}{seconds}"


def _footline(run: "Run") -> str:
    best = run.top(1)
    if not best:
        return f"Everything is in {run.path}"
    params = ", ".join(f"{k}={_cell(v)}" for k, v in best[0].params.items())
    value = f"{run.metric or 'value'} {best[0].value:.5g}"
    what = f"trial {best[0].number}, {value}" + (f", {params}" if params else "")
    return f"Best: {what}\nEverything is in {run.path}"


def _hidden(run: "Run") -> str:
    hidden = len(run.trials) - len(_shown(run))
    return f"\n... {hidden} more trials: run.to_pandas() has them all" if hidden else ""


def text(run: "Run") -> str:
    """The run as lines of text."""
    rows = _short(run).to_string(index=False) if run.trials else ""
    return f"{_headline(run)}\n{rows}{_hidden(run)}\n{_footline(run)}"


def html(run: "Run") -> str:
    """The run as a fragment of HTML."""
    rows = _short(run).to_html(index=False, border=0) if run.trials else ""
    foot = "<br>".join(markup.escape(line) for line in _footline(run).split("\n"))
    hidden = f"<p>{markup.escape(_hidden(run))}</p>"
    return f"<p><b>{markup.escape(_headline(run))}</b></p>{rows}{hidden}<p>{foot}</p>"
