"""Runs on the driver. Commands of users to a run that goes on, here or elsewhere."""
