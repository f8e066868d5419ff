"""Runs in the training process. The context of a node, at its place in TensorFlowOnSpark."""

from sparkdl.tfos.absent_names import absent_names
from sparkdl.tfos.node.runtime import TFNodeContext

__all__ = ["TFNodeContext"]

__getattr__ = absent_names(__name__, __all__)
