"""Nodes that are fed by streams, and live on between their batches."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl.tfos import TFCluster
from tests.helpers.processes import eventually
from tests.tfos.test_cluster import FED, drain, seen_in

pytestmark = pytest.mark.slow


def test_a_stream_is_fed_batch_by_batch(standalone_spark: SparkSession, tmp_path: Path) -> None:
    sc = standalone_spark.sparkContext
    seen, source = tmp_path / "seen", tmp_path / "source"
    seen.mkdir()
    cluster = TFCluster.run(sc, drain, {"seen": str(seen)}, 2, 0, input_mode=FED)
    for begin in (0, 100):
        standalone_spark.range(begin, begin + 100).write.mode("append").json(str(source))
    stream = (
        standalone_spark.readStream.schema("id long")
        .option("maxFilesPerTrigger", 1)
        .json(str(source))
    )
    query = stream.writeStream.foreachBatch(
        lambda batch, _: cluster.train(batch.rdd.map(lambda row: row.id), 1)
    )
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    cluster.shutdown()
    assert seen_in(seen) == [*range(200)]


@pytest.fixture
def streaming(standalone_spark: SparkSession) -> Any:
    """A StreamingContext, which pyspark still has and calls deprecated."""
    from pyspark.streaming import StreamingContext

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return StreamingContext(standalone_spark.sparkContext, 0.5)


def test_each_rdd_of_a_dstream_is_fed(
    standalone_spark: SparkSession, streaming: Any, tmp_path: Path
) -> None:
    def note(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        with Path(args["seen"], str(ctx.executor_id)).open("a", buffering=1) as file:
            while not feed.should_stop():
                file.writelines(f"{row}\n" for row in feed.next_batch(1))

    def seen() -> list[int]:
        return sorted(int(row) for f in tmp_path.iterdir() for row in f.read_text().split())

    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, note, {"seen": str(tmp_path)}, 2, 0, input_mode=FED)
    batches = [sc.parallelize(range(begin, begin + 50), 2) for begin in (100, 200, 300)]
    cluster.train(streaming.queueStream(batches))
    streaming.start()
    assert eventually(lambda: len(seen()) >= 150)
    streaming.stop(stopSparkContext=False, stopGraceFully=True)
    cluster.shutdown(ssc=streaming)
    assert seen() == [*range(100, 150), *range(200, 250), *range(300, 350)]


def test_a_node_that_wants_no_more_ends_the_stream(
    standalone_spark: SparkSession, streaming: Any, tmp_path: Path
) -> None:
    def few(args: Any, ctx: Any) -> None:
        feed, seen = ctx.get_data_feed(), []
        while len(seen) < 60:
            seen += feed.next_batch(10)
        feed.terminate()
        Path(args["seen"], str(ctx.executor_id)).write_text(json.dumps(seen))

    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, few, {"seen": str(tmp_path)}, 1, 0, input_mode=FED)
    endless = sc.parallelize(range(50), 1)
    cluster.train(streaming.queueStream([], default=endless))
    streaming.start()
    cluster.shutdown(ssc=streaming)
    assert len(seen_in(tmp_path)) == 60
    assert streaming.awaitTerminationOrTimeout(0)  # It has ended ...
    assert sc.parallelize([1]).count() == 1  # ... and Spark goes on.
