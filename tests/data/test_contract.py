"""The contract of all readers on all kinds of gangs: every row once per epoch, equal steps.

The contexts are those of real plans, made by the code of the tasks; only processes are missing.
"""

import contextlib
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import experiment
from sparkdl.cluster.gang.placement import Placement
from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.gang.task import RankTask
from sparkdl.cluster.gang.task import _context as context_of_rank
from sparkdl.cluster.plan import Member, Plan, Role
from sparkdl.cluster.process.server_connection import Start
from sparkdl.cluster.topology import ElasticTopology, SingleTopology
from sparkdl.cluster.trial_spec import RunRef, TrialSpec
from sparkdl.cluster.trial_task import TrialTask
from sparkdl.context import Context
from sparkdl.data.agreed_pieces import Call, Pieces, agree
from sparkdl.data.batching import Batches, passes, whole_share
from sparkdl.data.dataframe.balancing import RowBalance, SingleRank
from sparkdl.data.dataframe.receiver import Receiver
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.data.pace import Pace
from sparkdl.data.readers.csv_format import CsvFormat
from sparkdl.data.readers.delimited import DelimitedSource, list_files
from sparkdl.data.readers.images import list_classes
from sparkdl.data.readers.parquet import ParquetSource
from sparkdl.data.readers.parquet_footers import list_row_groups
from sparkdl.data.readers.petastorm import reader as petastorm_reader
from sparkdl.data.readers.record_index import index_records
from sparkdl.data.shard import Range
from sparkdl.data.tfexample.columns import Column, Kind
from sparkdl.data.tfexample.encode import encode
from sparkdl.data.tfexample.framing import frame
from sparkdl.experiment import distributed, trials
from sparkdl.options import Options
from sparkdl.runner.pipeline.prepare import make_plan
from sparkdl.runner.request import Request
from sparkdl.tfos.cluster.topology import independent_request, places_of, request_of
from tests.data.dataframe.test_channel import FEED, batches, one_pass, within

NUM_ROWS = 103
ROWS_OF_FILES = (0, 17, 1, 40, 0, 33, 12)

# ---- contexts, made as on a cluster


def train() -> None:
    """The function of the user."""


def train_with(x: int) -> int:
    """The function of the user, in a search."""
    return x


def node(_args: Any, _ctx: Any) -> None:
    """The function of a node of TensorFlowOnSpark."""


def nodes(number: int, detached: bool, **places: Any) -> Request:
    some = places_of(
        number, places.get("num_ps", 0), places.get("master"), places.get("eval", False)
    )
    return request_of(node, node, {}, some, None, detached, driver_ps=False)


Make = Callable[[int], Request]
# Each makes a request in which so many processes divide the rows, or none of several does.
KINDS: dict[str, Make] = {
    "allreduce": lambda n: experiment.allreduce(train, num_workers=n),
    "with evaluator": lambda n: experiment.allreduce(train, num_workers=n, evaluator=True),
    "elastic": lambda n: experiment.allreduce(train, num_workers=n, elastic=True),
    "horovod": lambda n: experiment.horovod(train, num_workers=n),
    "elastic horovod": lambda n: experiment.horovod(train, num_workers=n, elastic=True),
    "parameter_server, all": lambda n: experiment.parameter_server(
        train, num_workers=n - 1, num_ps=2, roles="all", evaluator=True
    ),
    "search": lambda n: experiment.search(
        train_with, {"x": [1, 2]}, num_trials=1, direction="max", workers_per_trial=n
    ),
    "tfos, TENSORFLOW": lambda n: nodes(n, detached=False),
    "tfos, SPARK": lambda n: nodes(n, detached=True),
    "tfos, all roles": lambda n: nodes(n + 2, detached=False, num_ps=1, master="chief", eval=True),
}
ALONE: dict[str, Make] = {
    "launch": lambda _: experiment.launch(train),
    "mirrored": lambda _: experiment.mirrored(train, num_gpus=1),
    "parameter_server": lambda n: experiment.parameter_server(train, num_workers=n, num_ps=1),
    "TFParallel": lambda n: independent_request(train, Options.parse({}), n),
}


