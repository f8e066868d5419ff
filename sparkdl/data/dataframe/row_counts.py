"""Runs in the training process. Exchange the row counts of all ranks of a gang, through the first.

Each rank reports the number of rows that have arrived in a message `<rank>.rows-<dataset>`. The
first rank reads the reports and sums them up in one message, which all others read: the number of
files that the ranks read grows with the number of ranks, and not with its square.
"""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl.context import Context
from sparkdl.data.pace import Pace
from sparkdl.data.peer_files import FIRST, PeerFiles

# Reports that the first rank reads in one look; it goes through the others in its next looks.
READS_PER_LOOK = 25
# Ranks that have ended are looked for less often than rows.
LOOKS_PER_CHECK = 4


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The counts of all ranks, as far as they are known.

    Attributes:
        least: number of rows that have arrived at every rank.
        counts: number of rows of each rank when all have arrived; None before.
        needs_all: a rank has fewer rows than it needs, so that the others must give it some.
        absent: the ranks that have not reported.
        refusal: the reason why the counts will never be known.
    """

    least: int = 0
    counts: tuple[int, ...] | None = None
    needs_all: bool = False
    absent: tuple[int, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True)
class _Report:
    """The message of a rank.

    Attributes:
        rows: number of rows that have arrived.
        all: these are all rows.
        terms: the arguments that must be the same on every rank.
    """

    rows: int
    all: bool
    terms: Mapping[str, Any]


class RowCounts:
    """The part of one rank in the exchange for one dataset.

    Args:
        me: the context of the rank.
        files: the files by which the ranks talk.
        dataset: name of the dataset.
        number: number of the dataset's earlier exchanges.
        terms: the arguments that must be the same on every rank.
        max_rows: number of rows that each rank uses; None for all.
    """

    def __init__(
        self,
        me: Context,
        files: PeerFiles,
        dataset: str,
        number: int,
        terms: Mapping[str, Any],
        max_rows: int | None,
    ) -> None:
        self._me = me
        self._files = files
        self._dataset = dataset
        self._terms = dict(terms)
        self._max_rows = max_rows
        self._rows_topic = f"rows-{dataset}-{number}"
        self._summary_topic = f"counts-{dataset}-{number}"
        self._reports: dict[int, _Report] = {}
        self._posted: Any = None
        self._num_looks = 0
        self._ranks_to_read = deque(rank for rank in range(me.num_readers) if rank != FIRST)

    @property
    def pace(self) -> Pace:
        """The pace at which this rank should look."""
        num_readers = self._me.num_readers
        is_first = self._me.rank == FIRST
        return Pace(self._files.url, min(num_readers, READS_PER_LOOK) if is_first else num_readers)

    def look(self, rows: int, is_complete: bool) -> Summary:
        """Report the rows of this rank, and return what is known of all ranks.

        Args:
            rows: number of rows that have arrived at this rank.
            is_complete: these are all rows.
        """
        self._num_looks += 1
        report = _Report(rows, is_complete, self._terms)
        if self._me.rank == FIRST:
            self._reports[FIRST] = report
            summary = self._summarize()
            self._post(self._summary_topic, summary)
            return summary
        self._post(self._rows_topic, report)
        return self._read_summary()

    def _post(self, topic: str, message: Any) -> None:
        if message != self._posted:
            self._files.post(self._me.rank, topic, json.dumps(asdict(message)))
            self._posted = message

    def _read_summary(self) -> Summary:
        returned = self._returned_ranks(
            [FIRST]
        )  # Before the message is read: it may be posted in between.
        data = self._files.read([FIRST], self._summary_topic).get(FIRST)
        if not data:
            return Summary(
                absent=(FIRST,), refusal=self._early_return(returned) if returned else None
            )
        fields = json.loads(data)
        counts = fields["counts"] and tuple(fields["counts"])
        summary = Summary(**{**fields, "counts": counts, "absent": tuple(fields["absent"])})
        if returned and not counts and not summary.refusal:
            return Summary(least=summary.least, refusal=self._early_return(returned))
        return summary

    def _summarize(self) -> Summary:
        ranks = range(self._me.num_readers)
        unfinished = [r for r in ranks if r not in self._reports or not self._reports[r].all]
        returned = self._returned_ranks(unfinished)
        self._read_reports()
        reports = self._reports
        for rank, report in sorted(reports.items()):
            if report.terms != self._terms:
                return Summary(refusal=self._differs(rank, report))
        absent = tuple(rank for rank in ranks if rank not in reports)
        least = 0 if absent else min(report.rows for report in reports.values())
        if self._max_rows is not None and least >= self._max_rows:
            return Summary(least=least, counts=(self._max_rows,) * len(ranks))
        if not absent and all(report.all for report in reports.values()):
            return Summary(least=least, counts=tuple(reports[rank].rows for rank in ranks))
        too_early = [rank for rank in returned if rank in absent or not reports[rank].all]
        return Summary(
            least=least,
            needs_all=any(r.all and r.rows < (self._max_rows or 0) for r in reports.values()),
            absent=absent,
            refusal=self._early_return(too_early) if too_early else None,
        )

    def _read_reports(self) -> None:
        """Read the reports that were not read for longest, of ranks that expect more rows."""
        ranks = [
            self._ranks_to_read.popleft()
            for _ in range(min(len(self._ranks_to_read), READS_PER_LOOK))
        ]
        for rank, data in self._files.read(ranks, self._rows_topic).items():
            self._reports[rank] = _Report(**json.loads(data))
        self._ranks_to_read += [
            r for r in ranks if r not in self._reports or not self._reports[r].all
        ]

    def _returned_ranks(self, ranks: list[int]) -> list[int]:
        """Return those of some ranks that have returned."""
        if (self._num_looks + self._me.rank) % LOOKS_PER_CHECK:  # Not all ranks at once.
            return []
        return self._files.returned_ranks(ranks)

    def _early_return(self, returned: list[int]) -> str:
        return (
            f"ranks {returned} returned before they had read their rows of data {self._dataset!r}, "
            "and other ranks need more rows. Every rank must call data.dataset with the same "
            "arguments, and take the same number of batches."
        )

    def _differs(self, rank: int, report: _Report) -> str:
        return (
            f"data.dataset({self._dataset!r}) was called for {_text(self._terms)} on rank {FIRST} "
            f"and for {_text(report.terms)} on rank {rank}. Every rank must call data.dataset with "
            "the same arguments, in the same order."
        )


def _text(terms: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in terms.items())
