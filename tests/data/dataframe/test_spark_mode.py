"""SPARK mode on three executors: every row once, equal steps, the same training as one process."""

import importlib
import json
from collections import Counter, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import Row, SparkSession

from sparkdl import experiment
from sparkdl.errors import AllTrialsFailedError, ConfigError, TrainingFailedError
from sparkdl.runs import Run
from tests.helpers.runs import quiet
from tests.programs import feeding
from tests.programs.feeding import FEATURES, data_lines, ids, note, notes, skewed

pytestmark = pytest.mark.slow

RANKS = range(3)


@pytest.fixture(scope="module", autouse=True)
def small_batches(three_executors: SparkSession) -> None:
    """Many Arrow batches in each partition, so that their borders are met."""
    three_executors.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "40")


@pytest.mark.acceptance("A5")
def test_every_row_is_used_once_in_each_pass(
    three_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    def train() -> None:
        from sparkdl import data

        pad = data.dataset(batch_size_per_worker=32, feature_cols="id")
        note(tmp_path, "spec", shape=pad.element_spec.shape.as_list())
        for number in range(3):
            note(tmp_path, "pad", ids=ids(pad), number=number)
        drop = data.dataset(global_batch_size=96, feature_cols="id", last_batch="drop", epochs=2)
        note(tmp_path, "drop", ids=ids(drop))
        mixed = data.dataset(batch_size_per_worker=50, feature_cols="id", shuffle=True, epochs=2)
        note(tmp_path, "mixed", ids=ids(mixed))
        note(tmp_path, "mixed", ids=ids(mixed))
        for _ in range(2):  # A dataset made anew for each epoch, as in many a loop.
            again = data.dataset(batch_size_per_worker=32, feature_cols="id")
            note(tmp_path, "again", ids=ids(again))

    options = quiet(root, seed=5, trial_timeout_s=120)
    run = experiment.allreduce(train, num_workers=3, data=skewed(three_executors), **options)
    assert run.state == "COMPLETE"
    every = set(range(1001))

    passes = [[notes(tmp_path, "pad", rank)[number]["ids"] for rank in RANKS] for number in RANKS]
    assert passes[0] == passes[1] == passes[2]
    assert [[len(batch) for batch in rank] for rank in passes[0]] == [[32] * 10 + [14]] * 3
    used = Counter(i for rank in passes[0] for batch in rank for i in batch)
    assert set(used) == every
    assert sorted(used.values())[-2:] == [1, 2], "one row is repeated"

    dropped = [notes(tmp_path, "drop", rank)[0]["ids"] for rank in RANKS]
    assert [[len(batch) for batch in rank] for rank in dropped] == [[32] * 20] * 3
    assert [rank[:10] for rank in dropped] == [rank[10:] for rank in dropped]
    used = Counter(i for rank in dropped for batch in rank[:10] for i in batch)
    assert set(used.values()) == {1}
    assert len(every - set(used)) == 41 < 96

    orders = []
    for rank in RANKS:
        flat = [i for said in notes(tmp_path, "mixed", rank) for b in said["ids"] for i in b]
        assert len(flat) == 4 * 334
        orders.append([flat[334 * n : 334 * (n + 1)] for n in range(4)])
        assert len({tuple(order) for order in orders[-1]}) == 4, "a pass repeats another's order"
        assert len({tuple(sorted(order)) for order in orders[-1]}) == 1
        assert orders[-1][0] != sorted(orders[-1][0])
    assert {i for order in orders for i in order[0]} == every

    for rank in RANKS:
        assert [said["ids"] for said in notes(tmp_path, "again", rank)] == [passes[0][rank]] * 2
        assert notes(tmp_path, "spec", rank) == [{"shape": [None]}]

    said = data_lines(run)
    shared = {"data": "train", "rows": 1001, "batch_size_per_worker": 32, "global_batch_size": 96}
    padded = {**shared, "steps": 11, "padded": 1, "dropped": 0}
    assert said[0] == padded
    assert said[1] == {**shared, "steps": 10, "padded": 0, "dropped": 41}
    assert (said[2]["global_batch_size"], said[2]["steps"]) == (150, 7)
    log = Path(run.trials[0].path, "log-worker-0.txt").read_text()
    assert "train: 1001 rows, 1 repeated; batches of 32 on each of 3 ranks, 96 together" in log
    assert "41 left out" in log
    assert "sparkdl: train" not in Path(run.trials[0].path, "log-worker-1.txt").read_text()
    assert not Path(run.trials[0].path, "ranks").exists()


@pytest.mark.parametrize(
    ("workers", "legacy"),
    [(3, False), pytest.param(2, True, marks=pytest.mark.thorough)],
    ids=["keras3", "tf_keras"],
)
def test_fit_equals_one_process_on_the_same_rows(
    three_executors: SparkSession, root: str, tmp_path: Path, workers: int, legacy: bool
) -> None:
    """The batches that the ranks saw, put together step by step, train one process alike."""
    size, epochs = 32 * workers, 2

    def train() -> None:
        feeding.fit(tmp_path, size, epochs)

    rows = skewed(three_executors)
    given = {"train": rows, "validation": rows.filter("id % 10 < 6 AND id < 1000")}
    env = {"TF_USE_LEGACY_KERAS": "1"} if legacy else {}
    run = experiment.allreduce(train, num_workers=workers, data=given, **quiet(root, env=env))
    said = [notes(tmp_path, "fit", rank)[0] for rank in range(workers)]
    told = {line["data"]: line for line in data_lines(run)}
    assert told["train"]["steps"] == {3: 11, 2: 16}[workers]
    assert [one["steps"] for one in said] == [[told["train"]["steps"]] * epochs] * workers
    assert told["validation"]["rows"] == 600
    assert all(one["keras"].startswith("tf_keras") is legacy for one in said)

    table = {row.id: row for row in rows.collect()}
    keras = importlib.import_module("tf_keras" if legacy else "keras")
    model = feeding.build(keras)
    begin = np.load(tmp_path / "begin-0.npz")
    model.set_weights([begin[name] for name in begin.files])
    seen = [one["seen"] for one in said]
    first = [batch for rank in seen for batch in rank[: told["train"]["steps"]]]
    assert {i for batch in first for i in batch} == set(range(1001))
    assert len({len(rank) for rank in seen}) == 1
    for step in zip(*[rank[: epochs * told["train"]["steps"]] for rank in seen], strict=True):
        assert len({len(batch) for batch in step}) == 1
        chosen = [table[i] for batch in step for i in batch]
        x = np.array([[row[name] for name in FEATURES] for row in chosen], "float32")
        model.train_on_batch(x, np.array([row.y for row in chosen], "float32"))
    for rank in range(workers):
        end = np.load(tmp_path / f"end-{rank}.npz")
        for name, mine in zip(end.files, model.get_weights(), strict=True):
            np.testing.assert_allclose(end[name], mine, rtol=1e-4, atol=1e-6)
    others = [row for row in table.values() if row.id % 10 < 6 and row.id < 1000]
    x = np.array([[row[name] for name in FEATURES] for row in others], "float32")
    loss = model.evaluate(x, np.array([row.y for row in others], "float32"), verbose=0)
    assert said[0]["history"]["val_loss"][-1] == pytest.approx(loss, rel=1e-3)


def all_ids(folder: Path) -> Any:
    def train() -> int:
        from sparkdl import data

        found = ids(data.dataset(batch_size_per_worker=4, feature_cols="id"))
        note(folder, "ids", ids=found)
        return sum(len(batch) for batch in found)

    return train


@pytest.mark.parametrize("rows", [1, pytest.param(2, marks=pytest.mark.thorough), 4])
def test_more_ranks_than_rows(
    three_executors: SparkSession, root: str, tmp_path: Path, rows: int
) -> None:
    df = three_executors.range(100).filter(f"id < {rows}")
    options = quiet(root, trial_timeout_s=60)
    run = experiment.allreduce(all_ids(tmp_path), num_workers=3, data=df, **options)
    assert run.state == "COMPLETE"
    found = [notes(tmp_path, "ids", rank)[0]["ids"] for rank in RANKS]
    each = -(-rows // 3)
    assert [sum(len(batch) for batch in rank) for rank in found] == [each] * 3
    assert {i for rank in found for batch in rank for i in batch} == set(range(rows))
    assert data_lines(run)[0]["padded"] == 3 * each - rows


def test_one_rank_and_no_rows_at_all(
    three_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    """An empty DataFrame is an error on one rank and on all of several: none waits for another."""
    options = quiet(root, trial_timeout_s=60)
    with pytest.raises(TrainingFailedError, match="ConfigError: data 'train' has no rows"):
        empty = three_executors.range(100).filter("id < 0")
        experiment.allreduce(all_ids(tmp_path), num_workers=3, data=empty, **options)
    run = experiment.allreduce(
        all_ids(tmp_path), num_workers=1, data=skewed(three_executors), **options
    )
    assert run.result == 1001
    for nothing in (
        three_executors.range(10).filter("1 = 0"),
        three_executors.range(10).limit(0),
        three_executors.range(0),
    ):
        with pytest.raises(AllTrialsFailedError, match="ConfigError: data 'train' has no rows"):
            experiment.launch(all_ids(tmp_path), data=nothing, **options)


@pytest.mark.parametrize(
    "kind",
    [
        "tuple",
        *(pytest.param(k, marks=pytest.mark.thorough) for k in ("Row", "dict", "namedtuple")),
    ],
)
def test_rdds(three_executors: SparkSession, root: str, tmp_path: Path, kind: str) -> None:
    """Skewed and empty partitions; values are NumPy arrays and numbers."""

    def made(i: int) -> Any:
        row = {"id": np.int64(i), "x": np.array([i, 0.5 * i])}
        kinds = {"Row": lambda: Row(**row), "dict": lambda: row}
        kinds["tuple"] = lambda: (row["id"], row["x"])
        kinds["namedtuple"] = lambda: namedtuple("Point", ["id", "x"])(**row)
        return kinds[kind]()

    def train() -> None:
        from sparkdl import data

        names = ("_1", "_2") if kind == "tuple" else ("id", "x")
        for one, x in data.dataset(batch_size_per_worker=300, feature_cols=names):
            assert x.shape == (len(one), 2)
            assert (x[:, 1].numpy() == one.numpy() * 0.5).all()
            note(tmp_path, "ids", ids=[int(i) for i in one])

    context = three_executors.sparkContext
    sizes = [0, 5, 4000, 0, 1]
    bounds = [range(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]
    rdd = context.parallelize(bounds, len(sizes)).flatMap(lambda part: [made(i) for i in part])
    run = experiment.allreduce(train, num_workers=3, data=rdd, **quiet(root, trial_timeout_s=90))
    found = [[i for said in notes(tmp_path, "ids", rank) for i in said["ids"]] for rank in RANKS]
    assert [len(rank) for rank in found] == [1336] * 3
    assert {i for rank in found for i in rank} == set(range(4006))
    assert data_lines(run)[0]["padded"] == 2


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(1, "a")] * 5 + [("one", "a")], "RDD has no value for column '_1' that fits int64"),
        ([(1, 2)] * 5 + [(1.5, 2)], "RDD has no value for column '_1' that fits int64"),
        ([{"a": 1}] * 5 + [{"b": 1}], "RDD has the columns b; expected a value for each"),
        ([(1, 2)] * 5 + [(1,)], r"RDD has the value \(1,\); expected a value for each"),
        ([(1, 2)] * 5 + [7], "RDD has the value 7; expected a value for each"),
    ],
    ids=["text", "fraction", "key", "short", "number"],
)
def test_an_rdd_of_other_rows_later(
    three_executors: SparkSession, root: str, rows: Any, says: str
) -> None:
    def train() -> int:
        from sparkdl import data

        return sum(1 for _ in data.dataset(batch_size_per_worker=300))

    rdd = three_executors.sparkContext.parallelize(rows, 2)
    with pytest.raises(TrainingFailedError, match=says):
        experiment.allreduce(train, num_workers=2, data=rdd, **quiet(root, trial_timeout_s=60))


