"""TensorFlowOnSpark's programs on a standalone cluster of two one-core workers."""

import contextlib
import json
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

from sparkdl import errors, experiment
from sparkdl.files.layout import TrialPaths
from sparkdl.files.rank_files import RankFiles
from sparkdl.tfos import TFCluster, TFParallel
from tests.helpers.processes import eventually, is_alive, jvm_of

pytestmark = pytest.mark.slow
FED = TFCluster.InputMode.SPARK


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No folder in which a node listens outlives its cluster."""
    yield
    private = Path(tempfile.gettempdir()) / f"sparkdl-{os.getuid()}"
    assert eventually(lambda: not list(private.glob("node-*"))), list(private.glob("node-*"))


def squares(args: Any, ctx: Any) -> None:
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        feed.batch_results([row * row for row in feed.next_batch(10)])


def drain(args: Any, ctx: Any) -> None:
    """Take all rows, and write down which."""
    feed, seen = ctx.get_data_feed(), []
    while not feed.should_stop():
        seen += feed.next_batch(7)
    Path(args["seen"], str(ctx.executor_id)).write_text(json.dumps(seen))


def seen_in(folder: Path) -> list[Any]:
    return sorted(row for file in folder.iterdir() for row in json.loads(file.read_text()))


def pids_of(cluster: Any) -> list[int]:
    """The processes of a cluster's nodes, and of their keepers."""
    folder = Path(TrialPaths(cluster.run.trials[0].path).ranks(0))
    count = len(cluster.cluster_info)
    files = [folder / f"{rank}.{kind}" for kind in ("pid", "alive") for rank in range(count)]
    assert eventually(lambda: all(file.exists() for file in files))
    return [int(file.read_text().split()[0]) for file in files]


# ---- Spark feeds


def test_inference_is_one_result_for_each_row_in_order(standalone_spark: SparkSession) -> None:
    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, squares, [], 2, 0, input_mode=FED)
    nodes = pids_of(cluster)
    assert cluster.inference(sc.parallelize(range(1000), 10)).sum() == 332833500
    odd = sc.parallelize([3, 1, 2], 5)  # Some partitions are empty.
    assert cluster.inference(odd).collect() == [9, 1, 4]
    begun = time.monotonic()
    cluster.shutdown()
    assert time.monotonic() - begun < 9  # Sooner than a node without life is noticed.
    assert len(nodes) == 4
    assert eventually(lambda: not any(map(is_alive, nodes)))
    assert [node["job_name"] for node in cluster.cluster_info] == ["worker", "worker"]


def test_all_rows_of_all_epochs_arrive_once(standalone_spark: SparkSession, tmp_path: Path) -> None:
    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, drain, {"seen": str(tmp_path)}, 2, 0, input_mode=FED)
    cluster.train(sc.parallelize(range(500), 4), num_epochs=3)
    cluster.train(sc.parallelize(range(500, 600), 2), num_epochs=1)
    with pytest.raises(errors.ConfigError, match=r"sc\.parallelize"):
        cluster.train([1, 2])
    cluster.shutdown()
    with pytest.raises(errors.ConfigError, match="has been shut down"):
        cluster.train(sc.parallelize([1]))
    assert seen_in(tmp_path) == sorted([*range(500)] * 3 + [*range(500, 600)])


