"""Runs on the driver. The figure of the slots over time: a bar for each attempt at a trial."""

import heapq
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures.base import COLORS, RunView, figure, hover

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Limits that keep the figure readable, and fast in a browser.
MAX_BARS = 4000
MAX_ROWS = 60

# The driver hears of an end so much later, when the next attempt may run in the slot already; of
# short attempts it is a part of their length.
LAG_S = 1.0
LAG_SHARE = 0.3

# Bars narrower than 3 of about 1000 pixels cannot be distinguished.
_MIN_WIDTH = 3 / 1000


@dataclass(frozen=True, kw_only=True)
class Bar:
    """An attempt, or several successive attempts that are too short to be distinguished.

    Attributes:
        start_s: seconds since 1970.
        end_s: seconds since 1970.
        state: the state at the end of the attempt, of several attempts the longest attempt's.
        trial: the trial, of several attempts the first attempt's.
        count: number of attempts.
        row: the slot, from 0.
    """

    start_s: float
    end_s: float
    state: TrialState
    trial: Trial
    count: int = 1
    row: int = 0


def timeline(run: RunView) -> "Figure | None":
    """Return a figure with a bar for each attempt; attempts at the same time are in separate rows.

    Returns:
        The figure; None if no trial has started.
    """
    whole = assign_rows(_bars(run))
    if not whole:
        return None
    zero, end = min(bar.start_s for bar in whole), max(bar.end_s for bar in whole)
    bars = _join(whole, (end - zero) * _MIN_WIDTH) if len(whole) > MAX_BARS else whole
    rows = 1 + max(bar.row for bar in whole)
    num_shown = _rows_that_fit(bars)
    unit, seconds = next((u, s) for u, s, limit in _UNITS if end - zero <= limit)
    notes = ["a bar is the duration of an attempt, with the start of its process"]
    notes += [f"{num_shown} of {rows} rows are drawn"] if num_shown < rows else []
    notes += ["bars too narrow to distinguish are joined"] if len(bars) < len(whole) else []
    drawn = [bar for bar in bars if bar.row < num_shown]
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
            "dtick": max(1, num_shown // 10),
        },
        height=min(700, 180 + 30 * num_shown),
        showlegend=True,
    )


def _trace(bars: Sequence[Bar], state: TrialState, zero: float, unit_s: float) -> Any:
    from plotly import graph_objects

    bars = [bar for bar in bars if bar.state == state]
    return graph_objects.Bar(
        base=[(bar.start_s - zero) / unit_s for bar in bars],
        x=[(bar.end_s - bar.start_s) / unit_s for bar in bars],
        y=[bar.row + 1 for bar in bars],
        width=0.85,
        orientation="h",
        name=str(state),
        marker={"color": COLORS[state], "line": {"width": 0}},
        text=[_hover_text(bar) for bar in bars],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
    )


_UNITS = (
    ("seconds", 1, 600),
    ("minutes", 60, 7200),
    ("hours", 3600, 72 * 3600),
    ("days", 86400, float("inf")),
)


def _hover_text(bar: Bar) -> str:
    seconds = f"duration {bar.end_s - bar.start_s:.1f} s"
    if bar.count == 1:
        return hover(bar.trial, seconds)
    return f"<b>{bar.count} trials</b> {bar.state}<br>{seconds}, from trial {bar.trial.number} on"


def _bars(run: RunView) -> list[Bar]:
    """Return the attempts. A running attempt ends now, or at the last known time of a dead run."""
    times = [s for trial in run.trials for span in trial.spans for s in span if s is not None]
    last = time.time() if run.state == "RUNNING" else max(times, default=0.0)
    bars = []
    for trial in run.trials:
        # An attempt that goes on has the state of the trial.
        states = [*trial.span_states, trial.state]
        for (start, end), state in zip(trial.spans, states, strict=False):
            end_s = last if end is None else end
            bars.append(Bar(start_s=start, end_s=end_s, state=state, trial=trial))
    return bars


def assign_rows(bars: Sequence[Bar], lag_s: float = LAG_S) -> list[Bar]:
    """Return the bars by their start, each in the first row that is free at its start.

    Args:
        bars: the attempts.
        lag_s: a bar that ends later than the start of the next one by at most this, and by a small
            part of both, ends with that start.
    """
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    last: dict[int, int] = {}  # The place in `placed` of the last bar of each row.
    placed: list[Bar] = []
    for bar in sorted(bars, key=lambda bar: bar.start_s):
        while busy and busy[0][0] <= bar.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free and busy:
            end_s, row = busy[0]
            before = placed[last[row]]
            shorter_s = min(end_s - before.start_s, bar.end_s - bar.start_s)
            if end_s - bar.start_s <= min(lag_s, LAG_SHARE * shorter_s):
                placed[last[row]] = replace(before, end_s=bar.start_s)
                free = [heapq.heappop(busy)[1]]
        row = heapq.heappop(free) if free else len(last)
        heapq.heappush(busy, (bar.end_s, row))
        last[row] = len(placed)
        placed.append(replace(bar, row=row))
    return placed


def _join(bars: Sequence[Bar], narrow_s: float) -> list[Bar]:
    """Join successive bars of a row that together are narrower than `narrow_s`."""
    last: dict[int, Bar] = {}
    joined = []
    for bar in bars:
        before = last.get(bar.row)
        if before and bar.end_s - before.start_s <= narrow_s:
            longer = max(before, bar, key=lambda bar: bar.end_s - bar.start_s)
            both = replace(before, end_s=bar.end_s, state=longer.state)
            last[bar.row] = replace(both, count=before.count + 1)
        else:
            joined += [before] if before else []
            last[bar.row] = bar
    return [*joined, *last.values()]


def _rows_that_fit(bars: Sequence[Bar]) -> int:
    counts = Counter(bar.row for bar in bars)
    sums = accumulate(counts[row] for row in sorted(counts)[:MAX_ROWS])
    return max(1, sum(total <= MAX_BARS for total in sums))
