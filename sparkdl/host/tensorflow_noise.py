"""Runs anywhere. Leave out the lines that TensorFlow's native code prints when it starts."""

import contextlib
import os
import re
import subprocess
import sys
import threading
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

# Copies the lines of the standard input that do not match a pattern.
_FILTER = """
import re, sys
noise = re.compile(sys.argv[1])
for line in open(0, errors="replace", newline="\\n"):
    if not noise.search(line):
        print(line, end="", flush=True)
"""
_LAST_LINES_S = 0.2


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
    """Leave the noise out of the standard error if TensorFlow starts in the block.

    Another process writes the other lines on: they are there, whatever becomes of this process.
    """
    is_started = "tensorflow" in sys.modules or sys.stderr is None or not sys.executable
    pump = None if is_started else _start_filter()
    if pump is None:
        yield
        return
    pipe, stderr = pump.stdin, os.dup(2)
    os.dup2(pipe.fileno(), 2)  # type: ignore[union-attr]
    pipe.close()  # type: ignore[union-attr]
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        # A process that was started in the block may keep the pipe open for as long as it lives.
        ending = threading.Thread(target=pump.wait, name="sparkdl-noise", daemon=True)
        ending.start()
        ending.join(_LAST_LINES_S)


def _start_filter() -> "subprocess.Popen[bytes] | None":
    """Start the process that writes lines on; None if the host has no room for one."""
    sys.stderr.flush()
    command = [sys.executable, "-S", "-c", _FILTER, _NOISE.pattern]
    # A session of its own: Ctrl-C ends this process, whose last lines are still written.
    with contextlib.suppress(OSError):
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True)
    return None
