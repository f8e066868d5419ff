"""Runs anywhere. Credentials: how they are named and look, and where they are masked."""
