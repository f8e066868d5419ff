"""Runs anywhere. The machine of a process: processes, visible GPUs, loopback, imports."""
