"""Runs on the driver. The `sparkdl` command, with the logic that nothing else needs."""
