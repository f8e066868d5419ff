"""Readers of files in the training process, with a `Source` for each format."""
