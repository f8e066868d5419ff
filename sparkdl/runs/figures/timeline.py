"""Runs on the driver. The figure of when each trial ran, and on how many slots at a time."""

import heapq
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from sparkdl.runs.figures.base import COLORS, Shown, figure, hover
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["Bar", "assign_rows", "timeline"]

MOST_BARS = 4000
MOST_ROWS = 60

# On a screen some 1000 pixels wide nobody tells apart what is narrower.
_NARROW = 3 / 1000


@dataclass(frozen=True)
class Bar:
    """One attempt, or several that follow each other too closely to be told apart.

    Attributes:
        start_s, end_s: seconds since 1970.
        state: how it ended; of several the longest.
        trial: the first one's.
        count: how many attempts.
        row: the slot.
    """

    start_s: float
    end_s: float
    state: TrialState
    trial: Trial
    count: int = 1
    row: int = 0


def timeline(run: Shown) -> "Figure | None":
    """A bar for each attempt at a trial, in as many rows as there were at the same time.

    None where no trial has started.
    """
    whole = assign_rows(_bars(run))
    if not whole:
        return None
    zero, end = min(bar.start_s for bar in whole), max(bar.end_s for bar in whole)
    bars = _joined(whole, (end - zero) * _NARROW) if len(whole) > MOST_BARS else whole
    rows, shown = 1 + max(bar.row for bar in whole), _rows_that_fit(bars)
    unit, seconds = next((u, s) for u, s, most in _UNITS if end - zero <= most)
    notes = [f"{shown} of {rows} rows are drawn"] if shown < rows else []
    notes += ["what is too narrow to tell apart is joined"] if len(bars) < len(whole) else []
    drawn = [bar for bar in bars if bar.row < shown]
    return figure(
        "Slots over time",
        "; ".join(notes),
        [_trace(drawn, state, zero, seconds) for state in sorted({bar.state for bar in drawn})],
        barmode="overlay",
        xaxis={"title": {"text": f"{unit} since the first trial's start"}, "zeroline": False},
        yaxis={
            "title": {"text": "slot"},
            "autorange": "reversed",
            "showgrid": False,
            "tickformat": "d",
            "dtick": max(1, shown // 10),
        },
        height=min(700, 180 + 30 * shown),
        showlegend=True,
    )


def _trace(bars: Sequence[Bar], state: TrialState, zero: float, unit_s: float) -> Any:
    from plotly import graph_objects

    some = [bar for bar in bars if bar.state == state]
    return graph_objects.Bar(
        base=[(bar.start_s - zero) / unit_s for bar in some],
        x=[(bar.end_s - bar.start_s) / unit_s for bar in some],
        y=[bar.row + 1 for bar in some],
        width=0.85,
        orientation="h",
        name=str(state),
        marker={"color": COLORS[state], "line": {"width": 0}},
        text=[_said(bar) for bar in some],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
    )


_UNITS = (
    ("seconds", 1, 600),
    ("minutes", 60, 7200),
    ("hours", 3600, 72 * 3600),
    ("days", 86400, float("inf")),
)


def _said(bar: Bar) -> str:
    seconds = f"{bar.end_s - bar.start_s:.1f} s"
    if bar.count == 1:
        return hover(bar.trial, seconds)
    return f"<b>{bar.count} trials</b> {bar.state}<br>{seconds}, from trial {bar.trial.number} on"


def _bars(run: Shown) -> list[Bar]:
    """The attempts; one that has not ended lasts till now, or till the last that is known."""
    known = [s for trial in run.trials for span in trial.spans for s in span if s is not None]
    last = time.time() if run.state == "RUNNING" else max(known, default=0.0)
    bars = []
    for trial in run.trials:
        for number, (start, end) in enumerate(trial.spans, start=1):
            state = trial.state if number == len(trial.spans) else TrialState.LOST
            bars.append(Bar(start, last if end is None else end, state, trial))
    return bars


def assign_rows(bars: Sequence[Bar]) -> list[Bar]:
    """Each bar in the first row that is free when it starts, in the order of their starts."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    rows = 0
    placed = []
    for bar in sorted(bars, key=lambda bar: bar.start_s):
        while busy and busy[0][0] <= bar.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free, rows = [rows], rows + 1
        row = heapq.heappop(free)
        heapq.heappush(busy, (bar.end_s, row))
        placed.append(replace(bar, row=row))
    return placed


def _joined(bars: Sequence[Bar], narrow_s: float) -> list[Bar]:
    """Neighbours in a row that together are narrow become one."""
    last: dict[int, Bar] = {}
    joined = []
    for bar in bars:
        before = last.get(bar.row)
        if before and bar.end_s - before.start_s <= narrow_s:
            longer = max(before, bar, key=lambda one: one.end_s - one.start_s)
            both = replace(before, end_s=bar.end_s, state=longer.state)
            last[bar.row] = replace(both, count=before.count + 1)
        else:
            joined += [before] if before else []
            last[bar.row] = bar
    return [*joined, *last.values()]


def _rows_that_fit(bars: Sequence[Bar]) -> int:
    counts = Counter(bar.row for bar in bars)
    sums = accumulate(counts[row] for row in sorted(counts)[:MOST_ROWS])
    return max(1, sum(total <= MOST_BARS for total in sums))
