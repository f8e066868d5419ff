"""Runs on the driver. Figures of a run, for notebooks and for its report."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparkdl.errors import ConfigError, suggest
from sparkdl.runs.views.figures.base import RunView
from sparkdl.runs.views.figures.curves import curves
from sparkdl.runs.views.figures.importance import MIN_TRIALS, importance
from sparkdl.runs.views.figures.params import parallel
from sparkdl.runs.views.figures.slices import slices
from sparkdl.runs.views.figures.timeline import timeline
from sparkdl.runs.views.figures.values import history, pareto

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["FIGURES", "RunView", "plot"]

# Each figure with the data that it needs, in the order of the report.
FIGURES: "dict[str, tuple[Callable[[RunView], Figure | None], str]]" = {
    "pareto": (pareto, "two metrics and a COMPLETE trial"),
    "history": (history, "two COMPLETE trials with a value"),
    "curves": (curves, "a trial that reported a value at two steps"),
    "parallel": (parallel, "two COMPLETE trials with a value, whose parameters differ"),
    "slices": (slices, "two trials with a value, whose parameters differ"),
    "importance": (
        importance,
        f"{MIN_TRIALS} COMPLETE or PRUNED trials whose values differ (fewer are too few to tell), "
        "two parameters that vary, and scikit-learn",
    ),
    "timeline": (timeline, "a trial that has started"),
}


def plot(run: RunView, what: str | None = None) -> "Figure":
    """Return a figure of a run.

    Args:
        run: the run, live or loaded.
        what: `history` (the value of each trial, and the best value so far), `curves` (all
            reported values, step by step), `parallel` (a line for each trial through its parameters
            to its value), `slices` (each parameter against the value), `importance` (of the
            parameters), `timeline` (the time at which each trial ran) or `pareto` (the first two of
            several metrics). None chooses the first of pareto, history, curves and timeline for
            which the run has enough data.

    Returns:
        A plotly figure, with a method `show()`; a notebook shows the figure without it.

    Raises:
        ConfigError: if there is no such figure, or if the run has not enough data for it.

    Example:
        >>> from sparkdl.runs import Run, Trial
        >>> trials = [Trial(i, {"a": i}, "", state="COMPLETE", value=i / 2) for i in range(3)]
        >>> plot(Run("r", "", "r", "launch", trials=trials), "history").layout.title.text
        'Trial by trial'
    """
    if what is not None and what not in FIGURES:
        raise ConfigError(
            f"no figure {what!r} to plot; expected one of {', '.join(FIGURES)}."
            f"{suggest(what, FIGURES)}"
        )
    names = [what] if what else ["pareto", "history", "curves", "timeline"]
    for name in names:
        make, _ = FIGURES[name]
        if (figure := make(run)) is not None:
            return figure
    needs = FIGURES[names[-1]][1]
    raise ConfigError(
        f"run {run.id} has no figure {names[-1]!r}: it needs {needs}, and there are "
        f"{run.counts_text()}."
    )
