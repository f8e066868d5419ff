"""Runs on the driver. The handle of a running cluster: feed rows, query nodes, shut down."""

import contextlib
import functools
import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from sparkdl.cluster.base import Cluster
from sparkdl.errors import ConfigError, RunStoppedError, named_type
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.files.polling import Outages, poll_s, retry
from sparkdl.files.rank_files import RankFiles
from sparkdl.runner import sigterm
from sparkdl.runs import Run
from sparkdl.runs.states import TrialState
from sparkdl.tfos.cluster.node_files import ALIVE, FEED_OVER, OVER
from sparkdl.tfos.cluster.topology import ranks_of
from sparkdl.tfos.feed.task import FeedTask, feed
from sparkdl.tfos.node.runtime import ClusterInfo

# Short, so that `run` and `shutdown` return soon after the last node has started or ended.
POLL_S = 0.02

# Number of epochs for `num_epochs=0`, as in TensorFlowOnSpark.
DEFAULT_EPOCHS = 10

# Time to wait for a node's own error after a task that fed the node has failed.
NODE_ERROR_TIMEOUT_S = 15.0


class InputMode:
    """The reader of the data: the nodes themselves, or Spark, which feeds the nodes."""

    TENSORFLOW = 0
    SPARK = 1


class TFCluster:
    """A running cluster, created by `TFCluster.run`.

    Attributes:
        sc: the SparkContext.
        run: the `sparkdl.runs.Run` with the logs and results of the nodes.
        cluster_info: a dict for each node: `executor_id`, `host`, `job_name`, `task_index`, `port`,
            `tb_pid`, `tb_port`, `addr`, `authkey`. The last two are None, since nodes have no
            manager that listens.
        cluster_meta: facts of the cluster, such as `id`, `default_fs` and `working_dir`.
        meta: the same as `cluster_meta`.
        input_mode: the `input_mode` passed to `TFCluster.run`.
        queues: the names of the queues.
    """

    def __init__(
        self, sc: Any, cluster: Cluster, run: Run, info: ClusterInfo, input_mode: int
    ) -> None:
        self.sc = sc
        self._cluster = cluster
        self.run = run
        self.input_mode = input_mode
        self.queues = list(info.queues)
        self._info = info
        self._paths = TrialPaths(run.trials[0].path)
        self._is_fed = input_mode == InputMode.SPARK
        self._call_numbers = itertools.count()
        self._running_calls: set[int] = set()
        self._terminated = threading.Event()
        self._poll_s = poll_s(run.path, POLL_S)
        self._outages = Outages("list the messages of the nodes of a cluster")
        self.meta = {
            "id": run.id,
            "num_executors": len(info.places),
            "default_fs": info.default_fs,
            "working_dir": info.working_dir,
            "release_port": info.release_port,
        }
        self.cluster_meta = self.meta
        self.cluster_info: list[dict[str, Any]] = []

    # ---- feeding

    def train(
        self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input"
    ) -> None:
        """Feed rows to the nodes that train. Return when the nodes have used all rows.

        Args:
            dataRDD: an RDD; a DataFrame, whose rows reach the nodes as tuples, which is faster; or
                a DStream, each RDD of which is fed when it arrives.
            num_epochs: number of passes over the rows; 0 means 10.
            feed_timeout: ignored. A slow node is never an error, and a lost node always is.
            qname: the name of the queue.

        Raises:
            ConfigError: if the cluster is not fed by Spark, or an argument is invalid.
            TrainingFailedError: if a node failed; the cause is the exception of the node.
        """
        self._check_is_fed("train", qname)
        if not isinstance(num_epochs, int) or num_epochs < 0:
            raise ConfigError(
                f"num_epochs is {num_epochs!r}; expected a whole number of at least 0 (0 means "
                f"{DEFAULT_EPOCHS} epochs)."
            )
        if not any(hasattr(dataRDD, name) for name in ("foreachRDD", "mapPartitions", "rdd")):
            raise ConfigError(
                f"dataRDD is {named_type(dataRDD)}; expected an RDD, a DataFrame or a "
                "DStream. sc.parallelize(rows) converts a list to an RDD."
            )
        if hasattr(dataRDD, "foreachRDD"):
            dataRDD.foreachRDD(lambda rdd: self._feed(rdd, 1, qname))
        else:
            self._feed(dataRDD, num_epochs or DEFAULT_EPOCHS, qname)

    def _feed(self, rows: Any, num_epochs: int, qname: str) -> None:
        self._raise_failure()  # A job would only find out that a node is gone.
        fields = self._task_fields(qname)
        # SIGTERM cancels this job too, and raises nothing here before Spark has answered.
        feeding = sigterm.running(self._cluster, self.run.id)
        tag = f"sparkdl:{self.run.id}"
        self._running_calls.add(fields["call_number"])
        with contextlib.closing(feeding):
            try:
                self.sc.addJobTag(tag)
                terminated = feed(self.sc, rows, num_epochs, fields)
            except Exception:
                self._raise_failure()
                raise
            finally:
                self._running_calls.discard(fields["call_number"])
                with contextlib.suppress(Exception):  # Spark has ended, as the first error says.
                    self.sc.removeJobTag(tag)
        if terminated:
            self._terminated.set()

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> Any:
        """Return an RDD of the results of the nodes, one for each row.

        The RDD is lazy: rows are fed when an action needs the results.

        Args:
            dataRDD: an RDD or a DataFrame.
            feed_timeout: ignored, see `train`.
            qname: the name of the queue.

        Raises:
            ConfigError: if the cluster is not fed by Spark, or an argument is invalid.
            TrainingFailedError: if a node has failed; the cause is the exception of the node.
        """
        self._check_is_fed("inference", qname)
        self._raise_failure()
        rdd = dataRDD.rdd if hasattr(dataRDD, "rdd") else dataRDD
        return rdd.mapPartitionsWithIndex(FeedTask(**self._task_fields(qname), is_inference=True))

    def _check_is_fed(self, method: str, qname: str) -> None:
        if not self._is_fed:
            raise ConfigError(
                f"{method}() feeds rows, but the nodes of this cluster read their own data. Run "
                "the cluster with input_mode=InputMode.SPARK."
            )
        if qname not in self.queues:
            raise ConfigError(f"qname is {qname!r}; expected one of {', '.join(self.queues)}.")
        if self.run.state != "RUNNING":
            self.run.wait()  # Raises the error of a node that has failed.
            raise ConfigError(
                f"{method}() feeds rows, but this cluster has been shut down. Start another "
                "cluster with TFCluster.run."
            )

    def _task_fields(self, qname: str) -> dict[str, Any]:
        """Return the fields of a `FeedTask`, except `is_inference`."""
        number = next(self._call_numbers)
        return {
            "run_path": self.run.path,
            "trial": self._paths,
            "call_number": number,
            "first_running_call": min([number, *list(self._running_calls)]),
            "qname": qname,
        }

    # ---- the end

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """Shut the cluster down: end the feed, and wait until the functions of the nodes return.

        Args:
            ssc: a StreamingContext. `shutdown` waits until it stops, and stops it when a node has
                terminated.
            grace_secs: seconds that an evaluator may continue after the other nodes have returned.
            timeout: seconds after which nodes that have not returned are ended; 0 or less waits
                indefinitely.

        Raises:
            TrainingFailedError: if a node failed; the cause is the exception of the node.
            TimeoutError: if nodes did not return in time and were ended.
        """
        if ssc is not None:
            try:
                while not ssc.awaitTerminationOrTimeout(1):
                    if self._terminated.is_set():
                        ssc.stop(stopSparkContext=False, stopGraceFully=True)
                        break
            except Exception:
                self._raise_failure()
                self.run.cancel()
                raise
        deadline = time.monotonic() + timeout if timeout > 0 else None
        self._command(FEED_OVER)
        is_late = not self._wait(self._training_nodes_are_done, deadline)
        if not is_late and self.run.state == "RUNNING" and self._has_evaluator:
            self._wait(lambda: False, time.monotonic() + grace_secs)
        if not is_late:
            self._command(OVER)
            self.run.wait()
            return
        self.run.cancel()
        with contextlib.suppress(RunStoppedError):  # It was stopped here.
            self.run.wait()
        raise TimeoutError(
            f"nodes had not returned {timeout:g} s after shutdown() was called, and were "
            f"ended. Their logs are in {self._paths.folder}. Pass a longer timeout, or let "
            "the functions return when should_stop() is True."
        )

    @property
    def _has_evaluator(self) -> bool:
        return any(job == "evaluator" for job, _ in self._info.places)

    def _command(self, name: str) -> None:
        """Write a file that the nodes obey, unless the run is ending."""
        if self.run.state == "RUNNING":
            with contextlib.suppress(FileNotFoundError):  # The end of the run removes the folder.
                order = functools.partial(RankFiles(self._paths.ranks(0)).order, name)
                retry(order, "give an order to the nodes of a cluster")

    def _training_nodes_are_done(self) -> bool:
        names = set(storage.list_names(self._paths.ranks(0)))
        return names >= {f"{rank}.done" for rank in self._training_ranks}

    @property
    def _training_ranks(self) -> list[int]:
        """The ranks of the nodes that train. In InputMode.SPARK they are detached."""
        ranks = zip(ranks_of(self._info.places), self._info.places, strict=True)
        return [rank for rank, (job, _) in ranks if job not in ("ps", "evaluator")]

    def _wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until the condition holds or the run ends. Return False after the deadline."""
        while self.run.state == "RUNNING" and not self._holds(condition):
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(self._poll_s)
        return True

    def _holds(self, condition: Callable[[], bool]) -> bool:
        """Return True if a condition holds; False also where the store cannot be asked now."""
        holds = False
        with self._outages.tolerated():
            holds = condition()
        return holds

    def _raise_failure(self) -> None:
        """Raise the exception of a node that has failed, if any."""
        has_failed = self._holds(
            lambda: bool(RankFiles(self._paths.ranks(0)).look().ranks("failed"))
        )
        # The folder of the messages is gone when the run is about to end.
        is_over = self.run.trials[0].state not in (TrialState.WAITING, TrialState.RUNNING)
        if has_failed or is_over or self.run.state != "RUNNING":
            self._wait(lambda: False, time.monotonic() + NODE_ERROR_TIMEOUT_S)
            if self.run.state != "RUNNING":
                self.run.wait()

    # ---- the nodes

    def tensorboard_url(self) -> str | None:
        """Return the URL of TensorBoard, or None without `tensorboard=True`."""
        for node in self.cluster_info:
            if node["tb_port"]:
                return f"http://{node['host']}:{node['tb_port']}"
        return None

    def await_start(self, timeout_s: float) -> None:
        """Wait until all nodes have started, and set `cluster_info`.

        Args:
            timeout_s: maximum time to wait.

        Raises:
            TimeoutError: if not all nodes have started within the time.
            TrainingFailedError: if a node failed before all nodes had started.
            RunStoppedError: if the cluster was ended before all nodes had started.
        """
        deadline = time.monotonic() + timeout_s
        if not self._wait(self._all_have_started, deadline):
            raise TimeoutError(
                f"timed out waiting for reservations to complete: not all of "
                f"{len(self._info.places)} nodes had started after {timeout_s:g} s. Check whether "
                "Spark has a slot for each node, or raise reservation_timeout."
            )
        if self.run.state not in ("RUNNING", "COMPLETE"):
            self.run.wait()  # Raises the error that has ended the cluster.
        tensorboard: dict[str, Any] = {"pid": 0, "port": 0}
        if self._info.tensorboard_node is not None:
            url = storage.join(self._paths.ranks(0), f"{self._tensorboard_rank()}.tensorboard")
            self._wait(lambda: storage.exists(url), deadline)
            tensorboard = json.loads(storage.read(url)) if storage.exists(url) else tensorboard
        ranks = json.loads(storage.read(self._paths.attempt(0)))["ranks"]
        for executor_id, (job, index) in enumerate(self._info.places):
            has_tensorboard = executor_id == self._info.tensorboard_node
            address, _, port = ranks[f"{job} {index}"]["endpoint"].rpartition(":")
            self.cluster_info.append(
                {
                    "executor_id": executor_id,
                    "host": address,
                    "job_name": job,
                    "task_index": index,
                    "port": int(port),
                    "tb_pid": tensorboard["pid"] if has_tensorboard else 0,
                    "tb_port": tensorboard["port"] if has_tensorboard else 0,
                    "addr": None,
                    "authkey": None,
                }
            )

    def _all_have_started(self) -> bool:
        """Return True if all nodes run and the supervisors of detached nodes are alive."""
        names = set(storage.list_names(self._paths.ranks(0)))
        detached = self._training_ranks if self._is_fed else ()
        alive = {f"{rank}.{ALIVE}" for rank in detached}
        return storage.exists(self._paths.attempt(0)) and names >= alive

    def _tensorboard_rank(self) -> int:
        return ranks_of(self._info.places)[self._info.tensorboard_node or 0]
