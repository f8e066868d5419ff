"""Runs in the training process. The rows of a rank in an order that a later start can tell.

All rows must have arrived. Each rank hashes its rows and writes the list of the hashes; the first
rank waits for the lists of all ranks. To go on in the middle of an epoch, the first rank reads the
lists of the starts that have made steps in it, and tells each rank which of its rows are left. The
ranks then share these rows equally.
"""

import functools
import itertools
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl.context import Context
from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.data_state import DataState
from sparkdl.data.dataframe.balancing import BalancedRows
from sparkdl.data.dataframe.known_order import differences, pass_order, rows_left, used_rows
from sparkdl.data.dataframe.rank_rows import Places, RankRows
from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.dataframe.row_exchange import RowExchange
from sparkdl.data.dataframe.row_hashes import row_hashes
from sparkdl.data.dataframe.start_lists import RankList, StartLists
from sparkdl.data.lanes import WINDOW_BYTES
from sparkdl.data.peer_files import FIRST, PeerFiles
from sparkdl.data.shard import balance
from sparkdl.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Portion:
    """The rows that a rank reads in a pass, or in the rest of one.

    Attributes:
        rows: the rows of the rank.
        places: the places of those that the rank reads, an array (rows,).
        repeated: the place of the row that the rank reads once more; None without one.
        total: number of rows of all ranks together.
    """

    rows: RankRows
    places: Places
    repeated: int | None
    total: int


