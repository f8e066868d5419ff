"""Datasets written by petastorm: read without petastorm where possible, written by its own code."""
