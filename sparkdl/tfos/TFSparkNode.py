"""Runs in the training process. The context of a node, at its place in TensorFlowOnSpark."""

from sparkdl.tfos.node.runtime import TFNodeContext

__all__ = ["TFNodeContext"]
