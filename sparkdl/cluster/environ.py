"""Runs anywhere (pure). The environment variables of a training process."""

import json
import re
from collections.abc import Mapping, Sequence

from sparkdl.cluster.plan import Member

# The variables by which Spark hands its own secrets to executors and Python workers: those of
# SecurityManager and SSLOptions, of the Python gateway and workers, of Spark Connect, and the
# options of the JVM, in which Kubernetes has the passwords of `spark.ssl`.
_SECRETS_OF_SPARK = re.compile(
    r"_SPARK_\w*(SECRET|PASSWORD)\w*|SPARK_JAVA_OPT_\d+|PYTHON_WORKER_FACTORY_SECRET"
    r"|PYSPARK_GATEWAY_SECRET|SPARK_CONNECT_AUTHENTICATE_TOKEN"
)
# The file with the tokens of Kerberos, which only Hadoop's own file systems need.
_TOKENS = "HADOOP_TOKEN_FILE_LOCATION"
_HADOOP = re.compile(r"(hdfs|viewfs|webhdfs|swebhdfs|har|abfss?|wasbs?|gs|ofs|o3fs)://")


def without_credentials(environ: Mapping[str, str], root: str) -> dict[str, str]:
    """Return the environment of a Spark task without the credentials that training does not need.

    Args:
        environ: the environment of the task.
        root: the path or URL of the run: on a file system of Hadoop, Hadoop's tokens are needed.

    Example:
        >>> without_credentials({"_SPARK_AUTH_SECRET": "x", "HOME": "/home/me"}, "/shared/runs")
        {'HOME': '/home/me'}
    """
    removed = () if _HADOOP.match(root) else (_TOKENS,)
    return {
        name: value
        for name, value in environ.items()
        if name not in removed and not _SECRETS_OF_SPARK.fullmatch(name)
    }


