"""Runs on the driver. Recognise what belongs to Spark Connect."""


def is_of_connect(value: object) -> bool:
    """Return True if a session or a DataFrame is one of Spark Connect."""
    return f"{type(value).__module__}.".startswith("pyspark.sql.connect.")
