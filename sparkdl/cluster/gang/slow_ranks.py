"""Runs on the driver. Find the ranks that the other ranks of a gang wait for."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low

from sparkdl.distribute.step_times import TIMES, RankTimes, Sums
from sparkdl.files import storage
from sparkdl.files.polling import Outages
from sparkdl.files.rank_files import RankFiles
from sparkdl.runs.events import GangEvent, RankSlow

# A rank is slow if the others wait for it in this share of their time. Without communication, its
# speed is then less than 0.75 of theirs: the threshold for relative scores in
# `identify_stragglers` of NVIDIA's resiliency extension.
SLOW_SHARE = 0.25
# The last WINDOW spans of time count, each about as long as `step_times.KEPT_S`, or one step if
# that is longer; fewer than MIN_SPANS say nothing.
WINDOW = 40
MIN_SPANS = 20
# A rank waits for its rows if making them takes this share of its time.
READING_SHARE = 0.9

# Seconds between two looks; more in a store.
LOOK_S = 5.0
REMOTE_LOOK_S = 15.0


class GangNews:
    """News of a gang, which the display shows and the journal keeps."""

    def event(self, number: int, names: Sequence[str]) -> GangEvent:
        """Return the event of the journal.

        Args:
            number: the number of the trial.
            names: the names of the ranks, such as `worker 1`.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RankNews(GangNews):
    """News of a rank.

    Attributes:
        rank: the rank.
        host: the name of its host.
    """

    rank: int
    host: str


@dataclass(frozen=True, kw_only=True)
class SlowRank(RankNews):
    """A rank that the others wait for.

    Attributes:
        rank, host: see `RankNews`.
        node: see `RankTimes`.
        wait_s: seconds per step for which the others wait for it.
        step_s: seconds of a step.
        waits_for_rows: it waits for its rows; False if it computes, None if that is not known.
    """

    node: str
    wait_s: float
    step_s: float
    waits_for_rows: bool | None = None

    def event(self, number: int, names: Sequence[str]) -> RankSlow:
        """Return the event of the journal."""
        return RankSlow(
            number=number,
            rank=self.rank,
            name=names[self.rank],
            host=self.host,
            wait_s=round(self.wait_s, 6),
            step_s=round(self.step_s, 6),
            waits_for_rows=self.waits_for_rows,
        )


def slow_ranks(times: Mapping[int, RankTimes]) -> list[SlowRank]:
    """Return the ranks for which the others wait, in at least SLOW_SHARE of the time.

    Of each span of steps, a rank is compared with the typical rank of other hosts, or of its own
    host if there is no other: the lower median of their times from the last collective of a step to
    the first one of the next step. All that a rank does on its own takes as much longer as that
    part, in which no gradients travel meanwhile. So the others wait for
    `own * (1 - typical / first)`: what the gang would save if the rank were as fast as the typical
    one, the what-if question of Lin and others 2025, "Understanding stragglers in large model
    training using what-if analysis". The median over the spans does not see a step that takes long
    once, such as one with a checkpoint.

    Args:
        times: the times of the ranks that have posted any.

    Example:
        >>> def posted(rank: int, work_s: float) -> RankTimes:
        ...     sums = [Sums(i, work_s * i, work_s * i, 1.0 * i) for i in range(30)]
        ...     return RankTimes(f"host {rank}", f"{rank}", 0, tuple(sums))
        >>> times = {0: posted(0, 0.5), 1: posted(1, 0.5), 2: posted(2, 1.0)}
        >>> [(slow.rank, slow.host, slow.wait_s, slow.step_s) for slow in slow_ranks(times)]
        [(2, 'host 2', 0.5, 1.0)]
    """
    generation = max((each.generation for each in times.values()), default=0)
    present = {rank: each for rank, each in times.items() if each.generation == generation}
    spans = _same_spans(present)
    if len(spans) < 2 or min(map(len, spans.values())) < MIN_SPANS:
        return []
    typical: dict[tuple[int, ...], list[float]] = {}
    found = []
    for rank, mine in spans.items():
        others = tuple(r for r in present if present[r].node != present[rank].node)
        others = others or tuple(r for r in present if r != rank)
        if others not in typical:  # The same for all ranks of a host.
            firsts = zip(*([span.first_s for span in spans[r]] for r in others), strict=True)
            typical[others] = [*map(median_low, firsts)]
        waits = [_wait_s(*pair) for pair in zip(mine, typical[others], strict=True)]
        pairs = list(zip(waits, mine, strict=True))
        if median(wait_s / span.total_s for wait_s, span in pairs) < SLOW_SHARE:
            continue
        found.append(
            SlowRank(
                rank=rank,
                host=present[rank].host,
                node=present[rank].node,
                wait_s=median(wait_s / span.step for wait_s, span in pairs),
                step_s=median(span.total_s / span.step for span in mine),
                waits_for_rows=_waits_for_rows(mine, sum(waits), [spans[r] for r in others]),
            )
        )
    return found


