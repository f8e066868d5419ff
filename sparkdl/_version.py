"""Runs anywhere. The one place that says what is installed, and which release it is."""

# The name under which package indexes and pip know it; `sparkdl` is another package of 2018.
DISTRIBUTION = "sparkdl-platform"

__version__ = "0.1.0"
