"""Runs on the driver. Figures of the parameters: parallel coordinates and importance."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparkdl.runs.figures.base import (
    COLORS,
    RunView,
    figure,
    is_wide,
    plain,
    thinned,
    varying,
)
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from plotly.graph_objects import Figure

__all__ = ["importance", "parallel"]

# Limits that keep a figure readable, and fast in a browser.
MAX_LINES = 1000
MAX_AXES = 12
MAX_CHOICES = 30
MAX_TICKS = 8

# Fewer trials do not show which parameter matters.
MIN_TRIALS = 8


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
    names = [name for name in varying(drawn) if _is_drawn(drawn, name)]
    if len(drawn) < 2 or not names:
        return None
    values = [float(t.value or 0) for t in drawn]
    ranked = sorted(values, reverse=run.direction == "min")
    notes = ["drag along an axis to choose a range"]
    notes += [f"{len(drawn)} of {len(valued)} trials"] if len(drawn) < len(valued) else []
    notes += [f"{MAX_AXES} of {len(names)} parameters"] if len(names) > MAX_AXES else []
    axes = [_axis(plain(name, 24), _values(drawn, name)) for name in names[:MAX_AXES]]
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


def _values(trials: Sequence[Trial], name: str) -> list[Any]:
    """Return a parameter's values, as text unless all are numbers; None for missing values."""
    values = [t.params.get(name) for t in trials]
    if all(value is None or _is_number(value) for value in values):
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def _is_number(value: object) -> bool:
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)  # type: ignore[arg-type]


def _is_drawn(trials: Sequence[Trial], name: str) -> bool:
    """Return True for numbers and choices; text with many values is a label and is not drawn."""
    values = {value for value in _values(trials, name) if value is not None}
    return any(map(_is_number, values)) or 0 < len(values) <= MAX_CHOICES


def _axis(label: str, values: Sequence[Any]) -> dict[str, Any]:
    """Return an axis of `Parcoords`. Trials without a value are drawn below all others."""
    marks = sorted({value for value in values if value is not None})
    is_numeric = _is_number(marks[0])
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


def importance(run: RunView) -> "Figure | None":
    """Return a figure of the share of each parameter in the variation of the value.

    The shares are computed by Optuna's PED-ANOVA.

    Returns:
        The figure; None if fewer than `MIN_TRIALS` trials have a value, if fewer than two
        parameters vary, or if the value does not vary.
    """
    from plotly.graph_objects import Bar

    valued = _valued(run)
    names = [name for name in varying(valued) if _can_evaluate(valued, name)]
    is_constant = len({t.value for t in valued}) < 2
    if len(valued) < MIN_TRIALS or len(names) < 2 or is_constant:
        return None
    shares = sorted(_importances(run, valued, names).items(), key=lambda item: item[1])
    shares = shares[-2 * MAX_AXES :]
    bars = Bar(
        x=[share for _, share in shares],
        y=list(range(len(shares))),
        orientation="h",
        marker={"color": COLORS[TrialState.COMPLETE]},
        text=[f"{share:.0%}" for _, share in shares],
        textposition="outside",
        cliponaxis=False,
        hoverinfo="skip",
    )
    ticks = {
        "tickvals": list(range(len(shares))),
        "ticktext": [plain(name, 24) for name, _ in shares],
    }
    return figure(
        "Importance of the parameters",
        f"by PED-ANOVA, from {len(valued)} trials; the shares add up to 1",
        [bars],
        xaxis={"tickformat": ".0%", "range": [0, 1.15 * shares[-1][1] or 1], "zeroline": False},
        yaxis={"automargin": True, "showgrid": False, "zeroline": False, **ticks},
        height=150 + 28 * len(shares),
    )


def _can_evaluate(trials: Sequence[Trial], name: str) -> bool:
    """Return True if PED-ANOVA can evaluate a parameter: it needs two trials with a value."""
    absent = sum(value is None for value in _values(trials, name))
    return _is_drawn(trials, name) and absent != 1 and len(trials) - absent > 1


def _importances(run: RunView, trials: Sequence[Trial], names: Sequence[str]) -> dict[str, float]:
    import optuna
    from optuna.importance import get_param_importances

    columns = {name: _values(trials, name) for name in names}
    distributions = {name: _distribution(values) for name, values in columns.items()}
    with _quiet():
        study = optuna.create_study(direction="maximize" if run.direction == "max" else "minimize")
    for number, trial in enumerate(trials):
        sampled = {name: columns[name][number] for name in names}
        params = {name: value for name, value in sampled.items() if value is not None}
        finished = optuna.create_trial(
            params=params,
            distributions={name: distributions[name] for name in params},
            value=trial.value,
        )
        study.add_trial(finished)
    return get_param_importances(study)


def _distribution(values: Sequence[Any]) -> "BaseDistribution":
    """Return a distribution from which the values may have been sampled."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    values = [value for value in values if value is not None]
    if _is_number(values[0]):
        return FloatDistribution(min(values), max(values), log=is_wide(values))
    return CategoricalDistribution(sorted(set(values)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna, which logs the creation of every study."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
