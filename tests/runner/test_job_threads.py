"""Threads for jobs: as many as calls, also at the end of a program."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sparkdl.runner.job_threads import JobThreads

PROGRAM = """
import threading, time
from sparkdl.runner.job_threads import JobThreads

def run():
    threading.main_thread().join()
    time.sleep(0.3)  # Python has called what pools of threads have registered for the end.
    print([threads.submit(pow, 2, n).result() for n in range(3)], flush=True)

threads = JobThreads("test", 1)
threading.Thread(target=run).start()
"""


def test_calls_run_at_the_same_time_and_threads_are_used_again() -> None:
    threads = JobThreads("test")
    barrier = threading.Barrier(5)
    futures = [threads.submit(barrier.wait, 120) for _ in range(5)]
    assert sorted(future.result() for future in futures) == [0, 1, 2, 3, 4]
    names = {threads.submit(threading.current_thread).result().name for _ in range(20)}
    assert names <= {f"test-{number}" for number in range(5)}
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result()
    threads.close()


def test_calls_after_the_end_of_the_program_run(tmp_path: Path) -> None:
    """A pool of `concurrent.futures` refuses them: cannot schedule new futures."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stdout) == (0, "[1, 2, 4]\n"), done.stderr


def test_calls_wait_for_a_thread_where_none_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = JobThreads("test", 1)

    def refuses(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    futures = [threads.submit(abs, -number) for number in range(5)]
    assert [future.result(120) for future in futures] == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="interpreter shutdown"):
        JobThreads("none").submit(abs, 1)
    threads.close()
