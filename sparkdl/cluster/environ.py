"""Runs anywhere (pure). The environment variables of a training process."""

import json
from collections.abc import Mapping, Sequence

from sparkdl.cluster.plan import Member

__all__ = ["gang_variables", "jax_variables", "tf_config", "thread_counts", "torch_variables"]


def thread_counts(cores: int, given: Mapping[str, str]) -> dict[str, str]:
    """How many threads a training process may use, so that trials of one host share its cores.

    TensorFlow reads its two variables when it makes its thread pools (process_util.cc), after the
    process was forked. OpenMP reads its own when it starts: a library that the fork server has
    imported, such as NumPy's, keeps what Spark set for its Python workers.

    Args:
        cores: the share of this process.
        given: variables that the person set; those are left alone.

    Example:
        >>> thread_counts(2, {"OMP_NUM_THREADS": "1"})
        {'TF_NUM_INTRAOP_THREADS': '2', 'TF_NUM_INTEROP_THREADS': '2'}
    """
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return {name: str(cores) for name in names if name not in given}


def tf_config(members: Sequence[Member], endpoints: Sequence[str], rank: int) -> dict[str, str]:
    """TensorFlow's description of a cluster, see `tf.distribute`'s TFConfigClusterResolver.

    An evaluator is not part of the cluster that trains. `TF_GRPC_REUSE_PORT` lets TensorFlow's
    server listen on a port that our task holds until the end (grpc_server_lib.cc).

    Args:
        members: who is in the gang, by rank.
        endpoints: `address:port` of each.
        rank: whose variables they are.

    Example:
        >>> from sparkdl.cluster.plan import Plan, Resources, Role
        >>> gang = Plan("allreduce", (Role("worker", 2, Resources()),)).members
        >>> tf_config(gang, ["10.0.0.1:4000", "10.0.0.2:4000"], 1)["TF_CONFIG"]
        '{"cluster": {"worker": ["10.0.0.1:4000", "10.0.0.2:4000"]}, \
"task": {"type": "worker", "index": 1}}'
    """
    cluster: dict[str, list[str]] = {}
    for member, endpoint in zip(members, endpoints, strict=True):
        if member.role.name != "evaluator":
            cluster.setdefault(member.role.name, []).append(endpoint)
    me = members[rank]
    task = {"type": me.role.name, "index": me.index}
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
        "TF_GRPC_REUSE_PORT": "1",
    }


def torch_variables(
    endpoints: Sequence[str], rank: int, local_rank: int, local_world_size: int
) -> dict[str, str]:
    """What `torch.distributed.init_process_group` reads, see its `env://` initialization.

    Example:
        >>> torch_variables(["10.0.0.1:4000", "10.0.0.2:4000"], 1, 0, 1)["MASTER_ADDR"]
        '10.0.0.1'
    """
    address, _, port = endpoints[0].rpartition(":")
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(endpoints)),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
    }


def jax_variables(endpoints: Sequence[str], rank: int) -> dict[str, str]:
    """What describes the gang to JAX and to Keras on JAX.

    `jax.distributed.initialize` reads the address only; give it
    `num_processes=int(os.environ["JAX_NUM_PROCESSES"])` and `process_id` alike.
    `keras.distribution.initialize()` reads its own three (distribution_lib.py).

    Example:
        >>> jax_variables(["10.0.0.1:4000", "10.0.0.2:4000"], 1)["JAX_PROCESS_ID"]
        '1'
    """
    return {
        "JAX_COORDINATOR_ADDRESS": endpoints[0],
        "JAX_NUM_PROCESSES": str(len(endpoints)),
        "JAX_PROCESS_ID": str(rank),
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": endpoints[0],
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(len(endpoints)),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
    }


def gang_variables(
    framework: str | None,
    members: Sequence[Member],
    endpoints: Sequence[str],
    rank: int,
    local: tuple[int, int],
) -> dict[str, str]:
    """The variables with which the processes of a gang find each other, but an evaluator.

    Args:
        framework: `torch` and `jax` get their own; anything else gets TensorFlow's.
        members, endpoints, rank: see `tf_config`.
        local: this process's local rank and local world size.
    """
    if framework not in ("torch", "jax"):
        return tf_config(members, endpoints, rank)
    if members[rank].role.name == "evaluator":
        return {}
    world = [e for m, e in zip(members, endpoints, strict=True) if m.role.name != "evaluator"]
    if framework == "torch":
        return torch_variables(world, rank, *local)
    return jax_variables(world, rank)
