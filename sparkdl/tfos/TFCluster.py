"""Runs on the driver. Starts a cluster of TensorFlow nodes, by TensorFlowOnSpark's name.

Arguments, defaults and results are those of TensorFlowOnSpark 2.2.5's `TFCluster`. Below it is a
gang as any other of sparkdl: everything its nodes say is kept in a run directory, `cluster.run`.
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
from sparkdl.cluster.spark import SparkCluster
from sparkdl.errors import ConfigError, PreflightError
from sparkdl.runner.execute import execute
from sparkdl.runs import Run
from sparkdl.tfos.cluster.handle import InputMode, TFCluster
from sparkdl.tfos.cluster.topology import board_place, places_of, request_of
from sparkdl.tfos.node.runtime import QUEUES, Meta, run_node
from sparkdl.tfos.paths import default_filesystem

__all__ = ["InputMode", "TFCluster", "run"]

REGISTER_S = 20.0
LOOK_S = 1.0


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
    """Start a cluster: a function runs on each of its nodes. Returns when all have started.

    Args:
        sc: the SparkContext.
        map_fun: a function of `(args, ctx)`, see `sparkdl.tfos.node.runtime.TFNodeContext`.
        tf_args: its first argument; a list also becomes `sys.argv`. `num_gpus` in it is how many
            GPUs each node gets.
        num_executors: how many nodes, each in a Spark slot of its own.
        num_ps: how many of them are parameter servers; their functions need not return.
        tensorboard: the first worker runs TensorBoard while its function runs.
        input_mode: `InputMode.SPARK` for a cluster that `train` and `inference` feed. Its nodes
            take no slot once they run, but for parameter servers.
        log_dir: what TensorBoard shows; None is `tensorboard_<executor id>` in the node's folder.
        driver_ps_nodes: run the parameter servers on the driver.
        master_node: the job of the first node that trains, `chief` or `master`: then `TF_CONFIG` is
            set. None for workers only.
        reservation_timeout: seconds until all nodes must have started.
        queues: names of queues, see `train`.
        eval_node: one node is an evaluator.
        release_port: False leaves the port of a node held until it calls `ctx.release_port()`.

    Raises:
        ConfigError, FunctionError: an argument is wrong. Nothing was started.
        PreflightError: Spark cannot run it, such as with fewer slots. Nothing was started.
        TimeoutError: not all nodes had started in time.
        TrainingFailedError: a node failed before all had started.

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
    fed = input_mode == InputMode.SPARK
    _check(map_fun, input_mode, driver_ps_nodes, eval_node)
    places = places_of(num_executors, num_ps, master_node, eval_node)
    meta = Meta(
        places,
        default_filesystem(sc).removesuffix("/"),
        os.getcwd(),
        release_port,
        board_place(places) if tensorboard else None,
        log_dir,
        tuple(queues),
    )
    pack(map_fun)  # An error of it names what cannot be sent.
    function = functools.partial(run_node, map_fun, tf_args, meta)
    spark = SparkSession.builder.getOrCreate()
    request = request_of(function, map_fun, tf_args, places, spark, fed, driver_ps_nodes)
    on = SparkCluster(spark)
    if fed and on.conf("spark.dynamicAllocation.enabled") == "true":
        raise PreflightError(
            "spark.dynamicAllocation.enabled is true, and Spark would end executors whose nodes "
            "wait for rows. Start it with spark.dynamicAllocation.enabled=false and "
            f"spark.executor.instances={num_executors}."
        )
    num_tasks = sum(role.count for role in request.roles if not role.on_driver)
    _await_slots(on, num_tasks, min(reservation_timeout, REGISTER_S))
    made = execute(request)
    threading.Thread(target=_end_with_main, args=(made,), daemon=True).start()
    cluster = TFCluster(sc, made, meta, input_mode)
    try:
        cluster.await_start(reservation_timeout)
    except BaseException:
        made.cancel()
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
        what = "driver_ps_nodes" if driver_ps_nodes else "eval_node"
        raise ConfigError(f"{what}=True is for InputMode.TENSORFLOW, and input_mode is SPARK.")


def _await_slots(cluster: SparkCluster, need: int, timeout_s: float) -> None:
    """Give the executors of a young application, whose number nobody knows, time to register."""
    deadline = time.monotonic() + timeout_s
    young = not cluster.is_local
    while young and cluster.slots_now(Resources()) < need and time.monotonic() < deadline:
        time.sleep(0.1)


def _end_with_main(made: Run) -> None:
    """End a cluster that nobody has shut down when the driver's program has ended."""
    with ThreadPoolExecutor(1) as pool:
        # Python ends the idle threads of pools first, and then waits for those that have work.
        idle = pool.submit(threading.current_thread).result()
        while made.state == "RUNNING" and idle.is_alive():
            idle.join(LOOK_S)
    made.cancel()
