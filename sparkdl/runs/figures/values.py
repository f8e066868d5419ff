"""Runs on the driver. Figures of the values: trial by trial, step by step, and of two metrics."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from sparkdl.runs.figures.base import (
    BEST,
    COLORS,
    GREY,
    SYMBOLS,
    Shown,
    figure,
    hover,
    is_wide,
    name_of_value,
    plain,
    thinned,
)
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["curves", "history", "pareto"]

# A browser stays quick, and the page small, with so many points, curves, and steps of a curve.
MOST_POINTS = 1500
MOST_CURVES = 30
MOST_STEPS = 300

_WITHOUT_VALUE = (
    TrialState.PRUNED,
    TrialState.INVALID,
    TrialState.FAILED,
    TrialState.LOST,
    TrialState.CANCELLED,
)


def history(run: Shown) -> "Figure | None":
    """The value of each trial in their order, the best so far, and below those without a value.

    None where fewer than two trials have a value.
    """
    valued = [t for t in run.trials if t.state == TrialState.COMPLETE and t.value is not None]
    if len(valued) < 2:
        return None
    drawn = _chosen(run, valued)
    marks = _marks(drawn, [t.value for t in drawn], TrialState.COMPLETE)
    strip = _strip(run)
    top = 0.06 + 0.065 * len(strip) if strip else 0.0
    ended = len(valued) + sum(t.state in _WITHOUT_VALUE for t in run.trials)
    shown = len(drawn) + sum(len(row.x) for row in strip)
    return figure(
        "Trial by trial",
        f"{shown} of {ended} trials are drawn" if shown < ended else "",
        [
            marks,
            _best_so_far(run, "best mean" if len(run.means()) < len(valued) else "best"),
            *strip,
        ],
        xaxis={"title": {"text": "trial"}, "anchor": "y2" if strip else "y", "zeroline": False},
        yaxis={
            "title": {"text": name_of_value(run)},
            "domain": [top, 1],
            "type": "log" if is_wide([float(t.value or 0) for t in valued]) else "linear",
            "zeroline": False,
        },
        yaxis2={
            "domain": [0, max(0.0, top - 0.06)],
            "type": "category",
            "showgrid": False,
            "dtick": 1,
            "visible": bool(strip),
        },
    )


def _marks(trials: Sequence[Trial], values: Sequence[Any], state: TrialState) -> Any:
    from plotly.graph_objects import Scatter

    return Scatter(
        x=[t.number for t in trials],
        y=list(values),
        name=str(state),
        mode="markers",
        marker={"color": COLORS[state], "symbol": SYMBOLS[state], "size": 8, "opacity": 0.75},
        text=[hover(t) for t in trials],
        hovertemplate="%{text}<extra></extra>",
    )


def _strip(run: Shown) -> list[Any]:
    """A row of marks for each state without a value."""
    traces = []
    for state in _WITHOUT_VALUE:
        trials = thinned([t for t in run.trials if t.state == state], MOST_POINTS // 3)
        if trials:
            marks = _marks(trials, [str(state)] * len(trials), state)
            traces.append(marks.update(yaxis="y2", showlegend=False))
    return traces


def _chosen(run: Shown, valued: Sequence[Trial]) -> list[Trial]:
    """The trials that are drawn: the best, and others evenly."""
    if len(valued) <= MOST_POINTS:
        return list(valued)
    some = {t.number: t for t in [*run.top(50), *thinned(valued, MOST_POINTS - 50)]}
    return [some[number] for number in sorted(some)]


def _best_so_far(run: Shown, what: str) -> Any:
    """A line through where the best became better, to the last trial; repeats count by their mean,
    at their last."""
    from plotly.graph_objects import Scatter

    last = {t.configuration: t.number for t in run.trials if t.state == TrialState.COMPLETE}
    sign = 1 if run.direction == "max" else -1
    steps: list[tuple[int, float]] = []
    means = sorted((last[number], mean) for number, (mean, _) in run.means().items())
    for number, mean in means:
        if not steps or sign * mean > sign * steps[-1][1]:
            steps.append((number, mean))
    steps.append((run.trials[-1].number, steps[-1][1]))
    return Scatter(
        x=[number for number, _ in steps],
        y=[mean for _, mean in steps],
        name=f"{what} so far",
        mode="lines",
        line={"color": BEST, "width": 2, "shape": "hv"},
        hovertemplate=f"{what} so far: %{{y:.6g}}<extra></extra>",
    )


def curves(run: Shown) -> "Figure | None":
    """What the best trials and some others reported, step by step; of a single trial all of it.

    It reads the files of at most `MOST_CURVES` trials. None where nothing was reported twice.
    """
    best = run.top(MOST_CURVES // 2)
    numbers = {trial.number for trial in best}
    others = [t for t in run.trials if t.number not in numbers and t.attempts]
    some = [*best, *thinned(others, MOST_CURVES - len(best))]
    found = [(trial, trial.history) for trial in some]
    column = _column(run, [frame for _, frame in found])
    traces: list[Any] = []
    for trial, frame in found:
        names = [column] if column else list(frame.columns) if len(run.trials) == 1 else []
        series = [frame[name].dropna() for name in names if name in frame]
        traces += [_curve(run, trial, one, trial in best[:1]) for one in series if len(one) > 1]
    if not traces:
        return None
    left = sum(bool(t.attempts) for t in run.trials) - len(some)
    note = f"the best {len(best)} and {len(some) - len(best)} other trials; dashed: pruned"
    values = [value for trace in traces for value in trace.y if math.isfinite(value)]
    title = name_of_value(run) if column in (run.metric, "value") else plain(column or "")
    return figure(
        "Learning curves",
        note if left > 0 else "dashed: pruned" * any(t.line.dash == "dash" for t in traces),
        traces[::-1],  # The best is drawn last, above the others.
        xaxis={"title": {"text": "step"}, "zeroline": False},
        yaxis={
            "title": {"text": title},
            "zeroline": False,
            "type": "log" if is_wide(values) else "linear",
        },
        showlegend=len(run.trials) == 1,
    )


def _column(run: Shown, frames: Sequence[pd.DataFrame]) -> str | None:
    """The name under which the number that counts was reported, or the only number there is."""
    names = list(dict.fromkeys(name for frame in frames for name in frame.columns))
    if run.metric in names:
        return run.metric
    # Of a plain number the name is `value`, whatever the metric is called.
    return "value" if "value" in names else names[0] if len(names) == 1 else None


def _curve(run: Shown, trial: Trial, series: "pd.Series[Any]", is_best: bool) -> Any:
    from plotly.graph_objects import Scatter

    points = thinned(list(zip(series.index.tolist(), series.tolist(), strict=True)), MOST_STEPS)
    alone = len(run.trials) == 1
    name = plain(series.name) if alone else f"trial {trial.number}"
    color = BEST if is_best else COLORS[trial.state]
    return Scatter(
        x=[step for step, _ in points],
        y=[value for _, value in points],
        name=name,
        mode="lines+markers" if len(points) < 3 else "lines",
        opacity=1.0 if is_best or alone else 0.55,
        line={
            "color": None if alone else color,
            "width": 3 if is_best else 1.5,
            "dash": "dash" if trial.state == TrialState.PRUNED else "solid",
        },
        text=hover(trial, name * alone),
        hovertemplate="step %{x}: %{y:.6g}<br>%{text}<extra></extra>",
    )


def pareto(run: Shown) -> "Figure | None":
    """The first two metrics of each trial; those that no other trial beats in all are marked.

    None where the run has one metric, or no trial is COMPLETE.
    """
    from plotly.graph_objects import Scatter

    complete = [t for t in run.trials if t.state == TrialState.COMPLETE]
    if len(run.objectives) < 2 or not complete:
        return None
    front = run.pareto
    numbers = {trial.number for trial in front}
    rest = thinned([t for t in complete if t.number not in numbers], MOST_POINTS)
    (x, x_way), (y, y_way), *more = run.objectives.items()
    looks: list[tuple[list[Trial], str, dict[str, Any]]] = [
        (rest, "dominated", {"color": GREY, "size": 8, "opacity": 0.6}),
        (sorted(front, key=lambda t: t.metrics[x]), "Pareto front", {"color": BEST}),
    ]
    traces = [
        Scatter(
            x=[t.metrics[x] for t in trials],
            y=[t.metrics[y] for t in trials],
            name=name,
            mode="lines+markers" if trials is looks[1][0] and not more else "markers",
            marker={"size": 11, **marker},
            line={"dash": "dot", "width": 1, "color": BEST},
            text=[hover(t, _metrics(run, t)) for t in trials],
            hovertemplate="%{text}<extra></extra>",
        )
        for trials, name, marker in looks
    ]
    words = {"max": "higher", "min": "lower"}
    note = "the front counts all metrics, of which two are drawn" if more else ""
    return figure(
        "Pareto front",
        note,
        traces,
        xaxis={"title": {"text": f"{plain(x)} ({words[x_way]} is better)"}, "zeroline": False},
        yaxis={"title": {"text": f"{plain(y)} ({words[y_way]} is better)"}, "zeroline": False},
    )


def _metrics(run: Shown, trial: Trial) -> str:
    return "<br>".join(f"{plain(name)}: {trial.metrics[name]:.6g}" for name in run.objectives)
