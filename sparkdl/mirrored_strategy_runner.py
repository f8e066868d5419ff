"""Runs on the driver. The API of spark-tensorflow-distributor.

```python
from sparkdl import MirroredStrategyRunner

result = MirroredStrategyRunner(num_slots=8).run(train)
```

Names, arguments and defaults are those of spark-tensorflow-distributor 1.0
(https://github.com/tensorflow/ecosystem).
"""

import contextlib
import functools
import logging
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from sparkdl import context, devices, distribute, experiment
from sparkdl.cluster.spark import SparkCluster
from sparkdl.cluster.spark_context import raw_context
from sparkdl.errors import ConfigError, PreflightError
from sparkdl.host.cuda_visibility import as_seen_by_executor
from sparkdl.host.supported_versions import check_versions
from sparkdl.runner.pipeline.preview import IN_PROCESS, end_preview

__all__ = ["MirroredStrategyRunner"]

_IGNORE_SSL = "tensorflow.spark.distributor.ignoreSsl"
_logger = logging.getLogger("sparkdl.mirrored_strategy_runner")


class MirroredStrategyRunner:
    """Runs a training function in several workers that train one model.

    Args:
        num_slots: number of GPUs in all workers together; without GPUs, the number of workers.
        local_mode: call the function here, on the driver, in place of workers.
        use_gpu: train with GPUs: each worker gets those of a Spark task,
            `spark.task.resource.gpu.amount`.
        gpu_resource_name: the name of the GPUs in Spark's settings, which must be `gpu`, except in
            `local_mode`.
        use_custom_strategy: the function creates its own `tf.distribute` strategy. Otherwise it is
            called in the scope of one.

    Raises:
        ConfigError: if `num_slots` is below 1, or `gpu_resource_name` has another value.
        PreflightError: if Spark schedules no GPUs, and `use_gpu` is True.

    Example:
        >>> def train(factor):
        ...     from sparkdl import context
        ...     return factor * context.world_size
        >>> runner = MirroredStrategyRunner(num_slots=2, use_gpu=False, use_custom_strategy=True)
        >>> runner.run(train, factor=3) # doctest: +SKIP
        6
    """

    def __init__(
        self,
        *,
        num_slots: int,
        local_mode: bool = False,
        use_gpu: bool = True,
        gpu_resource_name: str = "gpu",
        use_custom_strategy: bool = False,
    ) -> None:
        if num_slots <= 0:
            raise ConfigError(f"num_slots is {num_slots!r}; expected a number above 0.")
        if gpu_resource_name != "gpu" and use_gpu and not local_mode:
            raise ConfigError(
                f"gpu_resource_name is {gpu_resource_name!r}; expected 'gpu', the name in "
                "spark.task.resource.gpu.amount. Start Spark with GPUs of this name."
            )
        self._num_slots = num_slots
        self._local_mode = local_mode
        self._use_gpu = use_gpu
        self._gpu_resource_name = gpu_resource_name
        self._use_custom_strategy = use_custom_strategy
        check_versions("tensorflow", "keras")  # The program is not known yet.
        self._cluster = SparkCluster()
        if not local_mode:
            _logger.info("training will run in %d Spark tasks", self.get_num_tasks())

    @property
    def sc(self) -> Any:
        """The SparkContext; None with Spark Connect."""
        return raw_context(self._cluster.spark)

    def get_num_tasks(self) -> int:
        """Return the number of workers: as many as have `num_slots` GPUs together.

        Raises:
            ConfigError: if the number of GPUs of a Spark task is not a whole number of at least 1.
            PreflightError: if Spark schedules no GPUs, and `use_gpu` is True.
        """
        if not self._use_gpu:
            return self._num_slots
        key = f"spark.task.resource.{self._gpu_resource_name}.amount"
        amount = self._cluster.conf(key)
        if amount is None:
            raise PreflightError(
                f"{key} is not set, so that Spark schedules no GPUs. Start Spark with GPU "
                "scheduling, see conf/README.md, or pass use_gpu=False."
            )
        if not amount.isdigit() or int(amount) < 1:
            raise ConfigError(f"{key} is {amount!r}; expected a whole number of at least 1.")
        return math.ceil(self._num_slots / int(amount))

    def run(self, train_fn: Callable[..., Any], **kwargs: Any) -> Any:
        """Call a function in all workers, or here in local mode.

        Args:
            train_fn: the training function.
            **kwargs: its arguments.

        Returns:
            The value that the function returned in the first worker; of objects other than numbers,
            texts, and lists and dicts of these, their text.

        Raises:
            ConfigError: if the driver has too few GPUs, or `local_mode` has more than one slot
                without GPUs.
            PreflightError: if the cluster cannot run the workers, or encrypts its connections.
            TrainingFailedError: if a worker failed; its cause is the exception of that worker.
        """
        if self._local_mode:
            return self._run_here(functools.partial(train_fn, **kwargs))
        self._check_encryption()
        num_gpus = self._num_slots if self._use_gpu else 0
        function = functools.partial(
            _run_worker, train_fn, kwargs, num_gpus, self._use_custom_strategy
        )
        run = experiment.allreduce(
            function,
            num_workers=self.get_num_tasks(),
            num_gpus=None if self._use_gpu else 0,
            name=getattr(train_fn, "__name__", None),
            spark=self._cluster.spark,
        )
        return run.result

    def _check_encryption(self) -> None:
        """Validate that the user does not expect encryption: gradients travel unencrypted.

        Raises:
            PreflightError: if Spark encrypts its connections, and the user has not accepted this.
        """
        if (self._cluster.conf("spark.ssl.enabled") or "").lower() != "true":
            return
        text = "spark.ssl.enabled is true, but the gradients between workers are not encrypted"
        if (self._cluster.conf(_IGNORE_SSL) or "").lower() != "true":
            raise PreflightError(f"{text}. To train nevertheless, set {_IGNORE_SSL}=true.")
        _logger.warning("%s.", text)

    def _run_here(self, function: Callable[[], Any]) -> Any:
        if not self._use_gpu and self._num_slots > 1:
            raise ConfigError(
                f"num_slots is {self._num_slots} with local_mode=True and use_gpu=False; expected "
                "1, as there is one driver."
            )
        end_preview(IN_PROCESS)
        gpus = self._gpus_of_driver() if self._use_gpu else []
        if self._use_gpu and self._num_slots > len(gpus):
            raise ConfigError(
                f"num_slots is {self._num_slots}, but the driver has {len(gpus)} GPUs "
                f"({', '.join(gpus) or 'none'}). Lower num_slots, or pass use_gpu=False."
            )
        with _visible(gpus[: self._num_slots]):
            if self._use_custom_strategy:
                return function()
            with _strategy_here().scope():
                return function()

    def _gpus_of_driver(self) -> list[str]:
        """Return the GPUs that Spark has assigned to the driver, or that this process may use."""
        resources = getattr(self.sc, "resources", None) or {}
        if self._gpu_resource_name not in resources:
            return devices.gpus()
        addresses = list(resources[self._gpu_resource_name].addresses)
        return as_seen_by_executor(addresses, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _run_worker(
    train_fn: Callable[..., Any], kwargs: dict[str, Any], num_gpus: int, has_own_strategy: bool
) -> Any:
    """Call the training function in a worker, with its part of all GPUs."""
    me = context.current()
    mine = num_gpus // me.world_size + (me.rank < num_gpus % me.world_size)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices.gpus()[:mine])
    if has_own_strategy:
        return train_fn(**kwargs)
    with distribute.strategy().scope():
        return train_fn(**kwargs)


def _strategy_here() -> Any:
    import tensorflow as tf

    several = len(tf.config.list_physical_devices("GPU")) > 1
    return tf.distribute.MirroredStrategy() if several else tf.distribute.get_strategy()


@contextlib.contextmanager
def _visible(gpus: list[str]) -> Iterator[None]:
    """Let this process see only these GPUs inside the block."""
    earlier = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    try:
        yield
    finally:
        if earlier is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = earlier
