"""Requests and bytes that readers ask of a store, and what they keep on the local disk."""

import functools
import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from sparkdl import context
from sparkdl.context import Context
from sparkdl.data.agreed_pieces import Call, agree
from sparkdl.data.readers import local_copies
from sparkdl.data.readers import tfrecord as records_reader
from sparkdl.data.readers.exact_reads import ExactFile, arrow_filesystem
from sparkdl.data.readers.local_copies import LocalCopies
from sparkdl.data.readers.parquet import ParquetSource
from sparkdl.data.readers.parquet_footers import list_row_groups
from sparkdl.data.readers.record_index import index_records
from sparkdl.data.readers.tfrecord import TFRecordSource, tfrecord
from sparkdl.data.shard import Range
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import chunks, frame
from sparkdl.data.tfexample.marks import MIN_DISTANCE_BYTES
from tests.helpers.counted_store import CountedStore

NUM_GROUPS, NUM_COLUMNS, GROUP_ROWS = 10, 8, 6250
FETCHES = "sparkdl.data.readers.row_group_fetches"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Ten row groups of eight columns of 50 KB: what a file of some hundred MB looks like."""
    random = np.random.default_rng(0)
    columns = {f"c{n}": random.random(NUM_GROUPS * GROUP_ROWS) for n in range(NUM_COLUMNS)}
    path = tmp_path_factory.mktemp("content") / "p"
    pq.write_table(
        pa.table(columns), path, row_group_size=GROUP_ROWS, use_dictionary=False, compression="none"
    )
    return path.read_bytes()


@pytest.fixture
def store(content: bytes) -> type[CountedStore]:
    store = CountedStore.start()
    store.objects["bucket/table/a.parquet"] = content
    return store


def needed_bytes(content: bytes, num_columns: int) -> int:
    """The bytes of some columns, and of the footer."""
    footer = pq.read_metadata(pa.BufferReader(content))
    columns = [
        footer.row_group(group).column(number).total_compressed_size
        for group in range(footer.num_row_groups)
        for number in range(num_columns)
    ]
    return sum(columns) + footer.serialized_size


def read_all(source: ParquetSource, names: list[str]) -> int:
    ranges = [Range(piece, 0, rows) for piece, rows in enumerate(source.sizes)]
    return sum(batch.num_rows for batch in source.read(ranges, names))


@pytest.mark.parametrize("is_large", [False, True], ids=["prefetched", "streamed"])
@pytest.mark.parametrize("num_columns", [2, NUM_COLUMNS])
def test_parquet_reads_the_bytes_that_it_needs(
    store: type[CountedStore],
    content: bytes,
    num_columns: int,
    is_large: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_large:
        monkeypatch.setattr(f"{FETCHES}.MAX_PREFETCH_BYTES", 0)
    source = ParquetSource("counted://bucket/table", None, {})
    store.requests.clear()
    names = [f"c{number}" for number in range(num_columns)]
    assert read_all(source, names) == NUM_GROUPS * GROUP_ROWS
    assert store.num_bytes() <= 1.1 * needed_bytes(content, num_columns)
    # Before the first row group and after the last; row groups that are too large to be held, after
    # each.
    assert store.count("HEAD") <= (1 + NUM_GROUPS if is_large else 2)
    assert store.count("LIST") == 0
    assert store.count("GET") <= 2 + NUM_GROUPS * (num_columns if is_large else 1)


def test_the_head_of_a_row_group_is_read_alone(store: type[CountedStore]) -> None:
    """As for the shapes of columns, which each rank learns from the first row."""
    source = ParquetSource("counted://bucket/table", None, {})
    store.requests.clear()
    (batch,) = source.read([Range(0, 0, 1)], ["c0"])
    assert batch.num_rows == 1
    assert store.num_bytes() <= 64 * 1024 + 128 * 1024


def test_a_listing_asks_for_each_footer_once(store: type[CountedStore], content: bytes) -> None:
    for number in range(20):
        store.objects[f"bucket/many/{number}.parquet"] = content
    list_row_groups("counted://bucket/many", None)
    assert store.count("HEAD") <= 2
    assert store.count("LIST") == 1
    assert store.count("GET") <= 20
    assert store.num_bytes() <= 20 * 64 * 1024


def test_equal_schemas_are_kept_once(store: type[CountedStore], content: bytes) -> None:
    for number in range(50):
        store.objects[f"bucket/many/{number}.parquet"] = content
    pieces = list_row_groups("counted://bucket/many", None)
    assert len(pieces["schemas"]) == 1
    source = ParquetSource("counted://bucket/many", None, {}, pieces)
    assert len({id(file.schema) for file in source._pieces.files}) == 1


def test_other_ranks_ask_for_nothing_before_they_read(
    store: type[CountedStore], tmp_path: Path
) -> None:
    call = Call("data.parquet", {})
    path = "counted://bucket/table"
    ranks = [
        Context(rank=rank, world_size=2, num_readers=2, folder=str(tmp_path)) for rank in (0, 1)
    ]
    agree(call, lambda: list_row_groups(path, None), ranks[0])
    store.requests.clear()
    pieces = agree(call, lambda: list_row_groups(path, None), ranks[1])
    source = ParquetSource(path, None, {}, pieces)
    assert source.sizes == [GROUP_ROWS] * NUM_GROUPS
    assert store.requests == []


def test_files_that_a_folder_excludes_are_not_opened(
    store: type[CountedStore], content: bytes
) -> None:
    for year in (2022, 2023, 2024):
        store.objects[f"bucket/years/year={year}/p"] = content
    source = ParquetSource("counted://bucket/years", [("year", "=", 2024)], {})
    assert source.sizes == [GROUP_ROWS] * NUM_GROUPS
    # The types of columns are those of the first file and, if it has others, of the last.
    assert store.count("GET") <= 3 + NUM_GROUPS


def test_a_changed_object_is_refused(store: type[CountedStore], content: bytes) -> None:
    source = ParquetSource("counted://bucket/table", None, {})
    store.objects["bucket/table/a.parquet"] = content[:-1] + b"2"
    with pytest.raises(ValueError, match=r"a\.parquet has changed since it was listed"):
        read_all(source, ["c0"])


def test_an_object_cut_short_while_it_is_read_is_an_error(store: type[CountedStore]) -> None:
    file = ExactFile(CountedStore(), "bucket/table/a.parquet", 10**9)
    file.seek(-10, os.SEEK_END)
    with pytest.raises(OSError, match=r"a\.parquet is shorter than the 1000000000 bytes expected"):
        file.read()


def test_what_is_read_from_start_to_end_is_read_ahead(
    store: type[CountedStore], content: bytes
) -> None:
    arrow = arrow_filesystem(CountedStore(), {"bucket/table/a.parquet": len(content)})
    with arrow.open_input_stream("bucket/table/a.parquet") as stream:
        found = b"".join(iter(lambda: stream.read(1000), b""))
    assert found == content
    assert store.count("GET") == 1 and store.count("HEAD") == 0


def test_a_filesystem_of_arrow_is_used_as_it_is() -> None:
    from fsspec.implementations.arrow import ArrowFSWrapper

    inner = pyarrow.fs.LocalFileSystem()
    assert arrow_filesystem(ArrowFSWrapper(inner), {}) is inner


def test_row_groups_that_are_read_in_turn_share_the_memory(
    store: type[CountedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ParquetSource("counted://bucket/table", None, {})
    limit = 3 * 50_000
    monkeypatch.setattr(f"{FETCHES}.MAX_PREFETCH_BYTES", limit)
    most = []
    real = ExactFile.prefetch

    def prefetch(self: ExactFile, ranges: Any) -> None:
        most.append(source._fetches.held_bytes)
        real(self, ranges)

    monkeypatch.setattr(ExactFile, "prefetch", prefetch)
    readers = [source.read([Range(n, 0, GROUP_ROWS)], ["c0", "c1"]) for n in range(4)]
    assert sum(next(reader).num_rows for reader in readers) >= 4
    for reader in readers:
        assert sum(batch.num_rows for batch in reader) >= 0
    assert 0 < max(most) <= limit
    assert source._fetches.held_bytes == 0


@pytest.mark.slow
def test_parquet_on_s3_reads_the_bytes_that_it_needs(
    s3: str, content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import s3fs

    from sparkdl.files import storage

    url = f"{s3}/{tmp_path.name}/p"
    storage.write(url, content)
    asked: list[tuple[str, int]] = []
    real = s3fs.S3FileSystem._call_s3

    async def counted(self: Any, method: str, *args: Any, **options: Any) -> Any:
        answer = await real(self, method, *args, **options)
        asked.append((method, int(answer.get("ContentLength", 0))))
        return answer

    source = ParquetSource(url, None, {})
    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    assert read_all(source, ["c0", "c1"]) == NUM_GROUPS * GROUP_ROWS
    num_bytes = sum(size for method, size in asked if method == "get_object")
    assert num_bytes <= 1.1 * needed_bytes(content, 2)
    assert sum(method == "head_object" for method, _ in asked) <= 2


# ---- TFRecord


NUM_RECORDS, RECORD_BYTES = 2000, 2048
RECORDS = "counted://bucket/records/a"


def record_bytes(number: int) -> bytes:
    return encode(
        pa.RecordBatch.from_pydict(
            {"id": [number], "text": [bytes([number % 251]) * RECORD_BYTES]}
        ),
        [Column("id", Kind.INT64, pa.int64()), Column("text", Kind.BYTES, pa.binary())],
    )[0]


@pytest.fixture(scope="module")
def records() -> bytes:
    """A TFRecord file of 4 MB."""
    return frame(map(record_bytes, range(NUM_RECORDS)))


@pytest.fixture
def become(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes this process a rank of four."""
    monkeypatch.setenv(context.VARIABLE, "{}")
    (tmp_path / "trial").mkdir()

    def become(rank: int) -> None:
        mine = {"rank": rank, "world_size": 4, "num_readers": 4, "folder": str(tmp_path / "trial")}
        context.activate(context.Context(run="r", run_path=str(tmp_path), **mine))

    return become


