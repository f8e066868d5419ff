"""The counterpart of `horovod.spark.torch` (runs on the driver): modules of PyTorch in Spark ML."""

from sparkdl.horovod.absent_names import absent_names
from sparkdl.horovod.spark.torch.estimator import TorchEstimator
from sparkdl.horovod.spark.torch.model import TorchModel

__all__ = ["TorchEstimator", "TorchModel"]

__getattr__ = absent_names(__name__, __all__)
