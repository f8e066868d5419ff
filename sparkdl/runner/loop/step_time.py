"""Runs on the driver. Describe the parts of a training step, from the timelines of the ranks."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.distribute.timeline import COLLECTIVE, STEP
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.runs import Run

# A smaller share of a step is not mentioned.
NEGLIGIBLE_SHARE = 0.02

_NO_STEPS = (
    "The timelines are empty: no collective ran in the ring. timeline=True records the collectives "
    "of distribute.optimizer, gradient_tape, allreduce and the like, and of sparkdl.horovod, but "
    "not those of distribute.strategy()."
)


@dataclass(frozen=True, kw_only=True)
class TypicalStep:
    """A typical step of a rank: the mean of the steps in the middle half by length.

    The middle half has neither the slow first steps nor the steps that are followed by a
    validation. If no gradients were reduced, there are no steps; a typical collective with the
    computation before it is used instead.

    Attributes:
        rank: the rank.
        unit: `step` or `collective`.
        total_ms: milliseconds of the step.
        spent_ms: milliseconds of the parts: `collectives`, and its parts `wait`, `late`, `send`,
            `receive`, `add` and `beside`, see `distribute.timeline.Collective`.
        waits_for: the rank from which this rank receives.
    """

    rank: int
    unit: str
    total_ms: float
    spent_ms: dict[str, float]
    waits_for: int

    def share(self, kind: str) -> float:
        """Return the share of a part in the step, from 0 to 1."""
        return self.spent_ms[kind] / self.total_ms


def where_time_went(run: Run) -> str:
    """Return a summary of the timelines of a distributed run, for the user."""
    folder = TrialPaths(run.trials[0].path).timeline
    try:
        traces = [storage.read(storage.join(folder, name)) for name in storage.list_names(folder)]
    except OSError as exc:
        return f"failed to read the timelines in {folder}: {exc}"
    ranks = [rank for rank in map(typical, traces) if rank]
    hint = f"The timelines are in {folder}; open them with https://ui.perfetto.dev"
    return f"{sentence(ranks)} {hint}" if ranks else _NO_STEPS


def typical(trace: bytes) -> TypicalStep | None:
    """Return the typical step of a timeline; None if the timeline is empty."""
    steps = _events(trace, STEP)
    unit = STEP if steps else COLLECTIVE
    events = sorted(steps or _events(trace, COLLECTIVE), key=_length_ms)
    middle = events[len(events) // 4 : len(events) - len(events) // 4]
    if not middle:
        return None
    sums = Counter[str]()
    for event in middle:
        times = {name: ms for name, ms in event["args"].items() if name.endswith("_ms")}
        sums.update(times)
    means = {name.removesuffix("_ms"): total / len(middle) for name, total in sums.items()}
    total_ms = sum(map(_length_ms, middle)) / len(middle)
    return TypicalStep(
        rank=middle[0]["pid"],
        unit=unit,
        total_ms=total_ms,
        spent_ms=means,
        waits_for=middle[-1]["args"]["waits_for"],
    )


def sentence(ranks: Sequence[TypicalStep]) -> str:
    """Return a sentence about the parts of a step of the first rank, and about the slowest rank.

    Example:
        >>> spent = {"collectives": 60.0, "wait": 30.0, "add": 10.0, "beside": 0.0, "late": 25.0}
        >>> step = TypicalStep(rank=0, unit="step", total_ms=200.0, spent_ms=spent, waits_for=1)
        >>> sentence([step])
        'Of a step of 200 ms rank 0 computed 70 %, waited 15 % for other ranks or the network, \
sent and received 10 % and added 5 %. Most of the waiting is for rank 1: 25 ms per step.'
    """
    first = min(ranks, key=lambda step: step.rank)
    adding, waiting, total = (first.share(kind) for kind in ("add", "wait", "collectives"))
    beside = first.share("beside")
    latest = max(ranks, key=lambda step: step.spent_ms["late"])
    text = (
        f"Of a {first.unit} of {_ms(first.total_ms)} rank {first.rank} computed "
        f"{1 - total:.0%}, waited {waiting:.0%} for other ranks or the network, sent and "
        f"received {total - waiting - adding:.0%} and added {adding:.0%}"
    ).replace("%", " %")
    if beside > NEGLIGIBLE_SHARE:
        text += f"; meanwhile its other threads computed for {beside:.0%}".replace("%", " %")
    if latest.share("late") < NEGLIGIBLE_SHARE:
        return f"{text}. No rank delays the others."
    late = _ms(latest.spent_ms["late"])
    return f"{text}. Most of the waiting is for rank {latest.waits_for}: {late} per {latest.unit}."


def _events(trace: bytes, kind: str) -> list[dict[str, Any]]:
    """Return the events of a category; a torn last line of a killed process is skipped."""
    mark = json.dumps({"cat": kind})[1:-1].encode()
    lines = (line for line in trace.split(b"\n") if mark in line and line.endswith(b"}},"))
    return [json.loads(line[:-1]) for line in lines]


def _length_ms(event: dict[str, Any]) -> float:
    return float(event["dur"] / 1e3 + event["args"].get("since_ms", 0.0))


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"
