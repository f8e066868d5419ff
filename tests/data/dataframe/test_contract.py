"""The contract of the readers for SPARK mode: the same rows in, the same rows out, on 1 to 4 ranks.

Tasks that hand on rows, channels and agreements are real; all ranks are in this process, and those
that are not looked at agree in the background. tests/data has the same on a cluster.
"""

import contextlib
import dataclasses
import itertools
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl import context, data
from sparkdl.data.dataframe.balancing import RowBalance, _numbers
from sparkdl.data.dataframe.dataset import received_datasets
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.receiver import Receiver
from sparkdl.data.dataframe.row_passes import _row_balance
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.errors import ConfigError
from tests.data.readers.test_contract import COLUMNS, Activate, activate, flat, passes, rows_of
from tests.data.readers.test_decoded_pieces import BATCH, CLASSES, ROWS, TABLE, entropy

__all__ = ["activate"]  # A fixture, used by its name.

pytestmark = pytest.mark.slow

Ranks = Callable[..., list[list[list[list[int]]]]]


def dealt(rows: int, world_size: int) -> list[Any]:
    """Rows as Spark might deal them: unequally, and none to the last rank where it can be."""
    cuts = [rows * rank**2 // max(world_size - 1, 1) ** 2 for rank in range(world_size)] + [rows]
    return [rows_of(*bounds) for bounds in itertools.pairwise(cuts)][::-1]


@pytest.fixture
def of_all_ranks(tmp_path: Path, activate: Activate) -> Iterator[Ranks]:
    """`of_all_ranks(rows, world_size, **batches)`: two passes of each rank."""
    schema = rows_of(0, 0).schema.serialize().to_pybytes()
    assert list(COLUMNS) == rows_of(0, 0).column_names
    runs = itertools.count()
    with contextlib.ExitStack() as stack:

        def channel(table: Any) -> socket.socket:
            feeder = RowSender(Feed({"train": schema}), table.to_batches(max_chunksize=3))
            return stack.enter_context(feeder).process_end

        def of_rank(mine: int, rows: int, world_size: int, seed: int, **options: Any) -> Any:
            folder = tmp_path / str(next(runs))
            (folder / "ranks/0").mkdir(parents=True)
            others = options.pop("others", options["batch_size_per_worker"])
            has_arrays, once = options.pop("has_arrays", False), options.pop("once", False)
            most = options.get("steps") and options["steps"] * options["batch_size_per_worker"]
            for rank, table in enumerate(dealt(rows, world_size)):
                activate(rank, world_size, seed=seed, folder=str(folder), url=str(folder))
                ends = channel(table)
                if rank == mine:
                    me = dataclasses.replace(context.current(), feed=ends.dup().detach())
                elif world_size > 1:
                    other = Receiver(ends).datasets["train"]
                    other.open(True, most)
                    last_batch = options.get("last_batch", "pad")
                    RowBalance(context.current(), other, last_batch, most, others)
            context.activate(me)
            received_datasets.cache_clear()
            made = data.dataset(feature_cols="a", label_cols="id", **options)
            made = made.without_repeats if once else made
            return passes(made.as_numpy() if has_arrays else made, 2)

        def of_all_ranks(rows: int, world_size: int, seed: int = 0, **options: Any) -> Any:
            found = [of_rank(i, rows, world_size, seed, **options) for i in range(world_size)]
            steps = {len(one) for rank in found for one in rank}
            assert len(steps) == 1 or options.get("once"), "unequal steps"
            return found

        yield of_all_ranks
    for cache in (_row_balance, _numbers):  # They hold the rows, and so a descriptor of each file.
        cache.cache_clear()


# One rank, and a number that divides neither the rows nor the partitions.
WORLDS = pytest.mark.parametrize("world_size", [1, 3])


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 23, 40])
@WORLDS
def test_pad_gives_every_row_and_repeats_few(
    of_all_ranks: Ranks, world_size: int, rows: int, shuffle: bool
) -> None:
    ranks = of_all_ranks(rows, world_size, batch_size_per_worker=4, shuffle=shuffle)
    for number in range(2):
        seen = Counter(i for rank in ranks for i in flat(rank[number]))
        assert set(seen) == set(range(rows))
        assert sum(seen.values()) == -(-rows // world_size) * world_size
        sizes = [[len(batch) for batch in rank[number]] for rank in ranks]
        assert sizes == [sizes[0]] * world_size
    if shuffle and rows == 40:
        assert [rank[0] for rank in ranks] != [rank[1] for rank in ranks]
    elif not shuffle:
        assert [rank[0] for rank in ranks] == [rank[1] for rank in ranks]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"has_arrays": True}], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 23, 40])