def thread_counts(cores: int, user_variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that limit the threads of a training process to its share of cores.

    TensorFlow reads its two variables when it makes its thread pools (process_util.cc), after the
    process was forked. OpenMP reads its variable when it starts: a library that the fork server has
    imported, such as that of NumPy, keeps the value that Spark set for its Python workers.

    Args:
        cores: the number of cores of this process.
        user_variables: variables that the user has set, which are left alone.

    Example:
        >>> thread_counts(2, {"OMP_NUM_THREADS": "1"})
        {'TF_NUM_INTRAOP_THREADS': '2', 'TF_NUM_INTEROP_THREADS': '2'}
    """
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return {name: str(cores) for name in names if name not in user_variables}


def shared_gpu_variables() -> dict[str, str]:
    """Return the variables that let several processes use the memory of one GPU.

    TensorFlow then takes memory as it needs it, in place of all at once (gpu_process_state.cc), and
    so does JAX (its page "GPU memory allocation"). PyTorch does so anyway.

    Example:
        >>> sorted(shared_gpu_variables())
        ['TF_FORCE_GPU_ALLOW_GROWTH', 'XLA_PYTHON_CLIENT_PREALLOCATE']
    """
    return {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def tf_config(members: Sequence[Member], endpoints: Sequence[str], rank: int) -> dict[str, str]:
    """Return TensorFlow's description of a cluster, see its `TFConfigClusterResolver`.

    An evaluator is not part of the cluster. `TF_GRPC_REUSE_PORT` lets TensorFlow's server listen on
    a port that the Spark task holds until the end (grpc_server_lib.cc).

    Args:
        members: the members of the gang, by rank.
        endpoints: `address:port` of each member.
        rank: the rank whose variables are returned.

    Example:
        >>> from sparkdl.cluster.plan import Plan, Role
        >>> gang = Plan(kind="allreduce", roles=(Role(name="worker", count=2),)).members
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
    endpoints: Sequence[str], rank: int, run_id: str, attempt: int
) -> dict[str, str]:
    """Return the variables that `torchrun` sets, which PyTorch and the tools around it read.

    They are those of one process on each node, `torchrun --nproc-per-node 1`, also where several
    ranks share a host: a rank sees its own GPUs only, so that `LOCAL_RANK` is the number of its
    device. `NODE_RANK` is what Lightning reads where `GROUP_RANK` is not known. See the section
    "Environment Variables" of PyTorch's page on torchrun.

    Args:
        endpoints: `address:port` of each rank.
        rank: the rank whose variables are returned.
        run_id: the run.
        attempt: number of earlier attempts at the trial.

    Example:
        >>> variables = torch_variables(["10.0.0.1:4000", "10.0.0.2:4000"], 1, "digits-1", 0)
        >>> variables["MASTER_ADDR"], variables["RANK"], variables["LOCAL_RANK"]
        ('10.0.0.1', '1', '0')
    """
    address, _, port = endpoints[0].rpartition(":")
    rank_text, size = str(rank), str(len(endpoints))
    return {
        "MASTER_ADDR": address.strip("[]"),
        "MASTER_PORT": port,
        **dict.fromkeys(("RANK", "ROLE_RANK", "GROUP_RANK", "NODE_RANK"), rank_text),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE"), size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def interface_variables(interface: str | None, is_chosen: bool) -> dict[str, str]:
    """Return the variables that bind the process groups of PyTorch to a network interface.

    Gloo uses the address of the host's name otherwise, which many hosts map to themselves. NCCL
    finds the fastest interface itself, so that it is only told which one the user has chosen; it
    takes the name as the beginning of names unless `=` is before it.

    Args:
        interface: the interface by which the other ranks reach this host; None if it is unknown.
        is_chosen: the user has chosen it.

    Example:
        >>> interface_variables("eth1", is_chosen=True)
        {'GLOO_SOCKET_IFNAME': 'eth1', 'NCCL_SOCKET_IFNAME': '=eth1'}
    """
    if interface is None:
        return {}
    nccl = {"NCCL_SOCKET_IFNAME": f"={interface}"} if is_chosen else {}
    return {"GLOO_SOCKET_IFNAME": interface, **nccl}


def jax_variables(endpoints: Sequence[str], rank: int) -> dict[str, str]:
    """Return the variables that describe the gang to JAX, and to Keras on JAX.

    `jax.distributed.initialize` reads the address only: pass it
    `num_processes=int(os.environ["JAX_NUM_PROCESSES"])` and `process_id` in the same way.
    `keras.distribution.initialize()` reads its own three variables (distribution_lib.py).

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


def horovod_variables(nodes: Sequence[str], rank: int, local: tuple[int, int]) -> dict[str, str]:
    """Return the variables by which `horovodrun` tells a process its place.

    Args:
        nodes: the names of the hosts of all ranks, by rank.
        rank: the rank whose variables are returned.
        local: the local rank and local world size of the process.

    Example:
        >>> horovod_variables(["a", "a", "b"], 2, (0, 1))["HOROVOD_CROSS_RANK"]
        '1'
    """
    local_rank, local_size = local
    hosts = [node for node in dict.fromkeys(nodes) if nodes.count(node) > local_rank]
    numbers = {
        "RANK": rank,
        "SIZE": len(nodes),
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": local_size,
        "CROSS_RANK": hosts.index(nodes[rank]),
        "CROSS_SIZE": len(hosts),
    }
    return {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}


def gang_variables(
    members: Sequence[Member], endpoints: Sequence[str], rank: int, run_id: str, attempt: int
) -> dict[str, str]:
    """Return the variables by which the processes of a gang find each other, in any framework.

    A program need not name its framework: one that imports only `transformers` uses PyTorch. The
    variables of one framework mean nothing to the others.

    Args:
        members: the members of the gang, by rank.
        endpoints: `address:port` of each member.
        rank: the rank whose variables are returned; one outside the world, such as an evaluator,
            gets only TensorFlow's.
        run_id, attempt: see `torch_variables`.
    """
    variables = tf_config(members, endpoints, rank)
    if not members[rank].role.in_world:
        return variables
    world = [e for m, e in zip(members, endpoints, strict=True) if m.role.in_world]
    return {
        **variables,
        **torch_variables(world, rank, run_id, attempt),
        **jax_variables(world, rank),
    }
