"""Rows that arrive in another order at each start, at other ranks: each is read once per epoch."""

import json
import mmap
import random
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.context import Context
from sparkdl.data.data_state import DataState, Round
from sparkdl.data.dataframe.balancing import RowBalance, SingleRank
from sparkdl.data.dataframe.known_order import order_seed
from sparkdl.data.dataframe.known_rows import KnownRows
from sparkdl.data.dataframe.row_buffer import RowBuffer
from sparkdl.data.shard import totals
from sparkdl.errors import ConfigError


def buffer_of(table: pa.Table) -> RowBuffer:
    """The rows as they arrive from Spark, in small batches."""
    buffer = RowBuffer("train", table.schema, threading.Event())
    for batch in table.to_batches(max_chunksize=17):
        message = batch.serialize().to_pybytes()
        file = mmap.mmap(-1, len(message))
        file.write(message)
        buffer.add(batch.num_rows, np.frombuffer(file, np.uint8), file)
    buffer.open(True, None)
    buffer.complete(len(table))
    return buffer


class Training:
    """A training that starts again with other ranks, each time with the rows in another order.

    Args:
        folder: the folder of the trial.
        table: all rows.
        chance: decides about orders, ranks, batches and steps.
        last_batch, shuffle: arguments of `data.dataset`.
    """

    def __init__(
        self, folder: Path, table: pa.Table, chance: random.Random, last_batch: str, shuffle: Any
    ) -> None:
        self.folder = folder
        self.table = table
        self.chance = chance
        self.last_batch = last_batch
        self.window = shuffle or None
        self.num_starts = 0

    def start(self, ranks: int, batch_size: int = 2) -> list[KnownRows]:
        """Deal the rows to ranks, in a random order and in unequal numbers."""
        order = list(range(len(self.table)))
        self.chance.shuffle(order)
        self.num_starts += 1
        cuts = [0, *sorted(self.chance.choices(range(len(order) + 1), k=ranks - 1)), len(order)]

        def of_rank(rank: int) -> KnownRows:
            mine = self.table.take(pa.array(order[cuts[rank] : cuts[rank + 1]], pa.int64()))
            me = Context(
                rank=rank,
                world_size=ranks,
                num_readers=ranks,
                attempt=self.num_starts,
                folder=str(self.folder),
            )
            buffer = buffer_of(mine)
            balance: RowBalance | SingleRank = SingleRank(buffer, None)
            if ranks > 1:
                balance = RowBalance(me, buffer, self.last_batch, None, batch_size)
            certain, balanced = balance.certain_rows(0)
            while balanced is None:
                certain, balanced = balance.certain_rows(certain)
            return KnownRows(me, buffer, balanced, self.last_batch, self.window)

        return self._of_all_ranks(of_rank, range(ranks))

    def streams(
        self, known: Sequence[KnownRows], state: DataState, batch_size: int
    ) -> tuple[int, list[list[int]]]:
        """The number of steps of the rest of an epoch, and the ids that each rank reads in it."""

        def of_rank(rank: int) -> tuple[int, list[int]]:
            mine = known[rank]
            portion = mine.portion_left(state) if state.rounds else mine.whole
            steps = totals(portion.total, len(known), batch_size, self.last_batch)[0]
            seed = order_seed(state.seed, state.epoch, rank, state.steps)
            batches = mine.read(portion, seed, steps * batch_size)
            return steps, [i for batch in batches for i in batch.column("id").to_pylist()]

        found = self._of_all_ranks(of_rank, range(len(known)))
        return found[0][0], [ids for _, ids in found]

    @staticmethod
    def _of_all_ranks(call: Any, ranks: Sequence[int]) -> list[Any]:
        with ThreadPoolExecutor(len(ranks)) as threads:
            return list(threads.map(call, ranks))


@pytest.mark.parametrize("shuffle", [None, 40, 1 << 16])
@pytest.mark.parametrize("last_batch", ["pad", "drop"])
def test_every_row_is_used_once_whatever_the_starts(
    tmp_path: Path, last_batch: str, shuffle: int | None
) -> None:
    chance = random.Random(f"{last_batch} {shuffle}")
    for number in range(4):
        rows, copies = chance.choice([1, 100, 311, 311]), chance.choice([1, 1, 3, 200])
        ids = [i // copies for i in range(rows)]
        table = pa.table({"id": ids, "tags": [["t"] * (i % 3) for i in ids]})
        folder = tmp_path / str(number)
        training = Training(folder, table, chance, last_batch, shuffle)
        state = DataState(epoch=3, seed=7, order="")
        used: Counter[int] = Counter()
        may_repeat = may_leave_out = 0
        while state.epoch == 3:
            ranks, batch_size = chance.choice([1, 2, 3, 5]), chance.randint(1, 9)
            known = training.start(ranks, batch_size)
            assert len({each.start for each in known}) == 1
            num_steps, streams = training.streams(known, state, batch_size)
            full = num_steps * batch_size
            if last_batch == "pad":
                assert all(full - batch_size < len(ids) <= full for ids in streams)
                may_repeat += ranks - 1
            else:
                assert all(len(ids) == full for ids in streams)
                may_leave_out = ranks * batch_size - 1
            assert len({len(ids) for ids in streams}) == 1
            steps = min(chance.choice([1, 3, 9, 1000]), num_steps)
            used.update(i for ids in streams for i in ids[: steps * batch_size])
            if steps == num_steps:
                break
            state = state.after(Round(ranks, batch_size, steps, known[0].start))
            state = DataState.from_dict(json.loads(json.dumps(state.to_dict())))
        assert (used - Counter(ids)).total() <= may_repeat
        assert (Counter(ids) - used).total() <= may_leave_out


def test_an_epoch_does_not_go_on_with_other_rows_or_without_the_lists(tmp_path: Path) -> None:
    chance = random.Random(0)
    table = pa.table({"id": range(10)})
    training = Training(tmp_path, table, chance, "pad", None)
    made = Round(2, 2, 1, training.start(2)[0].start)
    state = DataState(0, 0, "").after(made)
    training.table = pa.table({"id": [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8]})
    for known in (training.start(2), training.start(1)):
        with pytest.raises(ConfigError, match=r"other rows .* 2 rows are new, and 1 rows are mis"):
            training.streams(known, state, 2)
    for path in (tmp_path / "rows").glob("*.json"):
        path.unlink()
    training.table = table
    with pytest.raises(ConfigError, match="lists of the rows that were used in it are in none"):
        training.streams(training.start(1), state, 2)
