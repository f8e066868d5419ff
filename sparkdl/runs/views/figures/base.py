"""Runs on the driver. Colours, texts and helpers that all figures share."""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Okabe and Ito's colours, which can be distinguished with any colour vision:
# https://jfly.uni-koeln.de/color/. The symbols distinguish the states in black and white print.
COLORS = {
    TrialState.COMPLETE: "#0072b2",
    TrialState.PRUNED: "#e69f00",
    TrialState.FAILED: "#d55e00",
    TrialState.INVALID: "#cc79a7",
    TrialState.LOST: "#8c6d1f",
    TrialState.CANCELLED: "#8a8f98",
    TrialState.RUNNING: "#56b4e9",
    TrialState.PAUSED: "#b09fd6",
    TrialState.WAITING: "#c0c4ca",
}
SYMBOLS = {
    TrialState.COMPLETE: "circle",
    TrialState.PRUNED: "triangle-down",
    TrialState.FAILED: "x",
    TrialState.INVALID: "diamond",
    TrialState.LOST: "square",
    TrialState.CANCELLED: "line-ns-open",
    TrialState.PAUSED: "triangle-right",
}
BEST = "#009e73"
GREY = "#9aa1ab"

_MISSING = object()
_Item = TypeVar("_Item")


class RunView(Protocol):
    """The attributes of a `Run` that figures use.

    The module of `Run` imports the figures, so the figures cannot import `Run`.
    """

    @property
    def id(self) -> str:
        """See `Run`, as for the other attributes."""

    @property
    def path(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def metric(self) -> str | None: ...

    @property
    def direction(self) -> str: ...

    @property
    def objectives(self) -> Mapping[str, str]: ...

    @property
    def state(self) -> str: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def trials(self) -> Sequence[Trial]: ...

    @property
    def duration_s(self) -> float: ...

    @property
    def idle(self) -> str | None: ...

    @property
    def timeline(self) -> str | None: ...

    @property
    def slow_ranks(self) -> list[str]: ...

    @property
    def resizes(self) -> list[str]: ...

    @property
    def pareto(self) -> list[Trial]: ...

    @property
    def usage(self) -> Any: ...

    @property
    def repeats(self) -> int: ...

    @property
    def num_sessions(self) -> int: ...

    @property
    def goal(self) -> str: ...

    def view(self) -> Any: ...

    def top(self, n: int) -> list[Trial]: ...

    def means(self) -> dict[int, tuple[float, float]]: ...

    def counts(self) -> dict[str, int]: ...

    def counts_text(self) -> str: ...

    def failures_in_common(self) -> list[str]: ...

    def how_to_finish(self) -> str: ...


def figure(title: str, note: str, traces: Sequence[Any], **layout: Any) -> "Figure":
    """Return a figure in the common design.

    Args:
        title: the title.
        note: a remark below the title, in smaller print.
        traces: the plotly traces.
        **layout: further properties of the plotly layout.
    """
    from sparkdl.runs.views.figures.notebook_figure import NotebookFigure

    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"t": 14, "l": 14}}
    defaults = {
        "title": {"text": title, "subtitle": {"text": note}, **place},
        "template": "none",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "margin": {"l": 70, "r": 20, "t": 100, "b": 50},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hoverlabel": {"align": "left"},
        "height": 460,
    }
    return NotebookFigure(traces, {**defaults, **layout})


def plain(value: object, width: int = 40) -> str:
    """Return a value as text for plotly: short, and without markup of the user."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = text if len(text) <= width else text[: width - 3] + "..."
    # Plotly does not decode quotes.
    return html.escape(text.replace("\n", " "), quote=False)


def hover(trial: Trial, more: str = "") -> str:
    """Return the text that is shown when the mouse points at a trial."""
    value = "" if trial.value is None else f", {trial.value:.6g}"
    params = list(trial.params.items())
    lines = [f"<b>trial {trial.number}</b> {trial.state}{value}", more]
    lines += [f"{plain(name)} = {plain(param)}" for name, param in params[:10]]
    lines += [f"and {len(params) - 10} more"] if len(params) > 10 else []
    lines += [plain(trial.summary, 80)] if trial.error else []
    return "<br>".join(line for line in lines if line)


def name_of_value(run: RunView) -> str:
    """Return the title of the axis of the metric."""
    better = "higher" if run.direction == "max" else "lower"
    return f"{plain(run.metric or 'value')} ({better} is better)"


def varying(trials: Iterable[Trial]) -> list[str]:
    """Return the names of the parameters that differ between trials."""
    trials = list(trials)
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    first = trials[0].params if trials else {}
    return [
        name
        for name in names
        if any(t.params.get(name, _MISSING) != first.get(name, _MISSING) for t in trials)
    ]


def is_wide(values: Collection[float]) -> bool:
    """Return True if positive numbers need a logarithmic axis to be distinguishable.

    Example:
        >>> is_wide([1e-3, 1e-2, 1e-1]), is_wide([16, 64, 256]), is_wide([0.01, 0.2, 0.5])
        (True, False, False)
    """
    if not values or min(values) <= 0:
        return False
    # Uniform numbers above 0 may include a small number, too, but their median is large.
    return max(values) > 30 * min(values) and median(values) < 0.2 * max(values)


def thinned(items: Sequence[_Item], most: int) -> list[_Item]:
    """Return at most `most` of the items, evenly spread, in their order.

    Example:
        >>> thinned(range(10), 4)
        [0, 3, 6, 9]
    """
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def shown_trials(run: RunView, most: int) -> list[Trial]:
    """Return at most `most` trials: the best ones, and then others that began, evenly spread."""
    best = run.top(most // 2)
    numbers = {trial.number for trial in best}
    others = [trial for trial in run.trials if trial.number not in numbers and trial.attempts]
    return [*best, *thinned(others, most - len(best))]
