"""The counterpart of `horovod.tensorflow.data`, Horovod's helper for the service of tf.data.

Runs in the training process.
"""

from sparkdl.horovod.absent_names import absent_names

__getattr__ = absent_names(__name__)
