"""Runs on the driver. Figures with several runs over one another."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError, suggest
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures.base import RunView, figure, is_wide, name_of_value, plain, thinned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Okabe and Ito's colours, see `base`; further runs differ in their dashes.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000")
_DASHES = ("solid", "dash", "dot", "dashdot")

MAX_STEPS = 300

Points = list[tuple[float, float]]


def overlay(runs: Sequence[RunView], what: str | None = None) -> "Figure":
    """Return a figure with a line for each run.

    Args:
        runs: the runs.
        what: `curves`, `history` or None, see `Comparison.figure`.

    Raises:
        ConfigError: if there is no such figure, or no run has enough values for it.
    """
    makers = {"curves": _curve, "history": _best_so_far}
    if what is not None and what not in makers:
        raise ConfigError(
            f"no figure {what!r} of several runs; expected 'curves' or 'history'."
            f"{suggest(what, makers)}"
        )
    lines: list[Points] = []
    for name in [what] if what else list(makers):
        lines = [makers[name](run) for run in runs]
        if sum(len(line) > 1 for line in lines) >= (2 if name == "curves" and not what else 1):
            return _figure_of(runs, name, lines)
    if any(lines):
        return _figure_of(runs, "history", lines)
    raise ConfigError(
        f"the runs {', '.join(run.id for run in runs)} have no values to draw: a figure needs a "
        "COMPLETE trial with a value, or a trial that reported its metric at two steps."
    )


def _figure_of(runs: Sequence[RunView], name: str, lines: Sequence[Points]) -> "Figure":
    values = [y for line in lines for _, y in line if math.isfinite(y)]
    metrics = {(run.metric, run.direction) for run in runs}
    title = name_of_value(runs[0]) if len(metrics) == 1 else "value"
    without_value = [run.id for run, line in zip(runs, lines, strict=True) if not line]
    titles = {"curves": ("The best trial of each run", "step")}
    titles["history"] = ("Best value so far", "trials that have ended")
    return figure(
        titles[name][0],
        f"without a value: {', '.join(map(plain, without_value))}" if without_value else "",
        [_trace(run, i, lines[i], name) for i, run in enumerate(runs) if lines[i]],
        xaxis={"title": {"text": titles[name][1]}, "zeroline": False},
        yaxis={
            "title": {"text": title},
            "zeroline": False,
            "type": "log" if is_wide(values) else "linear",
        },
        showlegend=True,
    )


def _trace(run: RunView, number: int, points: Points, name: str) -> Any:
    from plotly.graph_objects import Scatter

    drawn_points = thinned(points, MAX_STEPS)
    return Scatter(
        x=[x for x, _ in drawn_points],
        y=[y for _, y in drawn_points],
        name=plain(run.id),
        mode="lines+markers" if len(drawn_points) < 3 else "lines",
        line={
            "color": _COLORS[number % len(_COLORS)],
            "dash": _DASHES[number // len(_COLORS) % len(_DASHES)],
            "shape": "hv" if name == "history" else "linear",
            "width": 2,
        },
        hovertemplate=f"{plain(run.id)}<br>%{{x}}: %{{y:.6g}}<extra></extra>",
    )


def _curve(run: RunView) -> Points:
    """Return the values of the metric that the best trial reported, by step."""
    trial = _shown_trial(run)
    if trial is None:
        return []
    frame = trial.history
    names = [name for name in (run.metric, "value") if name in frame]
    names = names or (list(frame.columns) if len(frame.columns) == 1 else [])
    if not names:
        return []
    series = frame[names[0]].dropna()
    points = list(zip(series.index.tolist(), series.tolist(), strict=True))
    return points if len(points) > 1 else []


def _shown_trial(run: RunView) -> Trial | None:
    best = run.top(1)
    return best[0] if best else run.trials[0] if len(run.trials) == 1 else None


def _best_so_far(run: RunView) -> Points:
    points: Points = []
    sign = 1 if run.direction == "max" else -1
    ended = [trial for trial in run.trials if trial.state.is_final]
    for count, trial in enumerate(ended, start=1):
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            best = (
                trial.value if not points else sign * max(sign * trial.value, sign * points[-1][1])
            )
            points.append((float(count), best))
    return points