def ids_of(shuffle: bool = False) -> list[int]:
    """The ids that this rank reads, without TensorFlow."""
    rows = tfrecord(
        RECORDS,
        schema={"id": "int64", "text": "string"},
        batch_size_per_worker=10,
        feature_cols=("id", "text"),
        shuffle=shuffle,
    )
    return [int(i) for ids, _ in rows.as_numpy() for i in ids]


@pytest.mark.parametrize("shuffle", [False, True])
def test_ranks_read_their_parts_of_one_file_of_records(
    become: Callable[[int], None], records: bytes, shuffle: bool
) -> None:
    store = CountedStore.start()
    store.objects["bucket/records/a"] = records
    seen = []
    for rank in range(4):
        become(rank)
        store.requests.clear()
        seen += ids_of(shuffle)
        counted = len(records) if rank == 0 else 0
        first_record = 2 * MIN_DISTANCE_BYTES  # It tells the shapes of columns.
        assert store.num_bytes() <= counted + first_record + 1.1 * len(records) / 4
    assert sorted(seen) == list(range(NUM_RECORDS))


def test_another_trial_of_a_run_does_not_count_again(
    become: Callable[[int], None], records: bytes
) -> None:
    store = CountedStore.start()
    store.objects["bucket/records/a"] = records
    become(0)
    arguments = (RECORDS, {"id": "int64"}, "auto")
    index = index_records(*arguments)
    store.requests.clear()
    assert index_records(*arguments) == index and sum(index["rows"]) == NUM_RECORDS
    assert store.count("GET") == 0
    store.objects["bucket/records/a"] = frame(map(record_bytes, range(NUM_RECORDS - 1)))
    assert index_records(*arguments)["rows"] == [NUM_RECORDS - 1]


