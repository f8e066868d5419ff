"""Gangs: processes that must run together, and how they meet (runs in Spark tasks)."""
