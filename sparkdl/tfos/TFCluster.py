"""Runs on the driver. Start a cluster of TensorFlow nodes, as TensorFlowOnSpark does.

Arguments, defaults and results are those of `TFCluster` in TensorFlowOnSpark 2.2.5. A cluster is a
run of sparkdl, `cluster.run`: the logs and results of its nodes are in a run directory.
"""

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster.plan import Resources
from sparkdl.cluster.program.packaging import pack
from sparkdl.cluster.program.preloading import find_framework
from sparkdl.cluster.spark import SparkCluster
from sparkdl.errors import ConfigError, PreflightError
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.pipeline.prepare import check_framework
from sparkdl.runner.pipeline.preview import USES_RESULT, end_preview
from sparkdl.runs import Run
from sparkdl.tfos.absent_names import absent_names
from sparkdl.tfos.classic_spark import check_context
from sparkdl.tfos.cluster.handle import InputMode, TFCluster
from sparkdl.tfos.cluster.topology import board_place, places_of, request_of
from sparkdl.tfos.node.runtime import QUEUES, ClusterInfo, run_node
from sparkdl.tfos.paths import default_filesystem

__all__ = ["InputMode", "TFCluster", "run", "tf_status"]

__getattr__ = absent_names(__name__, __all__)

# The error of the latest cluster under the key `error`, once a node has failed. Programs read it.
tf_status: dict[str, str] = {}

# Executors of an application that has just started may take this long to register.
REGISTRATION_TIMEOUT_S = 20.0
SLOTS_POLL_S = 0.1
MAIN_THREAD_POLL_S = 1.0


def run(
    sc: Any,
    map_fun: Callable[[Any, Any], Any],
    tf_args: Any,
    num_executors: int,
    num_ps: int,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    log_dir: str | None = None,
    driver_ps_nodes: bool = False,
    master_node: str | None = None,
    reservation_timeout: float = 600,
    queues: Sequence[str] = QUEUES,
    eval_node: bool = False,
    release_port: bool = True,
) -> TFCluster:
    """Start a cluster and run a function on each of its nodes. Return when all nodes have started.

    Args:
        sc: the SparkContext.
        map_fun: a function of `(args, ctx)`, see `sparkdl.tfos.node.runtime.TFNodeContext`.
        tf_args: the first argument of `map_fun`; a list also becomes `sys.argv`. Its `num_gpus`, if
            any, is the number of GPUs for each node.
        num_executors: number of nodes. Each node has its own Spark slot.
        num_ps: number of nodes that are parameter servers; their functions need not return.
        tensorboard: run TensorBoard on the first worker while its function runs.
        input_mode: `InputMode.SPARK` for a cluster that `train` and `inference` feed. The running
            nodes of such a cluster, except parameter servers, occupy no Spark slot.
        log_dir: folder of the event files for TensorBoard; None is `tensorboard_<executor id>` in
            the folder of the node.
        driver_ps_nodes: run the parameter servers on the driver.
        master_node: the job of the first node that trains, `chief` or `master`; `TF_CONFIG` is then
            set. None if all nodes that train are workers.
        reservation_timeout: seconds within which all nodes must have started.
        queues: the names of the queues, see `train`.
        eval_node: run an evaluator on one node.
        release_port: False holds the port of a node until the node calls `ctx.release_port()`.

    Raises:
        ConfigError, FunctionError: if an argument is invalid. Nothing was started.
        PreflightError: if Spark cannot run the cluster, for example because it has too few slots.
            Nothing was started.
        TimeoutError: if not all nodes have started in time.
        TrainingFailedError: if a node failed before all nodes had started.

    Example:
        >>> from pyspark import SparkContext
        >>> def main(args, ctx):
        ...     feed = ctx.get_data_feed(train_mode=False)
        ...     while not feed.should_stop():
        ...         rows = feed.next_batch(10)
        ...         feed.batch_results([row * row for row in rows])
        >>> sc = SparkContext.getOrCreate()  # doctest: +SKIP
        >>> cluster = run(sc, main, [], 1, 0, input_mode=InputMode.SPARK)  # doctest: +SKIP
        >>> cluster.inference(sc.parallelize(range(100))).sum()  # doctest: +SKIP
        328350
        >>> cluster.shutdown()  # doctest: +SKIP
    """
    check_context(sc, "TFCluster.run")
    is_fed = input_mode == InputMode.SPARK
    _check(map_fun, input_mode, driver_ps_nodes, eval_node)
    places = places_of(num_executors, num_ps, master_node, eval_node)
    info = ClusterInfo(
        places=places,
        default_fs=default_filesystem(sc).removesuffix("/"),
        working_dir=os.getcwd(),
        release_port=release_port,
        tensorboard_node=board_place(places) if tensorboard else None,
        log_dir=log_dir,
        queues=tuple(queues),
    )
    program = pack(map_fun)  # Raises an error that names what cannot be sent.
    check_framework(find_framework(program.imports), program)
    function = functools.partial(run_node, map_fun, tf_args, info)
    spark = SparkSession.builder.getOrCreate()
    request = request_of(function, map_fun, tf_args, places, spark, is_fed, driver_ps_nodes)
    spark_cluster = SparkCluster(spark)
    if is_fed and spark_cluster.conf("spark.dynamicAllocation.enabled") == "true":
        raise PreflightError(
            "spark.dynamicAllocation.enabled is true, so Spark would end executors whose nodes "
            "wait for rows. Start Spark with spark.dynamicAllocation.enabled=false and "
            f"spark.executor.instances={num_executors}."
        )
    num_tasks = sum(role.count for role in request.roles if not role.on_driver)
    _await_slots(spark_cluster, num_tasks, min(reservation_timeout, REGISTRATION_TIMEOUT_S))
    tf_status.clear()
    started = execute(request)
    end_preview(USES_RESULT)
    threading.Thread(target=_cancel_with_program, args=(started,), daemon=True).start()
    cluster = TFCluster(sc, spark_cluster, started, info, input_mode)
    try:
        cluster.await_start(reservation_timeout)
    except BaseException:
        started.cancel()
        raise
    return cluster


