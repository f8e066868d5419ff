"""The table of docs/benchmarks.md is the one of the files in benchmarks/results."""

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks/table.py"


def test_page_has_the_newest_results() -> None:
    checked = subprocess.run(
        [sys.executable, str(PROGRAM), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
