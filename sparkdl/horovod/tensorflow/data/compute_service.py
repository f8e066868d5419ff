"""Runs in the training process. The counterpart of `horovod.tensorflow.data.compute_service`."""

from sparkdl.horovod.absent_names import absent_names

_NAMES = ("TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service")
_INSTEAD = (
    "Spark is the service: compute the rows in a DataFrame df, call experiment.horovod(train, "
    "num_workers=..., data=df), and read data.dataset(batch_size_per_worker=...) in the function."
)

__getattr__ = absent_names(__name__, instead=dict.fromkeys(_NAMES, _INSTEAD))
