"""The nodes of a TensorFlowOnSpark cluster: roles, start and shutdown."""