class KnownRows:
    """The rows of a rank at this start of the training.

    Args:
        me: the context of the rank.
        buffer: the rows that Spark has sent to the rank.
        balanced: the rows after balancing.
        last_batch: `pad` or `drop`.
        window_rows: number of rows that are shuffled together; None keeps the order.

    Attributes:
        start: the name of this start.
        window: number of rows that this rank shuffles together: fewer, where rows are large.
        whole: the rows of a whole pass.
    """

    def __init__(
        self,
        me: Context,
        buffer: RowBuffer,
        balanced: BalancedRows,
        last_batch: str,
        window_rows: int | None,
    ) -> None:
        self._me = me
        self._rank, self._ranks = me.reading
        self._buffer = buffer
        self._last_batch = last_batch
        self._name = f"{buffer.name}-{next(_numbers(buffer))}"
        self._num_rests = itertools.count()
        self._lists = StartLists(me)
        received = [*balanced.received, *balanced.repeated]
        rows = RankRows(buffer, balanced.available, received)
        num_own = rows.num_rows - len(balanced.repeated)
        repeated = num_own if balanced.repeated else None
        self.whole = Portion(rows, np.arange(num_own), repeated, balanced.rows)
        hashes, self.window = self._hash(num_own, window_rows)
        mine = self._lists.write(hashes, self.window)
        if self._ranks > 1 and self._rank != FIRST:
            PeerFiles(me).post(self._rank, self._topic, json.dumps(asdict(mine)))
        terms = {"data": self._name, "last_batch": last_batch, "shuffle": window_rows}
        answer = agree(Call("state_dict", terms), lambda: self._finish(mine), me)
        self.start: str = answer["start"]

    def _hash(self, num_rows: int, window_rows: int | None) -> tuple[Any, int | None]:
        """Return the hashes of the rows, and the number of rows to shuffle together."""
        parts, num_bytes = [], 0
        for batch in self.whole.rows.in_order():
            parts.append(row_hashes(batch))
            num_bytes += batch.nbytes
        hashes = np.concatenate([np.empty(0, np.uint64), *parts])[:num_rows]
        most_rows = WINDOW_BYTES * max(num_rows, 1) // max(num_bytes, 1)
        return hashes, window_rows and max(min(window_rows, most_rows), 1)

    @property
    def _topic(self) -> str:
        return f"listed-{self._name}"

    def _finish(self, mine: RankList) -> Pieces:
        """Wait for the lists of all ranks, and write the start; only the first rank does."""
        lists = {FIRST: mine}
        if self._ranks > 1:
            others = [rank for rank in range(self._ranks) if rank != FIRST]
            purpose = f"to ask for the state of data {self._buffer.name!r}"
            limit_s = self._me.peer_timeout_s
            messages = PeerFiles(self._me).wait_for(
                others, self._topic, self._rank, purpose, limit_s
            )
            lists |= {rank: RankList(**json.loads(text)) for rank, text in messages.items()}
        return {"start": self._lists.finish([lists[rank] for rank in range(self._ranks)])}

    def read(
        self, portion: Portion, seed: Sequence[int], most_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a portion in the order of a pass.

        Args:
            portion: the rows.
            seed: the result of `order_seed`.
            most_rows: number of rows of the batches that the rank takes; `drop` leaves out others.
        """
        places = portion.places[pass_order(len(portion.places), self.window, seed)]
        if self._last_batch == "drop":
            places = places[:most_rows]
        elif portion.repeated is not None:
            places = np.append(places, portion.repeated)
        rows = portion.rows
        return rows.take(places, self.window) if self.window else rows.ascending(places)

    # ---- the rest of a pass

    def portion_left(self, state: DataState) -> Portion:
        """Return what the steps of a pass have left for this rank; all ranks call it.

        Args:
            state: the steps.

        Raises:
            ConfigError: if the DataFrame has other rows than before, or the lists of the starts
                do not exist.
        """
        rest_number = next(self._num_rests)
        terms = {"data": self._name, "state": state.to_dict()}
        answer = agree(Call("load_state_dict", terms), lambda: self._find_left(state), self._me)
        counts: list[int] = answer["counts"]
        bits = np.frombuffer(b64decode(answer["left"][self._rank]), np.uint8)
        num_own = len(self.whole.places)
        places_left = np.flatnonzero(np.unpackbits(bits, count=num_own))
        plan, rows = balance(counts, self._last_batch), self.whole.rows
        received: Sequence[pa.RecordBatch] = ()
        repeated: Sequence[pa.RecordBatch] = ()

        def read(start: int, stop: int) -> Iterator[pa.RecordBatch]:
            return rows.ascending(places_left[start:stop])

        if self._ranks > 1:
            topic = f"left-{self._name}-{rest_number}"
            files = PeerFiles(self._me)
            exchange = RowExchange(files, topic, self._buffer.schema, self._rank)
            received, repeated = exchange.run(plan, read)
        every = rows.followed_by([*received, *repeated])
        end = every.num_rows - len(repeated)
        places = np.concatenate(
            [places_left[: plan.keeps[self._rank]], np.arange(rows.num_rows, end)]
        )
        return Portion(every, places, end if repeated else None, sum(counts))

    def _find_left(self, state: DataState) -> Pieces:
        """Return the rows of each rank that are left; only the first rank does."""
        now = self._lists.read(self.start)
        starts = {
            name: self._lists.read(name)
            for name in {each_round.start for each_round in state.rounds}
        }
        before = starts[state.rounds[-1].start]
        new, missing = differences(before.lists, now.lists)
        if new or missing:
            raise ConfigError(self._of_other_rows(new, missing))
        masks = rows_left(now.lists, used_rows(state, starts))
        return {
            "counts": [int(mask.sum()) for mask in masks],
            "left": [b64encode(np.packbits(mask).tobytes()).decode() for mask in masks],
        }

    def _of_other_rows(self, new: int, missing: int) -> str:
        return (
            f"data {self._buffer.name!r} has other rows than when the epoch began: {new} rows are "
            f"new, and {missing} rows are missing. An epoch can only go on with the same rows. Let "
            "the DataFrame be the same in each run: give rand() and sample() a seed, read a fixed "
            "version of a table that changes, or write the rows to a table first. Or begin the "
            "epoch anew, without the state."
        )


# Process-wide state: the number of the next list of a dataset, for the names of messages.
@functools.cache
def _numbers(buffer: RowBuffer) -> Iterator[int]:
    return itertools.count()
