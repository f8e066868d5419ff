"""The counterpart of `horovod.runner.common` (runs on the driver)."""

from sparkdl.horovod.absent_names import absent_names

__getattr__ = absent_names(__name__, ["util"])
