"""Runs on the driver. The figure of each parameter against the value."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures.base import (
    BEST,
    COLORS,
    SYMBOLS,
    RunView,
    figure,
    hover,
    is_wide,
    name_of_value,
    plain,
    thinned,
    varying,
)
from sparkdl.runs.views.figures.grid import Grid, placed
from sparkdl.runs.views.figures.params import MAX_AXES, is_drawn, is_number, values_of
from sparkdl.runs.views.figures.value_axis import ValueAxis, value_axis

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# The most trials, which all panels draw.
MAX_TRIALS = 300
NUM_COLUMNS = 3
# Fewer numbers than this, each of several trials, are choices.
FEW_NUMBERS = 6
# Trials with the same choice stand beside one another, in this part of the distance of two choices.
SPREAD = 0.4

_FAILED = (TrialState.FAILED, TrialState.INVALID)


def slices(run: RunView) -> "Figure | None":
    """Return a figure with a panel for each parameter, in which each trial is a point.

    PRUNED trials have their last value. Trials that failed are crosses below all values: they show
    which values of a parameter fail.

    Returns:
        The figure; None if fewer than two trials have a value, or if no parameter varies.
    """
    valued = [t for t in run.trials if _is_valued(t)]
    failed = [t for t in run.trials if t.state in _FAILED]
    best = run.top(1)
    drawn = thinned([t for t in valued if t not in best], MAX_TRIALS - 1) + best
    shown = [*drawn, *thinned(failed, MAX_TRIALS // 3)]
    names = [name for name in varying(shown) if is_drawn(shown, name)]
    if len(drawn) < 2 or not names:
        return None
    numbers = [float(t.last_value or 0) for t in drawn]
    axis = value_axis(numbers, [float(t.value or 0) for t in best])
    heights, y = _heights(shown, numbers, axis)
    grid = Grid(len(names[:MAX_AXES]), min(NUM_COLUMNS, len(names)))
    traces: list[Any] = []
    layout: dict[str, Any] = {}
    for number, name in enumerate(names[:MAX_AXES]):
        places, x = _places(shown, name)
        points = zip(shown, places, heights, strict=True)
        present = [point for point in points if point[1] is not None]
        traces += [placed(t.update(showlegend=not number), number) for t in _traces(present, best)]
        layout |= grid.axes(number, x, {**y, "matches": "y" if number else None})
    notes = _notes(run, valued, drawn, names, axis)
    if any("ticktext" in part for part in layout.values()):
        notes.append("trials with the same choice stand side by side")
    return figure(
        "Slices: each parameter against the value",
        "; ".join(notes),
        traces,
        annotations=grid.titles([plain(name, 36) for name in names[:MAX_AXES]]),
        showlegend=True,
        **grid.layout,
        **layout,
    )


def _is_valued(trial: Trial) -> bool:
    value = trial.last_value
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return trial.state in states and value is not None and math.isfinite(value)


def _notes(
    run: RunView,
    valued: Sequence[Trial],
    drawn: Sequence[Trial],
    names: Sequence[str],
    axis: ValueAxis,
) -> list[str]:
    notes = [f"up: {name_of_value(run)}"]
    notes += [f"{len(drawn)} of {len(valued)} trials"] * (len(drawn) < len(valued))
    notes += [f"{MAX_AXES} of {len(names)} parameters"] * (len(names) > MAX_AXES)
    if any(t.state == TrialState.PRUNED for t in drawn):
        notes.append("pruned trials have their last value")
    far = axis.beyond([float(t.last_value or 0) for t in drawn])
    texts = ", ".join(f"{value:.4g}" for value in sorted(far)[:3])
    more = f" and {len(far) - 3} more" if len(far) > 3 else ""
    notes += [f"values beyond the axis are at its edge: {texts}{more}"] if far else []
    has_failed = any(t.state in _FAILED for t in run.trials)
    return [*notes, "crosses and diamonds below: without a value"] if has_failed else notes


def _heights(
    shown: Sequence[Trial], numbers: Sequence[float], axis: ValueAxis
) -> tuple[list[float], dict[str, Any]]:
    """Return the value of each trial, that of failed ones below all others, and the axis."""
    low, high = axis.limits or (min(numbers), max(numbers))
    if axis.is_log:
        low, high = math.log10(low), math.log10(high)
    step = (high - low) or abs(high) or 1.0
    below = low - 0.12 * step
    bottom = 10**below if axis.is_log else below
    heights = [bottom] * len(shown)
    for place, value in enumerate(numbers):
        edge = axis.edge(value)
        heights[place] = value if edge is None else edge
    has_failed = len(numbers) < len(shown)
    ends = [below - 0.06 * step if has_failed else low - 0.06 * step, high + 0.06 * step]
    return heights, {**axis.layout, "range": ends}


def _places(shown: Sequence[Trial], name: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the place of each trial along a parameter, None without it, and the axis."""
    values = values_of(shown, name)
    marks = sorted({value for value in values if value is not None})
    if is_number(marks[0]) and not (len(marks) < FEW_NUMBERS and 2 * len(marks) <= len(values)):
        scale = "log" if is_wide(marks) else "linear"
        return values, {"type": scale, "nticks": 6, "exponentformat": "power"}
    codes = {mark: code for code, mark in enumerate(marks)}
    counts = dict.fromkeys(marks, 0)
    places: list[Any] = []
    for value in values:
        if value is None:
            places.append(None)
            continue
        # The golden ratio spreads any number of points evenly.
        part = (counts[value] * 0.618034) % 1 - 0.5
        counts[value] += 1
        places.append(codes[value] + SPREAD * part)
    ticks = [plain(mark, 12) for mark in marks]
    ends = [-0.5, len(marks) - 0.5]
    return places, {"tickvals": list(codes.values()), "ticktext": ticks, "range": ends}


def _traces(points: Sequence[tuple[Trial, Any, float]], best: Sequence[Trial]) -> list[Any]:
    from plotly.graph_objects import Scatter

    looks: list[tuple[str, str, str, Any]] = [
        (str(state), COLORS[state], SYMBOLS[state], lambda t, s=state: t.state == s)
        for state in (TrialState.COMPLETE, TrialState.PRUNED, *_FAILED)
    ]
    traces = []
    for name, color, symbol, is_meant in looks:
        some = [p for p in points if is_meant(p[0]) and p[0] not in best]
        traces.append(_scatter(Scatter, some, name, {"color": color, "symbol": symbol, "size": 7}))
    star = {"color": BEST, "symbol": "star", "size": 13}
    some = [p for p in points if p[0] in best]
    return [*traces, _scatter(Scatter, some, "best", star)]


def _scatter(
    kind: Any, points: Sequence[tuple[Trial, Any, float]], name: str, marker: dict[str, Any]
) -> Any:
    return kind(
        x=[x for _, x, _ in points],
        y=[y for _, _, y in points],
        name=name,
        legendgroup=name,
        mode="markers",
        marker={"opacity": 0.75, **marker},
        text=[hover(t) for t, _, _ in points],
        hovertemplate="%{text}<extra></extra>",
    )
