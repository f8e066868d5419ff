"""Runs in the training process. The place of a process in its run, and its messages."""
