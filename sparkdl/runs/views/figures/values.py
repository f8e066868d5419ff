"""Runs on the driver. Figures of the values: by trial, and the Pareto front."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.runs.ranking import num_complete
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures.base import (
    BEST,
    COLORS,
    GREY,
    SYMBOLS,
    RunView,
    figure,
    hover,
    name_of_value,
    plain,
    thinned,
)
from sparkdl.runs.views.figures.value_axis import HOW_TO_SHOW, ValueAxis, value_axis

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Limits that keep a figure fast in a browser, and the page small: points, and outliers by number.
MAX_POINTS = 1500
MAX_NAMED = 5

_WITHOUT_VALUE = (
    TrialState.PRUNED,
    TrialState.PAUSED,
    TrialState.INVALID,
    TrialState.FAILED,
    TrialState.LOST,
    TrialState.CANCELLED,
)


def history(run: RunView) -> "Figure | None":
    """Return a figure of the value of each trial, and of the best value so far.

    Trials without a value are drawn below, in a row for each state. Few values that are far from
    the others, on the side of the worse ones, are arrows at the edge.

    Returns:
        The figure; None if fewer than two trials have a value.
    """
    valued = [t for t in run.trials if t.state == TrialState.COMPLETE and t.value is not None]
    if len(valued) < 2:
        return None
    drawn = _trials_to_draw(run, valued)
    marks = _marks(drawn, [t.value for t in drawn], TrialState.COMPLETE)
    strip = _strip(run)
    top = 0.06 + 0.065 * len(strip) if strip else 0.0
    num_ended = len(valued) + sum(t.state in _WITHOUT_VALUE for t in run.trials)
    num_shown = len(drawn) + sum(len(row.x) for row in strip)
    axis = value_axis([float(t.value or 0) for t in valued], [run.top(1)[0].value or 0.0])
    arrows, note = _beyond(drawn, axis)
    notes = [f"{num_shown} of {num_ended} trials are drawn"] if num_shown < num_ended else []
    return figure(
        "Trial by trial",
        "; ".join([*notes, *note]),
        [
            marks,
            *arrows,
            _best_so_far(run, "best mean" if len(run.means()) < len(valued) else "best"),
            *strip,
        ],
        xaxis={"title": {"text": "trial"}, "anchor": "y2" if strip else "y", "zeroline": False},
        yaxis={
            "title": {"text": name_of_value(run)},
            "domain": [top, 1],
            **axis.layout,
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


def _beyond(trials: Sequence[Trial], axis: ValueAxis) -> tuple[list[Any], list[str]]:
    """Return arrows at the edge for the values that are not on the axis, and a remark."""
    from plotly.graph_objects import Scatter

    far = [(t, edge) for t in trials if (edge := axis.edge(float(t.value or 0))) is not None]
    if not far or not axis.limits:
        return [], []
    is_low = [edge == axis.limits[0] for _, edge in far]
    arrows = Scatter(
        x=[t.number for t, _ in far],
        y=[edge for _, edge in far],
        name="beyond the axis",
        mode="markers",
        marker={
            "color": COLORS[TrialState.COMPLETE],
            "symbol": ["arrow-bar-down" if low else "arrow-bar-up" for low in is_low],
            "size": 11,
        },
        cliponaxis=False,
        text=[hover(t) for t, _ in far],
        hovertemplate="%{text}<extra></extra>",
    )
    named = ", ".join(f"trial {t.number} with {t.value:.4g}" for t, _ in far[:MAX_NAMED])
    more = f" and {len(far) - MAX_NAMED} more" if len(far) > MAX_NAMED else ""
    return [arrows], [f"arrows are beyond the axis: {named}{more} ({HOW_TO_SHOW})"]


def _strip(run: RunView) -> list[Any]:
    """Return a row of marks for each state without a value."""
    traces = []
    for state in _WITHOUT_VALUE:
        trials = thinned([t for t in run.trials if t.state == state], MAX_POINTS // 3)
        if trials:
            marks = _marks(trials, [str(state)] * len(trials), state)
            traces.append(marks.update(yaxis="y2", showlegend=False))
    return traces


def _trials_to_draw(run: RunView, valued: Sequence[Trial]) -> list[Trial]:
    """Return the trials to draw: the best, and an even selection of the others."""
    if len(valued) <= MAX_POINTS:
        return list(valued)
    by_number = {t.number: t for t in [*run.top(50), *thinned(valued, MAX_POINTS - 50)]}
    return [by_number[number] for number in sorted(by_number)]


def _best_so_far(run: RunView, label: str) -> Any:
    """Return a line of the best value so far, up to the last trial.

    With repeats, the mean of a configuration counts from its last trial on.
    """
    from plotly.graph_objects import Scatter

    last = {t.configuration: t.number for t in run.trials if t.state == TrialState.COMPLETE}
    sign = 1 if run.direction == "max" else -1
    steps: list[tuple[int, float]] = []
    count = num_complete(run.trials)
    means_of = run.means()
    whole = [number for number in means_of if count[number] >= run.repeats] or [*means_of]
    means = sorted((last[number], means_of[number][0]) for number in whole)
    for number, mean in means:
        if not steps or sign * mean > sign * steps[-1][1]:
            steps.append((number, mean))
    steps.append((run.trials[-1].number, steps[-1][1]))
    return Scatter(
        x=[number for number, _ in steps],
        y=[mean for _, mean in steps],
        name=f"{label} so far",
        mode="lines",
        line={"color": BEST, "width": 2, "shape": "hv"},
        hovertemplate=f"{label} so far: %{{y:.6g}}<extra></extra>",
    )


def pareto(run: RunView) -> "Figure | None":
    """Return a figure of the first two metrics of each trial, with the Pareto front marked.

    Returns:
        The figure; None if the run has a single metric, or if no trial is COMPLETE.
    """
    from plotly.graph_objects import Scatter

    complete = [t for t in run.trials if t.state == TrialState.COMPLETE]
    if len(run.objectives) < 2 or not complete:
        return None
    front = run.pareto
    numbers = {trial.number for trial in front}
    rest = thinned([t for t in complete if t.number not in numbers], MAX_POINTS)
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
    note = "the front considers all metrics, of which two are drawn" if more else ""
    return figure(
        "Pareto front",
        note,
        traces,
        xaxis={"title": {"text": f"{plain(x)} ({words[x_way]} is better)"}, "zeroline": False},
        yaxis={"title": {"text": f"{plain(y)} ({words[y_way]} is better)"}, "zeroline": False},
    )


def _metrics(run: RunView, trial: Trial) -> str:
    return "<br>".join(f"{plain(name)}: {trial.metrics[name]:.6g}" for name in run.objectives)
