"""Form processes on Spark and run a function in them (on the driver and in Spark tasks).

No module here knows a data format, a metric or a search.
"""
