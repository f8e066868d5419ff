"""Runs on the driver. The way of a request: checked, its run opened, its program kept, started."""
