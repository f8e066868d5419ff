"""What runs inside a node of a TensorFlowOnSpark cluster."""
