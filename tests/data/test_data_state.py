"""Reading goes on in the middle of an epoch: every row once, also with other ranks."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import data
from sparkdl.context import Context
from sparkdl.data.data_state import DataState
from sparkdl.data.passes import Passes
from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.shard import Range
from sparkdl.errors import ConfigError


class Counting(ArrowSource):
    """Rows with an id, and with a text if their number of bytes is not known beforehand."""

    def __init__(self, sizes: Sequence[int], has_text: bool) -> None:
        self.name = "rows"
        self.sizes = sizes
        text = [("text", pa.string())] if has_text else []
        self.schema = pa.schema([("id", pa.int64()), *text])
        self.options = {}
        self.num_read = 0
        self._starts = [0, *itertools.accumulate(sizes)]

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for part in ranges:
            for begin in range(part.start, part.stop, 37):
                ids = range(begin, min(begin + 37, part.stop))
                columns = {"id": pa.array([self._starts[part.piece] + i for i in ids], pa.int64())}
                self.num_read += len(ids)
                yield pa.record_batch({**columns, "text": ["x"] * len(ids)}).select(names)

    def ids(self, passes: Passes) -> list[int]:
        """The ids of the rows of the next pass."""
        batches = self.read_pass(passes.next(), self.schema.names)
        return [i for batch in batches for i in batch.column("id").to_pylist()]


def passes_of(
    source: Counting, rank: int, ranks: int, batch_size: int, *order: Any, state: Any = None
) -> Passes:
    me = Context(rank=rank, world_size=ranks, num_readers=ranks, data_seed=5)
    last_batch, window_rows = order
    made = Passes(source.sizes, me, batch_size, last_batch, None, window_rows)
    if state:
        made.go_on(DataState.from_dict(json.loads(json.dumps(state))))
    return made


@pytest.mark.parametrize("window_rows", [None, 16, 300, 1 << 16])
@pytest.mark.parametrize("last_batch", ["pad", "drop"])
def test_any_ranks_after_any_restarts_use_every_row_once(
    last_batch: str, window_rows: int | None
) -> None:
    chance = random.Random(f"{last_batch} {window_rows}")
    for _ in range(8):
        sizes = [chance.choice([1, 0, 3, 50, 77, 200]) for _ in range(chance.randint(1, 9))]
        source = Counting([*sizes, 2], has_text=chance.random() < 0.5)
        used: Counter[int] = Counter()
        state, may_repeat = None, 0
        while state is None or state["epoch"] == 0:
            ranks, batch_size = chance.randint(1, 4), chance.randint(1, 9)
            made = [
                passes_of(source, rank, ranks, batch_size, last_batch, window_rows, state=state)
                for rank in range(ranks)
            ]
            num_steps = made[0].num_steps(0)
            if not num_steps:  # Nothing that `drop` would not leave out.
                break
            streams = [source.ids(each) for each in made]
            full = num_steps * batch_size
            assert all(full - batch_size < len(ids) <= full for ids in streams)
            steps = chance.randint(0, num_steps)
            used.update(i for ids in streams for i in ids[: steps * batch_size])
            may_repeat += ranks - 1 if last_batch == "pad" else 0
            states = [each.state(0, steps).to_dict() for each in made]
            assert states == states[:1] * ranks
            state = states[0]
        assert sum(used.values()) - len(used) <= may_repeat
        assert last_batch == "drop" or len(used) == sum(source.sizes)


@pytest.mark.parametrize("has_text", [False, True])
def test_the_same_ranks_go_on_in_the_same_order(has_text: bool) -> None:
    source = Counting([100] * 40, has_text)
    order = ("pad", 400)
    for rank in range(3):
        whole = source.ids(passes_of(source, rank, 3, 8, *order))
        source.num_read = 0
        state = passes_of(source, rank, 3, 8, *order).state(0, 160).to_dict()
        after = passes_of(source, rank, 3, 8, *order, state=state)
        assert source.ids(after) == whole[1280:]
        # Pieces before the first window, if rows have a fixed length, are not even read.
        assert source.num_read <= (2000 if has_text else 800)
        following = passes_of(source, rank, 3, 8, *order)
        following.begin_at(1)
        assert source.ids(after) == source.ids(following)


def test_a_loader_knows_its_place_and_refuses_that_of_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(10), "long": [[1]] * 10}), tmp_path / "rows.parquet")

    def read(**options: Any) -> Any:
        options = {"batch_size_per_worker": 3, "feature_cols": "x", **options}
        return data.parquet(tmp_path, **options).as_numpy()

    loader = read(steps=3)
    loader.set_epoch(4)
    for _ in zip(range(2), loader, strict=False):
        state = loader.state_dict()
    assert (state["epoch"], [made["steps"] for made in state["rounds"]]) == (4, [2])
    again = read(steps=3)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert [batch.tolist() for batch in again] == [[6, 7, 8]]
    assert again.state_dict()["epoch"] == 5
    assert len(list(again)) == 3
    for options in ({}, {"steps": 3, "shuffle": True}, {"steps": 3, "last_batch": "drop"}):
        with pytest.raises(ConfigError, match="the state is that of other data"):
            read(**options).load_state_dict(state)
    with pytest.raises(ConfigError, match=r"the state of the data is \{'epoch': 4\}"):
        read(steps=3).load_state_dict({"epoch": 4})
    bucketed = {"bucket_by": "long", "feature_cols": "long", "pad": {"long": 0}}
    for options in ({"epochs": 2}, bucketed):
        with pytest.raises(ConfigError, match="these rows have no state"):
            read(**options).state_dict()
    whole = [data.parquet(tmp_path, batch_size_per_worker=4, feature_cols="x")] * 2
    with pytest.raises(ConfigError, match=r"have no state.* Checkpoint without data= and every_st"):
        data.mix(whole).state_dict(0, 1)
