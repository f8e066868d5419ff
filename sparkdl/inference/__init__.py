"""Inference: find a model, send it to executors and apply it to the rows of a DataFrame.

Users call `experiment.predict`, which runs on the driver; `predict_task` runs in a Spark task.
"""
