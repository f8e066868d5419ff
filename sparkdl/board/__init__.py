"""Runs on the driver. TensorBoard of a run: its trials by name, while it goes on and later."""
