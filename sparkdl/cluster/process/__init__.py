"""Training processes: forked from a server that has imported the framework, watched by a task."""
