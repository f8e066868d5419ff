"""Runs on the driver. A progress bar for notebooks, with a table of the running trials."""

import sys
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sparkdl.runner.display.progress_lines import duration_text
from sparkdl.runs import table

# Seconds between two updates. More frequent updates cannot be read.
UPDATE_S = 1.0

# Counts that mean nothing any more when the run has ended.
_PASSING = ("running", "left")


def is_notebook() -> bool:
    """Return True in a Jupyter kernel; that IPython was imported does not suffice."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class NotebookBar:
    """A bar, the counts of the trials, and a table of the running trials, as one output of a cell.

    The output is updated in place, and its last state stays in a saved notebook and in an exported
    page, because the bar is HTML and no widget. It has those methods of a tqdm bar that
    `Progress` calls.

    Args:
        title: the name of the run.

    Attributes:
        total: the number of trials; None for a search without an end.
    """

    def __init__(self, title: str) -> None:
        self.total: int | None = None
        self._title = title
        self._num_done = 0
        self._counts: dict[str, Any] = {}
        self._table = ""
        self._begun_s = time.monotonic()
        self._next_s = 0.0
        self._display: Any = None
        self._is_closed = False

    def update(self, num_done: int = 1) -> None:
        """Count trials that have ended."""
        self._num_done += num_done
        self._draw()

    def set_postfix(self, counts: Mapping[str, Any], refresh: bool = True) -> None:
        """Show counts behind the number of trials that have ended."""
        self._counts = dict(counts)
        self._draw()

    def show_table(self, columns: Sequence[tuple[str, Sequence[str]]], more: str) -> None:
        """Show a table below the bar.

        Args:
            columns: a title and the cells of each column; empty for no table.
            more: a line below the table.
        """
        self._table = table.grid(columns) if columns else ""
        self._table += f"<div>{escape(more)}</div>" if more else ""
        self._draw()

    def close(self) -> None:
        """Show the final state: the counts without a table."""
        self._is_closed = True
        self._table = ""
        self._counts = {k: v for k, v in self._counts.items() if not _is_passing(k)}
        if self._display is not None:
            self._draw()

    def _draw(self) -> None:
        if time.monotonic() < self._next_s and not self._is_closed:
            return
        self._next_s = time.monotonic() + UPDATE_S
        bundle = {"text/plain": f"{self._title}: {self._line()}", "text/html": self._html()}
        if self._display is None:
            from IPython.display import display

            self._display = display(bundle, raw=True, display_id=True)
        else:
            self._display.update(bundle, raw=True)

    def _line(self) -> str:
        of = "" if self.total is None else f" of {self.total}"
        noun = "trial" if self.total == 1 else "trials"
        elapsed = duration_text(time.monotonic() - self._begun_s)
        parts = [f"{self._num_done}{of} {noun} ended"]
        parts += [f"{name} {value}" for name, value in self._counts.items()]
        return " · ".join([*parts, f"{'in' if self._is_closed else 'after'} {elapsed}"])

    def _html(self) -> str:
        # A bar without a value moves, to show that something goes on.
        has_value = self.total is not None and (self.total > 1 or self._is_closed)
        value = f' value="{self._num_done}" max="{max(self.total or 0, 1)}"' if has_value else ""
        bar = f'<progress{value} style="width:100%"></progress>'
        if self._is_closed and not has_value:
            bar = ""
        text = f"<b>{escape(self._title)}</b> {escape(self._line())}"
        style = "max-width:60em;padding:4px 5px;font-variant-numeric:tabular-nums"
        return f'<div style="{style}">{text}{bar}{self._table}</div>'


def _is_passing(name: str) -> bool:
    return name in _PASSING or name.startswith("trial ")
