"""Runs anywhere (pure). The rows of an epoch that no step has used yet, for any number of ranks.

Each rank of a run reads a stream of rows in every epoch, which follows from the seed and the number
of the epoch. After a restart in the middle, the ranks divide what is left of all streams. The
streams of files stay those of the ranks with which the epoch began, however often the training
starts again and with however many ranks. A DataFrame gives each start other streams, see
`sparkdl.data.dataframe.known_order`.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sparkdl.data.shard import Range, share, totals
from sparkdl.errors import ConfigError


@dataclass(frozen=True)
class Round:
    """Steps that the ranks have made from one start of the training to the next.

    Attributes:
        ranks: number of ranks.
        batch_size: number of rows in a batch of each rank.
        steps: number of steps, the same on every rank.
        start: name of the start, where each start has other streams of rows; otherwise empty.
    """

    ranks: int
    batch_size: int
    steps: int
    start: str = ""


@dataclass(frozen=True)
class DataState:
    """The place in the epochs from which reading goes on; the same for all ranks.

    Attributes:
        epoch: number of the epoch.
        seed: the seed of the order of all epochs.
        order: digest of all else that the order depends on, such as the numbers of rows of files.
        rounds: the steps made in the epoch, one round for each start of the training.
    """

    epoch: int
    seed: int
    order: str
    rounds: tuple[Round, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the state in JSON form."""
        rounds = [
            {name: value for name, value in asdict(each_round).items() if value != ""}
            for each_round in self.rounds
        ]
        return {**asdict(self), "rounds": rounds}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "DataState":
        """Return the state that `to_dict` has described.

        Raises:
            ConfigError: if the argument is no such description.

        Example:
            >>> state = DataState(epoch=7, seed=0, order="5f")
            >>> DataState.from_dict(state.to_dict()) == state
            True
        """
        try:
            rounds = tuple(Round(**each_round) for each_round in state["rounds"])
            data_state = cls(**{**state, "rounds": rounds})
            numbers = [
                n
                for each_round in rounds
                for n in (each_round.ranks, each_round.batch_size, each_round.steps)
            ]
            is_valid = (
                all(isinstance(n, int) and n > 0 for n in numbers)
                and all(isinstance(n, int) and n >= 0 for n in (data_state.epoch, data_state.seed))
                and all(isinstance(each_round.start, str) for each_round in rounds)
            )
        except (TypeError, KeyError):
            is_valid = False
        if not is_valid:
            raise ConfigError(
                f"the state of the data is {state!r}; expected what state_dict() has returned."
            )
        return data_state

    def after(self, new: Round) -> "DataState":
        """Return the state after more steps in the same epoch.

        Args:
            new: the steps.
        """
        if not new.steps:
            return self
        rounds = (*self.rounds, new)
        # The streams of the first ranks are equally long, so that each rank goes on with its own.
        is_same = len(rounds) == 2 and replace(rounds[0], steps=0) == replace(new, steps=0)
        if is_same and not new.start:
            rounds = (replace(new, steps=rounds[0].steps + new.steps),)
        return replace(self, rounds=rounds)

    @property
    def steps(self) -> int:
        """The number of steps made in the epoch."""
        return sum(each_round.steps for each_round in self.rounds)

    def rows_left(self, rows: int, last_batch: str) -> list[Range]:
        """Return what no step has used, as ranges of the streams of the first ranks.

        Args:
            rows: number of rows of an epoch.
            last_batch: `pad` or `drop`, see `shard`.

        Example:
            >>> state = DataState(0, 0, "", (Round(ranks=3, batch_size=2, steps=1),))
            >>> state.rows_left(9, "pad")
            [Range(piece=0, start=2, stop=3), Range(piece=1, start=2, stop=3), \
Range(piece=2, start=2, stop=3)]
        """
        first = self.rounds[0]
        steps, padded, _ = totals(rows, first.ranks, first.batch_size, last_batch)
        each = (rows + padded) // first.ranks if last_batch == "pad" else steps * first.batch_size
        ranges = [Range(rank, 0, each) for rank in range(first.ranks)]
        for each_round in self.rounds:
            total = _num_rows(ranges)
            used = each_round.steps * each_round.batch_size
            bounds = [total * rank // each_round.ranks for rank in range(each_round.ranks + 1)]
            ranges = [
                part
                for begin, end in itertools.pairwise(bounds)
                for part in rows_between(ranges, min(begin + used, end), end)
            ]
        return ranges

    def portion(
        self, rows: int, rank: int, ranks: int, batch_size: int, last_batch: str
    ) -> tuple[list[Range], int]:
        """Return what a rank reads of the rows left, and the number of its steps.

        Args:
            rows: number of rows of an epoch.
            rank: the rank.
            ranks: number of ranks now.
            batch_size: number of rows in a batch of each rank now.
            last_batch: `pad` or `drop`, see `shard`. A repeated row comes last.
        """
        ranges = self.rows_left(rows, last_batch)
        mine = share(
            [part.stop - part.start for part in ranges], rank, ranks, batch_size, last_batch
        )
        return [
            Range(
                ranges[i.piece].piece,
                ranges[i.piece].start + i.start,
                ranges[i.piece].start + i.stop,
            )
            for i in mine.ranges
        ], mine.steps


def rows_between(ranges: Sequence[Range], begin: int, end: int) -> list[Range]:
    """Return rows `begin <= i < end` of ranges that follow each other.

    Args:
        ranges: the ranges.
        begin: the first row.
        end: the end of the rows (exclusive).

    Example:
        >>> rows_between([Range(0, 5, 8), Range(1, 0, 4)], 2, 5)
        [Range(piece=0, start=7, stop=8), Range(piece=1, start=0, stop=2)]
    """
    result, place = [], 0
    for part in ranges:
        start = part.start + max(begin - place, 0)
        stop = min(part.start + end - place, part.stop)
        if start < stop:
            result.append(Range(part.piece, start, stop))
        place += part.stop - part.start
    return result


def _num_rows(ranges: Sequence[Range]) -> int:
    return sum(part.stop - part.start for part in ranges)
