"""Runs in the training process. Run the TensorFlow server of a parameter-server run."""

import json
import os
from typing import Any

from sparkdl import context


def serve() -> None:
    """Run this process's TensorFlow server, as worker or parameter server; never return.

    The servers of a parameter-server run have no program of their own: the chief sends them the
    functions to compute. They do not exit by themselves; they are stopped after the chief exits.

    Raises:
        RuntimeError: if `TF_CONFIG` does not make this process a `worker` or `ps`.
    """
    tf_config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    task: dict[str, Any] = tf_config.get("task", {})
    if task.get("type") not in ("worker", "ps"):
        raise RuntimeError(
            f"distribute.serve() was called in a process whose TF_CONFIG has task={task}; expected "
            "the type 'worker' or 'ps'. Only workers and parameter servers of "
            "experiment.parameter_server can serve, and this process is "
            f"{context.current().role} of {context.current().kind!r}: call distribute.strategy() "
            "here."
        )
    import tensorflow as tf

    # The chief is then notified of a dead server, and each peer of a worker has a thread to wait
    # in (tensorflow.org/tutorials/distribute/parameter_server_training).
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    config = tf.compat.v1.ConfigProto()
    num_threads = int(os.environ.get("TF_NUM_INTEROP_THREADS") or os.cpu_count() or 1)
    num_workers = len(tf_config["cluster"].get("worker", []))
    config.inter_op_parallelism_threads = max(num_threads, num_workers + 1)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(tf_config["cluster"]),
        job_name=task["type"],
        task_index=int(task["index"]),
        protocol="grpc",
        config=config,
        start=True,
    )
    server.join()
