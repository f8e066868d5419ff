"""The code that runs inside a node of a TensorFlowOnSpark cluster."""
