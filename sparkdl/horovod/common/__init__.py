"""The counterpart of `horovod.common` (runs anywhere): what the frameworks have in common."""

from sparkdl.horovod.absent_names import absent_names

__getattr__ = absent_names(__name__, ["elastic", "exceptions", "process_sets", "util"])
