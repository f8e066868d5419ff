"""Stream rows from Spark at the speed of the consumer, with constant memory."""

import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkdl import experiment
from sparkdl.errors import AllTrialsFailedError, ConfigError
from tests.helpers.runs import quiet
from tests.programs.feeding import data_lines, ids, note, notes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def small_batches(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")


def wide(spark: SparkSession, rows: int, kib: int = 4, partitions: int = 2) -> DataFrame:
    """Return rows `id, filling`, of `kib` KiB each, which are generated while they are read."""
    return spark.range(0, rows, 1, partitions).selectExpr(
        "id", f"cast(repeat('0123456789abcdef', {64 * kib}) as binary) filling"
    )


def counting(df: DataFrame, counter: Path) -> DataFrame:
    """The same, with a file that has a byte for each batch of 100 rows that Spark read."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with counter.open("ab") as out:
                out.write(b".")
            yield batch

    return df.mapInArrow(count, df.schema)


def spooled_mib(folder: Path) -> int:
    """Return the MiB of unnamed files in a folder that this process has mapped."""
    files = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, device, inode, *name = line.split(maxsplit=5)
        if name and name[0].startswith(str(folder)):
            assert name[0].endswith(" (deleted)")
            begin, end = (int(one, 16) for one in span.split("-"))
            files[device, inode] = end - begin
    return sum(files.values()) >> 20


def rows_in(dataset: Any) -> int:
    return sum(len(batch) for batch in ids(dataset))


def one_batch() -> int:
    from sparkdl import data

    for one in data.dataset(batch_size_per_worker=10, feature_cols="id"):
        return len(one)
    return 0


def two_steps() -> int:
    from sparkdl import data

    rows = data.dataset(batch_size_per_worker=10, feature_cols="id", steps=2, epochs=3)
    return sum(len(one) for one in rows)


def keras_stops() -> int:
    import keras
    import tensorflow as tf

    from sparkdl import data

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 4:
                self.model.stop_training = True

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = data.dataset(batch_size_per_worker=10, feature_cols="id")

    def pair(one: Any) -> Any:
        x = tf.cast(one[:, None], tf.float32) / 1e6
        return x, x

    done = model.fit(rows.map(pair), epochs=9, verbose=0, callbacks=[Stop()])
    return len(done.epoch)


@pytest.mark.parametrize(
    ("train", "returns"), [(one_batch, 10), (two_steps, 60)], ids=["returns", "steps"]
)
def test_a_consumer_that_stops_early_makes_spark_stop(
    spark: SparkSession, root: str, tmp_path: Path, train: Any, returns: int
) -> None:
    rows = counting(wide(spark, 8_000_000), tmp_path / "counter")
    run = experiment.launch(train, data=rows, **quiet(root))
    assert run.trials[0].outputs == {"value": returns}
    # TensorFlow needs a second or two for the first batch, while Spark goes on.
    assert (tmp_path / "counter").stat().st_size < 40_000, "of 80 000 batches"


def test_keras_that_stops_training_ends_with_its_epoch(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """Keras looks at `stop_training` between epochs; the second pass is never read."""
    rows = counting(wide(spark, 2000), tmp_path / "counter")
    run = experiment.launch(keras_stops, data=rows, **quiet(root))
    assert run.trials[0].outputs == {"value": 1}
    assert (tmp_path / "counter").stat().st_size == 20


def test_an_early_stop_does_not_wait_for_the_rest_of_a_slow_dataframe(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """A few batches come at once, then each takes long: the run ends when its function has."""
    counter = tmp_path / "counter"

    def slow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            with counter.open("ab") as out:
                out.write(b".")
            yield batch
            if number > 10:
                time.sleep(3.0)

    df = wide(spark, 3000, partitions=1)
    began = time.monotonic()
    run = experiment.launch(one_batch, data=df.mapInArrow(slow, df.schema), **quiet(root))
    assert run.state == "COMPLETE"
    assert time.monotonic() - began < 25
    assert counter.stat().st_size < 20


def test_a_slow_consumer_only_slows_spark_down(
    spark: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a copy, what waits is bounded: the count upstream stands still; no timeout (A6).

    Batches are of 1.6 MB, 640 MB in all; 256 MiB may wait.
    """
    monkeypatch.setenv("SPARKDL_START_TIMEOUT_S", "2")
    monkeypatch.setitem(spark.sparkContext.environment, "LOCAL_DIRS", str(tmp_path))
    counter = tmp_path / "counter"

    def train() -> int:
        from sparkdl import data

        rows = iter(data.dataset(batch_size_per_worker=100, cache=False))
        total, most = int(next(rows)["id"].shape[0]), 0
        before, deadline = -1, time.monotonic() + 60
        while counter.stat().st_size != before and time.monotonic() < deadline:
            before = counter.stat().st_size
            time.sleep(3.0)
        note(tmp_path, "stood", batches=before)
        for number, one in enumerate(rows):
            total += int(one["id"].shape[0])
            most = max(most, spooled_mib(tmp_path)) if number % 10 == 0 else most
        note(tmp_path, "disk", mib=most)
        return total

    rows = counting(wide(spark, 40_000, kib=16, partitions=1), counter)
    run = experiment.launch(train, data=rows, **quiet(root, trial_timeout_s=200))
    assert run.best.outputs == {"value": 40_000}
    # 160 batches are 256 MiB; TensorFlow and Spark hold some more.
    assert 100 < notes(tmp_path, "stood")[0]["batches"] < 220
    assert counter.stat().st_size == 400
    assert 0 < notes(tmp_path, "disk")[0]["mib"] < 450, "of 640"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tmp")] == []


def test_without_a_copy_there_is_no_other_dataset(spark: SparkSession, root: str) -> None:
    """Rows of both come over one channel: those of one would keep those of the other waiting."""

    def train() -> None:
        from sparkdl import data

        data.dataset("train", batch_size_per_worker=100, cache=False)

    given = {"train": wide(spark, 500), "validation": wide(spark, 50)}
    with pytest.raises(AllTrialsFailedError, match="a single DataFrame"):
        experiment.launch(train, data=given, **quiet(root, trial_timeout_s=40))


def test_keras_without_a_copy(spark: SparkSession, root: str) -> None:
    """A model that is built by its first batch looks at one before the pass begins."""

    def train() -> int:
        import keras
        import tensorflow as tf

        from sparkdl import data

        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        rows = data.dataset(batch_size_per_worker=100, feature_cols="id", cache=False)

        def pair(one: Any) -> Any:
            x = tf.cast(one[:, None], tf.float32) / 1e6
            return x, x

        steps = []
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: steps.append(1))
        model.fit(rows.map(pair), verbose=0, callbacks=[count])
        return len(steps)

    run = experiment.launch(train, data=wide(spark, 5000), **quiet(root, trial_timeout_s=60))
    assert run.best.outputs == {"value": 50}


