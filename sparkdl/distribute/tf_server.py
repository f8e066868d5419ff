"""Runs in the training process. The servers of a parameter-server run."""

import json
import os
from typing import Any

from sparkdl import context

__all__ = ["serve"]


def serve() -> None:
    """Run this process's TensorFlow server, as worker or parameter server; it never returns.

    The servers of a parameter-server run have no program of their own: the chief sends them what
    to compute. They do not end by themselves either; they are ended after the chief.

    Raises:
        RuntimeError: `TF_CONFIG` does not make this process a `worker` or `ps`.
    """
    given = json.loads(os.environ.get("TF_CONFIG", "{}"))
    task: dict[str, Any] = given.get("task", {})
    if task.get("type") not in ("worker", "ps"):
        raise RuntimeError(
            f"distribute.serve() was called in a process whose TF_CONFIG has task={task}; expected "
            "the type 'worker' or 'ps'. Only the servers of experiment.parameter_server serve; "
            f"this process is {context.current().role} of {context.current().kind!r}: call "
            "distribute.strategy() here."
        )
    import tensorflow as tf

    # Lets the chief hear of a dead server, and gives each peer of a worker a thread to wait in
    # (tensorflow.org/tutorials/distribute/parameter_server_training).
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    config = tf.compat.v1.ConfigProto()
    threads = int(os.environ.get("TF_NUM_INTEROP_THREADS") or os.cpu_count() or 1)
    num_workers = len(given["cluster"].get("worker", []))
    config.inter_op_parallelism_threads = max(threads, num_workers + 1)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(given["cluster"]),
        job_name=task["type"],
        task_index=int(task["index"]),
        protocol="grpc",
        config=config,
        start=True,
    )
    server.join()
