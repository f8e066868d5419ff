"""Runs on the driver. The trial loop: submit trials, follow them, record how they end."""
