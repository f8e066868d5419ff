"""The Spark ML side of TensorFlowOnSpark: parameters, persistence, transforming."""
