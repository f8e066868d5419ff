"""Runs on the driver. A table of the running trials that is updated in place."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm.auto import tqdm

from sparkdl.runs import Trial, table

__all__ = ["LiveTable", "is_notebook"]

# Seconds between two updates. More frequent updates cannot be read.
TERMINAL_UPDATE_S = 0.5
NOTEBOOK_UPDATE_S = 1.0

MAX_ROWS = 12


def is_notebook() -> bool:
    """Return True in a Jupyter kernel; that IPython was imported does not suffice."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class LiveTable:
    """A table of the running trials below the progress bar. A context manager.

    Args:
        metric: the name of the metric, whose column comes first.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._lines: list[Any] = []
        self._shown: list[str] = []
        self._display: Any = None
        self._next_s = 0.0
        self._is_notebook = is_notebook()

    def __enter__(self) -> "LiveTable":
        return self

    def __exit__(self, *_: object) -> None:
        self._draw([], [])

    def show(self, trials: Sequence[Trial], steps: Mapping[int, int]) -> None:
        """Update the table, unless the last update was a moment ago.

        Args:
            trials: all trials that run now.
            steps: the last step that each trial has reported, by the number of the trial.
        """
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + (
            NOTEBOOK_UPDATE_S if self._is_notebook else TERMINAL_UPDATE_S
        )
        visible = sorted(trials, key=lambda trial: trial.number)[:MAX_ROWS]
        seconds = {t.number: time.time() - t.spans[-1][0] for t in visible}
        columns = table.running(visible, steps, seconds, self._metric)
        lines = table.padded(columns) if visible else []
        if len(trials) > len(visible):
            lines.append(f"... {len(trials) - len(visible)} more are running")
        if lines != self._shown:
            self._draw(lines, columns)

    def _draw(self, lines: list[str], columns: Sequence[tuple[str, Sequence[str]]]) -> None:
        self._shown = lines
        if self._is_notebook:
            self._display_html(table.grid(columns) if lines else "")
            return
        while len(self._lines) > len(lines):
            self._lines.pop().close()
        while len(self._lines) < len(lines):
            position = len(self._lines) + 1  # The progress bar has position 0.
            line = tqdm(total=0, position=position, leave=False, bar_format="{desc}")
            self._lines.append(line)
        for line, text in zip(self._lines, lines, strict=True):
            line.set_description_str(text)

    def _display_html(self, html: str) -> None:
        from IPython.display import HTML, display

        if self._display is None:
            self._display = display(HTML(html), display_id=True)
        else:
            self._display.update(HTML(html))
