"""Where it runs: P. Readers of files, TENSORFLOW mode: a `Source` for each format."""
