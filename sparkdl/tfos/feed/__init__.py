"""Feed the rows of RDDs and DataFrames to the nodes of a cluster."""
