"""Runs on the driver. Independent runs of one function, by TensorFlowOnSpark's name."""

import functools
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster.plan import Resources, Role
from sparkdl.cluster.program.packaging import pack
from sparkdl.options import Options, check_count
from sparkdl.runner.execute import execute
from sparkdl.runner.request import Request
from sparkdl.runs.provenance import function_name
from sparkdl.tfos.cluster.topology import check_args, independent_request, num_gpus_of
from sparkdl.tfos.node.runtime import run_alone
from sparkdl.tfos.paths import default_filesystem

__all__ = ["run"]


def run(
    sc: Any,
    map_fn: Callable[[Any, Any], Any],
    tf_args: Any,
    num_executors: int,
    use_barrier: bool = True,
) -> None:
    """Run a function several times, each by itself: the runs know nothing of each other.

    Args:
        sc: the SparkContext.
        map_fn: a function of `(args, ctx)`; of its context `worker_num`, `executor_id`,
            `num_workers` and `defaultFS` are set.
        tf_args: its first argument. `num_gpus` in it is how many GPUs each gets.
        num_executors: how often.
        use_barrier: all at the same time, each in a Spark slot of its own; the first that fails
            ends all. Else as slots come free, and the others go on.

    Raises:
        ConfigError, FunctionError: an argument is wrong. Nothing was started.
        PreflightError: with `use_barrier`, Spark has fewer slots. Nothing was started.
        TrialFailedError: one failed; its cause is its own exception.

    Example:
        >>> from pyspark import SparkContext
        >>> run(SparkContext.getOrCreate(), lambda args, ctx: print(ctx.worker_num), [], 1)
        ... # doctest: +SKIP
    """
    check_count("num_executors", num_executors)
    check_args(tf_args)
    pack(map_fn)  # An error of it names what cannot be sent.
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
