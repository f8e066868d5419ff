"""A process with many open files."""

import contextlib
import os
import resource
from collections.abc import Iterator

__all__ = ["many_open_files"]

# The largest descriptor that `select.select` takes is 1023.
NUM_FILES = 1100


@contextlib.contextmanager
def many_open_files() -> Iterator[None]:
    """Open so many files that `select.select` accepts no file that is opened within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(NUM_FILES)]
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
