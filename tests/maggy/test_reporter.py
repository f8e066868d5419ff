"""The reporter that maggy passes to a training function."""

import subprocess
import sys

# A data loader or a pool forks the training process after the reporter was made.
PROGRAM = """
import os
from sparkdl import context
from sparkdl.maggy.core.reporter import Reporter

reporter = Reporter()
reporter.broadcast(0.5, 1)
child = os.fork()
reporter.broadcast(0.5, 3 if child == 0 else 2)
# At once, and not among the lines of the reporters: both processes write at the same time.
os.write(2, f"now at step {context.this_reporter().step}\\n".encode())
if child:
    os.waitpid(child, 0)
"""


def test_a_forked_process_reports_by_its_own_reporter() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    lines = [line for line in ended.stderr.splitlines() if line.startswith("now")]
    assert sorted(lines) == ["now at step 2", "now at step 3"]
