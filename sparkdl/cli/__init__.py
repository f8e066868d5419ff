"""Runs on the driver. The `sparkdl` command, without logic of its own."""