def _same_spans(times: Mapping[int, RankTimes]) -> dict[int, list[Sums]]:
    """Return the seconds of each rank between the steps that all ranks have kept, the last ones."""
    by_step = {rank: {sums.step: sums for sums in each.sums} for rank, each in times.items()}
    common = sorted(set.intersection(*map(set, by_step.values()))) if by_step else []
    steps = common[-WINDOW - 1 :]
    return {
        rank: [sums[after].since(sums[before]) for before, after in pairwise(steps)]
        for rank, sums in by_step.items()
    }


def _wait_s(span: Sums, typical_s: float) -> float:
    return span.own_s * (1 - typical_s / span.first_s) if span.first_s > typical_s else 0.0


def _waits_for_rows(
    mine: Sequence[Sums], waited_s: float, others: Sequence[Sequence[Sums]]
) -> bool | None:
    """Return True if a rank is slow because of its rows; None if its readers are not known.

    Args:
        mine: the seconds of the rank, of each span.
        waited_s: seconds for which the others waited for it.
        others: the seconds of the others.
    """
    rows_s, reading_s = sum(span.rows_s for span in mine), sum(span.reading_s for span in mine)
    if not (rows_s or reading_s):
        return None
    typical_s = median_low(sum(span.rows_s for span in spans) for spans in others)
    is_behind = reading_s >= READING_SHARE * sum(span.total_s for span in mine)
    return is_behind or rows_s - typical_s >= waited_s / 2


class SlowRankWatch:
    """Looks for slow ranks while a gang runs, and tells each of them once.

    A rank that goes on at another host may be told again.

    Args:
        files: the files by which the ranks of the attempt talk.
        ranks: the ranks of the ring.

    Attributes:
        slow: the ranks that were slow at the last look.
    """

    def __init__(self, files: RankFiles, ranks: Sequence[int]) -> None:
        self._files = files
        self._ranks = ranks
        self._told: set[tuple[int, str]] = set()
        self._texts: dict[int, bytes] = {}
        self.slow: list[SlowRank] = []
        self._look_s = LOOK_S if storage.is_local(files.url) else REMOTE_LOOK_S
        self._looked_s = time.monotonic()
        self._outages = Outages("read the times of the ranks")

    def look(self) -> list[SlowRank]:
        """Return the ranks that are found to be slow now, and have not been told before."""
        if time.monotonic() - self._looked_s < self._look_s:
            return []
        self._looked_s = time.monotonic()
        texts: dict[int, bytes] = {}
        with self._outages.tolerated():
            texts = self._files.read_all(self._ranks, TIMES)
        if texts == self._texts:
            return []
        self._texts = texts
        self.slow = slow_ranks(_parsed(texts))
        new = [slow for slow in self.slow if (slow.rank, slow.node) not in self._told]
        self._told |= {(slow.rank, slow.node) for slow in new}
        return new


def _parsed(texts: Mapping[int, bytes]) -> dict[int, RankTimes]:
    """Return what can be read: others may write to the run directory."""
    times = {}
    for rank, text in texts.items():
        try:
            times[rank] = RankTimes.parse(text)
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
    return times
