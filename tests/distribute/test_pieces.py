"""Work on pieces beside the caller: its thread does not outlive, or end before, what needs it."""

import subprocess
import sys

import numpy as np
import pytest

from sparkdl.distribute.pieces import run_in_turns

PIECES = [[slice(0, 1)], [slice(1, 2)]]
PROGRAM = """
import threading
from sparkdl.distribute.pieces import nothing, run_in_turns

pieces = [[slice(0, 1)], [slice(1, 2)]]
begun = threading.Event()

def beside(piece):
    begun.set()
    {beside}

def work():
    {before}
    run_in_turns(pieces, lambda piece: None, beside, lambda piece, wait: wait(), nothing)
    print("done")

threading.Thread(target=work, daemon={daemon}).start()
{then}
"""


def output(**parts: object) -> str:
    """Return what a program prints until its end, which must come within a minute."""
    command = [sys.executable, "-c", PROGRAM.format(**parts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_a_thread_works_on_pieces_when_the_main_thread_has_ended() -> None:
    before = "threading.main_thread().join()"
    assert output(before=before, beside="pass", daemon=False, then="") == "done"


def test_a_process_exits_while_a_piece_waits_for_other_ranks() -> None:
    beside = "threading.Event().wait()"
    assert output(before="pass", beside=beside, daemon=True, then="begun.wait()") == ""


def test_the_caller_decides_about_the_errors_of_numpy() -> None:
    huge = np.full(2, 3e38, np.float32)

    def beside(piece: object) -> None:
        np.add(huge, huge)

    def run() -> None:
        run_in_turns(PIECES, lambda piece: None, beside, lambda piece, wait: None, lambda: None)

    with np.errstate(over="ignore"):
        run()  # A warning would fail the test.
    with np.errstate(over="raise"), pytest.raises(FloatingPointError, match="overflow"):
        run()
