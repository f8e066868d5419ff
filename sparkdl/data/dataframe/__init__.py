"""The rows of a DataFrame are sent from Spark tasks to training processes."""