@pytest.mark.parametrize("order", ["same", "other"])
@pytest.mark.parametrize("kind", ["RDD", "DataFrame"])
def test_a_task_that_is_repeated_loses_no_row_and_tells_of_repeated_ones(
    standalone_spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    order: str,
) -> None:
    from pyspark import TaskContext

    fed, taken = tmp_path / "fed", tmp_path / "taken"
    fed.mkdir()
    taken.mkdir()

    def drains(args: Any, ctx: Any) -> None:
        feed, numbers = ctx.get_data_feed(), []
        while not feed.should_stop():
            numbers += [number for number, _ in feed.next_batch(7)]
            for number in {0, 500}.intersection(numbers[-7:]):
                (fed / str(number // 500)).touch()
        (taken / str(ctx.executor_id)).write_text(json.dumps(numbers))

    def fails_once(rows: Iterator[Any]) -> Iterator[Any]:
        attempt = TaskContext.get().attemptNumber()
        ordered = list(rows) if order == "same" or not attempt else [*rows][::-1]
        for number, row in enumerate(ordered):
            if number == 300 and not attempt:
                # A task that has fed nothing warns too: it cannot know.
                partition, deadline = TaskContext.get().partitionId(), time.monotonic() + 60
                while not (fed / str(partition)).exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                raise OSError("once")
            yield row

    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, drains, [], 2, 0, input_mode=FED)
    long = sc.parallelize([[i, "x" * 5000] for i in range(1000)], 2).mapPartitions(fails_once)
    rows = long if kind == "RDD" else standalone_spark.createDataFrame(long, "id long, text string")
    monkeypatch.setattr(logging.getLogger("sparkdl"), "propagate", True)
    standalone_spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    with caplog.at_level(logging.WARNING, "sparkdl.tfos"):
        cluster.train(rows, num_epochs=1)
    standalone_spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    cluster.shutdown()
    seen = seen_in(taken)
    assert sorted(set(seen)) == [*range(1000)]
    assert (len(seen) > 1000) == (order == "other")
    assert ("have been used twice (partitions: 2)" in caplog.text) == (order == "other")


def test_a_slow_node_is_no_error(standalone_spark: SparkSession) -> None:
    def slow(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            time.sleep(0.5)
            feed.next_batch(100)
        sys.exit(0)  # As absl and tf.compat.v1.app.run end a program.

    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, slow, [], 1, 0, input_mode=FED)
    cluster.train(sc.parallelize(range(600), 1), num_epochs=1, feed_timeout=1)
    cluster.shutdown()


def test_an_error_while_rows_are_fed_is_the_nodes_own(standalone_spark: SparkSession) -> None:
    def fails(args: Any, ctx: Any) -> None:
        ctx.get_data_feed().next_batch(5)
        raise ValueError("mine")

    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, fails, [], 2, 0, input_mode=FED)
    with pytest.raises(errors.TrainingFailedError, match="ValueError: mine") as caught:
        cluster.train(sc.parallelize(range(1000), 4))
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    assert "test_cluster.py" in str(cause.__cause__)
    with pytest.raises(errors.TrainingFailedError, match="mine"):
        cluster.shutdown()

    assert eventually(lambda: "mine" in TFCluster.tf_status.get("error", ""))

    # Another cluster after one that has failed; the task's own error tells as much.
    cluster = TFCluster.run(sc, fails, [], 2, 0, input_mode=FED)
    with pytest.raises(Exception, match="ValueError: mine"):
        cluster.inference(sc.parallelize(range(1000), 4)).collect()
    with pytest.raises(errors.TrainingFailedError, match="mine"):
        cluster.shutdown()


