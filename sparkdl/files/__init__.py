"""Runs anywhere. Files on any file system or store: storage, JSON lines, attempts, waiting."""
