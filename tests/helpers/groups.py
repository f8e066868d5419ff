"""Which tests one process of pytest-xdist runs: those of one Spark application stay together.

The processes that run the tests know what each test needs, the one that schedules them does not:
they write it to a file.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["GROUPS", "read_groups", "write_groups"]

GROUPS = "SPARKDL_TESTS_GROUPS"


def write_groups(process: str, groups: Mapping[str, str]) -> None:
    """Write the group of each test, by the test's id."""
    path = Path(os.environ[GROUPS])
    part = path.with_suffix(f".{process}")
    part.write_text(json.dumps(groups))
    part.replace(path)


def read_groups() -> dict[str, str]:
    """Return the group of each test, by the test's id."""
    groups: dict[str, str] = json.loads(Path(os.environ[GROUPS]).read_text())
    return groups
