"""Runs on the driver. Run a function several times independently, as TensorFlowOnSpark does."""

import functools
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster.plan import Resources, Role
from sparkdl.cluster.program.packaging import pack
from sparkdl.options import Options, check_count
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runner.request import Request
from sparkdl.runs.provenance import function_name
from sparkdl.tfos.absent_names import absent_names
from sparkdl.tfos.classic_spark import check_context
from sparkdl.tfos.cluster.topology import check_args, independent_request, num_gpus_of
from sparkdl.tfos.node.runtime import run_alone
from sparkdl.tfos.paths import default_filesystem

__all__ = ["run"]

__getattr__ = absent_names(__name__, __all__)


def run(
    sc: Any,
    map_fn: Callable[[Any, Any], Any],
    tf_args: Any,
    num_executors: int,
    use_barrier: bool = True,
) -> None:
    """Run a function several times. The executions are independent of each other.

    Each execution reads all rows of files that it opens with `sparkdl.data`.

    Args:
        sc: the SparkContext.
        map_fn: a function of `(args, ctx)`. The attributes `worker_num`, `executor_id`,
            `num_workers` and `defaultFS` of `ctx` are set.
        tf_args: the first argument of `map_fn`. Its `num_gpus`, if any, is the number of GPUs for
            each execution.
        num_executors: number of executions.
        use_barrier: True runs all executions at the same time, each in its own Spark slot, and
            ends all when one fails. False starts an execution whenever a slot is free, and
            completes the others when one fails.

    Raises:
        ConfigError, FunctionError: if an argument is invalid. Nothing was started.
        PreflightError: if `use_barrier` is True and Spark has too few slots. Nothing was started.
        TrialFailedError: if an execution failed; the cause is its exception.

    Example:
        >>> from pyspark import SparkContext
        >>> run(SparkContext.getOrCreate(), lambda args, ctx: print(ctx.worker_num), [], 1)
        ... # doctest: +SKIP
    """
    check_context(sc, "TFParallel.run")
    num_executors = check_count("num_executors", num_executors)
    check_args(tf_args)
    pack(map_fn)  # Raises an error that names what cannot be sent.
    options = Options.parse(
        {
            "name": function_name(map_fn),
            "num_gpus": num_gpus_of(tf_args),
            "spark": SparkSession.builder.getOrCreate(),
        }
    )
    filesystem = default_filesystem(sc).removesuffix("/")
    function = functools.partial(run_alone, map_fn, tf_args, num_executors, filesystem)
    if use_barrier:
        execute(independent_request(function, options, num_executors))
        return
    params = [{"worker_num": number} for number in range(num_executors)]
    role = Role(name="worker", count=1, resources=Resources(num_gpus=options.num_gpus))
    execute(Request("launch", (role,), function, options, params)).raise_for_failures()
