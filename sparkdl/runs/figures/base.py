"""Runs on the driver.

What all figures share: colours, words, and how much of a long run is drawn.
"""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = [
    "BEST",
    "COLORS",
    "GREY",
    "SYMBOLS",
    "Shown",
    "figure",
    "hover",
    "is_wide",
    "name_of_value",
    "plain",
    "thinned",
    "varying",
]

# Okabe and Ito's colours, which people with any colour vision tell apart:
# https://jfly.uni-koeln.de/color/. A symbol beside each says the same in print.
COLORS = {
    TrialState.COMPLETE: "#0072b2",
    TrialState.PRUNED: "#e69f00",
    TrialState.FAILED: "#d55e00",
    TrialState.INVALID: "#cc79a7",
    TrialState.LOST: "#8c6d1f",
    TrialState.CANCELLED: "#8a8f98",
    TrialState.RUNNING: "#56b4e9",
    TrialState.WAITING: "#c0c4ca",
}
SYMBOLS = {
    TrialState.COMPLETE: "circle",
    TrialState.PRUNED: "triangle-down",
    TrialState.FAILED: "x",
    TrialState.INVALID: "diamond",
    TrialState.LOST: "square",
    TrialState.CANCELLED: "line-ns-open",
}
BEST = "#009e73"
GREY = "#9aa1ab"

_MISSING = object()
_Item = TypeVar("_Item")


class Shown(Protocol):
    """What is looked at of a `Run`; its module imports this one's figures, not the reverse."""

    @property
    def id(self) -> str:
        """See `Run`, as for the others."""

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
    def pareto(self) -> list[Trial]: ...

    @property
    def usage(self) -> Any: ...

    def top(self, n: int) -> list[Trial]: ...

    def means(self) -> dict[int, tuple[float, float]]: ...

    def counts(self) -> dict[str, int]: ...

    def counts_text(self) -> str: ...


def figure(title: str, note: str, traces: Sequence[Any], **layout: Any) -> "Figure":
    """A figure in the design of all of them.

    Args:
        title, note: what it shows, and in smaller print what a reader must know of it.
        traces: plotly's traces.
        **layout: whatever else plotly's layout is to say.
    """
    from plotly.graph_objects import Figure

    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"t": 14, "l": 14}}
    given = {
        "title": {"text": title, "subtitle": {"text": note}, **place},
        "template": "none",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "margin": {"l": 70, "r": 20, "t": 100, "b": 50},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hoverlabel": {"align": "left"},
        "height": 460,
    }
    return Figure(traces, {**given, **layout})


def plain(value: object, width: int = 40) -> str:
    """A value as plotly shows it: short, and with no markup of the person's."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = text if len(text) <= width else text[: width - 3] + "..."
    return html.escape(text.replace("\n", " "), quote=False)  # It does not decode quotes.


def hover(trial: Trial, more: str = "") -> str:
    """What is said of a trial that is pointed at."""
    value = "" if trial.value is None else f", {trial.value:.6g}"
    params = list(trial.params.items())
    lines = [f"<b>trial {trial.number}</b> {trial.state}{value}", more]
    lines += [f"{plain(name)} = {plain(one)}" for name, one in params[:10]]
    lines += [f"and {len(params) - 10} more"] if len(params) > 10 else []
    lines += [plain(trial.summary, 80)] if trial.error else []
    return "<br>".join(line for line in lines if line)


def name_of_value(run: Shown) -> str:
    """The title of an axis with the values that count."""
    better = "higher" if run.direction == "max" else "lower"
    return f"{plain(run.metric or 'value')} ({better} is better)"


def varying(trials: Iterable[Trial]) -> list[str]:
    """The parameters that are not the same in all trials."""
    trials = list(trials)
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    first = trials[0].params if trials else {}
    return [
        name
        for name in names
        if any(t.params.get(name, _MISSING) != first.get(name, _MISSING) for t in trials)
    ]


def is_wide(values: Collection[float]) -> bool:
    """Whether positive numbers spread so that only their logarithms can be told apart.

    Example:
        >>> is_wide([1e-3, 1e-2, 1e-1]), is_wide([16, 64, 256]), is_wide([0.01, 0.2, 0.5])
        (True, False, False)
    """
    if not values or min(values) <= 0:
        return False
    # Numbers drawn evenly from 0 on have a small one among them, too; but half of them are large.
    return max(values) > 30 * min(values) and median(values) < 0.2 * max(values)


def thinned(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most `most` of the items, evenly spread, in their order.

    Example:
        >>> thinned(range(10), 4)
        [0, 3, 6, 9]
    """
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
