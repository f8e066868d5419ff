"""Runs on the driver (pure). Assign jobs to the nodes of a cluster, and build the request."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from sparkdl.cluster.plan import Resources, Role
from sparkdl.errors import ConfigError
from sparkdl.options import Options
from sparkdl.runner.request import Request
from sparkdl.runs.provenance import function_name
from sparkdl.tfos.cluster.node_topology import NodeTopology

Place = tuple[str, int]


def places_of(
    num_executors: int, num_ps: int, master_node: str | None, eval_node: bool
) -> tuple[Place, ...]:
    """Return the job and index of each node, by executor id, in the order of TensorFlowOnSpark.

    Args:
        num_executors: number of nodes.
        num_ps: number of parameter servers.
        master_node: job of the first node that trains, `chief` or `master`; None for a worker.
        eval_node: one node is an evaluator.

    Raises:
        ConfigError: if there are too few nodes.

    Example:
        >>> places_of(4, 1, "chief", False)
        (('ps', 0), ('chief', 0), ('worker', 0), ('worker', 1))
    """
    for name, value in (("num_executors", num_executors), ("num_ps", num_ps)):
        least = 1 if name == "num_executors" else 0
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} is {value!r}; expected a whole number of at least {least}.")
    num_master, num_eval = int(bool(master_node)), int(eval_node)
    num_workers = num_executors - num_ps - num_master - num_eval
    if num_workers < 0 or num_workers + num_master < 1:
        raise ConfigError(
            f"num_executors={num_executors} is too few for {num_ps} ps, {num_master} master and "
            f"{num_eval} evaluator nodes and at least one node that trains. Raise num_executors."
        )
    jobs = {"ps": num_ps, master_node or "": num_master, "evaluator": num_eval}
    counts = [*jobs.items(), ("worker", num_workers)]
    return tuple((job, index) for job, count in counts for index in range(count))


def board_place(places: Sequence[Place]) -> int:
    """Return the executor id of the node for TensorBoard: the first worker, else the master.

    Example:
        >>> board_place([("ps", 0), ("chief", 0), ("worker", 0)]), board_place([("chief", 0)])
        (2, 0)
    """
    if ("worker", 0) in places:
        return places.index(("worker", 0))
    return next(i for i, (job, _) in enumerate(places) if job not in ("ps", "evaluator"))


def _roles(
    places: Sequence[Place], resources: Resources, driver_ps: bool = False
) -> tuple[Role, ...]:
    """Return the roles of the gang. Roles that train come first, so that rank 0 is the chief."""
    jobs = list(dict.fromkeys(job for job, _ in places))
    apart = [job for job in ("evaluator", "ps") if job in jobs]
    counts = collections.Counter(job for job, _ in places)
    return tuple(
        Role(
            name=job,
            count=counts[job],
            resources=resources,
            trains=job not in apart,
            in_ring=job not in apart,
            in_world=job not in apart,
            strategy="local" if job in apart else "multi_worker",
            must_return=job not in apart,
            hides_gpus=job == "ps",
            on_driver=job == "ps" and driver_ps,
        )
        for job in [*(job for job in jobs if job not in apart), *apart]
    )


def ranks_of(places: Sequence[Place]) -> list[int]:
    """Return the rank of each node, by executor id.

    Example:
        >>> ranks_of([("ps", 0), ("chief", 0), ("worker", 0)])
        [2, 0, 1]
    """
    roles = _roles(places, Resources())
    by_rank = [(role.name, index) for role in roles for index in range(role.count)]
    return [by_rank.index(place) for place in places]


def request_of(
    function: Callable[..., Any],
    map_fun: Callable[..., Any],
    tf_args: Any,
    places: Sequence[Place],
    spark: Any,
    stays: bool,
    driver_ps: bool,
) -> Request:
    """Return the request for a run of the cluster.

    Args:
        function: the function that runs a node.
        map_fun: the user's function.
        tf_args: the first argument of `map_fun`.
        places: the job and index of each node, see `places_of`.
        spark: the SparkSession.
        stays: the nodes continue after the Spark job that started them has ended.
        driver_ps: run the parameter servers on the driver.

    Raises:
        ConfigError: if `tf_args` cannot be sent to Spark.
    """
    check_args(tf_args)
    options = Options.parse(
        {
            "name": function_name(map_fun),
            "num_gpus": num_gpus_of(tf_args),
            "max_losses": 0,  # Rows that were fed to a lost node cannot be fed again.
            "wait": False,
            "spark": spark,
        }
    )
    resources = Resources(num_gpus=options.num_gpus, default_gpus="one")
    return _request(_roles(places, resources, driver_ps), function, options, stays)


def independent_request(
    function: Callable[..., Any], options: Options, num_executors: int
) -> Request:
    """Return the request for several runs of a function at the same time.

    Args:
        function: the function; each process calls it.
        options: the options of the run.
        num_executors: the number of processes.
    """
    role = Role(
        name="worker",
        count=num_executors,
        resources=Resources(num_gpus=options.num_gpus, default_gpus="one"),
        trains=False,  # Each process works for itself, and reads all rows.
    )
    return _request((role,), function, options, detached=False)


def _request(
    roles: tuple[Role, ...], function: Callable[..., Any], options: Options, detached: bool
) -> Request:
    return Request(
        "tfos",
        roles,
        function,
        options,
        [{}],
        is_gang=True,
        is_distributed=True,
        given_topology=NodeTopology(detached),
        detect_gpus=True,
        ends_by_order=True,
        is_resumable=False,  # Rows that were fed cannot be fed again.
    )


def check_args(tf_args: Any) -> None:
    """Validate that the arguments of a function can be sent to Spark.

    Raises:
        ConfigError: if the arguments cannot be pickled.
    """
    try:
        cloudpickle.dumps(tf_args)
    except Exception as exc:
        raise ConfigError(
            f"tf_args cannot be sent to Spark: {type(exc).__name__}: {exc}. Pass numbers, strings "
            "and paths, and open files and sessions inside the function."
        ) from exc


def num_gpus_of(tf_args: Any) -> int | None:
    """Return `num_gpus` of the arguments, the number of GPUs for each node; None if not set.

    Example:
        >>> from argparse import Namespace
        >>> num_gpus_of(Namespace(num_gpus=2)), num_gpus_of({"num_gpus": 0}), num_gpus_of([])
        (2, 0, None)
    """
    num_gpus = tf_args.get("num_gpus") if isinstance(tf_args, dict) else None
    num_gpus = getattr(tf_args, "num_gpus", num_gpus)
    return None if num_gpus is None else int(num_gpus)
