"""Runs in the training process. Readers of files, TENSORFLOW mode: a `Source` for each format."""
