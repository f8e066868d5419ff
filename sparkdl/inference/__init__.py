"""Models: found, carried to executors and run over the rows of a DataFrame.

What a person calls is `experiment.predict` (runs on the driver; `task` in a Spark task).
"""
