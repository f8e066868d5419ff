"""Runs on the driver. The parts of any Spark session: the Python of its workers, ML stages."""
