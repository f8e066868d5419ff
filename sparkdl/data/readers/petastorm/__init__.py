"""Datasets of petastorm: rows are read without petastorm where possible, and written by it."""
