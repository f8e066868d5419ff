"""SPARK input mode: the rows of a DataFrame flow from Spark tasks into training processes."""
