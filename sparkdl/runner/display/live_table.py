"""Runs on the driver. The trials that run now, as a table that stays in its place."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm.auto import tqdm

from sparkdl.runs import Trial, table

__all__ = ["Board", "is_notebook"]

# Faster, nobody reads.
TERMINAL_S = 0.5
NOTEBOOK_S = 1.0

MOST_ROWS = 12


def is_notebook() -> bool:
    """Whether this runs in a Jupyter kernel; that one was imported says nothing."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class Board:
    """Shows what changed, and not more often than a person reads. A context manager.

    Args:
        metric: the number that counts.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._lines: list[Any] = []
        self._shown: list[str] = []
        self._display: Any = None
        self._next_s = 0.0
        self._is_notebook = is_notebook()

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self._draw([], [])

    def show(self, trials: Sequence[Trial], steps: Mapping[int, int]) -> None:
        """Show the trials that run now.

        Args:
            trials: these, all of them.
            steps: the last step that each has reported, by number.
        """
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + (NOTEBOOK_S if self._is_notebook else TERMINAL_S)
        first = sorted(trials, key=lambda trial: trial.number)[:MOST_ROWS]
        seconds = {t.number: time.time() - t.spans[-1][0] for t in first}
        columns = table.running(first, steps, seconds, self._metric)
        lines = table.padded(columns) if first else []
        if len(trials) > len(first):
            lines.append(f"... {len(trials) - len(first)} more are running")
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
            place = len(self._lines) + 1  # Below the bar.
            line = tqdm(total=0, position=place, leave=False, bar_format="{desc}")
            self._lines.append(line)
        for shown, text in zip(self._lines, lines, strict=True):
            shown.set_description_str(text)

    def _display_html(self, html: str) -> None:
        from IPython.display import HTML, display

        if self._display is None:
            self._display = display(HTML(html), display_id=True)
        else:
            self._display.update(HTML(html))
