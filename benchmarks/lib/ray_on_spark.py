"""Start Ray's cluster on the active Spark session; the module runs in the environment of Ray."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from pyspark.sql import SparkSession
from ray.util.spark import setup_ray_cluster, shutdown_ray_cluster

_STORE_BYTES = 100 << 20  # Nothing large goes through Ray's store.
_HEAP_BYTES = 500 << 20  # A number for Ray's scheduler; it is not enforced.


@contextmanager
def ray_cluster(workers: int) -> Iterator[None]:
    """Run the block in a cluster with worker nodes of one core, which hold all slots of Spark."""
    # Without these, a node asks for all cores of the host. Embedded Spark refuses them.
    is_embedded = SparkSession.active().sparkContext.master.startswith("local[")
    cores = {} if is_embedded else {"num_cpus_worker_node": 1, "num_gpus_worker_node": 0}
    # The names of Unix sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        setup_ray_cluster(
            max_worker_nodes=workers,
            num_cpus_head_node=0,
            **cores,
            memory_worker_node=_HEAP_BYTES,
            memory_head_node=_HEAP_BYTES,
            object_store_memory_worker_node=_STORE_BYTES,
            object_store_memory_head_node=_STORE_BYTES,
            head_node_options={"include_dashboard": False},
            ray_temp_root_dir=folder,
        )
        try:
            ray.init(log_to_driver=False)
            yield
        finally:
            ray.shutdown()
            shutdown_ray_cluster()