def test_an_index_that_was_damaged_is_made_again(
    become: Callable[[int], None], records: bytes, tmp_path: Path
) -> None:
    CountedStore.start().objects["bucket/records/a"] = records
    become(0)
    index = index_records(RECORDS, None, "auto")
    (kept,) = (tmp_path / "indexes").iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert index_records(RECORDS, None, "auto") == index
    assert len(kept.read_bytes()) > 100


def test_parts_of_records_are_copied_once(records: bytes) -> None:
    store = CountedStore.start()
    store.objects["bucket/records/a"] = records
    source = TFRecordSource(RECORDS, {"id": "int64"})
    store.requests.clear()

    def read(start: int, stop: int) -> list[bytes]:
        batches = source._read([Range(0, start, stop)], [b""])
        return [value for batch in batches for value in batch.column(0).to_pylist()]

    for start, stop in [(1900, 2000), (0, 1), (500, 600), (550, 700), (400, 1950)]:
        assert read(start, stop) == [record_bytes(number) for number in range(start, stop)]
    assert 1.0 <= store.num_bytes() / (1601 * RECORD_BYTES) <= 1.1
    before = len(store.requests)
    assert len(read(410, 1990)) == 1580
    assert len(store.requests) == before


def test_a_copy_that_is_removed_is_read_to_its_end(
    records: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another copy gets its descriptor, and records of the same length."""
    monkeypatch.setattr(local_copies, "MAX_COPIES", 1)
    store = CountedStore.start()
    for name in "abc":
        store.objects[f"bucket/records/{name}"] = records
    store.objects["bucket/records/b"] = frame(record_bytes(7) for _ in range(NUM_RECORDS))
    source = TFRecordSource([f"counted://bucket/records/{name}" for name in "abc"], {"id": "int64"})
    monkeypatch.setattr(records_reader, "chunks", functools.partial(chunks, num_bytes=1 << 16))
    batches = source._read([Range(0, 0, NUM_RECORDS)], [b""] * 3)
    values = next(batches).column(0).to_pylist()
    source._copies.path(1)
    source._copies.path(2)
    for batch in batches:
        values += batch.column(0).to_pylist()
    assert values == [record_bytes(number) for number in range(NUM_RECORDS)]


# ---- copies on the local disk


Disk = namedtuple("Disk", "total used free")


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalCopies]:
    """Copies of 40 objects of 100 bytes on a disk with so much space."""
    store = CountedStore.start()
    monkeypatch.setenv("LOCAL_DIRS", str(tmp_path))

    def copies(total: int, free: int) -> LocalCopies:
        for number in range(40):
            store.objects[f"bucket/{number}"] = bytes([number]) * 100
        monkeypatch.setattr(local_copies.shutil, "disk_usage", lambda _: Disk(total, 0, free))
        return LocalCopies([f"counted://bucket/{n}" for n in range(40)], [100] * 40, lambda _: None)

    return copies


def opened(copies: LocalCopies, number: int) -> bytes:
    return Path(os.fsdecode(copies.path(np.int64(number)))).read_bytes()


def test_copies_are_on_the_disk_of_spark(copies: Any, tmp_path: Path) -> None:
    some = copies(10**9, 10**8)
    path = os.readlink(some.path(3))
    assert path.startswith(f"{tmp_path}/".encode()) and path.endswith(b"(deleted)")
    assert list(tmp_path.iterdir()) == []
    assert opened(some, 3) == bytes([3]) * 100
    assert CountedStore.count("GET") == 1 and CountedStore.count("HEAD") == 0


@pytest.mark.parametrize(("total", "free"), [(10**9, 4000), (10_000, 1250)])
def test_copies_are_bounded(copies: Any, total: int, free: int) -> None:
    """By half of the space that is free, and by what others need of the disk."""
    some = copies(total, free)
    for number in range(40):
        assert opened(some, number) == bytes([number]) * 100
    kept = sorted(some._copies)
    assert len(kept) <= max(free // 200, local_copies.MIN_COPIES + 1)
    assert kept == list(range(40 - len(kept), 40)), "the oldest go first"
    assert opened(some, 0) == bytes([0]) * 100, "it is copied again"


def test_parts_of_a_file_that_has_changed_do_not_join_a_copy(copies: Any) -> None:
    copies(10**9, 10**8)
    store, change = CountedStore.start(), "bucket/0 has changed"
    store.objects["bucket/0"] = bytes(100)

    def check(_: int) -> None:
        if store.objects["bucket/0"] != bytes(100):
            raise ValueError(change)

    some = LocalCopies(["counted://bucket/0"], [100], check)
    some.path(0, 0, 20)
    store.objects["bucket/0"] = bytes([1]) * 100
    assert Path(os.fsdecode(some.path(0, 0, 20))).read_bytes()[:20] == bytes(20)
    with pytest.raises(ValueError, match=change):
        some.path(0, 40, 60)


def test_ranks_of_a_host_share_the_disk(copies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(context.VARIABLE, "{}")
    context.activate(context.Context(run="r", world_size=2, local_world_size=2))
    some = copies(10_000, 8000)
    for number in range(40):
        opened(some, number)
    assert len(some._copies) == 20, "a half of a half"


def test_copies_do_not_use_up_the_descriptors(copies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copies, "MAX_COPIES", 20)
    some = copies(10**9, 5 * 10**8)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(40):
        opened(some, number)
    assert len(some._copies) == 20
    assert len(os.listdir("/proc/self/fd")) == before + 20


def test_a_full_disk_is_told_with_advice(copies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    some = copies(10**9, 10**8)

    def full(**_: Any) -> Any:
        return Path("/dev/full").open("r+b")

    monkeypatch.setattr(local_copies.tempfile, "TemporaryFile", full)
    with pytest.raises(
        OSError, match=r"no room in .* for a copy of counted://bucket/3.*spark\.loc"
    ):
        some.path(3)
    assert some._copies == {}
