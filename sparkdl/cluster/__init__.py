"""Form processes on Spark and run a function in them. Knows no data format, metric or search."""
