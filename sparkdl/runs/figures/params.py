"""Runs on the driver. Figures of the parameters: which go with good values, and which matter."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sparkdl.runs.figures.base import (
    COLORS,
    Shown,
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

MOST_LINES = 1000
MOST_AXES = 12
MOST_CHOICES = 30
MOST_TICKS = 8

# Fewer trials say nothing about which parameter matters.
LEAST_TRIALS = 8


def parallel(run: Shown) -> "Figure | None":
    """A line for each COMPLETE trial through its parameters to its value.

    None where fewer than two trials have a value, or no parameter varies.
    """
    from plotly.graph_objects import Parcoords

    valued = _valued(run)
    best = {t.number for t in run.top(50)}
    drawn = thinned(valued, MOST_LINES - 50)
    drawn += [t for t in valued if t.number in best - {one.number for one in drawn}]
    names = [name for name in varying(drawn) if _is_drawn(drawn, name)]
    if len(drawn) < 2 or not names:
        return None
    values = [float(t.value or 0) for t in drawn]
    ranked = sorted(values, reverse=run.direction == "min")
    notes = ["drag along an axis to choose a range"]
    notes += [f"{len(drawn)} of {len(valued)} trials"] if len(drawn) < len(valued) else []
    notes += [f"{MOST_AXES} of {len(names)} parameters"] if len(names) > MOST_AXES else []
    axes = [_axis(plain(name, 24), _values(drawn, name)) for name in names[:MOST_AXES]]
    # The worst tenth shares a colour: a few wild values would leave one for all the others.
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


def _valued(run: Shown) -> list[Trial]:
    return [t for t in run.trials if t.state == TrialState.COMPLETE and t.value is not None]


def _values(trials: Sequence[Trial], name: str) -> list[Any]:
    """The parameter's values, as text if one is no number; None where a trial has none."""
    values = [t.params.get(name) for t in trials]
    if all(value is None or _is_number(value) for value in values):
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def _is_number(value: object) -> bool:
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)  # type: ignore[arg-type]


def _is_drawn(trials: Sequence[Trial], name: str) -> bool:
    """Text that is different in nearly every trial is a label, not a choice."""
    found = {value for value in _values(trials, name) if value is not None}
    return any(map(_is_number, found)) or 0 < len(found) <= MOST_CHOICES


def _axis(label: str, values: Sequence[Any]) -> dict[str, Any]:
    """An axis of `Parcoords`. Below the others stand those that have no value."""
    marks = sorted({value for value in values if value is not None})
    is_numeric = _is_number(marks[0])
    wide = is_numeric and is_wide([value for value in values if value is not None])
    codes = {mark: float(code) for code, mark in enumerate(marks)}
    scale: Callable[[Any], float] = codes.__getitem__
    if is_numeric:
        scale = math.log10 if wide else float
    ticks = _ticks(marks, wide) if is_numeric and len(marks) > MOST_TICKS else marks
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
    """The ends of an axis, and round or even numbers between them."""
    low, high = marks[0], marks[-1]
    if not wide:
        return [low + i * (high - low) / 5 for i in range(6)]
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    inside = [10.0**power for power in thinned(powers, MOST_TICKS)]
    return [low, *(mark for mark in inside if 1.5 * low < mark < high / 1.5), high]


def _tick(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 16 else f"{text[:13]}..."


def importance(run: Shown) -> "Figure | None":
    """How much of the value's variation goes with each parameter, by Optuna's PED-ANOVA.

    None where fewer than `LEAST_TRIALS` trials have a value, fewer than two parameters vary, or the
    value does not.
    """
    from plotly.graph_objects import Bar

    valued = _valued(run)
    names = [name for name in varying(valued) if _is_judged(valued, name)]
    same = len({t.value for t in valued}) < 2
    if len(valued) < LEAST_TRIALS or len(names) < 2 or same:
        return None
    shares = sorted(_importances(run, valued, names).items(), key=lambda item: item[1])
    shares = shares[-2 * MOST_AXES :]
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


def _is_judged(trials: Sequence[Trial], name: str) -> bool:
    """Of one trial with or without a parameter PED-ANOVA can say nothing."""
    absent = sum(value is None for value in _values(trials, name))
    return _is_drawn(trials, name) and absent != 1 and len(trials) - absent > 1


def _importances(run: Shown, trials: Sequence[Trial], names: Sequence[str]) -> dict[str, float]:
    import optuna
    from optuna.importance import get_param_importances

    columns = {name: _values(trials, name) for name in names}
    kinds = {name: _distribution(values) for name, values in columns.items()}
    with _quiet():
        study = optuna.create_study(direction="maximize" if run.direction == "max" else "minimize")
    for number, trial in enumerate(trials):
        sampled = {name: columns[name][number] for name in names}
        params = {name: value for name, value in sampled.items() if value is not None}
        distributions = {name: kinds[name] for name in params}
        made = optuna.create_trial(params=params, distributions=distributions, value=trial.value)
        study.add_trial(made)
    return get_param_importances(study)


def _distribution(values: Sequence[Any]) -> "BaseDistribution":
    """What the values may have been sampled from."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    found = [value for value in values if value is not None]
    if _is_number(found[0]):
        return FloatDistribution(min(found), max(found), log=is_wide(found))
    return CategoricalDistribution(sorted(set(found)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna says of every study that it was made."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