def test_memory_is_flat_over_20_epochs_and_nothing_stays(
    spark: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()

    def train() -> int:
        import tensorflow as tf

        from sparkdl import data

        def resident() -> int:
            lines = Path("/proc/self/status").read_text().splitlines()
            return int(next(x for x in lines if x.startswith("VmRSS:")).split()[1]) >> 10

        rows = data.dataset(batch_size_per_worker=1000, decode={"filling": "uint8"})
        for epoch in range(20):
            total = 0
            for one in rows:
                total += int(tf.reduce_sum(tf.cast(one["filling"][:, 0], tf.int32))) // ord("0")
            named = [str(path) for path in disk.rglob("*") if path.is_file()]
            spooled = spooled_mib(disk)
            said = {"rss": resident(), "rows": total, "disk": spooled, "named": named}
            note(tmp_path, "epoch", epoch=epoch, **said)
        return 0

    monkeypatch.setitem(spark.sparkContext.environment, "LOCAL_DIRS", str(disk))
    experiment.launch(train, data=wide(spark, 30_000), **quiet(root))
    said = notes(tmp_path, "epoch")
    assert [one["rows"] for one in said] == [30_000] * 20
    assert said[19]["rss"] - said[1]["rss"] < 40, said
    assert all(64 * 2 <= one["disk"] <= 64 * 3 for one in said), said
    assert all(one["named"] == [] for one in said), said
    assert list(disk.iterdir()) == []


def test_several_trials_at_once_get_all_rows_each(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    def train(part: int) -> int:
        from sparkdl import data

        rows = data.dataset(batch_size_per_worker=64, feature_cols="id", shuffle=part == 2)
        found = [i for batch in ids(rows) for i in batch]
        Path(tmp_path, f"trial-{part}").write_text(" ".join(map(str, sorted(found))))
        return len(found)

    df = spark.range(0, 3000, 1, 5)
    run = experiment.launch(train, {"part": [0, 1, 2, 3]}, data=df, **quiet(root))
    assert [trial.outputs for trial in run.trials] == [{"value": 3000}] * 4
    for part in range(4):
        text = Path(tmp_path, f"trial-{part}").read_text()
        assert text == " ".join(map(str, range(3000)))
    assert data_lines(run)[0]["steps"] == 47


def test_several_trials_compute_the_rows_once(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """Random rows are the same in all trials. Spark's copy goes with the run, a user's stays."""

    def train(part: int) -> float:
        from sparkdl import data

        rows = data.dataset(batch_size_per_worker=100, feature_cols="random")
        return float(sum(float(sum(batch)) for batch in rows))

    def num_persisted() -> int:
        return int(spark.sparkContext._jsc.getPersistentRDDs().size())

    counter, before = tmp_path / "counter", num_persisted()
    df = counting(spark.range(0, 1000, 1, 2).selectExpr("id", "rand() random"), counter)
    run = experiment.launch(train, {"part": [0, 1, 2]}, data=df, **quiet(root))
    assert len({trial.outputs["value"] for trial in run.trials}) == 1
    assert counter.stat().st_size == 10
    assert num_persisted() == before
    df.persist()
    try:
        run = experiment.launch(train, {"part": [0, 1]}, data=df, **quiet(root))
        assert counter.stat().st_size == 20
        assert num_persisted() == before + 1
    finally:
        df.unpersist()
    experiment.launch(train, {"part": [0]}, data=df, **quiet(root))
    assert counter.stat().st_size == 30


def test_errors_of_the_first_rows_are_plain(spark: SparkSession) -> None:
    """TensorFlow wraps the errors of an iteration; `data.dataset` looks at the first rows."""
    from sparkdl import data

    df = spark.range(0, 10, 1, 1).selectExpr("if(id = 7, null, id) x", "id", "cast(id as float) y")
    with (
        data.local(df),
        pytest.raises(ValueError, match=r"^column 'x' has 1 nulls among 10 values"),
    ):
        data.dataset(batch_size_per_worker=4)
    large = df.selectExpr("id + 16777216 id", "y")
    with data.local(large), pytest.raises(ValueError, match=r"^column 'id' has 16777217, which"):
        data.dataset(batch_size_per_worker=4, feature_cols=["id", "y"])
    with data.local(df.limit(0)), pytest.raises(ConfigError, match="data 'train' has no rows"):
        data.dataset(batch_size_per_worker=4)


def test_the_log_names_columns_that_become_something_else(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparkdl import data

    df = spark.sql(
        "SELECT 1 AS x, date'2026-01-01' AS day, 'a' AS word, timestamp'2026-01-01' AS t"
    )
    monkeypatch.setattr(logging.getLogger("sparkdl"), "propagate", True)
    with data.local(df), caplog.at_level(logging.INFO, "sparkdl.data"):
        data.dataset(batch_size_per_worker=4)
        assert (
            "train: 'day' (date) becomes days since 1970-01-01, 'word' (string) becomes text, "
            "which a model must encode, 't' (timestamp) becomes microseconds since 1970-01-01"
        ) in caplog.messages
        caplog.clear()
        data.dataset(batch_size_per_worker=4, feature_cols="x")
        assert not any("becomes" in message for message in caplog.messages)


def test_a_small_part_first_and_all_of_it_afterwards(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """A look at a few rows, to adapt a layer, say, then the whole."""

    def train() -> int:
        from sparkdl import data

        rows = {"batch_size_per_worker": 100, "feature_cols": "id"}
        look = sum(len(one) for one in ids(data.dataset(**rows, steps=1)))
        time.sleep(1.0)
        return look + 1000 * sum(len(one) for one in ids(data.dataset(**rows)))

    run = experiment.launch(train, data=wide(spark, 5000), **quiet(root, trial_timeout_s=60))
    assert run.best.outputs == {"value": 100 + 1000 * 5000}
