"""Runs anywhere. Leave out the lines that TensorFlow's native code prints when it starts."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# All lines of level I, and warnings at the start that nobody can act upon.
_NOISE = re.compile(
    r"^(?:\d{4}-\d\d-\d\d [\d:.]+: I |I\d{4} [\d:.]+ +\d+ )[\w/.]+\.(?:cc|h):\d+\]"
    r"|cuInit|cudart_stub\.cc|oneDNN custom operations|cpu_feature_guard\.cc|AsGraphDefInternal"
    r"|^WARNING: All log messages before absl::InitializeLog"
    r"|^To enable the following instructions: .* rebuild TensorFlow"
    r"|Unable to register cu\w+ factory|computation placer already registered"
    r"|TF-TRT Warning: Could not find TensorRT|read NUMA node|NUMA node read from SysFS"
    r"|'MessageFactory' object has no attribute 'GetPrototype'"
)


def is_noise(line: str) -> bool:
    """Return True for a line that TensorFlow's native code prints in every process.

    Example:
        >>> is_noise("I0000 00:00:1795379784.709034    2284 cudart_stub.cc:31] Could not find cuda")
        True
        >>> is_noise("accuracy 0.93")
        False
    """
    return _NOISE.search(line) is not None


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Leave the noise out of a notebook if TensorFlow starts in the block.

    Jupyter shows everything that native code writes to the standard error as the output of the
    cell, also that of processes below the kernel, such as the Python workers of embedded Spark.
    The other lines are written at the end of the block.
    """
    is_below_jupyter = "ipykernel" in sys.modules or "JPY_PARENT_PID" in os.environ
    if not is_below_jupyter or "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines():
                if not is_noise(line):
                    print(line, file=sys.stderr)
