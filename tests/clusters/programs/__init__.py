"""Programs that the drivers of the clusters run, see `tests.clusters.driver`."""
