"""Tests on clusters of several hosts, which need root and servers: `make test-clusters`."""
