"""Rows of a gang whose ranks change: those that are present divide each pass."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import context, data, distribute
from sparkdl.context import Context
from sparkdl.data.batching import Batches, passes
from sparkdl.data.passes import Passes
from sparkdl.errors import ConfigError

SIZES = (5, 0, 12, 3, 7)


def be(rank: int, present: Sequence[int], **more: Any) -> Context:
    """Let this process be a rank of a gang of up to eight."""
    me = {"rank": rank, "world_size": 8, "num_readers": 8, "data_seed": 3, "grows": True, **more}
    context.activate(Context(is_elastic=True, **me))
    context.elect(present[0], present)
    return context.current()


@pytest.fixture(autouse=True)
def outside_again() -> Iterator[None]:
    yield
    context.activate(Context())


def rows_of(one: Passes, repeats: bool = True) -> list[tuple[int, int]]:
    ranges = [each for lane in one.next(repeats).lanes for each in lane.ranges]
    return [(each.piece, row) for each in ranges for row in range(each.start, each.stop)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_pass_is_divided_among_the_ranks_that_are_present(shuffle: bool) -> None:
    batches = Batches.parse({"batch_size_per_worker": 2, "shuffle": shuffle})
    whole = {(piece, row): 1 for piece, size in enumerate(SIZES) for row in range(size)}
    # Rank 4 comes later, and begins with its first pass where rank 0 has its second one.
    readers = {0: passes(SIZES, batches, be(0, [0]))}
    for present in ([0], [0, 4], [0, 1, 4, 7], [0, 7]):
        read: Counter[tuple[int, int]] = Counter()
        for rank in present:
            me = be(rank, present)
            readers.setdefault(rank, passes(SIZES, batches, me))
            read.update(rows_of(readers[rank], repeats=False))
        assert read == whole


def test_ranks_make_equally_many_steps_whoever_is_present() -> None:
    batches = Batches.parse({"batch_size_per_worker": 2})
    for present in ([2], [0, 3, 5], [0, 1, 2, 3, 4, 5, 6, 7]):
        counts = {len(rows_of(passes(SIZES, batches, be(rank, present)))) for rank in present}
        assert counts == {-(-sum(SIZES) // len(present))}


@pytest.fixture
def file(tmp_path: Path) -> str:
    pq.write_table(pa.table({"x": [float(i) for i in range(12)]}), tmp_path / "x.parquet")
    return str(tmp_path / "x.parquet")


def test_length_is_unknown_and_each_iteration_follows_the_ranks(file: str, tmp_path: Path) -> None:
    be(0, [0], url=str(tmp_path), folder=str(tmp_path))
    rows = data.parquet(file, batch_size_per_worker=3)
    loader = rows.as_numpy()
    with pytest.raises(TypeError, match="the number of workers changes"):
        len(loader)
    assert len(list(loader)) == 4
    context.elect(0, [0, 6])
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
    assert (tmp_path / "data.jsonl").read_text().count("global_batch_size") == 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"global_batch_size": 8}, "global_batch_size=8 cannot be shared by the workers of a job"),
        ({"batch_size_per_worker": 2, "epochs": 3}, "epochs=3 was passed in a job whose number"),
    ],
)
def test_batches_that_depend_on_the_number_of_ranks_are_refused(
    file: str, tmp_path: Path, options: dict[str, Any], match: str
) -> None:
    be(0, [0], url=str(tmp_path), folder=str(tmp_path))
    with pytest.raises(ConfigError, match=match):
        data.parquet(file, **options)


def test_epochs_that_would_have_no_step_with_all_ranks_are_refused(
    file: str, tmp_path: Path
) -> None:
    be(0, [0], url=str(tmp_path), folder=str(tmp_path))
    options: dict[str, Any] = {"batch_size_per_worker": 2, "last_batch": "drop"}
    with pytest.raises(ConfigError, match="12 rows, which are no batch of 2 for each of 8 workers"):
        data.parquet(file, **options)
    data.parquet(file, **{**options, "last_batch": "pad"})
    data.parquet(file, **{**options, "batch_size_per_worker": 1})


def test_mixture_is_refused(file: str, tmp_path: Path) -> None:
    be(0, [0], url=str(tmp_path), folder=str(tmp_path))
    rows = data.parquet(file, batch_size_per_worker=2)
    with pytest.raises(ConfigError, match=r"data\.mix was called in a job whose number"):
        data.mix([rows, rows])


def test_learning_rate_is_not_scaled_to_ranks_that_may_not_be_there() -> None:
    be(0, [0, 1])
    with pytest.raises(ValueError, match="which changes in this run"):
        distribute.scale_learning_rate(0.1)
    assert distribute.scale_learning_rate(0.1, 2) == 0.2
