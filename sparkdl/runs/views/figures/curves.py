"""Runs on the driver. The figure of the reported values, with a panel for each metric."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures.base import (
    BEST,
    COLORS,
    RunView,
    figure,
    hover,
    name_of_value,
    plain,
    shown_trials,
)
from sparkdl.runs.views.figures.grid import Grid, placed
from sparkdl.runs.views.figures.value_axis import HOW_TO_SHOW, ValueAxis, value_axis

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

# Limits that keep a figure fast in a browser, and the page small: trials, steps of a curve, panels.
MAX_CURVES = 30
MAX_STEPS = 300
MAX_PANELS = 12
# With more panels than these, a curve has fewer steps.
FEW_PANELS, FEW_STEPS = 4, 100

# Names such as `val_loss`, `train/loss` and `loss_test`.
_PART = "train|training|val|valid|validation|eval|test"
_PREFIXED = re.compile(rf"(?P<part>{_PART})[_/. -](?P<base>.+)", re.IGNORECASE)
_SUFFIXED = re.compile(rf"(?P<base>.+)[_/. -](?P<part>{_PART})", re.IGNORECASE)


@dataclass(frozen=True)
class Panel:
    """The metrics of one panel.

    Attributes:
        title: the names as one text.
        names: the names under which the metric was reported.
    """

    title: str
    names: tuple[str, ...]


def panels_of(names: Sequence[str], first: str | None = None) -> list[Panel]:
    """Return the panels: metrics of training and of validation share one.

    Args:
        names: the names of all metrics.
        first: the name of the metric whose panel is the first.

    Example:
        >>> [panel.names for panel in panels_of(["loss", "lr", "val_loss", "val_auc"], "val_loss")]
        [('loss', 'val_loss'), ('lr',), ('val_auc',)]
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_split(name)[0], []).append(name)
    panels = [Panel(", ".join(group), tuple(group)) for group in groups.values()]
    return sorted(panels, key=lambda panel: first not in panel.names)


def _split(name: str) -> tuple[str, bool]:
    """Return the name of a metric without the part of the data, and True if that is training."""
    match = _PREFIXED.fullmatch(name) or _SUFFIXED.fullmatch(name)
    if match is None:
        return name, True
    return match["base"], match["part"].lower().startswith("train")