@WORLDS
def test_rows_without_repeats_are_each_row_once(
    of_all_ranks: Ranks, world_size: int, rows: int, options: dict[str, Any]
) -> None:
    ranks = of_all_ranks(rows, world_size, batch_size_per_worker=4, once=True, **options)
    for number in range(2):
        assert sorted(i for rank in ranks for i in flat(rank[number])) == list(range(rows))


@WORLDS
def test_drop_gives_full_batches_and_no_row_twice(of_all_ranks: Ranks, world_size: int) -> None:
    ranks = of_all_ranks(23, world_size, batch_size_per_worker=4, last_batch="drop")
    for number in range(2):
        seen = Counter(i for rank in ranks for i in flat(rank[number]))
        assert set(seen.values()) == {1}
        assert len(seen) == 23 // world_size // 4 * 4 * world_size
        assert {len(batch) for rank in ranks for batch in rank[number]} == {4}


@WORLDS
def test_steps_are_of_each_pass(of_all_ranks: Ranks, world_size: int) -> None:
    ranks = of_all_ranks(40, world_size, batch_size_per_worker=2, steps=3)
    for rank in ranks:
        assert [[len(batch) for batch in one] for one in rank] == [[2, 2, 2]] * 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrays_are_the_batches_of_the_dataset(of_all_ranks: Ranks, shuffle: bool) -> None:
    options = {"batch_size_per_worker": 4, "shuffle": shuffle}
    arrays = of_all_ranks(23, 2, has_arrays=True, **options)
    assert arrays == of_all_ranks(23, 2, **options)


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_function_computes_columns_of_every_batch(of_all_ranks: Ranks, world_size: int) -> None:
    """The features become those that each batch must have."""
    options: dict[str, Any] = {"batch_size_per_worker": 4, "shuffle": True}

    def in_place(rows: dict[str, Any]) -> dict[str, Any]:
        rows["b"] -= 1
        return {"a": rows["b"] / 2}

    function = data.Map(in_place, columns=["b"])
    expected = of_all_ranks(23, world_size, **options)
    assert of_all_ranks(23, world_size, map=function, **options) == expected


@pytest.mark.parametrize("last_batch", ["pad", "drop"])
@WORLDS
def test_no_rows_at_all_are_refused(of_all_ranks: Ranks, world_size: int, last_batch: str) -> None:
    with pytest.raises(ConfigError, match="data 'train' has no rows: the DataFrame is empty"):
        of_all_ranks(0, world_size, batch_size_per_worker=2, last_batch=last_batch)


@WORLDS
def test_rows_for_less_than_a_batch_of_each_rank_are_no_steps(
    of_all_ranks: Ranks, world_size: int
) -> None:
    ranks = of_all_ranks(
        world_size - 1 or 1, world_size, batch_size_per_worker=2, last_batch="drop"
    )
    assert ranks == [[[], []]] * world_size


def test_ranks_with_batches_of_different_sizes_are_refused(of_all_ranks: Ranks) -> None:
    """The ranks would take unequal numbers of steps, and wait for each other forever."""
    with pytest.raises(
        RuntimeError,
        match=r"batch_size_per_worker=4 on rank 0 and for .*worker=8 on rank 1\. Every",
    ):
        of_all_ranks(40, 2, batch_size_per_worker=4, others=8)


def test_sorted_rows_are_as_mixed_as_in_a_true_shuffle(activate: Activate) -> None:
    activate(0, 1)
    schema = TABLE.schema.serialize().to_pybytes()
    batches = TABLE.to_batches(max_chunksize=10_000)  # As Spark sends them.
    with RowSender(Feed({"train": schema}), batches) as sender:
        context.activate(
            dataclasses.replace(context.current(), feed=sender.process_end.dup().detach())
        )
        received_datasets.cache_clear()
        columns = {"feature_cols": "id", "label_cols": "label"}
        mixed = data.dataset(batch_size_per_worker=BATCH, shuffle=5_000, **columns)
        found = list(mixed.as_numpy_iterator())
    ids = np.concatenate([batch for batch, _ in found])
    assert sorted(ids.tolist()) == list(range(ROWS))
    assert np.mean([entropy(labels) for _, labels in found]) >= 0.95 * np.log(CLASSES)
