"""Runs on the driver. The section of a report on the use of CPU, memory and GPUs over time."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.files import storage
from sparkdl.files.attempts import process_of_use
from sparkdl.files.jsonl import read_lines
from sparkdl.files.layout import TrialPaths
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures import RunView
from sparkdl.runs.views.figures.base import shown_trials
from sparkdl.runs.views.html_parts import duration, escaped, section, short

# The trials whose samples are read, and the lines of the table.
MAX_TRIALS, MAX_ROWS = 12, 32
WIDTH, HEIGHT = 260, 34


@dataclass(frozen=True)
class _Quantity:
    """A quantity that is drawn in a column.

    Attributes:
        name: the name of the samples' field.
        title: the head of the column.
        unit: the unit of the values.
        scale: the factor from the field to the unit.
        has_mean: the mean is told beside the maximum.
    """

    name: str
    title: str
    unit: str
    scale: float = 1.0
    has_mean: bool = True


_QUANTITIES = (
    _Quantity("cpu", "CPU", "cores"),
    _Quantity("memory_mb", "memory", "GiB", 1 / 1024, has_mean=False),
    _Quantity("gpu", "GPU", "%"),
    _Quantity("gpu_memory_mb", "GPU memory", "GiB", 1 / 1024, has_mean=False),
)


@dataclass(frozen=True)
class _Process:
    """A process of a trial: its samples in each attempt."""

    trial: Trial
    name: str
    attempts: Sequence[Sequence[Mapping[str, Any]]]

    def values(self, quantity: _Quantity) -> list[list[tuple[float, float]]]:
        """Return times and values in each attempt that has some."""
        points = [
            [
                (float(sample["time"]), float(sample[quantity.name]) * quantity.scale)
                for sample in samples
                if _is_number(sample.get("time")) and _is_number(sample.get(quantity.name))
            ]
            for samples in self.attempts
        ]
        return [each for each in points if each]


def use_over_time(run: RunView) -> str:
    """Return the section on the use of resources; empty if no trial was long enough for samples.

    Args:
        run: the run.
    """
    trials = shown_trials(run, MAX_TRIALS)
    processes = [process for trial in trials for process in _processes(trial)]
    shown = processes[:MAX_ROWS]
    highest = {
        quantity: max((v for p in shown for a in p.values(quantity) for _, v in a), default=None)
        for quantity in _QUANTITIES
    }
    quantities = {quantity: top for quantity, top in highest.items() if top is not None}
    if not quantities:
        return ""
    heads = [f"{q.title}, 0 to {short(_rounded(top))} {q.unit}" for q, top in quantities.items()]
    rows = ["".join(f"<td>{head}</td>" for head in ("", *heads))]
    rows += [_row(process, quantities) for process in shown]
    all_of = len({process.trial.number for process in shown}) == len(run.trials)
    few = "" if all_of and len(shown) == len(processes) else "; a part of the trials and processes"
    note = f"from the start of each process to its end{few}"
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    table = f'<div class="wide"><table class="use">{body}</table></div>'
    return section("CPU, memory and GPUs over time", note, table)


def _processes(trial: Trial) -> Iterator[_Process]:
    folder = TrialPaths(trial.path).attempts
    found: dict[str, list[tuple[int, str]]] = {}
    for name in storage.list_names(folder):
        if place := process_of_use(name):
            found.setdefault(place[1], []).append((place[0], storage.join(folder, name)))
    for process in sorted(found, key=_in_order)[:MAX_ROWS]:
        yield _Process(trial, process, [read_lines(url) for _, url in sorted(found[process])])


def _in_order(process: str) -> tuple[bool, str, int]:
    """Return what sorts processes: the chief, then by role, and by number."""
    role, _, index = process.partition(" ")
    return role != "chief", role, int(index) if index.isdigit() else 0


def _is_number(value: object) -> bool:
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value)  # type: ignore[arg-type]


def _rounded(top: float) -> float:
    """Return a round number that is not less.

    Example:
        >>> [_rounded(top) for top in (0.93, 1.7, 37.0, 0.0)]
        [1.0, 2.0, 40.0, 1.0]
    """
    if top <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(top))
    return math.ceil(round(top / unit, 9)) * unit


def _row(process: _Process, quantities: Mapping[_Quantity, float]) -> str:
    every = [time for q in quantities for points in process.values(q) for time, _ in points]
    begin, end = (min(every), max(every)) if every else (0.0, 0.0)
    name = f"trial {process.trial.number}{f', {process.name}' if process.name else ''}"
    cells = [f'<td>{escaped(name)}<br><span class="soft">{duration(end - begin)}</span></td>']
    for quantity, top in quantities.items():
        points = process.values(quantity)
        cells.append(
            f"<td>{_line(points, begin, end, _rounded(top))}{_told(points, quantity)}</td>"
        )
    return "".join(cells)


def _line(
    attempts: Sequence[Sequence[tuple[float, float]]], begin: float, end: float, top: float
) -> str:
    """Return a small line for each attempt; only numbers are in the markup."""
    across = max(end - begin, 1e-9)
    lines = []
    for points in attempts:
        places = " ".join(
            f"{(time - begin) / across * WIDTH:.1f},{HEIGHT * (1 - min(1.0, value / top)):.1f}"
            for time, value in points
        )
        lines.append(f'<polyline points="{places}"/>')
    size = f'width="{WIDTH}" height="{HEIGHT + 2}" viewBox="0 -1 {WIDTH} {HEIGHT + 2}"'
    return f'<svg class="spark" {size} role="img">{"".join(lines)}</svg>'


def _told(attempts: Sequence[Sequence[tuple[float, float]]], quantity: _Quantity) -> str:
    values = [value for points in attempts for _, value in points]
    if not values:
        return ""
    mean = f"mean {sum(values) / len(values):.3g}, " if quantity.has_mean else ""
    return f'<span class="soft">{mean}most {max(values):.3g} {quantity.unit}</span>'
