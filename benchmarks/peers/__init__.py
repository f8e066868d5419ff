"""Programs that run under the interpreter of a peer, such as TensorFlowOnSpark or Ray."""