def test_rdds_that_are_refused(three_executors: SparkSession, root: str) -> None:
    context = three_executors.sparkContext
    for rows, says in [
        ([], "no row|empty"),
        ([7, 8], "holds int: 7"),
        (["ab"], "holds str"),
        ([(1, None)], "'_2' is None"),
        ([{"a": {"b": 1}}], "'a' is"),
        ([(1, object())], "'_2' is <object"),
        ([()], r"\(\)"),
    ]:
        with pytest.raises(ConfigError, match=says):
            experiment.launch(lambda: 0, data=context.parallelize(rows), **quiet(root))


def test_what_a_training_function_asks_wrongly(
    three_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = [
        {"name": "trian", "batch_size_per_worker": 1},
        {},
        {"batch_size_per_worker": 1, "global_batch_size": 2},
        {"global_batch_size": 3},
        {"global_batch_size": 1},
        {"batch_size": 1},
        {"batch_size_per_worker": 0},
        {"batch_size_per_worker": 1.5},
        {"batch_size_per_worker": 1, "last_batch": "keep"},
        {"batch_size_per_worker": 1, "epoch": 2},
        {"batch_size_per_worker": 1, "cache": False, "epochs": 2},
        {"batch_size_per_worker": 1, "cache": False, "shuffle": True},
        {"batch_size_per_worker": 1, "feature_cols": "it"},
    ]

    def train() -> None:
        from sparkdl import data
        from sparkdl.errors import ConfigError

        for arguments in asked:
            try:
                data.dataset(**arguments)
            except ConfigError as exc:
                note(tmp_path, "errors", text=str(exc))
            else:
                note(tmp_path, "errors", text="no error")

    given = {"train": three_executors.range(5), "validation": three_executors.range(6)}
    experiment.allreduce(train, num_workers=2, data=given, **quiet(root, trial_timeout_s=60))
    says = [
        "no data 'trian'. Did you mean 'train'? The data= of this run has train, validation.",
        "exactly one",
        "exactly one",
        "global_batch_size=3 cannot be shared equally by 2 ranks. Use a multiple of 2, such as 2.",
        "Use a multiple of 2, such as 2.",
        "Pass batch_size_per_worker= or global_batch_size=",
        "batch_size_per_worker is 0",
        "batch_size_per_worker is 1.5",
        "'pad' or 'drop'",
        "Did you mean 'epochs'?",
        "epochs=2",
        "shuffle=True",
        "no column 'it'. Columns are id.",
    ]
    for rank in range(2):
        for said, expected in zip(notes(tmp_path, "errors", rank), says, strict=True):
            assert expected in said["text"]


def test_a_dataset_that_was_not_given(three_executors: SparkSession, root: str) -> None:
    def train() -> None:
        from sparkdl import data

        data.dataset(batch_size_per_worker=1)

    with pytest.raises(TrainingFailedError, match=r"Pass data=df to experiment") as caught:
        experiment.allreduce(train, num_workers=2, **quiet(root))
    assert isinstance(caught.value.__cause__, ConfigError)
    with pytest.raises(ConfigError, match=r"Pass data=df"):
        train()


def test_an_evaluator_stands_outside(
    three_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    """It has no share; its slot takes no rows away from the ranks."""

    def train() -> None:
        from sparkdl import context, data

        if context.role == "evaluator":
            return
        note(tmp_path, "ids", ids=ids(data.dataset(batch_size_per_worker=40)))

    df = three_executors.range(101)
    options = quiet(root, trial_timeout_s=60)
    experiment.allreduce(train, num_workers=2, evaluator=True, data=df, **options)
    found = [notes(tmp_path, "ids", rank)[0]["ids"] for rank in range(2)]
    assert [[len(batch) for batch in rank] for rank in found] == [[40, 11]] * 2
    assert {i for rank in found for batch in rank for i in batch} == set(range(101))


def test_without_a_copy_ranks_even_out_too(
    three_executors: SparkSession, root: str, tmp_path: Path
) -> None:
    def train() -> None:
        from sparkdl import data

        one = data.dataset(batch_size_per_worker=32, feature_cols="id", cache=False)
        note(tmp_path, "ids", ids=ids(one))
        try:
            note(tmp_path, "second", error=f"{ids(one)}")
        except Exception as exc:
            note(tmp_path, "second", error=str(exc))

    options = quiet(root, trial_timeout_s=60)
    experiment.allreduce(train, num_workers=3, data=skewed(three_executors), **options)
    found = [notes(tmp_path, "ids", rank)[0]["ids"] for rank in RANKS]
    assert [[len(batch) for batch in rank] for rank in found] == [[32] * 10 + [14]] * 3
    assert {i for rank in found for batch in rank for i in batch} == set(range(1001))
    for rank in RANKS:
        assert "cache=False allows one pass only" in notes(tmp_path, "second", rank)[0]["error"]


def test_a_root_on_s3(s3: str, three_executors: SparkSession, tmp_path: Path) -> None:
    """The ranks tell each other counts, and give each other rows, through the store."""
    options = quiet(f"{s3}/mode", trial_timeout_s=120)
    run: Run = experiment.allreduce(
        all_ids(tmp_path), num_workers=3, data=skewed(three_executors), **options
    )
    assert run.state == "COMPLETE"
    found = [notes(tmp_path, "ids", rank)[0]["ids"] for rank in RANKS]
    assert [sum(len(batch) for batch in rank) for rank in found] == [334] * 3
    assert {i for rank in found for batch in rank for i in batch} == set(range(1001))
    from sparkdl.files import storage

    folder = run.trials[0].path
    told = json.loads(storage.read(storage.join(folder, "data.jsonl")))
    assert (told["rows"], told["padded"]) == (1001, 1)
    assert "ranks" not in storage.list_names(folder)
