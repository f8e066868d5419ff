"""Lines that a rank prints are kept, and no print blocks the rank."""

import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from sparkdl.horovod.printed_lines import keep_printed_lines

with keep_printed_lines(Path(sys.argv[1]), rank=3):
{body}
print("after")
"""
LONG = 1 << 20


def kept(body: str, folder: Path, name: str = "stdout") -> bytes:
    """Return the kept lines of a process that runs some lines of Python."""
    words = [sys.executable, "-c", PROGRAM.format(body=body), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("after\n")
    (file,) = (folder / "printed").glob(f"{name}-3-*")
    return file.read_bytes()


def test_a_process_that_dies_in_native_code_loses_nothing(tmp_path: Path) -> None:
    body = (
        "    import ctypes; libc = ctypes.PyDLL(None)  # It holds Python's lock while it writes.\n"
        f"    libc.write(1, b'x' * {LONG}, {LONG}); libc.write(1, b'last', 4)\n"
        "    libc.abort()"
    )
    words = [sys.executable, "-c", PROGRAM.format(body=body), str(tmp_path)]
    assert subprocess.run(words, capture_output=True, timeout=120).returncode == -signal.SIGABRT
    (file,) = (tmp_path / "printed").glob("stdout-3-*")
    assert file.read_bytes() == b"x" * LONG + b"last"


def test_the_log_has_what_is_printed(tmp_path: Path) -> None:
    body = f"    os.write(1, b'x' * {LONG}); os.system('echo child')"
    words = [sys.executable, "-c", PROGRAM.format(body=body), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stdout == "x" * LONG + "child\nafter\n"


def test_a_process_that_goes_on_costs_no_line(tmp_path: Path) -> None:
    body = (
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    print('no end', end='', flush=True)\n"
        "    import atexit; atexit.register(child.kill)"
    )
    assert kept(body, tmp_path) == b"no end"


def test_a_log_that_takes_nothing_stops_no_print(tmp_path: Path) -> None:
    """The log is on a full disk; what is printed is more than a pipe holds."""
    body = "    for i in range(3): os.write(2, b'y' * 60000 + b'\\n')"
    program = PROGRAM.format(body=body)
    full = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 2)\n" + program
    words = [sys.executable, "-c", full, str(tmp_path)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "after\n")
    (file,) = (tmp_path / "printed").glob("stderr-3-*")
    assert file.read_bytes() == (b"y" * 60000 + b"\n") * 3


def test_a_program_may_redirect_its_output(tmp_path: Path) -> None:
    body = "    os.write(1, b'one\\n')\n    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)"
    assert kept(body, tmp_path) == b"one\n"
