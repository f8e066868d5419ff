"""Runs on the driver. Compare a trial with the same trial trained again, and name causes."""
