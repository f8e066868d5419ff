"""A run in a notebook is one output, which is updated in place."""

import time
from typing import Any

import IPython.display
import pytest

from sparkdl.runner.display.live_table import LiveTable
from sparkdl.runner.display.notebook_bar import NotebookBar
from sparkdl.runs import Trial
from sparkdl.runs.states import TrialState


class Cell:
    """The output of a cell: what was displayed there, and how often it was updated."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.num_updates = 0

    def display(self, bundle: Any, raw: bool, display_id: bool) -> "Cell":
        assert raw
        assert display_id
        self.outputs.append(bundle)
        return self

    def update(self, bundle: Any, raw: bool) -> None:
        self.num_updates += 1
        self.outputs[-1] = bundle


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()
    monkeypatch.setattr(IPython.display, "display", cell.display)
    return cell


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_run_of_an_hour_is_one_output(cell: Cell, clock: list[float]) -> None:
    bar = NotebookBar("digits")
    table = LiveTable("accuracy", bar)
    bar.total = 900
    bar.update(0)
    for look in range(18_000):
        clock[0] += 0.2
        bar.set_postfix({"running": 1, "complete": look // 20, "left": "9 min", "trial 3": "a=1"})
        trial = Trial(look // 20, {"x": 1.5}, "", state=TrialState.RUNNING, spans=[(0.0, None)])
        table.show([trial], {})
        if look % 20 == 19:
            bar.update()
    table.__exit__()
    bar.close()
    (output,) = cell.outputs
    assert cell.num_updates <= 3601
    assert output["text/plain"] == "digits: 900 of 900 trials ended · complete 899 · in 60 min"
    assert 'value="900" max="900"' in output["text/html"]
    assert "<table>" not in output["text/html"]


def test_the_running_trials_are_below_the_bar(cell: Cell, clock: list[float]) -> None:
    bar = NotebookBar("<b>")
    bar.total = None
    trials = [Trial(i, {"x": "<i>"}, "", spans=[(0.0, None)]) for i in range(14)]
    LiveTable("accuracy", bar).show(trials, {0: 7})
    html = cell.outputs[0]["text/html"]
    assert html.count("<tr>") == 13
    assert "... 2 more are running" in html
    assert "&lt;i&gt;" in html
    assert "<i>" not in html
    assert "<b>&lt;b&gt;</b> 0 trials ended" in html
    assert "<progress style" in html  # It moves: the end of the search is not known.
    bar.close()
    assert "<progress" not in cell.outputs[0]["text/html"]


def test_a_run_that_never_began_leaves_no_output(cell: Cell) -> None:
    bar = NotebookBar("digits")
    bar.close()
    assert not cell.outputs
