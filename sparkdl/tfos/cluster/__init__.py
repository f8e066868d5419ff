"""The nodes of a TensorFlowOnSpark cluster: their roles, their start, their end."""