def _check(map_fun: Any, input_mode: Any, driver_ps_nodes: bool, eval_node: bool) -> None:
    if not callable(map_fun):
        raise ConfigError(f"map_fun is {map_fun!r}; expected a function of (args, ctx).")
    if input_mode not in (InputMode.TENSORFLOW, InputMode.SPARK):
        raise ConfigError(
            f"input_mode is {input_mode!r}; expected InputMode.TENSORFLOW or InputMode.SPARK."
        )
    if input_mode == InputMode.SPARK and (driver_ps_nodes or eval_node):
        name = "driver_ps_nodes" if driver_ps_nodes else "eval_node"
        raise ConfigError(
            f"{name} is True and input_mode is InputMode.SPARK; expected InputMode.TENSORFLOW. "
            f"Leave {name} out, or let the nodes read their own data."
        )


def _await_slots(cluster: SparkCluster, num_slots: int, timeout_s: float) -> None:
    """Wait for executors to register; the number of executors to expect is unknown."""
    if cluster.is_local:
        return
    deadline = time.monotonic() + timeout_s
    while cluster.slots_now(Resources()) < num_slots and time.monotonic() < deadline:
        time.sleep(SLOTS_POLL_S)


def _cancel_with_program(run: Run) -> None:
    """Cancel a cluster that is still running when the driver's program ends.

    The error of a node that fails before is put into `tf_status`.
    """
    with ThreadPoolExecutor(1) as pool:
        # At exit Python ends the idle threads of pools before it joins the busy ones.
        idle = pool.submit(threading.current_thread).result()
        while run.state == "RUNNING" and idle.is_alive():
            idle.join(MAIN_THREAD_POLL_S)
    if run.state == "FAILED":
        tf_status["error"] = next((t.error for t in run.trials if t.error), str(run.state))
    run.cancel()
