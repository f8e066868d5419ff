"""Tests of the model server."""
