"""Runs on the driver. Run again, from its directory: resume, reproduce, replay, one trial."""
