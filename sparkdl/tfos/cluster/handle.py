"""Runs on the driver. A running cluster of TensorFlow nodes: feed it, ask of it, end it."""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from sparkdl import storage
from sparkdl.errors import ConfigError
from sparkdl.runs import Run
from sparkdl.runs.layout import TrialPaths
from sparkdl.tfos.cluster.node_files import ALIVE, FEED_OVER, OVER
from sparkdl.tfos.cluster.topology import ranks_of
from sparkdl.tfos.feed.source import feed
from sparkdl.tfos.feed.task import FeedTask
from sparkdl.tfos.node.runtime import Meta

__all__ = ["InputMode", "TFCluster"]

LOOK_S = 0.02
LOOK_REMOTE_S = 2.0

# Where `num_epochs=0` is given, as TensorFlowOnSpark has it.
EPOCHS = 10

# So long after a feeding task has failed its node's own failure must be known.
FAILING_S = 15.0


class InputMode:
    """Who reads the data: the nodes themselves, or Spark, which feeds the nodes."""

    TENSORFLOW = 0
    SPARK = 1


class TFCluster:
    """A running cluster; `run` makes it.

    Attributes:
        sc: the SparkContext.
        run: the `sparkdl.runs.Run` with all that the nodes print and say.
        cluster_info: a dict for each node: `executor_id`, `host`, `job_name`, `task_index`, `port`,
            `tb_pid`, `tb_port`, `addr`, `authkey`; the last two are None: nobody listens.
        cluster_meta, meta: facts of the cluster, such as `id`, `default_fs` and `working_dir`.
        input_mode, queues: as they were given.
    """

    def __init__(self, sc: Any, made: Run, meta: Meta, input_mode: int) -> None:
        self.sc, self.run, self.input_mode, self.queues = sc, made, input_mode, list(meta.queues)
        self._meta, self._paths = meta, TrialPaths(made.trials[0].path)
        self._fed = input_mode == InputMode.SPARK
        self._feeds = itertools.count()
        self._terminated = threading.Event()
        self._look_s = LOOK_S if storage.is_local(made.path) else LOOK_REMOTE_S
        self.cluster_meta = self.meta = {
            "id": made.id,
            "num_executors": len(meta.places),
            "default_fs": meta.default_fs,
            "working_dir": meta.working_dir,
            "release_port": meta.release_port,
        }
        self.cluster_info: list[dict[str, Any]] = []

    # ---- feeding

    def train(
        self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input"
    ) -> None:
        """Feed rows to the nodes that train; return when the nodes have used them.

        Args:
            dataRDD: an RDD; a DataFrame, whose rows reach the nodes as tuples, faster; or a
                DStream, each of whose RDDs is fed when it comes.
            num_epochs: how often; 0 is ten times.
            feed_timeout: accepted. A node that is slow is never an error, one that is gone always.
            qname: the name of the queue.

        Raises:
            ConfigError: the cluster is not fed by Spark, or an argument is wrong.
            TrainingFailedError: a node failed; its cause is that node's own exception.
        """
        self._check_fed("train", qname)
        if not isinstance(num_epochs, int) or num_epochs < 0:
            raise ConfigError(f"num_epochs is {num_epochs!r}; expected a whole number, 0 is ten.")
        if not any(hasattr(dataRDD, name) for name in ("foreachRDD", "mapPartitions", "rdd")):
            raise ConfigError(
                f"dataRDD is a {type(dataRDD).__name__}; expected an RDD, a DataFrame or a "
                "DStream. sc.parallelize(rows) makes an RDD of a list."
            )
        if hasattr(dataRDD, "foreachRDD"):
            dataRDD.foreachRDD(lambda rdd: self._feed(rdd, 1, qname))
        else:
            self._feed(dataRDD, num_epochs or EPOCHS, qname)

    def _feed(self, rows: Any, num_epochs: int, qname: str) -> None:
        try:
            terminated = feed(self.sc, rows, num_epochs, self._told(qname))
        except Exception:
            self._raise_failure()
            raise
        if terminated:
            self._terminated.set()

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> Any:
        """The results of rows that are fed to the nodes, one for each row, as an RDD.

        It is lazy: rows are fed when an action needs the results.

        Args:
            dataRDD: an RDD, or a DataFrame.
            feed_timeout: see `train`.
            qname: the name of the queue.

        Raises:
            ConfigError: the cluster is not fed by Spark, or an argument is wrong.
        """
        self._check_fed("inference", qname)
        rdd = dataRDD.rdd if hasattr(dataRDD, "rdd") else dataRDD
        return rdd.mapPartitionsWithIndex(FeedTask(**self._told(qname), is_inference=True))

    def _check_fed(self, what: str, qname: str) -> None:
        if not self._fed:
            raise ConfigError(
                f"{what}() feeds rows, and the nodes of this cluster read their own. Run it with "
                "input_mode=InputMode.SPARK."
            )
        if qname not in self.queues:
            raise ConfigError(f"qname is {qname!r}; expected one of {', '.join(self.queues)}.")
        if self.run.state != "RUNNING":
            self.run.wait()  # Raises what has ended it.
            raise ConfigError(f"{what}() feeds rows, and this cluster has been shut down.")

    def _told(self, qname: str) -> dict[str, Any]:
        """What a task that feeds is told."""
        return {
            "run_path": self.run.path,
            "trial": self._paths,
            "feed": next(self._feeds),
            "qname": qname,
        }

    # ---- the end

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """End the cluster: no more rows come, and the functions of its nodes return.

        Args:
            ssc: a StreamingContext: it is waited for, and stopped when a node has terminated.
            grace_secs: how long an evaluator may go on when the others have returned.
            timeout: seconds until nodes that have not returned are ended; below 1 is for ever.

        Raises:
            TrainingFailedError: a node failed; its cause is that node's own exception.
            TimeoutError: nodes had not returned in time, and were ended.
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
        self._order(FEED_OVER)
        late = not self._wait(self._needed_are_done, deadline)
        if not late and self.run.state == "RUNNING" and self._has_evaluator:
            self._wait(lambda: False, time.monotonic() + grace_secs)
        if late:
            self.run.cancel()
        else:
            self._order(OVER)
        self.run.wait()
        if late:
            raise TimeoutError(
                f"nodes had not returned {timeout:g} s after shutdown() was called, and were "
                f"ended. Their logs are in {self._paths.folder}"
            )

    @property
    def _has_evaluator(self) -> bool:
        return any(job == "evaluator" for job, _ in self._meta.places)

    def _order(self, what: str) -> None:
        if self.run.state == "RUNNING":
            with contextlib.suppress(FileNotFoundError):  # It ends just now.
                storage.write(storage.join(self._paths.ranks(0), what), b"")

    def _needed_are_done(self) -> bool:
        names = set(storage.names(self._paths.ranks(0)))
        return names >= {f"{rank}.done" for rank in self._needed}

    @property
    def _needed(self) -> list[int]:
        """The ranks of the nodes that train; where Spark feeds, those that keepers keep."""
        ranks = zip(ranks_of(self._meta.places), self._meta.places, strict=True)
        return [rank for rank, (job, _) in ranks if job not in ("ps", "evaluator")]

    def _wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Wait until the condition holds or the run is over; False if it is too late for that."""
        while self.run.state == "RUNNING" and not condition():
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(self._look_s)
        return True

    def _raise_failure(self) -> None:
        """Raise the own exception of a node that has failed, if one has."""
        names = storage.names(self._paths.ranks(0))
        if any(name.endswith(".failed") for name in names) or self.run.state != "RUNNING":
            self._wait(lambda: False, time.monotonic() + FAILING_S)
            if self.run.state != "RUNNING":
                self.run.wait()

    # ---- the nodes

    def tensorboard_url(self) -> str | None:
        """Where TensorBoard listens, with `tensorboard=True`; else None."""
        for node in self.cluster_info:
            if node["tb_port"]:
                return f"http://{node['host']}:{node['tb_port']}"
        return None

    def await_start(self, timeout_s: float) -> None:
        """Return when all nodes run.

        Raises:
            TimeoutError: they did not within the time.
            TrainingFailedError: one failed before.
        """
        deadline = time.monotonic() + timeout_s
        if not self._wait(self._are_up, deadline):
            raise TimeoutError(
                f"timed out waiting for reservations to complete: not all of "
                f"{len(self._meta.places)} nodes had started after {timeout_s:g} s"
            )
        if self.run.state not in ("RUNNING", "COMPLETE"):
            self.run.wait()
            raise RuntimeError(f"the cluster was ended before it had started: {self.run!r}")
        board: dict[str, Any] = {"pid": 0, "port": 0}
        if self._meta.board is not None:
            url = storage.join(self._paths.ranks(0), f"{self._board_rank()}.tensorboard")
            self._wait(lambda: storage.exists(url), deadline)
            board = json.loads(storage.read(url)) if storage.exists(url) else board
        ranks = json.loads(storage.read(self._paths.attempt(0)))["ranks"]
        for executor_id, (job, index) in enumerate(self._meta.places):
            shows = executor_id == self._meta.board
            address, _, port = ranks[f"{job} {index}"]["endpoint"].rpartition(":")
            self.cluster_info.append(
                {
                    "executor_id": executor_id,
                    "host": address,
                    "job_name": job,
                    "task_index": index,
                    "port": int(port),
                    "tb_pid": board["pid"] if shows else 0,
                    "tb_port": board["port"] if shows else 0,
                    "addr": None,
                    "authkey": None,
                }
            )

    def _are_up(self) -> bool:
        """Whether all nodes run, and where they are fed, their keepers listen."""
        names = set(storage.names(self._paths.ranks(0)))
        kept = self._needed if self._fed else ()
        return storage.exists(self._paths.attempt(0)) and names >= {f"{r}.{ALIVE}" for r in kept}

    def _board_rank(self) -> int:
        """The rank of the node that runs TensorBoard: ranks begin with those that train."""
        return ranks_of(self._meta.places)[self._meta.board or 0]
