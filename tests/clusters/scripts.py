"""Software that the scripts of the repository fetch for tests."""

import os
import subprocess
import sys

import pytest

from tests.clusters.standalone import REPOSITORY

__all__ = ["fetched"]


def fetched(name: str, timeout_s: float = 900) -> list[str]:
    """Run a script, and return the paths that it prints; skip the test where it cannot fetch them.

    Args:
        name: the name of a file in `scripts`.
        timeout_s: seconds that the script may take.
    """
    script = str(REPOSITORY / "scripts" / name)
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        [script], env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    return done.stdout.splitlines()
