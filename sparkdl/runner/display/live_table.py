"""Runs on the driver. A table of the running trials that is updated in place."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from sparkdl.runner.display.notebook_bar import NotebookBar
from sparkdl.runs import Trial, table

# Seconds between two updates. More frequent updates cannot be read.
UPDATE_S = 0.5

MAX_ROWS = 12


class LiveTable:
    """A table of the running trials below the progress bar. A context manager.

    Args:
        metric: the name of the metric, whose column comes first.
        bar: the bar that shows the table in a notebook; None in a terminal.
    """

    def __init__(self, metric: str, bar: NotebookBar | None = None) -> None:
        self._metric = metric
        self._bar = bar
        self._lines: list[Any] = []
        self._shown_lines: list[str] = []
        self._next_s = 0.0

    def __enter__(self) -> "LiveTable":
        return self

    def __exit__(self, *_: object) -> None:
        self._draw([])

    def show(self, trials: Sequence[Trial], steps: Mapping[int, int]) -> None:
        """Update the table, unless the last update was a moment ago.

        Args:
            trials: all trials that run now.
            steps: the last step that each trial has reported, by the number of the trial.
        """
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + UPDATE_S
        visible = sorted(trials, key=lambda trial: trial.number)[:MAX_ROWS]
        seconds = {t.number: time.time() - t.spans[-1][0] for t in visible}
        columns = table.running(visible, steps, seconds, self._metric) if visible else []
        num_more = len(trials) - len(visible)
        more = f"... {num_more} more are running" if num_more else ""
        if self._bar is not None:
            self._bar.show_table(columns, more)
            return
        lines = [*(table.padded(columns) if columns else []), *([more] if more else [])]
        if lines != self._shown_lines:
            self._draw(lines)

    def _draw(self, lines: list[str]) -> None:
        self._shown_lines = lines
        while len(self._lines) > len(lines):
            self._lines.pop().close()
        while len(self._lines) < len(lines):
            position = len(self._lines) + 1  # The progress bar has position 0.
            line = tqdm(total=0, position=position, leave=False, bar_format="{desc}")
            self._lines.append(line)
        for line, text in zip(self._lines, lines, strict=True):
            line.set_description_str(text)
