"""The GPUs of one training process: assigned by Spark, or held by file locks (in Spark tasks)."""
