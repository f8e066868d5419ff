"""Runs on the driver. Figures of a run, to look at in a notebook and in its report."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparkdl.errors import ConfigError, suggest
from sparkdl.runs.figures.base import Shown
from sparkdl.runs.figures.params import LEAST_TRIALS, importance, parallel
from sparkdl.runs.figures.timeline import timeline
from sparkdl.runs.figures.values import curves, history, pareto

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["FIGURES", "Shown", "plot"]

# In the order in which they are looked at; each with what it needs.
FIGURES: "dict[str, tuple[Callable[[Shown], Figure | None], str]]" = {
    "pareto": (pareto, "two metrics and a COMPLETE trial"),
    "history": (history, "two COMPLETE trials with a value"),
    "curves": (curves, "a trial that reported its metric at two steps"),
    "parallel": (parallel, "two COMPLETE trials with a value, whose parameters differ"),
    "importance": (
        importance,
        f"{LEAST_TRIALS} COMPLETE trials whose values differ, and two parameters that vary",
    ),
    "timeline": (timeline, "a trial that has started"),
}


def plot(run: Shown, what: str | None = None) -> "Figure":
    """A figure of a run.

    Args:
        run: the run, live or read back.
        what: `history` (the value of each trial, and the best so far), `curves` (what was reported,
            step by step), `parallel` (a line for each trial through its parameters to its value),
            `importance` (of the parameters), `timeline` (when each trial ran) or `pareto` (the
            first two of several metrics). None takes the first that the run has enough for, of
            pareto, history, curves and timeline.

    Returns:
        A figure of plotly; `show()` shows it, a notebook shows it by itself.

    Raises:
        ConfigError: there is no such figure, or the run has not enough for it.

    Example:
        >>> from sparkdl.runs import Run, Trial
        >>> trials = [Trial(i, {"a": i}, "", state="COMPLETE", value=i / 2) for i in range(3)]
        >>> plot(Run("r", "", "r", "launch", trials=trials), "history").layout.title.text
        'Trial by trial'
    """
    if what is not None and what not in FIGURES:
        raise ConfigError(
            f"plot has no figure {what!r}; expected one of {', '.join(FIGURES)}."
            f"{suggest(what, FIGURES)}"
        )
    names = [what] if what else ["pareto", "history", "curves", "timeline"]
    for name in names:
        if (found := FIGURES[name][0](run)) is not None:
            return found
    needs = FIGURES[names[-1]][1]
    raise ConfigError(
        f"run {run.id} has no figure {names[-1]!r}: it needs {needs}, and there are "
        f"{run.counts_text()}."
    )