@pytest.fixture(autouse=True)
def only_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs return their request, and no rank waits for others."""
    monkeypatch.setattr(Pace, "first_s", lambda _: 0.0)
    for module in (distributed, trials):
        monkeypatch.setattr(module, "execute", lambda request, *_: request)


def plan_of(request: Request) -> Plan:
    cluster: Any = SimpleNamespace(conf=lambda _: None)
    return make_plan(request, SimpleNamespace(imports=frozenset()), cluster)  # type: ignore[arg-type]


def contexts_of(request: Request, folder: Path) -> list[tuple[Member, Context]]:
    """The contexts of the processes that run a function of the user."""
    plan = plan_of(request)
    task = TrialTask(
        plan=plan,
        program=None,  # type: ignore[arg-type]
        run=RunRef(id="r", path=str(folder), application="a", versions={}),
        trial=TrialSpec(number=0, params={}, seed=7),
        start=Start(application="a"),
        cores=1,
    )
    peers = [Peer("127.0.0.1", 0, "host", "node") for _ in plan.members]
    found = []
    for member in plan.members:
        if member.role.runs_server:
            continue
        me = task._context(folder)
        if not isinstance(request.topology, SingleTopology):
            placement = Placement(member=member, attempt=0, peers=peers, paths=task.paths)
            seat: Mapping[str, Any] = {"is_elastic": True}  # Elastic seats need a driver.
            if not isinstance(request.topology, ElasticTopology):
                wrapped = request.topology.task(task)
                assert isinstance(wrapped, RankTask)
                seat = wrapped.policy.seat(task, placement, folder).me
            named = {"task": task, "placement": placement, "folder": folder}
            taken = inspect.signature(context_of_rank).parameters
            mine = context_of_rank(**{name: named[name] for name in taken})
            me = {**me, **mine, **seat}
        found.append((member, Context(**me)))
    return found


# ---- rows, in the files of each reader


@dataclass(frozen=True)
class Reader:
    """A reader of files that hold the rows 0, 1, 2, ... in the order of their pieces.

    Attributes:
        pieces: lists the pieces.
        sizes: the number of rows of each piece.
        read: reads ranges, where it takes no framework.
    """

    pieces: Callable[[], Pieces]
    sizes: Callable[[Pieces], Sequence[int]]
    read: Callable[[Pieces, Sequence[Range]], list[int]] | None = None


def files_of(rows: int = NUM_ROWS) -> Iterator[tuple[int, pa.Table]]:
    starts = itertools.accumulate(ROWS_OF_FILES, initial=0)
    for number, (start, size) in enumerate(zip(starts, ROWS_OF_FILES, strict=False)):
        yield number, pa.table({"id": pa.array(range(start, start + size), pa.int64())})


def ids_of(found: Any) -> list[int]:
    return [i for batch in found for i in batch["id"].to_pylist()]


def of_parquet(folder: Path) -> Reader:
    for number, table in files_of():
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=9)
    return Reader(
        lambda: list_row_groups(folder, None),
        lambda pieces: ParquetSource(folder, None, {}, pieces).sizes,
        lambda pieces, ranges: ids_of(ParquetSource(folder, None, {}, pieces).read(ranges, ["id"])),
    )


def of_filtered_parquet(folder: Path) -> Reader:
    """Half of the rows, and one of two folders, are not wanted."""
    condition = [("id", ">=", 0), ("day", "=", 1)]
    for number, table in files_of():
        ids = np.array(table["id"])
        mixed = pa.table({"id": np.stack([ids, -1 - ids]).T.ravel()})
        for day in (1, 2):
            path = folder / f"day={day}"
            path.mkdir(exist_ok=True)
            pq.write_table(mixed, path / f"{number}.parquet", row_group_size=9)

    def source(pieces: Pieces) -> ParquetSource:
        return ParquetSource(folder, condition, {}, pieces)

    return Reader(
        lambda: list_row_groups(folder, condition),
        lambda pieces: source(pieces).sizes,
        lambda pieces, ranges: ids_of(source(pieces).read(ranges, ["id"])),
    )


def of_csv(folder: Path) -> Reader:
    for number, table in files_of():
        lines = ["id", *map(str, table["id"].to_pylist())]
        (folder / f"{number}.csv").write_text("\n".join(lines) + "\n")

    def csv_format() -> Any:
        return CsvFormat({"id": pa.int64()})

    return Reader(
        lambda: list_files(folder, csv_format()),
        lambda pieces: pieces["rows"],
        lambda pieces, ranges: ids_of(
            DelimitedSource(folder, csv_format(), {}, pieces).read(ranges, ["id"])
        ),
    )


def of_tfrecord(folder: Path) -> Reader:
    columns = [Column("id", Kind.INT64, pa.int64())]
    for number, table in files_of():
        data = b"".join(frame(encode(batch, columns)) for batch in table.to_batches())
        (folder / f"{number}.tfrecord").write_bytes(data)
    return Reader(lambda: index_records(folder, {"id": "int64"}, "auto"), lambda p: p["rows"])


def of_images(folder: Path) -> Reader:
    for number in range(NUM_ROWS):
        path = folder / ("cat" if number < 50 else "dog")
        path.mkdir(exist_ok=True)
        (path / f"{number:03}.png").touch()
    return Reader(lambda: list_classes(folder), lambda pieces: [1] * len(pieces["labels"]))


def of_petastorm(folder: Path) -> Reader:
    of_parquet(folder)
    return Reader(
        lambda: petastorm_reader.list_row_groups(str(folder)),
        lambda pieces: [group["rows"] for group in pieces["groups"]],
    )


READERS: dict[str, Callable[[Path], Reader]] = {
    "parquet": of_parquet,
    "filtered": of_filtered_parquet,
    "csv": of_csv,
    "tfrecord": of_tfrecord,
    "images": of_images,
    "petastorm": of_petastorm,
}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reader]:
    made: dict[str, Reader] = {}

    def reader(name: str) -> Reader:
        if name not in made:
            made[name] = READERS[name](tmp_path_factory.mktemp(name))
        return made[name]

    return reader


# ---- the contract


class OnlyFirst:
    """Lists pieces, and counts how often."""

    def __init__(self, reader: Reader) -> None:
        self.count = 0
        self._reader = reader

    def __call__(self) -> Pieces:
        self.count += 1
        return self._reader.pieces()


def two_passes(
    reader: Reader, lists: OnlyFirst, me: Context, batches: Batches
) -> tuple[list[list[int]], int]:
    """The rows of two passes of one rank, and its steps."""
    pieces = agree(Call("data.x", batches.division), lists, me)
    sizes = reader.sizes(pieces)
    starts = [0, *itertools.accumulate(sizes)]
    next_pass = passes(sizes, batches, me).next
    found = []
    for _ in range(2):
        ranges = next_pass().ranges
        ids = [starts[r.piece] + i for r in ranges for i in range(r.start, r.stop)]
        assert reader.read is None or reader.read(pieces, ranges) == ids
        found.append(ids)
    return found, whole_share(sizes, batches, me).steps


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_every_row_once_per_epoch_and_equal_steps(
    readers: Any, tmp_path: Path, name: str, kind: str, number: int, shuffle: bool
) -> None:
    batches = Batches.parse({"batch_size_per_worker": 5, "shuffle": shuffle})
    reader = readers(name)
    lists = OnlyFirst(reader)
    divided, steps = [], set()
    for member, me in contexts_of(KINDS[kind](number) if number > 1 else alone(kind), tmp_path):
        found, num_steps = two_passes(reader, lists, me, batches)
        if member.role.trains:
            divided.append(found)
            steps.add(num_steps)
        else:  # Evaluators and parameter servers.
            assert [sorted(ids) for ids in found] == [list(range(NUM_ROWS))] * 2
            lists.count -= 1
    assert lists.count == 1, "only the first rank lists the files"
    assert len(steps) == 1
    for epoch in range(2):
        seen = Counter(i for found in divided for i in found[epoch])
        assert set(seen) == set(range(NUM_ROWS))
        assert sum(seen.values()) == -(-NUM_ROWS // len(divided)) * len(divided)
    if shuffle and len(reader.sizes(reader.pieces())) > 4 * number:
        assert divided[0][0] != divided[0][1]


def alone(kind: str) -> Request:
    """A gang in which a single process divides the rows."""
    if kind == "parameter_server, all":
        return experiment.parameter_server(train, num_workers=1, num_ps=1)  # type: ignore[return-value]
    return KINDS[kind](1)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("kind", ALONE)
def test_a_process_for_itself_reads_every_row(
    readers: Any, tmp_path: Path, kind: str, number: int, shuffle: bool
) -> None:
    batches = Batches.parse({"global_batch_size": 7, "shuffle": shuffle})
    contexts = contexts_of(ALONE[kind](number), tmp_path)
    assert len(contexts) == (number if kind == "TFParallel" else 1)
    for _, me in contexts:
        reader = readers("parquet")
        found, steps = two_passes(reader, OnlyFirst(reader), me, batches)
        assert [sorted(ids) for ids in found] == [list(range(NUM_ROWS))] * 2
        assert steps == -(-NUM_ROWS // 7)


@pytest.mark.parametrize("shuffle", [False, True])
def test_200_ranks(readers: Any, tmp_path: Path, shuffle: bool) -> None:
    """More ranks than row groups, and than rows."""
    batches = Batches.parse({"global_batch_size": 200, "shuffle": shuffle})
    reader = readers("parquet")
    lists = OnlyFirst(reader)
    found = [
        two_passes(reader, lists, me, batches)
        for _, me in contexts_of(KINDS["tfos, TENSORFLOW"](200), tmp_path)
    ]
    assert lists.count == 1
    assert {steps for _, steps in found} == {1}
    for epoch in range(2):
        rows = [ids[epoch] for ids, _ in found]
        assert {len(ids) for ids in rows} == {1}
        assert {i for ids in rows for i in ids} == set(range(NUM_ROWS))


def test_nodes_with_seeds_of_their_own_divide_by_one_seed(tmp_path: Path) -> None:
    contexts = [me for _, me in contexts_of(KINDS["tfos, TENSORFLOW"](4), tmp_path)]
    assert len({me.seed for me in contexts}) == 4
    assert {me.data_seed for me in contexts} == {7}


def test_roles_that_divide_rows_come_first() -> None:
    """The ranks below `num_readers` divide the rows."""
    roles = Role(name="ps", count=1, trains=False), Role(name="worker", count=2)
    with pytest.raises(ValueError, match="the roles that train must come first; got 1 ps, 2 work"):
        Plan(kind="x", roles=roles)
    assert Plan(kind="x", roles=roles[::-1]).readers == (0, 1)


# ---- rows of a DataFrame


SPARK_MODE = {"allreduce": 4, "with evaluator": 3, "horovod": 2, "search": 2}


@pytest.mark.parametrize("last_batch", ["pad", "drop"])
@pytest.mark.parametrize(("kind", "number"), [*SPARK_MODE.items(), ("mirrored", 1)])
def test_rows_of_a_dataframe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, number: int, last_batch: str
) -> None:
    """Spark deals them unequally; tasks and channels are real."""
    monkeypatch.setenv("LOCAL_DIRS", str(tmp_path))
    request = {**KINDS, **ALONE}[kind](number)
    plan = plan_of(request)
    contexts = [me for m, me in contexts_of(request, tmp_path) if m.rank in plan.readers]
    assert len(contexts) == number
    bounds = [40 * rank * rank // number**2 for rank in range(number + 1)]
    with contextlib.ExitStack() as stack:

        def reads(me: Context) -> Callable[[], list[int]]:
            start, stop = bounds[me.rank], bounds[me.rank + 1]
            sender = stack.enter_context(RowSender(FEED, batches(stop - start, start=start)))
            buffer = Receiver(sender.process_end).datasets["train"]
            buffer.open(True, None)
            balance: Any = SingleRank(buffer, None)
            if me.num_readers > 1:
                balance = RowBalance(me, buffer, last_batch, None, 4)
            return lambda: one_pass(buffer, balance)

        found = within(20, *map(reads, contexts))
    assert len({len(ids) for ids in found}) == 1, "unequal steps"
    seen = Counter(i for ids in found for i in ids)
    if last_batch == "pad":
        assert set(seen) == set(range(40))
        assert sum(seen.values()) == -(-40 // number) * number
    else:
        assert set(seen.values()) == {1}
        assert len(seen) == 40 // number * number
