"""Runs on the driver. Where the time of a training step went, from the timelines of the ranks."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl import storage
from sparkdl.distribute.timeline import COLLECTIVE, STEP
from sparkdl.runs import Run
from sparkdl.runs.layout import TrialPaths

__all__ = ["Typical", "sentence", "typical", "where_time_went"]

# Less than this of a step is not worth a word.
LITTLE = 0.02

_NONE = (
    "There is no timeline: no rank has heard another in the ring. timeline=True records what "
    "distribute.optimizer, gradient_tape, allreduce and the like do, and sparkdl.horovod; not what "
    "distribute.strategy() does."
)


@dataclass(frozen=True)
class Typical:
    """A typical step of a rank: the mean of those in the middle half by length.

    The first ones are not among these, nor those with a validation behind them. Where there is no
    step, as no gradients were reduced, it is a collective with what was before it.

    Attributes:
        rank: whose it is.
        what: `step`, or `collective`.
        total_ms: from its begin to its end.
        spent_ms: of these, those in `collectives`; of these again `wait`, `late`, `send`,
            `receive`, `add`, and `beside`, see `distribute.timeline.Collective`.
        waits_for: the rank that it hears.
    """

    rank: int
    what: str
    total_ms: float
    spent_ms: dict[str, float]
    waits_for: int

    def share(self, kind: str) -> float:
        """How much of it went by with this."""
        return self.spent_ms[kind] / self.total_ms


def where_time_went(run: Run) -> str:
    """Summarize the timelines of a distributed run in a sentence for the user."""
    folder = TrialPaths(run.trials[0].path).timeline
    try:
        traces = [storage.read(storage.join(folder, name)) for name in storage.names(folder)]
    except OSError as exc:
        return f"The timelines in {folder} cannot be read: {exc}"
    ranks = [rank for rank in map(typical, traces) if rank]
    where = f"Look at the files in {folder}, such as with https://ui.perfetto.dev"
    return f"{sentence(ranks)} {where}" if ranks else _NONE


def typical(trace: bytes) -> Typical | None:
    """A typical step in a timeline; None where there is none."""
    what = STEP if (found := _events(trace, STEP)) else COLLECTIVE
    events = sorted(found or _events(trace, COLLECTIVE), key=_length_ms)
    middle = events[len(events) // 4 : len(events) - len(events) // 4]
    if not middle:
        return None
    sums = Counter[str]()
    for event in middle:
        sums.update({name: told for name, told in event["args"].items() if name.endswith("_ms")})
    means = {name.removesuffix("_ms"): total / len(middle) for name, total in sums.items()}
    total_ms = sum(map(_length_ms, middle)) / len(middle)
    return Typical(middle[0]["pid"], what, total_ms, means, middle[-1]["args"]["waits_for"])


def sentence(ranks: Sequence[Typical]) -> str:
    """Where the time of a step of the first rank went, and which rank the others wait for.

    Example:
        >>> spent = {"collectives": 60.0, "wait": 30.0, "add": 10.0, "beside": 0.0, "late": 25.0}
        >>> sentence([Typical(0, "step", 200.0, spent, waits_for=1)])
        'Of a step of 200 ms rank 0 computed 70 %, waited 15 % for other ranks or the network, \
sent and received 10 % and added 5 %. Rank 1 is waited for most: 25 ms a step.'
    """
    first = min(ranks, key=lambda one: one.rank)
    added, waited, all_of_it = (first.share(kind) for kind in ("add", "wait", "collectives"))
    beside, latest = first.share("beside"), max(ranks, key=lambda one: one.spent_ms["late"])
    text = (
        f"Of a {first.what} of {_ms(first.total_ms)} rank {first.rank} computed "
        f"{1 - all_of_it:.0%}, waited {waited:.0%} for other ranks or the network, sent and "
        f"received {all_of_it - waited - added:.0%} and added {added:.0%}"
    ).replace("%", " %")
    if beside > LITTLE:
        text += f"; meanwhile other threads of it computed for {beside:.0%}".replace("%", " %")
    if latest.share("late") < LITTLE:
        return f"{text}. No rank is waited for."
    late = _ms(latest.spent_ms["late"])
    return f"{text}. Rank {latest.waits_for} is waited for most: {late} a {latest.what}."


def _events(trace: bytes, kind: str) -> list[dict[str, Any]]:
    """The whole lines of a category; the last one of a killed process may be torn."""
    mark = json.dumps({"cat": kind})[1:-1].encode()
    lines = (line for line in trace.split(b"\n") if mark in line and line.endswith(b"}},"))
    return [json.loads(line[:-1]) for line in lines]


def _length_ms(event: dict[str, Any]) -> float:
    return float(event["dur"] / 1e3 + event["args"].get("since_ms", 0.0))


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"