def curves(run: RunView) -> "Figure | None":
    """Return a figure of all values that the best trials and some others reported at each step.

    There is a panel for each metric, and one for a metric of training and of validation. The
    function reads the files of at most `MAX_CURVES` trials.

    Returns:
        The figure; None if no trial reported a value at two steps.
    """
    best, trials = run.top(MAX_CURVES // 2), shown_trials(run, MAX_CURVES)
    histories = [(trial, trial.history) for trial in trials]
    names = dict.fromkeys(name for _, frame in histories for name in _drawn(frame))
    counted = run.metric if run.metric in names else "value"
    panels = panels_of([*names], counted)
    if not panels:
        return None
    most = MAX_STEPS if len(panels) <= FEW_PANELS else FEW_STEPS
    drawing = _Drawing(run, best[0] if best else None, most)
    parts = [drawing.panel(panel, histories) for panel in panels[:MAX_PANELS]]
    grid = Grid(len(parts))
    traces: list[Any] = []
    layout: dict[str, Any] = {}
    for number, part in enumerate(parts):
        traces += [placed(line, number) for line in part.lines]
        title = {"title": {"text": "step" if grid.is_lowest(number) else ""}}
        layout |= grid.axes(number, title, part.axis.layout)
    num_left = sum(bool(t.attempts) for t in run.trials) - len(trials)
    notes = [f"the best {len(best)} and {len(trials) - len(best)} other trials"] * (num_left > 0)
    notes += [f"{MAX_PANELS} of {len(panels)} metrics are drawn"] * (len(panels) > MAX_PANELS)
    return figure(
        "Learning curves",
        "; ".join([*notes, *_notes(parts, traces)]),
        traces,
        annotations=grid.titles([_title(run, panel, counted) for panel in panels[:MAX_PANELS]]),
        showlegend=len(run.trials) == 1 and len(names) > len(panels),
        **grid.layout,
        **layout,
    )


def why_no_curves(run: RunView) -> str:
    """Return why a run has no figure of curves, as HTML."""
    if any(len(trial.history) for trial in shown_trials(run, MAX_CURVES)):
        return "No metric was reported at two steps, which a curve needs, such as two epochs."
    return (
        "No trial has reported values. The training function reports them by "
        "<code>context.report({'loss': loss}, step=epoch)</code>, or, of Keras, by "
        "<code>model.fit(..., callbacks=[sparkdl.keras.Report()])</code>."
    )


def _drawn(frame: "pd.DataFrame") -> list[str]:
    return [name for name in frame.columns if frame[name].count() > 1]


def _title(run: RunView, panel: Panel, counted: str) -> str:
    if counted not in panel.names:
        return plain(panel.title)
    if len(panel.names) == 1:
        return name_of_value(run)
    better = "higher" if run.direction == "max" else "lower"
    return f"{plain(panel.title)} ({better} {plain(counted)} is better)"


@dataclass(frozen=True)
class _Part:
    """The traces of a panel, the best trial last, and their axis."""

    title: str
    lines: list[Any]
    axis: ValueAxis
    is_thinned: bool


@dataclass(frozen=True)
class _Drawing:
    """The run, and the limit, that all panels have in common."""

    run: RunView
    best: Trial | None
    most_steps: int

    def panel(self, panel: Panel, histories: "Sequence[tuple[Trial, pd.DataFrame]]") -> _Part:
        lines, ends, is_thinned = [], [], False
        for trial, frame in histories:
            for name in filter(_drawn(frame).__contains__, panel.names):
                series = frame[name].dropna()
                lines.append(self._line(trial, series, len(panel.names) > 1))
                ends += [float(series.iloc[-1])] if trial is self.best else []
                is_thinned |= len(series) > self.most_steps
        values = [float(value) for line in lines for value in line.y]
        return _Part(panel.title, lines[::-1], value_axis(values, ends), is_thinned)

    def _line(self, trial: Trial, series: "pd.Series[Any]", has_parts: bool) -> Any:
        from plotly.graph_objects import Scatter

        whole = list(zip(series.index.tolist(), series.tolist(), strict=True))
        points = extremes(whole, self.most_steps)
        is_single, is_best = len(self.run.trials) == 1, trial is self.best
        name = plain(series.name)
        is_training = has_parts and _split(str(series.name))[1]
        color = BEST if is_best else COLORS[trial.state]
        if is_single:
            color = COLORS[TrialState.COMPLETE] if is_training or not has_parts else BEST
        dash = "dash" if trial.state == TrialState.PRUNED and not is_single else "solid"
        return Scatter(
            x=[step for step, _ in points],
            y=[value for _, value in points],
            name=name if is_single else f"trial {trial.number}",
            mode="lines+markers" if len(points) < 3 else "lines",
            opacity=1.0 if is_best or is_single else 0.55,
            line={
                "color": color,
                "width": 3 if is_best and not is_single else 1.5,
                "dash": "dot" if is_training else dash,
            },
            text=hover(trial, name),
            hovertemplate="step %{x}: %{y:.6g}<br>%{text}<extra></extra>",
        )


def extremes(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Return at most `most` points of a curve: the ends, and the extremes of each group of steps.

    Example:
        >>> extremes([(0, 1.0), (1, 9.0), (2, 2.0), (3, 2.0), (4, 1.0), (5, 1.0)], 4)
        [(0, 1.0), (1, 9.0), (5, 1.0)]
    """
    if len(points) <= most:
        return list(points)
    count = most // 2 - 1
    bounds = [round(i * len(points) / count) for i in range(count + 1)]
    chosen = {points[0], points[-1]}
    for begin, end in itertools.pairwise(bounds):
        group = [point for point in points[begin:end] if math.isfinite(point[1])]
        group = group or list(points[begin : begin + 1])
        low, high = min(group, key=lambda p: p[1]), max(reversed(group), key=lambda p: p[1])
        chosen |= {low, high}
    return sorted(chosen, key=lambda point: point[0])


def _notes(parts: Sequence[_Part], traces: Sequence[Any]) -> list[str]:
    dashes = {trace.line.dash for trace in traces}
    words = {"dot": "dotted: training", "dash": "dashed: pruned"}
    notes = list(dict.fromkeys(f"thick: {t.name}, the best" for t in traces if t.line.width > 2))
    notes += [text for dash, text in words.items() if dash in dashes]
    notes += ["of long curves the extremes are drawn"] * any(part.is_thinned for part in parts)
    cut = []
    for part in parts:
        values = [v for line in part.lines for v in line.y if math.isfinite(v)]
        if beyond := part.axis.beyond(values):
            farthest = max(beyond, key=abs)
            cut.append(f"{plain(part.title)} as far as {farthest:.4g}")
    notes += [f"beyond the axis: {', '.join(cut)} ({HOW_TO_SHOW})"] if cut else []
    broken = {trace.name for trace in traces if not all(math.isfinite(value) for value in trace.y)}
    shown = ", ".join(sorted(broken)[:5]) + (" and others" if len(broken) > 5 else "")
    return [*notes, f"not finite at some steps: {shown}"] if broken else notes
