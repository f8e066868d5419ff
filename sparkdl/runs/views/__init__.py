"""Runs on the driver. Pictures and pages of runs: figures, the report, comparisons."""