@pytest.mark.parametrize("kind", ["RDD", "DataFrame"])
def test_a_feed_that_a_node_fails_is_not_repeated(
    standalone_spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Spark would repeat each task four times, and none can feed a node that has failed."""

    def fails(args: Any, ctx: Any) -> None:
        ctx.get_data_feed().next_batch(5)
        raise ValueError("mine")

    def told(number: int) -> int:
        task = TaskContext.get()
        (tmp_path / f"{task.partitionId()}-{task.attemptNumber()}").touch()
        return number

    sc = standalone_spark.sparkContext
    rows: Any = sc.parallelize(range(1000), 4).map(told)
    if kind == "DataFrame":
        rows = standalone_spark.createDataFrame(rows.map(lambda number: (number,)), "n int")
    cluster = TFCluster.run(sc, fails, [], 2, 0, input_mode=FED)
    with pytest.raises(errors.TrainingFailedError, match="ValueError: mine"):
        cluster.train(rows, 1)
    assert {file.name.split("-")[1] for file in tmp_path.iterdir()} == {"0"}
    with pytest.raises(errors.TrainingFailedError, match="mine"):
        cluster.shutdown()


@pytest.mark.parametrize("is_over", [True, False])
def test_a_cluster_whose_node_has_failed_starts_no_feeding_job(
    standalone_spark: SparkSession, is_over: bool
) -> None:
    def fails(args: Any, ctx: Any) -> None:
        raise ValueError("early")

    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, fails, [], 2, 0, input_mode=FED)
    ranks = RankFiles(TrialPaths(cluster.run.trials[0].path).ranks(0))
    has_failed = lambda: cluster.run.state != "RUNNING" or bool(ranks.look().ranks("failed"))  # noqa: E731
    assert eventually(lambda: cluster.run.state != "RUNNING" if is_over else has_failed())
    rows = sc.parallelize(range(100), 4)
    job = sc._jsc.sc().newRddId()  # Each job of ours makes RDDs.
    for call in (lambda: cluster.train(rows, 1), lambda: cluster.inference(rows)):
        with pytest.raises(errors.TrainingFailedError, match="ValueError: early"):
            call()
    assert sc._jsc.sc().newRddId() == job + 1
    with pytest.raises(errors.TrainingFailedError, match="early"):
        cluster.shutdown()


def test_an_error_after_the_feed_is_raised_by_shutdown(standalone_spark: SparkSession) -> None:
    def fails_late(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            feed.next_batch(10)
        raise ValueError("late")

    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, fails_late, [], 2, 0, input_mode=FED)
    cluster.train(sc.parallelize(range(100), 4), 1)
    with pytest.raises(errors.TrainingFailedError, match="ValueError: late"):
        cluster.shutdown(grace_secs=5)


def test_terminate_ends_the_feed_early(standalone_spark: SparkSession, tmp_path: Path) -> None:
    def few(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        Path(args["seen"], str(ctx.executor_id)).write_text(json.dumps(feed.next_batch(10)))
        feed.terminate()

    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, few, {"seen": str(tmp_path)}, 2, 0, input_mode=FED)
    cluster.train(sc.parallelize(range(100_000), 8), 2)
    with pytest.raises(Exception, match=r"terminate\(\), and rows have no result"):
        cluster.inference(sc.parallelize(range(100), 2)).collect()
    cluster.shutdown()
    assert len(seen_in(tmp_path)) in (10, 20)


def test_a_function_that_returns_early_is_told_of(standalone_spark: SparkSession) -> None:
    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, lambda args, ctx: None, [], 2, 0, input_mode=FED)
    with pytest.raises(Exception, match="returned before all rows were fed"):
        cluster.train(sc.parallelize(range(1000), 4), 1)
    cluster.shutdown()


@pytest.mark.parametrize("victim", ["node", "executor"])
def test_a_killed_worker_is_an_error_soon(standalone_spark: SparkSession, victim: str) -> None:
    def waits(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            feed.next_batch(1)
            time.sleep(0.01)

    sc = standalone_spark.sparkContext
    workers = sc.parallelize(range(2), 2).map(lambda _: (time.sleep(1), os.getpid())[1]).collect()
    cluster = TFCluster.run(sc, waits, [], 2, 0, input_mode=FED)
    nodes = pids_of(cluster)
    cluster.train(sc.parallelize(range(20), 2), 1)
    begun = time.monotonic()
    os.kill(nodes[0] if victim == "node" else jvm_of(workers[0]), signal.SIGKILL)
    # A node that hears of the end before it is ended has done all that was asked of it.
    assert eventually(lambda: not all(map(is_alive, nodes)))
    what = "SIGKILL" if victim == "node" else "executor"
    with pytest.raises(errors.TrainingFailedError, match=what):
        cluster.shutdown()
    assert time.monotonic() - begun < 90
    assert eventually(lambda: not any(map(is_alive, nodes)))
    assert eventually(lambda: sc.parallelize(range(2), 2).count() == 2)


@pytest.mark.thorough
def test_a_keeper_that_is_lost_is_an_error_beside_parameter_servers(
    standalone_spark: SparkSession,
) -> None:
    def waits(args: Any, ctx: Any) -> None:
        time.sleep(1000)

    cluster = TFCluster.run(standalone_spark.sparkContext, waits, [], 2, 1, input_mode=FED)
    folder = Path(TrialPaths(cluster.run.trials[0].path).ranks(0))
    files = [folder / name for name in ("0.alive", "0.pid", "1.pid")]
    assert eventually(lambda: all(file.exists() for file in files))
    keeper, node, server = (int(file.read_text().split()[0]) for file in files)
    begun = time.monotonic()
    os.kill(keeper, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # It may have noticed the end of its keeper.
        os.kill(node, signal.SIGKILL)
    with pytest.raises(errors.TrainingFailedError, match="no life for 10 s"):
        cluster.shutdown()
    assert time.monotonic() - begun < 90
    assert eventually(lambda: not any(map(is_alive, (keeper, node, server))))


def test_columns_become_tensors_by_their_names(
    standalone_spark: SparkSession, tmp_path: Path
) -> None:
    def tensors(args: Any, ctx: Any) -> None:
        feed = ctx.get_data_feed(input_mapping={"b_col": "y", "a_col": "x"})
        Path(args["seen"]).write_text(json.dumps([feed.next_batch(2), feed.next_batch(2)]))

    sc = standalone_spark.sparkContext
    file = tmp_path / "seen"
    cluster = TFCluster.run(sc, tensors, {"seen": str(file)}, 1, 0, input_mode=FED)
    cluster.train(sc.parallelize([(1, "a"), (2, "b"), (3, "c")], 1), 1)
    cluster.shutdown()
    assert json.loads(file.read_text()) == [{"x": [1, 2], "y": ["a", "b"]}, {"x": [3], "y": ["c"]}]


@pytest.mark.parametrize("kind", ["rdd", "frame"])
def test_a_dataset_has_all_rows_as_tensors(
    standalone_spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    def sums(args: Any, ctx: Any) -> None:
        found = [0.0, 0, 0]
        for x, y in ctx.get_data_feed().as_dataset(batch_size=64):
            assert x.dtype == "float32" if args["kind"] == "rdd" else x.dtype == "float64"
            found = [found[0] + float(sum(x[:, 1])), found[1] + int(sum(y)), found[2] + len(y)]
        Path(args["seen"]).write_text(json.dumps(found))

    sc, file = standalone_spark.sparkContext, tmp_path / "seen"
    rows: Any = sc.parallelize([([0.0, i / 2], i) for i in range(1000)], 4)
    if kind == "frame":
        rows = rows.toDF("x array<double>, y long")
    cluster = TFCluster.run(sc, sums, {"seen": str(file), "kind": kind}, 1, 0, input_mode=FED)
    cluster.train(rows, 1)
    cluster.shutdown()
    assert json.loads(file.read_text()) == [499500 / 2, 499500, 1000]


def test_rows_of_a_frame_are_tuples(standalone_spark: SparkSession, tmp_path: Path) -> None:
    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, drain, {"seen": str(tmp_path)}, 2, 0, input_mode=FED)
    cluster.train(
        standalone_spark.createDataFrame(
            [([0.5, 1.0], "a"), ([2.0], "b")], "x array<double>, y string"
        ),
        2,
    )
    cluster.shutdown()
    assert seen_in(tmp_path) == sorted([[[0.5, 1.0], "a"], [[2.0], "b"]] * 2)


# ---- nodes read for themselves


def test_vectors_of_a_frame_stay_vectors(standalone_spark: SparkSession, tmp_path: Path) -> None:
    def sums(args: Any, ctx: Any) -> None:
        rows = ctx.get_data_feed().next_batch(10)
        Path(args["seen"], "sums").write_text(json.dumps([float(x.sum()) for (x,) in rows]))

    sc, rows = (
        standalone_spark.sparkContext,
        [(Vectors.dense([0.5, 1.0]),), (Vectors.dense([2.0, 3.0]),)],
    )
    cluster = TFCluster.run(sc, sums, {"seen": str(tmp_path)}, 1, 0, input_mode=FED)
    cluster.train(standalone_spark.createDataFrame(rows, ["x"]).coalesce(1), 1)
    cluster.shutdown()
    assert seen_in(tmp_path) == [1.5, 5.0]


def test_every_node_knows_its_place(standalone_spark: SparkSession, tmp_path: Path) -> None:
    def note(args: Any, ctx: Any) -> None:
        assert args.epochs == 3
        told = {
            "spec": {job: len(nodes) for job, nodes in ctx.cluster_spec.items()},
            "num_workers": ctx.num_workers,
            "task": json.loads(os.environ["TF_CONFIG"])["task"],
            "environment": json.loads(os.environ["TF_CONFIG"])["environment"],
            "path": ctx.absolute_path("/data"),
        }
        name = f"{ctx.executor_id}-{ctx.job_name}-{ctx.task_index}"
        Path(args.seen, name).write_text(json.dumps(told))
        if ctx.job_name == "ps":
            time.sleep(1000)

    args = Namespace(epochs=3, seen=str(tmp_path))
    cluster = TFCluster.run(standalone_spark.sparkContext, note, args, 2, 1, master_node="chief")
    # The end of the workers ends the parameter server, even before it has begun.
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
    cluster.shutdown()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0-ps-0", "1-chief-0"]
    told = json.loads((tmp_path / "1-chief-0").read_text())
    assert told == {
        "spec": {"ps": 1, "chief": 1},
        "num_workers": 1,
        "task": {"type": "chief", "index": 0},
        "environment": "cloud",
        "path": "file:///data",
    }
    jobs = [(node["executor_id"], node["job_name"]) for node in cluster.cluster_info]
    assert jobs == [(0, "ps"), (1, "chief")]


def test_an_evaluator_may_go_on_for_the_grace(
    standalone_spark: SparkSession, tmp_path: Path
) -> None:
    def evaluates(args: Any, ctx: Any) -> None:
        while ctx.job_name == "evaluator":
            time.sleep(0.1)
            Path(args["seen"]).touch()

    file = tmp_path / "seen"
    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(
        sc, evaluates, {"seen": str(file)}, 2, 0, master_node="chief", eval_node=True
    )
    assert eventually(file.exists)
    begun = time.time()
    cluster.shutdown(grace_secs=2)
    assert file.stat().st_mtime - begun > 1.0


def test_parameter_servers_on_the_driver(standalone_spark: SparkSession, tmp_path: Path) -> None:
    def note(args: Any, ctx: Any) -> None:
        Path(args["seen"], f"{ctx.job_name}-{ctx.task_index}").write_text(f"{os.getpid()}")
        while ctx.job_name == "ps" or len(os.listdir(args["seen"])) < 4:
            time.sleep(0.1)

    given = {"seen": str(tmp_path)}
    cluster = TFCluster.run(standalone_spark.sparkContext, note, given, 4, 2, driver_ps_nodes=True)
    cluster.shutdown()
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["ps-0", "ps-1", "worker-0", "worker-1"]
    nodes = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert eventually(lambda: not any(map(is_alive, nodes)))


@pytest.mark.parametrize("release", [True, False])
def test_the_port_is_released_or_held(standalone_spark: SparkSession, release: bool) -> None:
    def binds(args: Any, ctx: Any) -> None:
        address, port = ctx.cluster_spec["worker"][ctx.task_index].split(":")
        with socket.socket() as server:
            if not args["release"]:
                assert ctx.tmp_socket.getsockname()[1] == int(port)
                try:
                    server.bind((address, int(port)))
                except OSError:
                    ctx.release_port()
                else:
                    raise AssertionError("the port was free")
            assert ctx.tmp_socket is None
            server.bind((address, int(port)))

    sc = standalone_spark.sparkContext
    TFCluster.run(sc, binds, {"release": release}, 2, 0, release_port=release).shutdown()


def test_tensorboard_answers(standalone_spark: SparkSession, tmp_path: Path) -> None:
    def waits(args: Any, ctx: Any) -> None:
        while not Path(args["over"]).exists():
            time.sleep(0.1)

    over = tmp_path / "over"
    args = {"over": str(over)}
    cluster = TFCluster.run(
        standalone_spark.sparkContext, waits, args, 2, 0, True, log_dir=str(tmp_path)
    )
    url = cluster.tensorboard_url()

    def answers() -> object:
        try:
            return urllib.request.urlopen(url, timeout=5).status == 200
        except OSError:
            return False

    assert eventually(answers)
    over.touch()
    cluster.shutdown()
    assert eventually(lambda: not answers())


def test_shutdown_raises_what_a_node_has_raised(standalone_spark: SparkSession) -> None:
    def fails(args: Any, ctx: Any) -> None:
        if ctx.task_index == 1:
            raise KeyError("mine")
        time.sleep(1000)

    sc = standalone_spark.sparkContext
    cluster = TFCluster.run(sc, fails, [], 2, 0)
    with pytest.raises(errors.TrainingFailedError, match="worker 1") as caught:
        cluster.shutdown()
    assert isinstance(caught.value.__cause__, KeyError)
    assert sc.parallelize([1, 2]).sum() == 3  # The context goes on.


def test_shutdown_ends_what_takes_too_long(standalone_spark: SparkSession) -> None:
    cluster = TFCluster.run(
        standalone_spark.sparkContext, lambda args, ctx: time.sleep(1000), [], 2, 0
    )
    with pytest.raises(TimeoutError, match="had not returned 2 s"):
        cluster.shutdown(timeout=2)
    assert cluster.run.state == "CANCELLED"
    with pytest.raises(errors.ConfigError, match=r"\(tfos\) cannot be resumed"):
        experiment.resume(cluster.run.path)


# ---- what is refused, and what is independent


def test_wrong_arguments_are_refused(standalone_spark: SparkSession) -> None:
    sc = standalone_spark.sparkContext
    with pytest.raises(errors.ConfigError, match="num_executors=1 is too few"):
        TFCluster.run(sc, squares, [], 1, 1)
    with pytest.raises(errors.ConfigError, match="eval_node"):
        TFCluster.run(sc, squares, [], 2, 0, input_mode=FED, eval_node=True)
    with pytest.raises(errors.ConfigError, match="input_mode is 'SPARK'"):
        TFCluster.run(sc, squares, [], 2, 0, input_mode="SPARK")  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="map_fun is 'squares'"):
        TFCluster.run(sc, "squares", [], 2, 0)  # type: ignore[arg-type]
    with pytest.raises(errors.SlotsError, match="5 slots"):
        TFCluster.run(sc, squares, [], 5, 0, reservation_timeout=1)
    with pytest.raises(errors.FunctionError, match="'sc'"):
        TFCluster.run(sc, lambda args, ctx: sc, [], 2, 0)
    cluster = TFCluster.run(sc, lambda args, ctx: None, [], 2, 0)
    with pytest.raises(errors.ConfigError, match=r"InputMode\.SPARK"):
        cluster.train(sc.parallelize([1]))
    cluster.shutdown()


@pytest.mark.parametrize("use_barrier", [True, False])
def test_independent_runs(
    standalone_spark: SparkSession, tmp_path: Path, use_barrier: bool
) -> None:
    def note(args: Any, ctx: Any) -> None:
        drawn = f"{random.random()}"
        Path(args["seen"], f"{ctx.worker_num}-of-{ctx.num_workers}").write_text(drawn)
        if args.get("fails") == ctx.worker_num:
            raise ValueError("mine")

    sc, args = standalone_spark.sparkContext, {"seen": str(tmp_path)}
    TFParallel.run(sc, note, args, 2, use_barrier)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0-of-2", "1-of-2"]
    assert len({file.read_text() for file in tmp_path.iterdir()}) == 2
    with pytest.raises(errors.TrialFailedError, match="ValueError: mine"):
        TFParallel.run(sc, note, {**args, "fails": 1}, 2, use_barrier)
