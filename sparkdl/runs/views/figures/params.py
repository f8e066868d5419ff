"""Runs on the driver. The figure of all parameters as parallel coordinates."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures.base import (
    COLORS,
    RunView,
    figure,
    is_wide,
    plain,
    thinned,
    varying,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Limits that keep a figure readable, and fast in a browser.
MAX_LINES = 1000
MAX_AXES = 12
MAX_CHOICES = 30
MAX_TICKS = 8


def parallel(run: RunView) -> "Figure | None":
    """Return a figure with a line for each COMPLETE trial, through its parameters to its value.

    Returns:
        The figure; None if fewer than two trials have a value, or if no parameter varies.
    """
    from plotly.graph_objects import Parcoords

    valued = _valued(run)
    best = {t.number for t in run.top(50)}
    drawn = thinned(valued, MAX_LINES - 50)
    drawn += [t for t in valued if t.number in best - {trial.number for trial in drawn}]
    names = [name for name in varying(drawn) if is_drawn(drawn, name)]
    if len(drawn) < 2 or not names:
        return None
    values = [float(t.value or 0) for t in drawn]
    ranked = sorted(values, reverse=run.direction == "min")
    notes = ["drag along an axis to choose a range"]
    notes += [f"{len(drawn)} of {len(valued)} trials"] if len(drawn) < len(valued) else []
    notes += [f"{MAX_AXES} of {len(names)} parameters"] if len(names) > MAX_AXES else []
    axes = [_axis(plain(name, 24), values_of(drawn, name)) for name in names[:MAX_AXES]]
    # The worst tenth shares a colour; otherwise a few extreme values would leave a single colour
    # for all other trials.
    ends = sorted((ranked[len(ranked) // 10], ranked[-1]))
    line = {
        "color": values,
        "colorscale": [[0, "#b4bac2"], [0.6, "#56b4e9"], [1, COLORS[TrialState.COMPLETE]]],
        "reversescale": run.direction == "min",
        "cmin": ends[0],
        "cmax": ends[1],
    }
    return figure(
        "Parameters and values",
        ", ".join(notes),
        [Parcoords(dimensions=[*axes, _axis(plain(run.metric or "value", 24), values)], line=line)],
        margin={"l": 70, "r": 60, "t": 120, "b": 20},
    )


def _valued(run: RunView) -> list[Trial]:
    return [t for t in run.trials if t.state == TrialState.COMPLETE and t.value is not None]


def values_of(trials: Sequence[Trial], name: str) -> list[Any]:
    """Return a parameter's values, as text unless all are numbers; None for missing values."""
    values = [t.params.get(name) for t in trials]
    if all(value is None or is_number(value) for value in values):
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def is_number(value: object) -> bool:
    """Return True for a finite number."""
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)  # type: ignore[arg-type]


def is_drawn(trials: Sequence[Trial], name: str) -> bool:
    """Return True for numbers and choices; text with many values is a label and is not drawn."""
    values = {value for value in values_of(trials, name) if value is not None}
    return any(map(is_number, values)) or 0 < len(values) <= MAX_CHOICES


def _axis(label: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return an axis of `Parcoords`. Trials without a value are drawn below all others."""
    marks = sorted({value for value in values if value is not None})
    is_numeric = is_number(marks[0])
    wide = is_numeric and is_wide([value for value in values if value is not None])
    codes = {mark: float(code) for code, mark in enumerate(marks)}
    scale: Callable[[Any], float] = codes.__getitem__
    if is_numeric:
        scale = math.log10 if wide else float
    ticks = _ticks(marks, wide) if is_numeric and len(marks) > MAX_TICKS else marks
    texts = {scale(mark): _tick(mark) for mark in ticks}
    low, high = scale(marks[0]), scale(marks[-1])
    below = low - (0.15 * (high - low) or 1.0)
    if None in values:
        texts[below] = "none"
    return {
        "label": label,
        "values": [below if value is None else scale(value) for value in values],
        "tickvals": list(texts),
        "ticktext": list(texts.values()),
    }


def _ticks(marks: Sequence[float], wide: bool) -> list[float]:
    """Return the ends of an axis, and round or evenly spaced numbers between them."""
    low, high = marks[0], marks[-1]
    if not wide:
        return [low + i * (high - low) / 5 for i in range(6)]
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    inside = [10.0**power for power in thinned(powers, MAX_TICKS)]
    return [low, *(mark for mark in inside if 1.5 * low < mark < high / 1.5), high]


def _tick(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 16 else f"{text[:13]}..."
